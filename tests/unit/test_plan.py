"""Plans: the due runs and gaps of a schedule, as a pure function."""

from __future__ import annotations

import pytest
from planning import at, fire_moments, gap_rows, inputs, paused, plan_at

from evertick.plan.overlap import admit
from evertick.when import Calendar, Cron, Every, Once, from_us
from evertick.when.base import COUNT_LIMIT
from evertick.when.moment import DAY, HOUR, MINUTE, SECOND

# --- on time


def test_a_due_moment_fires_and_the_cursor_moves_to_the_next() -> None:
    made = plan_at(inputs(), at(12, 0, 0.002))
    assert fire_moments(made.fires) == [at(12)]
    assert made.fires[0].due_at == at(12)
    assert not made.fires[0].is_late
    assert not made.fires[0].is_blocked
    assert made.gaps == ()
    assert (made.next_fire_at, made.next_at) == (at(13), at(13))


def test_a_moment_is_due_at_its_exact_microsecond() -> None:
    assert fire_moments(plan_at(inputs(), at(12)).fires) == [at(12)]
    early = plan_at(inputs(), at(12) - 1)
    assert early.fires == ()
    assert (early.next_fire_at, early.next_at) == (at(12), at(12))


def test_planning_before_the_moment_changes_nothing() -> None:
    made = plan_at(inputs(), at(11, 30))
    assert made.fires == made.gaps == ()
    assert (made.next_fire_at, made.next_at) == (at(12), at(12))


def test_a_schedule_without_a_cursor_has_no_moments_and_is_never_due() -> None:
    made = plan_at(inputs(fire_at=None), at(12))
    assert (made.fires, made.gaps, made.next_fire_at, made.next_at) == ((), (), None, None)


@pytest.mark.parametrize(("seconds", "is_late"), [(5, False), (5.001, True)])
def test_a_run_recorded_more_than_five_seconds_after_it_was_due_is_marked_late(seconds: float, is_late: bool) -> None:
    assert plan_at(inputs(), at(12, 0, seconds)).fires[0].is_late is is_late


# --- catch-up latest


def test_catch_up_latest_runs_only_the_newest_due_moment_and_marks_it_late() -> None:
    made = plan_at(inputs(), at(15))
    assert fire_moments(made.fires) == [at(15)]
    assert made.fires[0].is_late
    assert gap_rows(made.gaps) == [(at(12), at(14), 3, "skipped", "coalesced")]
    assert made.next_fire_at == at(16)


def test_years_of_downtime_need_two_rows() -> None:
    made = plan_at(inputs(Every("1s")), at(12) + 3650 * DAY)
    assert fire_moments(made.fires) == [at(12) + 3650 * DAY]
    assert len(made.gaps) == 1
    assert made.gaps[0].count == COUNT_LIMIT
    assert not made.gaps[0].is_exact


def test_a_completely_counted_gap_is_exact() -> None:
    made = plan_at(inputs(Every("1s")), at(12) + 50_000 * SECOND)
    assert (made.gaps[0].count, made.gaps[0].is_exact) == (50_000, True)


# --- grace


@pytest.mark.parametrize(("late", "fires"), [(10 * MINUTE, [at(12)]), (10 * MINUTE + 1, [])])
def test_grace_counts_from_the_due_time_and_includes_its_last_microsecond(late: int, fires: list[int]) -> None:
    made = plan_at(inputs(grace=10 * MINUTE), at(12) + late)
    assert fire_moments(made.fires) == fires
    assert gap_rows(made.gaps) == ([] if fires else [(at(12), at(12), 1, "missed", "grace")])
    assert made.next_fire_at == at(13)


def test_if_the_newest_moment_is_past_its_grace_all_due_moments_are_missed() -> None:
    made = plan_at(inputs(grace=MINUTE), at(15, 30))
    assert made.fires == ()
    assert gap_rows(made.gaps) == [(at(12), at(15), 4, "missed", "grace")]


