"""A clock that moves only when a test moves it.

Wall time and elapsed time move together. Ids and random numbers come from a seed, so that a test always makes the same
ids. The clock does not move an event loop. Threads of a store may read it while the test moves it.
"""

from __future__ import annotations

import random  # noqa: TID251 - seeded

from evertick.clock import Clock

__all__ = ["SettableClock"]

# 2026-01-01 00:00 UTC: recent enough for every zone rule.
_START_US = 1_767_225_600_000_000


class SettableClock(Clock):
    """A clock set by the test, with ids and random numbers from a seed."""

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
            raise ValueError(f"a clock cannot move by {us} us; use `jump_to` to set the wall time back")
        self._now_us += us
        self._elapsed_us += us

    def jump_to(self, now_us: int) -> None:
        """Set the wall time, as an operator or a time server does. No time elapses."""
        self._now_us = now_us
