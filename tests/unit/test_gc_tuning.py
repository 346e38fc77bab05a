"""A dedicated process raises the gc thresholds, unless the program has set them."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evertick.scheduler.interpreter_tuning import calm_collector

RUN = """
import gc, os, signal
from evertick import Scheduler

scheduler = Scheduler("sqlite:///ledger.db")

@scheduler.every("1s", catch_up="latest")
def look():
    print(gc.get_threshold()[0], gc.get_freeze_count() > 10_000, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

scheduler.run()
"""


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.unfreeze()
    yield
    gc.enable()
    gc.set_threshold(*thresholds)
    gc.collect()
    gc.freeze()  # as tests/conftest.py does


@pytest.mark.parametrize("objects", [700, 2_000])
def test_gc_runs_less_often_and_skips_existing_objects(objects: int) -> None:
    gc.set_threshold(objects, 10, 11)
    calm_collector()
    assert gc.get_threshold() == (10_000, 10, 11)
    assert gc.get_freeze_count() > 10_000


@pytest.mark.parametrize("objects", [0, 500, 50_000])
def test_gc_thresholds_set_by_the_program_are_kept(objects: int) -> None:
    gc.set_threshold(objects, 10, 10)
    frozen = gc.get_freeze_count()
    calm_collector()
    assert gc.get_threshold() == (objects, 10, 10)
    assert gc.get_freeze_count() == frozen


def test_a_gc_that_was_turned_off_stays_off() -> None:
    gc.set_threshold(700, 10, 10)
    gc.disable()
    calm_collector()
    assert gc.get_threshold() == (700, 10, 10)
    assert not gc.isenabled()


def test_gc_is_tuned_in_a_process_that_runs_a_scheduler(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(RUN)
    done = subprocess.run([sys.executable, "job.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "10000 True"
