"""Readers of the feed continue at their cursor, and get an error if they cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from evertick import CursorGone, FeedEvent, InvalidInput, InvalidSetting, Refused, Scheduler, StoreUnavailable
from evertick.doctor.database import about_feed
from evertick.model.feed import ITEMS_MOST, Cursor, events_of, in_rows
from evertick.store.base import FeedState
from evertick.when.moment import MINUTE

SECONDS = 20


@pytest.fixture
async def scheduler() -> AsyncIterator[Scheduler]:
    made = Scheduler("sqlite://", concurrency=0)
    await made.keep_feed("1d")
    yield made
    await made.close()


async def add(scheduler: Scheduler, *keys: str) -> None:
    for key in keys:
        await scheduler.add(key=key, when="every 1h", task="job")


def keys(events: list[FeedEvent]) -> list[str | None]:
    return [event.schedule_key for event in events]


async def following(scheduler: Scheduler, count: int, after: str | None = None, **wanted: Any) -> list[FeedEvent]:
    seen: list[FeedEvent] = []
    async with asyncio.timeout(SECONDS):
        async for event in scheduler.feed(after, poll="10ms", **wanted):
            seen.append(event)
            if len(seen) == count:
                break
    return seen


async def test_reading_an_app_without_a_feed_explains_how_to_turn_it_on() -> None:
    scheduler = Scheduler("sqlite://", concurrency=0)
    with pytest.raises(Refused, match=r"app 'default' keeps no feed; turn it on with Scheduler\(feed='7d'\)"):
        await scheduler.feed_page()
    await scheduler.close()


async def test_events_are_read_one_by_one_and_a_cursor_continues_after_its_event(scheduler: Scheduler) -> None:
    await add(scheduler, "a", "b", "c")
    events = (await scheduler.feed_page()).events
    assert keys(events) == ["a", "b", "c"]
    for place, event in enumerate(events):
        assert (await scheduler.feed_page(event.cursor)).events == events[place + 1 :]


async def test_a_page_respects_its_limit_and_shows_whether_it_is_the_last(scheduler: Scheduler) -> None:
    await add(scheduler, "a", "b", "c")
    first = await scheduler.feed_page(limit=2)
    assert (keys(first.events), first.is_end) == (["a", "b"], False)
    second = await scheduler.feed_page(first.cursor, limit=2)
    assert (keys(second.events), second.is_end) == (["c"], True)
    last = await scheduler.feed_page(second.cursor, limit=2)
    assert (last.events, last.cursor, last.is_end) == ([], second.cursor, True)


async def test_the_end_of_the_feed_is_a_usable_cursor(scheduler: Scheduler) -> None:
    await add(scheduler, "a")
    end = await scheduler.feed_cursor()
    await add(scheduler, "b")
    assert keys((await scheduler.feed_page(end)).events) == ["b"]


async def test_a_reader_follows_new_events(scheduler: Scheduler) -> None:
    await add(scheduler, "a")
    reading = asyncio.create_task(following(scheduler, 3))
    await add(scheduler, "b", "c")
    assert keys(await reading) == ["a", "b", "c"]


async def test_a_filtered_reader_gets_only_its_kinds_and_reaches_the_end(scheduler: Scheduler) -> None:
    await add(scheduler, "a", "b")
    await scheduler.pause("a", note="holidays")
    await scheduler.pause("b")
    page = await scheduler.feed_page(kinds=["schedule.paused"], schedule="a")
    assert [(event.kind, event.schedule_key, event.note) for event in page.events] == [
        ("schedule.paused", "a", "holidays")
    ]
    assert (page.is_end, page.cursor) == (True, await scheduler.feed_cursor())
    nothing = await scheduler.feed_page(schedule="c")
    assert (nothing.events, nothing.is_end) == ([], True)


async def test_a_reader_can_start_at_a_time(scheduler: Scheduler) -> None:
    await add(scheduler, "a")
    [event] = (await scheduler.feed_page()).events
    assert (await scheduler.feed_page(since=event.at)).events == [event]
    assert (await scheduler.feed_page(since=event.at + timedelta(hours=1))).events == []


async def test_a_reader_waits_for_an_unreachable_store(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await add(scheduler, "a")
    store, answers = await scheduler.runtime.store(), [StoreUnavailable("it restarts") for _ in range(3)]
    read = store.feed

    async def feed(app: str, **wanted: Any) -> Any:
        if answers:
            raise answers.pop()
        return await read(app, **wanted)

    monkeypatch.setattr(store, "feed", feed)
    caplog.set_level("INFO", "evertick.feed")
    assert keys(await following(scheduler, 1)) == ["a"]
    # One line for the first failure, one with the count of the others, one at the end.
    lines = [record.getMessage() for record in caplog.records if record.name == "evertick.feed"]
    assert lines[0] == "feed: store unavailable, retrying: it restarts"
    assert lines[1].startswith("feed: store unavailable: 2 more tries failed")
    assert lines[2:] == ["feed: store available again"]


async def test_cursors_from_before_the_feed_was_turned_off_and_on_are_refused(scheduler: Scheduler) -> None:
    await add(scheduler, "a")
    cursor = await scheduler.feed_cursor()
    await scheduler.keep_feed(None)
    await scheduler.keep_feed("1d")
    with pytest.raises(CursorGone, match="another feed") as refusal:
        await scheduler.feed_page(cursor)
    await add(scheduler, "b")
    assert keys((await scheduler.feed_page(refusal.value.oldest)).events) == ["b"]


async def test_the_setting_turns_the_feed_on_and_off_at_the_start(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with Scheduler(url, feed="2d", node_name="mill") as scheduler:
        assert [(event.kind, event.node_name) for event in (await scheduler.feed_page()).events] == [
            ("node.joined", "mill")
        ]
    async with Scheduler(url) as scheduler:
        assert (await scheduler.feed_page()).events, "a node that says nothing of it leaves it as it is"
    async with Scheduler(url, feed="off") as scheduler:
        with pytest.raises(Refused, match="keeps no feed"):
            await scheduler.feed_page()


async def test_a_reader_does_not_consume_wake_ups_of_an_engine_in_the_same_process() -> None:
    scheduler = Scheduler("sqlite://", feed="1d")

    @scheduler.task
    def job() -> None: ...

    async with scheduler:
        run = await job.enqueue()
        seen = await following(scheduler, 1, kinds=["run.finished"])
    assert [(event.run_id, event.verdict) for event in seen] == [(run.id, "succeeded")]


def test_the_feed_has_a_sync_form() -> None:
    scheduler = Scheduler("sqlite://", concurrency=0)
    scheduler.sync.keep_feed("1d")
    scheduler.sync.add(key="a", when="every 1h", task="job")
    assert keys(scheduler.sync.feed_page().events) == ["a"]
    assert scheduler.sync.feed_page(scheduler.sync.feed_cursor()).events == []
    scheduler.sync.close()


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"after": "yesterday"}, "after: 'yesterday' is not a cursor"),
        ({"after": "a.1.1.1" * 100}, "is not a cursor"),
        ({"after": f"a.{10**18}.1.0"}, "is not a cursor"),
        ({"after": 7}, "after: 7 is not a cursor"),
        ({"kinds": "run.finished"}, r"pass a list, e\.g\. kinds=\['run\.finished'\]"),
        ({"kinds": ["run.done"]}, "'run.done' is not a kind of event; the kinds are run.recorded"),
        ({"since": datetime(2026, 1, 1)}, "since: .* is not a datetime with a zone"),
        ({"schedule": ""}, "schedule: '' must have 1 to 200 characters"),
    ],
)
async def test_an_invalid_cursor_is_refused_with_its_value(scheduler: Scheduler, wanted: Any, expected: str) -> None:
    with pytest.raises(InvalidInput, match=expected):
        await scheduler.feed_page(**wanted)
    with pytest.raises(InvalidInput, match=expected):
        scheduler.feed(**wanted)


async def test_invalid_bounds_of_a_feed_are_refused_at_the_call(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidSetting, match="feed: '1s' must be between 60 s and"):
        Scheduler(feed="1s")
    with pytest.raises(InvalidSetting, match="feed: '1s' must be between"):
        await scheduler.keep_feed("1s")
    with pytest.raises(InvalidInput, match="poll: '1ms' is too short; pass 10ms or more"):
        scheduler.feed(poll="1ms")
    with pytest.raises(InvalidInput, match="limit: 0 must be"):
        await scheduler.feed_page(limit=0)


def test_event_kinds_and_fields_of_newer_code_are_ignored() -> None:
    place = Cursor("e", 1, 2)
    assert list(events_of("app", place, 0, "moon.rose", "[[1]]")) == []
    [event] = events_of("app", place, 0, "schedule.added", '[["a", null, null, "new", 7]]')
    assert (event.schedule_key, event.at) == ("a", datetime(1970, 1, 1, tzinfo=UTC))


def test_many_facts_are_split_into_rows() -> None:
    assert [len(row) for row in in_rows(range(2 * ITEMS_MOST + 1))] == [ITEMS_MOST, ITEMS_MOST, 1]
    assert list(in_rows([])) == []


@pytest.mark.parametrize(("held_for", "count"), [(None, 0), (MINUTE, 0), (2 * MINUTE, 1)])
def test_the_doctor_reports_a_delayed_feed(held_for: int | None, count: int) -> None:
    held_at = None if held_for is None else 10 * MINUTE - held_for
    state = FeedState(now=10 * MINUTE, kept=MINUTE, held_at=held_at, holder="process 7")
    findings = list(about_feed(state))
    assert len(findings) == count
    assert all("120 s behind: process 7 is open" in finding.what for finding in findings)
    assert list(about_feed(None)) == []
