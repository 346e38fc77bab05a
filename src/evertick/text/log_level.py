"""How much is logged: a level below DEBUG, and warnings that come in any number.

TRACE is for every step of every loop and every batch that it asks of the store; nothing is put into words for it unless
it is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

__all__ = ["TRACE", "Repeats"]

TRACE = 5
logging.addLevelName(TRACE, "TRACE")

_SUMMARY_SECONDS = 60.0


class Repeats:
    """A warning that something outside may cause as often as it likes. The first is logged at once; those of the next
    minute are one line, with how many there were and the last of them.

    first and more: the sentences, with {count}, {last} and {seconds}. elapsed: seconds of a clock that does not jump.
    """

    __slots__ = ("_count", "_elapsed", "_first", "_last", "_log", "_more", "_since")

    def __init__(self, log: logging.Logger, elapsed: Callable[[], float], *, first: str, more: str) -> None:
        self._log, self._elapsed = log, elapsed
        self._first, self._more = first, more
        self._count, self._last = 0, ""
        # When the last line was logged; None: longer ago than a minute.
        self._since: float | None = None

    def add(self, last: str = "", count: int = 1) -> None:
        self.settle()
        self._count += count
        self._last = last
        if self._since is None:
            self._say(self._first)

    def settle(self) -> None:
        """Log what has gathered, if it is time. To be called now and then."""
        if self._since is None or self._elapsed() - self._since < _SUMMARY_SECONDS:
            return
        if self._count:
            self._say(self._more)
        else:
            self._since = None

    def flush(self) -> None:
        """Log what has gathered; called when its owner ends."""
        if self._count:
            self._say(self._more)

    def _say(self, words: str) -> None:
        now = self._elapsed()
        # At the end of its owner less than a whole interval has passed.
        seconds = _SUMMARY_SECONDS if self._since is None else min(now - self._since, _SUMMARY_SECONDS)
        self._log.warning("%s", words.format(count=self._count, last=self._last, seconds=round(seconds)))
        self._count, self._last, self._since = 0, "", now
