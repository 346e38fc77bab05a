"""The output of a command as lines of a log: bounded, and without the secrets that the command was given.

A command may write anything, in any amount: no text, no ends of lines, gigabytes. What is kept of it is text of lines,
the first part and the last, with what was left out between them counted. Nothing grows with the output.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import Protocol

from evertick.job.context import LINE_MAX_CHARS

__all__ = ["HEAD_BYTES", "HEAD_LINES", "TAIL_BYTES", "TAIL_LINES", "CapturedOutput", "LogLines", "Mask", "Output"]

# Both parts, and what else a run may say, fit into the log of an attempt.
HEAD_BYTES = TAIL_BYTES = 96 * 1024
HEAD_LINES = TAIL_LINES = 2_000
_HIDDEN = b"***"
# Small pieces of the tail are put together, or each would take more room than what it holds.
_PIECE_BYTES = 4_096
_LAST_WORDS_MAX_CHARS = 300
# A shorter line of a secret may be one of anything.
_SECRET_LINE_LEAST = 8
# Secrets are looked for in the first output, until the head is full; but in no more than that, however long they are.
_SLICE_BYTES = 8_192
_LOOKED_THROUGH_MOST = 4 * HEAD_BYTES
_CLOSED_AT_ONCE_BYTES = 16_384
# An expression is made by slow code, so it is short: of long or many secrets it has their first bytes.
_PATTERN_BYTES = 4_096
_COMPARED_BYTES = 256
_PREFIX_LEAST, _PREFIX_MOST = 4, 64
# So many are tried one after the other; more are distinguished by a byte, and these by the next.
_TRIED_MOST = 4
_FORKS_MOST = 3


class Output(Protocol):
    """Takes what comes from the pipes of a command."""

    def take(self, stream: str, chunk: bytes) -> None: ...

    def flush(self) -> None:
        """Take a line without an end as one."""
        ...


class LogLines:
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
        # Where one may begin, found by compiled code; of a long one, or of many, by their first bytes.
        self._prefix = min(max(_PATTERN_BYTES // (len(self._secrets) or 1), _PREFIX_LEAST), _PREFIX_MOST)
        self._pattern = re.compile(_pattern([secret[: self._prefix] for secret in self._secrets]), re.DOTALL)
        self._is_exact = not self._secrets or self.longest <= self._prefix
        self._held = b""

    @property
    def longest(self) -> int:
        """How many bytes the longest secret has; 0 without any."""
        return len(self._secrets[0]) if self._secrets else 0

    def give_back(self) -> bytes:
        """The bytes that were held back, unmasked."""
        data, self._held = self._held, b""
        return data

    def take(self, chunk: bytes) -> bytes:
        """The bytes that may be shown by now. The possible beginning of a secret is held back."""
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
        """The bytes that were held back, masked: nothing follows."""
        return self.masked_parts(b"", [self.give_back()], is_cut=False)[0]

    def masked_parts(self, before: bytes, parts: Sequence[bytes], *, is_cut: bool) -> list[bytes]:
        """The parts of one text, masked; what came before them is known, but not shown. is_cut: there was to be more,
        and what a secret begins with is not shown at the end."""
        data = before + b"".join(parts)
        spans = list(self._found(data))
        over = spans[-1][1] if spans else 0
        end = self._held_from(data, over) if is_cut else len(data)
        masked: list[bytes] = []
        at = until = len(before)
        number = 0
        for part in parts:
            shown, until = bytearray(), until + len(part)
            while number < len(spans) and spans[number][0] < until:
                start, after = spans[number]
                # Its stars stand where it begins, or where the parts do.
                if after > at and (start >= at or not masked):
                    shown += data[at:start] + _HIDDEN
                at = max(at, after)
                number += 1
            masked.append(bytes(shown + data[at : min(until, end)]))
            at = max(at, until)
        return masked

    def _found(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Where secrets are, from left to right; of two at one place the longer one."""
        if not self._secrets:
            return
        if self._is_exact:
            for found in self._pattern.finditer(data):
                yield found.span()
            return
        at = 0
        while (begin := self._pattern.search(data, at)) is not None:
            start, first = begin.start(), begin[0][:1]
            at = start + 1
            for secret in self._secrets:
                is_one = secret[:1] == first and data.endswith(secret[-_COMPARED_BYTES:], start, start + len(secret))
                if is_one and data.startswith(secret, start):
                    at = start + len(secret)
                    yield start, at
                    break

    def _held_from(self, data: bytes, start: int) -> int:
        """Where the longest end of the data begins that a secret may begin with."""
        first = len(data)
        for secret in self._secrets:
            at = data.find(secret[:1], max(start, len(data) - len(secret) + 1))
            while 0 <= at < first:
                if secret.startswith(data[at : at + _COMPARED_BYTES]) and secret.startswith(data[at:]):
                    first = at
                at = data.find(secret[:1], at + 1)
        return first


