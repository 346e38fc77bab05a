"""Filling slots: a herd starts at once, nothing waits while a slot is free, nothing jumps the queue."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from evertick import Context, Cron, Once, Scheduler
from evertick.testing import virtual_time

START = "2026-03-02T00:00:00+00:00"


@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
async def test_a_thousand_schedules_due_at_one_instant_all_start_and_none_is_dropped(
    tmp_path: Path, is_plain: bool
) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path}/herd.db")
    ended = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()

    async def job(n: int) -> None: ...

    def plain_job(n: int) -> None: ...

    task = scheduler.task(name="job")(plain_job if is_plain else job)
    scheduler.on("succeeded", lambda event: loop.call_soon_threadsafe(ended.release))
    instant = datetime.now(UTC) + timedelta(seconds=2)
    await scheduler.add_many(
        [{"key": f"s{n}", "when": Once(instant), "task": task, "args": {"n": n}} for n in range(1000)]
    )
    async with scheduler, asyncio.timeout(60):
        for _ in range(1000):
            await ended.acquire()
        runs = await scheduler.runs(limit=2000)
        assert await scheduler.gaps() == []
    assert len({run.args["n"] for run in runs}) == len(runs) == 1000
    starts = sorted(run.started_at for run in runs if run.started_at is not None)
    print(f"first start {starts[0] - instant}, last {starts[-1] - instant} after the instant")
    # Far below any poll: no run waited for anything but its slot.
    assert starts[-1] - starts[0] < timedelta(seconds=10)


async def test_a_slot_that_comes_free_is_filled_at_once() -> None:
    scheduler = Scheduler("sqlite://", concurrency=1)
    for name in ("one", "two", "three"):

        async def job() -> None:
            await asyncio.sleep(60)

        scheduler.cron("0 1 * * *", key=name, name=name)(job)
    async with virtual_time(scheduler, start=START) as kit:
        await kit.advance("2h")
        starts = sorted(run.started_at for key in ("one", "two", "three") for run in kit.runs(key) if run.started_at)
    one = datetime(2026, 3, 2, 1, tzinfo=UTC)
    assert starts == [one, one + timedelta(minutes=1), one + timedelta(minutes=2)]


async def test_a_fire_that_finds_work_waiting_does_not_jump_the_queue() -> None:
    scheduler = Scheduler("sqlite://", concurrency=1)
    order: list[str] = []

    @scheduler.every("1m", priority=-5)
    async def busy() -> None:
        order.append("busy")
        await asyncio.sleep(60)

    @scheduler.task
    async def urgent() -> None:
        order.append("urgent")

    async with virtual_time(scheduler, start=START) as kit:
        await kit.advance("90s")
        await urgent.options(priority=100).enqueue()
        await kit.advance("5m")
    assert order.index("urgent") == 1


async def test_a_plain_job_that_sees_that_it_was_cancelled_and_returns_counts_as_cancelled(tmp_path: Path) -> None:
    run = await stopped_while_running(tmp_path, how="cancel")
    assert (run.state, run.verdict, run.reason) == ("done", "cancelled", "requested")


async def test_a_plain_job_that_sees_that_its_time_is_up_and_returns_counts_as_timed_out(tmp_path: Path) -> None:
    run = await stopped_while_running(tmp_path, how="timeout")
    assert (run.state, run.verdict, run.reason) == ("done", "failed", "timeout")


async def test_a_plain_job_that_sees_the_shutdown_and_returns_is_released_to_run_again(tmp_path: Path) -> None:
    run = await stopped_while_running(tmp_path, how="stop")
    assert (run.state, run.verdict, run.attempts) == ("waiting", None, 0)


async def stopped_while_running(tmp_path: Path, *, how: str):  # type: ignore[no-untyped-def]
    url = f"sqlite:///{tmp_path}/jobs.db"
    scheduler = Scheduler(url, stop_timeout="100ms")
    loop = asyncio.get_running_loop()
    started, ended = asyncio.Event(), asyncio.Event()

    @scheduler.task(timeout="300ms" if how == "timeout" else None)
    def pages(ctx: Context) -> str:
        loop.call_soon_threadsafe(started.set)
        while not ctx.cancelled:
            pass
        return "stopped in the middle"

    for kind in ("cancelled", "failed", "succeeded"):
        scheduler.on(kind, lambda event: loop.call_soon_threadsafe(ended.set))  # type: ignore[arg-type]
    async with scheduler:
        run = await pages.enqueue()
        await asyncio.wait_for(started.wait(), 10)
        if how == "cancel":
            await scheduler.cancel(run)
        if how != "stop":
            await asyncio.wait_for(ended.wait(), 20)
    reader = Scheduler(url, concurrency=0)
    found = await reader.get_run(run.id)
    await reader.close()
    return found


async def test_a_coroutine_that_finishes_what_it_began_although_cancelled_has_succeeded() -> None:
    scheduler = Scheduler("sqlite://")

    @scheduler.task
    async def stubborn() -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(1)
        return "all the same"

    async with virtual_time(scheduler, start=START) as kit:
        run = await stubborn.enqueue()
        await kit.advance("1m")
        await scheduler.cancel(run)
        await kit.advance("1m")
        ended = await scheduler.get_run(run.id)
    assert (ended.verdict, ended.result) == ("succeeded", "all the same")


async def test_a_rule_with_a_calendar_and_a_limit_is_explained_whole() -> None:
    when = Cron("0 9 * * *", max_fires=1, calendar="business")
    assert when.explain().endswith("only when calendar 'business' is open, at most 1 time")


async def test_slots_taken_while_a_claim_waits_its_turn_are_not_claimed_for() -> None:
    scheduler = Scheduler("sqlite://", concurrency=1)

    @scheduler.task
    async def job() -> None: ...

    async with virtual_time(scheduler, start=START) as kit:
        assert scheduler.runtime.engine is not None
        node = scheduler.runtime.engine._node
        async with node.claiming:
            run = await job.enqueue()
            await kit.advance("1s")
            node.hold.capacity = 0  # what a fused claim does to the slots while it holds the lock
        await kit.advance("1s")
        assert (await scheduler.get_run(run.id)).state == "waiting"
        node.hold.capacity = 1
        scheduler.runtime.engine.wake_runs()
        await kit.advance("1s")
        assert (await scheduler.get_run(run.id)).verdict == "succeeded"


async def test_a_node_never_runs_more_at_once_than_its_concurrency(tmp_path: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path}/jobs.db", concurrency=3)
    now_running, most, ended = 0, 0, asyncio.Semaphore(0)

    async def work() -> None:
        nonlocal now_running, most
        now_running += 1
        most = max(most, now_running)
        await asyncio.sleep(0.002)
        now_running -= 1
        ended.release()

    by_hand = scheduler.task(name="by_hand")(work)
    for number in range(20):
        scheduler.every("50ms", key=f"s{number}", name=f"s{number}", overlap="allow")(work)
    async with scheduler, asyncio.timeout(60):
        for _ in range(100):
            await by_hand.enqueue()
            await ended.acquire()
        for _ in range(200):
            await ended.acquire()
    assert 1 <= most <= 3
