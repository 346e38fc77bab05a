"""The clocks of a simulation: the correct clock of the store, and the wrong clocks of the nodes.

A node's clock has a skew and a drift, and jumps when it is set. Its elapsed time never jumps. Ids and random numbers
come from the seed.
"""

from __future__ import annotations

import random

from evertick.clock import Clock
from simulation.loop import VirtualLoop

__all__ = ["START_US", "NodeClock", "TrueClock"]

# 2026-03-02 09:00 UTC, a Monday.
START_US = 1_772_442_000_000_000


class TrueClock(Clock):
    """The virtual time of the loop."""

    def __init__(self, loop: VirtualLoop, seed: str) -> None:
        super().__init__()
        self._loop = loop
        self._seeded = random.Random(seed)

    def now_us(self) -> int:
        return START_US + round(self._loop.time() * 1_000_000)

    def elapsed(self) -> float:
        return self._loop.time()

    def uniform(self) -> float:
        return self._seeded.random()

    def random_bits(self, count: int) -> int:
        return self._seeded.getrandbits(count)


class NodeClock(TrueClock):
    """A clock that is `skew` seconds off, and `drift` more with every second."""

    def __init__(self, loop: VirtualLoop, seed: str, *, skew: float, drift: float) -> None:
        super().__init__(loop, seed)
        self._skew = skew
        self._rate = 1.0 + drift
        self._booted = self.uniform() * 1_000_000

    def now_us(self) -> int:
        return START_US + round((self._loop.time() * self._rate + self._skew) * 1_000_000)

    def elapsed(self) -> float:
        return self._booted + self._loop.time() * self._rate

    def jump(self, seconds: float) -> None:
        """Set the wall clock."""
        self._skew += seconds
