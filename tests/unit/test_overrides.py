"""Overrides: skip the next moment, move one, run the next early, undo."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from ledger_bench import APP, NODE, Bench

from evertick import Calendar, Every, Once, Refused, State, Verdict
from evertick.model import Cause, Occurrence, Outcome
from evertick.store.base import RunFilter, TaskTerms
from evertick.when import from_us
from evertick.when.moment import SECOND


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    await made.open()
    yield made
    await made.store.close()


async def advance(bench: Bench, seconds: float) -> None:
    """Let time pass with a tick at every due time, and finish all runs."""
    until = bench.clock.now_us() + int(seconds * SECOND)
    for _ in range(1_000):
        at = (await bench.stored()).at
        if at is None or at > until:
            break
        bench.clock.move(max(at - bench.clock.now_us(), 0))
        await bench.tick()
        await bench.run_all()
    bench.clock.move(until - bench.clock.now_us())


def moment(bench: Bench, seconds: float) -> int:
    return bench.start + int(seconds * SECOND)


async def decided(bench: Bench) -> list[tuple[float | None, str, float | None]]:
    stored = await bench.stored()
    return [(bench.seconds(each.fire_at), each.kind, bench.seconds(each.to)) for each in stored.occurrences]


# --- skip_next


async def test_the_next_moment_is_skipped_and_recorded_when_it_comes(bench: Bench) -> None:
    await bench.add(Every("1m"))
    assert await bench.editor.skip_next("k", note="deploy") == moment(bench, 60)
    assert (await bench.stored()).occurrences == (Occurrence(fire_at=moment(bench, 60), kind="skip", note="deploy"),)
    assert await bench.gaps() == []
    await advance(bench, 130)
    assert await bench.gaps() == [(60, 60, 1, "skipped", "by_hand")]
    assert await bench.fired() == [120]
    assert await decided(bench) == []


async def test_skipping_twice_skips_the_next_two(bench: Bench) -> None:
    await bench.add(Every("1m"))
    assert await bench.editor.skip_next("k") == moment(bench, 60)
    assert await bench.editor.skip_next("k") == moment(bench, 120)
    await advance(bench, 190)
    assert await bench.fired() == [180]


async def test_a_due_moment_is_not_the_one_that_is_skipped(bench: Bench) -> None:
    await bench.add(Every("1m"))
    bench.later(61)
    assert await bench.editor.skip_next("k") == moment(bench, 120)
    await advance(bench, 130)
    assert await bench.fired() == [60, 180]


async def test_a_moment_skipped_in_a_downtime_is_not_caught_up(bench: Bench) -> None:
    await bench.add(Every("1m"))
    await bench.editor.move("k", moment(bench, 120), to=moment(bench, 121))
    await bench.editor.skip_next("k")
    bench.later(240)
    await bench.tick()
    assert await bench.fired() == [240]
    assert sorted(await bench.gaps()) == [(60, 60, 1, "skipped", "by_hand"), (180, 180, 1, "skipped", "coalesced")]
    await bench.run_all()
    bench.later(1)
    await bench.tick()
    assert await bench.fired() == [120, 240], "overlap let the moved one wait for the next look"


async def test_a_schedule_without_a_next_moment_cannot_skip(bench: Bench) -> None:
    await bench.add(Once(after="1m"))
    await bench.editor.skip_next("k")
    with pytest.raises(Refused, match="'k' has no next moment: its rule has none without an override"):
        await bench.editor.skip_next("k")
    await advance(bench, 61)
    assert await bench.gaps() == [(60, 60, 1, "skipped", "by_hand")]
    assert await bench.fired() == []


async def test_a_schedule_has_at_most_a_hundred_overrides(bench: Bench) -> None:
    await bench.add(Every("1m"))
    for _ in range(100):
        await bench.editor.skip_next("k")
    with pytest.raises(Refused, match="'k' has 100 overridden moments, which is the limit; undo some"):
        await bench.editor.skip_next("k")


# --- move


async def test_a_moved_moment_runs_at_its_new_time(bench: Bench) -> None:
    await bench.add(Every("1m"))
    await bench.editor.move("k", moment(bench, 60), to=moment(bench, 90))
    await advance(bench, 100)
    [run] = await bench.runs()
    assert (bench.seconds(int(run.fire_at.timestamp() * SECOND)), run.cause) == (60, Cause.FIRE)
    assert run.due_at == from_us(moment(bench, 90))
    assert run.reason is None, "it is not late"
    assert await bench.gaps() == []


async def test_a_moment_moved_to_an_earlier_time_does_not_run_at_its_old_time(bench: Bench) -> None:
    await bench.add(Every("1m"))
    await bench.editor.move("k", moment(bench, 180), to=moment(bench, 70))
    await advance(bench, 71)
    assert await bench.fired() == [60, 180]
    assert await decided(bench) == [(180, "done", None)]
    await advance(bench, 200)
    assert await bench.fired() == [60, 120, 180, 240]
    assert await decided(bench) == []


async def test_a_one_shot_can_be_moved(bench: Bench) -> None:
    await bench.add(Once(after="1m"))
    await bench.editor.move("k", moment(bench, 60), to=moment(bench, 3600))
    assert ((await bench.stored()).fire_at, bench.seconds((await bench.stored()).at)) == (None, 3600)
    await advance(bench, 3601)
    assert await bench.fired() == [60]


async def test_moving_again_replaces_the_override(bench: Bench) -> None:
    await bench.add(Every("1m"))
    await bench.editor.move("k", moment(bench, 60), to=moment(bench, 200))
    bench.later(65)
    await bench.editor.move("k", moment(bench, 60), to=moment(bench, 80))
    assert await decided(bench) == [(60, "move", 80)]


@pytest.mark.parametrize(
    ("fire_at", "to", "says"),
    [
        (90, 200, "is not a moment of 'k'; the nearest to come: 2026-01-01 00:01:00.+ and 2026-01-01 00:02:00"),
        (-60, 200, "has passed; the nearest to come: 2026-01-01 00:01:00"),
        (60, 0, "which has passed; use run_early"),
        (60, 60, "is that moment's own time"),
    ],
)
async def test_moving_an_unknown_moment_is_refused_with_the_nearest_moments(
    bench: Bench, fire_at: int, to: int, says: str
) -> None:
    await bench.add(Every("1m"))
    with pytest.raises(Refused, match=says):
        await bench.editor.move("k", moment(bench, fire_at), to=moment(bench, to))


async def test_grace_uses_the_new_time_of_a_moved_moment(bench: Bench) -> None:
    await bench.add(Every("1h"), grace=60 * SECOND)
    await bench.editor.move("k", moment(bench, 3600), to=moment(bench, 1800))
    bench.later(1861)
    await bench.tick()
    assert await bench.gaps() == [(3600, 3600, 1, "missed", "grace")]
    await advance(bench, 6000)
    assert await bench.fired() == [7200]


async def test_a_moved_moment_obeys_overlap(bench: Bench) -> None:
    await bench.add(Every("1m"))
    await bench.editor.move("k", moment(bench, 180), to=moment(bench, 61))
    bench.later(60)
    await bench.tick()
    bench.later(1)
    await bench.tick()
    assert await bench.gaps() == [(180, 180, 1, "skipped", "overlap")]


async def test_jitter_does_not_delay_a_moved_moment(bench: Bench) -> None:
    await bench.add(Every("1h", jitter="50m", jitter_mode="fresh"))
    await bench.editor.move("k", moment(bench, 3600), to=moment(bench, 1800))
    await advance(bench, 1800)
    assert await bench.fired() == [3600]


async def test_max_fires_counts_a_moved_moment_at_its_old_time(bench: Bench) -> None:
    await bench.add(Every("1m", max_fires=2))
    await bench.editor.move("k", moment(bench, 60), to=moment(bench, 600))
    await advance(bench, 700)
    assert await bench.fired() == [60, 120]


# --- run_early


async def test_the_next_moment_runs_early_and_not_again(bench: Bench) -> None:
    await bench.add(Every("1m"))
    run_id = await bench.editor.run_early("k")
    [run] = await bench.store.runs(APP, RunFilter(ids=(run_id,)))
    assert (run.cause, run.fire_at, run.due_at) == (Cause.FIRE, from_us(moment(bench, 60)), from_us(bench.start))
    assert bench.seconds((await bench.stored()).fire_at) == 120
    await bench.run_all()
    await bench.editor.edit("k", lambda before: msgspec.structs.replace(before, priority=1))
    assert bench.seconds((await bench.stored()).fire_at) == 120, "an edit does not bring it back"
    await advance(bench, 125)
    assert await bench.fired() == [60, 120]
    assert await bench.gaps() == []


async def test_running_early_obeys_overlap_and_is_refused_while_paused(bench: Bench) -> None:
    await bench.add(Every("1m"))
    await bench.editor.run_early("k")
    with pytest.raises(Refused, match="has a live run, and its overlap is 'skip': not run early"):
        await bench.editor.run_early("k")
    await bench.editor.pause("k")
    with pytest.raises(Refused, match=r"'k' is paused.+use trigger"):
        await bench.editor.run_early("k")


async def test_running_early_counts_for_max_fires(bench: Bench) -> None:
    await bench.add(Every("1m", max_fires=1))
    await bench.editor.run_early("k")
    await bench.run_all()
    assert (await bench.stored()).fire_at is None
    with pytest.raises(Refused, match="max_fires is reached"):
        await bench.editor.run_early("k")


async def test_an_early_run_can_replace_the_live_run(bench: Bench) -> None:
    await bench.add(Every("1m"), overlap="replace")
    await bench.editor.run_early("k")
    await bench.claim_all()
    await bench.editor.run_early("k")
    assert [run.state for run in await bench.runs()] == [State.RUNNING, State.BLOCKED]
    assert (await bench.runs())[0].is_cancel_requested


# --- undo


async def test_a_skip_can_be_undone_until_its_moment(bench: Bench) -> None:
    await bench.add(Every("1m"))
    await bench.editor.skip_next("k")
    await bench.editor.undo("k")
    assert bench.seconds((await bench.stored()).fire_at) == 60
    await advance(bench, 61)
    assert await bench.fired() == [60]
    await bench.editor.skip_next("k")
    bench.later(60)
    with pytest.raises(Refused, match="has come: too late to undo it"):
        await bench.editor.undo("k", moment(bench, 120))


async def test_undo_without_a_moment_takes_the_next_override(bench: Bench) -> None:
    await bench.add(Every("1m"))
    await bench.editor.skip_next("k")
    await bench.editor.move("k", moment(bench, 600), to=moment(bench, 30))
    await bench.editor.undo("k")
    assert await decided(bench) == [(60, "skip", None)]
    await bench.editor.undo("k")
    with pytest.raises(Refused, match="'k' has no overrides of future moments"):
        await bench.editor.undo("k")
    with pytest.raises(Refused, match=r"2026-01-01 00:01:00.+ of 'k' has no override; overrides exist for: no moment"):
        await bench.editor.undo("k", moment(bench, 60))


@pytest.mark.parametrize("overlap", ["skip", "queue", "allow", "replace"])
async def test_an_undone_early_run_runs_at_its_own_moment(bench: Bench, overlap: str) -> None:
    await bench.add(Every("1m"), overlap=overlap)
    run_id = await bench.editor.run_early("k")
    assert await bench.editor.undo("k") == Occurrence(fire_at=moment(bench, 60), kind="done")
    stored = await bench.stored()
    assert (bench.seconds(stored.fire_at), stored.fires, stored.live, stored.occurrences) == (60, 0, 0, ())
    [run] = await bench.store.runs(APP, RunFilter(ids=(run_id,)))
    assert (run.verdict, run.reason, run.cause) == (Verdict.CANCELLED, "undone", Cause.TRIGGER)
    assert await bench.run_all() == 0
    await advance(bench, 125)
    assert [(run.fire_at, run.verdict) for run in await bench.runs() if run.cause is Cause.FIRE] == [
        (from_us(moment(bench, 60)), Verdict.SUCCEEDED),
        (from_us(moment(bench, 120)), Verdict.SUCCEEDED),
    ]
    assert await bench.gaps() == []


async def test_a_started_early_run_cannot_be_undone(bench: Bench) -> None:
    await bench.add(Every("1m"))
    run_id = await bench.editor.run_early("k")
    await bench.claim_all()
    for about in (None, moment(bench, 60)):
        with pytest.raises(Refused, match=rf"00:01:00.+ of 'k' runs early, and its run {run_id} has begun: too late"):
            await bench.editor.undo("k", about)
    await bench.editor.skip_next("k")
    assert (await bench.editor.undo("k")).kind == "skip", "what else was decided can be"


@pytest.mark.parametrize("kind", ["release", "retry", "park"])
async def test_a_released_early_run_can_be_undone_unless_it_was_attempted(bench: Bench, kind: Any) -> None:
    await bench.add(Every("1m"))
    await bench.editor.run_early("k")
    claim = await bench.store.claim(APP, NODE, ["default"], {"job": TaskTerms(hash="h")}, 100)
    tried = int(kind == "retry")
    back = Outcome(id=claim.runs[0].id, fence=claim.fence, kind=kind, attempts=tried, reason="bad_arguments")
    await bench.store.finish(APP, NODE, [back])
    if tried:
        with pytest.raises(Refused, match="has begun"):
            await bench.editor.undo("k")
    else:
        assert (await bench.editor.undo("k")).fire_at == moment(bench, 60)


async def test_a_finished_early_run_cannot_be_undone(bench: Bench) -> None:
    await bench.add(Every("1m"))
    await bench.editor.run_early("k")
    await bench.run_all()
    with pytest.raises(Refused, match="'k' has no overrides of future moments"):
        await bench.editor.undo("k")


async def test_an_early_run_cannot_be_undone_after_its_own_moment(bench: Bench) -> None:
    await bench.add(Every("1m"))
    await bench.editor.run_early("k")
    bench.later(61)
    with pytest.raises(Refused, match="has no override"):
        await bench.editor.undo("k", moment(bench, 60))
    assert [run.state for run in await bench.runs()] == [State.WAITING]


async def test_undoing_an_early_run_restores_max_fires(bench: Bench) -> None:
    await bench.add(Every("1m", max_fires=1))
    await bench.editor.run_early("k")
    await bench.editor.undo("k")
    assert bench.seconds((await bench.stored()).fire_at) == 60
    await advance(bench, 200)
    assert [run.fire_at for run in await bench.runs() if run.cause is Cause.FIRE] == [from_us(moment(bench, 60))]


@pytest.mark.parametrize("unique_for", [None, 600 * SECOND])
async def test_undoing_an_early_run_frees_its_unique_key(bench: Bench, unique_for: int | None) -> None:
    await bench.add(Every("1m"), unique="one", unique_for=unique_for)
    await bench.editor.run_early("k")
    await bench.editor.undo("k")
    await advance(bench, 61)
    assert [run.verdict for run in await bench.runs() if run.cause is Cause.FIRE] == [Verdict.SUCCEEDED]
    assert await bench.gaps() == []


async def test_undoing_an_early_run_restores_the_moment_of_an_after_end_rule(bench: Bench) -> None:
    await bench.add(Every("1m", after="end"))
    bench.later(10)
    await bench.editor.run_early("k")
    assert (await bench.stored()).fire_at is None
    await bench.editor.undo("k")
    stored = await bench.stored()
    assert (bench.seconds(stored.fire_at), bench.seconds(stored.at)) == (60, 60)
    await advance(bench, 115)
    assert [run.fire_at for run in await bench.runs() if run.cause is Cause.FIRE] == [
        from_us(moment(bench, 60)),
        from_us(moment(bench, 120)),
    ]


async def test_an_after_end_rule_counts_from_another_live_run_after_the_undo(bench: Bench) -> None:
    await bench.add(Every("1m", after="end"), overlap="allow")
    await bench.editor.run_early("k")
    await bench.editor.trigger("k")
    await bench.editor.undo("k")
    assert (await bench.stored()).fire_at is None
    bench.later(5)
    assert await bench.run_all() == 1
    assert bench.seconds((await bench.stored()).fire_at) == 65


async def test_a_pause_after_the_undo_stops_the_moment(bench: Bench) -> None:
    await bench.add(Every("1m"))
    await bench.editor.run_early("k")
    await bench.editor.undo("k")
    await bench.editor.pause("k")
    bench.later(90)
    assert await bench.run_all() == 0
    await bench.editor.resume("k")
    assert await bench.gaps() == [(60, 60, 1, "skipped", "paused")]


async def test_undoing_an_early_run_frees_the_run_blocked_on_it(bench: Bench) -> None:
    await bench.add(Every("1m"), overlap="queue")
    await bench.editor.run_early("k")
    by_hand = await bench.editor.trigger("k")
    await bench.editor.undo("k")
    [run] = await bench.store.runs(APP, RunFilter(ids=(by_hand,)))
    assert (run.state, run.blocked_on) == (State.WAITING, None)


async def test_undoing_a_move_after_the_old_time_is_a_skip(bench: Bench) -> None:
    await bench.add(Every("1m"))
    await bench.editor.move("k", moment(bench, 60), to=moment(bench, 600))
    await advance(bench, 70)
    await bench.editor.undo("k")
    assert await bench.gaps() == [(60, 60, 1, "skipped", "by_hand")]
    await advance(bench, 60)
    assert await bench.fired() == [120]


# --- pause, edit, remove


async def test_overrides_during_a_pause_are_recorded_as_paused_once(bench: Bench) -> None:
    await bench.add(Every("1m"))
    await bench.editor.skip_next("k")
    await bench.editor.move("k", moment(bench, 120), to=moment(bench, 90))
    await bench.editor.move("k", moment(bench, 180), to=moment(bench, 400))
    await bench.editor.pause("k")
    bench.later(200)
    await bench.editor.resume("k")
    assert sorted(await bench.gaps()) == [(60, 60, 1, "skipped", "paused"), (120, 120, 1, "skipped", "paused")]
    await advance(bench, 210)
    assert await bench.fired() == [180, 240, 300, 360], "the one that was moved out of the pause runs"


async def test_an_edit_keeps_overrides_of_moments_that_the_new_rule_has(bench: Bench) -> None:
    await bench.add(Every("1m"))
    await bench.editor.skip_next("k")
    await bench.editor.skip_next("k")
    await bench.editor.edit("k", lambda before: before, rule=Every("2m"))
    assert await decided(bench) == [(120, "skip", None)]
    await advance(bench, 250)
    assert await bench.fired() == [240]
    assert await bench.gaps() == [(120, 120, 1, "skipped", "by_hand")]


async def test_a_moved_moment_runs_despite_a_later_change_of_the_rule(bench: Bench) -> None:
    await bench.add(Every("1m"))
    await bench.editor.move("k", moment(bench, 60), to=moment(bench, 100))
    await advance(bench, 70)
    await bench.editor.edit("k", lambda before: before, rule=Every("1h"))
    await advance(bench, 60)
    assert await bench.fired() == [60]


async def test_removing_a_schedule_settles_moved_moments(bench: Bench) -> None:
    await bench.add(Every("1m"))
    await bench.editor.move("k", moment(bench, 60), to=moment(bench, 600))
    await advance(bench, 65)
    await bench.editor.remove("k")
    assert await bench.gaps() == [(60, 60, 1, "skipped", "removed")]


# --- after-end rules


async def test_the_next_moment_of_an_after_end_rule_can_be_skipped(bench: Bench) -> None:
    await bench.add(Every("1m", after="end"))
    await bench.editor.skip_next("k")
    with pytest.raises(Refused, match="is skipped already"):
        await bench.editor.skip_next("k")
    await advance(bench, 130)
    assert await bench.gaps() == [(60, 60, 1, "skipped", "by_hand")]
    assert await bench.fired() == [120]
    assert await decided(bench) == []


async def test_undoing_a_skip_does_not_restart_an_after_end_rule(bench: Bench) -> None:
    await bench.add(Every("1m", after="end"))
    await bench.editor.skip_next("k")
    bench.later(30)
    await bench.editor.undo("k")
    await advance(bench, 31)
    assert await bench.fired() == [60]


async def test_an_early_run_restarts_an_after_end_rule(bench: Bench) -> None:
    await bench.add(Every("1m", after="end"))
    bench.later(10)
    await bench.editor.run_early("k")
    with pytest.raises(Refused, match="is not known: it counts from the end of its run"):
        await bench.editor.skip_next("k")
    bench.later(5)
    await bench.run_all()
    assert bench.seconds((await bench.stored()).fire_at) == 75
    assert await bench.fired() == [60]


async def test_the_moment_of_an_after_end_rule_cannot_be_moved(bench: Bench) -> None:
    await bench.add(Every("1m", after="end"))
    with pytest.raises(Refused, match="count from the end of its runs, so there is none to move"):
        await bench.editor.move("k", moment(bench, 60), to=moment(bench, 90))


# --- blackouts


async def test_an_override_wins_over_a_blackout(bench: Bench) -> None:
    closed = Calendar.blackout("freeze", from_us(bench.start), from_us(moment(bench, 1000)))
    await bench.editor.put_calendar(closed)
    await bench.add(Every("1m"), blackout="freeze")
    await bench.editor.move("k", moment(bench, 60), to=moment(bench, 70))
    await advance(bench, 80)
    assert await bench.fired() == [60]
    await bench.editor.run_early("k")
    assert await bench.fired() == [60, 120]
