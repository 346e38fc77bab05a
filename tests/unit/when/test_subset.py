"""Subsets of a rule's moments, compared with filtered lists; and inverted calendars."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertick.when import Calendar, Cron, Every, When, from_us
from evertick.when.moment import DAY, HOUR, MINUTE
from evertick.when.subset import Within, Without

START = 1_767_225_600_000_000
LIFE = 3 * DAY

RULES: list[When] = [
    Every("7m").bind(key="k", created=START),
    Cron("*/20 * * * *", tz="Europe/Berlin").bind(key="k", created=START),
    Cron("0 9 * * *", calendar=Calendar("week", include=["mon-fri"])).bind(key="k", created=START),
]
CALENDARS = [
    Calendar("nights", exclude=["22:00-06:00"]),
    Calendar("one", exclude=[(from_us(START + HOUR), from_us(START + 30 * HOUR))]),
    Calendar("days", include=["thu", "sat"], tz="America/New_York"),
    Calendar("always"),
    Calendar("never", exclude=["mon-sun"]),
]


def listed(rule: When, first: int, last: int) -> list[int]:
    found, moment = [], rule.next_us(first - 1)
    while moment is not None and moment <= last:
        found.append(moment)
        moment = rule.next_us(moment)
    return found


def check(part: When, expected: list[int], first: int, last: int) -> None:
    assert listed(part, first, last) == expected
    back, moment = [], part.previous_us(last + 1)
    while moment is not None and moment >= first:
        back.append(moment)
        moment = part.previous_us(moment)
    assert back == expected[::-1], "previous mirrors next"
    assert part.count_us(first, last) == len(expected)
    assert part.count_us(first, last, 3) == min(3, len(expected))


@given(st.sampled_from(RULES), st.sampled_from(CALENDARS), st.integers(0, LIFE), st.integers(0, LIFE))
@settings(max_examples=200, deadline=None)
def test_a_rule_within_a_calendar_and_its_inverse_has_all_moments(
    rule: When, calendar: Calendar, since: int, length: int
) -> None:
    first, last = START + since, START + since + length
    whole = listed(rule, first, last)
    check(Within(rule, calendar), [each for each in whole if calendar.permits(each)], first, last)
    shut = Within(rule, calendar.inverse(first, last))
    check(shut, [each for each in whole if not calendar.permits(each)], first, last)


@given(st.sampled_from(RULES), st.sets(st.integers(0, 400)), st.integers(0, LIFE), st.integers(0, LIFE))
@settings(max_examples=200, deadline=None)
def test_a_rule_without_some_moments_keeps_the_others(rule: When, places: set[int], since: int, length: int) -> None:
    first, last = START + since, START + since + length
    whole = listed(rule, START, START + 2 * LIFE)
    left_out = {whole[place] for place in places if place < len(whole)}
    strangers = {START + 1, START + 5 * MINUTE + 1}
    part = Without(rule, left_out | strangers)
    check(part, [each for each in whole if each not in left_out and first <= each <= last], first, last)


@given(st.sampled_from(CALENDARS), st.integers(0, LIFE), st.integers(0, LIFE))
@settings(max_examples=200, deadline=None)
def test_an_open_range_begins_after_a_closed_moment(calendar: Calendar, since: int, length: int) -> None:
    earliest, moment = START + since, START + since + length
    if not calendar.permits(moment):
        return
    opened = calendar.open_since(moment, earliest)
    assert earliest <= opened <= moment
    assert calendar.permits(opened)
    assert opened == earliest or not calendar.permits(opened - 1)
    assert calendar.open_until(opened, moment + 1) == moment + 1


def test_the_jitter_of_a_fire_does_not_depend_on_left_out_neighbours() -> None:
    rule = Every("1h", jitter="3h").bind(key="k", created=START)
    part = Without(rule, [START + 2 * HOUR])
    assert part.next_us(START + HOUR) == START + 3 * HOUR
    assert part.jitter_us(START + HOUR, "k") == rule.jitter_us(START + HOUR, "k")


@pytest.mark.parametrize("calendar", CALENDARS, ids=lambda each: each.name)
def test_closed_years_are_skipped_quickly_in_both_directions(calendar: Calendar) -> None:
    shut = calendar.inverse(START - 3650 * DAY, START)
    assert shut.next_open(START - 3650 * DAY) is None or shut.permits(shut.next_open(START - 3650 * DAY) or 0)
    assert shut.previous_open(START) is None or shut.permits(shut.previous_open(START) or 0)
