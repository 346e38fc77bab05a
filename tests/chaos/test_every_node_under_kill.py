"""Real processes that are killed without warning: what is for every node runs once on each, and never on another."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fleet import Fleet

from evertick import Run, Scheduler, State, Verdict
from evertick.model.every_node import node_of_queue

NODES = 3
KILLS = 5
PATIENCE = 60.0


class EveryNodeFleet(Fleet):
    program = Path(__file__).parent / "every_node_program.py"

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder)
        self.url = url

    def arguments(self, number: int) -> list[str]:
        return [self.url, str(self.folder), f"node-{number}"]


@pytest.fixture(params=["sqlite", "postgres"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EveryNodeFleet]:
    is_file = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/all.db" if is_file else str(request.getfixturevalue("postgres_url"))
    fleet = EveryNodeFleet(tmp_path, url)
    yield fleet
    fleet.close()


def test_three_processes_killed_at_random_each_run_each_moment_once(fleet: EveryNodeFleet) -> None:
    for _ in range(NODES):
        fleet.start_one()
    _wait(fleet.all_have_started, fleet)
    manager = Scheduler(fleet.url, concurrency=0)
    _torment(fleet)
    _wait(fleet.all_have_started, fleet)
    manager.sync.pause("act")
    _wait(lambda: not _live(manager), fleet)
    assert fleet.stop_all() == [0] * NODES, fleet.logs()
    _check(manager, fleet)
    manager.sync.close()


def _torment(fleet: EveryNodeFleet) -> None:
    chance = random.Random(5)
    for _ in range(KILLS):
        time.sleep(chance.uniform(1.0, 2.0))  # the rhythm of the torment, not a wait for something
        fleet.kill_one(chance)
        fleet.start_one()


def _wait(is_so: Callable[[], bool], fleet: EveryNodeFleet) -> None:
    until = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < until, fleet.logs()
        time.sleep(0.1)


def _live(manager: Scheduler) -> list[Run]:
    return [run for run in manager.sync.runs("act", limit=10_000) if run.is_live]


def _check(manager: Scheduler, fleet: EveryNodeFleet) -> None:
    runs = {run.id: run for run in manager.sync.runs("act", limit=10_000)}
    names = {node.id: node.name for node in manager.sync.nodes()}
    assert Counter(run.state for run in runs.values()) == {State.DONE: len(runs)}
    # One run per moment and node.
    assert max(Counter((run.fire_at, run.queue) for run in runs.values()).values()) == 1
    # Who did it is who it was for, and did it once: what was cut off is lost, not done again.
    acts = [line.split() for line in (fleet.folder / "testimony").read_text().splitlines()]
    assert max(Counter(run for _, run, _ in acts).values()) == 1
    assert {(run, name) for name, run, _ in acts} == {
        (run, names[node_of_queue(runs[run].queue)]) for _, run, _ in acts
    }
    done = {run for _, run, _ in acts}
    assert {run.id for run in runs.values() if run.verdict is Verdict.SUCCEEDED} <= done
    lost = [run for run in runs.values() if run.verdict is not Verdict.SUCCEEDED]
    assert {(run.verdict, run.reason) for run in lost} == {(Verdict.LOST, "node_gone")}
    # A node has all moments between its first and its last, but for those it skipped. By its id: one that was taken
    # for dead joins anew under its name.
    skipped = Counter((gap.first_at, gap.reason) for gap in manager.sync.gaps("act", limit=10_000))
    moments = sorted({run.fire_at for run in runs.values()})
    by_node = defaultdict(set)
    for run in runs.values():
        by_node[node_of_queue(run.queue)].add(run.fire_at)
    for node, own in by_node.items():
        between = [at for at in moments if min(own) <= at <= max(own)]
        missing = [at for at in between if at not in own and not skipped[at, f"overlap on {names[node]}"]]
        assert missing == [], names[node]
