"""`kill -9` around messages on PostgreSQL: what was caused arrives, again if need be under the same key; what was not
never does."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import preloaded
from evertick import MessageState, Run, Scheduler, State, Verdict

PROGRAM = Path(__file__).parent / "sending_node.py"
PATIENCE = 60
KILLS = 6
RUNS = KILLS * 24


class Arrived(NamedTuple):
    key: str
    id: str
    attempts: int


class Post:
    """The nodes, the database they share, and the witness outside of it."""

    def __init__(self, url: str, folder: Path) -> None:
        self.manager = Scheduler(url, concurrency=0)
        self._url = url
        self._folder = folder
        self.nodes: list[subprocess.Popen[str]] = []
        self._count = 0

    def start(self, point: str) -> subprocess.Popen[str]:
        self._count += 1
        with (self._folder / f"{self._count}.log").open("w") as log:
            command = [sys.executable, str(PROGRAM), self._url, str(self._folder / "witness"), point]
            node = preloaded.popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.nodes.append(node)
        return node

    def kill(self, node: subprocess.Popen[str]) -> None:
        node.kill()
        node.communicate()
        self.nodes.remove(node)

    def kill_at(self, point: str, times: int = 1) -> None:
        """Kill a node when it has said so many times that it is there."""
        node = self.start(point)
        assert node.stdout is not None
        assert [node.stdout.readline().strip() for _ in range(times)] == [point] * times, self.logs()
        self.kill(node)

    def at_work(self) -> list[subprocess.Popen[str]]:
        """Those that have a run at this moment. One that is still starting has none: its death would prove nothing."""
        names = {node.id: node.name for node in self.manager.sync.nodes()}
        working = {names[run.node] for run in self.manager.sync.runs(states=[State.RUNNING]) if run.node}
        return [node for node in self.nodes if f"sending-{node.pid}" in working]

    def enqueue(self, *tasks: str) -> list[Run]:
        return [self.manager.task(lambda: None, name=task).sync.enqueue() for task in tasks]

    def arrived(self) -> list[Arrived]:
        path = self._folder / "witness"
        lines = path.read_text().splitlines() if path.exists() else []
        return [Arrived(key, id_, int(attempts)) for key, id_, attempts in map(str.split, lines)]

    def until(self, what: Callable[[], bool], said: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not what():
            if time.monotonic() > deadline:
                pytest.fail(f"{said} did not come to be\n{self.logs()}")
            time.sleep(0.05)

    def is_settled(self) -> bool:
        """Whether every run has its verdict, and every message was sent or given up."""
        live = self.manager.sync.runs(states=[state for state in State if state is not State.DONE])
        return not live and not self.manager.sync.messages(states=["waiting", "sending"])

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("*.log")))[-20_000:]

    def close(self) -> None:
        for node in list(self.nodes):
            self.kill(node)
        self.manager.sync.close()


@pytest.fixture
def post(postgres_url: str, tmp_path: Path) -> Iterator[Post]:
    post = Post(postgres_url, tmp_path)
    yield post
    post.close()


def test_a_node_killed_after_a_delivery_and_before_settling_makes_it_arrive_again_with_the_same_key(
    post: Post,
) -> None:
    post.manager.sync.send("mail", "hello", key="greeting-1")
    post.kill_at("between")
    assert [(each.key, each.attempts) for each in post.arrived()] == [("greeting-1", 0)]
    post.start("nowhere")
    post.until(post.is_settled, "the end of the message")
    assert [(each.key, each.attempts) for each in post.arrived()] == [("greeting-1", 0), ("greeting-1", 1)]
    assert len({each.id for each in post.arrived()}) == 1
    [message] = post.manager.sync.messages()
    assert message.state is MessageState.SENT


def test_what_a_job_sends_never_arrives_if_its_node_is_killed_before_the_end_of_its_run(post: Post) -> None:
    [once, again] = post.enqueue("order_once", "order")
    post.kill_at("before", times=2)
    assert post.manager.sync.messages() == []
    post.start("nowhere")
    post.until(post.is_settled, "the end of the runs")
    verdicts = {run.id: run.verdict for run in post.manager.sync.runs()}
    assert verdicts == {once.id: Verdict.LOST, again.id: Verdict.SUCCEEDED}
    # The one that may run again has sent its message by its second try.
    assert [each.key for each in post.arrived()] == [again.id]


def test_every_run_that_succeeded_has_sent_its_message_and_no_other_has_though_nodes_are_killed(post: Post) -> None:
    chance = random.Random(5)
    tasks = [post.manager.task(lambda: None, name=name) for name in ("order", "order_once", "order_in_block")]
    for _ in range(3):
        post.start("storm")
    for _ in range(KILLS):
        before = len(post.arrived())
        for task in tasks:
            task.sync.enqueue_many([{}] * (RUNS // KILLS // len(tasks)))
        # In the middle of the work of this wave.
        post.until(lambda before=before: len(post.arrived()) > before, "the first message of a wave")  # type: ignore[misc]
        post.kill(chance.choice(post.at_work() or post.nodes))
        post.start("storm")
    post.until(post.is_settled, "the end of all runs and messages")
    runs = post.manager.sync.runs(limit=1_000)
    succeeded = {run.id for run in runs if run.verdict is Verdict.SUCCEEDED}
    arrived = post.arrived()
    assert len(runs) == RUNS
    assert {each.key for each in arrived} == succeeded
    assert {(message.key, message.state) for message in post.manager.sync.messages(limit=1_000)} == {
        (key, MessageState.SENT) for key in succeeded
    }
    again = len(arrived) - len(succeeded)
    lost = sum(run.losses > 0 for run in runs)
    print(f"{len(succeeded)} of {RUNS} succeeded, {lost} lost a claim, {again} deliveries came twice, {KILLS} kills")
    assert lost, "no kill has hit a running job: the test has proved nothing"
