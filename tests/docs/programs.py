"""Programs that a page starts and that go on by themselves: start them, watch them, end them."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import preloaded

SECONDS_MAX = 30.0
# The port in the commands of the documentation; a free one stands in for it.
PORT = "8000"


class Program(NamedTuple):
    process: subprocess.Popen[bytes]
    port: int
    output_file: Path

    @property
    def output(self) -> str:
        return self.output_file.read_text(encoding="utf-8", errors="replace")

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        until = time.monotonic() + SECONDS_MAX
        while not condition():
            assert self.process.poll() is None, f"it has ended with {self.process.returncode}:\n{self.output}"
            assert time.monotonic() < until, f"it never came to this: {what}\n{self.output}"
            time.sleep(0.05)

    def terminate(self) -> int:
        """Stop it as a supervisor would; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(SECONDS_MAX)


@contextmanager
def running(command: str, folder: Path, **environment: str) -> Iterator[Program]:
    """The command as it stands on the page, run in the folder by the programs of this virtual environment."""
    port = free_port()
    words = [word.replace(PORT, str(port)) for word in shlex.split(command)]
    while "=" in words[0]:  # as a shell takes them: variables before the command
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    name, words[0] = words[0], str(Path(sys.executable).with_name(words[0]))
    start = preloaded.popen if name == "python" else subprocess.Popen
    output_file = folder / f"output of {name} on {port}"
    with output_file.open("wb") as output:
        # In a process group of its own, so that no worker outlives the test.
        process = start(
            words,
            cwd=folder,
            env=clean_environment(HOME=str(folder), PYTHONUNBUFFERED="1", **environment),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield Program(process, port, output_file)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def clean_environment(**more: str) -> dict[str, str]:
    """This one, without what would reach into an example."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("EVERTICK_", "PYTEST_"))}
    return own | more


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])
