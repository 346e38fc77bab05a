"""Blackouts: nothing fires while a calendar is closed, and a policy decides about those moments."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from ledger_bench import Bench
from planning import at, fire_moments, gap_rows, inputs, paused, plan_at

from evertick import Calendar, Cron, Every, Once
from evertick.errors import InvalidWhen
from evertick.model import Reason
from evertick.plan.inputs import PlanInputs
from evertick.plan.settlement import settle
from evertick.when import from_us
from evertick.when.moment import DAY, HOUR, MINUTE, SECOND


def closed(first: int, last: int) -> Calendar:
    return Calendar.blackout("freeze", from_us(first), from_us(last))


# Closed from 12:30 to 15:30; the cursor of an hourly schedule is at 13:00.
FREEZE = closed(at(12, 30), at(15, 30))


def frozen(fate: str, **fields: Any) -> PlanInputs:
    return inputs(**{"fire_at": at(13), "closed": FREEZE, "blackout": "freeze", "blackout_fate": fate, **fields})


# --- during a blackout


@pytest.mark.parametrize("fate", ["drop", "latest", "all"])
def test_nothing_fires_in_a_blackout_and_the_schedule_is_due_at_its_end(fate: str) -> None:
    made = plan_at(frozen(fate), at(14, 10))
    assert made.fires == made.gaps == ()
    assert (made.next_fire_at, made.next_at) == (at(13), at(15, 30))


def test_moments_due_before_a_blackout_wait_for_its_end_too() -> None:
    made = plan_at(frozen("drop", fire_at=at(12)), at(13))
    assert made.fires == made.gaps == ()
    made = plan_at(frozen("drop", fire_at=at(12)), at(15, 30))
    assert fire_moments(made.fires) == [at(12)]
    assert gap_rows(made.gaps) == [(at(13), at(15), 3, "skipped", "blackout")]


def test_a_cursor_in_a_blackout_is_due_at_its_end() -> None:
    made = plan_at(frozen("latest", fire_at=at(12)), at(12))
    assert fire_moments(made.fires) == [at(12)]
    assert (made.next_fire_at, made.next_at) == (at(13), at(15, 30))


def test_a_schedule_in_an_endless_blackout_is_never_due() -> None:
    shut = Calendar("shut", exclude=["mon-sun"])
    made = plan_at(frozen("latest", closed=shut), at(13))
    assert (made.fires, made.next_fire_at, made.next_at) == ((), at(13), None)
    _, gaps = settle(frozen("latest", closed=shut), at(16), Reason.REMOVED, fresh=-1)
    assert gap_rows(gaps) == [(at(13), at(16), 4, "skipped", "removed")]


# --- at the end of a blackout


def test_drop_records_the_held_moments_as_one_gap() -> None:
    made = plan_at(frozen("drop"), at(15, 30))
    assert made.fires == ()
    assert gap_rows(made.gaps) == [(at(13), at(15), 3, "skipped", "blackout")]
    assert (made.next_fire_at, made.next_at) == (at(16), at(16))


def test_latest_runs_the_newest_held_moment_as_late() -> None:
    made = plan_at(frozen("latest"), at(15, 30))
    assert fire_moments(made.fires) == [at(15)]
    assert (made.fires[0].due_at, made.fires[0].is_late) == (at(15, 30), True)
    assert gap_rows(made.gaps) == [(at(13), at(14), 2, "skipped", "coalesced")]
    assert made.next_fire_at == at(16)


def test_a_moment_at_the_end_of_a_blackout_replaces_the_held_ones() -> None:
    made = plan_at(frozen("latest", closed=closed(at(12, 30), at(15))), at(15))
    assert fire_moments(made.fires) == [at(15)]
    assert gap_rows(made.gaps) == [(at(13), at(14), 2, "skipped", "coalesced")]


def test_all_runs_the_held_moments_one_by_one_at_its_pace() -> None:
    made = plan_at(frozen("all"), at(15, 30))
    assert fire_moments(made.fires) == [at(13)]
    assert (made.next_fire_at, made.next_at) == (at(14), at(15, 30, 1))
    waits = plan_at(frozen("all", fire_at=at(15), live=1), at(15, 30, 2))
    assert (waits.fires, waits.gaps, waits.next_fire_at) == ((), (), at(15))


def test_all_misses_held_moments_beyond_the_catch_up_limit() -> None:
    made = plan_at(frozen("all", catch_up_limit=2), at(15, 30))
    assert fire_moments(made.fires) == [at(14)]
    assert gap_rows(made.gaps) == [(at(13), at(13), 1, "missed", "limit")]


@pytest.mark.parametrize("fate", ["latest", "all"])
@pytest.mark.parametrize(("late", "is_missed"), [(10 * MINUTE, False), (10 * MINUTE + 1, True)])
def test_grace_counts_from_the_end_of_the_blackout(fate: str, late: int, is_missed: bool) -> None:
    made = plan_at(frozen(fate, grace=10 * MINUTE), at(15, 30) + late)
    assert (made.fires == ()) is is_missed
    assert ([gap.reason for gap in made.gaps] == ["grace"]) is is_missed


def test_catch_up_skip_does_not_skip_held_moments() -> None:
    made = plan_at(frozen("latest", catch_up="skip"), at(15, 30, 10))
    assert fire_moments(made.fires) == [at(15)]


def test_jitter_does_not_delay_held_moments() -> None:
    rule = Every("1h", jitter="59m", jitter_mode="fresh")
    made = plan_at(frozen("latest", rule=rule, at=at(15, 30)), at(15, 30), uniform=0.9)
    assert [(fire.fire_at, fire.due_at) for fire in made.fires] == [(at(15), at(15, 30))]


def test_a_moment_that_jitter_delays_into_a_blackout_waits_but_is_not_held() -> None:
    rule = Every("1h", jitter="59m", jitter_mode="fresh")
    known = frozen("drop", rule=rule, fire_at=at(12), at=at(12, 45), grace=MINUTE)
    held = plan_at(known, at(12, 45))
    assert (held.fires, held.next_fire_at, held.next_at) == ((), at(12), at(15, 30))
    opened = plan_at(frozen("drop", rule=rule, fire_at=at(12), at=at(15, 30), grace=MINUTE), at(15, 30))
    assert fire_moments(opened.fires) == [at(12)]


def test_a_blackout_holds_an_after_end_rule_too() -> None:
    rule = Every("1h", after="end")
    assert plan_at(frozen("latest", rule=rule), at(13)).next_at == at(15, 30)
    assert fire_moments(plan_at(frozen("latest", rule=rule), at(15, 30)).fires) == [at(13)]
    dropped = plan_at(frozen("drop", rule=rule), at(15, 30))
    assert gap_rows(dropped.gaps) == [(at(13), at(13), 1, "skipped", "blackout")]
    assert dropped.after_end == HOUR


# --- downtime


def test_a_downtime_over_years_of_nightly_blackouts_needs_three_rows() -> None:
    nights = Calendar("nights", exclude=["22:00-06:00"])
    rule = Cron("0 * * * *")
    for fate, reasons in (("drop", ["coalesced", "blackout"]), ("latest", ["coalesced"])):
        known = inputs(rule, at(12), closed=nights, blackout="nights", blackout_fate=fate)
        made = plan_at(known, at(12) + 3650 * DAY)
        assert fire_moments(made.fires) == [at(12) + 3650 * DAY]
        assert [gap.reason for gap in made.gaps] == reasons
        assert sum(gap.count for gap in made.gaps) == 3650 * 24


def test_a_downtime_with_a_blackout_in_it_counts_each_moment_once() -> None:
    made = plan_at(frozen("drop", fire_at=at(11)), at(18, 20))
    assert fire_moments(made.fires) == [at(18)]
    assert gap_rows(made.gaps) == [
        (at(11), at(17), 4, "skipped", "coalesced"),
        (at(13), at(15), 3, "skipped", "blackout"),
    ]


def test_catch_up_skip_misses_moments_outside_the_blackout() -> None:
    made = plan_at(frozen("latest", fire_at=at(16), catch_up="skip"), at(18, 20))
    assert gap_rows(made.gaps) == [(at(16), at(18), 3, "missed", "downtime")]


# --- pauses


def test_moments_of_a_blackout_during_a_pause_are_paused() -> None:
    made = plan_at(frozen("latest", pause=paused(until=at(15, 10))), at(15, 10))
    assert made.fires == ()
    assert gap_rows(made.gaps) == [(at(13), at(15), 3, "skipped", "paused")]
    assert made.next_fire_at == at(16)


def test_a_pause_settles_held_moments() -> None:
    fires, gaps = settle(frozen("latest"), at(14, 10), Reason.PAUSED)
    assert fires == ()
    assert gap_rows(gaps) == [(at(13), at(14), 2, "skipped", "paused")]
    _, gaps = settle(frozen("drop", fire_at=at(12)), at(14, 10), Reason.PAUSED)
    assert gap_rows(gaps) == [(at(12), at(12), 1, "skipped", "paused"), (at(13), at(14), 2, "skipped", "blackout")]


# --- the calendar in the store


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    await made.open()
    yield made
    await made.store.close()


async def freeze(bench: Bench, first: float, last: float) -> None:
    begin, end = bench.start + int(first * SECOND), bench.start + int(last * SECOND)
    await bench.editor.put_calendar(closed(begin, end))


async def test_a_blackout_that_is_not_defined_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidWhen, match="the blackout 'freeze' of 'k' is a calendar that is not defined"):
        await bench.add(Every("1m"), blackout="freeze")


async def test_a_schedule_obeys_its_blackout(bench: Bench) -> None:
    await freeze(bench, 50, 200)
    await bench.add(Every("1m"), blackout="freeze", blackout_fate="latest")
    assert bench.seconds((await bench.stored()).at) == 200
    bench.later(200)
    await bench.tick()
    assert await bench.fired() == [180]
    assert await bench.gaps() == [(60, 120, 2, "skipped", "coalesced")]


async def test_held_moments_stay_held_when_the_blackout_is_extended(bench: Bench) -> None:
    await freeze(bench, 50, 200)
    await bench.add(Every("1m"), blackout="freeze", blackout_fate="latest")
    bench.later(130)
    await freeze(bench, 50, 400)
    stored = await bench.stored()
    assert (bench.seconds(stored.fire_at), bench.seconds(stored.at)) == (60, 400)
    bench.later(270)
    await bench.tick()
    assert await bench.fired() == [360]
    assert await bench.gaps() == [(60, 300, 5, "skipped", "coalesced")]


async def test_the_newest_held_moment_runs_when_the_blackout_is_ended_early(bench: Bench) -> None:
    await freeze(bench, 50, 2000)
    await bench.add(Every("1m"), blackout="freeze", blackout_fate="latest", catch_up="skip")
    bench.later(950)
    await freeze(bench, 50, 100)
    assert await bench.fired() == [900]
    assert await bench.gaps() == [(60, 840, 14, "skipped", "edited")]
    assert bench.seconds((await bench.stored()).fire_at) == 960


async def test_the_newest_held_moment_runs_when_the_blackout_is_removed(bench: Bench) -> None:
    await freeze(bench, 50, 2000)
    await bench.add(Every("1m"), blackout="freeze", blackout_fate="all")
    bench.later(950)
    await bench.editor.edit("k", lambda before: msgspec.structs.replace(before, blackout=None))
    assert await bench.fired() == [900]


async def test_an_edit_of_the_rule_settles_held_moments(bench: Bench) -> None:
    await freeze(bench, 50, 2000)
    await bench.add(Every("1m"), blackout="freeze", blackout_fate="latest")
    bench.later(150)
    await bench.editor.edit("k", lambda before: before, rule=Every("1h"))
    assert await bench.fired() == []
    assert await bench.gaps() == [(60, 120, 2, "skipped", "edited")]


async def test_removing_a_schedule_settles_held_moments(bench: Bench) -> None:
    await freeze(bench, 50, 2000)
    await bench.add(Every("1m"), blackout="freeze", blackout_fate="latest")
    bench.later(150)
    await bench.editor.remove("k")
    assert await bench.gaps() == [(60, 120, 2, "skipped", "removed")]


async def test_a_one_shot_in_a_blackout_is_dropped_or_runs_at_its_end(bench: Bench) -> None:
    await freeze(bench, 50, 200)
    await bench.add(Once(after="1m"), "dropped", blackout="freeze")
    await bench.add(Once(after="1m"), "held", blackout="freeze", blackout_fate="all")
    bench.later(200)
    await bench.tick()
    assert await bench.fired("held") == [60]
    assert await bench.gaps("dropped") == [(60, 60, 1, "skipped", "blackout")]
    assert (await bench.stored("dropped")).at is None


async def test_the_fingerprint_of_a_cursor_includes_the_blackout(bench: Bench) -> None:
    await freeze(bench, 50, 200)
    await bench.add(Every("1m"), blackout="freeze")
    before = (await bench.stored()).fingerprint
    assert await bench.editor.refresh_cursors() == 0
    await freeze(bench, 50, 300)
    assert (await bench.stored()).fingerprint != before
