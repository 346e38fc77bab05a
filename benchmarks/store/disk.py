"""The disk that commits must reach: which one a folder is on, and whether it is one at all (Linux)."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.store.place import NotDurable

__all__ = ["Disk", "disk_of", "flush_milliseconds"]

_MOUNTS = Path("/proc/self/mountinfo")
# Nothing that is flushed there is kept.
_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
_FLUSHES, _PAGE = 50, bytes(8192)


@dataclass(frozen=True)
class Disk:
    """`kind` is the file system, `device` what it is on."""

    folder: Path
    kind: str
    device: str

    def __str__(self) -> str:
        return f"{self.kind} on {self.device}"

    def check(self) -> None:
        if self.kind in _IN_MEMORY:
            raise NotDurable(
                f"{self.folder} is in memory ({self.kind}): no commit there reaches a disk; name a folder on one"
            )


def disk_of(folder: Path, mounts: str | None = None) -> Disk:
    """Of the innermost mount that the folder is in; of two at one point the later hides the other."""
    folder, inner, disk = folder.resolve(), -1, Disk(folder, "unknown", "unknown")
    for line in (_MOUNTS.read_text() if mounts is None else mounts).splitlines():
        # id parent major:minor root point options [optional ...] - kind device ...
        about, _, what = line.partition(" - ")
        point, (kind, device) = Path(about.split()[4]), what.split()[:2]
        if folder.is_relative_to(point) and len(point.parts) >= inner:
            inner, disk = len(point.parts), Disk(folder, kind, device)
    return disk


def flush_milliseconds(folder: Path) -> float:
    """How long a page takes to reach the disk; the median of some."""
    took = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(_FLUSHES):
            began = time.perf_counter()
            file.write(_PAGE)
            file.flush()
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e3
