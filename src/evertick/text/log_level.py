"""The level TRACE, below DEBUG, and a limit for log lines that repeat.

TRACE logs every step of every loop and every batch, with counts and times. If it is off, it costs one check of the
logger per batch.

`LogSummary` keeps a node that is behind, or whose jobs fail, from filling the log with lines of one kind. The first
lines of a group in an interval are logged one by one. The others are counted, and the count of each kind is logged: at
the end of the first batch, and then once per interval while it lasts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable

__all__ = ["INTERVAL_SECONDS", "TRACE", "LogSummary", "such_as", "tally", "trace"]

TRACE = 5
logging.addLevelName(TRACE, "TRACE")

INTERVAL_SECONDS = 60.0
_LINES = 10
_NAMED_MOST = 3

# Makes the line with the count from: the count, a few names, and the seconds (None: within one batch).
Words = Callable[[int, list[str], float | None], str]


def trace(log: logging.Logger, seconds: float, words: str, *values: object) -> None:
    log.log(TRACE, f"{words} in %.1f ms", *values, seconds * 1e3)


def tally(kinds: Iterable[str]) -> str:
    """Counts by kind: "3 done, 1 retry"."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(kinds).items())) or "none"


class _Count:
    """The lines of one kind that were not logged."""

    __slots__ = ("count", "level", "log", "names", "words")

    def __init__(self, log: logging.Logger, level: int, words: Words) -> None:
        self.log, self.level, self.words = log, level, words
        self.count, self.names = 0, list[str]()


class _Group:
    __slots__ = ("counts", "has_logged_batch", "left", "since", "timer")

    def __init__(self, since: float, left: int) -> None:
        self.since, self.left = since, left
        self.counts: dict[str, _Count] = {}
        # Whether the counts of the first batch were logged.
        self.has_logged_batch = left == 0
        self.timer: asyncio.TimerHandle | None = None


class LogSummary:
    """Limits the lines of one node, worker or broker. `elapsed`: seconds of a monotonic clock."""

    def __init__(self, elapsed: Callable[[], float]) -> None:
        self._elapsed = elapsed
        self._groups: dict[str, _Group] = {}

    def tell(
        self,
        group: str,
        kind: str,
        log: logging.Logger,
        level: int,
        say: Callable[[], None],
        words: Words,
        *,
        about: str = "",
        count: int = 1,
        lines: int = _LINES,
    ) -> None:
        """Log a line with `say`, or only count it. `about`: a name for the count. `lines`: how many lines the group has
        in an interval."""
        if not log.isEnabledFor(level):
            return
        now, found = self._elapsed(), self._groups.get(group)
        if found is None or (now - found.since >= INTERVAL_SECONDS and not found.counts):
            found = self._groups[group] = _Group(now, lines)
        if found.left > 0:
            found.left -= 1
            say()
            return
        counted = found.counts.setdefault(kind, _Count(log, level, words))
        counted.count += count
        if about and len(counted.names) < _NAMED_MOST and about not in counted.names:
            counted.names.append(about)
        if found.timer is None:
            wait = max(found.since + INTERVAL_SECONDS - now, 0.0)
            found.timer = asyncio.get_running_loop().call_later(wait, self._interval_over, group)

    def batch_over(self, group: str) -> None:
        """Log the counts of the first batch; later batches are counted until the interval ends."""
        found = self._groups.get(group)
        if found is not None and found.counts and not found.has_logged_batch:
            found.has_logged_batch = True
            _log_counts(found, None)

    def flush(self) -> None:
        """Log all counts; called when the owner stops."""
        for group in list(self._groups):
            self._interval_over(group)
        self._groups.clear()

    def _interval_over(self, group: str) -> None:
        found, now = self._groups.pop(group), self._elapsed()
        if found.timer is not None:
            found.timer.cancel()
        _log_counts(found, now - found.since)
        # No single lines in the next interval: while it lasts, the count is enough.
        self._groups[group] = _Group(now, 0)


def _log_counts(group: _Group, seconds: float | None) -> None:
    counts, group.counts = group.counts, {}
    for each in counts.values():
        each.log.log(each.level, "%s", each.words(each.count, each.names, seconds))


def such_as(names: list[str], seconds: float | None) -> str:
    """The part of a line with a count that gives the interval and examples."""
    since = "" if seconds is None else f" in the last {seconds:.0f} s"
    return since + (f", such as {', '.join(names)}" if names and seconds is not None else "")
