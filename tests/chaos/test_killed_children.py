"""A node is killed without warning while its tasks run in children: nothing of them is left, and all is run again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from evertick import Run, Scheduler

PROGRAM = Path(__file__).parent / "process_node.py"
LEASE_SECONDS = 4.5
MARK = "EVERTICK_TEST_MARK"
RUNS = (("cold", "a"), ("cold", "b"), ("warm", "c"))


class Site:
    """The nodes of a test, and what they leave."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/jobs.db"
        self.nodes: list[tuple[subprocess.Popen[bytes], str]] = []

    def start_node(self) -> tuple[subprocess.Popen[bytes], str]:
        token = uuid4().hex
        with (self.folder / f"log-{len(self.nodes)}").open("wb") as log:
            command = [sys.executable, str(PROGRAM), self.url, str(self.folder)]
            node = subprocess.Popen(command, env={**os.environ, MARK: token}, stdout=log, stderr=log)
        self.nodes.append((node, token))
        return node, token

    def starts(self) -> list[list[str]]:
        witness = self.folder / "witness"
        return [line.split() for line in witness.read_text().splitlines()] if witness.exists() else []

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in self.folder.glob("log-*"))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    for node, _ in site.nodes:
        node.kill()
        node.wait()


class Manager:
    """Enqueues what the nodes run, and runs nothing itself."""

    def __init__(self, url: str) -> None:
        self.scheduler = Scheduler(url, concurrency=0)

        def work(name: str) -> None: ...

        self._tasks = {kind: self.scheduler.task(name=kind)(work) for kind in ("cold", "warm")}

    def enqueue_all(self) -> list[str]:
        return [self._tasks[kind].sync.enqueue(name=name).id for kind, name in RUNS]

    def get_run(self, run_id: str) -> Run:
        return self.scheduler.sync.get_run(run_id)


def marked(token: str) -> dict[int, str]:
    """The processes that carry the mark in their environment, whatever group, session or parent they have."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"{MARK}={token}".encode() in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found[int(name)] = Path(f"/proc/{name}/cmdline").read_text(errors="replace").replace("\0", " ")
        except OSError:  # it has ended, or is another user's
            continue
    return found


def wait(is_so: Callable[[], object], seconds: float, what: Callable[[], object]) -> float:
    """How long it took until it was so."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < seconds, what()
        time.sleep(0.005)
    return time.monotonic() - began


def test_the_children_of_a_killed_node_are_gone_after_a_third_of_its_lease_and_their_runs_are_run_once_more(
    site: Site, record_property: Callable[[str, object], None]
) -> None:
    manager = Manager(site.url)
    node, token = site.start_node()
    wait(lambda: "has started" in site.logs(), 30, site.logs)
    runs = manager.enqueue_all()
    wait(lambda: len(site.starts()) == len(RUNS), 30, site.logs)
    # The node; for each run keeper, child, two shells and what they run; an idle child and its keeper.
    wait(lambda: len(marked(token)) >= 1 + 6 * len(RUNS) + 2, 30, lambda: marked(token))

    node.kill()
    node.wait()
    seconds = wait(lambda: not marked(token), LEASE_SECONDS / 3, lambda: f"still alive: {marked(token)}")
    record_property("children_gone_seconds", round(seconds, 3))
    print(f"all children gone {seconds:.3f} s after kill -9")

    second, second_token = site.start_node()
    wait(lambda: len(site.starts()) == 2 * len(RUNS), 60, site.logs)
    (site.folder / "go").touch()
    wait(lambda: all(manager.get_run(run).verdict for run in runs), 30, site.logs)
    for run in map(manager.get_run, runs):
        assert (run.verdict, run.attempts, run.losses) == ("succeeded", 1, 1)
    fences: dict[str, set[str]] = {}
    for name, fence, _ in site.starts():
        fences.setdefault(name, set()).add(fence)
    assert {name: len(each) for name, each in fences.items()} == {name: 2 for _, name in RUNS}
    second.send_signal(signal.SIGTERM)
    assert second.wait(30) == 0, site.logs()
    assert marked(second_token) == {}
    manager.scheduler.sync.close()


def test_a_node_killed_at_any_moment_of_a_childs_start_leaves_nothing_behind(site: Site) -> None:
    chance = random.Random(11)
    manager = Manager(site.url)
    for _ in range(4):
        node, token = site.start_node()
        log = site.folder / f"log-{len(site.nodes) - 1}"
        wait(lambda log=log: "has started" in log.read_text(), 30, site.logs)  # type: ignore[misc]
        manager.enqueue_all()
        time.sleep(chance.uniform(0.0, 0.6))  # the moment of the kill, not a wait for something
        node.kill()
        node.wait()
        wait(lambda token=token: not marked(token), LEASE_SECONDS / 3, lambda token=token: marked(token))  # type: ignore[misc]
        assert marked(token) == {}
    manager.scheduler.sync.close()
