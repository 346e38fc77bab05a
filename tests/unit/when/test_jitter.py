"""Jitter: it only delays, by less than the distance to the next fire, and always the same."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertick.when import Calendar, Every, Once, to_us
from evertick.when.moment import DAY, HOUR, MINUTE, SECOND

thorough = settings(derandomize=True, deadline=None, max_examples=200)


@thorough
@given(
    jitter=st.integers(1, 7200),
    interval=st.sampled_from(["1s", "1m", "1h", "2h", "1d"]),
    key=st.text(max_size=20),
    at=st.integers(0, 10**15),
)
def test_a_delay_stays_below_the_jitter_and_before_the_next_fire(jitter: int, interval: str, key: str, at: int) -> None:
    rule = Every(interval, jitter=jitter, tz="Europe/Berlin")
    fire = rule.next_us(at)
    assert fire is not None
    following = rule.next_us(fire)
    assert following is not None
    delay = rule.jitter_us(fire, key)
    assert 0 <= delay < jitter * SECOND
    assert fire + delay < following
    assert delay == rule.jitter_us(fire, key)
    assert rule.jitter_cap_us(fire) == min(jitter * SECOND, following - fire)


def test_the_delay_differs_by_schedule_and_by_fire() -> None:
    rule = Every("1h", jitter="30m")
    assert len({rule.jitter_us(hour * HOUR, "a") for hour in range(50)}) == 50
    assert len({rule.jitter_us(0, f"schedule-{number}") for number in range(50)}) == 50


def test_delays_are_spread_evenly() -> None:
    rule = Every("1h", jitter="10m")
    delays = [rule.jitter_us(hour * HOUR, "report") for hour in range(2000)]
    for minute in range(10):
        assert 140 <= sum(minute * MINUTE <= delay < (minute + 1) * MINUTE for delay in delays) <= 260


def test_the_delay_of_a_fire_never_changes_between_versions() -> None:
    rule = Every("1h", jitter="30m")
    assert rule.jitter_us(to_us(datetime(2026, 1, 1, tzinfo=UTC)), "report") == 926_983_326


def test_a_rule_without_jitter_delays_nothing() -> None:
    assert Every("1h").jitter_us(0, "k") == 0
    assert Every("1h").jitter_cap_us(0) == 0


def test_fresh_jitter_is_drawn_by_the_plan_below_its_maximum() -> None:
    rule = Every("1h", jitter="2h", jitter_mode="fresh")
    assert rule.jitter_us(0, "k") == 0
    assert rule.jitter_cap_us(0) == HOUR


def test_the_last_fire_can_be_delayed_by_the_whole_jitter() -> None:
    assert Once(datetime(2026, 1, 1, tzinfo=UTC), jitter="2h").jitter_cap_us(
        to_us(datetime(2026, 1, 1, tzinfo=UTC))
    ) == (2 * HOUR)


def test_the_next_fire_is_the_one_that_the_calendar_permits() -> None:
    rule = Every("1h", jitter="3d", calendar=Calendar.weekdays("business"))
    friday = to_us(datetime(2026, 6, 5, 23, tzinfo=UTC))
    assert rule.jitter_cap_us(friday) == 2 * DAY + HOUR


@pytest.mark.parametrize("key", ["", "ä", "\ud800", "x" * 10_000])
def test_any_key_gives_a_delay(key: str) -> None:
    assert 0 <= Every("1h", jitter="1m").jitter_us(0, key) < MINUTE
