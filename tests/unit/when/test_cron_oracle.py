"""Every rule for clock changes, in every zone of the system, compared with cron_oracle."""

from __future__ import annotations

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo, available_timezones

import pytest
from cron_oracle import Expression, moments, picker, wall_times, written
from hypothesis import given, settings
from hypothesis import strategies as st

from evertick.errors import InvalidWhen
from evertick.when.cron import Cron, DaysRule, DstRule
from evertick.when.zone import Change, changes

RULES: tuple[DstRule, ...] = ("cron", "skip", "shift", "wall")
DAY_RULES: tuple[DaysRule, ...] = ("or", "and")
ZONES = sorted(available_timezones() - {"localtime"})
US = 1_000_000
HOUR = 3600


def agree(cron: Cron, expected: list[int], start: int, end: int) -> None:
    """Forward, backward and count agree with the oracle for [start, end)."""
    expected = [at for at in expected if start <= at < end]
    forward, at = [], start * US - 1
    while (found := cron.next_us(at)) is not None and found < end * US:
        assert found > at
        forward.append(found // US)
        at = found
    assert forward == expected
    backward, at = [], end * US
    while (found := cron.previous_us(at)) is not None and found >= start * US:
        assert found < at
        backward.append(found // US)
        at = found
    assert backward[::-1] == expected
    assert cron.count_us(start * US, end * US - 1) == len(expected)
    middle = (start + end) // 2
    assert cron.count_us(middle * US + 1, end * US) == len([at for at in expected if at > middle]) + (
        cron.next_us(end * US - 1) == end * US
    )


def rule_of(expression: Expression, zone: str, dst: DstRule, days: DaysRule) -> Cron | None:
    """The rule, or None if it is refused because its days never come."""
    try:
        return Cron(expression.text, tz=zone, dst=dst, days=days)
    except InvalidWhen as refused:
        if "never comes" not in str(refused):
            raise
        return None


def around(zone: ZoneInfo, change: Change, hours: int, step: int) -> tuple[int, int, list[tuple[int, datetime]]]:
    """A window around a change, walked from the day before, so that repeated wall times are known."""
    reach = max(hours * HOUR, abs(change.after - change.before) + 2 * HOUR)
    start, end = change.at - reach, change.at + reach
    return start, end, wall_times(zone, start - abs(change.after - change.before) - 600, end, step)


def steps_of(change: Change) -> int:
    return 1 if change.before % 60 or change.after % 60 else 60


@pytest.mark.parametrize("letter", sorted({zone[0] for zone in ZONES}))
def test_all_four_rules_hold_in_every_zone(letter: str) -> None:
    for name in (zone for zone in ZONES if zone[0] == letter):
        zone, pick = ZoneInfo(name), picker(name)
        known = changes(zone)
        for change in [known[pick(len(known))]] if known else []:
            start, end, shown = around(zone, change, 4, steps_of(change))
            near = datetime.fromtimestamp(change.at + change.before, UTC)
            for dst in RULES:
                expression, days = written(pick, near=near), DAY_RULES[pick(2)]
                cron = rule_of(expression, name, dst, days)
                if cron is not None:
                    agree(cron, moments(expression, shown, dst, days), start, end)


ODD = [
    ("Australia/Lord_Howe", 2026),
    ("Africa/Casablanca", 2026),
    ("Europe/Dublin", 2026),
    ("Antarctica/Troll", 2026),
    ("Pacific/Apia", 2011),
    ("America/Nuuk", 2023),
    ("America/Nuuk", 2024),
    ("America/Sao_Paulo", 2018),
    ("Asia/Beirut", 2023),
    ("Africa/Cairo", 2024),
    ("Asia/Pyongyang", 2015),
    ("Asia/Pyongyang", 2018),
    ("Africa/Monrovia", 1972),
    ("Pacific/Kiritimati", 1994),
    ("Pacific/Kwajalein", 1993),
    ("America/Caracas", 2007),
    ("Asia/Gaza", 2040),
    ("Antarctica/Vostok", 1994),
    ("Antarctica/Casey", 2010),
    ("Europe/Berlin", 2099),
]


@pytest.mark.parametrize(("name", "year"), ODD)
def test_all_four_rules_hold_at_odd_changes(name: str, year: int) -> None:
    zone, pick = ZoneInfo(name), picker(f"{name} {year}")
    met = [change for change in changes(zone) if datetime.fromtimestamp(change.at, UTC).year == year]
    assert met
    for change in met[:2]:
        start, end, shown = around(zone, change, 3, steps_of(change))
        near = datetime.fromtimestamp(change.at + change.before, UTC)
        for number in range(24 if steps_of(change) == 60 else 6):
            dst, days = RULES[number % 4], DAY_RULES[pick(2)]
            expression = written(pick, near=near)
            cron = rule_of(expression, name, dst, days)
            if cron is not None:
                agree(cron, moments(expression, shown, dst, days), start, end)


@given(st.data())
@settings(max_examples=150, derandomize=True, deadline=None, database=None)
def test_any_expression_holds_at_any_change(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(ZONES))
    zone = ZoneInfo(name)
    known = changes(zone)
    if not known:
        return
    change = data.draw(st.sampled_from(known))
    dst, days = data.draw(st.sampled_from(RULES)), data.draw(st.sampled_from(DAY_RULES))
    near = datetime.fromtimestamp(change.at + change.before, UTC)
    expression = written(lambda n: data.draw(st.integers(0, n - 1)), near=near)
    cron = rule_of(expression, name, dst, days)
    if cron is not None:
        start, end, shown = around(zone, change, 2, steps_of(change))
        agree(cron, moments(expression, shown, dst, days), start, end)


@pytest.mark.parametrize("name", ["Europe/Berlin", "Australia/Lord_Howe", "America/St_Johns"])
def test_seconds_hold_at_changes(name: str) -> None:
    zone, pick = ZoneInfo(name), picker(f"seconds {name}")
    for change in changes(zone)[-2:]:
        start, end, shown = around(zone, change, 1, 1)
        near = datetime.fromtimestamp(change.at + change.before, UTC)
        for number in range(8):
            expression = written(pick, near=near, seconds=True)
            cron = rule_of(expression, name, RULES[number % 4], "or")
            if cron is not None:
                agree(cron, moments(expression, shown, RULES[number % 4], "or"), start, end)


def _midnight(ordinal: int) -> int:
    return int(datetime.fromordinal(ordinal).replace(tzinfo=UTC).timestamp()) * US


@given(st.data())
@settings(max_examples=150, derandomize=True, deadline=None, database=None)
def test_the_days_of_any_expression_are_those_of_the_calendar(data: st.DataObject) -> None:
    days = data.draw(st.sampled_from(DAY_RULES))
    expression = written(lambda n: data.draw(st.integers(0, n - 1)))
    year = data.draw(st.integers(1970, 2097))
    cron = rule_of(expression, "UTC", "cron", days)
    if cron is None:
        every = range(datetime(1970, 1, 1).toordinal(), datetime(2100, 1, 1).toordinal())
        assert not any(expression.matches_date(date.fromordinal(number), days) for number in every)
        return
    first = datetime(year, 1, 1, tzinfo=UTC)
    ordinals = range(first.toordinal(), first.toordinal() + 800)
    expected = [number for number in ordinals if expression.matches_date(datetime.fromordinal(number).date(), days)]
    start, end = (_midnight(edge) for edge in (ordinals[0], ordinals[-1] + 1))
    per_day = len(expression.second.values) * len(expression.minute.values) * len(expression.hour.values)
    assert cron.count_us(start, end - 1, 10**9) == per_day * len(expected)
    found, at = [], start - 1
    while (at_next := cron.next_us(at)) is not None and at_next < end:
        found.append(datetime.fromtimestamp(at_next // US, UTC).toordinal())
        at = _midnight(found[-1] + 1) - 1
    assert found == expected
