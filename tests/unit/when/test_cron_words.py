"""Expressions in words, and their warnings."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from cron_oracle import written
from hypothesis import given, settings
from hypothesis import strategies as st

from evertick.errors import InvalidWhen
from evertick.when.cron import Cron

NOW = datetime(2026, 6, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("* * * * *", "Every minute"),
        ("*/5 * * * *", "Every 5 minutes"),
        ("* * * * * *", "Every second"),
        ("*/10 * * * * *", "Every 10 seconds"),
        ("0 * * * *", "Every hour"),
        ("0 */3 * * *", "Every 3 hours"),
        ("0 9-17 * * *", "Every hour from 09:00 to 17:00"),
        ("0 9-17/4 * * *", "Every 4 hours from 09:00 to 17:00"),
        ("30 * * * *", "At minute 30 of every hour"),
        ("0,30 * * * *", "At minutes 0 and 30 of every hour"),
        ("* 9-17 * * *", "Every minute from 09:00 to 17:59"),
        ("*/5 9 * * *", "Every 5 minutes from 09:00 to 09:59"),
        ("0 9 * * *", "At 09:00 every day"),
        ("0 9,17 * * *", "At 09:00 and 17:00 every day"),
        ("30 0 9 * * * 2027", "At 09:00:30 every day in 2027"),
        ("0 9 * * mon-fri", "At 09:00, Monday to Friday"),
        ("0 9 * * mon,fri", "At 09:00, Monday and Friday"),
        ("0 9 * jun mon", "At 09:00, Monday, in June"),
        ("0 0 L * *", "At 00:00 on the last day of the month"),
        ("0 0 L-3 * *", "At 00:00 on the day 3 before the last of the month"),
        ("0 0 15W * *", "At 00:00 on the weekday (Monday to Friday) nearest to the 15th"),
        ("0 0 LW * *", "At 00:00 on the last weekday (Monday to Friday) of the month"),
        ("0 0 * * 5L", "At 00:00 on the last Friday of the month"),
        ("0 0 * * 5#2", "At 00:00 on the second Friday of the month"),
        ("0 0 1,15 * *", "At 00:00 on the 1st and the 15th"),
        ("0 0 */2 * *", "At 00:00 on every 2nd day of the month"),
        ("0 12 1 * mon", "At 12:00 on the 1st, and also on every Monday"),
        ("0 12 1 * 1#2", "At 12:00 on the 1st, and also on the second Monday of the month"),
        ("0 12 1 * +mon", "At 12:00 on the 1st if that is Monday"),
        ("0 0 1 nov-feb *", "At 00:00 on the 1st in November to February"),
        ("*/10 */5 * * * *", "Every 10 seconds, during every 5th minute"),
        ("H 9 * * *", "At a minute chosen by its key of hour 9"),
    ],
)
def test_an_expression_is_explained_in_words(text: str, words: str) -> None:
    assert Cron(text).explain() == words.replace("of hour 9", "from 09:00 to 09:59")


def test_the_zone_is_shown_if_the_user_gave_it() -> None:
    assert Cron("0 9 * * mon-fri", tz="Europe/Berlin").explain() == "At 09:00, Monday to Friday, in Europe/Berlin"


def test_a_chosen_rule_for_clock_changes_is_shown() -> None:
    words = Cron("30 2 * * *", tz="Europe/Berlin", dst="skip").explain()
    assert words == "At 02:30 every day, in Europe/Berlin; not at times that a clock change leaves out"
    assert ";" not in Cron("*/5 * * * *", tz="Europe/Berlin", dst="skip").explain()


def test_h_with_its_key_shows_the_resulting_time() -> None:
    moment = Cron("H H * * *", key="report").next_after(NOW)
    assert Cron("H H * * *", key="report").explain() == f"At {moment:%H:%M} every day"


def test_an_anchored_nickname_shows_its_missing_anchor() -> None:
    assert Cron("@weekly", anchored=True).explain() == "Once every week, counted from its creation"


@given(st.data())
@settings(max_examples=150, derandomize=True, deadline=None, database=None)
def test_any_expression_has_words_and_warnings(data: st.DataObject) -> None:
    text = written(lambda n: data.draw(st.integers(0, n - 1)), seconds=data.draw(st.booleans())).text
    try:
        cron = Cron(text, tz="America/New_York")
    except InvalidWhen:
        return
    words = cron.explain()
    assert words[0].isupper()
    assert "  " not in words
    assert ",," not in words
    assert all(warning for warning in cron.warnings(NOW))


@pytest.mark.parametrize(
    ("text", "dst", "warnings"),
    [
        (
            "30 2 * * *",
            "cron",
            [
                "02:30 comes twice on 2026-10-25 in Europe/Berlin: it fires the first time only",
                "02:30 does not exist on 2027-03-28 in Europe/Berlin: fires at 03:00",
            ],
        ),
        (
            "30 2 * * *",
            "shift",
            [
                "02:30 comes twice on 2026-10-25 in Europe/Berlin: it fires the first time only",
                "02:30 does not exist on 2027-03-28 in Europe/Berlin: fires at 03:30",
            ],
        ),
        (
            "0,30 2 * * *",
            "skip",
            [
                "02:00 to 02:30 come twice on 2026-10-25 in Europe/Berlin: it fires the first time only",
                "02:00 to 02:30 do not exist on 2027-03-28 in Europe/Berlin: does not fire",
            ],
        ),
        (
            "30 2 * * *",
            "wall",
            [
                "02:30 comes twice on 2026-10-25 in Europe/Berlin: it fires both times",
                "02:30 does not exist on 2027-03-28 in Europe/Berlin: does not fire",
            ],
        ),
        ("0,30 2 28 3 *", "cron", ["02:00 to 02:30 do not exist on 2027-03-28 in Europe/Berlin: fires once at 03:00"]),
        ("0 9 * * *", "cron", []),
        ("*/5 * * * *", "cron", []),
    ],
)
def test_clock_changes_of_the_next_year_are_shown_with_their_date(text: str, dst: str, warnings: list[str]) -> None:
    assert Cron(text, tz="Europe/Berlin", dst=dst).warnings(NOW) == warnings  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("0 0 31 * *", "February, April, June, September and November have no 31st; write L for the last day"),
        ("0 0 30 * *", "February has no 30th; write L for the last day"),
        ("0 0 29 * *", "February outside leap years has no 29th"),
        ("0 0 29 2 *", "February outside leap years has no 29th"),
        (
            "*/7 * * * *",
            "*/7 in the minute field restarts every hour: after minute 56 the next is 4 minutes later, not 7",
        ),
        ("0 */5 * * *", "*/5 in the hour field restarts every day: after hour 20 the next is 4 hours later, not 5"),
        ("0 0 */2 * *", "*/2 in the day-of-month field restarts on the 1st of every month"),
        (
            "0 0 1 * mon",
            "day-of-month and day-of-week are both given: it fires when either matches; days='and' asks for both",
        ),
    ],
)
def test_surprising_expressions_get_a_warning(text: str, warning: str) -> None:
    assert Cron(text).warnings(NOW) == [warning]


def test_a_leading_star_that_changes_the_day_rule_gets_a_warning() -> None:
    assert "'*/2' in the day-of-month field begins with '*': both day fields must match" in Cron(
        "0 0 */2 * mon"
    ).warnings(NOW)


@pytest.mark.parametrize("text", ["0 0 31 jan *", "0 0 L * *", "*/15 * * * *", "0 0 1 * +mon"])
def test_ordinary_expressions_get_no_warning(text: str) -> None:
    assert Cron(text).warnings(NOW) == []
