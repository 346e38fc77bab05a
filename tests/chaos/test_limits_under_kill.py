"""Three real processes on one SQLite file never pass a limit, though they are killed without warning and started again.

The witnesses are outside of the database: files under an exclusive lock, and one file that all starts are appended to.
What a killed process did is over with it, while the ledger counts it as running until it is re-homed: so the witnesses
can be strict.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from evertick import Scheduler, State, Verdict

NODES = 3
CHAOS_SECONDS = 15
PROGRAM = Path(__file__).parent / "limited_program.py"
PRESSED, BOUND, MAILED = 250, 150, 60
# As the program has them.
RATE_MOST, RATE_SECONDS = 6, 2.0


class Fleet:
    """The processes, and what their jobs have seen."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/limits.db"
        self._folder = folder
        self._started = 0
        self.nodes: list[subprocess.Popen[bytes]] = []
        self._logs: dict[int, Path] = {}

    def start_one(self) -> None:
        self._started += 1
        with (self._folder / f"log-{self._started}").open("wb") as log:
            command = [sys.executable, str(PROGRAM), self.url, str(self._folder)]
            node = subprocess.Popen(command, stdout=log, stderr=log)
        self.nodes.append(node)
        self._logs[node.pid] = Path(log.name)

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

    def close(self) -> None:
        for node in self.nodes:
            node.kill()
            node.wait()

    def testimony(self, *what: str) -> list[list[str]]:
        lines = (self._folder / "testimony").read_text().splitlines()
        return [line.split() for line in lines if line.split()[0] in what]

    def log(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in self._folder.glob("log-*"))[-20_000:]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path)
    yield fleet
    fleet.close()


def test_three_processes_killed_at_random_never_pass_a_concurrency_nor_a_rate(fleet: Fleet) -> None:
    manager = Scheduler(fleet.url, concurrency=0)
    enqueue_all(manager)
    for _ in range(NODES):
        fleet.start_one()
    kills = torment(fleet)
    wait_until_all_have_ended(manager, fleet)
    assert fleet.stop_all() == [0] * NODES, fleet.log()

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


def torment(fleet: Fleet) -> int:
    chance, kills, until = random.Random(11), 0, time.monotonic() + CHAOS_SECONDS
    while time.monotonic() < until:
        time.sleep(chance.uniform(1.0, 2.5))  # the rhythm of the torment, not a wait for something
        fleet.kill_one(chance)
        fleet.start_one()
        kills += 1
    return kills


def wait_until_all_have_ended(manager: Scheduler, fleet: Fleet) -> None:
    live = [state for state in State if state is not State.DONE]
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        left = manager.sync.runs(states=live, limit=1000)
        if not left and fleet.all_have_started():
            return
        time.sleep(0.2)
    pytest.fail(f"{len(left)} have not ended, the first: {left[-1]}\n{fleet.log()}")


def check_rate(fleet: Fleet) -> None:
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
