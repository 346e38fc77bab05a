"""The kit restores the scheduler and the event loop."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from evertick import Scheduler
from evertick.errors import Refused
from evertick.testing import virtual_time


def make_scheduler(url: str = "sqlite:////no/such/directory/jobs.db") -> tuple[Scheduler, list[str]]:
    scheduler, done = Scheduler(url), list[str]()

    @scheduler.every("1h", key="hourly")
    async def hourly() -> None:
        done.append("hourly")

    @scheduler.task
    async def by_hand() -> None:
        done.append("by hand")

    return scheduler, done


async def test_each_test_begins_with_an_empty_ledger() -> None:
    scheduler, done = make_scheduler()
    for _ in range(2):
        async with virtual_time(scheduler) as kit:
            kit.assert_not_fired("hourly")
            await kit.advance("2h")
            kit.assert_fired("hourly", times=2)
    assert len(done) == 4


def test_one_scheduler_serves_several_event_loops() -> None:
    scheduler, done = make_scheduler()

    async def test() -> None:
        async with virtual_time(scheduler) as kit:
            await kit.advance("1h")

    asyncio.run(test())
    asyncio.run(test())
    assert len(done) == 2


async def test_the_file_of_the_user_is_never_touched(tmp_path: Path) -> None:
    scheduler, done = make_scheduler(f"sqlite:///{tmp_path}/jobs.db")
    async with virtual_time(scheduler) as kit:
        await kit.advance("2h")
    assert list(tmp_path.iterdir()) == []
    assert len(done) == 2


async def test_the_real_store_is_restored_afterwards(tmp_path: Path) -> None:
    scheduler, done = make_scheduler(f"sqlite:///{tmp_path}/jobs.db")
    task = scheduler.runtime.tasks["by_hand"]
    real = await task.enqueue()
    settings, parts = scheduler.settings, scheduler.runtime.parts
    async with virtual_time(scheduler) as kit:
        await task.enqueue()
        await kit.advance("1d")
        assert real.id not in {run.id for run in kit.runs()}
        assert done.count("by hand") == 1
    assert (scheduler.settings, scheduler.runtime.parts) == (settings, parts)
    assert [run.id for run in await scheduler.runs()] == [real.id]

    finished = asyncio.Event()
    scheduler.on("succeeded", lambda _: loop.call_soon_threadsafe(finished.set))
    loop = asyncio.get_running_loop()
    async with scheduler, asyncio.timeout(20):
        await finished.wait()
    assert done.count("by hand") == 2


async def test_a_failing_test_restores_everything_too() -> None:
    scheduler, _ = make_scheduler()
    parts, handlers = scheduler.runtime.parts, list(logging.getLogger().handlers)
    with pytest.raises(AssertionError, match="never"):
        async with virtual_time(scheduler) as kit:
            kit.assert_fired("hourly", times=1)
    assert scheduler.runtime.parts is parts
    assert logging.getLogger().handlers == handlers
    assert "time" not in vars(asyncio.get_running_loop())


async def test_a_running_job_is_cancelled_at_the_end() -> None:
    scheduler, ended = Scheduler("sqlite:////no/such/directory/jobs.db"), []

    @scheduler.every("1h", key="long")
    async def long() -> None:
        try:
            await asyncio.sleep(10**6)
        finally:
            ended.append("cut off")

    async with virtual_time(scheduler) as kit:
        await kit.advance("1h")
    assert ended == ["cut off"]


async def test_a_scheduler_that_has_started_is_refused() -> None:
    scheduler, _ = make_scheduler("sqlite://")
    async with scheduler:
        with pytest.raises(Refused, match="has already started"):
            async with virtual_time(scheduler):
                pass
        assert scheduler.is_healthy
    assert "time" not in vars(asyncio.get_running_loop())


async def test_one_kit_at_a_time_on_a_loop() -> None:
    scheduler, _ = make_scheduler()
    other, _ = make_scheduler()
    async with virtual_time(scheduler) as kit:
        with pytest.raises(Refused, match="one kit at a time"):
            async with virtual_time(other):
                pass
        await kit.advance("1h")
        kit.assert_fired("hourly", times=1)


async def test_older_timers_wait_and_new_timers_keep_their_distance() -> None:
    loop = asyncio.get_running_loop()
    happened: list[str] = []
    loop.call_later(0.01, happened.append, "before")
    scheduler, _ = make_scheduler()
    async with virtual_time(scheduler) as kit:
        begin = loop.time()
        loop.call_later(90, happened.append, "inside")
        after = loop.call_later(3600.5, happened.append, "left over")
        never = loop.call_later(7200, happened.append, "far")
        await kit.advance("1h")
        assert loop.time() - begin == pytest.approx(3600, abs=1e-6)
        assert happened == ["inside"]
    assert 0 < after.when() - loop.time() <= 0.5
    assert 3000 < never.when() - loop.time() <= 3600
    never.cancel()
    async with asyncio.timeout(20):
        while len(happened) < 3:
            await asyncio.sleep(0.005)
    assert sorted(happened[1:]) == ["before", "left over"]
