"""When the fire loop looks: at the moment where that is cheap, a little later where there are many; never too late."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from evertick import Every, Scheduler, current
from evertick.store.sqlite import SqliteStore
from evertick.testing import virtual_time
from evertick.when import When

START = datetime(2026, 1, 1, tzinfo=UTC)


class Node:
    """Has schedules once a second, spread evenly over it, from one second after its start."""

    def __init__(self) -> None:
        self.scheduler = Scheduler("sqlite://", concurrency=500)

        @self.scheduler.task
        async def note() -> None: ...

    async def spread(self, count: int) -> None:
        for number in range(count):
            start = START + timedelta(seconds=1 + number / count)
            await self.add(f"s{number}", Every("1s", since="start", start=start))

    async def add(self, key: str, when: When, **options: Any) -> None:
        await self.scheduler.add(key=key, when=when, task="note", **options)

    async def latest(self) -> float:
        """How many seconds after its moment the latest of all began."""
        runs = await self.scheduler.runs(limit=1000)
        return max((run.started_at - run.fire_at).total_seconds() for run in runs if run.started_at is not None)


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many plans were written together, each time."""
    seen: list[int] = []
    record = SqliteStore.record_fires

    async def counted(self: SqliteStore, app: str, node: str | None, advances: Any) -> Any:
        seen.append(len(advances))
        return await record(self, app, node, advances)

    monkeypatch.setattr(SqliteStore, "record_fires", counted)
    return seen


async def test_a_few_schedules_begin_at_their_moments(ticks: list[int]) -> None:
    node = Node()
    async with virtual_time(node.scheduler, start=START) as kit:
        await node.spread(5)
        await kit.advance("5s")
        assert await node.latest() < 0.002
    assert len(ticks) == sum(ticks) == 5 * 4 + 1


async def test_what_many_schedules_owe_is_gathered(ticks: list[int]) -> None:
    node = Node()
    async with virtual_time(node.scheduler, start=START) as kit:
        await node.spread(200)
        await kit.advance("5s")
        assert await node.latest() <= 0.021
    assert sum(ticks) >= 200 * 4 - 5
    # They come every 5 ms.
    assert len(ticks) < 200 * 4 / 3


async def test_a_schedule_of_a_few_milliseconds_misses_nothing_beside_many_others(ticks: list[int]) -> None:
    node = Node()
    async with virtual_time(node.scheduler, start=START) as kit:
        await node.spread(50)
        await node.add("quick", Every("5ms"), overlap="allow")
        await kit.advance("4s")
        quick = await node.scheduler.schedule("quick")
        assert quick.fires == 800
        assert await node.scheduler.gaps("quick") == []


async def test_a_removed_schedule_of_a_few_milliseconds_does_not_prevent_gathering(ticks: list[int]) -> None:
    node = Node()
    async with virtual_time(node.scheduler, start=START) as kit:
        await node.add("quick", Every("5ms"), overlap="allow")
        await kit.advance("1s")
        await node.scheduler.remove("quick")
        await node.spread(200)
        await kit.advance("2s")
        ticks.clear()
        await kit.advance("4s")
    assert sum(ticks) >= 200 * 4 - 5
    assert len(ticks) < 200 * 4 / 3


async def test_a_schedule_that_waits_for_its_live_run_does_not_prevent_gathering(ticks: list[int]) -> None:
    """Its plans leave the cursor where it is: no distance between moments."""
    node = Node()

    @node.scheduler.task
    async def take_long() -> None:
        await asyncio.sleep(3600)

    async with virtual_time(node.scheduler, start=START) as kit:
        when = Every("10s", since="start", start=START)
        await node.scheduler.add(key="slow", when=when, task="take_long", catch_up="all", overlap="skip")
        await kit.downtime("1m")
        await kit.advance("5s")
        assert (await node.scheduler.runs())[-1].state == "running"
        for number in range(200):
            start = kit.now + timedelta(seconds=1 + number / 200)
            await node.add(f"s{number}", Every("1s", since="start", start=start))
        await kit.advance("2s")
        ticks.clear()
        await kit.advance("4s")
    assert sum(ticks) >= 200 * 4 - 5
    assert len(ticks) < 200 * 4 / 3


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_catch_up_all_is_on_time_again_after_a_block_of_the_event_loop(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Also where moments come as fast as the default pace, and faster, and where a run takes most of its interval."""
    url = f"sqlite:///{tmp_path}/l.db" if store == "sqlite" else request.getfixturevalue("postgres_url")
    scheduler, lateness, blocked = Scheduler(url), dict[str, list[float]](), asyncio.Event()

    def note_lateness() -> None:
        run = current()
        lateness.setdefault(run.schedule_key or "", []).append((datetime.now(UTC) - run.fire_at).total_seconds())

    for every in ("100ms", "500ms", "1s"):

        @scheduler.every(every, key=every, name=every, catch_up="all", overlap="skip")
        async def tick(every: str = every) -> None:
            note_lateness()
            if len(lateness) == 3 and not blocked.is_set():
                blocked.set()
                time.sleep(2)
            if every == "1s":
                await asyncio.sleep(0.6)

    async with scheduler:
        async with asyncio.timeout(60):
            await blocked.wait()
            while any(late[-1] > 0.5 for late in lateness.values()) or max(map(max, lateness.values())) < 1:
                await asyncio.sleep(0.05)
        assert [gap for gap in await scheduler.gaps() if gap.verdict == "missed"] == []
