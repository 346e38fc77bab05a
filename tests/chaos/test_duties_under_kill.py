"""Three real processes and their duties: the holder is killed, stopped, frozen. Files outside the database testify."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from fleet import Fleet

NODES = 3
LEASE_SECONDS, BEAT_SECONDS = 3.0, 0.6
LONG_LEASE_SECONDS = 30.0
# What a machine that is busy with other tests may add to anything.
MARGIN_SECONDS = 10.0
PATIENCE = 60.0
# Nodes judge nobody before one lease is over, which each of these tests waits for: so each kind of duty with one store.
SAME = pytest.mark.parametrize(("fleet", "duty"), [("sqlite", "follow"), ("postgresql", "tick")], indirect=["fleet"])
CROSSED = pytest.mark.parametrize(("fleet", "duty"), [("sqlite", "tick"), ("postgresql", "follow")], indirect=["fleet"])


class Act(NamedTuple):
    at: float
    duty: str
    term: int
    pid: int


class DutyFleet(Fleet):
    program = Path(__file__).parent / "duty_program.py"

    def __init__(self, folder: Path, url: str, lease_seconds: float) -> None:
        super().__init__(folder)
        self.url = url
        self._lease_seconds = lease_seconds

    def arguments(self, number: int) -> list[str]:
        return [self.url, str(self.folder / f"witness-{number}"), f"{self._lease_seconds}s"]

    def acts(self, duty: str) -> list[Act]:
        lines = [line for path in self.folder.glob("witness-*") for line in path.read_text().splitlines()]
        acts = [Act(float(at), name, int(term), int(pid)) for at, name, term, pid in map(str.split, lines)]
        return sorted(act for act in acts if act.duty == duty)

    def wait_for(self, is_so: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + PATIENCE
        while not is_so():
            assert time.monotonic() < until, f"{what} did not come\n{self.logs()}"
            time.sleep(0.02)

    def holder(self, duty: str) -> tuple[int, subprocess.Popen[bytes]]:
        """The term under which a living process acts, and that process."""
        self.wait_for(lambda: bool(self.acts(duty)), f"an act of {duty}")
        act = self.acts(duty)[-1]
        [node] = [node for node in self.nodes if node.pid == act.pid]
        return act.term, node

    def freeze(self, node: subprocess.Popen[bytes]) -> None:
        """Between two of its transactions: while it stands still in one on SQLite, nobody can write at all."""
        os.kill(node.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, node.pid, os.WSTOPPED)
        while self._is_locked():
            os.kill(node.pid, signal.SIGCONT)
            time.sleep(0.01)
            os.kill(node.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, node.pid, os.WSTOPPED)

    def _is_locked(self) -> bool:
        if not self.url.startswith("sqlite"):
            return False
        # The others write for moments only.
        with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=1.0, isolation_level=None)) as db:
            try:
                db.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
            return False

    def first_act(self, duty: str, *, after_term: int) -> Act:
        self.wait_for(lambda: any(act.term > after_term for act in self.acts(duty)), f"a new holder of {duty}")
        return next(act for act in self.acts(duty) if act.term > after_term)


@pytest.fixture
def lease_seconds() -> float:
    return LEASE_SECONDS


@pytest.fixture
def fleet(tmp_path: Path, request: pytest.FixtureRequest, lease_seconds: float) -> Iterator[DutyFleet]:
    url = f"sqlite:///{tmp_path}/duty.db"
    if request.param == "postgresql":
        url = f"{request.getfixturevalue('postgres_url')}&pool_size=3"
    fleet = DutyFleet(tmp_path, url, lease_seconds)
    try:
        for _ in range(NODES):
            fleet.start_one()
        fleet.wait_for(fleet.all_have_started, "the start of all nodes")
        yield fleet
    finally:
        fleet.close()


def assert_terms_do_not_mix(acts: list[Act], *, late_most: int = 0) -> None:
    """Each term belongs to one process, and acts under it come before those under the next."""
    assert len({(act.term, act.pid) for act in acts}) == len({act.term for act in acts})
    begun = 0
    late = 0
    for act in acts:
        late += act.term < begun
        begun = max(begun, act.term)
    assert late <= late_most, f"{late} acts under a term that was over"


@SAME
def test_a_killed_holder_is_followed_within_the_lease_and_a_beat(
    fleet: DutyFleet, duty: str, record_property: Callable[[str, object], None]
) -> None:
    # Nodes judge nobody before one lease is over: what happens then is what is promised.
    began = time.monotonic()
    fleet.wait_for(lambda: time.monotonic() > began + LEASE_SECONDS + 2 * BEAT_SECONDS, "the end of the first lease")
    term, holder = fleet.holder(duty)
    killed_at = time.monotonic()
    holder.kill()
    holder.wait()
    fleet.nodes.remove(holder)
    seconds = fleet.first_act(duty, after_term=term).at - killed_at
    record_property("seconds", round(seconds, 2))
    print(f"{duty}: a new holder acted {seconds:.2f} s after the kill")
    assert seconds < LEASE_SECONDS + 2 * BEAT_SECONDS + MARGIN_SECONDS
    assert_terms_do_not_mix(fleet.acts(duty))


@CROSSED
@pytest.mark.parametrize("lease_seconds", [LONG_LEASE_SECONDS], ids=["long-lease"])
def test_a_stopped_holder_is_followed_at_once(
    fleet: DutyFleet, duty: str, record_property: Callable[[str, object], None]
) -> None:
    term, holder = fleet.holder(duty)
    stopped_at = time.monotonic()
    holder.send_signal(signal.SIGTERM)
    seconds = fleet.first_act(duty, after_term=term).at - stopped_at
    record_property("seconds", round(seconds, 2))
    print(f"{duty}: a new holder acted {seconds:.2f} s after SIGTERM")
    # Whoever waited for the lease would need much longer than this, and no machine is that busy.
    assert seconds < MARGIN_SECONDS
    assert holder.wait(PATIENCE) == 0
    fleet.nodes.remove(holder)
    assert_terms_do_not_mix(fleet.acts(duty))


@CROSSED
def test_a_frozen_holder_finds_its_term_over(fleet: DutyFleet, duty: str) -> None:
    began = time.monotonic()
    fleet.wait_for(lambda: time.monotonic() > began + LEASE_SECONDS + 2 * BEAT_SECONDS, "the end of the first lease")
    term, frozen = fleet.holder(duty)
    fleet.freeze(frozen)
    new = fleet.first_act(duty, after_term=term)
    assert new.pid != frozen.pid
    os.kill(frozen.pid, signal.SIGCONT)
    log = fleet._logs[frozen.pid]
    fleet.wait_for(lambda: "was declared dead" in log.read_text(), "the end of the frozen incarnation")
    # It may have been frozen between its look and its act: that one act comes late, and no other.
    assert_terms_do_not_mix(fleet.acts(duty), late_most=1)
    # The process lives on as another incarnation, and may take the duty again, under a new term.
    for node in [node for node in fleet.nodes if node.pid != frozen.pid]:
        node.send_signal(signal.SIGTERM)
        node.wait(PATIENCE)
    fleet.wait_for(lambda: fleet.acts(duty)[-1].pid == frozen.pid, "an act of the new incarnation")
    assert fleet.acts(duty)[-1].term > new.term
    assert_terms_do_not_mix([act for act in fleet.acts(duty) if act.term > term])
