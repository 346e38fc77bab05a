"""A node whose runs end at once claims more than it has slots for, but no run waits for long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from evertick.driver.base import OnLost, Work
from evertick.driver.python.function import FunctionDriver, Threads
from evertick.engine import loops, work
from evertick.engine.finish import Finisher
from evertick.engine.judge import Stop
from evertick.engine.loop import Loop
from evertick.engine.node import Attempt, LocalNode
from evertick.engine.progress import ProgressWriter
from evertick.engine.work import Worker
from evertick.errors import StoreUnavailable
from evertick.job.context import Context
from evertick.model import Claimed, Outcome
from evertick.model.every_node import own_queue
from evertick.model.hooks import Hooks
from evertick.store.base import Claim, Finished
from simulation.clock import TrueClock
from simulation.loop import VirtualLoop

SLOTS = 20
STORE_SECONDS = 0.001


class Queue:
    """A store that takes a millisecond for everything, with a queue that has no end."""

    def __init__(self, name: str = "default") -> None:
        self.name = name
        self.wanted: list[int] = []
        self.too_old: list[str] = []
        self.outcomes: list[Outcome] = []

    async def claim(self, app: str, node: str, queues: object, tasks: object, limit: int) -> Claim:
        await asyncio.sleep(STORE_SECONDS)
        self.wanted.append(limit)
        names = [f"{len(self.wanted)}.{number}" for number in range(limit)]
        runs = [
            Claimed(id=id_, fence=1, task="job", args=b"{}", fire_at=0, due_at=0, claimed_at=0, queue=self.name)
            for id_ in names
        ]
        expired, self.too_old = self.too_old, []
        return Claim(now=0, fence=1, runs=runs, expired=expired, next_due_at=None)

    async def finish(self, app: str, node: str, outcomes: list[Outcome]) -> Finished:
        await asyncio.sleep(STORE_SECONDS)
        self.outcomes += outcomes
        return Finished(answers=["done"] * len(outcomes), freed=False)


class Station:
    """A node at work on the queue. Its jobs take no time, until the test makes them wait for ever."""

    def __init__(self, loop: VirtualLoop, on_lost: OnLost = "rerun", queue: str = "default") -> None:
        self.queue = Queue(queue)
        self.begun = 0
        self.ran: set[str] = set()
        self.at_work = self.most_at_work = 0
        self._may_end = asyncio.Event()
        self._may_end.set()
        driver = FunctionDriver(self._job, "job", Threads())
        self.node = LocalNode(
            name="node",
            app="app",
            version="1",
            store=self.queue,  # type: ignore[arg-type]
            clock=TrueClock(loop, "line"),
            works={"job": Work(task="job", driver=driver, hash="", on_lost=on_lost)},
            queues=["default"],
            concurrency=SLOTS,
            lease=15_000_000,
            hooks=Hooks(Threads().call),
            declares={},
        )
        self.node.trusted_until = 1e9
        notes = ProgressWriter(self.node, 1.0)
        finisher = Finisher(self.node, notes)
        self.worker = Worker(self.node, finisher, notes)
        claiming = Loop(loops.WORK, self.worker.step, self.node.clock, rest_most=15.0)
        writing = Loop(loops.FINISH, finisher.step, self.node.clock, rest_most=15.0)
        self.worker.on_slot_free, finisher.on_outcome = claiming.wake, writing.wake
        self._loops = (claiming, writing)

    async def _job(self, ctx: Context) -> None:
        self.begun += 1
        self.ran.add(ctx.run_id)
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        await asyncio.sleep(0)
        await self._may_end.wait()
        self.at_work -= 1

    async def work(self, seconds: float) -> None:
        self._tasks = [asyncio.create_task(each.run()) for each in self._loops]
        await asyncio.sleep(seconds)

    def hang(self) -> None:
        self._may_end.clear()

    def go_on(self) -> None:
        self._may_end.set()

    def in_line(self) -> list[Attempt]:
        return [attempt for attempt in self.node.hold if not attempt.has_slot and not attempt.is_over]

    def to_begin(self) -> list[Attempt]:
        """Those that have left the line, and are not at work yet, but for the one whose turn it is."""
        in_line = set(self.worker._queue._attempts)
        return [attempt for attempt in self.node.hold if attempt.task is None and attempt not in in_line][1:]

    async def until_full(self) -> list[Attempt]:
        """Jobs hang, all slots are taken, and others wait for one."""
        self.hang()
        await asyncio.sleep(0.01)
        assert self.at_work == SLOTS
        assert self.in_line()
        return self.in_line()

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop("line")
    yield loop
    loop.end()


def story(loop: VirtualLoop, act: Callable[[Station], Awaitable[None]], **options: Any) -> Station:
    """Let a node get into its stride, and then something happen."""

    async def tell() -> Station:
        station = Station(loop, **options)
        await station.work(0.02)
        await act(station)
        station.end()
        return station

    return loop.run_until_complete(tell())


async def nothing(station: Station) -> None: ...


def test_a_node_whose_runs_are_over_at_once_claims_ahead_and_keeps_to_its_slots(loop: VirtualLoop) -> None:
    station = story(loop, nothing)
    assert station.queue.wanted[0] == SLOTS, "who has ended nothing yet claims for its slots"
    assert max(station.queue.wanted) > 2 * SLOTS
    assert station.most_at_work == SLOTS


def test_what_may_start_once_only_is_never_claimed_ahead(loop: VirtualLoop) -> None:
    station = story(loop, nothing, on_lost="fail")
    assert max(station.queue.wanted) == SLOTS
    assert station.begun > 2 * SLOTS


def test_a_run_that_waits_too_long_for_a_slot_is_released(loop: VirtualLoop) -> None:
    async def hang(station: Station) -> None:
        waiting = {attempt.run.id for attempt in await station.until_full()}
        begun = station.begun
        await asyncio.sleep(0.3)
        assert {each.id for each in station.queue.outcomes if each.kind == "release"} == waiting
        assert station.begun == begun
        assert not station.in_line()

    story(loop, hang)


def test_a_run_for_this_node_alone_that_waits_too_long_for_a_slot_is_not_lost(loop: VirtualLoop) -> None:
    async def hang(station: Station) -> None:
        waiting = {attempt.run.id for attempt in await station.until_full()}
        await asyncio.sleep(0.3)
        given_back = [each for each in station.queue.outcomes if each.id in waiting]
        assert {(each.kind, each.reason) for each in given_back} == {("release", "no_slot")}
        assert {each.id for each in given_back} == waiting

    story(loop, hang, queue=own_queue("n1"))


def test_a_run_that_another_of_its_claim_stops_before_it_has_begun_never_begins(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From Python 3.12 on a job takes its first step while the others of its claim are still to begin."""
    stopped: list[str] = []

    async def stop_the_last_of_each_claim(station: Station) -> None:
        make = work._task_maker

        def stopping(loop: asyncio.AbstractEventLoop) -> Callable[..., asyncio.Task[None]]:
            begin = make(loop)

            def begin_and_stop(life: Any, *, name: str) -> asyncio.Task[None]:
                if not stopped and (others := station.to_begin()):
                    stopped.append(others[-1].run.id)
                    station.worker.stop(others[-1], Stop.REQUESTED)
                return begin(life, name=name)

            return begin_and_stop

        monkeypatch.setattr(work, "_task_maker", stopping)
        await asyncio.sleep(0.02)

    station = story(loop, stop_the_last_of_each_claim)
    assert len(stopped) == 1
    assert [each.verdict for each in station.queue.outcomes if each.id == stopped[0]] == ["cancelled"]
    assert stopped[0] not in station.ran


