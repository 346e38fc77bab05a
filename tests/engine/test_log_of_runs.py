"""Log lines about a run name it, in the text and in the fields of the record."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from evertick import Constant, Scheduler


def test_a_failure_is_logged_with_its_run_and_at_debug_every_start_and_end(caplog: pytest.LogCaptureFixture) -> None:
    scheduler, ended = Scheduler("sqlite://"), threading.Semaphore(0)

    @scheduler.task
    def succeed() -> None: ...

    @scheduler.task
    def fail() -> None:
        raise ValueError("no paper")

    for kind in ("succeeded", "failed"):
        scheduler.on(kind, lambda event: ended.release())
    caplog.set_level(logging.DEBUG, "evertick")
    with scheduler:
        good, bad = succeed.sync.enqueue().id, fail.sync.enqueue().id
        assert ended.acquire(timeout=20)
        assert ended.acquire(timeout=20)
    told = {
        (record.levelname, vars(record)["task"], vars(record)["run"], record.getMessage().splitlines()[0])
        for record in caplog.records
        if hasattr(record, "run")
    }
    assert ("DEBUG", "succeed", good, f"run {good} (succeed): started") in told
    assert ("DEBUG", "succeed", good, f"run {good} (succeed): succeeded") in told
    assert ("DEBUG", "fail", bad, f"run {bad} (fail): started") in told
    assert [task for level, task, run, _ in told if level == "ERROR" and run == bad] == ["fail"]


def test_without_debug_a_success_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    scheduler, ended = Scheduler("sqlite://"), threading.Event()

    @scheduler.task
    def succeed() -> None: ...

    scheduler.on("succeeded", lambda event: ended.set())
    caplog.set_level(logging.INFO, "evertick")
    with scheduler:
        run = succeed.sync.enqueue().id
        assert ended.wait(20)
    assert run not in caplog.text


async def test_a_task_that_fails_over_and_over_has_its_first_lines_and_then_a_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scheduler = Scheduler("sqlite://")

    @scheduler.task(retry=Constant("1ms", attempts=50))
    async def broken() -> None:
        raise ValueError("no")

    @scheduler.task
    async def other() -> None:
        raise ValueError("no, too")

    async with scheduler:
        runs = [(await broken.enqueue()).id, (await other.enqueue()).id]
        async with asyncio.timeout(20):
            while any(run.verdict is None for run in await scheduler.runs()):
                await asyncio.sleep(0.05)
    lines = [record.getMessage() for record in caplog.records if record.name == "evertick.finish"]
    assert len([line for line in lines if "(broken): attempt " in line]) == 10
    assert [line for line in lines if line.startswith(f"run {runs[0]} (broken): failed: ")], (
        "the last attempt has its line"
    )
    assert [line for line in lines if line.startswith(f"run {runs[1]} (other): failed: ")], "and so has another task"
    [more] = [line for line in lines if "more attempts" in line]
    assert more.startswith("task broken: 39 more attempts failed in the last ")


async def test_final_failures_of_a_task_are_counted_too_beyond_the_first(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = Scheduler("sqlite://")

    @scheduler.task
    async def broken() -> None:
        raise ValueError("no")

    async with scheduler:
        for _ in range(25):
            await broken.enqueue()
        async with asyncio.timeout(20):
            while any(run.verdict is None for run in await scheduler.runs()):
                await asyncio.sleep(0.05)
    lines = [record.getMessage() for record in caplog.records if record.name == "evertick.finish"]
    assert len([line for line in lines if "(broken): failed: " in line]) == 10
    [more] = [line for line in lines if "more runs" in line]
    assert more.startswith("task broken: 15 more runs failed in the last ")
