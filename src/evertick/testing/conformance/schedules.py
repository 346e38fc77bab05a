"""Promises about schedules: versions, declarations, calendars, overrides, and the separation of apps."""

from __future__ import annotations

import msgspec
import pytest

from evertick.model import Cause, NewRun, Occurrence, Pause, Reason, State, Verdict
from evertick.store.base import Change, DeclaredBy, NewCalendar, NodeJoin, Note, RunFilter, ScheduleFilter
from evertick.testing.conformance.bench import (
    APP,
    HOUR,
    MINUTE,
    OTHER_APP,
    TASK,
    TERMS,
    Bench,
    a_definition,
    a_fire,
    a_gap,
    a_run,
    an_advance,
    an_outcome,
    us,
)

__all__ = ["Overrides", "Schedules"]

# A format that no store reads.
_UNREADABLE = 1_000_000


def _declared(**fields: object) -> DeclaredBy:
    return DeclaredBy(node_name="web", hash="h1", rule="daily", definition=a_definition(**fields))


class Schedules:
    # --- add

    async def test_a_schedule_has_the_fields_it_was_added_with(self, bench: Bench) -> None:
        now = await bench.now()
        definition = a_definition(
            args={"depth": 3, "names": ["a", "ö"], "deep": {"x": None}},
            queue="slow",
            priority=-2,
            catch_up="all",
            catch_up_limit=7,
            pace=5,
            grace=HOUR,
            overlap="queue",
            expires=MINUTE,
            labels={"team": "billing"},
        )
        change = Change(
            key="nightly",
            kind="add",
            definition=definition,
            created_at=now - 5,
            fire_at=now + 1,
            at=now + 2,
            fingerprint="zone rules",
        )
        assert await bench.store.change_schedules(APP, [change]) == [True]
        stored = await bench.stored()
        assert stored.key == "nightly"
        assert stored.definition == definition
        assert stored.created_at == now - 5
        assert (stored.fire_at, stored.at) == (now + 1, now + 2)
        assert stored.fingerprint == "zone rules"
        assert (stored.fires, stored.failures, stored.error) == (0, 0, None)
        assert (stored.pause, stored.declared, stored.live) == (None, None, 0)

    async def test_a_schedule_is_found_by_id_and_by_key(self, bench: Bench) -> None:
        first, second = await bench.add("first"), await bench.add("second")
        assert await bench.store.stored_schedules(APP, ids=[first.id]) == [first]
        assert await bench.store.stored_schedules(APP, keys=["second", "no such"]) == [second]
        both = await bench.store.stored_schedules(APP, ids=[second.id, first.id, first.id + second.id + 1000])
        assert sorted(both, key=lambda found: found.key) == [first, second]
        assert await bench.store.stored_schedules(APP) == []

    async def test_adding_a_key_that_is_taken_is_refused_and_changes_nothing(self, bench: Bench) -> None:
        before = await bench.add(args={"mine": True})
        change = Change(key="nightly", kind="add", definition=a_definition(args={"mine": False}), fire_at=1, at=1)
        assert await bench.store.change_schedules(APP, [change]) == [False]
        assert await bench.stored() == before

    async def test_of_two_adds_of_one_key_in_a_batch_the_first_is_accepted(self, bench: Bench) -> None:
        adds = [
            Change(key="nightly", kind="add", definition=a_definition(priority=number), fire_at=1, at=1)
            for number in (1, 2)
        ]
        assert await bench.store.change_schedules(APP, adds) == [True, False]
        assert (await bench.stored()).definition.priority == 1

    async def test_a_new_store_object_reads_schedules_written_by_another(self, bench: Bench) -> None:
        added = await bench.add()
        second = await bench.stores.open()
        assert await second.stored_schedules(APP, keys=["nightly"]) == [added]

    # --- edit

    async def test_an_edit_raises_the_version_and_moves_the_cursor(self, bench: Bench) -> None:
        before = await bench.add()
        now = await bench.now()
        settle = an_advance(before, next_fire_at=now + HOUR, next_at=now + HOUR + 1, fingerprint="new rules")
        assert await bench.change("edit", before, settle, definition=a_definition(when="every 2m"))
        after = await bench.stored()
        assert after.id == before.id
        assert after.version > before.version
        assert after.definition == a_definition(when="every 2m")
        assert (after.fire_at, after.at) == (now + HOUR, now + HOUR + 1)
        assert after.fingerprint == "new rules"
        assert after.created_at == before.created_at

    @pytest.mark.parametrize("kind", ["edit", "pause", "resume", "remove"])
    @pytest.mark.parametrize("guard", ["version", "fire_at", "at"])
    async def test_a_change_planned_from_an_old_reading_is_refused(self, bench: Bench, kind: str, guard: str) -> None:
        before = await bench.add()
        stale = {"version": before.version + 1, "fire_at": 1, "at": 1}[guard]
        settle = an_advance(before, a_fire(before), gaps=(a_gap(1, 2),), **{guard: stale})
        definition = a_definition(priority=9) if kind == "edit" else None
        pause = Pause(at=1) if kind == "pause" else None
        assert not await bench.change(kind, before, settle, definition=definition, pause=pause)
        assert await bench.stored() == before
        assert await bench.runs() == []
        assert await bench.gaps() == []

    async def test_a_change_guarded_by_live_runs_is_refused_when_they_changed(self, bench: Bench) -> None:
        before = await bench.add()
        settle = an_advance(before, live=1)
        assert not await bench.change("edit", before, settle, definition=a_definition(priority=9))
        assert await bench.stored() == before

    async def test_a_change_to_an_unknown_key_is_refused(self, bench: Bench) -> None:
        schedule = await bench.add()
        change = Change(key="no such", kind="edit", settle=an_advance(schedule), definition=a_definition(priority=9))
        assert await bench.store.change_schedules(APP, [change]) == [False]
        assert await bench.stored() == schedule

    async def test_a_refused_change_does_not_stop_the_others_of_its_batch(self, bench: Bench) -> None:
        first, second = await bench.add("first"), await bench.add("second")
        changes = [
            Change(key="first", kind="edit", settle=an_advance(first, version=99), definition=a_definition(priority=1)),
            Change(key="second", kind="edit", settle=an_advance(second), definition=a_definition(priority=2)),
            Change(key="third", kind="add", definition=a_definition(priority=3), fire_at=1, at=1),
        ]
        assert await bench.store.change_schedules(APP, changes) == [False, True, True]
        assert (await bench.stored("first")).definition.priority == 0
        assert (await bench.stored("second")).definition.priority == 2
        assert (await bench.stored("third")).definition.priority == 3

    async def test_the_same_edit_sent_again_is_refused(self, bench: Bench) -> None:
        before = await bench.add()
        settle = an_advance(before, a_fire(before))
        assert await bench.change("edit", before, settle, definition=a_definition(priority=1))
        after = await bench.stored()
        assert not await bench.change("edit", before, settle, definition=a_definition(priority=1))
        assert await bench.stored() == after
        assert len(await bench.runs()) == 1

    async def test_an_edit_settles_the_old_definition_in_the_same_write(self, bench: Bench) -> None:
        before = await bench.add(args={"old": True})
        assert before.fire_at is not None
        gap = a_gap(before.fire_at - HOUR, before.fire_at - MINUTE, count=60, reason=Reason.EDITED)
        owed = a_fire(before)
        settle = an_advance(before, owed, gaps=(gap,))
        assert await bench.change("edit", before, settle, definition=a_definition(args={"old": False}))
        assert (await bench.run(owed.id)).args == {"old": True}
        [found] = await bench.gaps()
        assert (found.reason, found.count) == (Reason.EDITED, 60)

    async def test_a_run_keeps_the_arguments_of_the_version_it_was_recorded_under(self, bench: Bench) -> None:
        node = await bench.node()
        first = await bench.add(args={"day": 1})
        early = await bench.fire(first)
        between = await bench.stored()
        assert await bench.change("edit", between, definition=a_definition(args={"day": 2}))
        late = await bench.fire(await bench.stored())
        assert (await bench.run(early)).args == {"day": 1}
        assert (await bench.run(late)).args == {"day": 2}
        claimed = {held.id: held.args for held in (await bench.claim(node)).runs}
        assert b'"day":1' in claimed[early].replace(b" ", b"")
        assert b'"day":2' in claimed[late].replace(b" ", b"")

    async def test_the_own_arguments_of_a_run_win_over_those_of_its_schedule(self, bench: Bench) -> None:
        schedule = await bench.add(args={"day": 1})
        run = await bench.fire(schedule, args=b'{"day":9}')
        assert (await bench.run(run)).args == {"day": 9}

    # --- pause, resume

    async def test_a_paused_schedule_is_never_due(self, bench: Bench) -> None:
        paused = await bench.pause(await bench.add(), pause=Pause(at=5, note="holiday", until=99))
        assert paused.pause == Pause(at=5, note="holiday", until=99)
        assert paused.at is None
        due = await bench.store.due_schedules(APP, 10)
        assert (due.schedules, due.next_at) == ([], None)

    async def test_pause_and_resume_each_raise_the_version(self, bench: Bench) -> None:
        added = await bench.add()
        paused = await bench.pause(added, pause=Pause(at=5))
        settle = an_advance(paused, next_fire_at=7, next_at=8)
        assert await bench.change("resume", paused, settle)
        resumed = await bench.stored()
        assert added.version < paused.version < resumed.version
        assert resumed.pause is None
        assert (resumed.fire_at, resumed.at) == (7, 8)
        assert resumed.definition == added.definition

    async def test_runs_recorded_before_a_pause_continue(self, bench: Bench) -> None:
        node = await bench.node()
        run = await bench.fire(await bench.add())
        await bench.pause(await bench.stored(), pause=Pause(at=5))
        assert (await bench.hold(node, run)).schedule_key == "nightly"

    async def test_a_schedule_with_a_timed_pause_is_due_at_its_end(self, bench: Bench) -> None:
        now = await bench.now()
        added = await bench.add()
        settle = an_advance(added, next_at=now - 1)
        assert await bench.change("pause", added, settle, pause=Pause(at=5, until=now - 1))
        [due] = (await bench.store.due_schedules(APP, 10)).schedules
        paused = await bench.stored()
        assert due.version == paused.version
        await bench.record(an_advance(paused, ends_pause=True))
        resumed = await bench.stored()
        assert resumed.pause is None
        assert resumed.version > paused.version
        assert resumed.definition == paused.definition

    # --- remove

    async def test_a_removed_schedule_is_gone(self, bench: Bench) -> None:
        schedule = await bench.add(declared=_declared())
        assert await bench.change("remove", schedule)
        assert await bench.store.stored_schedules(APP, ids=[schedule.id], keys=["nightly"]) == []
        assert await bench.store.declared_schedules(APP) == []
        assert (await bench.store.due_schedules(APP, 10)).schedules == []
        assert await bench.store.schedules(APP, ScheduleFilter()) == []
        assert (await bench.store.pulse(APP)).schedules == 0

    async def test_nothing_is_recorded_for_a_removed_schedule(self, bench: Bench) -> None:
        schedule = await bench.add()
        assert await bench.change("remove", schedule)
        assert (await bench.record(an_advance(schedule, a_fire(schedule)))).taken == [False]
        assert await bench.runs() == []

    async def test_removing_a_schedule_cancels_runs_that_have_not_started(self, bench: Bench) -> None:
        node = await bench.node()
        schedule = await bench.add(args={"kept": 1})
        finished = await bench.hold(node, await bench.fire(schedule))
        await bench.end(node, finished)
        parked = await bench.hold(node, await bench.fire(await bench.stored()))
        await bench.finish(node, an_outcome(parked, "park"))
        running = await bench.hold(node, await bench.fire(await bench.stored()))
        waiting = await bench.fire(await bench.stored())
        blocked = await bench.fire(await bench.stored(), state=State.BLOCKED)
        assert await bench.state(blocked) is State.BLOCKED
        assert await bench.change("remove", await bench.stored())
        for run in (parked.id, waiting, blocked):
            ended = await bench.run(run)
            assert (ended.state, ended.verdict) == (State.DONE, Verdict.CANCELLED)
            assert ended.reason == Reason.REMOVED
        assert (await bench.run(finished.id)).verdict is Verdict.SUCCEEDED
        assert (await bench.run(running.id)).args == {"kept": 1}
        assert (await bench.end(node, running)).verdict is Verdict.SUCCEEDED

    async def test_the_key_of_a_removed_schedule_is_free_again(self, bench: Bench) -> None:
        first = await bench.add()
        run = await bench.fire(first)
        assert await bench.change("remove", await bench.stored())
        second = await bench.add(fire_at=await bench.now() + HOUR, priority=1)
        assert second.definition.priority == 1
        assert (second.id, second.version) != (first.id, first.version)
        assert (await bench.run(run)).verdict is Verdict.CANCELLED

    # --- declared, formats

    async def test_a_declaration_is_kept_until_it_is_replaced(self, bench: Bench) -> None:
        declared = _declared(priority=3)
        added = await bench.add(declared=declared, priority=3)
        assert added.declared == declared
        assert await bench.change("edit", added, definition=a_definition(priority=4))
        edited = await bench.stored()
        assert edited.declared == declared
        newer = DeclaredBy(node_name="worker", hash="h2", rule="daily", definition=a_definition(priority=5))
        assert await bench.change("edit", edited, definition=a_definition(priority=5), declared=newer)
        assert (await bench.stored()).declared == newer

    async def test_declared_schedules_include_those_that_code_no_longer_declares(self, bench: Bench) -> None:
        await bench.add("by hand")
        declared = await bench.add("in code", declared=_declared())
        assert await bench.store.declared_schedules(APP) == [declared]
        undeclared = await bench.pause(declared, pause=Pause(at=5, is_undeclared=True))
        assert await bench.store.declared_schedules(APP) == [undeclared]

    async def test_a_schedule_in_an_unreadable_format_is_left_alone(self, bench: Bench) -> None:
        readable = await bench.add("readable")
        newer = Change(key="newer", kind="add", definition=a_definition(format=_UNREADABLE), fire_at=1, at=1)
        assert await bench.store.change_schedules(APP, [newer]) == [True]
        assert await bench.store.stored_schedules(APP, keys=["readable", "newer"]) == [readable]
        # Otherwise every tick would read a schedule that it cannot plan, before all others.
        [due] = (await bench.store.due_schedules(APP, 10)).schedules
        assert due.id == readable.id
        assert (await bench.store.due_schedules(APP, 1)).schedules == [due]

    # --- fingerprints of cursors

    async def test_each_fingerprint_in_use_is_listed_with_a_schedule_that_has_it(self, bench: Bench) -> None:
        for key, fingerprint in (("one", "summer"), ("two", "summer"), ("three", "winter")):
            schedule = await bench.add(key)
            await bench.record(an_advance(schedule, fingerprint=fingerprint))
        found = await bench.store.fingerprints(APP)
        assert set(found) == {"summer", "winter"}
        [sample] = await bench.store.stored_schedules(APP, ids=[found["summer"]])
        assert sample.fingerprint == "summer"
        assert await bench.store.fingerprints(OTHER_APP) == {}

    async def test_schedules_are_found_by_the_fingerprint_of_their_cursor(self, bench: Bench) -> None:
        schedules = [await bench.add(key) for key in ("one", "two", "three", "other")]
        for schedule in schedules[:3]:
            await bench.record(an_advance(schedule, fingerprint="summer"))
        ids = sorted(schedule.id for schedule in schedules[:3])
        first = await bench.store.computed_with(APP, "summer", after=0, limit=2)
        rest = await bench.store.computed_with(APP, "summer", after=first[-1].id, limit=2)
        assert [schedule.id for schedule in [*first, *rest]] == ids
        assert await bench.store.computed_with(OTHER_APP, "summer", after=0, limit=9) == []

    # --- calendars

    async def test_calendars_are_kept_by_name_in_their_newest_version(self, bench: Bench) -> None:
        assert await bench.store.calendars(APP) == {}
        await bench.store.put_calendar(APP, "holidays", "1", b"first")
        await bench.store.put_calendar(APP, "freeze", "1", b"other")
        await bench.store.put_calendar(APP, "holidays", "2", b"second")
        assert await bench.store.calendars(APP) == {"holidays": b"second", "freeze": b"other"}

    async def test_the_same_calendar_again_changes_nothing(self, bench: Bench) -> None:
        for _ in range(2):
            await bench.store.put_calendar(APP, "holidays", "1", b"first")
        assert await bench.store.calendars(APP) == {"holidays": b"first"}

    # --- batches of changes

    async def test_changes_of_every_kind_and_calendars_are_written_in_one_batch(self, bench: Bench) -> None:
        edited, paused, removed = [await bench.add(key) for key in ("edited", "paused", "removed")]
        resumed = await bench.pause(await bench.add("resumed"), pause=Pause(at=await bench.now(), note="by hand"))
        changes = [
            Change(key="removed", kind="remove", settle=an_advance(removed)),
            Change(key="added", kind="add", definition=a_definition(priority=1), fire_at=1, at=1),
            Change(key="edited", kind="edit", settle=an_advance(edited), definition=a_definition(priority=2)),
            Change(
                key="resumed",
                kind="resume",
                settle=an_advance(resumed, next_fire_at=7, next_at=8),
                definition=a_definition(priority=3),
                declared=_declared(priority=3),
            ),
            Change(key="paused", kind="pause", settle=an_advance(paused), pause=Pause(at=1, note="not now")),
        ]
        calendars = [NewCalendar(name=name, version="1", content=name.encode()) for name in ("b", "a")]
        taken = await bench.store.change_schedules(APP, changes, all_or_none=True, calendars=calendars)
        assert taken == [True] * 5
        assert await bench.store.stored_schedules(APP, keys=["removed"]) == []
        found = {key: (await bench.stored(key)).definition.priority for key in ("added", "edited", "resumed", "paused")}
        assert found == {"added": 1, "edited": 2, "resumed": 3, "paused": 0}
        after = await bench.stored("resumed")
        assert (after.pause, after.fire_at, after.at) == (None, 7, 8)
        assert after.declared == _declared(priority=3)
        held = (await bench.stored("paused")).pause
        assert held is not None
        assert held.note == "not now"
        assert await bench.store.calendars(APP) == {"a": b"a", "b": b"b"}

    @pytest.mark.parametrize("refused", ["add", "edit", "remove"])
    async def test_an_all_or_none_batch_of_changes_writes_nothing_if_one_is_refused(
        self, bench: Bench, refused: str
    ) -> None:
        edited, removed = await bench.add("edited"), await bench.add("removed")
        await bench.add("taken")
        run = await bench.enqueue()
        changes = {
            "add": Change(key="new", kind="add", definition=a_definition(), fire_at=1, at=1),
            "edit": Change(
                key="edited",
                kind="edit",
                settle=an_advance(edited, a_fire(edited)),
                definition=a_definition(priority=2),
            ),
            "remove": Change(key="removed", kind="remove", settle=an_advance(removed, gaps=(a_gap(1, 2),))),
        }
        wrong = {
            "add": Change(key="taken", kind="add", definition=a_definition(), fire_at=1, at=1),
            "edit": Change(key="edited", kind="edit", settle=an_advance(edited, version=edited.version + 1)),
            "remove": Change(key="removed", kind="remove", settle=an_advance(removed, fire_at=1)),
        }
        wanted = [*(change for kind, change in changes.items() if kind != refused), wrong[refused]]
        calendars = [NewCalendar(name="holidays", version="1", content=b"new")]
        taken = await bench.store.change_schedules(APP, wanted, all_or_none=True, calendars=calendars)
        assert taken == [True, True, False]
        assert await bench.stored("edited") == edited
        assert await bench.stored("removed") == removed
        assert await bench.store.stored_schedules(APP, keys=["new"]) == []
        assert await bench.store.calendars(APP) == {}
        assert [each.id for each in await bench.store.runs(APP, RunFilter())] == [run.id]
        assert await bench.store.gaps(APP, RunFilter()) == []

    # --- apps

    async def test_the_same_key_in_two_apps_is_two_schedules(self, bench: Bench) -> None:
        own = await bench.add(priority=1)
        foreign = await bench.add(app=OTHER_APP, priority=2)
        assert own.id != foreign.id
        assert await bench.change("remove", own)
        assert await bench.stored(app=OTHER_APP) == foreign

    async def test_no_app_reads_the_schedules_of_another(self, bench: Bench) -> None:
        own = await bench.add(declared=_declared())
        await bench.store.put_calendar(APP, "holidays", "1", b"mine")
        due = await bench.store.due_schedules(OTHER_APP, 10)
        assert (due.schedules, due.next_at) == ([], None)
        assert await bench.store.stored_schedules(OTHER_APP, ids=[own.id], keys=["nightly"]) == []
        assert await bench.store.declared_schedules(OTHER_APP) == []
        assert await bench.store.schedules(OTHER_APP, ScheduleFilter()) == []
        assert await bench.store.calendars(OTHER_APP) == {}

    async def test_no_app_writes_the_schedules_of_another(self, bench: Bench) -> None:
        own = await bench.add()
        plan = an_advance(own, a_fire(own), gaps=(a_gap(1, 2),))
        assert (await bench.store.record_fires(OTHER_APP, None, [plan])).taken == [False]
        change = Change(key="nightly", kind="edit", settle=plan, definition=a_definition(priority=9))
        assert await bench.store.change_schedules(OTHER_APP, [change]) == [False]
        await bench.store.put_calendar(OTHER_APP, "holidays", "1", b"theirs")
        assert await bench.stored() == own
        assert await bench.runs() == await bench.runs(app=OTHER_APP) == []
        assert await bench.store.calendars(APP) == {}

    async def test_no_app_reads_the_runs_of_another(self, bench: Bench) -> None:
        node = await bench.node()
        schedule = await bench.add()
        plan = an_advance(schedule, a_fire(schedule), gaps=(a_gap(1, 2),))
        await bench.record(plan)
        [held] = (await bench.claim(node)).runs
        await bench.note(node, held, lines=((1, "info", "secret"),))
        await bench.finish(node, an_outcome(held, "retry"))
        assert await bench.runs(app=OTHER_APP) == await bench.runs(app=OTHER_APP, ids=(held.id,)) == []
        assert await bench.store.gaps(OTHER_APP, RunFilter()) == []
        assert await bench.store.attempts(OTHER_APP, held.id) == []
        assert await bench.store.log(OTHER_APP, held.id) == []
        assert await bench.store.nodes(OTHER_APP) == []
        pulse = await bench.store.pulse(OTHER_APP)
        assert (pulse.waiting, pulse.running, pulse.schedules, pulse.oldest_due_at) == (0, 0, 0, None)

    async def test_no_app_claims_or_ends_the_runs_of_another(self, bench: Bench) -> None:
        node = await bench.node()
        stranger = await bench.node(app=OTHER_APP)
        held = await bench.hold(node)
        waiting = await bench.enqueue()
        nothing = await bench.claim(stranger, app=OTHER_APP)
        assert (nothing.runs, nothing.next_due_at) == ([], None)
        assert (await bench.store.finish(OTHER_APP, node, [an_outcome(held)])).answers == ["lost"]
        assert await bench.store.owned(OTHER_APP, node) == []
        note = Note(id=held.id, fence=held.fence, progress=0.5)
        assert await bench.store.note(OTHER_APP, node, [note]) == [held.id]
        [answer] = await bench.store.cancel(OTHER_APP, [waiting.id], "requested")
        assert answer.answer == "unknown"
        await bench.store.leave(node)
        settled = await bench.rehome(stranger, app=OTHER_APP)
        assert (settled.claimed, settled.released, settled.ended) == ([], [], [])
        run = await bench.run(held.id)
        assert (run.state, run.node, run.progress) == (State.RUNNING, node, None)
        assert await bench.state(waiting.id) is State.WAITING

    async def test_maintenance_of_one_app_leaves_another_alone(self, bench: Bench) -> None:
        node = await bench.node()
        done = await bench.hold(node)
        await bench.end(node, done)
        unknown = await bench.enqueue(task="unknown")
        assert await bench.store.park_unknown(OTHER_APP, 10) == 0
        await bench.store.prune(OTHER_APP, before=await bench.now() + HOUR, keep_per_schedule=100, limit=100)
        assert await bench.state(unknown.id) is State.WAITING
        assert await bench.state(done.id) is State.DONE

    async def test_a_node_of_one_app_does_not_free_parked_runs_of_another(self, bench: Bench) -> None:
        run = await bench.enqueue()
        assert await bench.store.park_unknown(APP, 10) == 1
        await bench.node(app=OTHER_APP)
        await bench.store.park_unknown(APP, 10)
        assert await bench.state(run.id) is State.PARKED

    async def test_a_unique_key_is_unique_within_its_app(self, bench: Bench) -> None:
        own = await bench.enqueue(unique_key="k")
        foreign = await bench.enqueue(unique_key="k", app=OTHER_APP)
        assert own.id != foreign.id
        assert foreign.is_new

    async def test_names_are_never_part_of_a_statement(self, bench: Bench) -> None:
        odd = 'o\'; DROP TABLE "runs" -- %s $1 ? {x} \\ ü 漢'
        schedule = await bench.add(odd, task=odd, labels={odd: odd}, queue=odd, args={odd: odd})
        new: NewRun = a_fire(schedule, queue=odd, labels={odd: odd}, unique_key=odd, reason=odd)
        assert (await bench.record(an_advance(schedule, new))).taken == [True]
        run = await bench.run(new.id)
        assert (run.task, run.queue, run.labels, run.args) == (odd, odd, {odd: odd}, {odd: odd})
        assert (run.schedule_key, run.reason) == (odd, odd)
        assert [found.id for found in await bench.runs(schedule_key=odd, labels={odd: odd}, task=odd)] == [new.id]
        terms = {odd: TERMS[TASK]}
        await bench.store.join(
            NodeJoin(
                id=odd, name=odd, app=APP, version=odd, lease=HOUR, queues=(odd,), tasks=terms, declares={odd: odd}
            )
        )
        [held] = (await bench.claim(odd, queues=[odd], tasks=terms)).runs
        assert held.id == new.id
        assert await bench.finish(odd, an_outcome(held, error=odd, reason=odd)) == ["done"]
        assert (await bench.run(new.id)).error == odd

    async def test_times_are_read_exactly_as_they_were_written(self, bench: Bench) -> None:
        odd = 1_234_567_890_123_457
        schedule = await bench.add(fire_at=odd)
        assert us((await bench.schedule()).next_fire_at) == odd
        run = await bench.run(await bench.fire(schedule))
        assert us(run.fire_at) == us(run.due_at) == odd
        by_hand = await bench.store.enqueue(APP, [a_run(fire_at=odd + 1, due_at=odd + 2)])
        assert (us(by_hand[0].fire_at), us(by_hand[0].due_at)) == (odd + 1, odd + 2)


