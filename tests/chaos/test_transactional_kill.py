"""A side effect in the user's own table happens exactly once per finished run, however often its node is killed."""

from __future__ import annotations

import random
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fleet import Fleet
from torment.site import wait_until

from evertick import Scheduler, State, Verdict

NODES = 3
RUNS = 210
KILLS = 8
PROGRAM = Path(__file__).parent / "paying_program.py"
TASKS = ("pay_in_block", "pay_in_plain_block", "pay_on_own_connection")


class PayingFleet(Fleet):
    """Nodes that pay, and the tables they pay into."""

    program = PROGRAM

    @property
    def path(self) -> Path:
        return self.folder / "shop.db"

    def arguments(self, number: int) -> list[str]:
        return [str(self.path)]

    def rows(self, table: str) -> list[str]:
        with closing(sqlite3.connect(self.path)) as db:
            return [row[0] for row in db.execute(f"SELECT * FROM {table}")]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[PayingFleet]:
    fleet = PayingFleet(tmp_path)
    with closing(sqlite3.connect(fleet.path)) as db:
        db.executescript("CREATE TABLE paid (run TEXT, fence INTEGER); CREATE TABLE receipts (run TEXT);")
    yield fleet
    fleet.close()


def test_every_finished_run_has_paid_exactly_once_though_its_nodes_are_killed(fleet: PayingFleet) -> None:
    chance = random.Random(11)
    manager = Scheduler(f"sqlite:///{fleet.path}?busy_timeout=30s", concurrency=0)
    for _ in range(NODES):
        fleet.start_one()
    # Or a slow machine would be killing nodes that have not come to work yet.
    wait_until(fleet.all_have_started, 60, fleet.logs)
    ids = enqueue_all(manager)
    torment(fleet, chance)
    wait_until_settled(manager, fleet)
    assert fleet.stop_all() == [0] * len(fleet.nodes), fleet.logs()

    runs = {run.id: run for task in TASKS for run in manager.sync.runs(task=task, limit=10_000)}
    manager.sync.close()
    assert set(runs) == ids
    succeeded = {id_ for id_, run in runs.items() if run.verdict is Verdict.SUCCEEDED}
    assert Counter(fleet.rows("paid")) == Counter(succeeded), "rows of the user and finished runs differ"
    # What was enqueued beside a row came with it; those jobs themselves may run twice, but none is missing.
    assert set(fleet.rows("receipts")) == succeeded
    # Those that were killed three times over are lost; a block that a busy machine holds up for a third of the lease is
    # rolled back, and its run has failed. Both are few.
    assert len(succeeded) >= 0.9 * RUNS
    interrupted = [run for run in runs.values() if run.losses]
    print(f"{len(succeeded)} of {len(runs)} succeeded, {len(interrupted)} lost a claim, {KILLS} kills")
    assert interrupted, "no kill has hit a running job: the test has proved nothing"


def enqueue_all(manager: Scheduler) -> set[str]:
    ids: set[str] = set()
    for name in TASKS:
        task = manager.task(lambda: None, name=name)
        ids |= {run.id for run in task.sync.enqueue_many([{}] * (RUNS // len(TASKS)))}
    return ids


def torment(fleet: PayingFleet, chance: random.Random) -> None:
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.4, 1.2))  # the rhythm of the torment, not a wait for something
        fleet.kill_one(chance)
        fleet.start_one()


def wait_until_settled(manager: Scheduler, fleet: PayingFleet) -> None:
    """Until every run has its verdict, and the last node started can hear a signal."""
    deadline = time.monotonic() + 90
    live = [state for state in State if state is not State.DONE]
    while time.monotonic() < deadline:
        unsettled = manager.sync.runs(states=live, limit=1000)
        if not unsettled and fleet.all_have_started():
            return
        time.sleep(0.2)
    pytest.fail(f"{len(unsettled)} runs have no verdict: {unsettled[:1]}\n{fleet.logs()}")