def _pattern(parts: list[bytes], depth: int = 0) -> bytes:
    """An expression for any of these, the longest first.

    Many are distinguished by their first bytes: to try each at every place would take a time that grows with their
    number.
    """
    if len(parts) <= _TRIED_MOST or depth == _FORKS_MOST:
        return b"|".join(re.escape(part) for part in dict.fromkeys(parts))
    groups: dict[bytes, list[bytes]] = {}
    for part in parts:
        groups.setdefault(part[:1], []).append(part[1:])
    return b"|".join(
        re.escape(first) + b"(?:" + _pattern(rest, depth + 1) + b")" if first else b"" for first, rest in groups.items()
    )


class CapturedOutput:
    """The output of one run of a command: its head as it comes, its tail when it has ended.

    Secrets are looked for in what is kept alone. What lies between head and tail is counted, and nothing else.

    write: keeps a line: (moment, stream, text). now: the moment, in microseconds.
    """

    def __init__(
        self, write: Callable[[int, str, str], None], now: Callable[[], int], secrets: Iterable[str] = ()
    ) -> None:
        self._write, self._now = write, now
        mask = Mask(secrets)
        self._masks = {stream: copy(mask) for stream in ("stdout", "stderr")}
        # Bytes that have come, by stream.
        self.counts = dict.fromkeys(self._masks, 0)
        self._head = LogLines(self._say_now)
        self._bytes_left, self._lines_left = HEAD_BYTES, HEAD_LINES
        self._looked_through = 0
        self._is_head_full = False
        # As it came. A secret may begin before it and end in it.
        self._has_secrets = mask.longest > 0
        self._tail = _OutputTail(margin=max(mask.longest - 1, 0))
        self._last: dict[str, str] = {}

    @property
    def last_words(self) -> str:
        """The last line of stderr, or else of stdout, that has something in it."""
        return (self._last.get("stderr") or self._last.get("stdout") or "")[:_LAST_WORDS_MAX_CHARS]

    @property
    def takes_long_to_close(self) -> bool:
        """Whether that may take some tens of milliseconds, so that a thread should do it."""
        return self._has_secrets and self._tail.size > _CLOSED_AT_ONCE_BYTES

    def take(self, stream: str, chunk: bytes) -> None:
        self.counts[stream] += len(chunk)
        at = 0
        while at < len(chunk) and not self._is_head_full:
            # In slices, where secrets are looked for: the head may be full soon.
            piece = chunk[at : at + _SLICE_BYTES] if self._has_secrets else chunk
            at += len(piece)
            self._looked_through += len(piece)
            self._keep(stream, self._masks[stream].take(piece))
            if self._has_secrets and self._looked_through > _LOOKED_THROUGH_MOST:
                self._end_head()
        if at < len(chunk):
            self._keep_last(stream, chunk[at:])

    def flush(self) -> None:
        """A command may pause in the middle of a line; it is whole at its end only."""

    def close(self, *, is_cut: bool = False) -> None:
        """The command has ended: write what was kept back. Not what a secret begins with, if it was cut off there."""
        if not is_cut and not self._is_head_full:
            for stream, mask in self._masks.items():
                self._keep(stream, mask.flush())
        tail = self._masked_tail(is_cut=is_cut) if self._has_secrets else self._tail
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
        room = 0 if self._is_head_full else self._room_for(chunk)
        if room:
            self._head.take(stream, chunk[:room])
        if room < len(chunk):
            self._keep_last(stream, chunk[room:])
            if not self._is_head_full:
                self._end_head()

    def _end_head(self) -> None:
        """From now on all goes to the tail, the possible beginnings of secrets first."""
        self._is_head_full = True
        for stream, mask in self._masks.items():
            self._keep_last(stream, mask.give_back())

    def _keep_last(self, stream: str, chunk: bytes) -> None:
        if not chunk:
            return
        was_cut = self._tail.is_cut
        self._tail.add(self._now(), stream, chunk)
        if self._tail.is_cut and not was_cut:
            self._head.flush()
            self._write(self._now(), "info", "… there is more output; its end follows when the command has ended …")

    def _masked_tail(self, *, is_cut: bool) -> _OutputTail:
        """The tail without secrets, and without the rest of one that began before it."""
        parts: dict[str, list[bytes]] = {}
        for _, stream, piece in self._tail.pieces:
            parts.setdefault(stream, []).append(bytes(piece))
        masked = {
            stream: iter(self._masks[stream].masked_parts(self._tail.before.get(stream, b""), own, is_cut=is_cut))
            for stream, own in parts.items()
        }
        tail = _OutputTail()
        tail.bytes_gone, tail.lines_gone = self._tail.bytes_gone, self._tail.lines_gone
        for at, stream, _ in self._tail.pieces:
            tail.add(at, stream, next(masked[stream]))
        return tail

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


