"""The count, taken inside the job that is executed: who ran, what it was due, when it began.

Each executing process has a file of its own in one folder, mapped into memory, so that counting is four stores and no
call of the system. A record is the number of the run, the moment it was due or sent (0 if nobody needs it) and the
moment it began, both in seconds since 1970. Whoever measures reads all the files and sees every execution: one too many
as well as one too few. Runs in the environments of other schedulers, so it imports nothing but the standard library.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import threading
import time
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CAPACITY", "Tally", "Witnessed", "forget", "total", "witnessed"]

# Executions that one process can count; the file has holes where nothing was written.
CAPACITY = 8_000_000
_SUFFIX = ".tally"
_HEAD, _RECORD = 8, 24
# Threads write their records at once, so the number at the head may be behind by as many as there are threads.
_THREADS = 256


class Tally:
    """What the jobs of one process write to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._integers: memoryview | None = None
        self._opening = threading.Lock()
        # A child that was forked is another process, with a file of its own.
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._integers = None
        self._opening = threading.Lock()

    def _opened(self) -> memoryview:
        """Of the threads that count first, one makes the file."""
        with self._opening:
            return self._integers or self._open()

    def _open(self) -> memoryview:
        path = self._folder / f"{os.getpid()}{_SUFFIX}"
        with path.open("w+b") as file:
            file.truncate(_HEAD + _RECORD * CAPACITY)
            view = memoryview(mmap.mmap(file.fileno(), 0))
        self._slots = itertools.count()
        self._doubles = view.cast("d")
        self._integers = integers = view.cast("q")
        return integers

    def count(self, number: int, due: float = 0.0) -> None:
        """The run `number` has begun. Threads may call it."""
        integers = self._integers or self._opened()
        slot = next(self._slots)
        at = 1 + 3 * slot
        integers[at] = number
        self._doubles[at + 1] = due
        self._doubles[at + 2] = time.time()
        integers[0] = slot + 1


@dataclass(frozen=True)
class Witnessed:
    """All executions of a measurement, in three columns."""

    numbers: array[int]
    dues: array[float]
    begans: array[float]

    def check_each_once(self, count: int, *, times: int = 1) -> None:
        """The runs 0 to count - 1 were executed, each `times` times, and no others."""
        seen = [0] * count
        for number in self.numbers:
            assert 0 <= number < count, f"run {number} was executed, and there are only {count}"
            seen[number] += 1
        lost, doubled = sum(each < times for each in seen), sum(each > times for each in seen)
        assert lost + doubled == 0, f"of {count} runs {lost} were lost and {doubled} ran too often"

    @property
    def seconds(self) -> float:
        """From the first execution to the last."""
        return max(self.begans) - min(self.begans)


def total(folder: Path) -> int:
    """How many executions there have been so far."""
    return sum(_written(path) for path in _files(folder))


def witnessed(folder: Path) -> Witnessed:
    """All of them."""
    seen = Witnessed(array("q"), array("d"), array("d"))
    for path in _files(folder):
        with path.open("rb") as file:
            file.seek(_HEAD)
            data = file.read(_RECORD * _written(path))
        integers, doubles = array("q", data), array("d", data)
        seen.numbers.extend(integers[0::3])
        seen.dues.extend(doubles[1::3])
        seen.begans.extend(doubles[2::3])
    return seen


def forget(folder: Path) -> None:
    """Begin anew, when nobody counts."""
    for path in _files(folder):
        path.unlink()


def _files(folder: Path) -> Iterable[Path]:
    return sorted(folder.glob(f"*{_SUFFIX}"))


def _written(path: Path) -> int:
    with path.open("rb") as file:
        head = file.read(_HEAD)
        if len(head) < _HEAD:
            return 0  # it is just being made
        count: int = struct.unpack("<q", head)[0]
        file.seek(_HEAD + _RECORD * count)
        return count + sum(1 for _ in itertools.takewhile(bool, _begans(file.read(_RECORD * _THREADS))))


def _begans(data: bytes) -> Iterator[float]:
    whole = len(data) // _RECORD * _RECORD
    return (began for _, _, began in struct.iter_unpack("<qdd", data[:whole]))
