"""Changes of schedules: due moments are settled first, then the cursor restarts from now."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
from ledger_bench import APP, Bench

from evertick import Calendar, Cron, Every, NotFound, Once, Refused, State, StoreUnavailable, Verdict
from evertick.ledger.editor import Addition
from evertick.model import Cause, Definition
from evertick.store.base import Change, DeclaredBy
from evertick.when import from_us
from evertick.when.moment import MINUTE, SECOND


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    await made.open()
    yield made
    await made.store.close()


def same(definition: Definition) -> Definition:
    return definition


def by_code(when: str = "every 1m") -> DeclaredBy:
    return DeclaredBy(node_name="web", hash="h1", rule="daily", definition=Definition(task="job", when=when))


# --- add


async def test_a_new_schedule_has_no_past_moments(bench: Bench) -> None:
    bench.later(90)
    await bench.add(Every("1m", start=from_us(bench.start - 86_400 * SECOND)))
    assert bench.seconds((await bench.stored()).fire_at) == 120
    await bench.tick()
    assert await bench.fired() == []


async def test_an_interval_does_not_fire_at_its_creation(bench: Bench) -> None:
    await bench.add(Every("1m"))
    assert bench.seconds((await bench.stored()).fire_at) == 60


async def test_a_one_shot_at_the_current_moment_fires(bench: Bench) -> None:
    await bench.add(Once(after="0s"))
    await bench.tick()
    assert await bench.fired() == [0]


async def test_a_one_shot_of_the_past_never_fires(bench: Bench) -> None:
    await bench.add(Once(from_us(bench.start - SECOND)))
    assert (await bench.stored()).fire_at is None


async def test_a_key_that_is_taken_is_not_added(bench: Bench) -> None:
    assert await bench.add(Every("1m"))
    assert not await bench.add(Every("2m"))
    assert (await bench.stored()).definition.when == "every 1m; tz=UTC"


async def test_an_all_or_none_add_adds_nothing_if_one_key_is_taken(bench: Bench) -> None:
    await bench.add(Every("1m"), "b")
    additions = [Addition(key=key, rule=Every("1m"), definition=Definition(task="job", when="")) for key in "abc"]
    taken = await bench.editor.add(additions, all_or_none=True)
    assert taken == [True, False, True]
    assert await bench.store.stored_schedules(APP, keys=["a", "c"]) == []


# --- edit


async def test_an_edit_runs_a_moment_of_the_last_minute_with_the_old_definition(bench: Bench) -> None:
    await bench.add(Every("1h"), args={"a": 1})
    bench.later(3600 + 59)
    await bench.editor.edit("k", lambda old: msgspec.structs.replace(old, args={"a": 2}))
    assert await bench.fired() == [3600]
    assert (await bench.runs())[0].args == {"a": 1}
    assert await bench.gaps() == []
    assert (await bench.stored()).definition.args == {"a": 2}


async def test_an_edit_records_older_moments_as_a_gap(bench: Bench) -> None:
    await bench.add(Every("1h"))
    bench.later(3 * 3600 + 61)
    await bench.editor.edit("k", same)
    assert await bench.fired() == []
    assert await bench.gaps() == [(3600, 3 * 3600, 3, "skipped", "edited")]
    assert bench.seconds((await bench.stored()).fire_at) == 4 * 3600


async def test_an_edit_alone_fires_nothing(bench: Bench) -> None:
    await bench.add(Every("1h"))
    bench.later(1800)
    await bench.editor.edit("k", same, rule=Every("1m"))
    assert await bench.fired() == []
    assert await bench.gaps() == []
    assert bench.seconds((await bench.stored()).fire_at) == 1860


async def test_an_edit_raises_the_version_and_keeps_the_creation_time(bench: Bench) -> None:
    await bench.add(Every("7m", since="start"))
    bench.later(10)
    before = await bench.stored()
    await bench.editor.edit("k", lambda old: msgspec.structs.replace(old, priority=5))
    after = await bench.stored()
    assert (after.version, after.created_at) == (before.version + 1, before.created_at)
    assert after.fire_at == before.fire_at, "an interval since its start goes on as it was"


async def test_a_new_interval_without_alignment_starts_with_the_edit(bench: Bench) -> None:
    await bench.add(Every("7m", since="start"))
    bench.later(10)
    await bench.editor.edit("k", same, rule=Every("5m", since="start"))
    assert bench.seconds((await bench.stored()).fire_at) == 310


async def test_an_edit_of_a_paused_schedule_leaves_it_paused(bench: Bench) -> None:
    await bench.add(Every("1m"))
    await bench.editor.pause("k", note="why")
    bench.later(150)
    await bench.editor.edit("k", same, rule=Every("2m"))
    stored = await bench.stored()
    assert stored.pause is not None
    assert stored.at is None
    assert await bench.gaps() == [(60, 120, 2, "skipped", "paused")]
    bench.later(600)
    await bench.tick()
    assert await bench.fired() == []


async def test_an_edit_keeps_the_end_of_a_pause(bench: Bench) -> None:
    await bench.add(Every("1m"))
    await bench.editor.pause("k", until=bench.start + 10 * MINUTE)
    bench.later(30)
    await bench.editor.edit("k", same)
    assert bench.seconds((await bench.stored()).at) == 600


async def test_an_edit_keeps_a_moment_that_jitter_still_delays(bench: Bench) -> None:
    await bench.add(Every("1h", jitter="50m"))
    due = (await bench.stored()).at
    assert due is not None
    bench.later(3601)
    assert due > bench.clock.now_us()
    await bench.editor.edit("k", same)
    assert await bench.fired() == [3600]
    assert await bench.claim_all() == 0
    bench.clock.move(due - bench.clock.now_us())
    assert await bench.claim_all() == 1


async def test_an_unknown_schedule_is_not_found(bench: Bench) -> None:
    with pytest.raises(
        NotFound, match=r"there is no schedule 'nope' in app 'shop'; `evertick list` shows all schedules"
    ):
        await bench.editor.edit("nope", same)


async def test_an_edit_that_conflicts_with_another_writer_is_repeated(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.add(Every("1m"), priority=1)
    real, rounds = bench.store.change_schedules, 0

    async def change(app: str, changes: list[Change], **options: bool) -> list[bool]:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            bench.later(60)
            await bench.tick()
        return await real(app, changes, **options)

    monkeypatch.setattr(bench.store, "change_schedules", change)
    await bench.editor.edit("k", lambda old: msgspec.structs.replace(old, priority=old.priority + 1))
    assert rounds == 2
    assert (await bench.stored()).definition.priority == 2
    assert await bench.fired() == [60]


async def test_a_change_that_conflicts_every_time_fails_with_an_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.add(Every("1m"))

    async def never(app: str, changes: list[Change], **options: bool) -> list[bool]:
        return [False]

    monkeypatch.setattr(bench.store, "change_schedules", never)
    with pytest.raises(StoreUnavailable, match="schedule 'k': 50 concurrent changes; try again"):
        await bench.editor.edit("k", same)


# --- pause and resume


async def test_a_paused_schedule_records_nothing_and_resuming_makes_one_gap(bench: Bench) -> None:
    await bench.add(Every("1m"))
    bench.later(30)
    await bench.editor.pause("k", note="rain")
    bench.later(300)
    await bench.tick()
    assert await bench.fired() == []
    assert await bench.editor.resume("k")
    assert await bench.gaps() == [(60, 300, 5, "skipped", "paused")]
    assert bench.seconds((await bench.stored()).fire_at) == 360
    bench.later(30)
    await bench.tick()
    assert await bench.fired() == [360]


async def test_recorded_runs_continue_while_the_schedule_is_paused(bench: Bench) -> None:
    await bench.add(Every("1m"))
    bench.later(60)
    await bench.tick()
    await bench.editor.pause("k")
    assert await bench.run_all() == 1


async def test_a_moment_right_before_a_pause_still_becomes_a_run(bench: Bench) -> None:
    await bench.add(Every("1h"))
    bench.later(3601)
    await bench.editor.pause("k")
    assert await bench.fired() == [3600]


async def test_a_pause_ends_automatically_at_until(bench: Bench) -> None:
    await bench.add(Every("1m"))
    await bench.editor.pause("k", until=bench.start + 150 * SECOND)
    bench.later(149)
    await bench.tick()
    assert (await bench.stored()).pause is not None
    bench.later(1)
    await bench.tick()
    stored = await bench.stored()
    assert stored.pause is None
    assert bench.seconds(stored.fire_at) == 180
    assert await bench.gaps() == [(60, 120, 2, "skipped", "paused")]


async def test_resuming_after_the_automatic_end_of_a_pause_settles_no_later_moment(bench: Bench) -> None:
    """Without a tick in between: moments after the end of the pause are due as usual."""
    for key, catch_up in (("k", "latest"), ("all", "all")):
        await bench.add(Every("1m"), key=key, catch_up=catch_up, overlap="allow")
        await bench.editor.pause(key, until=bench.start + 150 * SECOND)
    bench.later(310)
    for key in ("k", "all"):
        await bench.editor.resume(key)
        assert await bench.gaps(key) == [(60, 120, 2, "skipped", "paused")]
        stored = await bench.stored(key)
        assert (stored.pause, bench.seconds(stored.fire_at), bench.seconds(stored.at)) == (None, 180, 180)
    await bench.tick()
    assert await bench.fired("k") == [300]
    assert await bench.fired("all") == [180]
    assert await bench.gaps("k") == [(60, 120, 2, "skipped", "paused"), (180, 240, 2, "skipped", "coalesced")]


async def test_an_edit_after_the_end_of_a_pause_settles_its_moments_once(bench: Bench) -> None:
    await bench.add(Every("1m"), overlap="allow")
    await bench.editor.pause("k", until=bench.start + 90 * SECOND)
    bench.later(190)
    await bench.editor.edit("k", same)
    settled = await bench.gaps()
    bench.later(120)
    await bench.editor.resume("k")
    assert await bench.gaps() == settled
    await bench.tick()
    moments = [*await bench.fired(), *(last for _, last, *_ in await bench.gaps())]
    assert sorted(moments) == [60, 120, 180, 240, 300]


async def test_a_pause_with_a_past_end_is_refused(bench: Bench) -> None:
    await bench.add(Every("1m"))
    with pytest.raises(Refused, match="cannot pause 'k' until a moment that has passed; give a later one, or none"):
        await bench.editor.pause("k", until=bench.start)
    assert (await bench.stored()).pause is None


async def test_pausing_again_changes_the_note_and_loses_nothing(bench: Bench) -> None:
    await bench.add(Every("1m"))
    await bench.editor.pause("k", note="one")
    bench.later(90)
    await bench.editor.pause("k", note="two")
    bench.later(60)
    await bench.editor.resume("k")
    assert await bench.gaps() == [(60, 60, 1, "skipped", "paused"), (120, 120, 1, "skipped", "paused")]


async def test_resuming_a_schedule_that_is_not_paused_changes_nothing(bench: Bench) -> None:
    await bench.add(Every("1m"))
    before = await bench.stored()
    bench.later(90)
    assert not await bench.editor.resume("k")
    assert await bench.stored() == before


async def test_a_pause_records_a_moment_that_jitter_still_delays(bench: Bench) -> None:
    await bench.add(Every("1h", jitter="50m"))
    bench.later(3601)
    await bench.editor.pause("k")
    assert await bench.fired() == []
    assert await bench.gaps() == [(3600, 3600, 1, "skipped", "paused")]


# --- after-end rules


async def test_an_after_end_rule_has_no_cursor_while_a_run_is_live(bench: Bench) -> None:
    await bench.add(Every("5m", after="end"))
    bench.later(300)
    await bench.tick()
    assert (await bench.stored()).at is None
    await bench.claim_all()
    bench.later(1000)
    assert (await bench.stored()).at is None


async def test_an_after_end_rule_continues_after_the_verdict(bench: Bench) -> None:
    await bench.add(Every("5m", after="end"))
    bench.later(300)
    await bench.tick()
    bench.later(100)
    await bench.run_all()
    assert bench.seconds((await bench.stored()).fire_at) == 700


async def test_an_after_end_rule_continues_after_a_timed_pause(bench: Bench) -> None:
    await bench.add(Every("5m", after="end"))
    await bench.editor.pause("k", until=bench.start + 600 * SECOND)
    bench.later(600)
    await bench.tick()
    assert bench.seconds((await bench.stored()).fire_at) == 900


async def test_an_after_end_rule_continues_after_a_pause_and_a_resume(bench: Bench) -> None:
    await bench.add(Every("5m", after="end"))
    bench.later(300)
    await bench.tick()
    await bench.editor.pause("k")
    await bench.run_all()
    assert (await bench.stored()).at is None
    bench.later(1000)
    await bench.editor.resume("k")
    assert bench.seconds((await bench.stored()).fire_at) == 1600


async def test_an_after_end_rule_ends_at_its_end_time(bench: Bench) -> None:
    await bench.add(Every("5m", after="end", end=from_us(bench.start + 400 * SECOND)))
    bench.later(300)
    await bench.tick()
    await bench.run_all()
    bench.later(300)
    await bench.tick()
    assert await bench.fired() == [300]
    assert (await bench.stored()).at is None


async def test_an_after_end_rule_counts_from_a_triggered_run_too(bench: Bench) -> None:
    await bench.add(Every("5m", after="end"))
    bench.later(100)
    await bench.editor.trigger("k")
    assert (await bench.stored()).at is None
    bench.later(100)
    await bench.run_all()
    assert bench.seconds((await bench.stored()).fire_at) == 500


# --- remove


async def test_removing_a_schedule_cancels_waiting_runs_and_keeps_history(bench: Bench) -> None:
    await bench.add(Every("1m"), overlap="allow")
    bench.later(60)
    await bench.tick()
    await bench.run_all()
    bench.later(60)
    await bench.tick()
    await bench.editor.remove("k")
    assert await bench.states() == [
        (State.DONE, Verdict.SUCCEEDED, None),
        (State.DONE, Verdict.CANCELLED, "removed"),
    ]
    assert await bench.store.stored_schedules(APP, keys=["k"]) == []


async def test_removing_a_schedule_does_not_stop_a_running_run(bench: Bench) -> None:
    await bench.add(Every("1m"))
    bench.later(60)
    await bench.tick()
    await bench.claim_all()
    await bench.editor.remove("k")
    assert (await bench.states())[0][0] is State.RUNNING


async def test_removing_a_schedule_records_its_due_moments_as_a_gap(bench: Bench) -> None:
    await bench.add(Every("1m"))
    bench.later(121)
    await bench.editor.remove("k")
    assert await bench.fired() == []
    assert await bench.gaps() == [(60, 120, 2, "skipped", "removed")]


async def test_a_declared_schedule_is_not_removed_at_run_time(bench: Bench) -> None:
    await bench.add(Every("1m"), declared=by_code())
    with pytest.raises(Refused) as refused:
        await bench.editor.remove("k")
    assert str(refused.value) == (
        "schedule 'k' is declared in code (web) and would come back at the next start; pause it instead, or remove it "
        "from the code first"
    )


async def test_pausing_a_declared_schedule_does_not_make_it_removable(bench: Bench) -> None:
    await bench.add(Every("1m"), declared=by_code())
    await bench.editor.pause("k")
    with pytest.raises(Refused):
        await bench.editor.remove("k")


async def test_a_schedule_that_is_no_longer_declared_can_be_removed(bench: Bench) -> None:
    await bench.add(Every("1m"), declared=by_code())
    await bench.editor.pause_undeclared("k", "web")
    pause = (await bench.stored()).pause
    assert pause is not None
    assert pause.is_undeclared
    assert pause.note == "no longer declared by web; declare it again to resume it, or remove it"
    await bench.editor.resume("k")
    await bench.editor.pause_undeclared("k", "web", "file")
    pause = (await bench.stored()).pause
    assert pause is not None
    assert pause.note.startswith(
        "no longer in the configuration of web; put it back to resume it, or remove it with `ev"
    )
    await bench.editor.remove("k")
    assert await bench.store.stored_schedules(APP, keys=["k"]) == []


# --- trigger


async def test_a_trigger_runs_now_and_does_not_move_the_cursor(bench: Bench) -> None:
    await bench.add(Every("1m"), args={"a": 1}, priority=3, labels={"x": "y"})
    bench.later(10)
    run_id = await bench.editor.trigger("k")
    [run] = await bench.runs()
    assert (run.id, run.cause, run.args, run.priority, run.labels) == (run_id, Cause.TRIGGER, {"a": 1}, 3, {"x": "y"})
    stored = await bench.stored()
    assert bench.seconds(stored.fire_at) == 60
    assert stored.fires == 0


async def test_a_trigger_can_have_its_own_arguments(bench: Bench) -> None:
    await bench.add(Every("1m"), args={"a": 1})
    await bench.editor.trigger("k", args=b'{"a":7}')
    assert (await bench.runs())[0].args == {"a": 7}


async def test_a_trigger_works_while_the_schedule_is_paused(bench: Bench) -> None:
    await bench.add(Every("1m"))
    await bench.editor.pause("k")
    await bench.editor.trigger("k")
    assert await bench.run_all() == 1
    assert (await bench.stored()).pause is not None


async def test_a_trigger_obeys_overlap_skip(bench: Bench) -> None:
    await bench.add(Every("1m"))
    await bench.editor.trigger("k")
    with pytest.raises(Refused, match="'k' has a live run, and its overlap is 'skip'; wait until"):
        await bench.editor.trigger("k")


async def test_a_trigger_obeys_overlap_queue(bench: Bench) -> None:
    await bench.add(Every("1m"), overlap="queue")
    await bench.editor.trigger("k")
    await bench.claim_all()
    bench.later(1)
    await bench.editor.trigger("k")
    assert [run.state for run in await bench.runs()] == [State.RUNNING, State.BLOCKED]
    with pytest.raises(Refused, match="overlap is 'queue'"):
        await bench.editor.trigger("k")


async def test_a_trigger_obeys_overlap_replace(bench: Bench) -> None:
    await bench.add(Every("1m"), overlap="replace")
    await bench.editor.trigger("k")
    await bench.claim_all()
    bench.later(1)
    await bench.editor.trigger("k")
    first, second = await bench.runs()
    assert first.is_cancel_requested
    assert (second.state, second.blocked_on) == (State.BLOCKED, first.id)


async def test_a_trigger_with_overlap_allow_is_always_accepted(bench: Bench) -> None:
    await bench.add(Every("1m"), overlap="allow")
    await bench.editor.trigger("k")
    await bench.editor.trigger("k")
    assert await bench.run_all() == 2


async def test_a_live_triggered_run_counts_for_the_overlap_of_a_fire(bench: Bench) -> None:
    await bench.add(Every("1m"))
    bench.later(30)
    await bench.editor.trigger("k")
    bench.later(30)
    await bench.tick()
    assert await bench.gaps() == [(60, 60, 1, "skipped", "overlap")]


async def test_a_trigger_in_the_same_microsecond_as_a_fire_is_a_separate_run(bench: Bench) -> None:
    await bench.add(Every("1m"), overlap="allow")
    bench.later(60)
    await bench.editor.trigger("k")
    await bench.tick()
    assert sorted(run.cause for run in await bench.runs()) == [Cause.FIRE, Cause.TRIGGER]


# --- calendars


async def test_a_changed_calendar_moves_the_cursors_of_its_schedules(bench: Bench) -> None:
    await bench.editor.put_calendar(Calendar("hours", exclude=["2026-06-01"]))
    await bench.add(Cron("0 12 * * *", calendar="hours"))
    await bench.add(Cron("0 12 * * *"), "other")
    untouched = await bench.stored("other")
    assert bench.seconds((await bench.stored()).fire_at) == 12 * 3600
    await bench.editor.put_calendar(Calendar("hours", exclude=["2026-01-01"]))
    assert bench.seconds((await bench.stored()).fire_at) == 36 * 3600
    assert await bench.stored("other") == untouched


async def test_storing_a_calendar_again_after_an_interruption_updates_the_remaining_schedules(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.editor.put_calendar(Calendar("hours", exclude=["2026-06-01"]))
    await bench.add(Cron("0 12 * * *", calendar="hours"), "first")
    await bench.add(Cron("0 12 * * *"), "other")
    await bench.add(Cron("0 12 * * *", calendar="hours"), "ruled")
    await bench.add(Every("1h"), "veiled", blackout="hours")
    edit = bench.editor.edit

    async def edit_one(key: str, change: Callable[[Definition], Definition]) -> None:
        if key != "first":
            raise StoreUnavailable("the store is away")
        await edit(key, change)

    changed = Calendar("hours", exclude=["2026-01-01"])
    with monkeypatch.context() as patch:
        patch.setattr(bench.editor, "edit", edit_one)
        with pytest.raises(StoreUnavailable):
            await bench.editor.put_calendar(changed)
    before = {key: (await bench.stored(key)).version for key in ("first", "other", "ruled", "veiled")}
    await bench.editor.put_calendar(changed)
    after = {key: (await bench.stored(key)).version for key in before}
    assert {key for key in before if after[key] > before[key]} == {"ruled", "veiled"}
    assert bench.seconds((await bench.stored("ruled")).fire_at) == 36 * 3600


async def test_the_same_calendar_again_changes_nothing(bench: Bench) -> None:
    calendar = Calendar("hours", exclude=["2026-06-01"])
    await bench.editor.put_calendar(calendar)
    await bench.add(Cron("0 12 * * *", calendar="hours"))
    before = await bench.stored()
    await bench.editor.put_calendar(calendar)
    assert await bench.stored() == before
