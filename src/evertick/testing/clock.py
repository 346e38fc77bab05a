"""A clock that stands still until it is moved.

Wall time and elapsed time move together; ids and random numbers come from a seed, so that the same test makes the same
ids every time. Unlike the clock of a simulation it does not move the event loop: nothing waits on it. May be read by
the threads of a store while the test moves it.
"""

from __future__ import annotations

import random  # noqa: TID251 - seeded, which the clock of the machine never is

from evertick.clock import Clock

__all__ = ["SettableClock"]

# 2026-01-01 00:00 UTC: recent enough for every zone rule, and no boundary of a cron field but the year's.
_START_US = 1_767_225_600_000_000


class SettableClock(Clock):
    """Time as a test sets it; deterministic ids and random numbers by seed."""

    def __init__(self, now_us: int = _START_US, *, seed: int = 0) -> None:
        super().__init__()
        self._seeded = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._now_us = now_us
        self._elapsed_us = 0

    def now_us(self) -> int:
        return self._now_us

    def elapsed(self) -> float:
        return self._elapsed_us / 1_000_000

    def uniform(self) -> float:
        return self._seeded.random()

    def random_bits(self, count: int) -> int:
        return self._seeded.getrandbits(count)

    def move(self, us: int) -> None:
        """Let this much time pass."""
        if us < 0:
            raise ValueError(f"time passes forward only, not by {us} us; `jump_to` changes the wall time alone")
        self._now_us += us
        self._elapsed_us += us

    def jump_to(self, now_us: int) -> None:
        """Set the wall time, back or forth, as an operator or a time server does. No time elapses."""
        self._now_us = now_us
