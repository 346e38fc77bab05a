"""Commands on a terminal of their own."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Callable, Mapping

__all__ = ["drawn_by"]


def drawn_by(
    start: Callable[..., subprocess.Popen[str]],
    *args: str,
    env: Mapping[str, str],
    code: int = 0,
    has_errors: bool = False,
) -> str:
    """What a command writes to a terminal, with its errors and hints if asked for."""
    ours, theirs = pty.openpty()
    errors = {"stderr": theirs} if has_errors else {}
    process = start(*args, env=dict(env), stdout=theirs, stdin=theirs, **errors)
    os.close(theirs)
    parts = []
    try:
        while part := os.read(ours, 65536):
            parts.append(part)
    except OSError:  # how Linux says that the other end was closed
        pass
    os.close(ours)
    drawn = b"".join(parts).decode()
    assert process.wait() == code, drawn
    return drawn
