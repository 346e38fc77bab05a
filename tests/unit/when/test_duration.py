"""Durations: accepted values, and their text."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertick.errors import InvalidDuration
from evertick.when import duration_text, duration_us
from evertick.when.duration import duration_rounded, duration_words
from evertick.when.moment import DAY, HOUR, MINUTE, SECOND

thorough = settings(derandomize=True, deadline=None, max_examples=300)


@pytest.mark.parametrize(
    ("value", "us"),
    [
        ("90s", 90 * SECOND),
        ("1h30m", 90 * MINUTE),
        (" 1h 30m ", 90 * MINUTE),
        ("2w", 14 * DAY),
        ("1.5h", 90 * MINUTE),
        ("250ms", 250_000),
        ("1s5us", SECOND + 5),
        (90, 90 * SECOND),
        (0.25, 250_000),
        (0, 0),
        (timedelta(days=1, microseconds=1), DAY + 1),
    ],
)
def test_a_duration_is_a_timedelta_a_number_of_seconds_or_text(value: str, us: int) -> None:
    assert duration_us(value) == us


@pytest.mark.parametrize(
    "value",
    [
        *["", "s", "90", "1m1h", "1h1h", "-5s", "1x", "5 parsecs", "1e3s", "١s", "9" * 70 + "s", "999999999999w"],
        *[True, None, -1, -0.5, float("nan"), float("inf"), timedelta(seconds=-1), [], 10**30],
    ],
    ids=lambda value: str(value)[:20],
)
def test_an_invalid_duration_is_refused_by_the_name_of_its_option(value: object) -> None:
    with pytest.raises(InvalidDuration, match="grace"):
        duration_us(value, what="grace")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("15 minutes", "as '15m'"),
        ("1 Hour", "as '1h'"),
        ("90 sec", "as '90s'"),
        ("every 2 days", "as '2d'"),
        ("90", "with its unit, like '90s'"),
        ("soon", "like '90s', '1h30m' or '250ms'"),
    ],
)
def test_a_duration_in_the_wrong_form_is_refused_with_the_right_form(text: str, form: str) -> None:
    with pytest.raises(InvalidDuration, match=f"grace: '{text}' is not a duration; write it {form}$"):
        duration_us(text, what="grace")


@thorough
@given(st.one_of(st.integers(0, 10**16), st.integers(0, 10**6).map(lambda count: count * SECOND)))
def test_the_text_of_a_duration_parses_to_the_same_duration(us: int) -> None:
    assert duration_us(duration_text(us)) == us


@settings(derandomize=True, deadline=None)
@given(st.text(alphabet="0123456789.wdhmsu -", max_size=80))
def test_no_text_crashes_the_parser_of_durations(text: str) -> None:
    try:
        us = duration_us(text)
    except InvalidDuration:
        return
    assert duration_us(duration_text(us)) == us


@pytest.mark.parametrize(
    ("us", "text", "words"),
    [
        (0, "0s", "0 seconds"),
        (90 * SECOND, "90s", "1 minute 30 seconds"),
        (HOUR, "1h", "1 hour"),
        (HOUR + SECOND, "1h1s", "1 hour 1 second"),
        (1_000 * SECOND, "16m40s", "16 minutes 40 seconds"),
        (14 * DAY, "14d", "14 days"),
        (1_500, "1ms500us", "1 millisecond 500 microseconds"),
    ],
)
def test_a_duration_has_a_short_text_and_words(us: int, text: str, words: str) -> None:
    assert duration_text(us) == text
    assert duration_words(us) == words


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0s"),
        (1_234, "1ms"),
        (849_600, "850ms"),
        (5_485_043, "5.5s"),
        (9_990_000, "10s"),
        (2_000_000, "2s"),
        (80_123_456, "80s"),
        (11_123_456_789, "185m"),
    ],
)
def test_a_duration_in_a_log_is_rounded(us, text):
    assert duration_rounded(us) == text
