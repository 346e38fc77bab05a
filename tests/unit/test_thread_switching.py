"""A dedicated process has a shorter thread switch interval, unless the program has set one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evertick.scheduler.interpreter_tuning import shorten_turns

RUN = """
import os, signal, sys
from evertick import Scheduler

scheduler = Scheduler("sqlite:///ledger.db")

@scheduler.every("1s", catch_up="latest")
def look():
    print(sys.getswitchinterval(), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

scheduler.run()
"""

INSIDE = """
import asyncio, sys
from evertick import Scheduler

async def main():
    async with Scheduler("sqlite://"):
        print(sys.getswitchinterval())

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    seconds = sys.getswitchinterval()
    yield
    sys.setswitchinterval(seconds)


def test_the_switch_interval_is_a_tenth_of_a_millisecond() -> None:
    sys.setswitchinterval(0.005)
    shorten_turns()
    assert sys.getswitchinterval() == pytest.approx(0.0001)


@pytest.mark.parametrize("seconds", [0.001, 0.02])
def test_a_switch_interval_set_by_the_program_is_kept(seconds: float) -> None:
    sys.setswitchinterval(seconds)
    shorten_turns()
    assert sys.getswitchinterval() == pytest.approx(seconds)


def switch_interval_of(program: str, folder: Path) -> float:
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_a_process_run_by_evertick_has_the_short_switch_interval(tmp_path: Path) -> None:
    assert switch_interval_of(RUN, tmp_path) == pytest.approx(0.0001)


def test_a_program_that_embeds_a_node_keeps_its_switch_interval(tmp_path: Path) -> None:
    assert switch_interval_of(INSIDE, tmp_path) == pytest.approx(0.005)
