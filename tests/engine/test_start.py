"""A program that is nothing but a node starts when its store is there, or says in one line why it cannot."""

from __future__ import annotations

import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import preloaded

SECRET = "hunter2"
PROGRAM = """
import logging, sys
from evertick import Scheduler

logging.basicConfig(level="INFO", format="%(message)s")
scheduler = Scheduler(sys.argv[1], start_timeout=sys.argv[2])

@scheduler.every("100ms")
def tick() -> None:
    print("tick", flush=True)

scheduler.run()
"""

# The ways in which a program starts a scheduler that is not its only work, and a call that needs no start.
EMBEDDED = {
    "async with": """
async def main():
    async with scheduler:
        print("started", flush=True)
asyncio.run(main())
""",
    "with": """
with scheduler:
    print("started", flush=True)
""",
    "a lifespan": """
from fastapi import FastAPI
from fastapi.testclient import TestClient
@contextlib.asynccontextmanager
async def lifespan(app):
    async with scheduler:
        print("started", flush=True)
        yield
with TestClient(FastAPI(lifespan=lifespan)):
    pass
""",
    "sync": """
scheduler.sync.schedules()
print("started", flush=True)
""",
}
HEAD = """
import asyncio, contextlib, sys
from evertick import Scheduler
scheduler = Scheduler(sys.argv[1], start_timeout=sys.argv[2])
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    processes: list[subprocess.Popen[str]] = []

    def starting(
        url: str, start_timeout: str, *, before: str = "", program: str = PROGRAM, **environment: str
    ) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", before + program, url, start_timeout]
        # A module that the program is to miss may be loaded in the other one.
        process = (subprocess.Popen if before else preloaded.popen)(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment or None
        )
        processes.append(process)
        return process

    yield starting
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that holds a lock on the database of `url_of`."""
    connection = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    yield connection
    connection.close()


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder}/jobs.db?busy_timeout=50ms"


def until_said(process: subprocess.Popen[str], words: str) -> str:
    assert process.stderr is not None
    while words not in (line := process.stderr.readline()):
        assert line, f"it ended without having said {words!r}"
    return line


def test_a_store_that_is_away_at_the_start_is_waited_for(
    start: Start, locked: sqlite3.Connection, tmp_path: Path
) -> None:
    process = start(url_of(tmp_path), "30s")
    until_said(process, "not started yet: ")
    locked.execute("ROLLBACK")
    until_said(process, "has started")
    assert process.stdout is not None
    assert process.stdout.readline() == "tick\n"
    process.terminate()
    _, rest = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "not started yet" not in rest, "said once"


def test_a_store_that_stays_away_ends_the_program_with_one_line(
    start: Start, locked: sqlite3.Connection, tmp_path: Path
) -> None:
    process = start(url_of(tmp_path), "300ms")
    _, said = process.communicate(timeout=30)
    assert process.returncode == 1
    *before, last = said.splitlines()
    assert all(line.startswith("not started yet: ") for line in before), said
    assert last.startswith(f"error: the SQLite file {tmp_path}/jobs.db is locked")


def test_a_program_that_waits_for_its_store_can_be_stopped(
    start: Start, locked: sqlite3.Connection, tmp_path: Path
) -> None:
    process = start(url_of(tmp_path), "1h")
    until_said(process, "not started yet: ")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("url", "before", "said"),
    [
        (
            f"postgresql://ann:{SECRET}@h/db",
            "import sys; sys.modules['asyncpg'] = None\n",
            "pip install 'evertick[postg",
        ),
        ("sqlite:////no/such/folder/jobs.db", "", "/no/such/folder"),
    ],
)
def test_an_error_at_the_start_is_reported_at_once_and_in_one_line(
    start: Start, url: str, before: str, said: str
) -> None:
    process = start(url, "1h", before=before)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    [line] = errors.splitlines()
    assert line.startswith("error: ")
    assert said in line
    assert SECRET not in line


def test_the_traceback_is_shown_on_request(start: Start) -> None:
    process = start("sqlite:////no/such/folder/jobs.db", "1h", EVERTICK_TRACEBACK="1")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" in errors
    assert "evertick.errors.Store" in errors


@pytest.mark.parametrize("way", EMBEDDED)
def test_a_server_that_is_down_is_reported_by_one_error_without_its_cause(start: Start, way: str) -> None:
    with socket.socket() as taken:  # bound and not listening: whoever connects is refused
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        process = start(f"postgresql://ann:{SECRET}@127.0.0.1:{port}/shop", "300ms", program=HEAD + EMBEDDED[way])
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.count("not started yet: ") == (way != "sync"), "only a start waits, and says so once"
    assert said.count("Traceback (most recent call last):") == 1, said
    assert "asyncpg" not in said
    assert said.count("/evertick/") <= (6 if way == "sync" else 1), said
    assert said.splitlines()[-1].startswith(
        f"evertick.errors.StoreUnavailable: the PostgreSQL database shop at 127.0.0.1:{port} cannot be reached; check "
        "that the server runs, and the network on the way to it"
    )
    assert SECRET not in said


@pytest.mark.parametrize("way", [way for way in EMBEDDED if way != "sync"])
def test_every_way_to_start_a_scheduler_waits_for_its_store(
    start: Start, locked: sqlite3.Connection, tmp_path: Path, way: str
) -> None:
    process = start(url_of(tmp_path), "30s", program=HEAD + EMBEDDED[way])
    until_said(process, "not started yet: ")
    locked.execute("ROLLBACK")
    answer, _ = process.communicate(timeout=30)
    assert (process.returncode, answer) == (0, "started\n")


def test_an_error_that_waiting_does_not_mend_is_reported_at_once(start: Start) -> None:
    process = start("sqlite:////no/such/folder/jobs.db", "1h", program=HEAD + EMBEDDED["async with"])
    _, said = process.communicate(timeout=60)
    assert said.count("Traceback") == 1
    assert "evertick.errors.Store" in said.splitlines()[-1]


def test_the_cause_is_shown_on_request(start: Start) -> None:
    url = "postgresql://ann@127.0.0.1:1/shop"
    process = start(url, "0s", program=HEAD + EMBEDDED["async with"], EVERTICK_TRACEBACK="1")
    _, said = process.communicate(timeout=60)
    assert "The above exception was the direct cause" in said
