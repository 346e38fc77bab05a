"""The processes of a contender: started together, let go together, watched, stopped.

A program says that it is ready by a file beside its tally and waits for another: so that what starts up is not
measured, and two processes begin at one moment. TERM ends it as its documents say; a process that
does not end is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.program import Started, start
from benchmarks.store.processor import bytes_written, private_megabytes, session

__all__ = ["Workers"]

_START_SECONDS = 120
_STOP_SECONDS = 40


class Workers:
    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path, count: int) -> None:
        self._command, self._environment, self._folder = command, environment, folder
        self._processes: list[Started] = []
        self._gone: list[Started] = []
        for _ in range(count):
            self.add()

    def add(self) -> int:
        """One more, which waits for `go`. Answers its process id."""
        process = start(self._command, self._environment, self._folder / "workers.log")
        self._processes.append(process)
        return process.pid

    def wait_until_ready(self) -> None:
        """All have imported and set up what they need: what they use from now on, they use for their work."""
        until = time.monotonic() + _START_SECONDS
        for process in self._processes:
            while not self._sign(process, "ready").exists():
                self.check_alive()
                assert time.monotonic() < until, f"a worker did not start:\n{self.said()}"
                time.sleep(0.005)

    def go(self) -> None:
        """Let those go that wait, all at once."""
        self.wait_until_ready()
        for process in self._processes:
            self._sign(process, "go").touch()

    def _sign(self, process: Started, name: str) -> Path:
        return self._folder / f"{process.pid}.{name}"

    def check_alive(self) -> None:
        for process in self._processes:
            code = process.poll()
            assert code is None, f"a worker has ended by itself ({code}):\n{self.said()}"

    def said(self) -> str:
        return (self._folder / "workers.log").read_text(errors="replace")[-2_000:]

    def seconds(self) -> float:
        """Processor time of all of them and their children so far."""
        return sum(each.seconds + each.ended for process in self._processes for each in session(process.pid))

    def megabytes(self) -> float:
        return sum(private_megabytes(each.pid) for process in self._processes for each in session(process.pid))

    def bytes_written(self) -> int:
        """To the disk, by all of them so far."""
        return sum(bytes_written(each.pid) for process in self._processes for each in session(process.pid))

    def kill(self, pid: int) -> None:
        """As by `kill -9`."""
        os.killpg(pid, signal.SIGKILL)
        self._forget(pid)

    def terminate(self, pid: int) -> None:
        os.killpg(pid, signal.SIGTERM)
        self._forget(pid)

    def _forget(self, pid: int) -> None:
        gone = next(each for each in self._processes if each.pid == pid)
        self._processes.remove(gone)
        self._gone.append(gone)

    def stop(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGTERM)
        for process in [*self._processes, *self._gone]:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
            _kill_session(process.pid)
            process.wait()
        self._processes.clear()
        self._gone.clear()


def _kill_session(leader: int) -> None:
    for each in session(leader):
        os.kill(each.pid, signal.SIGKILL)
