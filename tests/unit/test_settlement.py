"""Settlement of the due moments of a definition before a change."""

from __future__ import annotations

import pytest
from planning import at, fire_moments, gap_rows, inputs, paused

from evertick.model import Reason
from evertick.plan.inputs import PlanInputs
from evertick.plan.settlement import settle
from evertick.when import Every
from evertick.when.moment import MINUTE


@pytest.mark.parametrize("reason", [Reason.EDITED, Reason.PAUSED])
def test_a_moment_due_in_the_last_minute_still_becomes_a_run(reason: Reason) -> None:
    fires, gaps = settle(inputs(), at(12, 1), reason)
    assert fire_moments(fires) == [at(12)]
    assert gaps == ()


@pytest.mark.parametrize("reason", [Reason.EDITED, Reason.PAUSED])
def test_an_older_moment_becomes_a_gap_with_the_reason(reason: Reason) -> None:
    fires, gaps = settle(inputs(), at(12, 1) + 1, reason)
    assert fires == ()
    assert gap_rows(gaps) == [(at(12), at(12), 1, "skipped", reason.value)]


def test_after_a_downtime_only_a_moment_of_the_last_minute_runs() -> None:
    fires, gaps = settle(inputs(), at(15, 0, 30), Reason.EDITED)
    assert fire_moments(fires) == [at(15)]
    assert gap_rows(gaps) == [(at(12), at(14), 3, "skipped", "edited")]


def test_a_removal_runs_no_moment() -> None:
    fires, gaps = settle(inputs(), at(12), Reason.REMOVED, fresh=-1)
    assert fires == ()
    assert gap_rows(gaps) == [(at(12), at(12), 1, "skipped", "removed")]


def test_no_moment_is_due_before_the_cursor() -> None:
    assert settle(inputs(), at(12) - 1, Reason.EDITED) == ((), ())


def test_no_moment_is_due_without_a_cursor() -> None:
    assert settle(inputs(fire_at=None), at(15), Reason.EDITED) == ((), ())


def test_no_moment_is_due_after_max_fires() -> None:
    assert settle(inputs(Every("1h", max_fires=2), fires=2), at(15), Reason.EDITED) == ((), ())


def test_overlap_applies_to_a_settled_moment() -> None:
    fires, gaps = settle(inputs(live=1), at(12), Reason.EDITED)
    assert fires == ()
    assert [gap.count for gap in gaps] == [1]


def test_a_run_that_must_wait_for_the_live_one_is_blocked() -> None:
    fires, _ = settle(inputs(overlap="queue", live=1), at(12), Reason.EDITED)
    assert fires[0].is_blocked


def test_grace_applies_to_a_settled_moment() -> None:
    fires, gaps = settle(inputs(grace=1_000_000), at(12, 0, 2), Reason.EDITED)
    assert fires == ()
    assert len(gaps) == 1


# --- jitter: after the moment and before its due time


def _delayed() -> tuple[int, int]:
    """A moment within its delay, and the end of the delay."""
    due = at(12) + inputs(Every("1h", jitter="50m")).rule.jitter_us(at(12), "job")
    assert due > at(12, 0, 1)
    return at(12, 0, 1), due


def test_an_edit_runs_a_delayed_moment_at_its_due_time() -> None:
    now, due = _delayed()
    fires, gaps = settle(inputs(Every("1h", jitter="50m")), now, Reason.EDITED)
    assert [(fire.fire_at, fire.due_at, fire.is_late) for fire in fires] == [(at(12), due, False)]
    assert gaps == ()


@pytest.mark.parametrize(("reason", "fresh"), [(Reason.PAUSED, MINUTE), (Reason.REMOVED, -1)])
def test_a_pause_and_a_removal_record_a_delayed_moment_as_a_gap(reason: Reason, fresh: int) -> None:
    now, _ = _delayed()
    fires, gaps = settle(inputs(Every("1h", jitter="50m")), now, reason, fresh=fresh)
    assert fires == ()
    assert gap_rows(gaps) == [(at(12), at(12), 1, "skipped", reason.value)]


def _paced_inputs() -> PlanInputs:
    """Every 2 s with a jitter of at most 2 s; catch-up has set next_due_at to 3.2 s after the moment."""
    rule = Every("2s", jitter="5s", jitter_mode="fresh")
    return inputs(rule, at=at(12, 0, 3.2), catch_up="all", overlap="queue", live=1)


def test_the_pace_of_catch_up_is_not_mistaken_for_a_drawn_delay() -> None:
    fires, gaps = settle(_paced_inputs(), at(12, 0, 2.5), Reason.PAUSED)
    assert [(fire.fire_at, fire.due_at) for fire in fires] == [(at(12), at(12))]
    assert gap_rows(gaps) == [(at(12, 0, 2), at(12, 0, 2), 1, "skipped", "paused")]


def test_a_removal_records_no_run_for_a_paced_moment() -> None:
    fires, gaps = settle(_paced_inputs(), at(12, 0, 2.5), Reason.REMOVED, fresh=-1)
    assert fires == ()
    assert gap_rows(gaps) == [(at(12), at(12, 0, 2), 2, "skipped", "removed")]


def test_a_pause_runs_the_due_moment_and_records_the_delayed_one() -> None:
    rule = Every("1m", jitter="50s", jitter_mode="fresh")
    fires, gaps = settle(inputs(rule, at=at(12, 0, 40)), at(12, 1, 5), Reason.PAUSED)
    assert fire_moments(fires) == [at(12)]
    assert gap_rows(gaps) == [(at(12, 1), at(12, 1), 1, "skipped", "paused")]


# --- pauses


def test_moments_during_a_pause_are_one_gap() -> None:
    fires, gaps = settle(inputs(pause=paused()), at(15), Reason.EDITED)
    assert fires == ()
    assert gap_rows(gaps) == [(at(12), at(15), 4, "skipped", "paused")]


def test_moments_while_the_schedule_was_undeclared_have_that_reason() -> None:
    _, gaps = settle(inputs(pause=paused(is_undeclared=True)), at(13, 30), Reason.EDITED)
    assert gap_rows(gaps) == [(at(12), at(13), 2, "skipped", "undeclared")]


def test_a_pause_without_moments_leaves_no_gap() -> None:
    assert settle(inputs(pause=paused()), at(11, 30), Reason.PAUSED) == ((), ())


def test_an_edit_right_after_the_end_of_a_pause_keeps_the_moment_at_its_end() -> None:
    fires, gaps = settle(inputs(pause=paused(until=at(14))), at(14, 0, 0.3), Reason.EDITED)
    assert fire_moments(fires) == [at(14)]
    assert gap_rows(gaps) == [(at(12), at(13), 2, "skipped", "paused")]


def test_moments_after_the_end_of_a_pause_are_not_recorded_as_paused() -> None:
    fires, gaps = settle(inputs(pause=paused(until=at(14))), at(16, 30), Reason.EDITED)
    assert fires == ()
    assert gap_rows(gaps) == [
        (at(12), at(13), 2, "skipped", "paused"),
        (at(14), at(16), 3, "skipped", "edited"),
    ]


# --- after-end rules


def test_an_after_end_rule_settles_its_one_moment() -> None:
    fires, gaps = settle(inputs(Every("5m", after="end")), at(12, 0, 30), Reason.EDITED)
    assert fire_moments(fires) == [at(12)]
    assert gaps == ()
    fires, gaps = settle(inputs(Every("5m", after="end")), at(14), Reason.EDITED)
    assert fires == ()
    assert gap_rows(gaps) == [(at(12), at(12), 1, "skipped", "edited")]
