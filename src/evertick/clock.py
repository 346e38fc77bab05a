"""The only file that reads time, makes ids and draws random numbers.

All other code receives a `Clock`, so that the engine also runs in a simulation with a seeded virtual clock, and users
test a day of their schedules in milliseconds. A lint rule enforces it.

Three kinds of time, never mixed:
- wall time (`now_us`): microseconds since 1970; may jump.
- elapsed time (`elapsed`): seconds that never go back and continue while the machine sleeps.
- the event loop's time: the time of `asyncio.sleep`; a virtual clock moves it together with the other two.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Iterable
from hashlib import blake2b

__all__ = ["Clock", "derived_id", "supervisor_us", "system_clock"]

# CLOCK_BOOTTIME continues during suspend. With a clock that stops, a lease would look valid after an hour of suspend.
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)

_BLOCK_BYTES = 4096


class _Entropy(random.SystemRandom):
    """Random numbers of the operating system, fetched in blocks: a system call takes a microsecond and releases the
    GIL, which another thread may then keep for 5 ms. A fork starts with a new block.

    Large numbers come from the system directly: they are ids of nodes, and two copies of a suspended virtual machine
    must not draw the same id.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forget()

    def forget(self) -> None:
        self._block, self._used = b"", 0
        self._lock = threading.Lock()

    def random(self) -> float:
        return (self._word() >> 11) * 2.0**-53

    def getrandbits(self, k: int) -> int:
        return self._word() >> (64 - k) if k <= 64 else super().getrandbits(k)

    def _word(self) -> int:
        with self._lock:
            if self._used == len(self._block):
                self._block, self._used = os.urandom(_BLOCK_BYTES), 0
            self._used += 8
            return int.from_bytes(self._block[self._used - 8 : self._used], "big")


_entropy = _Entropy()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_entropy.forget)


class Clock:
    """The machine's own clock and its source of ids and random numbers."""

    def __init__(self) -> None:
        self._last_id = 0

    def now_us(self) -> int:
        """Wall time in microseconds since 1970."""
        return time.time_ns() // 1000

    def elapsed(self) -> float:
        """Seconds since a fixed point in the past; never goes back, continues during suspend."""
        return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)

    def uniform(self) -> float:
        """A random number in [0, 1)."""
        return _entropy.random()

    def random_bits(self, count: int) -> int:
        return _entropy.getrandbits(count)

    def new_id(self) -> str:
        """A UUID of version 7: sorts by its time, and strictly so within this clock."""
        return self.new_ids(1)[0]

    def new_ids(self, count: int) -> list[str]:
        """`count` ids in order. They differ by their stamps and share one random part, the expensive one."""
        # 48 bits of milliseconds and 12 bits of their fraction, so that the ids of one process are in order.
        now = self.now_us()
        first = max((now // 1000) << 12 | (now % 1000) * 4096 // 1000, self._last_id + 1)
        self._last_id = first + count - 1
        return _uuid7s(range(first, first + count), self.random_bits(62))

    def new_token(self) -> str:
        """A random name for an incarnation of a node: 128 bits, hexadecimal."""
        return f"{self.random_bits(128):032x}"


def _uuid7s(stamps: Iterable[int], tail: int) -> list[str]:
    """Stamps of 60 bits, a tail of 62 bits, version 7, variant 2."""
    end = f"{2 << 62 | tail:016x}"
    end = f"{end[:4]}-{end[4:]}"
    return [f"{digits[:8]}-{digits[8:12]}-7{digits[12:]}-{end}" for digits in (f"{stamp:015x}" for stamp in stamps)]


def derived_id(at_us: int, *parts: object) -> str:
    """An id that depends only on these parts. Sorts by `at_us`, like the ids of a clock."""
    tail = int.from_bytes(blake2b(repr(parts).encode(), digest_size=16).digest(), "big")
    stamp = (max(at_us, 0) // 1000) << 12 | (tail >> 64) & 0xFFF
    return _uuid7s([stamp], tail & (1 << 62) - 1)[0]


def supervisor_us() -> int:
    """Microseconds of CLOCK_MONOTONIC, which systemd uses to order notifications; comparable on one machine only."""
    return time.monotonic_ns() // 1000


def host_name() -> str:
    return socket.gethostname()


system_clock = Clock()