def test_a_run_that_waits_for_a_slot_begins_when_one_is_free(loop: VirtualLoop) -> None:
    async def hang_for_a_while(station: Station) -> None:
        waiting = {attempt.run.id for attempt in await station.until_full()}
        station.go_on()
        await asyncio.sleep(0.02)
        ended = {each.id for each in station.queue.outcomes if each.kind == "done"}
        assert waiting <= ended

    story(loop, hang_for_a_while)


def test_a_run_that_is_stopped_before_it_has_a_slot_never_starts(loop: VirtualLoop) -> None:
    async def stop_one(station: Station) -> None:
        first, *_ = await station.until_full()
        begun, others = station.begun, len(station.in_line()) - 1
        station.worker.stop(first, Stop.REQUESTED)
        assert first.is_over
        assert len(station.in_line()) == others
        await asyncio.sleep(0.01)
        assert [each.verdict for each in station.queue.outcomes if each.id == first.run.id] == ["cancelled"]
        assert station.begun == begun

    story(loop, stop_one)


def test_hooks_are_called_for_an_expired_run_though_the_first_try_fails(
    loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[list[str]] = []

    async def expire(station: Station) -> None:
        async def emit_ended(run_ids: list[str]) -> None:
            if run_ids:
                tries.append(list(run_ids))
                if len(tries) == 1:
                    raise StoreUnavailable("away for a moment")

        monkeypatch.setattr(station.node, "emit_ended", emit_ended)
        station.queue.too_old = ["old"]
        while len(tries) < 2:
            await asyncio.sleep(0.005)

    story(loop, expire)
    assert tries == [["old"], ["old"]]


def test_a_node_that_was_frozen_begins_nothing_that_waits_for_a_slot(
    loop: VirtualLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def freeze(station: Station) -> None:
        waiting = {attempt.run.id for attempt in await station.until_full()}
        begun = station.begun
        station.node.trusted_until = 0.0
        station.node.is_draining = True  # claims nothing more
        station.go_on()
        await asyncio.sleep(0.01)
        assert station.begun == begun
        # Not held any more: the next comparison with the store gives them back.
        assert not waiting & {attempt.run.id for attempt in station.node.hold}
        assert not waiting & {each.id for each in station.queue.outcomes}

    story(loop, freeze)
    assert "runs that waited for a slot not started" in caplog.text


def test_a_node_that_stops_releases_runs_that_wait_for_a_slot(
    loop: VirtualLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def drain(station: Station) -> None:
        waiting = {attempt.run.id for attempt in await station.until_full()}
        begun = station.begun
        station.node.is_draining = True
        station.go_on()
        await asyncio.sleep(0.01)
        assert {each.id for each in station.queue.outcomes if each.kind == "release"} == waiting
        assert station.begun == begun

    caplog.set_level("DEBUG", "evertick")
    story(loop, drain)
    # Nothing was cut off, so there is nothing to warn of: they were not even begun.
    told = [record for record in caplog.records if "released before it started" in record.getMessage()]
    assert told
    assert {record.levelname for record in told} == {"DEBUG"}
