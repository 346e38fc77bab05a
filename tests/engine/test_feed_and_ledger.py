"""The feed tells what the ledger holds: each run is recorded once and ends once, by the same verdict."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from evertick import Constant, FeedEvent, Retry, Scheduler

SECONDS = 60


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


def program(url: str, name: str) -> Scheduler:
    """Jobs that succeed, fail, ask for another try, overlap and never end by themselves."""
    scheduler = Scheduler(url, node_name=name, feed="1d", stop_timeout="100ms", poll_interval="100ms")

    @scheduler.every("50ms", key="quick")
    async def quick() -> None: ...

    @scheduler.every("100ms", key="failing", retry=Constant("10ms", attempts=2))
    async def failing() -> None:
        raise ValueError("as always")

    @scheduler.every("100ms", key="replaced", overlap="replace")
    async def replaced() -> None:
        await asyncio.sleep(SECONDS)

    @scheduler.every("100ms", key="queued", overlap="queue")
    async def queued() -> None:
        await asyncio.sleep(0.15)

    @scheduler.task(retry=Constant("1ms", attempts=3))
    async def asks(times: int) -> None:
        raise Retry(f"{times} more")

    @scheduler.task
    async def waits() -> None: ...

    return scheduler


async def everything(scheduler: Scheduler) -> list[FeedEvent]:
    events: list[FeedEvent] = []
    after = None
    async with asyncio.timeout(SECONDS):
        while True:
            page = await scheduler.feed_page(after, limit=50)
            events += page.events
            after = page.cursor
            # On PostgreSQL open transactions of others may delay the last events for a moment.
            if page.is_end and await is_settled(scheduler) and (await scheduler.feed_page(after)).events == []:
                return events


async def is_settled(scheduler: Scheduler) -> bool:
    state = await (await scheduler.runtime.store()).feed_state(scheduler.app)
    return state is not None and state.held_at is None


async def test_the_feed_has_every_run_of_a_busy_fleet_as_the_ledger_has_it(url: str) -> None:
    first, second = program(url, "first"), program(url, "second")
    async with asyncio.timeout(SECONDS), first, second:
        tasks = {task.name: task for task in first.runtime.tasks.values()}
        later = [await tasks["waits"].options(delay="1h").enqueue() for _ in range(5)]
        for times in range(5):
            await tasks["asks"].enqueue(times=times)
        for run in later[:3]:
            await first.cancel(run.id)
        await first.pause("quick")
        await first.resume("quick")
        await first.add(key="extra", when="every 1h", task="waits")
        await first.remove("extra")
        seen = 0
        async for _ in second.feed(kinds=["run.finished"], schedule="queued", poll="50ms"):
            seen += 1
            if seen == 5:
                break
    reader = Scheduler(url, concurrency=0)
    runs, gaps = await reader.runs(limit=10_000), await reader.gaps(limit=10_000)
    events = await everything(reader)
    await reader.close()
    by_kind: dict[str, list[FeedEvent]] = {}
    for event in events:
        by_kind.setdefault(event.kind, []).append(event)
    assert Counter(event.run_id for event in by_kind["run.recorded"]) == Counter(run.id for run in runs)
    ended = {run.id: (run.verdict, run.reason, run.attempts) for run in runs if not run.is_live}
    told = [(event.run_id, (event.verdict, event.reason, event.attempts)) for event in by_kind["run.finished"]]
    assert len(told) == len(ended)
    assert dict(told) == ended
    told_gaps = [(e.schedule_key, e.first_at, e.last_at, e.count, e.verdict, e.reason) for e in by_kind["gap.recorded"]]
    assert Counter(told_gaps) == Counter(
        (gap.schedule_key, gap.first_at, gap.last_at, gap.count, gap.verdict, gap.reason) for gap in gaps
    )
    assert {"succeeded", "failed", "cancelled"} <= {str(verdict) for verdict, _, _ in ended.values()}
    assert {"run.retrying", "run.started", "schedule.paused", "schedule.removed", "node.joined"} <= set(by_kind)
    assert Counter(event.node_name for event in by_kind["node.joined"]) == Counter(["first", "second"])
    assert len(by_kind["node.left"]) == 2
    assert len({event.cursor for event in events}) == len(events)
