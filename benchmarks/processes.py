"""The processes of a contender: how they are started, synchronised, measured and stopped (Linux).

Evertick and the raw loop are forked from a server process that has already imported Evertick, because the import takes
longer than most of a quick run. The import is part of no metric except that of the import itself. Other contenders are
started as commands of their own interpreter.

A program creates the file `PID.ready` and waits for `PID.go`. So starting up is not measured, and several workers begin
at the same time.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar

__all__ = [
    "ProcessUsage",
    "Program",
    "Workers",
    "bytes_written",
    "family_seconds",
    "in_new_process",
    "parent",
    "private_megabytes",
    "session",
    "start",
]

P = ParamSpec("P")
R = TypeVar("R")

# The fork server has these imports and runs no thread.
_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(["evertick.store.postgres", "evertick.store.sqlite", "evertick", "asyncpg"])
# An exit code can be read only once, and starting a process also polls the others: of two threads that read at the same
# time, one would get a wrong code. So one thread at a time starts or polls.
_POLLING = threading.Lock()
_MODULE = "-m"
_START_SECONDS = 120
_STOP_SECONDS = 40
_TICK = os.sysconf("SC_CLK_TCK")
# Attempts to read a server whose sessions start and end meanwhile.
_READS_MAX = 5


class Program(Protocol):
    """The part of `subprocess.Popen` that is used here."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


def start(command: Sequence[str], variables: Mapping[str, str], out: Path) -> Program:
    """Start a command as leader of a new session; its output is appended to a file."""
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


def in_new_process(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a module's function in a new process, so that earlier allocations are not measured again."""
    with ProcessPoolExecutor(1, mp_context=_FORKING) as pool:
        with _POLLING:  # `submit` starts the process
            answer = pool.submit(function, *args, **kwargs)
        return answer.result()


class _Forked:
    def __init__(self, command: Sequence[str], variables: Mapping[str, str], out: Path) -> None:
        self._process = _FORKING.Process(target=run_module, args=(list(command), dict(variables), out))
        with _POLLING:
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        with _POLLING:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("", timeout or 0)
        return code


def run_module(command: list[str], variables: dict[str, str], out: Path) -> None:
    """In the new process: run the module with its arguments."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with out.open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.update(variables)
    os.chdir(variables["BENCH_ROOT"])
    module, *sys.argv[1:] = command
    # Modules imported by the parent have read its environment.
    for name in [each for each in sys.modules if each.startswith("benchmarks.contender")]:
        del sys.modules[name]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


class Workers:
    """The worker processes of one contender."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path, count: int) -> None:
        self._command, self._environment, self._folder = command, environment, folder
        self._processes: list[Program] = []
        self._ended: list[Program] = []
        for _ in range(count):
            self.add()

    def add(self) -> int:
        """Start one more worker, which waits for `go`, and return its process id."""
        process = start(self._command, self._environment, self._folder / "workers.log")
        self._processes.append(process)
        return process.pid

    def wait_until_ready(self) -> None:
        """Wait until all have imported and set up what they need: resources used from now on are used for work."""
        until = time.monotonic() + _START_SECONDS
        for process in self._processes:
            while not self._signal_file(process, "ready").exists():
                self.check_alive()
                assert time.monotonic() < until, f"a worker did not start:\n{self.output()}"
                time.sleep(0.005)

    def go(self) -> None:
        """Let all waiting workers begin together."""
        self.wait_until_ready()
        for process in self._processes:
            self._signal_file(process, "go").touch()

    def _signal_file(self, process: Program, name: str) -> Path:
        return self._folder / f"{process.pid}.{name}"

    def check_alive(self) -> None:
        for process in self._processes:
            code = process.poll()
            assert code is None, f"a worker has exited with code {code}:\n{self.output()}"

    def output(self) -> str:
        return (self._folder / "workers.log").read_text(errors="replace")[-2_000:]

    def seconds(self) -> float:
        """Processor time so far, including child processes."""
        return sum(each.seconds + each.ended for process in self._processes for each in session(process.pid))

    def megabytes(self) -> float:
        return sum(private_megabytes(each.pid) for process in self._processes for each in session(process.pid))

    def bytes_written(self) -> int:
        """Bytes written to the disk so far."""
        return sum(bytes_written(each.pid) for process in self._processes for each in session(process.pid))

    def kill(self, pid: int) -> None:
        """The same as `kill -9`."""
        os.killpg(pid, signal.SIGKILL)
        self._move_to_ended(pid)

    def terminate(self, pid: int) -> None:
        os.killpg(pid, signal.SIGTERM)
        self._move_to_ended(pid)

    def _move_to_ended(self, pid: int) -> None:
        process = next(each for each in self._processes if each.pid == pid)
        self._processes.remove(process)
        self._ended.append(process)

    def stop(self) -> None:
        """Send TERM, and kill processes that do not end in time."""
        for process in self._processes:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGTERM)
        for process in [*self._processes, *self._ended]:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
            _kill_session(process.pid)
            process.wait()
        self._processes.clear()
        self._ended.clear()


def _kill_session(leader: int) -> None:
    for each in session(leader):
        os.kill(each.pid, signal.SIGKILL)


# --- processor time and memory as counted by the kernel


@dataclass(frozen=True)
class ProcessUsage:
    """One process. `ended` is the processor time of children that it has waited for."""

    pid: int
    parent: int
    session: int
    seconds: float
    ended: float


def session(leader: int) -> list[ProcessUsage]:
    """All processes of the session that `leader` started."""
    return [each for each in _all() if each.session == leader]


def family_seconds(head: int) -> float:
    """Processor time of a process and its children, running and ended: a whole PostgreSQL server."""
    for _ in range(_READS_MAX):
        own = _one(head)
        running = sum(each.seconds for each in _all() if each.parent == head)
        if _one(head).ended == own.ended:
            break  # otherwise a child ended between the two reads and is in neither
    return own.seconds + own.ended + running


def parent(pid: int) -> int:
    return _one(pid).parent


def private_megabytes(pid: int) -> float:
    """Anonymous memory, without pages of files: the tally is a mapped file."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1e3
    return 0.0


def bytes_written(pid: int) -> int:
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    return 0


def _all() -> Iterator[ProcessUsage]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield _one(int(entry.name))
            except OSError:
                continue  # it has just ended


def _one(pid: int) -> ProcessUsage:
    # The name, in parentheses, may contain spaces; the fields that matter follow it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    used, system, ended, ended_system = (int(each) / _TICK for each in fields[11:15])
    return ProcessUsage(pid, int(fields[1]), int(fields[3]), used + system, ended + ended_system)
