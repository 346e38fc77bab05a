"""Rules as text: canonical text is parsed back, other text is refused by name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertick.errors import InvalidDuration, InvalidWhen
from evertick.when import Calendar, Cron, Every, Once, from_us, parse_when
from evertick.when.text import TEXT_LONGEST

thorough = settings(derandomize=True, deadline=None, max_examples=200)

moments = st.integers(0, 4 * 10**15).map(from_us)
zones = st.none() | st.sampled_from(["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires"])
jitters = st.fixed_dictionaries(
    {},
    optional={
        "tz": zones,
        "jitter": st.none() | st.integers(0, 10**12).map(lambda us: timedelta(microseconds=us)),
        "jitter_mode": st.sampled_from(["stable", "fresh"]),
        "calendar": st.none() | st.sampled_from(["business", "Feiertage-Köln", "a.b_c"]),
    },
)
bounds = st.builds(
    lambda start, length, most, rest: {
        "start": start,
        "end": None if start is None or length is None else start + timedelta(seconds=length),
        "max_fires": most,
        **rest,
    },
    st.none() | moments,
    st.none() | st.integers(0, 10**6),
    st.none() | st.integers(1, 10**9),
    jitters,
)
intervals = st.integers(1_000, 10**12).map(lambda us: timedelta(microseconds=us))
alignments = st.sampled_from([{}, {"since": "clock"}, {"since": "start"}, {"after": "end"}])
crons = st.sampled_from(["0 9 * * 1-5", "*/5 * * * *", "@daily", "30 6 L * ?", "15 10 ? * 6#3", "0 0 12 * * mon"])
rules = st.one_of(
    st.builds(lambda interval, alignment, rest: Every(interval, **alignment, **rest), intervals, alignments, bounds),
    st.builds(lambda at, rest: Once(at, **rest), moments, jitters),
    st.builds(lambda after, rest: Once(after=after, **rest), intervals, jitters),
    st.builds(lambda text, rest: Cron(text, **rest), crons, bounds),
)


@thorough
@given(rules)
def test_the_text_of_any_rule_parses_to_an_equal_rule(rule: Every | Once | Cron) -> None:
    again = parse_when(rule.text)
    assert type(again) is type(rule)
    assert again == rule
    assert again.text == rule.text
    assert again.bounds == rule.bounds
    assert again.zone == rule.zone


@thorough
@given(rules)
def test_a_bound_rule_parses_back_completely(rule: Every | Once | Cron) -> None:
    calendars = {name: Calendar(name) for name in ("business", "Feiertage-Köln", "a.b_c")}
    bound = rule.bind(key="k", created=10**15, tz="Asia/Tokyo", calendars=calendars)
    again = parse_when(bound.text, calendars)
    assert again == bound
    assert again.is_complete
    assert again.next_us(10**15) == bound.next_us(10**15)
    assert bound.bind(key="k", created=7, tz="UTC", calendars=calendars) == bound


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("every 90s", Every("90s")),
        ("EVERY 90s", Every("90s")),
        ("@every 1h30m", Every("90m")),
        ("  every   90 s ;since = start;  jitter=5s ", Every("90s", since="start", jitter="5s")),
        ("0 9 * * *", Cron("0 9 * * *")),
        ("cron 0 9 * * *; tz=Asia/Tokyo", Cron("0 9 * * *", tz="Asia/Tokyo")),
        ("@daily", Cron("@daily")),
        ("H 3 * * *", Cron("H 3 * * *")),
        ("once 2026-01-01T01:00:00+01:00", Once(datetime(2026, 1, 1, tzinfo=UTC))),
        ("once +10m", Once(after="10m")),
    ],
)
def test_the_parser_of_rules_accepts_loose_forms(text: str, rule: Every) -> None:
    assert parse_when(text) == rule


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "not a rule"),
        ("fortnightly", "fortnightly"),
        ("sometimes 5m", "sometimes"),
        ("every", "interval"),
        ("every soon", "soon"),
        ("once", "once"),
        ("once tomorrow", "tomorrow"),
        ("once +", "after"),
        ("once 2026-01-01T00:00:00", "offset"),
        ("every 1h; color=red", "color"),
        ("every 1h; dst=skip", "dst"),
        ("once +1m; max_fires=3", "max_fires"),
        ("every 1h; jitter", "jitter"),
        ("every 1h; jitter=", "jitter"),
        ("every 1h;", "name=value"),
        ("every 1h; jitter=1s; jitter=2s", "twice"),
        ("every 1h; max_fires=-1", "max_fires"),
        ("every 1h; max_fires=١", "max_fires"),
        ("every 1h; max_fires=0", "max_fires"),
        ("every 1h; since=noon", "noon"),
        ("every 1h; tz=Mars/Olympus", "Mars/Olympus"),
        ("every 1h; start=later", "start"),
        ("every 1h; calendar=a b", "a b"),
        ("99 * * * *", "99"),
    ],
)
def test_text_that_is_no_rule_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises((InvalidWhen, InvalidDuration), match=named):
        parse_when(text)


def test_text_that_is_too_long_is_refused_at_once() -> None:
    with pytest.raises(InvalidWhen, match="too long"):
        parse_when("every 1h" + " " * TEXT_LONGEST)


@pytest.mark.parametrize("text", [None, 7, b"every 1h", Every("1h")])
def test_a_rule_that_is_no_text_is_refused(text: object) -> None:
    with pytest.raises(InvalidWhen, match="string"):
        parse_when(text)  # type: ignore[arg-type]


pieces = st.sampled_from(
    [
        *[
            "every",
            "once",
            "cron",
            "@every",
            "@daily",
            "90s",
            "+",
            "*",
            "0",
            "9",
            "-",
            "/",
            ",",
            "L",
            "W",
            "#",
            "?",
            "H",
            ";",
            "=",
            "mon",
            "ä",
            "UTC",
            "../../etc/passwd",
        ],
        *[
            "tz=",
            "start=",
            "end=",
            "max_fires=",
            "jitter=",
            "calendar=",
            "since=",
            "after=end",
            "days=and",
            "key=",
            "dst=",
            "anchored=",
        ],
        *["2026-01-01T00:00:00Z", "\0", " ", "9" * 30],
    ]
)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.one_of(st.text(max_size=60), st.lists(pieces, max_size=12).map(" ".join), st.lists(pieces).map("".join)))
def test_no_text_raises_an_undocumented_error(text: str) -> None:
    try:
        rule = parse_when(text)
    except (InvalidWhen, InvalidDuration):
        return
    assert parse_when(rule.text) == rule


def test_a_calendar_is_resolved_when_it_is_known() -> None:
    calendar = Calendar.weekdays("business")
    assert parse_when("every 1h; calendar=business", {"business": calendar}).calendar == calendar
    assert parse_when("every 1h; calendar=business").calendar is None
