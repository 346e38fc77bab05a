"""The tally: a record of each execution, written inside the job.

Each executing process maps a file in one folder, so a record costs four memory stores and no system call. A record has
the number of the run, the moment it was due or sent (0 if unused) and the moment it started, in seconds since 1970. The
files show every execution: one too many as well as one too few. Peers import this module in their own environments, so
it needs only the standard library.
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

__all__ = ["CAPACITY", "Executions", "Tally", "clear", "executions", "total"]

# Executions that one process can record; the file is sparse.
CAPACITY = 8_000_000
_SUFFIX = ".tally"
_HEAD, _RECORD = 8, 24
# Threads write records at the same time, so the number in the head may be behind by as many as there are threads.
_THREADS = 256


class Tally:
    """The records of one process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._integers: memoryview | None = None
        self._opening = threading.Lock()
        # A forked child needs its own file.
        os.register_at_fork(after_in_child=self._close)

    def _close(self) -> None:
        self._integers = None
        self._opening = threading.Lock()

    def _opened(self) -> memoryview:
        """Only one thread creates the file."""
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
        """Record that run `number` has started. Thread-safe."""
        integers = self._integers or self._opened()
        slot = next(self._slots)
        at = 1 + 3 * slot
        integers[at] = number
        self._doubles[at + 1] = due
        self._doubles[at + 2] = time.time()
        integers[0] = slot + 1


@dataclass(frozen=True)
class Executions:
    """All executions of a trial, in three columns."""

    numbers: array[int]
    dues: array[float]
    begans: array[float]

    def check_each_once(self, count: int, *, times: int = 1) -> None:
        """Check that the runs 0 to count - 1 were executed `times` times each, and no others."""
        found = [0] * count
        for number in self.numbers:
            assert 0 <= number < count, f"run {number} was executed, and there are only {count}"
            found[number] += 1
        lost, doubled = sum(each < times for each in found), sum(each > times for each in found)
        assert lost + doubled == 0, f"of {count} runs {lost} were lost and {doubled} ran too often"

    @property
    def seconds(self) -> float:
        """From the first execution to the last."""
        return max(self.begans) - min(self.begans)


def total(folder: Path) -> int:
    """The number of executions so far."""
    return sum(_written(path) for path in _files(folder))


def executions(folder: Path) -> Executions:
    """All executions so far."""
    found = Executions(array("q"), array("d"), array("d"))
    for path in _files(folder):
        with path.open("rb") as file:
            file.seek(_HEAD)
            data = file.read(_RECORD * _written(path))
        integers, doubles = array("q", data), array("d", data)
        found.numbers.extend(integers[0::3])
        found.dues.extend(doubles[1::3])
        found.begans.extend(doubles[2::3])
    return found


def clear(folder: Path) -> None:
    """Delete the records, while no process writes."""
    for path in _files(folder):
        path.unlink()


def _files(folder: Path) -> Iterable[Path]:
    return sorted(folder.glob(f"*{_SUFFIX}"))


def _written(path: Path) -> int:
    with path.open("rb") as file:
        head = file.read(_HEAD)
        if len(head) < _HEAD:
            return 0  # the process is just creating it
        count: int = struct.unpack("<q", head)[0]
        file.seek(_HEAD + _RECORD * count)
        return count + sum(1 for _ in itertools.takewhile(bool, _begans(file.read(_RECORD * _THREADS))))


def _begans(data: bytes) -> Iterator[float]:
    whole = len(data) // _RECORD * _RECORD
    return (began for _, _, began in struct.iter_unpack("<qdd", data[:whole]))
