"""What the figures were measured on. Without it they say nothing."""

from __future__ import annotations

import os
import platform
import sqlite3
from pathlib import Path

from evertick import __version__

__all__ = ["describe", "load"]


def describe() -> dict[str, str]:
    return {
        "evertick": __version__,
        "cores": str(os.cpu_count()),
        "cpu": _cpu_model(),
        "system": platform.platform(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
    }


def load() -> float | None:
    """The load average of the last minute: what else the machine was doing."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