def test_grace_counts_from_the_delayed_time_not_from_the_nominal_one() -> None:
    known = inputs(Every("1h", jitter="30m", jitter_mode="fresh"), at=at(12, 20), grace=MINUTE)
    assert fire_moments(plan_at(known, at(12, 20, 59)).fires) == [at(12)]
    assert plan_at(known, at(12, 21, 1)).fires == ()


# --- catch-up skip


def test_catch_up_skip_runs_a_moment_noticed_on_time() -> None:
    made = plan_at(inputs(catch_up="skip"), at(12, 1))
    assert fire_moments(made.fires) == [at(12)]
    assert made.gaps == ()


def test_catch_up_skip_makes_one_missed_gap_of_a_downtime() -> None:
    made = plan_at(inputs(catch_up="skip"), at(15, 30))
    assert made.fires == ()
    assert gap_rows(made.gaps) == [(at(12), at(15), 4, "missed", "downtime")]
    assert made.next_fire_at == at(16)


def test_catch_up_skip_runs_a_moment_at_the_end_of_a_downtime() -> None:
    made = plan_at(inputs(catch_up="skip"), at(15, 0, 1))
    assert fire_moments(made.fires) == [at(15)]
    assert gap_rows(made.gaps) == [(at(12), at(14), 3, "missed", "downtime")]


def test_grace_defines_on_time_for_catch_up_skip() -> None:
    assert fire_moments(plan_at(inputs(catch_up="skip", grace=30 * MINUTE), at(12, 20)).fires) == [at(12)]
    missed = plan_at(inputs(catch_up="skip", grace=30 * MINUTE), at(12, 40))
    assert gap_rows(missed.gaps) == [(at(12), at(12), 1, "missed", "grace")]


# --- catch-up all


def test_catch_up_all_takes_the_oldest_first_one_per_pace() -> None:
    made = plan_at(inputs(catch_up="all"), at(15, 30))
    assert fire_moments(made.fires) == [at(12)]
    assert made.gaps == ()
    assert made.next_fire_at == at(13)
    assert made.next_at == at(15, 30) + SECOND


