"""A database with example data, and fixtures that call the command line."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from terminal import drawn_here, without_evertick

import preloaded
from evertick import Every, Scheduler
from evertick.cli import cli

# An error of a job may contain control sequences, which must not reach a terminal.
NASTY = "no paper\x1b[2J left"


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Succeeded, failed and waiting runs, a gap, a stopped node. Read-only."""
    path = tmp_path_factory.mktemp("cli") / "jobs.db"
    _run_some_jobs(f"sqlite:///{path}")
    _make_a_gap(f"sqlite:///{path}")
    return path


def _run_some_jobs(url: str) -> None:
    scheduler = Scheduler(url, node_name="shop@host")
    ended = threading.Semaphore(0)

    @scheduler.every("1h", key="report", labels={"team": "sales"})
    def make_report(day: str = "today") -> dict[str, str]:
        return {"day": day}

    @scheduler.cron("0 9 * * mon-fri", key="print", tz="Europe/Berlin")
    def print_it() -> None:
        raise ValueError(NASTY)

    for kind in ("succeeded", "failed"):
        scheduler.on(kind, lambda event: ended.release())
    with scheduler:
        scheduler.sync.trigger("report", args={"day": "monday"})
        scheduler.sync.trigger("print")
        assert ended.acquire(timeout=20)
        assert ended.acquire(timeout=20)


def _make_a_gap(url: str) -> None:
    scheduler = Scheduler(url, concurrency=0)
    scheduler.sync.add(key="quick", when=Every("1ms"), task="make_report")
    scheduler.sync.pause("quick")
    scheduler.sync.resume("quick")
    scheduler.sync.pause("quick", note="fires far too quickly")
    scheduler.sync.close()


@pytest.fixture
def database(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A writable copy of the example database, named by the environment."""
    path = tmp_path / "evertick.db"
    path.write_bytes(prepared.read_bytes())
    monkeypatch.setenv("EVERTICK_DATABASE", f"sqlite:///{path}")
    monkeypatch.setenv("TZ", "UTC")
    return f"sqlite:///{path}"


@pytest.fixture
def evertick() -> Callable[..., Result]:
    """Call the command in this process."""
    return lambda *args: CliRunner().invoke(cli, list(args), prog_name="evertick")


@pytest.fixture
def ask(evertick: Callable[..., Result]) -> Callable[..., Any]:
    """Call a command with --json and return its output."""

    def call(*args: str) -> Any:
        result = evertick(*args, "--json")
        assert result.exit_code == 0, result.stderr
        assert result.stderr == ""
        return json.loads(result.stdout)

    return call


class Terminal:
    """A terminal that a test types at."""

    def __init__(self) -> None:
        self.controller, self.terminal_fd = pty.openpty()

    def write(self, text: str) -> None:
        os.write(self.controller, text.encode())

    def close(self) -> None:
        os.close(self.controller)
        os.close(self.terminal_fd)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


@pytest.fixture
def on_terminal(tmp_path: Path) -> Callable[..., str]:
    """The output of a command on a terminal."""

    def draw(database: str, *args: str, **environment: str) -> str:
        variables = {"EVERTICK_DATABASE": database, "TERM": "xterm", **environment}
        return drawn_here(*args, env=variables, folder=tmp_path)

    return draw


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command as a process of its own, in an empty directory; kill it after the test."""
    processes: list[subprocess.Popen[str]] = []

    def begin(*args: str, **options: Any) -> subprocess.Popen[str]:
        environment = without_evertick(PYTHONUNBUFFERED="1", **options.pop("env", {}))
        process = preloaded.popen(
            [sys.executable, "-m", "evertick", *args],
            **{
                "cwd": tmp_path,
                "env": environment,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "text": True,
                **options,
            },
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()
