"""The Open Cron Pattern Specification, 1.0 to 1.4, and the deliberate differences."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from evertick.errors import InvalidWhen
from evertick.when.cron import Cron


def fires(pattern: str, moment: str) -> bool:
    at = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    return Cron(pattern).next_after(at - timedelta(microseconds=1)) == at


def check(pattern: str, hits: str, misses: str) -> None:
    for moment in filter(None, hits.split(", ")):
        assert fires(pattern, moment), (pattern, moment)
    for moment in filter(None, misses.split(", ")):
        assert not fires(pattern, moment), (pattern, moment)


@pytest.mark.parametrize(
    ("pattern", "hits", "misses"),
    [
        ("20 7 * * *", "2026-05-04 07:20", "2026-05-04 07:21, 2026-05-04 08:20"),
        ("0 6 * Feb TUE", "2026-02-03 06:00, 2026-02-10 06:00", "2026-02-04 06:00, 2026-03-03 06:00"),
        ("0 0 * * 0", "2026-01-04 00:00", "2026-01-05 00:00"),
        ("0 0 * * 7", "2026-01-04 00:00", "2026-01-05 00:00"),
        (
            "7-40/11 3 * * *",
            "2026-01-01 03:07, 2026-01-01 03:18, 2026-01-01 03:40",
            "2026-01-01 03:11, 2026-01-01 03:51",
        ),
        ("*/25 * * * *", "2026-01-01 00:00, 2026-01-01 00:25, 2026-01-01 00:50", "2026-01-01 01:15"),
        ("1,2,40-42 * * * *", "2026-01-01 00:01, 2026-01-01 00:41", "2026-01-01 00:03, 2026-01-01 00:43"),
        ("0 18 13 * FRI", "2026-03-13 18:00, 2026-03-20 18:00, 2026-01-13 18:00", "2026-01-14 18:00"),
        ("0 18 * * FRI", "2026-03-20 18:00", "2026-03-19 18:00"),
        ("0 18 13 * *", "2026-01-13 18:00", "2026-01-16 18:00"),
        ("0 18 1-31 * FRI", "2026-01-13 18:00, 2026-01-16 18:00", "2026-01-13 19:00"),
        ("0 18 *,13 * FRI", "2026-03-20 18:00", "2026-03-19 18:00, 2026-01-13 18:00"),
        ("\t 20   7 *\t* *  ", "2026-05-04 07:20", ""),
    ],
)
def test_1_0_the_five_fields(pattern: str, hits: str, misses: str) -> None:
    check(pattern, hits, misses)


@pytest.mark.parametrize(
    "pattern",
    [
        "60 0 * * *",
        "0 24 * * *",
        "0 0 32 * *",
        "0 0 0 * *",
        "0 0 * 0 *",
        "0 0 * * 9",
        "*/0 * * * *",
        "0 0 /7 * *",
        "0 0 * * x",
        "0 0 * *",
        "@1 * * * *",
    ],
)
def test_1_0_malformed_and_out_of_range_values_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidWhen):
        Cron(pattern)


@pytest.mark.parametrize(
    ("nickname", "pattern"),
    [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
    ],
)
def test_1_1_nicknames(nickname: str, pattern: str) -> None:
    assert Cron(nickname) == Cron(pattern)


def test_1_1_a_nickname_stands_alone() -> None:
    with pytest.raises(InvalidWhen):
        Cron("@hourly 5 * * * *")


@pytest.mark.parametrize(
    ("pattern", "hits", "misses"),
    [
        ("20 7 * * *", "2026-05-04 07:20:00", "2026-05-04 07:20:01"),
        ("45 20 7 * * *", "2026-05-04 07:20:45", "2026-05-04 07:20:00, 2026-05-04 07:20:44"),
        ("*/20 * * * * *", "2026-05-04 07:20:40", "2026-05-04 07:20:30"),
        ("0 20 7 * * * 2027", "2027-05-04 07:20:00", "2026-05-04 07:20:00, 2028-05-04 07:20:00"),
        ("0 0 0 1 1 * 2026-2030/2", "2026-01-01 00:00, 2030-01-01 00:00", "2027-01-01 00:00, 2032-01-01 00:00"),
        ("0 0 0 1 1 * */2", "1970-01-01 00:00, 2026-01-01 00:00", "2027-01-01 00:00"),
    ],
)
def test_1_2_seconds_and_years(pattern: str, hits: str, misses: str) -> None:
    check(pattern, hits, misses)


@pytest.mark.parametrize(
    ("pattern", "hits", "misses"),
    [
        ("0 0 L * *", "2026-02-28 00:00, 2028-02-29 00:00, 2026-04-30 00:00", "2028-02-28 00:00, 2026-05-30 00:00"),
        ("0 0 * * 1L", "2026-03-30 00:00", "2026-03-23 00:00"),
        ("0 0 * * MON#L", "2026-03-30 00:00", "2026-03-23 00:00"),
        ("0 0 * * WED#3", "2026-07-15 00:00", "2026-07-08 00:00, 2026-07-22 00:00"),
        ("0 0 * * 0#1", "2026-11-01 00:00", "2026-11-08 00:00"),
        ("0 0 * * 7#1", "2026-11-01 00:00", "2026-11-08 00:00"),
        ("0 9 10W * *", "2026-01-09 09:00, 2026-03-10 09:00, 2026-05-11 09:00", "2026-01-10 09:00, 2026-05-10 09:00"),
        ("0 9 1W * *", "2026-08-03 09:00, 2026-11-02 09:00", "2026-07-31 09:00, 2026-08-01 09:00"),
        ("0 9 31W * *", "2026-05-29 09:00, 2026-10-30 09:00", "2026-06-01 09:00, 2026-06-30 09:00"),
    ],
)
def test_1_3_days_that_depend_on_the_month(pattern: str, hits: str, misses: str) -> None:
    check(pattern, hits, misses)


@pytest.mark.parametrize("pattern", ["0 0 3-9W * *", "0 0 * * 2#6", "0 0 * * 2#0", "0 L * * *", "0 0 * * 5W"])
def test_1_3_misplaced_modifiers_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidWhen):
        Cron(pattern)


@pytest.mark.parametrize(
    ("pattern", "hits", "misses"),
    [
        ("0 18 13 * FRI", "2026-02-13 18:00, 2026-02-20 18:00, 2026-04-13 18:00", "2026-04-14 18:00"),
        ("0 18 13 * +FRI", "2026-02-13 18:00, 2026-03-13 18:00", "2026-02-20 18:00, 2026-04-13 18:00"),
        ("0 18 ? * FRI", "2026-02-20 18:00", "2026-02-21 18:00"),
        ("0 18 13 * ?", "2026-04-13 18:00", "2026-04-14 18:00"),
    ],
)
def test_1_4_both_day_fields(pattern: str, hits: str, misses: str) -> None:
    check(pattern, hits, misses)


@pytest.mark.parametrize(
    "pattern", ["0 18 +13 * FRI", "+0 18 13 * FRI", "0 18 13 * FRI+", "0 18 13 * MON,+FRI", "? 18 * * *", "0 18 * ? *"]
)
def test_1_4_misplaced_plus_and_question_mark_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidWhen):
        Cron(pattern)


def test_1_4_a_repeated_time_fires_once() -> None:
    cron = Cron("30 1 * * *", tz="America/New_York")
    start = datetime(2026, 10, 31, 12, tzinfo=UTC)
    assert [moment.astimezone(UTC).isoformat()[:16] for moment in cron.upcoming(start, 2)] == [
        "2026-11-01T05:30",
        "2026-11-02T06:30",
    ]


# Where Evertick differs from the specification on purpose.


def test_differs_ranges_can_wrap_around() -> None:
    check("0 0 28-2 * *", "2026-01-31 00:00, 2026-02-01 00:00", "2026-01-03 00:00")


def test_differs_a_day_that_never_comes_is_refused_where_it_is_written() -> None:
    with pytest.raises(InvalidWhen, match="never comes"):
        Cron("* * 31 2 *")


def test_differs_a_leading_star_with_a_step_is_not_a_restriction_to_the_day_rule() -> None:
    check("0 0 */2 * MON", "2026-01-05 00:00", "2026-01-03 00:00, 2026-01-12 00:00")


def test_differs_nicknames_can_have_any_case() -> None:
    assert Cron("@Daily") == Cron("@daily")


def test_differs_reboot_is_refused_because_it_is_no_moment() -> None:
    with pytest.raises(InvalidWhen, match="is not a moment"):
        Cron("@reboot")


def test_differs_years_end_with_2099() -> None:
    with pytest.raises(InvalidWhen, match="1970-2099"):
        Cron("0 0 0 1 1 * 2100")


def test_differs_a_step_is_at_most_the_size_of_its_field() -> None:
    with pytest.raises(InvalidWhen, match="1-60"):
        Cron("*/61 * * * *")


def test_differs_a_step_may_follow_a_single_value() -> None:
    check("5/20 * * * *", "2026-01-01 00:05, 2026-01-01 00:25, 2026-01-01 00:45", "2026-01-01 00:00, 2026-01-01 01:00")


def test_differs_a_list_may_hold_nearest_weekdays() -> None:
    check("0 0 1W,15W * *", "2026-01-01 00:00, 2026-01-15 00:00", "2026-01-02 00:00")


def test_differs_a_fixed_time_in_a_gap_fires_after_it_unless_asked_to_skip() -> None:
    start = datetime(2026, 3, 7, 12, tzinfo=UTC)
    after = Cron("30 2 * * *", tz="America/New_York").next_after(start)
    skipped = Cron("30 2 * * *", tz="America/New_York", dst="skip").next_after(start)
    assert f"{after:%m-%d %H:%M}" == "03-08 03:00"
    assert f"{skipped:%m-%d %H:%M}" == "03-09 02:30"
