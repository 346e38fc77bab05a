"""Finds processes by an inherited mark, regardless of group, session and parent."""

from __future__ import annotations

import os
import time

# Not one of Evertick's own variables: those are not passed on to commands.
MARK = "MARK_OF_TEST"


def marked(token: str, name_of_mark: str = MARK) -> dict[int, str]:
    """The processes that were started with this mark in their environment, with their command lines."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                is_marked = f"{name_of_mark}={token}".encode() in file.read().split(b"\0")
            with open(f"/proc/{name}/cmdline", "rb") as file:
                command = file.read().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended, or is another user's
            continue
        if is_marked:
            found[int(name)] = command
    return found


def seconds_until_gone(token: str, most: float) -> float:
    """How long it takes until no process with the mark is left."""
    began = time.monotonic()
    while left := marked(token):
        assert time.monotonic() - began < most, f"still alive: {left}"
        time.sleep(0.005)
    return time.monotonic() - began
