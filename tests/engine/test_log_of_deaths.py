"""The log lines about a dead node have its name, and the schedules or tasks of its runs."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from evertick import Scheduler, Verdict
from evertick.store.base import NodeJoin, TaskTerms

PATIENCE = 30.0


async def test_a_death_is_logged_with_the_name_of_the_node_and_the_jobs_of_its_lost_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "evertick.tend")
    scheduler = Scheduler(f"sqlite:///{tmp_path}/jobs.db", lease="3s", node_name="web-2")
    is_lost = asyncio.Event()

    @scheduler.every("1h", key="report", on_lost="fail")
    async def make_report() -> None: ...

    @scheduler.task(on_lost="fail")
    async def pay() -> None: ...

    @scheduler.on("lost")
    async def hear(_event: object) -> None:
        if len(await scheduler.runs(verdicts=[Verdict.LOST])) == 2:
            is_lost.set()

    store, terms = (
        await scheduler.runtime.store(),
        {name: TaskTerms(at_most_once=True) for name in ("make_report", "pay")},
    )
    await store.join(
        NodeJoin(id="old-1", name="web-1", app="default", version="1", lease=1, queues=(), tasks=terms, declares={})
    )
    manager = Scheduler(f"sqlite:///{tmp_path}/jobs.db", concurrency=0)
    await manager.add(key="report", when="every 1h", task="make_report")
    fired, enqueued = await manager.trigger("report"), await pay.enqueue()
    claimed = (await store.claim("default", "old-1", ["default"], terms, 2)).runs
    assert {run.id for run in claimed} == {fired.id, enqueued.id}
    async with scheduler:
        await asyncio.wait_for(is_lost.wait(), PATIENCE)
    await manager.close()
    assert "node web-1 (id old-1): lease expired, declared dead; its runs are reassigned" in caplog.messages
    assert f"run {fired.id} (report): its node died; ends as lost" in caplog.messages
    assert f"run {enqueued.id} (pay): its node died; ends as lost" in caplog.messages


async def test_runs_of_a_dead_node_that_are_run_again_are_named_and_of_many_the_first_ten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "evertick.tend")
    scheduler = Scheduler(f"sqlite:///{tmp_path}/jobs.db", lease="3s", node_name="web-2", concurrency=50)

    @scheduler.every("1h", key="report")
    async def make_report() -> None: ...

    @scheduler.task(concurrency=1)
    async def pay() -> None: ...

    @scheduler.task
    async def tidy() -> None: ...

    store, terms = await scheduler.runtime.store(), {name: TaskTerms() for name in ("make_report", "pay", "tidy")}
    await store.join(
        NodeJoin(id="old-1", name="web-1", app="default", version="1", lease=1, queues=(), tasks=terms, declares={})
    )
    manager = Scheduler(f"sqlite:///{tmp_path}/jobs.db", concurrency=0)
    await manager.add(key="report", when="every 1h", task="make_report")
    fired = await manager.trigger("report")
    tidied = [await tidy.enqueue() for _ in range(7)]
    paid = [await pay.enqueue() for _ in range(4)]
    assert len((await store.claim("default", "old-1", ["default"], terms, 20)).runs) == 12
    async with scheduler, asyncio.timeout(PATIENCE):
        while len(await scheduler.runs(verdicts=[Verdict.SUCCEEDED])) < 12:
            await asyncio.sleep(0.02)
    await manager.close()
    told = [words for words in caplog.messages if "again" in words]
    again = [f"run {fired.id} (report): its node died; runs again on this node"]
    again += [f"run {run.id} (tidy): its node died; runs again on this node" for run in tidied]
    assert sorted(told[:8]) == sorted(again)
    # Runs with a limit need a claim.
    waits = {f"run {run.id} (pay): its node died; waits to run again" for run in paid}
    assert len(told) == 11
    assert set(told[8:10]) < waits
    assert told[10] == "2 more runs of dead nodes run again or wait to run again"
    [line] = [record for record in caplog.records if fired.id in record.getMessage()]
    assert (line.run, line.schedule) == (fired.id, "report")  # type: ignore[attr-defined]
