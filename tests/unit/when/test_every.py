"""Intervals: aligned to the clock through clock changes, since a start, after the end of a run."""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertick.errors import InvalidDuration, InvalidWhen
from evertick.when import Calendar, Every, from_us, parse_when, to_us
from evertick.when.moment import DAY, HOUR, MILLISECOND, MINUTE, SECOND

thorough = settings(derandomize=True, deadline=None, max_examples=150)

TURNS = [
    ("Europe/Berlin", date(2026, 3, 29)),
    ("Europe/Berlin", date(2026, 10, 25)),
    ("America/New_York", date(2026, 3, 8)),
    ("America/New_York", date(2026, 11, 1)),
    ("Europe/Dublin", date(2026, 10, 25)),
    ("Australia/Lord_Howe", date(2026, 4, 5)),  # by half an hour
    ("Australia/Lord_Howe", date(2026, 10, 4)),
    ("Antarctica/Troll", date(2026, 3, 29)),  # by two hours
    ("Antarctica/Troll", date(2026, 10, 25)),
    ("America/Havana", date(2026, 11, 1)),  # 01:00 back to 00:00: two midnights
    ("Asia/Beirut", date(2026, 3, 29)),  # no midnight
    ("America/Sao_Paulo", date(2018, 2, 18)),  # 00:00 back to 23:00
    ("America/Sao_Paulo", date(2018, 11, 4)),  # no midnight
    ("America/St_Johns", date(2010, 11, 7)),  # 00:01 back to 23:01
    ("America/St_Johns", date(2010, 3, 14)),  # 00:01 on to 01:01
    ("Pacific/Apia", date(2011, 12, 30)),  # a skipped day
    ("Pacific/Kwajalein", date(1993, 8, 21)),  # a skipped day
    ("Asia/Pyongyang", date(2015, 8, 15)),  # by half an hour, permanently
    ("Asia/Baku", date(2015, 10, 25)),  # set back at midnight UTC
    ("Asia/Kathmandu", date(2026, 1, 1)),  # no clock change, odd offset
]
PARTS = ["1m", "15m", "20m", "30m", "40m", "1h", "90m", "2h", "3h", "6h", "8h", "12h", "1d"]


