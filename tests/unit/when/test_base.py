"""The common interface of all rules: bounds, equality, and queries."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import evertick.when
from evertick.errors import InvalidDuration, InvalidWhen
from evertick.when import Bounds, Calendar, Cron, Every, Once, When, from_us, to_us
from evertick.when.base import UPCOMING_LIMIT
from evertick.when.moment import HOUR, MINUTE, moment_of, moment_text

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
thorough = settings(derandomize=True, deadline=None, max_examples=200)


@thorough
@given(
    start=st.none() | st.integers(0, 200),
    length=st.none() | st.integers(0, 200),
    at=st.integers(-10, 450),
    interval=st.integers(1, 50),
)
def test_bounds_are_inclusive(start: int | None, length: int | None, at: int, interval: int) -> None:
    end = None if length is None else (start or 0) + length
    rule = Every(
        timedelta(minutes=interval),
        start=None if start is None else from_us(start * MINUTE),
        end=None if end is None else from_us(end * MINUTE),
    )
    low, high = -1000 if start is None else start, 1000 if end is None else end
    inside = [minute for minute in range(-1000, 1001) if minute % interval == 0 and low <= minute <= high]
    following = next((minute for minute in inside if minute > at), None)
    latest = next((minute for minute in reversed(inside) if minute < at), None)
    assert rule.next_us(at * MINUTE) == (None if following is None else following * MINUTE)
    assert rule.previous_us(at * MINUTE) == (None if latest is None else latest * MINUTE)
    assert rule.count_us(0, at * MINUTE) == sum(0 <= minute <= at for minute in inside)


@pytest.mark.parametrize(
    ("bounds", "named"),
    [
        ({"start": NOW, "end": NOW - timedelta(seconds=1)}, "before start"),
        ({"start": datetime(2026, 1, 1)}, "time zone"),
        ({"end": "tomorrow"}, "tomorrow"),
        ({"max_fires": 0}, "max_fires"),
        ({"max_fires": True}, "max_fires"),
        ({"max_fires": 1.5}, "max_fires"),
        ({"jitter_mode": "wild"}, "wild"),
        ({"calendar": 7}, "calendar"),
        ({"calendar": "a;b"}, "a;b"),
    ],
)
def test_an_invalid_bound_is_refused_by_name(bounds: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidWhen, match=named):
        Bounds.make(**bounds)  # type: ignore[arg-type]
    with pytest.raises(InvalidWhen, match=named):
        Every("1h", **bounds)  # type: ignore[arg-type]


def test_a_jitter_that_is_no_duration_is_refused_by_name() -> None:
    with pytest.raises(InvalidDuration, match="jitter"):
        Bounds.make(jitter="much")


def test_the_pure_sequence_does_not_count_fires() -> None:
    rule = Every("1h", max_fires=2)
    assert len(rule.upcoming(NOW, 5)) == 5
    assert rule.bounds.max_fires == 2


def test_results_are_in_the_zone_of_the_rule() -> None:
    rule = Every("1d", tz="Asia/Tokyo")
    following, latest = rule.next_after(NOW), rule.previous_before(NOW)
    assert following is not None
    assert latest is not None
    assert following.tzinfo == ZoneInfo("Asia/Tokyo")
    assert (latest.hour, following.hour) == (0, 0)
    assert following - latest == timedelta(days=1)


def test_a_naive_moment_is_refused() -> None:
    with pytest.raises(InvalidWhen, match="time zone"):
        Every("1h").next_after(datetime(2026, 1, 1))


@pytest.mark.parametrize("count", [-1, UPCOMING_LIMIT + 1, 2.0, True, None])
def test_upcoming_takes_a_bounded_count(count: int) -> None:
    with pytest.raises(InvalidWhen, match="count"):
        Every("1h").upcoming(NOW, count)


def test_upcoming_stops_where_the_sequence_ends() -> None:
    assert Every("1h", end=NOW + timedelta(hours=2)).upcoming(NOW, 10) == [
        NOW + timedelta(hours=1),
        NOW + timedelta(hours=2),
    ]
    assert Every("1h").upcoming(NOW, 0) == []


def test_the_minimum_distance_includes_a_clock_change() -> None:
    rule = Every("2h", tz="Europe/Berlin")
    assert rule.minimum_distance(datetime(2026, 3, 28, 12, tzinfo=UTC)) == timedelta(hours=1)
    assert rule.minimum_distance(NOW, 1) is None
    assert Once(NOW).minimum_distance(NOW - timedelta(days=1)) is None


def test_the_minimum_distance_includes_clock_changes_of_the_next_year() -> None:
    daily = Cron("30 2 * * *", tz="Europe/Berlin")
    summer = datetime(2026, 6, 1, tzinfo=UTC)
    assert daily.minimum_distance(summer) == timedelta(hours=23, minutes=30)
    assert daily.minimum_distance(summer, 10) == timedelta(hours=23, minutes=30)
    assert Cron("30 2 * * *").minimum_distance(summer) == timedelta(days=1)
    assert Cron("30 2 * * *", tz="Asia/Tokyo").minimum_distance(summer) == timedelta(days=1)
    ended = Cron("30 2 * * *", tz="Europe/Berlin", end=datetime(2026, 9, 1, tzinfo=UTC))
    assert ended.minimum_distance(summer) == timedelta(days=1)


@pytest.mark.parametrize("rule", [Every("2h"), Every("2h", after="end"), Every("2h", after="end", tz="Europe/Berlin")])
def test_an_interval_in_real_time_has_its_own_length_as_minimum_distance(rule: Every) -> None:
    assert rule.minimum_distance(NOW) == timedelta(hours=2)


def test_a_rule_with_one_fire_has_no_minimum_distance() -> None:
    assert Every("2h", max_fires=1).minimum_distance(NOW) is None


@pytest.mark.parametrize("count", [-1, UPCOMING_LIMIT + 1, 2.0])
def test_a_minimum_distance_checks_a_bounded_number_of_fires(count: int) -> None:
    with pytest.raises(InvalidWhen, match="count"):
        Every("1h").minimum_distance(NOW, count)


def test_a_limit_of_zero_counts_nothing() -> None:
    assert Every("1h").count_us(0, HOUR, limit=0) == 0
    assert Every("1h").count_us(HOUR, 0) == 0


def test_rules_are_equal_by_their_text() -> None:
    assert Every("1h") == Every(3600) == Every(timedelta(hours=1))
    assert hash(Every("1h")) == hash(Every("60m"))
    assert Every("1h") != Every("1h", tz="UTC"), "one takes the default zone of its scheduler, the other does not"
    assert Every("1h") != "every 1h"
    assert len({Every("1h"), Every("60m"), Once(NOW)}) == 2


def test_str_of_a_rule_is_its_text_and_repr_its_constructor() -> None:
    rule = Every("1h", tz="Europe/Berlin", since="start", start=NOW, jitter="5m", calendar="business", max_fires=3)
    assert str(rule) == rule.text
    assert rule.text == (
        "every 1h; tz=Europe/Berlin; since=start; start=2026-06-01T12:00:00Z; max_fires=3; jitter=5m; calendar=business"
    )
    assert repr(Every("90s", tz="Europe/Berlin")) == "Every('90s', tz='Europe/Berlin')"
    assert repr(Once(after="10m")) == "Once(after='10m')"


def test_a_rule_is_immutable() -> None:
    rule = Every("1h")
    with pytest.raises(AttributeError, match="zone"):
        rule.zone = ZoneInfo("Asia/Tokyo")
    with pytest.raises(AttributeError):
        del rule.zone
    with pytest.raises(AttributeError):
        rule.note = "x"  # type: ignore[attr-defined]
    assert not hasattr(rule, "__dict__")


def test_a_rule_survives_copying_and_pickling() -> None:
    rule = Every("1h", tz="Europe/Berlin", calendar=Calendar.weekdays("business"))
    for twin in (copy.copy(rule), copy.deepcopy(rule), pickle.loads(pickle.dumps(rule))):
        assert twin == rule
        assert twin.next_us(0) == rule.next_us(0)
        assert twin.calendar == rule.calendar


def test_the_fingerprint_follows_zone_and_calendar() -> None:
    plain = Every("1h", tz="Europe/Berlin")
    assert plain.fingerprint == Every("2h", tz="Europe/Berlin").fingerprint
    prints = {
        plain.fingerprint,
        Every("1h", tz="Asia/Tokyo").fingerprint,
        Every("1h", tz="Europe/Berlin", calendar=Calendar("c", exclude=["12-25"])).fingerprint,
        Every("1h", tz="Europe/Berlin", calendar=Calendar("c", exclude=["12-26"])).fingerprint,
        Every("1h", tz="Europe/Berlin", calendar=Calendar("c", exclude=["12-26"], tz="Asia/Tokyo")).fingerprint,
    }
    assert len(prints) == 5


def test_bind_refuses_a_default_zone_that_does_not_exist() -> None:
    with pytest.raises(InvalidWhen, match="Mars/Olympus"):
        Every("1h").bind(key="k", created=0, tz="Mars/Olympus")


def test_moments_have_one_text() -> None:
    assert moment_text(0) == "1970-01-01T00:00:00Z"
    assert moment_text(1) == "1970-01-01T00:00:00.000001Z"
    assert moment_of("1970-01-01T01:00:00+01:00") == 0
    for text in ("1970-01-01T00:00:00", "1970-01-01", "soon", "9" * 100, "0001-01-01T00:00:00+10:00"):
        with pytest.raises(InvalidWhen):
            moment_of(text)


@thorough
@given(st.integers(to_us(datetime(1, 1, 1, tzinfo=UTC)), to_us(datetime(9999, 12, 31, tzinfo=UTC))))
def test_the_text_of_a_moment_parses_to_the_same_moment(us: int) -> None:
    assert moment_of(moment_text(us)) == us
    assert to_us(from_us(us)) == us


def test_rules_are_a_closed_public_surface() -> None:
    assert sorted(evertick.when.__all__) == [
        "Bounds",
        "Calendar",
        "Cron",
        "Duration",
        "Every",
        "Once",
        "When",
        "duration_text",
        "duration_us",
        "from_us",
        "parse_when",
        "to_us",
        "upcoming_over",
    ]
    assert issubclass(Every, When)


def test_importing_the_rules_loads_msgspec_and_nothing_else_from_outside() -> None:
    show = "import sys; print(*{name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names)"
    base, loaded = (
        subprocess.run([sys.executable, "-c", f"import {name}; {show}"], capture_output=True, text=True, check=True)
        for name in ("msgspec, zoneinfo", "evertick.when")
    )
    # Without zone files on the machine, zoneinfo loads the package tzdata.
    assert set(loaded.stdout.split()) - set(base.stdout.split()) <= {"evertick", "tzdata"}
