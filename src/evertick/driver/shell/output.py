"""The output of a command as log lines: limited in size, with secrets masked.

A command may write gigabytes, binary data or endless lines. Its head and its tail are kept as lines of text, and the
bytes between them are counted. Memory use does not grow with the output.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import Protocol

from evertick.job.context import LINE_MAX_CHARS

__all__ = ["HEAD_BYTES", "HEAD_LINES", "TAIL_BYTES", "TAIL_LINES", "CapturedOutput", "LogLines", "Mask", "Output"]

# Both parts and other lines of a run fit into the log of an attempt.
HEAD_BYTES = TAIL_BYTES = 96 * 1024
HEAD_LINES = TAIL_LINES = 2_000
_HIDDEN = b"***"
# Smaller pieces of the tail are joined, because each has an overhead.
_PIECE_BYTES = 4_096
_LAST_WORDS_MAX_CHARS = 300
# Shorter lines of a secret are not masked: other output may contain them.
_SECRET_LINE_MIN = 8
# The head is searched for secrets in slices, up to a limit that long secrets do not raise.
_SLICE_BYTES = 8_192
_SEARCHED_MAX_BYTES = 4 * HEAD_BYTES
_CLOSED_AT_ONCE_BYTES = 16_384
# Compiling an expression is slow, so it contains only the first bytes of long or many secrets.
_PATTERN_BYTES = 4_096
_COMPARED_BYTES = 256
_PREFIX_MIN, _PREFIX_MAX = 4, 64
# More alternatives are grouped by their first byte, to this depth.
_ALTERNATIVES_MAX = 4
_GROUP_DEPTH_MAX = 3


class Output(Protocol):
    """Receives the output of a command."""

    def take(self, stream: str, chunk: bytes) -> None: ...

    def flush(self) -> None:
        """Take an incomplete line as a line."""
        ...


class LogLines:
    """Splits the streams of a command into lines of text."""

    def __init__(self, on_line: Callable[[str, str], None]) -> None:
        self._on_line = on_line
        self._rest: dict[str, bytes] = {}

    def take(self, stream: str, chunk: bytes) -> None:
        *lines, rest = (self._rest.get(stream, b"") + chunk).split(b"\n")
        for line in lines:
            self._emit(stream, line)
        *pieces, self._rest[stream] = _pieces(rest)
        for piece in pieces:
            self._emit(stream, piece)

    def flush(self) -> None:
        for stream, rest in self._rest.items():
            if rest:
                self._emit(stream, rest)
        self._rest.clear()

    def _emit(self, stream: str, line: bytes) -> None:
        for piece in _pieces(line):
            self._on_line(stream, piece.decode(errors="replace").rstrip("\r"))


class Mask:
    """Replaces secrets by stars, also a secret that arrives in several chunks."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = sorted({part for secret in secrets for part in _parts(secret)}, key=len, reverse=True)
        # How many first bytes of each secret the expression contains.
        self._prefix = min(max(_PATTERN_BYTES // (len(self._secrets) or 1), _PREFIX_MIN), _PREFIX_MAX)
        self._pattern = re.compile(_pattern([secret[: self._prefix] for secret in self._secrets]), re.DOTALL)
        self._is_exact = not self._secrets or self.longest <= self._prefix
        self._held = b""

    @property
    def longest(self) -> int:
        """The length of the longest secret in bytes; 0 without secrets."""
        return len(self._secrets[0]) if self._secrets else 0

    def give_back(self) -> bytes:
        """Return the withheld bytes unmasked."""
        data, self._held = self._held, b""
        return data

    def take(self, chunk: bytes) -> bytes:
        """Return the masked bytes, and withhold a possible beginning of a secret."""
        if not self._secrets:
            return chunk
        data = self._held + chunk
        shown, done = bytearray(), 0
        held = self._held_from(data, done)
        for start, end in self._found(data):
            if held <= start:  # a longer secret may begin here
                break
            shown += data[done:start] + _HIDDEN
            done = end
            held = self._held_from(data, done) if held < done else held
        self._held = data[held:]
        return bytes(shown + data[done:held])

    def flush(self) -> bytes:
        """Return the withheld bytes masked; nothing follows them."""
        return self.masked_parts(b"", [self.give_back()], is_cut=False)[0]

    def masked_parts(self, before: bytes, parts: Sequence[bytes], *, is_cut: bool) -> list[bytes]:
        """Mask the parts of one text. `before`: the bytes that preceded them. is_cut: the text is incomplete, so a
        possible beginning of a secret at its end is omitted."""
        data = before + b"".join(parts)
        spans = list(self._found(data))
        last_end = spans[-1][1] if spans else 0
        end = self._held_from(data, last_end) if is_cut else len(data)
        masked: list[bytes] = []
        at = until = len(before)
        number = 0
        for part in parts:
            shown, until = bytearray(), until + len(part)
            while number < len(spans) and spans[number][0] < until:
                start, after = spans[number]
                # The stars replace the start of the secret, or the start of the first part.
                if after > at and (start >= at or not masked):
                    shown += data[at:start] + _HIDDEN
                at = max(at, after)
                number += 1
            masked.append(bytes(shown + data[at : min(until, end)]))
            at = max(at, until)
        return masked

    def _found(self, data: bytes) -> Iterator[tuple[int, int]]:
        """The positions of secrets from left to right; of two at one position, the longer one."""
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
                # Comparing the end first avoids most full comparisons.
                is_likely = secret[:1] == first and data.endswith(secret[-_COMPARED_BYTES:], start, start + len(secret))
                if is_likely and data.startswith(secret, start):
                    at = start + len(secret)
                    yield start, at
                    break

    def _held_from(self, data: bytes, start: int) -> int:
        """The start of the longest suffix of the data that is a prefix of a secret."""
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

    Many parts are grouped by their first byte, because trying all of them at each position would be slow.
    """
    if len(parts) <= _ALTERNATIVES_MAX or depth == _GROUP_DEPTH_MAX:
        return b"|".join(re.escape(part) for part in dict.fromkeys(parts))
    groups: dict[bytes, list[bytes]] = {}
    for part in parts:
        groups.setdefault(part[:1], []).append(part[1:])
    return b"|".join(
        re.escape(first) + b"(?:" + _pattern(rest, depth + 1) + b")" if first else b"" for first, rest in groups.items()
    )


class CapturedOutput:
    """The output of one run: writes its head at once, and its tail when the command has ended.

    Only the head and the tail are searched for secrets; the bytes between them are counted.

    write: takes a line: (time, stream, text). now: the time in microseconds.
    """

    def __init__(
        self, write: Callable[[int, str, str], None], now: Callable[[], int], secrets: Iterable[str] = ()
    ) -> None:
        self._write, self._now = write, now
        mask = Mask(secrets)
        self._masks = {stream: copy(mask) for stream in ("stdout", "stderr")}
        # Received bytes by stream.
        self.counts = dict.fromkeys(self._masks, 0)
        self._head = LogLines(self._write_line_now)
        self._bytes_left, self._lines_left = HEAD_BYTES, HEAD_LINES
        self._searched_bytes = 0
        self._is_head_full = False
        self._has_secrets = mask.longest > 0
        # Unmasked. The margin is for a secret that begins before the tail and ends in it.
        self._tail = _OutputTail(margin=max(mask.longest - 1, 0))
        self._last: dict[str, str] = {}

    @property
    def last_line(self) -> str:
        """The last line of stderr that is not blank, or else of stdout."""
        return (self._last.get("stderr") or self._last.get("stdout") or "")[:_LAST_WORDS_MAX_CHARS]

    @property
    def is_slow_to_close(self) -> bool:
        """Whether closing may take tens of milliseconds, so that a thread should do it."""
        return self._has_secrets and self._tail.size > _CLOSED_AT_ONCE_BYTES

    def take(self, stream: str, chunk: bytes) -> None:
        self.counts[stream] += len(chunk)
        at = 0
        while at < len(chunk) and not self._is_head_full:
            # Searched in slices, because the search ends when the head is full.
            piece = chunk[at : at + _SLICE_BYTES] if self._has_secrets else chunk
            at += len(piece)
            self._searched_bytes += len(piece)
            self._keep(stream, self._masks[stream].take(piece))
            if self._has_secrets and self._searched_bytes > _SEARCHED_MAX_BYTES:
                self._end_head()
        if at < len(chunk):
            self._keep_last(stream, chunk[at:])

    def flush(self) -> None:
        """Does nothing: a command may pause within a line, so a line is complete only when the command has ended."""

    def close(self, *, is_cut: bool = False) -> None:
        """Write the withheld output after the command has ended. is_cut: the command was stopped, so a possible
        beginning of a secret at the end is omitted."""
        if not is_cut and not self._is_head_full:
            for stream, mask in self._masks.items():
                self._keep(stream, mask.flush())
        tail = self._masked_tail(is_cut=is_cut) if self._has_secrets else self._tail
        if tail.is_cut:
            self._head.flush()
            lines = tail.lines()
            at = lines[0][0] if lines else self._now()
            self._write(at, "info", f"… {tail.bytes_omitted} bytes, {tail.lines_omitted} lines of output omitted …")
            for at, stream, text in lines:
                self._write_line(at, stream, text)
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
        """Send further output to the tail, beginning with the withheld bytes."""
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
            self._write(self._now(), "info", "… output limit reached; the last lines follow when the command ends …")

    def _masked_tail(self, *, is_cut: bool) -> _OutputTail:
        """The masked tail, also without the rest of a secret that began before it."""
        parts: dict[str, list[bytes]] = {}
        for _, stream, piece in self._tail.pieces:
            parts.setdefault(stream, []).append(bytes(piece))
        masked = {
            stream: iter(self._masks[stream].masked_parts(self._tail.before.get(stream, b""), own, is_cut=is_cut))
            for stream, own in parts.items()
        }
        tail = _OutputTail()
        tail.bytes_omitted, tail.lines_omitted = self._tail.bytes_omitted, self._tail.lines_omitted
        for at, stream, _ in self._tail.pieces:
            tail.add(at, stream, next(masked[stream]))
        return tail

    def _room_for(self, chunk: bytes) -> int:
        """The number of bytes of the chunk that fit into the head."""
        room = min(len(chunk), self._bytes_left)
        lines = chunk.count(b"\n", 0, room)
        if lines > self._lines_left:
            room = _end_of_line(chunk, self._lines_left)
            lines = self._lines_left
        self._lines_left -= lines
        self._bytes_left -= room
        return room

    def _write_line_now(self, stream: str, text: str) -> None:
        self._write_line(self._now(), stream, text)

    def _write_line(self, at: int, stream: str, text: str) -> None:
        if text.strip():
            self._last[stream] = text
        self._write(at, stream, text)


class _OutputTail:
    """The last TAIL_BYTES of both streams, in the order of their arrival.

    margin: the number of bytes of each stream that are remembered in front of the tail.
    """

    def __init__(self, margin: int = 0) -> None:
        self.pieces: deque[tuple[int, str, bytearray]] = deque()
        self.before: dict[str, bytes] = {}
        self.size = 0
        self._margin = margin
        self.bytes_omitted = 0
        self.lines_omitted = 0

    @property
    def is_cut(self) -> bool:
        return self.bytes_omitted > 0

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
        """The tail as text; the first line of each stream may be incomplete."""
        lines_kept: deque[tuple[int, str, str]] = deque(maxlen=TAIL_LINES)
        received_at = 0
        lines = LogLines(lambda stream, text: self._keep(lines_kept, (received_at, stream, text)))
        for at, stream, piece in self.pieces:
            received_at = at
            lines.take(stream, bytes(piece))
        lines.flush()
        return list(lines_kept)

    def _drop(self, count: int) -> None:
        _, stream, first = self.pieces[0]
        dropped = min(count, len(first))
        if self._margin:
            self.before[stream] = (self.before.get(stream, b"") + first[max(0, dropped - self._margin) : dropped])[
                -self._margin :
            ]
        self.lines_omitted += first.count(b"\n", 0, dropped)
        self.bytes_omitted += dropped
        self.size -= dropped
        if dropped == len(first):
            self.pieces.popleft()
        else:
            del first[:dropped]

    def _keep(self, lines_kept: deque[tuple[int, str, str]], line: tuple[int, str, str]) -> None:
        if len(lines_kept) == TAIL_LINES:
            self.lines_omitted += 1
            self.bytes_omitted += len(lines_kept[0][2].encode(errors="replace")) + 1
        lines_kept.append(line)


def _pieces(line: bytes) -> list[bytes]:
    """The line in pieces of at most LINE_MAX_CHARS, not cut inside a character."""
    pieces = []
    while len(line) > LINE_MAX_CHARS:
        end = LINE_MAX_CHARS
        # Continuation bytes of UTF-8: 10xxxxxx, at most three in a row.
        while end > LINE_MAX_CHARS - 4 and line[end] & 0xC0 == 0x80:
            end -= 1
        pieces.append(line[:end])
        line = line[end:]
    return [*pieces, line]


def _end_of_line(chunk: bytes, number: int) -> int:
    """The end of the line with this number, counted from 1."""
    end = 0
    for _ in range(number):
        end = chunk.index(b"\n", end) + 1
    return end


def _parts(secret: str) -> Iterator[bytes]:
    """The secret, and each line of a multi-line one, because programs print keys line by line. Not its first and last
    line, like `-----BEGIN PRIVATE KEY-----`."""
    data = secret.encode(errors="surrogateescape")
    yield data
    lines = data.splitlines()
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= _SECRET_LINE_MIN and not line.startswith(b"-----"))
