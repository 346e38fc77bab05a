"""A clock that steps, a store that stands still, a machine that sleeps: nothing runs twice, or is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from evertick import Context, Scheduler, State, Verdict
from evertick.clock import Clock
from evertick.engine.sweep import Pruner
from evertick.scheduler.scheduler import Parts
from evertick.store.base import Beat, Claim, TaskTerms
from evertick.store.sqlite import SqliteStore
from evertick.when.moment import DAY, HOUR


class SteppingClock(Clock):
    """The wall time is set, forth or back; nothing else passes."""

    def __init__(self) -> None:
        super().__init__()
        self.step_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.step_us


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await holds():
            await asyncio.sleep(0.02)


async def test_a_run_whose_timeout_is_over_by_a_step_of_the_clock_is_stopped_and_not_run_beside_itself(
    tmp_path: Path,
) -> None:
    """As after a sleep of the machine, which the timers of an event loop do not count."""
    clock, started = SteppingClock(), list[str]()
    scheduler = Scheduler(f"sqlite:///{tmp_path}/jobs.db", lease="3s")
    scheduler.runtime.parts = Parts(clock=clock, open_store=lambda url: SqliteStore(url, clock=clock))

    @scheduler.task(timeout="10m")
    async def job(ctx: Context) -> None:
        started.append(ctx.run_id)
        await asyncio.sleep(3600)

    async def is_done() -> bool:
        return (await scheduler.get_run(run.id)).state is State.DONE

    async def has_begun() -> bool:
        return bool(started)

    async with scheduler:
        run = await job.enqueue()
        await until(has_begun)
        clock.step_us += HOUR
        await until(is_done)
        ended = await scheduler.get_run(run.id)
    await scheduler.close()
    assert started == [run.id]
    assert (ended.verdict, ended.reason, ended.losses) == (Verdict.FAILED, "timeout", 0)


class HesitantStore(SqliteStore):
    """A claim that brings something is answered only when it may be."""

    def __init__(self, url: str) -> None:
        super().__init__(url, clock=Clock())
        self.has_claimed, self.may_answer = asyncio.Event(), asyncio.Event()

    async def claim(
        self, app: str, node: str, queues: Sequence[str], tasks: Mapping[str, TaskTerms], limit: int
    ) -> Claim:
        claim = await super().claim(app, node, queues, tasks, limit)
        if claim.runs:
            self.has_claimed.set()
            await self.may_answer.wait()
        return claim


async def test_runs_of_a_claim_answered_late_in_a_stop_are_released_without_a_loss(
    tmp_path: Path,
) -> None:
    stores, started = list[HesitantStore](), list[str]()
    url = f"sqlite:///{tmp_path}/jobs.db"

    def open_store(url: str) -> Any:
        stores.append(HesitantStore(url))
        return stores[-1]

    scheduler = Scheduler(url)
    scheduler.runtime.parts = Parts(clock=Clock(), open_store=open_store)

    @scheduler.task
    async def job(ctx: Context) -> None:
        started.append(ctx.run_id)

    await scheduler.__aenter__()
    run = await job.enqueue()
    engine = scheduler.runtime.engine
    assert engine is not None
    await stores[0].has_claimed.wait()
    stopping = asyncio.create_task(scheduler.__aexit__(None, None, None))
    async with asyncio.timeout(20):
        while not engine._node.is_closed:
            await asyncio.sleep(0.01)
        stores[0].may_answer.set()
        await stopping
    found = await scheduler.get_run(run.id)
    await scheduler.close()
    assert started == []
    assert (found.state, found.losses, found.attempts) == (State.WAITING, 0, 0)
    # An answer that arrives now is caused by the node's own leaving: no new incarnation.
    engine._on_beat(engine.node_id, Beat(now=0, is_alive=False, cancels=[]), 0.0)
    assert engine._rebirth is None


async def test_what_is_kept_is_counted_by_the_time_of_the_store() -> None:
    asked: list[int] = []

    async def prune(app: str, *, before: int, keep_per_schedule: int | None, limit: int) -> int:
        asked.append(before)
        return 0

    async def now() -> int:
        return 1000 * DAY

    ahead = SteppingClock()
    ahead.step_us = 365 * DAY
    node: Any = SimpleNamespace(app="shop", clock=ahead, store=SimpleNamespace(now=now, prune=prune))
    context: Any = SimpleNamespace(check=lambda: None)
    await Pruner(node, retention=90 * DAY, keep_per_schedule=None)._act(context)
    assert asked == [910 * DAY]
