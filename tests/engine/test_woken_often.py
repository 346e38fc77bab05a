"""Others may wake a node as often as they like: it looks at once, and then not without end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from evertick import Scheduler
from evertick.store.base import Due, DueSchedule, News
from evertick.store.sqlite import SqliteStore
from evertick.testing import virtual_time

# More wake-ups than any node should get, and few enough to end the test if there is no bound.
MOST = 1_000


async def test_a_node_that_is_woken_without_end_looks_some_hundred_times_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = Scheduler("sqlite://")
    is_loud, look = asyncio.Event(), SqliteStore.due_schedules
    woken_at: list[float] = []
    looked_at: list[float] = []

    async def changed(self: SqliteStore, app: str, timeout: float) -> News:
        if len(woken_at) == MOST:
            is_loud.clear()
        await is_loud.wait()
        woken_at.append(scheduler.runtime.clock.elapsed())
        return "anything"

    async def due_schedules(self: SqliteStore, app: str, limit: int, after: DueSchedule | None = None) -> Due:
        looked_at.append(scheduler.runtime.clock.elapsed())
        return await look(self, app, limit, after)

    monkeypatch.setattr(SqliteStore, "changed", changed)
    monkeypatch.setattr(SqliteStore, "due_schedules", due_schedules)
    async with virtual_time(scheduler) as kit:
        await kit.advance("1s")
        looked_at.clear()
        began = scheduler.runtime.clock.elapsed()
        is_loud.set()
        await kit.advance("2s")
    assert looked_at[0] == began
    assert 60 <= len(looked_at) / 2 <= 110
    # Each look is at what was written before it: none was put off but by the next.
    assert set(woken_at) <= set(looked_at)


async def test_news_of_runs_causes_no_read_of_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler("sqlite://")
    is_told, look, claim = asyncio.Event(), SqliteStore.due_schedules, SqliteStore.claim
    asked: list[str] = []

    async def changed(self: SqliteStore, app: str, timeout: float) -> News:
        await is_told.wait()
        is_told.clear()
        return "runs"

    async def due_schedules(self: SqliteStore, *args: Any) -> Any:
        asked.append("schedules")
        return await look(self, *args)

    async def claimed(self: SqliteStore, *args: Any) -> Any:
        asked.append("runs")
        return await claim(self, *args)

    monkeypatch.setattr(SqliteStore, "changed", changed)
    monkeypatch.setattr(SqliteStore, "due_schedules", due_schedules)
    monkeypatch.setattr(SqliteStore, "claim", claimed)
    async with virtual_time(scheduler) as kit:
        await kit.advance("1s")
        asked.clear()
        is_told.set()
        await kit.advance("1ms")
    assert asked == ["runs"]
