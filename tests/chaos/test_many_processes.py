"""Eight real processes on one ledger, killed without warning and started again.

The witness is a file per process, outside the database. Afterwards every moment must have exactly one row in the
ledger, and no claim may have been started twice.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fleet import Fleet
from torment.site import wait_until

from evertick import Gap, Run, Scheduler, State, Verdict

NODES = 8
KILLS = 12
PROGRAM = Path(__file__).parent / "node_program.py"


class WatchedFleet(Fleet):
    """The node processes, and what they have witnessed."""

    program = PROGRAM

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder)
        self.url = url

    def arguments(self, number: int) -> list[str]:
        return [self.url, str(self.folder / f"witness-{number}")]

    def testimony(self) -> list[list[str]]:
        lines = [line for path in self.folder.glob("witness-*") for line in path.read_text().splitlines()]
        return [line.split() for line in lines]


# On PostgreSQL the storm kills processes and accounts for every moment, too (test_storm.py).
@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long("storm"))])
def fleet(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[WatchedFleet]:
    url = f"sqlite:///{tmp_path}/chaos.db"
    if request.param == "postgresql":
        url = f"{request.getfixturevalue('postgres_url')}&pool_size=3"
    fleet = WatchedFleet(tmp_path, url)
    yield fleet
    fleet.close()


def test_eight_processes_killed_at_random_leave_one_row_per_moment_and_start_no_claim_twice(
    fleet: WatchedFleet,
) -> None:
    chance = random.Random(7)
    for _ in range(NODES):
        fleet.start_one()
    # Or a slow machine would be killing nodes that have not come to work yet.
    wait_until(fleet.all_have_started, 60, fleet.logs)
    torment(fleet, chance)
    end = datetime.now(UTC).replace(microsecond=0)
    manager = Scheduler(fleet.url, concurrency=0)
    wait_until_settled(manager, end, fleet)
    assert fleet.stop_all() == [0] * len(fleet.nodes), fleet.logs()

    starts = Counter((run, fence) for what, _, _, run, fence in fleet.testimony() if what == "start")
    doubled = [claim for claim, count in starts.items() if count > 1]
    assert not doubled, f"claims that were started twice: {doubled}"
    for seconds in range(1, 12):
        check_ledger(manager, f"every-{seconds}", seconds, end)
    succeeded = {run.id for run in manager.sync.runs(verdicts=["succeeded"], limit=100_000)}
    ended = {run for what, _, _, run, _ in fleet.testimony() if what == "end"}
    assert succeeded <= ended, "a run counts as succeeded that nobody saw come to its end"
    manager.sync.close()


def torment(fleet: WatchedFleet, chance: random.Random) -> None:
    """Kill a random node every so often, and start another in its place."""
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.3, 1.8))  # the rhythm of the torment, not a wait for something
        fleet.kill_one(chance)
        fleet.start_one()


def wait_until_settled(manager: Scheduler, end: datetime, fleet: WatchedFleet) -> None:
    """Until every run of the time before `end` has its verdict, and the last node started has joined."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        live = [s for s in State if s is not State.DONE]
        unsettled = [run for run in manager.sync.runs(states=live, limit=1000) if run.fire_at <= end]
        behind = [s.key for s in manager.sync.schedules() if s.next_fire_at is None or s.next_fire_at <= end]
        if not unsettled and not behind and fleet.all_have_started():
            return
        time.sleep(0.2)
    pytest.fail(f"still unsettled: {unsettled}, behind: {behind}\n{fleet.logs()}")


def check_ledger(manager: Scheduler, key: str, seconds: int, end: datetime) -> None:
    rows = [row for row in manager.sync.history(key, limit=100_000) if last_moment(row) <= end]
    created = manager.sync.schedule(key).created_at
    covered: Counter[datetime] = Counter()
    for row in rows:
        covered.update(moments(row, seconds))
    first = datetime.fromtimestamp((created.timestamp() // seconds + 1) * seconds, UTC)
    expected = set()
    while first <= end:
        expected.add(first)
        first += timedelta(seconds=seconds)
    last = max(expected)
    assert expected - set(covered) == set(), f"{key}: moments without a row"
    assert {moment for moment in covered if moment <= last} <= expected, f"{key}: rows of moments that are none"
    assert [moment for moment, count in covered.items() if count > 1] == [], f"{key}: moments with two rows"
    verdicts = {row.verdict for row in rows}
    assert verdicts <= {Verdict.SUCCEEDED, Verdict.SKIPPED, Verdict.LOST}, verdicts


def last_moment(row: Run | Gap) -> datetime:
    return row.fire_at if isinstance(row, Run) else row.last_at


def moments(row: Run | Gap, seconds: int) -> list[datetime]:
    if isinstance(row, Run):
        return [row.fire_at]
    return [row.first_at + timedelta(seconds=seconds * number) for number in range(row.count)]
