"""A node is killed without warning while its shell jobs run: nothing of them is left, and all are run again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from evertick import Scheduler, Shell

PROGRAM = Path(__file__).parent / "shell_node.py"
LEASE_SECONDS = 4.5
# Not one of Evertick's own variables: those are not passed on to commands.
MARK = "MARK_OF_TEST"
RUNS = 3
# Of each run: its keeper, the command, two stubborn shells, and what the three of them wait for.
PROCESSES_OF_A_RUN = 7


class Site:
    """The nodes of a test, what they leave, and one who enqueues their runs and runs nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/jobs.db"
        self.nodes: list[tuple[subprocess.Popen[bytes], str]] = []
        self.manager = Scheduler(self.url, concurrency=0, drivers=["shell"])
        self.job = self.manager.job("stubborn", Shell("true"))

    def start_node(self) -> tuple[subprocess.Popen[bytes], str]:
        token = uuid4().hex
        log = self.folder / f"log-{len(self.nodes)}"
        with log.open("wb") as file:
            command = [sys.executable, str(PROGRAM), self.url, str(self.folder)]
            node = subprocess.Popen(command, env={**os.environ, MARK: token}, stdout=file, stderr=file)
        self.nodes.append((node, token))
        wait(lambda: "has started" in log.read_text(), 30, self.logs)
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
    site.manager.sync.close()


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


def test_the_commands_of_a_killed_node_are_gone_after_a_third_of_its_lease_and_their_runs_are_run_once_more(
    site: Site, record_property: Callable[[str, object], None]
) -> None:
    node, token = site.start_node()
    runs = [site.job.sync.enqueue().id for _ in range(RUNS)]
    wait(lambda: len(site.starts()) == RUNS, 30, site.logs)
    wait(lambda: len(marked(token)) >= 1 + PROCESSES_OF_A_RUN * RUNS, 30, lambda: marked(token))

    node.kill()
    node.wait()
    seconds = wait(lambda: not marked(token), LEASE_SECONDS / 3, lambda: f"still alive: {marked(token)}")
    record_property("commands_gone_seconds", round(seconds, 3))
    print(f"all commands gone {seconds:.3f} s after kill -9")

    (site.folder / "go").touch()
    second, second_token = site.start_node()
    wait(lambda: all(site.manager.sync.get_run(run).verdict for run in runs), 60, site.logs)
    for run in map(site.manager.sync.get_run, runs):
        assert (run.verdict, run.attempts, run.losses) == ("succeeded", 1, 1), run.error
    fences = {run: {fence for id_, fence, _ in site.starts() if id_ == run} for run in runs}
    assert all(len(each) == 2 for each in fences.values()), fences
    second.send_signal(signal.SIGTERM)
    assert second.wait(30) == 0, site.logs()
    assert marked(second_token) == {}


# Of the time between the first sight of a keeper and the beginning of its command.
SHARES = (0.0, 0.3, 0.6, 0.9, 1.5)
# A busy machine may be too slow to hit the moment that was meant; then it is tried again.
TRIES_MOST = 20


def test_a_node_killed_at_any_moment_of_a_commands_start_leaves_nothing_behind(
    site: Site, record_property: Callable[[str, object], None]
) -> None:
    """Before there is a keeper, while it starts, while it starts the command, and after that."""
    begin_seconds = 0.0

    def learn(began: Callable[[], object]) -> None:
        nonlocal begin_seconds
        begin_seconds = wait(began, 30, site.logs)

    hits = Counter([killed_at_once(site), killed_after_keeper(site, learn)])
    for share in SHARES:
        hits[killed_after_keeper(site, pause(share * begin_seconds))] += 1
    for _ in range(TRIES_MOST):
        if "keeper starts" not in hits:
            hits[killed_after_keeper(site, pause(0))] += 1
    record_property("moments_of_kills", dict(hits))
    print(f"a command begins {begin_seconds:.3f} s after its keeper is seen; killed: {dict(hits)}")
    assert hits["at once"]
    assert hits["keeper starts"], hits
    assert hits["command has begun"], hits


def pause(seconds: float) -> Callable[[Callable[[], object]], None]:
    """The moment of the kill, not a wait for something."""
    return lambda _: time.sleep(seconds)


def killed_at_once(site: Site) -> str:
    node, token = site.start_node()
    site.job.sync.enqueue()
    node.kill()
    node.wait()
    nothing_is_left(token)
    return "at once"


def killed_after_keeper(site: Site, until: Callable[[Callable[[], object]], None]) -> str:
    """Kill a node when there is a keeper, and it was so. Answers what was hit, as far as that is certain."""
    node, token = site.start_node()
    before = len(site.starts())

    def began() -> bool:
        return len(site.starts()) > before

    for _ in range(RUNS):
        site.job.sync.enqueue()
    wait(lambda: any("keeper.py" in command for command in marked(token).values()), 30, site.logs)
    until(began)
    had_begun = began()
    node.kill()
    node.wait()
    hit = "command has begun" if had_begun else "in between" if began() else "keeper starts"
    nothing_is_left(token)
    return hit


def nothing_is_left(token: str) -> None:
    wait(lambda: not marked(token), LEASE_SECONDS / 3, lambda: marked(token))