# --- overrides --------------------------------------------------------------------------------------------------------


def _skip(fire_at: int, note: str = "") -> Occurrence:
    return Occurrence(fire_at=fire_at, kind="skip", note=note)


class Overrides:
    async def test_a_new_schedule_has_no_overrides(self, bench: Bench) -> None:
        assert (await bench.add()).occurrences == ()
        assert (await bench.schedule()).occurrences == ()

    async def test_overrides_are_stored_and_raise_the_version(self, bench: Bench) -> None:
        before = await bench.add()
        now = await bench.now()
        moved = Occurrence(fire_at=now + HOUR, kind="move", to=now + MINUTE, note="ö")
        decided = (_skip(now + MINUTE), moved, Occurrence(fire_at=now + 2 * HOUR, kind="done"))
        assert (await bench.record(an_advance(before, occurrences=decided))).taken == [True]
        after = await bench.stored()
        assert after.occurrences == decided
        assert after.version > before.version
        assert after.definition == before.definition

    async def test_a_plan_without_overrides_leaves_them_and_the_version_as_they_are(self, bench: Bench) -> None:
        first = await bench.add()
        await bench.record(an_advance(first, occurrences=(_skip(1),)))
        before = await bench.stored()
        assert (await bench.record(an_advance(before, a_fire(before)))).taken == [True]
        after = await bench.stored()
        assert (after.occurrences, after.version) == (before.occurrences, before.version)

    async def test_the_last_override_can_be_deleted(self, bench: Bench) -> None:
        first = await bench.add()
        await bench.record(an_advance(first, occurrences=(_skip(1),)))
        before = await bench.stored()
        assert (await bench.record(an_advance(before, occurrences=()))).taken == [True]
        after = await bench.stored()
        assert after.occurrences == ()
        assert after.version > before.version

    async def test_a_plan_made_before_an_override_is_refused(self, bench: Bench) -> None:
        before = await bench.add()
        cursor = {"next_fire_at": before.fire_at, "next_at": before.at}
        assert (await bench.record(an_advance(before, occurrences=(_skip(1),), **cursor))).taken == [True]
        assert (await bench.record(an_advance(before, a_fire(before)))).taken == [False]
        assert await bench.runs() == []

    async def test_a_refused_plan_writes_no_overrides(self, bench: Bench) -> None:
        before = await bench.add()
        stale = an_advance(before, version=before.version + 1, occurrences=(_skip(1),))
        assert (await bench.record(stale)).taken == [False]
        assert await bench.stored() == before

    async def test_an_edit_keeps_or_replaces_overrides(self, bench: Bench) -> None:
        first = await bench.add()
        await bench.record(an_advance(first, occurrences=(_skip(1), _skip(2))))
        before = await bench.stored()
        assert await bench.change("edit", before, definition=a_definition(priority=3))
        kept = await bench.stored()
        assert kept.occurrences == before.occurrences
        settle = an_advance(kept, occurrences=(_skip(2),))
        assert await bench.change("edit", kept, settle, definition=a_definition(priority=4))
        after = await bench.stored()
        assert after.occurrences == (_skip(2),)
        assert after.version > kept.version > before.version

    async def test_a_listed_schedule_shows_its_overrides_that_are_still_to_come(self, bench: Bench) -> None:
        before = await bench.add()
        now = await bench.now()
        moved = Occurrence(fire_at=now + HOUR, kind="move", to=now + MINUTE, note="plane")
        decided = (_skip(now, "why"), moved, Occurrence(fire_at=now + 2 * HOUR, kind="done"))
        await bench.record(an_advance(before, occurrences=decided))
        skip, move = (await bench.schedule()).occurrences
        assert (us(skip.fire_at), skip.kind, skip.to, skip.note) == (now, "skip", None, "why")
        assert (us(move.fire_at), move.kind, us(move.to), move.note) == (now + HOUR, "move", now + MINUTE, "plane")

    async def test_removing_a_schedule_deletes_its_overrides(self, bench: Bench) -> None:
        before = await bench.add()
        await bench.record(an_advance(before, occurrences=(_skip(1),)))
        assert await bench.change("remove", await bench.stored())
        assert (await bench.add()).occurrences == ()
        assert [each.key for each in await bench.store.stored_schedules(APP, keys=["nightly"])] == ["nightly"]

    # --- early runs that are undone

    async def test_an_undone_early_run_ends_and_its_moment_can_run_again(self, bench: Bench) -> None:
        schedule = await bench.add(fire_at=await bench.now() + HOUR)
        early = await bench.fire(schedule)
        before = await bench.stored()
        back = {"next_fire_at": schedule.fire_at, "next_at": schedule.at}
        assert (await bench.record(an_advance(before, undoes_run=early, **back))).taken == [True]
        run = await bench.run(early)
        assert (run.verdict, run.reason, run.cause) == (Verdict.CANCELLED, "undone", Cause.TRIGGER)
        after = await bench.stored()
        assert (after.fire_at, after.fires, after.live) == (schedule.fire_at, 0, 0)
        again = await bench.fire(after)
        assert await bench.state(again) is State.WAITING
        assert (await bench.stored()).fires == 1

    async def test_an_early_run_that_has_started_cannot_be_undone(self, bench: Bench) -> None:
        node = await bench.node()
        schedule = await bench.add()
        early = await bench.fire(schedule)
        held = await bench.hold(node, early)
        before = await bench.stored()
        assert (await bench.record(an_advance(before, undoes_run=early))).taken == [False]
        await bench.finish(node, an_outcome(held, "retry"))
        assert (await bench.record(an_advance(before, undoes_run=early))).taken == [False]
        await bench.end(node, await bench.hold(node, early))
        assert (await bench.record(an_advance(before, undoes_run=early))).taken == [False]
        assert await bench.stored() == msgspec.structs.replace(before, live=0)

    async def test_an_early_run_that_was_lost_cannot_be_undone(self, bench: Bench) -> None:
        node = await bench.node()
        early = await bench.fire(await bench.add())
        await bench.hold(node, early)
        await bench.store.leave(node)
        other = await bench.node(tasks={})
        assert len((await bench.rehome(other, tasks={})).released) == 1
        assert (await bench.record(an_advance(await bench.stored(), undoes_run=early))).taken == [False]

    async def test_an_early_run_that_was_released_unstarted_can_be_undone(self, bench: Bench) -> None:
        node = await bench.node()
        early = await bench.fire(await bench.add())
        held = await bench.hold(node, early)
        await bench.finish(node, an_outcome(held, "release"))
        assert (await bench.record(an_advance(await bench.stored(), undoes_run=early))).taken == [True]
        assert await bench.finish(node, an_outcome(held, "release")) == ["already"]

    async def test_only_a_fire_of_the_schedule_itself_can_be_undone(self, bench: Bench) -> None:
        schedule, other = await bench.add(), await bench.add("other")
        foreign = await bench.fire(other)
        by_hand = await bench.fire(schedule, cause=Cause.TRIGGER)
        before = await bench.stored()
        for run in (foreign, by_hand, "unknown"):
            assert (await bench.record(an_advance(before, undoes_run=run))).taken == [False]
        assert await bench.stored() == before

    async def test_a_refused_plan_undoes_no_early_run(self, bench: Bench) -> None:
        schedule = await bench.add()
        early = await bench.fire(schedule)
        assert (await bench.record(an_advance(schedule, undoes_run=early))).taken == [False]
        assert await bench.state(early) is State.WAITING

    @pytest.mark.parametrize("period", [None, HOUR])
    async def test_the_unique_key_of_an_undone_run_is_free(self, bench: Bench, period: int | None) -> None:
        schedule = await bench.add(unique="one", unique_for=period)
        early = await bench.fire(schedule, unique_key="one", unique_for=period)
        before = await bench.stored()
        back = {"next_fire_at": schedule.fire_at, "next_at": schedule.at}
        assert (await bench.record(an_advance(before, undoes_run=early, **back))).taken == [True]
        again = await bench.fire(await bench.stored(), unique_key="one", unique_for=period)
        assert await bench.state(again) is State.WAITING

    async def test_a_run_blocked_on_an_undone_run_is_freed(self, bench: Bench) -> None:
        early = await bench.fire(await bench.add())
        behind = await bench.fire(await bench.stored(), state=State.BLOCKED)
        assert (await bench.record(an_advance(await bench.stored(), undoes_run=early))).taken == [True]
        assert await bench.state(behind) is State.WAITING
