"""What the figures were measured on. Without it they say nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

from evertick import __version__

__all__ = ["describe", "load"]


def describe() -> dict[str, str]:
    return {
        "measured": f"{datetime.now(UTC):%Y-%m-%d}",
        "evertick": __version__,
        "cores": str(os.cpu_count()),
        "cpu": _from_proc("cpuinfo", "model name") or platform.processor() or platform.machine(),
        "memory": _from_proc("meminfo", "MemTotal"),
        "system": platform.platform(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
        **{name: version for name in ("asyncpg", "uvloop") if (version := _version(name))},
    }


def load() -> float:
    """The load average of the last minute: what else the machine was doing."""
    return os.getloadavg()[0]


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
