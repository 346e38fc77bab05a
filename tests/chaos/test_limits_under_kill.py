"""Three real processes on one SQLite file never pass a limit, though they are killed without warning and started again.

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

from evertick import Scheduler, State, Verdict

NODES = 3
CHAOS_SECONDS = 15
PROGRAM = Path(__file__).parent / "limited_program.py"
PRESSED, BOUND, MAILED = 250, 150, 60
# As the program has them.
RATE_MOST, RATE_SECONDS = 6, 2.0


class LimitedFleet(Fleet):
    """The processes, and what their jobs have seen."""

    program = PROGRAM

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder}/limits.db"

    def arguments(self, number: int) -> list[str]:
        return [self.url, str(self.folder)]

    def testimony(self, *what: str) -> list[list[str]]:
        lines = (self.folder / "testimony").read_text().splitlines()
        return [line.split() for line in lines if line.split()[0] in what]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[LimitedFleet]:
    fleet = LimitedFleet(tmp_path)
    yield fleet
    fleet.close()


def test_three_processes_killed_at_random_never_pass_a_concurrency_nor_a_rate(fleet: LimitedFleet) -> None:
    manager = Scheduler(fleet.url, concurrency=0)
    enqueue_all(manager)
    for _ in range(NODES):
        fleet.start_one()
    kills = torment(fleet)
    wait_until_all_have_ended(manager, fleet)
    assert fleet.stop_all() == [0] * NODES, fleet.logs()

    assert kills >= 4
    assert fleet.testimony("full") == [], "a job found more at work than may be at once"
    # By the loss of its node, and three times over, a run may be given up; none is forgotten.
    runs = manager.sync.runs(limit=10_000)
    assert len(runs) == PRESSED + BOUND + MAILED
    assert {run.verdict for run in runs} <= {Verdict.SUCCEEDED, Verdict.LOST}
    succeeded = {run.id for run in runs if run.verdict is Verdict.SUCCEEDED}
    assert succeeded <= {run for _, _, _, run, _ in fleet.testimony("placed", "mailed")}
    check_rate(fleet)
    manager.sync.close()


def enqueue_all(manager: Scheduler) -> None:
    def made(name: str, count: int) -> None:
        manager.task(name=name)(lambda: None).sync.enqueue_many({} for _ in range(count))

    made("press", PRESSED)
    made("bind", BOUND)
    made("mail", MAILED)


def torment(fleet: LimitedFleet) -> int:
    chance, kills, until = random.Random(11), 0, time.monotonic() + CHAOS_SECONDS
    while time.monotonic() < until:
        time.sleep(chance.uniform(1.0, 2.5))  # the rhythm of the torment, not a wait for something
        fleet.kill_one(chance)
        fleet.start_one()
        kills += 1
    return kills


def wait_until_all_have_ended(manager: Scheduler, fleet: LimitedFleet) -> None:
    live = [state for state in State if state is not State.DONE]
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        left = manager.sync.runs(states=live, limit=1000)
        if not left and fleet.all_have_started():
            return
        time.sleep(0.2)
    pytest.fail(f"{len(left)} have not ended, the first: {left[-1]}\n{fleet.logs()}")


def check_rate(fleet: LimitedFleet) -> None:
    """No stretch of a period has more starts than may be, give or take how long a start comes after its claim."""
    mailed = fleet.testimony("mailed")
    starts = sorted(float(at) for _, at, _, _, _ in mailed)
    late = max(float(ago) for _, _, ago, _, _ in mailed)
    assert len(starts) >= MAILED
    for first, last in zip(starts, starts[RATE_MOST:], strict=False):
        assert last - first >= RATE_SECONDS - late, f"{RATE_MOST + 1} starts in {last - first:.3f} s"
    # Strict by the claims themselves: what the job was told of them, not what the ledger says.
    claims = sorted(float(at) - float(ago) for _, at, ago, _, _ in mailed)
    for first, last in zip(claims, claims[RATE_MOST:], strict=False):
        assert last - first >= RATE_SECONDS - 0.01, f"{RATE_MOST + 1} claims in {last - first:.3f} s"
