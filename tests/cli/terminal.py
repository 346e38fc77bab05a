"""Commands on a terminal: in a process of their own, or in this one, which is ten times cheaper."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread
from unittest import mock

from evertick.cli import cli

__all__ = ["drawn_by", "drawn_here", "without_evertick"]


def without_evertick(**more: str) -> dict[str, str]:
    """The environment of a command that has no settings but these."""
    return {name: value for name, value in os.environ.items() if not name.startswith("EVERTICK")} | {
        "TZ": "UTC",
        **more,
    }


def drawn_by(start: Callable[..., subprocess.Popen[str]], *args: str, env: Mapping[str, str], code: int = 0) -> str:
    """The output of a process on a terminal."""
    ours, theirs = pty.openpty()
    process = start(*args, env=dict(env), stdout=theirs, stdin=theirs)
    os.close(theirs)
    drawn = _all_of(ours)
    assert process.wait() == code, drawn
    return drawn


def drawn_here(*args: str, env: Mapping[str, str], folder: Path, code: int = 0, has_errors: bool = False) -> str:
    """The output of a command that runs in this process, with its errors and hints if asked for."""
    ours, theirs = pty.openpty()
    drawn: list[str] = []
    reader = Thread(target=lambda: drawn.append(_all_of(ours)))
    reader.start()
    try:
        ended = _run_on(theirs, args, without_evertick(**env), folder, has_errors)
    finally:
        os.close(theirs)
        reader.join()
    assert ended == code, drawn
    return drawn[0]


def _run_on(terminal: int, args: tuple[str, ...], variables: dict[str, str], folder: Path, has_errors: bool) -> object:
    with contextlib.ExitStack() as places:
        screen = places.enter_context(open(terminal, "w", closefd=False))
        places.enter_context(mock.patch.object(sys, "stdin", places.enter_context(open(terminal, closefd=False))))
        places.enter_context(contextlib.redirect_stdout(screen))
        if has_errors:
            places.enter_context(contextlib.redirect_stderr(screen))
        places.enter_context(contextlib.chdir(folder))
        # In reverse order: the zone of the machine is read again after the variables are back.
        places.callback(time.tzset)
        places.enter_context(mock.patch.dict(os.environ, variables, clear=True))
        time.tzset()
        try:
            cli(args, prog_name="evertick")
        except SystemExit as end:
            return end.code
    raise AssertionError("the command has not ended by an exit code")


def _all_of(terminal: int) -> str:
    parts = []
    try:
        while part := os.read(terminal, 65536):
            parts.append(part)
    except OSError:  # on Linux: the other end was closed
        pass
    os.close(terminal)
    return b"".join(parts).decode()