@lru_cache
def clock(zone: str, around: date) -> list[tuple[int, int]]:
    """(moment, wall time) of each minute of the six days around a date, in minutes."""
    tz = ZoneInfo(zone)
    first = datetime(around.year, around.month, around.day, tzinfo=UTC) - timedelta(days=3)
    found = []
    for minute in range(6 * 1440):
        shown = (first + timedelta(minutes=minute)).astimezone(tz).replace(tzinfo=None)
        reading = (shown - datetime(1970, 1, 1)) // timedelta(minutes=1)
        found.append((to_us(first) // MINUTE + minute, reading))
    return found


def by_hand(zone: str, around: date, interval: int) -> list[int]:
    """The moments of the four days in the middle, by the definition, minute by minute."""
    found, seen = [], dict[int, int]()
    shown_before = clock(zone, around)[0][1] - 1
    for moment, reading in clock(zone, around):
        left_out = range(shown_before + 1, reading)
        is_left_out = any(missing % interval == 0 for missing in left_out)
        is_shown = reading % interval == 0 and (reading not in seen or moment - seen[reading] >= interval)
        if is_left_out or is_shown:
            found.append(moment * MINUTE)
        seen.setdefault(reading, moment)
        shown_before = reading
    first = clock(zone, around)[0][0] * MINUTE
    return [moment for moment in found if first + DAY <= moment < first + 5 * DAY]


@pytest.mark.parametrize("interval", PARTS)
@pytest.mark.parametrize(("zone", "around"), TURNS, ids=[f"{zone}-{day}" for zone, day in TURNS])
def test_an_interval_that_divides_a_day_follows_the_clock_through_clock_changes(
    zone: str, around: date, interval: str
) -> None:
    rule = Every(interval, tz=zone)
    first = clock(zone, around)[0][0] * MINUTE + DAY
    last = first + 4 * DAY - 1
    expected = by_hand(zone, around, rule.interval_us // MINUTE)

    forward, at = [], first - 1
    while (following := rule.next_us(at)) is not None and following <= last:
        forward.append(at := following)
    backward, at = [], last + 1
    while (previous := rule.previous_us(at)) is not None and previous >= first:
        backward.append(at := previous)

    assert forward == expected
    assert backward == expected[::-1]
    assert rule.count_us(first, last) == len(expected)
    for asked in range(first, last, 37 * MINUTE):
        index = bisect_right(expected, asked)
        if 0 < index < len(expected):
            assert rule.next_us(asked) == expected[index]
            assert rule.previous_us(asked + 1) == expected[index - 1]
    for index in range(0, len(expected), max(1, len(expected) // 50)):
        moment = expected[index]
        assert rule.count_us(first, moment) == index + 1
        assert rule.count_us(first, moment - 1) == index
        assert rule.count_us(moment + 1, last) == len(expected) - index - 1


def test_every_hour_in_kolkata_fires_on_the_full_hour_there() -> None:
    rule = Every("1h", tz="Asia/Kolkata")
    assert [at.strftime("%H:%M") for at in rule.upcoming(datetime(2026, 1, 1, tzinfo=UTC), 3)] == [
        "06:00",
        "07:00",
        "08:00",
    ]


def test_every_day_in_berlin_fires_at_midnight_in_winter_and_in_summer() -> None:
    rule = Every("1d", tz="Europe/Berlin")
    days = rule.upcoming(datetime(2026, 3, 27, 12, tzinfo=UTC), 5)
    assert {at.strftime("%H:%M") for at in days} == {"00:00"}
    assert [at.day for at in days] == [28, 29, 30, 31, 1]


@pytest.mark.parametrize("interval", ["2d", "7d", "30d"])
@pytest.mark.parametrize(("zone", "around"), TURNS, ids=[f"{zone}-{day}" for zone, day in TURNS])
def test_an_interval_of_whole_days_fires_when_the_day_begins(zone: str, around: date, interval: str) -> None:
    rule = Every(interval, tz=zone)
    days = rule.interval_us // DAY
    begins = {}
    for moment, reading in clock(zone, around)[1440:-1440]:
        begins.setdefault(max([reading // 1440, *begins]), moment * MINUTE)
    first, last = clock(zone, around)[1440][0] * MINUTE + 1, clock(zone, around)[-1441][0] * MINUTE
    left_out = [day for day in range(min(begins), max(begins)) if day not in begins]
    begins.update({day: begins[day + 1] for day in left_out})
    expected = sorted({at for day, at in begins.items() if day % days == 0 and at >= first})
    found = [us for us in moments(rule, first - 1, 5) if us <= last]
    assert found == expected
    assert rule.count_us(first, last) == len(expected)
    for asked in range(first, last, 19 * MINUTE):
        index = bisect_right(expected, asked)
        assert (index < len(expected)) == ((rule.next_us(asked) or last + 1) <= last)
        assert rule.count_us(first, asked) == index
        assert index == 0 or rule.previous_us(asked + 1) == expected[index - 1]
    for us in moments(rule, first - 100 * DAY, 10):
        assert rule.previous_us(us + 1) == us
        assert rule.count_us(us, us) == 1


def moments(rule: Every, after: int, count: int) -> list[int]:
    return [to_us(at) for at in rule.upcoming(from_us(after), count)]


def test_an_interval_that_does_not_divide_a_day_counts_from_1970_in_utc() -> None:
    rule = Every("7h", tz="Europe/Berlin")
    assert [us % (7 * HOUR) for us in moments(rule, 1_700_000_000 * SECOND, 10)] == [0] * 10


@thorough
@given(
    zone=st.sampled_from(["UTC", "Europe/Berlin", "Pacific/Apia", "America/St_Johns", "Africa/Casablanca"]),
    interval=st.sampled_from([1, 7, 250, 1000, 90_000, 900_000, 3_600_000, 5_400_000, 86_400_000, 172_800_000]),
    since=st.sampled_from(["clock", "start"]),
    at=st.integers(0, 4_000_000_000 * SECOND),
    start=st.integers(0, 4_000_000_000 * SECOND),
)
def test_next_and_previous_mirror_each_other(zone: str, interval: int, since: str, at: int, start: int) -> None:
    bounds = {"start": from_us(start)} if since == "start" else {}
    rule = Every(timedelta(milliseconds=interval), tz=zone, since=since, **bounds)  # type: ignore[arg-type]
    following, latest = rule.next_us(at), rule.previous_us(at + 1)
    assert following is not None
    assert following > at
    assert rule.previous_us(following + 1) == following
    assert rule.count_us(at + 1, following) == 1
    assert rule.previous_us(following) == latest
    if latest is not None:
        assert latest <= at
        assert rule.next_us(latest) == following
        assert rule.count_us(latest, following) == 2
    else:
        assert at < start == following


@thorough
@given(
    interval=st.integers(MILLISECOND, 10 * DAY),
    start=st.integers(0, 10**15),
    first=st.integers(0, 10**15),
    length=st.integers(0, 10**10),
)
def test_counting_since_a_start_is_exact(interval: int, start: int, first: int, length: int) -> None:
    rule = Every(timedelta(microseconds=interval), since="start", start=from_us(start))
    expected = len(range(start + max(0, -((start - first) // interval)) * interval, first + length + 1, interval))
    assert rule.count_us(first, first + length, limit=10**9) == expected
    assert rule.count_us(first, first + length, limit=3) == min(3, expected)


def test_an_interval_since_start_fires_at_its_start_and_never_before() -> None:
    start = datetime(2026, 5, 1, 10, 7, tzinfo=UTC)
    rule = Every("1h", since="start", start=start)
    assert rule.next_after(datetime(2020, 1, 1, tzinfo=UTC)) == start
    assert rule.upcoming(start, 2) == [start + timedelta(hours=1), start + timedelta(hours=2)]
    assert rule.previous_before(start) is None


def test_an_interval_since_start_keeps_real_time_over_a_clock_change() -> None:
    start = datetime(2026, 3, 28, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    following = Every("1d", since="start", start=start, tz="Europe/Berlin").next_after(start)
    assert following is not None
    assert following.hour == 13


def test_an_interval_since_start_without_a_start_takes_its_creation() -> None:
    created = to_us(datetime(2026, 5, 1, 10, 7, 3, tzinfo=UTC))
    rule = Every("1h", since="start")
    assert not rule.is_complete
    with pytest.raises(InvalidWhen, match="start"):
        rule.next_us(0)
    bound = rule.bind(key="report", created=created)
    assert bound.next_us(created) == created + HOUR
    assert bound.text == "every 1h; tz=UTC; since=start; start=2026-05-01T10:07:03Z"
    assert parse_when(bound.text) == bound
    assert bound.bind(key="report", created=0) == bound


def test_an_interval_after_the_end_counts_from_the_given_end() -> None:
    rule = Every("5m", after="end")
    assert rule.is_after_end
    assert rule.since is None
    assert rule.next_us(17) == 17 + 5 * MINUTE
    assert rule.previous_us(17 + 5 * MINUTE) == 17
    assert rule.count_us(0, DAY) == 1
    assert not Every("5m").is_after_end


def test_an_interval_after_the_end_keeps_its_bounds_and_its_calendar() -> None:
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 10, tzinfo=UTC)
    rule = Every("5m", after="end", start=start, end=end, calendar=Calendar("c", exclude=["2026-01-02..2026-01-03"]))
    assert rule.next_us(0) == to_us(start)
    assert rule.next_after(datetime(2026, 1, 1, 23, 58, tzinfo=UTC)) == datetime(2026, 1, 4, tzinfo=UTC)
    assert rule.next_after(end) is None
    assert rule.count_us(0, 1) == 0


def test_bind_gives_the_default_zone_only_to_a_rule_that_named_none() -> None:
    assert Every("1d").bind(key="k", created=0, tz="Asia/Tokyo").next_us(0) == 15 * HOUR
    assert Every("1d", tz="UTC").bind(key="k", created=0, tz="Asia/Tokyo").next_us(0) == DAY


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Every("500us"), "500us"),
        (lambda: Every(0), "0"),
        (lambda: Every("1h", since="noon"), "noon"),  # type: ignore[arg-type]
        (lambda: Every("1h", after="start"), "start"),  # type: ignore[arg-type]
        (lambda: Every("1h", since="start", after="end"), "exclude each other"),
        (lambda: Every("1h", tz="Mars/Olympus"), "Mars/Olympus"),
    ],
)
def test_an_impossible_interval_is_refused_by_name(make: object, named: str) -> None:
    with pytest.raises(InvalidWhen, match=named):
        make()  # type: ignore[operator]


def test_an_interval_that_is_no_duration_is_refused() -> None:
    with pytest.raises(InvalidDuration, match="soon"):
        Every("soon")


def test_a_millisecond_is_the_shortest_interval() -> None:
    assert Every("1ms").next_us(5) == 1000


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Every("1h"), "every hour, counted from midnight in UTC"),
        (Every("90m", tz="Europe/Berlin"), "every 1 hour 30 minutes, counted from midnight in Europe/Berlin"),
        (Every("7h"), "every 7 hours, counted from 1970-01-01T00:00:00Z"),
        (Every("5s", since="start"), "every 5 seconds, counted from its creation"),
        (
            Every("5s", since="start", start=from_us(0)),
            "every 5 seconds, counted from 1970-01-01T00:00:00Z, from 1970-01-01T00:00:00Z on",
        ),
        (
            Every("1h", end=from_us(0), max_fires=2, jitter="5m", calendar="business"),
            "every hour, counted from midnight in UTC, only when calendar 'business' is open, "
            "until 1970-01-01T00:00:00Z, at most 2 times, delayed by up to 5m",
        ),
        (Every("1m", after="end"), "1 minute after the end of the run before"),
    ],
)
def test_an_interval_has_an_explanation(rule: Every, words: str) -> None:
    assert rule.explain() == words


def test_the_limits_of_time_end_the_sequence() -> None:
    for rule in (Every("366000d", tz="Europe/Berlin"), Every("1d", tz="Asia/Tokyo"), Every("7h")):
        assert rule.next_after(datetime.max.replace(tzinfo=UTC)) is None
        assert rule.previous_before(datetime.min.replace(tzinfo=UTC)) is None
        assert rule.next_after(datetime.min.replace(tzinfo=UTC)) is not None
        assert rule.previous_before(datetime.max.replace(tzinfo=UTC)) is not None
        assert rule.count_us(-(10**18), 10**18, limit=5) == 5


@pytest.mark.parametrize("tz", ["America/Los_Angeles", "Asia/Tokyo", "UTC"])
@pytest.mark.parametrize("interval", ["1h", "1d", "2d", "7h"])
def test_bounds_at_the_limits_of_time_are_accepted(tz: str, interval: str) -> None:
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    rule = Every(interval, tz=tz, start=first, end=last, calendar=Calendar("c", exclude=["mon"]))
    assert rule.next_after(first) is not None
    assert rule.previous_before(last) is not None
    assert rule.count_us(to_us(first), to_us(last), limit=100) == 100
    assert not Calendar("c").permits(to_us(first))
