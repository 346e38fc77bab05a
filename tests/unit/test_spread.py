"""Suggested rules that avoid a moment shared by many schedules."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from evertick import Calendar, Cron, Every, Once
from evertick.plan.spread import spread_rule
from evertick.when import When, parse_when, to_us

NOW = to_us(datetime(2026, 1, 31, tzinfo=UTC))


def spread(rule: When) -> str | None:
    return spread_rule(rule.bind(key="report", created=NOW), "report", NOW)


@pytest.mark.parametrize(
    ("rule", "instead"),
    [
        (Cron("0 9 * * mon-fri", tz="Europe/Berlin"), "H 9 * * 1-5; tz=Europe/Berlin"),
        (Cron("@hourly"), "H * * * *; tz=UTC"),
        (Cron("*/15 8-18 * * *"), "H/15 8-18 * * *; tz=UTC"),
        (Cron("0/20 * * * *"), "H/20 * * * *; tz=UTC"),
        (Cron("30 0 9 * * *"), "30 H 9 * * *; tz=UTC"),
        (Cron("0 9 * * *", days="and", dst="skip"), "H 9 * * *; tz=UTC; dst=skip; days=and"),
    ],
)
def test_a_single_minute_or_an_even_step_is_replaced_by_h(rule, instead):
    assert spread(rule) == instead


@pytest.mark.parametrize(
    ("rule", "jitter"),
    [
        (Cron("0,30 9 * * *"), "jitter=5m"),
        (Cron("*/7 * * * *"), "jitter=210s"),
        (Every("1h"), "jitter=5m"),
        (Every("4s"), "jitter=2s"),
        (Once(datetime(2027, 1, 1, tzinfo=UTC)), "jitter=5m"),
    ],
)
def test_other_rules_get_jitter_below_the_distance_to_the_next_fire(rule, jitter):
    assert spread(rule) == f"{rule.bind(key='report', created=NOW).text}; {jitter}"


@pytest.mark.parametrize("rule", [Every("1s"), Cron("* * * * * *"), Cron("0 9 * * *", jitter="1m")])
def test_a_dense_rule_or_a_rule_with_jitter_gets_no_suggestion(rule):
    assert spread(rule) is None


def test_a_suggested_rule_fires_as_often_in_its_hour_and_keeps_its_calendar():
    days = Calendar("days", exclude=["sat", "sun"])
    rule = Cron("0 9 * * *", calendar=days).bind(key="report", created=NOW)
    text = spread_rule(rule, "report", NOW)
    assert text is not None
    moved = parse_when(text, {"days": days}).bind(key="report", created=NOW)
    start = datetime(2026, 1, 31, tzinfo=UTC)
    assert [f"{at:%d %H}" for at in moved.upcoming(start, 9)] == [f"{at:%d %H}" for at in rule.upcoming(start, 9)]
    assert moved.upcoming(start, 1) != rule.upcoming(start, 1)
