"""The merged moments of many schedules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertick.errors import InvalidWhen
from evertick.when import Every, Once, upcoming_over

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(1, 90), max_size=6), st.integers(0, 60), st.integers(0, 300))
def test_moments_of_many_rules_are_merged_in_order(minutes: list[int], count: int, until: int) -> None:
    rules = {f"{number}": Every(timedelta(minutes=step)) for number, step in enumerate(minutes)}
    end = NOW + timedelta(minutes=until)
    every = sorted((at, key) for key, rule in rules.items() for at in rule.upcoming(NOW, 300))
    assert upcoming_over(rules, NOW, count=count) == every[:count]
    assert upcoming_over(rules, NOW, until=end) == [pair for pair in every if pair[0] <= end]
    assert upcoming_over(rules, NOW, count=count, until=end) == [pair for pair in every if pair[0] <= end][:count]


def test_each_moment_is_in_the_zone_of_its_rule() -> None:
    rules = {"tokyo": Every("1d", tz="Asia/Tokyo"), "utc": Every("1d", tz="UTC")}
    (first, key), (second, other) = upcoming_over(rules, NOW, count=2)
    assert (key, other) == ("tokyo", "utc")
    assert (first.hour, second.hour) == (0, 0)
    assert first < second


def test_the_end_of_a_rule_does_not_end_the_others() -> None:
    rules = {"a": Once(NOW + timedelta(minutes=30)), "b": Every("1h"), "never": Once(NOW)}
    assert [key for _, key in upcoming_over(rules, NOW, count=3)] == ["a", "b", "b"]


def test_no_rules_give_no_moments() -> None:
    assert upcoming_over({}, NOW, count=10) == []


def test_a_preview_must_be_bounded() -> None:
    with pytest.raises(InvalidWhen, match="pass count or until"):
        upcoming_over({"a": Every("1h")}, NOW)
    for count in (-1, 10_001, 1.5):
        with pytest.raises(InvalidWhen, match="count"):
            upcoming_over({"a": Every("1h")}, NOW, count=count)  # type: ignore[arg-type]


def test_a_preview_by_time_alone_stops_at_ten_thousand() -> None:
    assert len(upcoming_over({"a": Every("1s")}, NOW, until=NOW + timedelta(days=1))) == 10_000
