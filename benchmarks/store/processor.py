"""Processor time and memory of processes, as the kernel counts them (Linux)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Counted", "bytes_written", "family_seconds", "parent", "private_megabytes", "session"]

_TICK = os.sysconf("SC_CLK_TCK")
# At a server whose sessions come and go.
_LOOKS_MOST = 5


@dataclass(frozen=True)
class Counted:
    """One process. `ended` is what its children had used that it has waited for."""

    pid: int
    parent: int
    session: int
    seconds: float
    ended: float


def session(leader: int) -> list[Counted]:
    """All processes of the session that `leader` began."""
    return [each for each in _all() if each.session == leader]


def family_seconds(head: int) -> float:
    """What this process has used, with all its children, living and gone: a whole PostgreSQL server."""
    for _ in range(_LOOKS_MOST):
        own = _one(head)
        living = sum(each.seconds for each in _all() if each.parent == head)
        if _one(head).ended == own.ended:
            break  # else a child has ended between the two looks, and is in neither
    return own.seconds + own.ended + living


def parent(pid: int) -> int:
    return _one(pid).parent


def private_megabytes(pid: int) -> float:
    """Memory that is the process' own. Pages of files are not in it: the tally is one."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1e3
    return 0.0


def bytes_written(pid: int) -> int:
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    return 0


def _all() -> Iterator[Counted]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield _one(int(entry.name))
            except OSError:
                continue  # it has just ended


def _one(pid: int) -> Counted:
    # The name, in parentheses, may have spaces in it; what counts is behind.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    used, system, ended, ended_system = (int(each) / _TICK for each in fields[11:15])
    return Counted(pid, int(fields[1]), int(fields[3]), used + system, ended + ended_system)
