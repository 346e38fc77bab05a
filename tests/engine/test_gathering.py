"""Under load slots and outcomes wait a moment for each other; a single one waits for nothing."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from evertick import Event, Scheduler
from evertick.driver.base import Work
from evertick.driver.python.function import FunctionDriver, Threads
from evertick.engine import loops
from evertick.engine.finish import Finisher
from evertick.engine.loop import Loop
from evertick.engine.node import GATHER_SECONDS, LocalNode
from evertick.engine.progress import ProgressWriter
from evertick.engine.work import Worker
from evertick.model import Claimed
from evertick.model.hooks import Hooks
from evertick.store.base import Claim, Finished
from simulation.clock import TrueClock
from simulation.loop import VirtualLoop

STORE_SECONDS = 0.001


class Queue:
    """Of a store that takes a millisecond for everything: when it was asked, and for how many."""

    def __init__(self, loop: VirtualLoop, waiting: int) -> None:
        self._loop = loop
        self._waiting = waiting
        self._count = 0
        self.claims: list[tuple[float, int]] = []
        self.writes: list[tuple[float, int]] = []

    async def claim(self, app: str, node: str, queues: object, tasks: object, limit: int) -> Claim:
        began, count = self._loop.time(), min(limit, self._waiting)
        self._waiting -= count
        self._count += 1
        await asyncio.sleep(STORE_SECONDS)
        if count:
            self.claims.append((began, count))
        runs = [
            Claimed(
                id=f"{self._count}.{number}", fence=1, task="job", args=b"{}", fire_at=0, due_at=number, claimed_at=0
            )
            for number in range(count)
        ]
        return Claim(now=0, fence=1, runs=runs, expired=[], next_due_at=None)

    async def finish(self, app: str, node: str, outcomes: list[Any]) -> Finished:
        self.writes.append((self._loop.time(), len(outcomes)))
        await asyncio.sleep(STORE_SECONDS)
        return Finished(answers=["done"] * len(outcomes), freed=False)


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop("gathering")
    yield loop
    loop.end()


async def work(loop: VirtualLoop, queue: Queue, slots: int, pause: float) -> None:
    """Let a node work on the queue for a second. Its jobs end one by one, a `pause` after each other."""
    ended = loop.time()

    async def job() -> None:
        nonlocal ended
        ended = max(ended, loop.time()) + pause
        await asyncio.sleep(ended - loop.time())

    node = LocalNode(
        name="node",
        app="app",
        version="1",
        store=queue,  # type: ignore[arg-type]
        clock=TrueClock(loop, "gathering"),
        works={"job": Work(task="job", driver=FunctionDriver(job, "job", Threads()), hash="")},
        queues=["default"],
        concurrency=slots,
        lease=15_000_000,
        hooks=Hooks(Threads().call),
        declares={},
    )
    node.trusted_until = 1e9
    notes = ProgressWriter(node, 1.0)
    finisher = Finisher(node, notes)
    worker = Worker(node, finisher, notes)
    claiming = Loop(loops.WORK, worker.step, node.clock, rest_most=15.0)
    writing = Loop(loops.FINISH, finisher.step, node.clock, rest_most=15.0)
    worker.on_slot_free, finisher.on_outcome = claiming.wake, writing.wake
    tasks = [asyncio.create_task(each.run()) for each in (claiming, writing)]
    await asyncio.sleep(1.0)
    for task in tasks:
        task.cancel()


def test_slots_that_come_free_one_by_one_share_a_claim_while_more_is_waiting(loop: VirtualLoop) -> None:
    queue = Queue(loop, waiting=10_000)
    loop.run_until_complete(work(loop, queue, slots=80, pause=0.0004))
    later = queue.claims[1:]
    # Ten of eighty slots are worth a claim; they are free after four milliseconds, less than a slot would wait alone.
    assert {count for _, count in later} <= {10, 11, 12, 13}
    assert all(after[0] - before[0] < 0.007 for before, after in itertools.pairwise(later))


def test_a_slot_waits_for_others_no_longer_than_a_moment(loop: VirtualLoop) -> None:
    queue = Queue(loop, waiting=10_000)
    loop.run_until_complete(work(loop, queue, slots=800, pause=0.002))
    later = queue.claims[1:]
    assert 100 < len(later) < 200
    assert all(
        after[0] - before[0] <= 0.002 + GATHER_SECONDS + STORE_SECONDS + 1e-9
        for before, after in itertools.pairwise(later)
    )


def test_a_node_with_few_slots_fills_each_at_once(loop: VirtualLoop) -> None:
    queue = Queue(loop, waiting=10_000)
    loop.run_until_complete(work(loop, queue, slots=8, pause=0.01))
    later = queue.claims[1:]
    assert {count for _, count in later} == {1}
    assert len(later) > 95


def test_the_outcome_of_a_run_that_ends_alone_is_written_at_once(loop: VirtualLoop) -> None:
    queue = Queue(loop, waiting=20)
    loop.run_until_complete(work(loop, queue, slots=100, pause=0.01))
    assert [count for _, count in queue.writes] == [1] * 20
    began = queue.claims[0][0] + STORE_SECONDS
    assert [round(at - began, 6) for at, _ in queue.writes] == [round(0.01 * number, 6) for number in range(1, 21)]


def test_outcomes_that_come_while_others_are_written_gather_for_a_moment(loop: VirtualLoop) -> None:
    queue = Queue(loop, waiting=500)
    loop.run_until_complete(work(loop, queue, slots=1_000, pause=0.0005))
    assert sum(count for _, count in queue.writes) == 500
    assert queue.writes[0][1] == 1
    assert len(queue.writes) < 60
    assert max(count for _, count in queue.writes) <= 15


async def test_a_run_that_ends_at_once_is_followed_by_no_second_claim() -> None:
    scheduler = Scheduler("sqlite://", concurrency=50)
    has_looked, has_ended = asyncio.Event(), asyncio.Event()
    claims: list[int] = []
    store: Any = await scheduler.runtime.store()
    claim = store.claim

    async def counted(*args: Any) -> Claim:
        answer: Claim = await claim(*args)
        claims.append(len(answer.runs))
        has_looked.set()
        return answer

    store.claim = counted

    @scheduler.task
    async def job() -> None: ...

    @scheduler.on("succeeded")
    async def ended(event: Event) -> None:
        has_ended.set()

    async with asyncio.timeout(60), scheduler:
        await has_looked.wait()
        await job.enqueue()
        await has_ended.wait()
    assert claims == [0, 1]
