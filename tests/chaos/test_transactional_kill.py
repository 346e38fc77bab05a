"""A side effect in the user's own table happens exactly once per finished run, however often its node is killed."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from evertick import Scheduler, State, Verdict

NODES = 3
RUNS = 300
KILLS = 12
PROGRAM = Path(__file__).parent / "paying_program.py"
TASKS = ("pay_in_block", "pay_in_plain_block", "pay_on_own_connection")


class Fleet:
    """Nodes that pay, and their logs."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "shop.db"
        self._folder = folder
        self._started = 0
        self.nodes: list[subprocess.Popen[bytes]] = []
        self._logs: dict[int, Path] = {}

    def start_one(self) -> None:
        self._started += 1
        path = self._folder / f"log-{self._started}"
        with path.open("wb") as log:
            node = subprocess.Popen([sys.executable, str(PROGRAM), str(self.path)], stdout=log, stderr=log)
        self.nodes.append(node)
        self._logs[node.pid] = path

    def all_have_started(self) -> bool:
        return all("has started" in self._logs[node.pid].read_text() for node in self.nodes)

    def kill_one(self, chance: random.Random) -> None:
        victim = self.nodes.pop(chance.randrange(len(self.nodes)))
        victim.kill()
        victim.wait()

    def stop_all(self) -> list[int]:
        for node in self.nodes:
            node.send_signal(signal.SIGTERM)
        return [node.wait(timeout=30) for node in self.nodes]

    def rows(self, table: str) -> list[str]:
        with closing(sqlite3.connect(self.path)) as db:
            return [row[0] for row in db.execute(f"SELECT * FROM {table}")]

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self._folder.glob("log-*")))


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path)
    with closing(sqlite3.connect(fleet.path)) as db:
        db.executescript("CREATE TABLE paid (run TEXT, fence INTEGER); CREATE TABLE receipts (run TEXT);")
    yield fleet
    for node in fleet.nodes:
        node.kill()
        node.wait()


def test_every_finished_run_has_paid_exactly_once_though_its_nodes_are_killed(fleet: Fleet) -> None:
    chance = random.Random(11)
    manager = Scheduler(f"sqlite:///{fleet.path}?busy_timeout=30s", concurrency=0)
    ids = enqueue_all(manager)
    for _ in range(NODES):
        fleet.start_one()
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
    assert {run.verdict for run in runs.values()} <= {Verdict.SUCCEEDED, Verdict.LOST}
    interrupted = [run for run in runs.values() if run.losses]
    print(f"{len(succeeded)} of {len(runs)} succeeded, {len(interrupted)} lost a claim, {KILLS} kills")
    assert interrupted, "no kill has hit a running job: the test has proved nothing"


def enqueue_all(manager: Scheduler) -> set[str]:
    ids: set[str] = set()
    for name in TASKS:
        task = manager.task(lambda: None, name=name)
        ids |= {run.id for run in task.sync.enqueue_many([{}] * (RUNS // len(TASKS)))}
    return ids


def torment(fleet: Fleet, chance: random.Random) -> None:
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.4, 1.2))  # the rhythm of the torment, not a wait for something
        fleet.kill_one(chance)
        fleet.start_one()


def wait_until_settled(manager: Scheduler, fleet: Fleet) -> None:
    """Until every run has its verdict, and the last node started can hear a signal."""
    deadline = time.monotonic() + 90
    live = [state for state in State if state is not State.DONE]
    while time.monotonic() < deadline:
        unsettled = manager.sync.runs(states=live, limit=1000)
        if not unsettled and fleet.all_have_started():
            return
        time.sleep(0.2)
    pytest.fail(f"{len(unsettled)} runs have no verdict: {unsettled[:1]}\n{fleet.logs()}")
