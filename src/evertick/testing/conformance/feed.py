"""Promises about the feed: each event is in it once, in an order that never changes for a reader."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from evertick.errors import CursorGone
from evertick.model import Pause, Verdict
from evertick.model.feed import ITEMS_MOST, Cursor, FeedEvent, cursor_of, events_of
from evertick.store.base import Change, FeedRead, FeedState, NodeJoin
from evertick.testing.conformance.bench import (
    APP,
    HOUR,
    MINUTE,
    OTHER_APP,
    SHORT_LEASE,
    TASK,
    TERMS,
    Bench,
    a_fire,
    a_gap,
    a_run,
    an_advance,
    an_outcome,
    us,
)
from evertick.testing.conformance.transactions import Users

__all__ = ["Feed", "TransactionalFeed", "read_feed"]

_SETTLE_SECONDS = 30
_KEPT = 7 * 24 * HOUR


async def _settle(bench: Bench, app: str = APP) -> FeedState | None:
    """Wait until all committed events can be read: other transactions of the server may delay them briefly."""
    async with asyncio.timeout(_SETTLE_SECONDS):
        while (state := await bench.store.feed_state(app)) is not None and state.held_at is not None:
            pass
        return state


async def read_feed(bench: Bench, start: Cursor | None = None, *, limit: int = 1000, app: str = APP) -> FeedRead:
    await _settle(bench, app)
    read = await bench.store.feed(app, start=start, since=None, kinds=None, limit=limit)
    assert read is not None, f"{app} should have a feed"
    return read


def _events(read: FeedRead, app: str = APP, *, start: Cursor | None = None) -> list[FeedEvent]:
    """Each event; of the row that `start` points into, only those after it."""
    rows = [(Cursor(read.first.epoch, row.txid, row.seq), row) for row in read.rows]
    if start is not None and rows and msgspec.structs.replace(start, index=0) == rows[0][0]:
        rows[0] = (start, rows[0][1])
    return [event for place, row in rows for event in events_of(app, place, row.at, row.kind, row.body)]


async def _events_of(bench: Bench, act: Callable[[], Awaitable[object]]) -> list[FeedEvent]:
    """The events that `act` causes."""
    start = (await read_feed(bench, limit=0)).end
    await act()
    return _events(await read_feed(bench, start))


class Feed:
    # --- on and off

    async def test_an_app_has_no_feed_until_it_is_turned_on(self, bench: Bench) -> None:
        await bench.enqueue()
        assert await bench.store.feed(APP, start=None, since=None, kinds=None, limit=10) is None
        assert await bench.store.feed_state(APP) is None
        await bench.store.keep_feed(APP, _KEPT)
        assert _events(await read_feed(bench)) == [], "events from before the feed was turned on"

    async def test_turning_the_feed_on_applies_to_every_node_at_once(self, bench: Bench) -> None:
        other = await bench.stores.open()
        await other.enqueue(APP, [a_run()])
        await bench.store.keep_feed(APP, _KEPT)
        await other.enqueue(APP, [a_run()])
        assert [event.kind for event in _events(await read_feed(bench))] == ["run.recorded"]

    async def test_each_app_has_its_own_feed(self, bench: Bench) -> None:
        await bench.store.keep_feed(APP, _KEPT)
        await bench.store.keep_feed(OTHER_APP, _KEPT)
        own, other = await bench.enqueue(), await bench.enqueue(app=OTHER_APP)
        assert [event.run_id for event in _events(await read_feed(bench))] == [own.id]
        assert [event.run_id for event in _events(await read_feed(bench, app=OTHER_APP))] == [other.id]

    async def test_changing_how_long_the_feed_is_kept_leaves_cursors_valid(self, bench: Bench) -> None:
        await bench.store.keep_feed(APP, _KEPT)
        before = await read_feed(bench)
        await bench.store.keep_feed(APP, HOUR)
        after = await read_feed(bench)
        assert after.first.epoch == before.first.epoch
        state = await bench.store.feed_state(APP)
        assert state is not None
        assert state.kept == HOUR

    async def test_a_cursor_from_before_the_feed_was_turned_off_is_refused(self, bench: Bench) -> None:
        await bench.store.keep_feed(APP, _KEPT)
        await bench.enqueue()
        old = (await read_feed(bench)).end
        await bench.store.keep_feed(APP, None)
        await bench.enqueue()
        assert await bench.store.feed(APP, start=old, since=None, kinds=None, limit=10) is None
        await bench.store.keep_feed(APP, _KEPT)
        seen = await bench.enqueue()
        read = await read_feed(bench)
        assert [event.run_id for event in _events(read)] == [seen.id], "events from before the feed was turned off"
        with pytest.raises(CursorGone, match="another feed"):
            cursor_of(str(old), read.first, read.end, APP)

    # --- events

    async def test_the_feed_has_every_event_in_the_life_of_a_fire(self, bench: Bench) -> None:
        await bench.store.keep_feed(APP, _KEPT)
        schedule = await bench.add("nightly")
        node = await bench.node(name="mill")
        new = a_fire(schedule, reason="late")
        await bench.record(an_advance(schedule, new))
        held = await bench.hold(node, new.id)
        await bench.finish(node, an_outcome(held, "retry", delay=0, reason="error"))
        again = await bench.hold(node, new.id)
        await bench.end(node, again, verdict=Verdict.FAILED, reason="error", attempts=2)
        events = _events(await read_feed(bench))
        assert [event.kind for event in events] == [
            "schedule.added",
            "node.joined",
            "run.recorded",
            "run.started",
            "run.retrying",
            "run.started",
            "run.finished",
        ]
        added, joined, recorded, started, retrying, _, finished = events
        assert added.schedule_key == "nightly"
        assert (joined.node, joined.node_name) == (node, "mill")
        assert {event.run_id for event in events[2:]} == {new.id}
        assert {(event.schedule_key, event.task, event.cause) for event in events[2:]} == {("nightly", TASK, "fire")}
        assert (recorded.reason, recorded.node, recorded.fire_at and us(recorded.fire_at)) == (
            "late",
            None,
            new.fire_at,
        )
        assert (started.node, started.attempts) == (node, 0)
        assert (retrying.reason, retrying.attempts) == ("error", 1)
        assert (finished.verdict, finished.reason, finished.attempts) == ("failed", "error", 2)
        assert [event.at for event in events] == sorted(event.at for event in events)

    async def test_the_event_of_a_run_recorded_as_claimed_names_its_node(self, bench: Bench) -> None:
        await bench.store.keep_feed(APP, _KEPT)
        schedule, node = await bench.add(), await bench.node()
        new = a_fire(schedule, is_claimed=True)
        events = await _events_of(bench, lambda: bench.record(an_advance(schedule, new), node=node))
        assert [(event.kind, event.run_id, event.node) for event in events] == [("run.recorded", new.id, node)]

    async def test_refused_writes_have_no_events(self, bench: Bench) -> None:
        await bench.store.keep_feed(APP, _KEPT)
        schedule, node = await bench.add(), await bench.node()
        held = await bench.hold(node)
        await bench.end(node, held)
        stale = an_advance(schedule, a_fire(schedule), version=7)
        again = an_outcome(held)

        async def act() -> None:
            assert (await bench.record(stale)).taken == [False]
            assert await bench.finish(node, again) == ["already"]
            assert not await bench.change("remove", schedule, stale)
            assert await bench.store.change_schedules(APP, []) == []

        assert await _events_of(bench, act) == []

    async def test_gaps_have_events(self, bench: Bench) -> None:
        await bench.store.keep_feed(APP, _KEPT)
        schedule = await bench.add("nightly")
        assert schedule.fire_at is not None
        first, last = schedule.fire_at, schedule.fire_at + 5 * MINUTE
        advance = an_advance(schedule, gaps=(a_gap(first, last, count=6, verdict=Verdict.MISSED, reason="grace"),))
        [gap] = await _events_of(bench, lambda: bench.record(advance))
        assert (gap.kind, gap.schedule_key, gap.count) == ("gap.recorded", "nightly", 6)
        assert (gap.verdict, gap.reason, us(gap.first_at), us(gap.last_at)) == ("missed", "grace", first, last)

    async def test_changes_of_schedules_have_events(self, bench: Bench) -> None:
        await bench.store.keep_feed(APP, _KEPT)
        now = await bench.now()
        until = now + HOUR

        async def act() -> None:
            schedule = await bench.add("nightly")
            paused = await bench.pause(schedule, pause=Pause(at=now, note="holidays", until=until))
            assert await bench.change("resume", paused)
            assert await bench.change("edit", await bench.stored())
            assert await bench.change("remove", await bench.stored())

        events = await _events_of(bench, act)
        names = ["added", "paused", "resumed", "edited", "removed"]
        assert [event.kind for event in events] == [f"schedule.{name}" for name in names]
        assert {event.schedule_key for event in events} == {"nightly"}
        assert (events[1].note, us(events[1].until)) == ("holidays", until)

    async def test_the_automatic_end_of_a_pause_has_an_event(self, bench: Bench) -> None:
        await bench.store.keep_feed(APP, _KEPT)
        now = await bench.now()
        schedule = await bench.pause(await bench.add(), pause=Pause(at=now, until=now))
        events = await _events_of(bench, lambda: bench.record(an_advance(schedule, ends_pause=True)))
        assert [(event.kind, event.schedule_key) for event in events] == [("schedule.resumed", "nightly")]

    async def test_a_refused_all_or_none_batch_has_no_events(self, bench: Bench) -> None:
        await bench.store.keep_feed(APP, _KEPT)
        schedule = await bench.add()
        good = an_advance(schedule, next_fire_at=schedule.fire_at, next_at=schedule.at)
        changes = [
            Change(key=schedule.key, kind="edit", settle=good),
            Change(key=schedule.key, kind="edit", settle=msgspec.structs.replace(good, version=9)),
        ]
        events = await _events_of(bench, lambda: bench.store.change_schedules(APP, changes, all_or_none=True))
        assert events == []

    @pytest.mark.parametrize("is_running", [False, True])
    async def test_a_cancelled_run_has_its_event_when_it_ends(self, bench: Bench, is_running: bool) -> None:
        await bench.store.keep_feed(APP, _KEPT)
        node = await bench.node()
        run = await bench.enqueue()
        held = await bench.hold(node, run.id) if is_running else None
        events = await _events_of(bench, lambda: bench.cancel(run.id, reason="not needed"))
        if held is not None:
            assert events == [], "still running"
            events = await _events_of(bench, lambda: bench.end(node, held, verdict=Verdict.CANCELLED, attempts=0))
        [finished] = events
        assert (finished.kind, finished.verdict, finished.reason) == ("run.finished", "cancelled", "not needed")

    async def test_an_expired_run_has_an_event_as_missed(self, bench: Bench) -> None:
        await bench.store.keep_feed(APP, _KEPT)
        node = await bench.node()
        run = await bench.enqueue(expires=1)
        await bench.pass_time(1000)
        events = await _events_of(bench, lambda: bench.claim(node))
        assert [(event.kind, event.run_id, event.verdict, event.reason) for event in events] == [
            ("run.finished", run.id, "missed", "expired")
        ]

    async def test_releasing_and_parking_a_run_have_events(self, bench: Bench) -> None:
        await bench.store.keep_feed(APP, _KEPT)
        node = await bench.node()
        held = await bench.hold(node)
        [released] = await _events_of(bench, lambda: bench.finish(node, an_outcome(held, "release")))
        assert (released.kind, released.run_id) == ("run.released", held.id)
        again = await bench.hold(node, held.id)
        [parked] = await _events_of(bench, lambda: bench.finish(node, an_outcome(again, "park")))
        assert (parked.kind, parked.reason) == ("run.parked", "bad_arguments")

    async def test_parking_a_run_of_an_unknown_task_has_an_event(self, bench: Bench) -> None:
        await bench.store.keep_feed(APP, _KEPT)
        run = await bench.enqueue(task="mail")
        events = await _events_of(bench, lambda: bench.store.park_unknown(APP, 10))
        assert [(event.kind, event.run_id, event.reason) for event in events] == [
            ("run.parked", run.id, "unknown_task")
        ]

    async def test_the_death_of_a_node_and_the_recovery_of_its_runs_have_events(self, bench: Bench) -> None:
        await bench.store.keep_feed(APP, _KEPT)
        dead = await bench.node(name="old", lease=SHORT_LEASE)
        held = await bench.hold(dead)
        await bench.pass_time(2 * SHORT_LEASE)
        [died] = await _events_of(bench, bench.store.judge)
        assert (died.kind, died.node, died.node_name) == ("node.died", dead, "old")
        successor = await bench.node(name="new")
        released, started = await _events_of(bench, lambda: bench.rehome(successor))
        assert (released.kind, released.run_id, released.reason) == ("run.released", held.id, "node_died")
        assert released.node == dead, "the node that lost it"
        assert (started.kind, started.run_id, started.node) == ("run.started", held.id, successor)
        [left] = await _events_of(bench, lambda: bench.store.leave(successor))
        assert (left.kind, left.node) == ("node.left", successor)
        [released] = await _events_of(bench, self._rehome_without_room(bench))
        assert (released.kind, released.run_id, released.reason) == ("run.released", held.id, "node_died")
        assert released.node == successor

    def _rehome_without_room(self, bench: Bench) -> Callable[[], Awaitable[object]]:
        async def rehome() -> None:
            other = await bench.node(app=OTHER_APP)
            await bench.rehome(other, limit=0)

        return rehome

    async def test_a_node_has_one_event_for_its_start_and_one_for_its_end(self, bench: Bench) -> None:
        await bench.store.keep_feed(APP, _KEPT)
        join = NodeJoin(
            id="n1", name="mill", app=APP, version="1", lease=HOUR, queues=("default",), tasks=TERMS, declares={}
        )

        async def act() -> None:
            await bench.store.join(join)
            await bench.store.join(join)
            await bench.store.leave("n1")
            async with bench.heartbeat() as heartbeat:
                await heartbeat.die("n1")

        assert [event.kind for event in await _events_of(bench, act)] == ["node.joined", "node.left"]

    async def test_a_node_that_records_its_own_death_has_a_died_event(self, bench: Bench) -> None:
        await bench.store.keep_feed(APP, _KEPT)
        node = await bench.node()
        async with bench.heartbeat() as heartbeat:
            events = await _events_of(bench, lambda: heartbeat.die(node))
        assert [(event.kind, event.node) for event in events] == [("node.died", node)]

    # --- order and position

    async def test_many_events_of_one_write_share_rows_and_are_read_one_by_one(self, bench: Bench) -> None:
        await bench.store.keep_feed(APP, _KEPT)
        runs = [a_run() for _ in range(ITEMS_MOST + 20)]
        await bench.store.enqueue(APP, runs)
        read = await read_feed(bench)
        assert len(read.rows) == 2
        assert [event.run_id for event in _events(read)] == [run.id for run in runs]
        node = await bench.node()
        claim = await bench.claim(node, limit=len(runs))
        start = (await read_feed(bench, limit=0)).end
        await bench.finish(node, *(an_outcome(held) for held in claim.runs))
        finished = await read_feed(bench, start)
        assert len(finished.rows) == 2
        assert sorted(event.run_id or "" for event in _events(finished)) == sorted(run.id for run in runs)

    async def test_a_reader_resumes_at_any_event_without_loss_or_repetition(self, bench: Bench) -> None:
        await bench.store.keep_feed(APP, _KEPT)
        for count in (1, 3, 2):
            await bench.store.enqueue(APP, [a_run() for _ in range(count)])
        read = await read_feed(bench)
        everything = _events(read)
        assert len({event.cursor for event in everything}) == len(everything) == 6
        for place, event in enumerate(everything):
            start = cursor_of(event.cursor, read.first, read.end, APP)
            following = _events(await read_feed(bench, start), start=start)
            assert following == everything[place + 1 :]

    async def test_later_events_never_appear_before_events_already_read(self, bench: Bench) -> None:
        await bench.store.keep_feed(APP, _KEPT)
        seen: list[str | None] = []
        start = None
        for _ in range(5):
            run = await bench.enqueue()
            read = await read_feed(bench, start)
            seen += [event.run_id for event in _events(read)]
            assert seen[-1] == run.id
            start = read.end
        assert len(seen) == len(set(seen)) == 5

    async def test_the_feed_is_filtered_by_kind_and_time_up_to_the_limit(self, bench: Bench) -> None:
        await bench.store.keep_feed(APP, _KEPT)
        await bench.enqueue()
        await bench.pass_time(1000)
        since = await bench.now()
        node = await bench.node()
        await bench.claim(node)

        async def kinds(*wanted: str, since: int | None = None, limit: int = 10) -> list[str]:
            await _settle(bench)
            named = wanted or None
            read = await bench.store.feed(APP, start=None, since=since, kinds=named, limit=limit)
            assert read is not None
            return [row.kind for row in read.rows]

        assert await kinds() == ["run.recorded", "node.joined", "run.started"]
        assert await kinds("run.started", "node.joined") == ["node.joined", "run.started"]
        assert await kinds(since=since) == ["node.joined", "run.started"]
        assert await kinds(limit=1) == ["run.recorded"]

    # --- pruning

    async def test_old_events_are_pruned_and_their_cursors_are_refused(self, bench: Bench) -> None:
        await bench.store.keep_feed(APP, MINUTE)
        await bench.enqueue()
        early = await read_feed(bench)
        [event] = _events(early)
        await bench.enqueue()
        await bench.pass_time(2 * MINUTE)
        kept = await bench.enqueue()
        await _settle(bench)
        assert await bench.store.prune(APP, before=0, keep_per_schedule=1000, limit=100) == 2
        assert await bench.store.prune(APP, before=0, keep_per_schedule=1000, limit=100) == 0
        read = await read_feed(bench)
        assert [event.run_id for event in _events(read)] == [kept.id]
        for gone in (str(early.first), event.cursor):
            with pytest.raises(CursorGone, match="is older than the feed") as caught:
                cursor_of(gone, read.first, read.end, APP)
            assert caught.value.oldest == str(read.first)
        assert cursor_of(None, read.first, read.end, APP) == read.first

    async def test_pruning_the_feed_deletes_no_more_rows_than_its_limit(self, bench: Bench) -> None:
        await bench.store.keep_feed(APP, MINUTE)
        for _ in range(3):
            await bench.enqueue()
        await bench.pass_time(2 * MINUTE)
        await _settle(bench)
        assert await bench.store.prune(APP, before=0, keep_per_schedule=1000, limit=2) == 2
        assert len((await read_feed(bench)).rows) == 1

    async def test_pruning_deletes_the_rows_of_a_feed_that_was_turned_off(self, bench: Bench) -> None:
        await bench.store.keep_feed(APP, _KEPT)
        await bench.enqueue()
        await bench.store.keep_feed(APP, None)
        assert await bench.store.prune(APP, before=0, keep_per_schedule=1000, limit=100) == 1

    async def test_a_cursor_ahead_of_the_feed_is_refused(self, bench: Bench) -> None:
        await bench.store.keep_feed(APP, _KEPT)
        read = await read_feed(bench)
        ahead = Cursor.parse(f"{read.end.epoch}.{10**18 - 1}.{10**18 - 1}.999999")
        assert (await read_feed(bench, ahead)).rows == []
        with pytest.raises(CursorGone, match="is ahead of the feed"):
            cursor_of(str(ahead), read.first, read.end, APP)
        ahead = Cursor(read.end.epoch, read.end.txid, read.end.seq + 1)
        with pytest.raises(CursorGone, match="is ahead of the feed"):
            cursor_of(str(ahead), read.first, read.end, APP)
        assert cursor_of(str(read.end), read.first, read.end, APP) == read.end

    async def test_the_state_of_the_feed_can_be_read(self, bench: Bench) -> None:
        await bench.store.keep_feed(APP, _KEPT)
        before = await bench.now()
        await bench.enqueue()
        state = await _settle(bench)
        assert state is not None
        assert before <= state.now
        assert (state.kept, state.held_at) == (_KEPT, None)


class TransactionalFeed:
    """The feed in transactions of users."""

    async def test_events_of_a_users_transaction_appear_only_with_its_commit(self, bench: Bench, users: Users) -> None:
        await bench.store.keep_feed(APP, _KEPT)
        node = await bench.node()
        held = await bench.hold(node)
        start = (await read_feed(bench, limit=0)).end
        for is_kept in (False, True):
            user = await users.begin()
            within = bench.store.within(user.connection)
            [run] = await within.enqueue(APP, [a_run()])
            assert await within.finish(APP, node, an_outcome(held)) == "done"
            await (user.commit() if is_kept else user.rollback())
        events = _events(await read_feed(bench, start))
        assert [(event.kind, event.run_id) for event in events] == [("run.recorded", run.id), ("run.finished", held.id)]
