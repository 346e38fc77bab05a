"""Other processes of this machine, by their numbers, which are used again."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["is_running", "started_at_tick", "was_running"]

# Start times are counted in hundredths of seconds since the machine was started, which is itself known by the second.
_SLACK_SECONDS = 2.0


def is_running(pid: int) -> bool:
    """Whether there is one of this number, whoever's."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def started_at_tick(pid: int) -> int | None:
    """When it was started, in ticks since the boot, which no change of the clock moves; None: nobody can say."""
    fields = _fields(pid)
    return None if fields is None else int(fields[19])


def was_running(pid: int, at: float) -> bool:
    """Whether this process lives, and did so at that time. Where nobody can say, it did not."""
    fields = _fields(pid)
    if fields is None or fields[0] == "Z":
        return False
    try:
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    except (OSError, StopIteration):
        return False
    started = int(boot.split()[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return started <= at + _SLACK_SECONDS


def _fields(pid: int) -> list[str] | None:
    """Of its line in /proc, those behind its name."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
