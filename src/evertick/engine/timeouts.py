"""Which running attempts run out of time next: one timer for all of them.

Attempts of one timeout run out in the order in which they began. So each timeout has a line of its own, and only the
heads of the lines are looked at, whenever the timer rings; an attempt that ends in time costs two changes of a dict. A
timer for each attempt costs ten times as much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from evertick.engine.node import Attempt

__all__ = ["Timeouts"]


class Timeouts:
    """Tells of attempts whose time is over. Times are the event loop's."""

    def __init__(self, on_timeout: Callable[[Attempt], None]) -> None:
        self._on_timeout = on_timeout
        # By timeout in microseconds, in the order of their beginning: when each of them has had its time.
        self._lines: dict[int, dict[Attempt, float]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, attempt: Attempt, timeout: int) -> None:
        """The attempt begins now."""
        loop = asyncio.get_running_loop()
        over_at = loop.time() + timeout / 1e6
        self._lines.setdefault(timeout, {})[attempt] = over_at
        self._ring_at(loop, over_at)

    def forget(self, attempt: Attempt, timeout: int) -> None:
        """The attempt is over. The timer may ring for nothing once: that is cheaper than setting it anew each time."""
        self._lines[timeout].pop(attempt, None)

    def _ring_at(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = loop.call_at(when, self._ring, when)

    def _ring(self, when: float) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        # Loops ring a little early (uvloop up to half a millisecond). Who then waits for the rest spins, and where time
        # is virtual and stands still meanwhile, for ever.
        now = max(when, loop.time())
        for timeout, line in list(self._lines.items()):
            while line:
                attempt, over_at = next(iter(line.items()))
                if over_at > now:
                    self._ring_at(loop, over_at)
                    break
                self.forget(attempt, timeout)
                self._on_timeout(attempt)
