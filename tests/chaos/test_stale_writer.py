"""A node that was frozen for longer than its lease goes on where it was; its fence tells it from its successor."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet import Fleet
from torment.site import wait_until
from torment.witness import Write, read_writes

from evertick import Scheduler, Verdict

PATIENCE = 60.0


class Writers(Fleet):
    program = Path(__file__).parent / "stubborn_writer_program.py"

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder)
        self.url = url

    def arguments(self, number: int) -> list[str]:
        return [self.url, str(self.folder)]

    def writes_of(self, pid: int) -> list[Write]:
        return [write for write in read_writes(self.folder) if write.node == pid]


@pytest.fixture
def writers(tmp_path: Path, postgres_url: str) -> Iterator[Writers]:
    writers = Writers(tmp_path, postgres_url)
    yield writers
    writers.close()


@pytest.mark.timeout(180)
def test_what_a_thawed_node_writes_after_its_successor_is_refused_by_its_fence(writers: Writers) -> None:
    manager = Scheduler(writers.url, concurrency=0)
    run = manager.task(lambda: None, name="write").sync.enqueue()
    writers.start_one()
    [stale] = writers.nodes
    wait_until(lambda: bool(writers.writes_of(stale.pid)), PATIENCE, writers.logs)
    stale.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, stale.pid, os.WSTOPPED)
    before = len(writers.writes_of(stale.pid))
    writers.start_one()
    heir = writers.nodes[1]
    wait_until(lambda: bool(writers.writes_of(heir.pid)), PATIENCE, writers.logs)
    assert len(writers.writes_of(stale.pid)) == before, "it stands still"
    stale.send_signal(signal.SIGCONT)
    wait_until(lambda: len(writers.writes_of(stale.pid)) > before, PATIENCE, writers.logs)

    (writers.folder / "enough").touch()
    wait_until(lambda: manager.sync.get_run(run.id).verdict is not None, PATIENCE, writers.logs)
    ended = manager.sync.get_run(run.id)
    manager.sync.close()
    tries, successes = writers.writes_of(stale.pid), writers.writes_of(heir.pid)
    assert [write.is_accepted for write in tries[before:]] == [False], "it tried, once, and was refused"
    assert all(write.is_accepted for write in successes)
    assert (ended.verdict, ended.fence, ended.losses) == (Verdict.SUCCEEDED, successes[0].fence, 1)
    assert tries[0].fence < successes[0].fence
    assert writers.stop_all() == [0, 0]
