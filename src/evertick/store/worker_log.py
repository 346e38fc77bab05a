"""What is kept of the log lines that workers report: their beginning, and their end. Pure, for every store.

A worker is a program of anybody's, and may never fall silent: what it says of one dispatch is bounded as what a job of
our own says is. The head is written as it comes. When it is full, a line says so, and nothing more is kept but what
comes with the report that ends the dispatch: the last words of a worker are often the ones that matter.

A report may come twice, and out of order. So one is cut by itself first, which gives the same each time, and is then
taken whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from evertick.model import LINE_MAX_CHARS, LINES_MAX
from evertick.store.dispatched import LogLines
from evertick.store.rows import lines_text

__all__ = ["WorkerLog", "WorkerLogLines", "worker_log_lines"]

# As the ledger has them: all that a job of our own may say fits in.
_MAX_BYTES = 512 * 1024
# What is kept of the last words where the head is full.
_LAST_LINES_MAX, _LAST_MAX_CHARS = 2_000, 96 * 1024
_LEVEL_MAX_CHARS = 20
_FULL = (
    f"the log of this attempt is full ({LINES_MAX} lines, {_MAX_BYTES // 1024} KiB); what follows is left out, but for "
    "the last lines, if they come with its end"
)

Line = tuple[int, str, str]


class WorkerLog(msgspec.Struct):
    """What the ledger has of the log of a dispatch. last: behind which line it goes on. size: in bytes."""

    last: int = 0
    count: int = 0
    size: int = 0

    @property
    def is_full(self) -> bool:
        return self.count >= LINES_MAX or self.size >= _MAX_BYTES

    def add(self, seq: int, lines: list[Line]) -> bool:
        """Whether some of them are new: a report that comes again counts once."""
        new = min(len(lines), seq + len(lines) - self.last)
        if new <= 0:
            return False
        self.last = seq + len(lines)
        self.count += new
        self.size += len(lines_text(lines[-new:]).encode())
        return True


class WorkerLogLines(msgspec.Struct, frozen=True, gc=False):
    """Lines that are to be written at their place, as the ledger has them."""

    id: str
    fence: int
    seq: int
    count: int
    text: str


def worker_log_lines(said: Iterable[LogLines], kept: Mapping[tuple[str, int], WorkerLog]) -> Iterator[WorkerLogLines]:
    """What is to be written. `kept` is moved on by it."""
    for each in said:
        log = kept[each.id, each.fence]
        lines = [_short(line) for line in each.lines]
        if log.is_full and not each.is_last:
            continue
        # Behind the mark, of whose place among the lines no worker knows.
        seq = log.last if log.is_full or each.seq is None else each.seq
        lines = _end(lines) if log.is_full else _bounded(lines, is_last=each.is_last)
        if log.add(seq, lines) and log.is_full and not each.is_last:
            lines = _marked(lines)
            log.last = max(log.last, seq + len(lines))
        yield WorkerLogLines(each.id, each.fence, seq, len(lines), lines_text(lines))


def _short(line: Line) -> Line:
    at, level, text = line
    cut = text if len(text) <= LINE_MAX_CHARS else text[:LINE_MAX_CHARS] + " … (line cut)"
    return at, level[:_LEVEL_MAX_CHARS], cut


def _bounded(lines: list[Line], *, is_last: bool) -> list[Line]:
    """One report: its first lines, and its last ones if they are those of the whole."""
    fitting = _fitting(lines, LINES_MAX, _MAX_BYTES)
    if fitting == len(lines):
        return lines
    return _marked(lines[:fitting]) + (_end(lines[fitting:]) if is_last else [])


def _end(lines: list[Line]) -> list[Line]:
    return lines[len(lines) - _fitting(lines[::-1], _LAST_LINES_MAX, _LAST_MAX_CHARS) :]


def _marked(lines: list[Line]) -> list[Line]:
    at, _, text = lines[-1]
    return lines if text == _FULL else [*lines, (at, "warning", _FULL)]


def _fitting(lines: list[Line], most: int, chars: int) -> int:
    """How many of the first of them fit. A line does: it is cut."""
    for count, (_, _, text) in enumerate(lines[:most]):
        chars -= len(text)
        if chars < 0:
            return count
    return min(len(lines), most)
