"""The kit without an event loop in the test."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime

import pytest

from evertick import Context, Scheduler
from evertick.errors import WouldBlock
from evertick.testing import TimeStandsStill, virtual_time_sync


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler("sqlite:////no/such/directory/jobs.db")


def test_a_sync_test_moves_time_and_asserts(scheduler: Scheduler) -> None:
    @scheduler.cron("0 9 * * *", key="report")
    def report(ctx: Context) -> str:
        return f"{ctx.fire_at:%d}"

    with virtual_time_sync(scheduler, start="2026-01-05T00:00:00Z") as kit:
        kit.advance("3d")
        kit.assert_succeeded("report", times=3)
        assert [run.result for run in kit.runs("report")] == ["05", "06", "07"]
        kit.downtime("2d")
        kit.advance("1m")
        kit.assert_fired("report", times=4)
        kit.assert_skipped("report", reason="coalesced", times=1)
        kit.advance_to("2026-01-11T00:00:00Z")
        assert kit.now == datetime(2026, 1, 11, tzinfo=UTC)
        with pytest.raises(AssertionError, match="the ledger of 'report'"):
            kit.assert_not_fired("report")


def test_the_sync_forms_of_the_scheduler_work_in_a_sync_kit(scheduler: Scheduler) -> None:
    @scheduler.task
    async def greet(name: str) -> str:
        await asyncio.sleep(60)
        return f"hello {name}"

    with virtual_time_sync(scheduler) as kit:
        greet.sync.enqueue("you")
        kit.run_until_idle()
        assert [run.result for run in kit.runs(task="greet")] == ["hello you"]


def test_no_thread_is_left_and_the_scheduler_can_be_used_again(scheduler: Scheduler) -> None:
    @scheduler.every("1h", key="hourly")
    def hourly() -> None: ...

    for _ in range(2):
        with virtual_time_sync(scheduler) as kit:
            kit.advance("2h")
            kit.assert_fired("hourly", times=2)
    assert not [thread for thread in threading.enumerate() if "virtual" in thread.name]


def test_an_error_in_the_block_is_raised_and_closes_the_kit(scheduler: Scheduler) -> None:
    @scheduler.every("1h", key="spin")
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(TimeStandsStill, match="'spin'"), virtual_time_sync(scheduler) as kit:
        kit.advance("1d")
    assert not [thread for thread in threading.enumerate() if "virtual" in thread.name]


async def test_a_sync_kit_on_an_event_loop_is_refused_with_the_async_form(scheduler: Scheduler) -> None:
    with pytest.raises(WouldBlock, match="async with virtual_time"), virtual_time_sync(scheduler):
        pass
    assert not [thread for thread in threading.enumerate() if "virtual" in thread.name]
