"""Real processes never pass a limit, though they are killed without warning, cut off and started again.

The witnesses are outside of the database: files under an exclusive lock, and one file that all starts are appended to.
What a killed process did is over with it, while the ledger counts it as running until it is re-homed: so the witnesses
can be strict.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet import Fleet
from limited import PROGRAM, check_limits, enqueue_all, live_runs
from torment.faults import plan_of
from torment.site import open_site, wait_until
from torment.storm import Storm

from evertick import Scheduler
from long_tests import seconds_for

NODES = 3
KILLS = 5
# Of the work: enough for the time of the kills.
SHARE = 0.4
STORM_NODES, STORM_SECONDS, STORM_EVERY_SECONDS = 5, 25.0, 1.2


class LimitedFleet(Fleet):
    """The processes, and what their jobs have seen."""

    program = PROGRAM

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder}/limits.db"

    def arguments(self, number: int) -> list[str]:
        return [self.url, str(self.folder)]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[LimitedFleet]:
    fleet = LimitedFleet(tmp_path)
    yield fleet
    fleet.close()


def test_three_processes_killed_at_random_never_pass_a_concurrency_nor_a_rate(fleet: LimitedFleet) -> None:
    manager = Scheduler(fleet.url, concurrency=0)
    enqueue_all(manager, SHARE)
    for _ in range(NODES):
        fleet.start_one()
    torment(fleet)
    wait_until(lambda: not live_runs(manager) and fleet.all_have_started(), 120, fleet.logs)
    assert fleet.stop_all() == [0] * NODES, fleet.logs()
    check_limits(manager, fleet.folder, SHARE)
    manager.sync.close()


def torment(fleet: LimitedFleet) -> None:
    chance = random.Random(11)
    for _ in range(KILLS):
        time.sleep(chance.uniform(1.0, 2.5))  # the rhythm of the torment, not a wait for something
        fleet.kill_one(chance)
        fleet.start_one()


@pytest.mark.long("storm")
@pytest.mark.timeout(0)
def test_five_nodes_on_postgresql_in_a_storm_never_pass_a_concurrency_nor_a_rate(tmp_path: Path) -> None:
    seconds = seconds_for(STORM_SECONDS)
    plan = plan_of(11, seconds, nodes=STORM_NODES, every=STORM_EVERY_SECONDS)
    # A job of a frozen node sits in its place while the ledger has long given it to others; no witness can tell that
    # from one too many. The clock of a node has no part in any limit.
    plan = [fault for fault in plan if fault.kind not in ("freeze", "clock jump")]
    with open_site(tmp_path, nodes=STORM_NODES, program=PROGRAM) as site:
        manager = Scheduler(site.url, concurrency=0)
        enqueue_all(manager)
        storm = Storm(site)
        storm.rage(plan, seconds)
        site.wait_for_all()
        wait_until(lambda: not live_runs(manager), 120, lambda: f"{site.logs()}\n{live_runs(manager)[:3]}")
        assert site.stop_all() == [0] * STORM_NODES, site.logs()
        assert len(storm.happened) == len(plan) >= min(15, seconds / 2)
        check_limits(manager, site.folder)
        manager.sync.close()
