"""What a command writes, as lines of a log: bounded, whatever comes, and without the secrets it was given.

A command may write anything, in any amount: no text, no ends of lines, gigabytes. What is kept of it is text of lines,
the first part and the last, with what was left out between them counted. Nothing grows with the output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from evertick.job.context import LINE_MAX_CHARS

__all__ = ["HEAD_BYTES", "HEAD_LINES", "TAIL_BYTES", "TAIL_LINES", "Captured", "Lines", "Mask", "Output"]

# Both parts, and what else a run may say, fit into the log of an attempt.
HEAD_BYTES = TAIL_BYTES = 96 * 1024
HEAD_LINES = TAIL_LINES = 2_000
_HIDDEN = b"***"
# Small pieces of the tail are put together, or each would take more room than what it holds.
_PIECE_BYTES = 4_096
_LAST_WORDS_MAX_CHARS = 300
# A shorter line of a secret may be one of anything.
_SECRET_LINE_LEAST = 8


class Output(Protocol):
    """Takes what comes from the pipes of a command."""

    def take(self, stream: str, chunk: bytes) -> None: ...

    def flush(self) -> None:
        """What has come so far is whole: a line without an end is one, too."""
        ...


class Lines:
    """Cuts the streams of a command into lines of text."""

    def __init__(self, on_line: Callable[[str, str], None]) -> None:
        self._on_line = on_line
        self._rest: dict[str, bytes] = {}

    def take(self, stream: str, chunk: bytes) -> None:
        *lines, rest = (self._rest.get(stream, b"") + chunk).split(b"\n")
        for line in lines:
            self._say(stream, line)
        *pieces, self._rest[stream] = _pieces(rest)
        for piece in pieces:
            self._say(stream, piece)

    def flush(self) -> None:
        for stream, rest in self._rest.items():
            if rest:
                self._say(stream, rest)
        self._rest.clear()

    def _say(self, stream: str, line: bytes) -> None:
        for piece in _pieces(line):
            self._on_line(stream, piece.decode(errors="replace").rstrip("\r"))


class Mask:
    """Puts stars in place of secrets, also where one comes in parts."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = sorted({part for secret in secrets for part in _parts(secret)}, key=len, reverse=True)
        self._held = b""

    def take(self, chunk: bytes) -> bytes:
        """What may be shown by now. The beginning of what may become a secret is held back."""
        if not self._secrets:
            return chunk
        data = self._held + chunk
        shown, done = bytearray(), 0
        held = self._held_from(data, done)
        for start, end in self._found(data):
            if held <= start:  # a longer one may have begun here
                break
            shown += data[done:start] + _HIDDEN
            done = end
            held = self._held_from(data, done) if held < done else held
        self._held = data[held:]
        return bytes(shown + data[done:held])

    def flush(self) -> bytes:
        """What was held back, and did not go on."""
        data, self._held = self._held, b""
        shown, done = bytearray(), 0
        for start, end in self._found(data):
            shown += data[done:start] + _HIDDEN
            done = end
        return bytes(shown + data[done:])

    def _found(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Where secrets are, from left to right; of two at one place the longer one."""
        # The next place of each: one that is not there any more is not looked for again.
        places = {secret: place for secret in self._secrets if (place := data.find(secret)) >= 0}
        end = 0
        while places:
            for secret in [secret for secret, place in places.items() if place < end]:
                places[secret] = data.find(secret, end)
                if places[secret] < 0:
                    del places[secret]
            if places:
                found = min(places, key=lambda secret: (places[secret], -len(secret)))
                start, end = places[found], places[found] + len(found)
                yield start, end

    def _held_from(self, data: bytes, start: int) -> int:
        """Where the longest end of the data begins that a secret may begin with."""
        first = len(data)
        for secret in self._secrets:
            at = data.find(secret[:1], max(start, len(data) - len(secret) + 1))
            while 0 <= at < first:
                if secret.startswith(data[at:]):
                    first = at
                at = data.find(secret[:1], at + 1)
        return first


class Captured:
    """The output of one run of a command: its head as it comes, its tail when it has ended.

    write: keeps a line: (moment, stream, text). now: the moment, in microseconds.
    """

    def __init__(
        self, write: Callable[[int, str, str], None], now: Callable[[], int], secrets: Iterable[str] = ()
    ) -> None:
        self._write, self._now = write, now
        secrets = tuple(secrets)
        self._masks = {stream: Mask(secrets) for stream in ("stdout", "stderr")}
        self._head = Lines(self._say_now)
        self._bytes_left, self._lines_left = HEAD_BYTES, HEAD_LINES
        self._tail = _Tail()
        self._last: dict[str, str] = {}

    @property
    def last_words(self) -> str:
        """The last line of stderr, or else of stdout, that has something in it."""
        return (self._last.get("stderr") or self._last.get("stdout") or "")[:_LAST_WORDS_MAX_CHARS]

    def take(self, stream: str, chunk: bytes) -> None:
        self._keep(stream, self._masks[stream].take(chunk))

    def flush(self) -> None:
        """A command may pause in the middle of a line; it is whole at its end only."""

    def close(self, *, is_cut: bool = False) -> None:
        """The command has ended: write what was kept back. Not what a secret begins with, if it was cut off there."""
        for stream, mask in self._masks.items():
            if not is_cut:
                self._keep(stream, mask.flush())
        tail = self._tail
        if tail.is_cut:
            self._head.flush()
            lines = tail.lines()
            at = lines[0][0] if lines else self._now()
            self._write(at, "info", f"… {tail.bytes_gone} bytes, {tail.lines_gone} lines of output left out here …")
            for at, stream, text in lines:
                self._say(at, stream, text)
        else:
            for _, stream, piece in tail.pieces:
                self._head.take(stream, bytes(piece))
            self._head.flush()

    def _keep(self, stream: str, chunk: bytes) -> None:
        room = self._room_for(chunk)
        if room:
            self._head.take(stream, chunk[:room])
        if room < len(chunk):
            self._bytes_left = 0  # what follows comes after what did not fit
            was_cut = self._tail.is_cut
            self._tail.add(self._now(), stream, chunk[room:])
            if self._tail.is_cut and not was_cut:
                self._head.flush()
                self._write(self._now(), "info", "… there is more output; its end follows when the command has ended …")

    def _room_for(self, chunk: bytes) -> int:
        """How much of the chunk the head takes."""
        room = min(len(chunk), self._bytes_left)
        lines = chunk.count(b"\n", 0, room)
        if lines > self._lines_left:
            room = _end_of_line(chunk, self._lines_left)
            lines = self._lines_left
        self._lines_left -= lines
        self._bytes_left -= room
        return room

    def _say_now(self, stream: str, text: str) -> None:
        self._say(self._now(), stream, text)

    def _say(self, at: int, stream: str, text: str) -> None:
        if text.strip():
            self._last[stream] = text
        self._write(at, stream, text)


class _Tail:
    """The last so many bytes, in the order in which they came."""

    def __init__(self) -> None:
        self.pieces: deque[tuple[int, str, bytearray]] = deque()
        self._size = 0
        self.bytes_gone = 0
        self.lines_gone = 0

    @property
    def is_cut(self) -> bool:
        return self.bytes_gone > 0

    def add(self, at: int, stream: str, chunk: bytes) -> None:
        last = self.pieces[-1] if self.pieces else None
        if last is not None and last[1] == stream and len(last[2]) < _PIECE_BYTES:
            last[2].extend(chunk)
        else:
            self.pieces.append((at, stream, bytearray(chunk)))
        self._size += len(chunk)
        while self._size > TAIL_BYTES or len(self.pieces) > TAIL_LINES:
            self._drop(self._size - TAIL_BYTES if self._size > TAIL_BYTES else len(self.pieces[0][2]))

    def lines(self) -> list[tuple[int, str, str]]:
        """As text; the first line of each stream may be the end of a longer one."""
        kept: deque[tuple[int, str, str]] = deque(maxlen=TAIL_LINES)
        came_at = 0
        lines = Lines(lambda stream, text: self._keep(kept, (came_at, stream, text)))
        for at, stream, piece in self.pieces:
            came_at = at
            lines.take(stream, bytes(piece))
        lines.flush()
        return list(kept)

    def _drop(self, count: int) -> None:
        _, _, first = self.pieces[0]
        gone = min(count, len(first))
        self.lines_gone += first.count(b"\n", 0, gone)
        self.bytes_gone += gone
        self._size -= gone
        if gone == len(first):
            self.pieces.popleft()
        else:
            del first[:gone]

    def _keep(self, kept: deque[tuple[int, str, str]], line: tuple[int, str, str]) -> None:
        if len(kept) == TAIL_LINES:
            self.lines_gone += 1
            self.bytes_gone += len(kept[0][2].encode(errors="replace")) + 1
        kept.append(line)


def _pieces(line: bytes) -> list[bytes]:
    """The line in parts that a log takes whole, not cut inside of a character."""
    pieces = []
    while len(line) > LINE_MAX_CHARS:
        end = LINE_MAX_CHARS
        # A byte that goes on with a character: 10xxxxxx, three in a row at most.
        while end > LINE_MAX_CHARS - 4 and line[end] & 0xC0 == 0x80:
            end -= 1
        pieces.append(line[:end])
        line = line[end:]
    return [*pieces, line]


def _end_of_line(chunk: bytes, number: int) -> int:
    """Where the line of this number ends."""
    end = 0
    for _ in range(number):
        end = chunk.index(b"\n", end) + 1
    return end


def _parts(secret: str) -> Iterator[bytes]:
    """The secret, and the lines of a long one: programs show keys line by line. Not the frames of those, like
    `-----BEGIN PRIVATE KEY-----`.
    """
    data = secret.encode(errors="surrogateescape")
    yield data
    lines = data.splitlines()
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= _SECRET_LINE_LEAST and not line.startswith(b"-----"))
