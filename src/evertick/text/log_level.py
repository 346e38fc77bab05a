"""How much is logged: a level below DEBUG, and a summary of lines that would come once per run or message.

TRACE is for every step of every loop and every batch that it asks of the store, with counts and times. It costs one
look at the logger per batch: nothing is counted or put into words unless it is logged.

A node that is behind, or whose jobs fail, would fill its log with lines of one kind while an operator looks for
another. So a group of lines has its first ones in an interval logged one by one. Further ones are counted, and logged
in one line for each kind: at once where a batch ends, and after that once per interval, for as long as it goes on.
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

# How many there were, which for example, and in how many seconds (None: in this batch): the line that tells of them.
Words = Callable[[int, list[str], float | None], str]


def trace(log: logging.Logger, seconds: float, words: str, *values: object) -> None:
    log.log(TRACE, f"{words} in %.1f ms", *values, seconds * 1e3)


def tally(kinds: Iterable[str]) -> str:
    """How many of each: "3 done, 1 retry"."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(kinds).items())) or "none"


class _More:
    """Those of one kind that have no line of their own."""

    __slots__ = ("count", "level", "log", "names", "words")

    def __init__(self, log: logging.Logger, level: int, words: Words) -> None:
        self.log, self.level, self.words = log, level, words
        self.count, self.names = 0, list[str]()


class _Group:
    __slots__ = ("has_told", "left", "more", "since", "timer")

    def __init__(self, since: float, left: int) -> None:
        self.since, self.left = since, left
        self.more: dict[str, _More] = {}
        # Whether the first batch with more than its lines was told.
        self.has_told = left == 0
        self.timer: asyncio.TimerHandle | None = None


class LogSummary:
    """The lines of one node, worker or broker. `elapsed`: seconds of a clock that does not jump."""

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
        """`say` logs the line; it is called only if there is room for it. `about`: what it concerns. `lines`: how many
        of the group have a line in an interval."""
        if not log.isEnabledFor(level):
            return
        now, told = self._elapsed(), self._groups.get(group)
        if told is None or (now - told.since >= INTERVAL_SECONDS and not told.more):
            told = self._groups[group] = _Group(now, lines)
        if told.left > 0:
            told.left -= 1
            say()
            return
        more = told.more.setdefault(kind, _More(log, level, words))
        more.count += count
        if about and len(more.names) < _NAMED_MOST and about not in more.names:
            more.names.append(about)
        if told.timer is None:
            wait = max(told.since + INTERVAL_SECONDS - now, 0.0)
            told.timer = asyncio.get_running_loop().call_later(wait, self._over, group)

    def batch_over(self, group: str) -> None:
        """The first batch is logged with its totals; later ones are counted until the interval is over."""
        told = self._groups.get(group)
        if told is not None and told.more and not told.has_told:
            told.has_told = True
            _say_more(told, None)

    def flush(self) -> None:
        """Log what was counted; called when its owner ends."""
        for group in list(self._groups):
            self._over(group)
        self._groups.clear()

    def _over(self, group: str) -> None:
        told, now = self._groups.pop(group), self._elapsed()
        if told.timer is not None:
            told.timer.cancel()
        _say_more(told, now - told.since)
        # While it goes on, a line per kind and interval is enough.
        self._groups[group] = _Group(now, 0)


def _say_more(told: _Group, seconds: float | None) -> None:
    more, told.more = told.more, {}
    for each in more.values():
        each.log.log(each.level, "%s", each.words(each.count, each.names, seconds))


def such_as(names: list[str], seconds: float | None) -> str:
    """How a line goes on that tells of several: which for example, and since when."""
    since = "" if seconds is None else f" in the last {seconds:.0f} s"
    return since + (f", such as {', '.join(names)}" if names and seconds is not None else "")
