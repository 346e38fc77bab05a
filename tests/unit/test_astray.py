"""Cursors that a wrong clock has set, and cursors that are far away because of their rule."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from planning import at, inputs, paused

from evertick import Calendar, Cron, Every, Once
from evertick.ledger.clock_repair import looks_too_late, passed_over
from evertick.when.moment import DAY, HOUR

NOW = at(11, 30)
YEARS = 76 * 365 * DAY


def test_a_cursor_after_the_next_moment_of_its_rule_would_skip_that_moment() -> None:
    assert passed_over(inputs(fire_at=at(12) + YEARS), NOW) == at(12)
    assert passed_over(inputs(fire_at=at(14)), NOW) == at(12)
    assert passed_over(inputs(fire_at=None), NOW) == at(12)
    assert passed_over(inputs(Every("1h", after="end"), fire_at=NOW + 3 * HOUR), NOW) == NOW + HOUR


@pytest.mark.parametrize(
    "known",
    [
        inputs(),  # a moment of its rule
        inputs(fire_at=at(9)),  # due
        inputs(Cron("0 0 29 2 *"), fire_at=1_835_395_200_000_000),  # 2028-02-29
        inputs(Once(datetime(2102, 11, 1, tzinfo=UTC)), fire_at=4_191_782_400_000_000),
        inputs(Every("1h", start=datetime(2102, 11, 1, tzinfo=UTC)), fire_at=4_191_782_400_000_000),
        inputs(fire_at=at(12) + YEARS, pause=paused()),  # a resume restarts it
        inputs(Every("1h", max_fires=3), fire_at=None, fires=3),  # max_fires reached
        inputs(Every("1h", end=datetime(2026, 1, 1, 10, tzinfo=UTC)), fire_at=None),  # ended
        inputs(Every("1h", after="end"), fire_at=None),  # a run is live
        inputs(Every("1h", after="end"), fire_at=NOW + HOUR),
    ],
)
def test_a_cursor_on_a_moment_of_its_rule_is_left_alone(known) -> None:
    assert passed_over(known, NOW) is None
    assert not looks_too_late(known, NOW)


def test_a_clock_set_back_by_less_than_a_minute_is_ignored() -> None:
    # The moment at twelve ran half a minute ago by the old clock.
    assert passed_over(inputs(fire_at=at(13)), at(11, 59, 30)) is None


def test_a_due_time_a_day_after_its_moment_is_too_late_unless_a_blackout_or_jitter_explains_it() -> None:
    assert looks_too_late(inputs(fire_at=at(9), at=at(9) + YEARS), NOW)
    assert not looks_too_late(inputs(fire_at=at(9), at=NOW + HOUR), NOW)  # a plan that failed
    assert not looks_too_late(inputs(fire_at=at(9), at=None), NOW)
    closed = Calendar("closed", exclude=["2026-01-01..2026-06-30"])
    opens = closed.next_open(NOW)
    assert opens is not None
    assert not looks_too_late(inputs(fire_at=at(9), at=opens, closed=closed), NOW)
    assert looks_too_late(inputs(fire_at=at(9), at=opens + YEARS, closed=closed), NOW)
    assert not looks_too_late(inputs(Every("7d", jitter="3d"), fire_at=at(12), at=at(12) + 2 * DAY), NOW)