class _OutputTail:
    """The last so many bytes, in the order in which they came.

    margin: how many bytes of each stream are known that came right before what is kept of it.
    """

    def __init__(self, margin: int = 0) -> None:
        self.pieces: deque[tuple[int, str, bytearray]] = deque()
        self.before: dict[str, bytes] = {}
        self.size = 0
        self._margin = margin
        self.bytes_gone = 0
        self.lines_gone = 0

    @property
    def is_cut(self) -> bool:
        return self.bytes_gone > 0

    def add(self, at: int, stream: str, chunk: bytes) -> None:
        if not chunk:
            return
        last = self.pieces[-1] if self.pieces else None
        if last is not None and last[1] == stream and len(last[2]) < _PIECE_BYTES:
            last[2].extend(chunk)
        else:
            self.pieces.append((at, stream, bytearray(chunk)))
        self.size += len(chunk)
        while self.size > TAIL_BYTES or len(self.pieces) > TAIL_LINES:
            self._drop(self.size - TAIL_BYTES if self.size > TAIL_BYTES else len(self.pieces[0][2]))

    def lines(self) -> list[tuple[int, str, str]]:
        """As text; the first line of each stream may be the end of a longer one."""
        kept: deque[tuple[int, str, str]] = deque(maxlen=TAIL_LINES)
        came_at = 0
        lines = LogLines(lambda stream, text: self._keep(kept, (came_at, stream, text)))
        for at, stream, piece in self.pieces:
            came_at = at
            lines.take(stream, bytes(piece))
        lines.flush()
        return list(kept)

    def _drop(self, count: int) -> None:
        _, stream, first = self.pieces[0]
        gone = min(count, len(first))
        if self._margin:
            self.before[stream] = (self.before.get(stream, b"") + first[max(0, gone - self._margin) : gone])[
                -self._margin :
            ]
        self.lines_gone += first.count(b"\n", 0, gone)
        self.bytes_gone += gone
        self.size -= gone
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