def test_catch_up_all_plans_at_half_the_interval_of_its_rule() -> None:
    for every, wait in (("1s", SECOND // 2), ("500ms", SECOND // 4), ("3s", SECOND), ("2s", SECOND)):
        made = plan_at(inputs(Every(every), catch_up="all"), at(12, 0, 9.9))
        assert made.next_at == at(12, 0, 9.9) + wait
    made = plan_at(inputs(Every("10s"), catch_up="all", pace=MINUTE), at(12, 1))
    assert made.next_at == at(12, 1, 5)


def test_catch_up_all_plans_at_a_tenth_of_the_interval_while_it_waits_for_the_live_run() -> None:
    for every, wait in (("1s", SECOND // 10), ("500ms", SECOND // 20), ("3s", 3 * SECOND // 10), ("20s", SECOND)):
        made = plan_at(inputs(Every(every), catch_up="all", live=1), at(12, 1, 9.9))
        assert made.next_at == at(12, 1, 9.9) + wait


def test_catch_up_all_waits_for_the_live_run_while_it_is_behind() -> None:
    made = plan_at(inputs(catch_up="all", live=1, pace=5 * SECOND), at(15, 30))
    assert made.fires == made.gaps == ()
    assert (made.next_fire_at, made.next_at) == (at(12), at(15, 30, 5))


def test_catch_up_all_skips_an_overlapping_moment_once_it_is_not_behind() -> None:
    made = plan_at(inputs(catch_up="all", live=1), at(12, 0, 0.5))
    assert gap_rows(made.gaps) == [(at(12), at(12), 1, "skipped", "overlap")]
    assert made.next_fire_at == at(13)


def test_catch_up_all_keeps_the_newest_up_to_its_limit_and_misses_the_older_ones() -> None:
    made = plan_at(inputs(catch_up="all", catch_up_limit=3), at(20))
    assert gap_rows(made.gaps) == [(at(12), at(17), 6, "missed", "limit")]
    assert fire_moments(made.fires) == [at(18)]
    assert made.next_fire_at == at(19)


def test_catch_up_all_misses_nothing_below_the_limit() -> None:
    assert plan_at(inputs(catch_up="all", catch_up_limit=9), at(20)).gaps == ()


def test_catch_up_all_records_separate_gaps_for_grace_and_limit() -> None:
    made = plan_at(inputs(catch_up="all", catch_up_limit=2, grace=3 * HOUR), at(20, 30))
    assert gap_rows(made.gaps) == [
        (at(12), at(17), 6, "missed", "grace"),
        (at(18), at(18), 1, "missed", "limit"),
    ]
    assert fire_moments(made.fires) == [at(19)]


def test_catch_up_all_with_no_moment_within_grace_only_moves_the_cursor() -> None:
    made = plan_at(inputs(catch_up="all", grace=MINUTE), at(14, 30))
    assert made.fires == ()
    assert gap_rows(made.gaps) == [(at(12), at(14), 3, "missed", "grace")]
    assert (made.next_fire_at, made.next_at) == (at(15), at(15))


def test_the_last_moment_of_a_catch_up_is_followed_by_the_next_moment_without_a_pace() -> None:
    made = plan_at(inputs(fire_at=at(15), catch_up="all"), at(15, 30))
    assert fire_moments(made.fires) == [at(15)]
    assert made.next_at == at(16)


def test_moments_beyond_the_limit_are_missed_even_while_a_live_run_blocks_the_others() -> None:
    made = plan_at(inputs(catch_up="all", catch_up_limit=2, live=1), at(20))
    assert made.fires == ()
    assert gap_rows(made.gaps) == [(at(12), at(18), 7, "missed", "limit")]
    assert made.next_fire_at == at(19)


# --- overlap


@pytest.mark.parametrize(
    ("overlap", "live", "answer"),
    [
        ("skip", 0, "free"),
        ("skip", 1, None),
        ("skip", 3, None),
        ("queue", 0, "free"),
        ("queue", 1, "blocked"),
        ("queue", 3, None),
        ("replace", 0, "free"),
        ("replace", 1, "blocked"),
        ("replace", 3, "blocked"),
        ("allow", 0, "free"),
        ("allow", 3, "free"),
    ],
)
def test_overlap_decides_about_an_additional_run(overlap: str, live: int, answer: str | None) -> None:
    assert admit(overlap, live) == answer  # type: ignore[arg-type]


def test_a_fire_during_a_live_run_is_skipped_for_overlap() -> None:
    made = plan_at(inputs(live=1), at(12))
    assert made.fires == ()
    assert gap_rows(made.gaps) == [(at(12), at(12), 1, "skipped", "overlap")]
    assert made.next_fire_at == at(13)


def test_all_due_moments_during_a_live_run_are_skipped_for_overlap() -> None:
    made = plan_at(inputs(live=1), at(15))
    assert gap_rows(made.gaps) == [(at(12), at(15), 4, "skipped", "overlap")]


def test_a_fire_replaces_parked_runs() -> None:
    for overlap, live in (("skip", 5), ("queue", 5), ("queue", 7), ("replace", 5)):
        made = plan_at(inputs(overlap=overlap, live=live), at(12))
        assert fire_moments(made.fires) == [at(12)]
        assert made.replaces_live, overlap
        assert made.gaps == ()
    assert not plan_at(inputs(overlap="allow", live=5), at(12)).replaces_live


def test_catch_up_all_waits_for_a_parked_run() -> None:
    made = plan_at(inputs(catch_up="all", live=5), at(12, 0, 0.1))
    assert made.fires == ()
    assert made.gaps == ()
    assert made.next_fire_at == at(12)
    assert made.next_at == at(12, 0, 1.1)


def test_overlap_queue_blocks_one_run_on_the_live_run() -> None:
    made = plan_at(inputs(overlap="queue", live=1), at(12))
    assert made.fires[0].is_blocked
    assert not made.replaces_live


def test_overlap_queue_keeps_only_one_run_blocked() -> None:
    made = plan_at(inputs(overlap="queue", live=3), at(12))
    assert gap_rows(made.gaps) == [(at(12), at(12), 1, "skipped", "overlap")]


def test_overlap_replace_cancels_the_live_run_and_waits_for_its_end() -> None:
    made = plan_at(inputs(overlap="replace", live=1), at(12))
    assert made.fires[0].is_blocked
    assert made.replaces_live


def test_overlap_replace_cancels_nothing_without_a_live_run() -> None:
    made = plan_at(inputs(overlap="replace"), at(12))
    assert not made.fires[0].is_blocked
    assert not made.replaces_live


def test_overlap_allow_ignores_live_runs() -> None:
    made = plan_at(inputs(overlap="allow", live=3), at(12))
    assert fire_moments(made.fires) == [at(12)]
    assert not made.fires[0].is_blocked


# --- bounds


def test_the_last_fire_of_max_fires_ends_the_schedule() -> None:
    made = plan_at(inputs(Every("1h", max_fires=3), fires=2), at(12))
    assert fire_moments(made.fires) == [at(12)]
    assert (made.next_fire_at, made.next_at) == (None, None)


def test_skipped_moments_do_not_count_for_max_fires() -> None:
    made = plan_at(inputs(Every("1h", max_fires=3), fires=2, live=1), at(12))
    assert made.fires == ()
    assert made.next_fire_at == at(13)


def test_a_schedule_that_has_reached_max_fires_has_no_moments() -> None:
    made = plan_at(inputs(Every("1h", max_fires=3), fires=3), at(15))
    assert (made.fires, made.gaps, made.next_at) == ((), (), None)


def test_a_one_shot_fires_once_and_ends() -> None:
    made = plan_at(inputs(Once(from_us(at(12)))), at(12))
    assert fire_moments(made.fires) == [at(12)]
    assert (made.next_fire_at, made.next_at) == (None, None)


def test_the_end_of_a_rule_ends_its_cursor() -> None:
    made = plan_at(inputs(Every("1h", end=from_us(at(13)))), at(20))
    assert fire_moments(made.fires) == [at(13)]
    assert gap_rows(made.gaps) == [(at(12), at(12), 1, "skipped", "coalesced")]
    assert made.next_fire_at is None


# --- jitter


def test_stable_jitter_delays_the_fire_by_the_same_time_in_every_plan() -> None:
    rule = Every("1h", jitter="30m")
    known = inputs(rule)
    due = at(12) + known.rule.jitter_us(at(12), "job")
    assert at(12) < due < at(12, 30)
    early = plan_at(known, at(12))
    assert early.fires == ()
    assert early.next_at == due
    made = plan_at(known, due)
    assert (made.fires[0].fire_at, made.fires[0].due_at) == (at(12), due)
    assert made.next_at == at(13) + known.rule.jitter_us(at(13), "job")


def test_fresh_jitter_is_drawn_for_the_next_moment_and_stored() -> None:
    rule = Every("1h", jitter="30m", jitter_mode="fresh")
    made = plan_at(inputs(rule, at=at(12, 10)), at(12, 10), uniform=0.5)
    assert (made.fires[0].fire_at, made.fires[0].due_at) == (at(12), at(12, 10))
    assert (made.next_fire_at, made.next_at) == (at(13), at(13, 15))


def test_planning_before_the_end_of_a_drawn_delay_keeps_it() -> None:
    rule = Every("1h", jitter="30m", jitter_mode="fresh")
    made = plan_at(inputs(rule, at=at(12, 10)), at(12, 5), uniform=0.9)
    assert made.fires == ()
    assert made.next_at == at(12, 10)


def test_a_slightly_late_tick_does_not_coalesce_a_moment_delayed_almost_to_the_next() -> None:
    rule = Every("1m", jitter="1m", jitter_mode="fresh")
    made = plan_at(inputs(rule, at=at(12, 0, 59.999)), at(12, 1, 0.002), uniform=0.5)
    assert fire_moments(made.fires) == [at(12)]
    assert made.gaps == ()
    assert (made.next_fire_at, made.next_at) == (at(12, 1), at(12, 1, 30))


def test_jitter_stays_below_the_distance_to_the_next_fire() -> None:
    rule = Every("1m", jitter="1h", jitter_mode="fresh")
    made = plan_at(inputs(rule), at(12), uniform=0.999999)
    assert made.next_at is not None
    assert made.next_at < at(12, 2)


def test_a_recorded_moment_stays_due_after_it_left_the_rule() -> None:
    made = plan_at(inputs(Every("1h"), fire_at=at(12, 17)), at(12, 18))
    assert fire_moments(made.fires) == [at(12, 17)]
    assert made.next_fire_at == at(13)


def test_a_recorded_moment_off_the_rule_does_not_wait_for_the_delay_of_a_newer_one() -> None:
    rule = Every("1h", jitter="50m")
    known = inputs(rule, fire_at=at(12, 17))
    newer_due = at(13) + known.rule.jitter_us(at(13), "job")
    made = plan_at(known, newer_due - 1)
    assert fire_moments(made.fires) == [at(12, 17)]
    assert made.next_fire_at == at(13)


# --- after-end rules


def test_the_store_counts_the_next_moment_of_an_after_end_rule() -> None:
    made = plan_at(inputs(Every("5m", after="end")), at(12))
    assert fire_moments(made.fires) == [at(12)]
    assert (made.next_fire_at, made.next_at, made.after_end) == (None, None, 5 * MINUTE)


@pytest.mark.parametrize("catch_up", ["latest", "all", "skip"])
def test_an_after_end_rule_has_one_due_moment_after_any_downtime(catch_up: str) -> None:
    made = plan_at(inputs(Every("5m", after="end"), catch_up=catch_up), at(20))
    rows = len(made.fires) + sum(gap.count for gap in made.gaps)
    assert rows == 1
    assert made.after_end == 5 * MINUTE


def test_a_missed_moment_restarts_an_after_end_rule() -> None:
    made = plan_at(inputs(Every("5m", after="end"), grace=MINUTE), at(13))
    assert gap_rows(made.gaps) == [(at(12), at(12), 1, "missed", "grace")]
    assert made.after_end == 5 * MINUTE


def test_an_after_end_rule_stops_at_its_end_time() -> None:
    made = plan_at(inputs(Every("5m", after="end", end=from_us(at(11, 59)))), at(12))
    assert (made.fires, made.gaps, made.next_at, made.after_end) == ((), (), None, None)


def test_an_after_end_rule_does_not_begin_before_its_start() -> None:
    made = plan_at(inputs(Every("5m", after="end", start=from_us(at(14)))), at(12))
    assert made.fires == ()
    assert (made.next_fire_at, made.next_at) == (at(14), at(14))


def test_a_moment_of_an_after_end_rule_waits_until_its_calendar_opens() -> None:
    calendar = Calendar("holidays", exclude=["2026-01-01"])
    made = plan_at(inputs(Every("5m", after="end", calendar=calendar)), at(12))
    assert made.fires == ()
    assert (made.next_fire_at, made.next_at) == (at(24), at(24))


def test_fresh_jitter_is_drawn_for_a_moment_of_an_after_end_rule() -> None:
    rule = Every("10m", after="end", jitter="4m", jitter_mode="fresh")
    drawn = plan_at(inputs(rule), at(12), uniform=0.5)
    assert drawn.fires == ()
    assert (drawn.next_fire_at, drawn.next_at) == (at(12), at(12, 2))
    made = plan_at(inputs(rule, at=at(12, 2)), at(12, 2), uniform=0.5)
    assert (made.fires[0].fire_at, made.fires[0].due_at) == (at(12), at(12, 2))


def test_the_last_fire_of_max_fires_does_not_restart_an_after_end_rule() -> None:
    made = plan_at(inputs(Every("5m", after="end", max_fires=1)), at(12))
    assert fire_moments(made.fires) == [at(12)]
    assert made.after_end is None


# --- pause


def test_a_paused_schedule_never_fires() -> None:
    made = plan_at(inputs(pause=paused()), at(15))
    assert (made.fires, made.gaps, made.next_at) == ((), (), None)
    assert made.next_fire_at == at(12)
    assert not made.ends_pause


def test_a_timed_pause_is_due_at_its_end() -> None:
    made = plan_at(inputs(pause=paused(until=at(14))), at(13))
    assert (made.fires, made.gaps, made.next_at) == ((), (), at(14))


def test_the_end_of_a_pause_records_the_paused_moments_and_resumes() -> None:
    made = plan_at(inputs(pause=paused(until=at(14, 30))), at(14, 30))
    assert made.ends_pause
    assert made.fires == ()
    assert gap_rows(made.gaps) == [(at(12), at(14), 3, "skipped", "paused")]
    assert (made.next_fire_at, made.next_at) == (at(15), at(15))


def test_the_moment_at_which_a_pause_ends_is_not_paused() -> None:
    made = plan_at(inputs(pause=paused(until=at(14))), at(14))
    assert fire_moments(made.fires) == [at(14)]
    assert gap_rows(made.gaps) == [(at(12), at(13), 2, "skipped", "paused")]


def test_moments_after_the_end_of_a_pause_are_caught_up() -> None:
    made = plan_at(inputs(pause=paused(until=at(14))), at(16))
    assert gap_rows(made.gaps) == [
        (at(12), at(13), 2, "skipped", "paused"),
        (at(14), at(15), 2, "skipped", "coalesced"),
    ]
    assert fire_moments(made.fires) == [at(16)]


def test_the_first_fire_after_a_pause_has_its_jitter() -> None:
    rule = Every("1h", jitter="30m", jitter_mode="fresh")
    made = plan_at(inputs(rule, pause=paused(until=at(14, 30)), at=at(14, 30)), at(14, 30), uniform=0.5)
    assert (made.next_fire_at, made.next_at) == (at(15), at(15, 15))


def test_an_after_end_schedule_continues_after_a_timed_pause() -> None:
    known = inputs(Every("5m", after="end"), fire_at=None, at=at(14), pause=paused(until=at(14)))
    made = plan_at(known, at(14))
    assert made.ends_pause
    assert made.after_end == 5 * MINUTE


def test_an_ended_after_end_schedule_does_not_continue_after_a_pause() -> None:
    rule = Every("5m", after="end", max_fires=1)
    made = plan_at(inputs(rule, fire_at=None, at=at(14), fires=1, pause=paused(until=at(14))), at(14))
    assert made.ends_pause
    assert made.after_end is None


# --- zones


def test_a_fixed_time_in_the_spring_gap_fires_once_right_after_it() -> None:
    rule = Cron("30 2 * * *", tz="Europe/Berlin")
    before = 1_774_663_200_000_000  # 2026-03-28 02:00 UTC
    cursor = inputs(rule).rule.next_us(before)
    made = plan_at(inputs(rule, fire_at=cursor), cursor or 0)
    assert cursor == 1_774_746_000_000_000  # 2026-03-29 01:00 UTC = 03:00 in Berlin
    assert fire_moments(made.fires) == [cursor]
    assert made.next_fire_at == 1_774_830_600_000_000  # 2026-03-30 02:30 in Berlin


def test_catch_up_all_is_behind_while_more_than_one_moment_is_due() -> None:
    made = plan_at(inputs(Every("1s"), catch_up="all", live=1, pace=10 * SECOND), at(12, 0, 2))
    assert made.gaps == ()
    assert made.next_fire_at == at(12)
