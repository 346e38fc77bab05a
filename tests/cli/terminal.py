"""Commands on a pseudo-terminal."""

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
    """The output of a command on a terminal, on request with errors and hints."""
    controller, terminal_fd = pty.openpty()
    errors = {"stderr": terminal_fd} if has_errors else {}
    process = start(*args, env=dict(env), stdout=terminal_fd, stdin=terminal_fd, **errors)
    os.close(terminal_fd)
    parts = []
    try:
        while part := os.read(controller, 65536):
            parts.append(part)
    except OSError:  # on Linux: the other end was closed
        pass
    os.close(controller)
    drawn = b"".join(parts).decode()
    assert process.wait() == code, drawn
    return drawn
