"""What a keeper that was killed has left behind: found by a mark that every descendant inherits, and ended.

The mark is a variable of the environment that a process was started with, which `/proc` shows. A process that was given
another environment on purpose (`env -i`) is not found. Nor is one whose environment we may not read, for no other way
leads from it to us once its keeper is dead: it runs a program with more rights than ours, belongs to another user, or
does not let its memory be read, like ssh-agent. Only who may look into every process (root, as a rule) finds those.
"""

from __future__ import annotations

import os
import signal

__all__ = ["MARK", "can_find", "end_marked", "sees_all"]

MARK = "EVERTICK_KEPT"


def can_find() -> bool:
    """Whether this system shows the environment of processes."""
    return os.path.exists("/proc/self/environ")


def sees_all() -> bool:
    """Whether we may look into every process: into the first one, which is nobody's, too."""
    try:
        with open("/proc/1/environ", "rb") as file:
            file.read(1)
    except OSError:
        return False
    return True


def end_marked(mark: str) -> list[int]:
    """KILL to all that carry it; answers who they are. Whoever forks meanwhile is found by the next look."""
    entry, found = f"{MARK}={mark}".encode(), []
    for name in os.listdir("/proc") if can_find() else ():
        if name.isdigit() and _has(name, entry):
            found.append(int(name))
            try:
                os.kill(int(name), signal.SIGKILL)
            except OSError:  # gone meanwhile, or not ours to signal: then the next look finds it again
                continue
    return found


def _has(pid: str, entry: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return entry in file.read().split(b"\0")
    except OSError:  # gone meanwhile, or another user's
        return False
