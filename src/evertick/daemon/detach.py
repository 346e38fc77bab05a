"""Leaving the shell that has started us: for init systems that wait for the command to return.

The command returns when the daemon is on its feet, or waits for nothing but its store; until then what it says goes to
the terminal, and if it does not come so far, the command ends with 1. It must be called before there is any thread, and
before any store is opened: neither survives a fork.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn

__all__ = ["Detached", "detach"]

_READY = b"ready"


class Detached:
    """The daemon's end of the line to the command that has started it."""

    def __init__(self, line: int) -> None:
        self._line: int | None = line

    def ready(self) -> None:
        """Let the command return, and the terminal go."""
        line, self._line = self._line, None
        if line is None:
            return
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nowhere, standard)
        os.close(nowhere)
        with contextlib.suppress(BrokenPipeError):
            os.write(line, _READY)
        os.close(line)


def detach() -> Detached:
    """Answers in the daemon alone: the command that was started ends in here."""
    sys.stdout.flush()
    sys.stderr.flush()
    theirs, ours = os.pipe()
    if child := os.fork():
        os.close(ours)
        _wait(theirs, child)
    os.close(theirs)
    os.setsid()
    # The first one leads a session, and could be given a terminal; the second cannot.
    if os.fork():
        os._exit(0)
    return Detached(ours)


def _wait(line: int, child: int) -> NoReturn:
    """In the command: until the daemon is ready, or has ended without being so, and said why on the terminal."""
    os.waitpid(child, 0)
    os._exit(0 if os.read(line, len(_READY)) == _READY else 1)
