"""A program of a contender, started: a command of its own interpreter, or a fork of one that has imported Evertick.

Evertick and the raw loop are forked, because an import takes longer than most of what a quick benchmark does. No import
is in any figure but that of the import itself, so it makes no difference to them.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Protocol

__all__ = ["FORKING", "LOOKING", "Started", "start"]

# Forks what has imported these, and runs no thread.
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["evertick.store.postgres", "evertick.store.sqlite", "evertick", "asyncpg"])
# Whoever starts a process looks whether any other has ended. An exit code can be read once only: of two threads that
# read it at one moment, one would have a wrong one. So a thread at a time starts, or looks.
LOOKING = threading.Lock()
_MODULE = "-m"


class Started(Protocol):
    """As far as `subprocess.Popen` is used here."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


def start(command: Sequence[str], variables: Mapping[str, str], out: Path) -> Started:
    """`command` is an interpreter with its arguments. What it prints goes to the end of a file; it leads a session."""
    if command[0] == sys.executable and command[1] == _MODULE:
        return _Forked(command[2:], variables, out)
    with out.open("ab") as log:
        return subprocess.Popen(
            command,
            env=dict(variables),
            cwd=variables["BENCH_ROOT"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


class _Forked:
    def __init__(self, command: Sequence[str], variables: Mapping[str, str], out: Path) -> None:
        self._process = FORKING.Process(target=become, args=(list(command), dict(variables), out))
        with LOOKING:
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        with LOOKING:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("", timeout or 0)
        return code


def become(command: list[str], variables: dict[str, str], out: Path) -> None:
    """In the new process: be that module, with those arguments."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with out.open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.update(variables)
    os.chdir(variables["BENCH_ROOT"])
    module, *sys.argv[1:] = command
    # Whoever was imported before has read other variables.
    for name in [each for each in sys.modules if each.startswith("benchmarks.contender")]:
        del sys.modules[name]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
