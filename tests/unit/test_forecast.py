"""Forecasts: fires by hour and minute, and moments that many schedules share."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from evertick import Cron, Every, Once
from evertick.plan.forecast import DAYS_MAX, SAMPLE, Expected, Forecast, collisions_of, forecast
from evertick.when import When, from_us, to_us
from evertick.when.moment import DAY, HOUR, MINUTE

START = to_us(datetime(2026, 10, 23, tzinfo=UTC))


def expected(**rules: When) -> dict[str, Expected]:
    return {key: Expected(rule=rule.bind(key=key, created=START)) for key, rule in rules.items()}


def made(days: int = 1, *, since: int = START, zone: str = "UTC", **rules: When) -> Forecast:
    return forecast(expected(**rules), since, days, lambda us: from_us(us, ZoneInfo(zone)))


def test_fires_are_counted_in_their_hour():
    (day,) = made(report=Cron("30 9 * * *"), hourly=Cron("@hourly")).days
    assert day.hours[9] == 2
    assert all(count == 1 for hour, count in enumerate(day.hours) if hour != 9)
    assert day.fires == 25


def test_past_hours_are_none_and_not_zero():
    (day,) = made(since=START + 9 * HOUR + 31 * MINUTE, report=Cron("30 9 * * *"), late=Cron("0 23 * * *")).days
    assert day.hours[:9] == (None,) * 9
    assert day.hours[9] == 0
    assert day.hours[23] == 1


def test_the_table_has_a_row_for_every_day_in_the_zone_of_the_reader():
    days = made(3, zone="Asia/Tokyo", report=Every("1h")).days
    assert [f"{day.date}" for day in days] == ["2026-10-23", "2026-10-24", "2026-10-25"]
    assert days[0].hours[8:10] == (None, 1)  # midnight UTC is nine o'clock there
    assert days[1].fires == 24


def test_the_repeated_hour_of_a_clock_change_is_counted_twice_in_its_cell():
    *_, sunday = made(3, zone="Europe/Berlin", quarter=Every("15m")).days
    assert sunday.hours[2] == 8
    assert sunday.fires == 25 * 4


def test_an_hour_that_a_clock_change_skips_is_none():
    spring = to_us(datetime(2026, 3, 28, 23, tzinfo=UTC))
    (day,) = made(since=spring, zone="Europe/Berlin", quarter=Every("15m")).days
    assert day.hours[2] is None
    assert day.fires == 23 * 4


def test_a_rule_of_every_millisecond_is_counted_and_not_listed():
    whole = made(DAYS_MAX, quick=Every("1ms"), second=Cron("* * * * * *"))
    assert whole.fires == DAYS_MAX * 86_400 * 1_001
    assert whole.days[0].hours[5] == 3_600 * 1_001
    assert whole.busiest[0].fires == 60 * 1_001


def test_the_busiest_minutes_come_first_and_include_dense_rules():
    busiest = made(2, second=Every("1s"), a=Cron("0 9 * * *"), b=Cron("0 9 * * *")).busiest
    assert [(f"{minute.at:%d %H:%M}", minute.fires) for minute in busiest[:3]] == [
        ("23 09:00", 62),
        ("24 09:00", 62),
        ("23 00:00", 60),
    ]


def test_the_busiest_minute_of_a_dense_rule_is_found_in_its_busiest_hour():
    busiest = made(2, burst=Cron("* * 17 * * *")).busiest
    assert f"{busiest[0].at:%H:%M}" == "17:00"
    assert busiest[0].fires == 60


def test_the_remaining_max_fires_bound_the_count():
    rule = Every("1s", max_fires=100).bind(key="k", created=START)
    few = forecast({"k": Expected(rule=rule, left=70)}, START, 1, from_us)
    assert few.fires == 70
    many = forecast({"k": Expected(rule=rule, left=7_000)}, START, 1, from_us)
    assert many.fires == 7_000
    assert many.days[0].hours[:3] == (3_600, 3_400, 0)


def test_an_after_end_schedule_has_one_known_fire():
    assert made(poll=Every("1h", after="end")).fires == 1


def test_collisions_are_counted_once_per_set_of_schedules():
    found = made(3, a=Cron("0 9 * * *"), b=Cron("0 9 * * *"), c=Cron("0 9 23 * *"), alone=Cron("1 9 * * *")).collisions
    assert [(each.keys, each.times, each.is_exact) for each in found] == [
        (("a", "b", "c"), 1, True),
        (("a", "b"), 2, True),
    ]
    assert found[1].at == datetime(2026, 10, 24, 9, tzinfo=UTC)


def test_jitter_removes_a_collision():
    assert made(3, a=Cron("0 9 * * *"), b=Cron("0 9 * * *", jitter="5m")).collisions == ()


def test_collisions_of_dense_rules_are_lower_bounds():
    (found,) = made(7, a=Every("1s"), b=Every("1s")).collisions
    assert (found.keys, found.is_exact) == (("a", "b"), False)
    assert found.times >= SAMPLE


def test_a_dense_rule_is_part_of_the_collisions_of_others():
    (found, *_) = made(7, a=Cron("0 9 23 * *"), b=Cron("0 9 23 * *"), second=Every("1s")).collisions
    assert found.keys == ("a", "b", "second")


def test_collisions_of_many_schedules_are_found_in_a_window():
    rules = expected(**{f"k{number:04}": Cron("*/5 * * * *") for number in range(1_000)})
    largest = collisions_of(rules, START + 1, START + DAY, from_us)[0]
    assert len(largest.keys) == 1_000
    assert largest.at == datetime(2026, 10, 23, 0, 5, tzinfo=UTC)


@pytest.mark.parametrize("rule", [Once(from_us(START - DAY)), Cron("0 9 * * *", end=from_us(START - DAY))])
def test_an_ended_schedule_adds_nothing(rule):
    over = made(over=rule)
    assert (over.fires, over.busiest, over.collisions) == (0, (), ())
