"""Ctrl-C while a plain function is busy: said at once, bounded, and a second one does not wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import preloaded
from evertick import Scheduler

# Nothing sets up logging: that is how a first program is.
PROGRAM = """
import asyncio, sys, threading
from evertick import Scheduler

scheduler = Scheduler("sqlite:///jobs.db", stop_timeout="STOP")

@scheduler.every("100ms")
def slow():
    print("begun", flush=True)
    threading.Event().wait()

async def main():
    async with scheduler:
        await asyncio.Event().wait()

if __name__ == "__main__":
    match sys.argv[1]:
        case "run":
            scheduler.run()
        case "async with":
            asyncio.run(main())
        case "with":
            with scheduler:
                threading.Event().wait()
"""
WAITING = "stopping: waiting up to {} s for 1 job (slow); press Ctrl-C again to stop now"
Begin = Callable[[str, str], "subprocess.Popen[str]"]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Start the program in one of the ways, and answer when its job is busy."""
    processes: list[subprocess.Popen[str]] = []

    def begun(way: str, stop_timeout: str) -> subprocess.Popen[str]:
        (tmp_path / "program.py").write_text(PROGRAM.replace("STOP", stop_timeout))
        command = ["-m", "evertick", "run", "program:scheduler"] if way == "evertick run" else ["program.py", way]
        process = preloaded.popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=os.environ | {"PYTHONFAULTHANDLER": ""},
        )
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        return process

    yield begun
    for process in processes:
        process.kill()
        process.communicate()


def told(process: subprocess.Popen[str]) -> str:
    """The line that says what the stop waits for; the log of `evertick run` may have lines before it."""
    assert process.stderr is not None
    while not (line := process.stderr.readline()).startswith("stopping: "):
        assert line, "it has said what it waits for"
    return line.rstrip()


@pytest.mark.parametrize("way", ["run", "evertick run", "async with", "with"])
def test_ctrl_c_says_at_once_what_it_waits_for_and_for_how_long(begin: Begin, way: str, tmp_path: Path) -> None:
    process = begin(way, "10m")
    process.send_signal(signal.SIGINT)
    assert told(process) == WAITING.format(600)
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=30)
    assert process.returncode == (0 if "run" in way else -signal.SIGINT)
    assert "its slot is free again" not in rest, "the function is as busy as before"
    scheduler = Scheduler(f"sqlite:///{tmp_path}/jobs.db")
    states = [run.state for run in scheduler.sync.runs() if run.schedule_key == "slow"]
    scheduler.sync.close()
    assert "running" not in states, "what was cut off is released, and may begin elsewhere at once"


@pytest.mark.parametrize("way", ["run", "async with", "with"])
def test_work_that_does_not_stop_in_time_is_reported_with_its_own_lines(begin: Begin, way: str) -> None:
    process = begin(way, "100ms")
    process.send_signal(signal.SIGINT)
    assert told(process) == WAITING.format("0.1")
    _, rest = process.communicate(timeout=30)
    lines = [line for line in rest.splitlines() if "slow" in line and not line.startswith(" ")]
    assert [line.partition(": ")[0] if line.startswith("slow") else line.split(" ")[0] for line in lines] == [
        "run",
        "slow",
        "still",
    ]
    assert "did not stop when asked to (shutdown): given up" in lines[0]
    assert "did not end in time (shutdown) and was released: it runs again" in lines[1]
    assert lines[2].startswith("still running after the stop, until the process ends: run ")


def test_term_from_a_supervisor_says_nothing_about_ctrl_c(begin: Begin) -> None:
    process = begin("run", "100ms")
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "press Ctrl-C" not in rest
