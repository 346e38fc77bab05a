"""Mistakes end in an error that names the job, never in a hang."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from evertick import InvalidWhen, Scheduler
from evertick.errors import Refused
from evertick.testing import TimeStandsStill, virtual_time
from evertick.testing.virtual import _check_loop


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler("sqlite:////no/such/directory/jobs.db")


async def test_a_job_that_spins_at_one_moment_is_named(scheduler: Scheduler) -> None:
    @scheduler.every("1h", key="spin")
    async def spinner() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(TimeStandsStill, match=r"at 2026-01-01T01:00:00Z, running: 'spinner': the event loop"):
        async with virtual_time(scheduler) as kit:
            await kit.advance("2h")


async def test_a_job_that_sets_endless_timers_for_one_moment_is_named(scheduler: Scheduler) -> None:
    @scheduler.every("1h", key="spin")
    async def spinner() -> None:
        while True:
            await asyncio.sleep(1e-9)

    with pytest.raises(TimeStandsStill, match="'spinner'"):
        async with virtual_time(scheduler) as kit:
            await kit.advance("2h")


async def test_a_spinning_job_that_ignores_its_cancel_is_abandoned(scheduler: Scheduler) -> None:
    tries = 0

    @scheduler.every("1h", key="spin")
    async def spinner() -> None:
        nonlocal tries
        while tries < 3:
            try:
                while True:
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                tries += 1

    with pytest.raises(TimeStandsStill, match="'spinner'"):
        async with virtual_time(scheduler) as kit:
            await kit.advance("2h")
    assert "time" not in vars(asyncio.get_running_loop())
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)


async def test_a_thread_that_does_not_return_is_named(scheduler: Scheduler) -> None:
    release = threading.Event()

    @scheduler.every("1h", key="stuck")
    def stuck() -> None:
        release.wait()

    try:
        with pytest.raises(TimeStandsStill, match=r"'stuck': a thread has not returned for 0.05 s of real time"):
            async with virtual_time(scheduler, thread_wait="50ms") as kit:
                await kit.advance("2h")
    finally:
        release.set()
    async with virtual_time(scheduler) as kit:
        await kit.advance("1h")
        kit.assert_succeeded("stuck", times=1)


async def test_a_sleep_in_the_test_itself_is_refused_with_the_fix(scheduler: Scheduler) -> None:
    async with virtual_time(scheduler) as kit:
        with pytest.raises(Refused, match=r"would never end: .* write `await kit.advance\(0.5\)`"):
            await asyncio.sleep(0.5)
        await asyncio.sleep(0)
        helper = asyncio.ensure_future(asyncio.sleep(5, "slept"))
        await kit.advance(5)
        assert helper.result() == "slept"


async def test_a_start_without_a_zone_is_refused(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidWhen, match=r"start: .* has no offset"):
        async with virtual_time(scheduler, start="2026-01-01T00:00:00"):
            pass


async def test_an_event_loop_without_accessible_timers_is_refused() -> None:
    class Loop:
        """Like uvloop's: no asyncio.BaseEventLoop."""

    with pytest.raises(Refused, match=r"asyncio's own event loops; this test runs on .*Loop.*uvloop"):
        _check_loop(Loop())


async def test_a_job_that_uses_a_real_server_gets_the_real_time_of_io_wait(scheduler: Scheduler) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    @scheduler.every("1h", key="echo", timeout="10s")
    async def echo() -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello\n")
        try:
            return (await reader.readline()).decode().strip()
        finally:
            writer.close()
            await writer.wait_closed()

    async with server, virtual_time(scheduler, io_wait="500ms") as kit:
        await kit.advance("3h")
        assert [run.result for run in kit.runs("echo")] == ["hello"] * 3
        assert {run.finished_at - run.fire_at for run in kit.runs("echo") if run.finished_at} == {timedelta(0)}
