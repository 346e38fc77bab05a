"""Schedules are paused and resumed by label, each in its own guarded change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from evertick import Event, InvalidInput, Scheduler
from evertick.errors import InvalidWhen, NotFound
from evertick.ledger.editor import Editor
from evertick.store.base import StoredSchedule

TEAMS = {"a": "ops", "b": "ops", "c": "shop", "d": "ops"}


@pytest.fixture
async def scheduler() -> AsyncIterator[Scheduler]:
    made = Scheduler("sqlite://", concurrency=0)
    for key, team in TEAMS.items():
        await made.add(key=key, when="every 1h", task="job", labels={"team": team, "tier": "1"})
    yield made
    await made.close()


async def paused(scheduler: Scheduler) -> list[str]:
    return [schedule.key for schedule in await scheduler.schedules(is_paused=True)]


async def test_schedules_with_the_label_are_paused_with_note_and_end(scheduler: Scheduler) -> None:
    back = datetime.now(UTC) + timedelta(hours=5)
    assert await scheduler.pause_many(labels={"team": "ops"}, note="the warehouse moves", until=back) == ["a", "b", "d"]
    assert await paused(scheduler) == ["a", "b", "d"]
    schedule = await scheduler.schedule("b")
    assert (schedule.pause_note, schedule.paused_until) == ("the warehouse moves", back)


async def test_all_labels_must_match(scheduler: Scheduler) -> None:
    assert await scheduler.pause_many(labels={"team": "shop", "tier": "1"}) == ["c"]
    assert await scheduler.pause_many(labels={"team": "ops", "tier": "2"}) == []


async def test_a_schedule_that_is_already_paused_keeps_its_own_note(scheduler: Scheduler) -> None:
    await scheduler.pause("b", note="mine")
    assert await scheduler.pause_many(labels={"team": "ops"}, note="theirs") == ["a", "d"]
    assert (await scheduler.schedule("b")).pause_note == "mine"


async def test_schedules_with_the_label_are_resumed(scheduler: Scheduler) -> None:
    await scheduler.pause_many(everything=True)
    assert await scheduler.resume_many(labels={"team": "ops"}) == ["a", "b", "d"]
    assert await paused(scheduler) == ["c"]
    assert await scheduler.resume_many(everything=True) == ["c"]
    assert await scheduler.resume_many(everything=True) == []


async def test_schedules_paused_as_undeclared_are_not_resumed_with_the_others(scheduler: Scheduler) -> None:
    await scheduler.pause("a")
    await (await scheduler.runtime.context()).editor().pause_undeclared("b", "shop")
    assert await scheduler.resume_many(everything=True) == ["a"]
    assert await paused(scheduler) == ["b"]


async def test_more_than_a_page_of_schedules_are_all_changed() -> None:
    scheduler = Scheduler("sqlite://", concurrency=0)
    many = [{"key": f"k{n:04}", "when": "every 1h", "task": "job", "labels": {"l": "x"}} for n in range(1_200)]
    await scheduler.add_many(many)
    assert len(await scheduler.pause_many(labels={"l": "x"})) == 1_200
    assert len(await scheduler.resume_many(labels={"l": "x"})) == 1_200
    await scheduler.close()


async def test_the_caller_gets_each_change(scheduler: Scheduler) -> None:
    received: list[tuple[str, int]] = []
    await scheduler.pause_many(labels={"team": "ops"}, on_change=lambda key, count: received.append((key, count)))
    assert received == [("a", 1), ("b", 2), ("d", 3)]


async def test_hooks_are_called_for_each_pause(scheduler: Scheduler) -> None:
    received: list[tuple[str | None, str]] = []

    @scheduler.on("paused")
    async def note(event: Event) -> None:
        received.append((event.schedule_key, event.note))

    await scheduler.pause_many(labels={"team": "shop"}, note="closed")
    await scheduler.runtime.hooks.drain(5)
    assert received == [("c", "closed")]


async def test_a_schedule_that_is_removed_meanwhile_is_skipped(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause = Editor.pause

    async def change_meanwhile(editor: Editor, key: str, **options: object) -> bool:
        if key == "b":
            await editor.remove(key)
        return await pause(editor, key, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Editor, "pause", change_meanwhile)
    assert await scheduler.pause_many(labels={"team": "ops"}) == ["a", "d"]
    with pytest.raises(NotFound):
        await scheduler.schedule("b")


async def test_a_schedule_that_is_paused_meanwhile_keeps_that_note(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause = Editor.pause

    async def change_meanwhile(editor: Editor, key: str, **options: object) -> bool:
        if key == "b":
            await pause(editor, key, note="faster")
        return await pause(editor, key, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Editor, "pause", change_meanwhile)
    assert await scheduler.pause_many(labels={"team": "ops"}, note="slower") == ["a", "d"]
    assert (await scheduler.schedule("b")).pause_note == "faster"


async def test_a_bulk_change_without_labels_needs_everything(scheduler: Scheduler) -> None:
    for change in (scheduler.pause_many, scheduler.resume_many):
        with pytest.raises(InvalidInput, match="pass a label, or everything=True"):
            await change()
        with pytest.raises(InvalidInput, match="pass a label, or everything=True"):
            await change(labels={})
        with pytest.raises(InvalidInput, match="leave out one of them"):
            await change(labels={"team": "ops"}, everything=True)
    assert await paused(scheduler) == []


async def test_a_past_end_is_refused_before_any_schedule_is_paused(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidInput, match=r"until: .* has passed"):
        await scheduler.pause_many(everything=True, until=datetime(2020, 1, 1, tzinfo=UTC))
    with pytest.raises(InvalidWhen, match="has no time zone"):
        await scheduler.pause_many(everything=True, until=datetime(2100, 1, 1))
    with pytest.raises(InvalidInput, match="note: 5 is not text"):
        await scheduler.pause_many(everything=True, note=5)  # type: ignore[arg-type]
    assert await paused(scheduler) == []


def test_the_sync_form_works_too() -> None:
    scheduler = Scheduler("sqlite://", concurrency=0)
    scheduler.sync.add(key="a", when="every 1h", task="job", labels={"team": "ops"})
    assert scheduler.sync.pause_many(labels={"team": "ops"}) == ["a"]
    assert scheduler.sync.resume_many(labels={"team": "ops"}) == ["a"]
    scheduler.sync.close()


async def test_the_guard_of_a_pause_checks_the_current_schedule(scheduler: Scheduler) -> None:
    seen: list[StoredSchedule] = []

    def look(stored: StoredSchedule) -> bool:
        seen.append(stored)
        return True

    assert await (await scheduler.runtime.context()).editor().pause("a", unless=look) is False
    assert [stored.key for stored in seen] == ["a"]
    assert await paused(scheduler) == []
