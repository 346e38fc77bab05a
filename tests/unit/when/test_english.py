"""English sentences: each gives a cron expression or interval, or an error that names the word."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertick.errors import InvalidDuration, InvalidWhen
from evertick.when import Cron, Every, When, parse_when
from evertick.when.text import TEXT_LONGEST

thorough = settings(derandomize=True, deadline=None, max_examples=300)

SENTENCES: dict[str, When] = {
    "every 15 minutes": Every("15m"),
    "every 1 minute": Every("1m"),
    "every 2 hours": Every("2h"),
    "every 2 days": Every("2d"),
    "every 1 hour 30 minutes": Every("90m"),
    "every 1 hour and 30 minutes": Every("90m"),
    "every second": Every("1s"),
    "every minute": Every("1m"),
    "every hour": Every("1h"),
    "hourly": Every("1h"),
    "Every  15\tMinutes": Every("15m"),
    "every 90s in Asia/Tokyo": Every("90s", tz="Asia/Tokyo"),
    "every 6 hours in Europe/Berlin": Every("6h", tz="Europe/Berlin"),
    "every 5 min": Every("5m"),
    "every 1 hr 30 mins": Every("90m"),
    "every 30 secs": Every("30s"),
    "every half hour": Every("30m"),
    "every half an hour in Asia/Tokyo": Every("30m", tz="Asia/Tokyo"),
    "nightly at 2:30": Cron("30 2 * * *"),
    "every night at 23:00": Cron("0 23 * * *"),
    "every night at midnight": Cron("0 0 * * *"),
    "every morning at 8:00": Cron("0 8 * * *"),
    "every afternoon at 3pm": Cron("0 15 * * *"),
    "every evening at 8:30 pm in Europe/Berlin": Cron("30 20 * * *", tz="Europe/Berlin"),
    "every evening at 18:00 and 20:00": Cron("0 18,20 * * *"),
    "at 8:00, every morning": Cron("0 8 * * *"),
    "daily at 9:00 Europe/Berlin": Cron("0 9 * * *", tz="Europe/Berlin"),
    "daily at 9:00 America/Argentina/Buenos_Aires": Cron("0 9 * * *", tz="America/Argentina/Buenos_Aires"),
    "every 15 minutes UTC": Every("15m", tz="UTC"),
    "daily": Cron("0 0 * * *"),
    "daily at 9:00": Cron("0 9 * * *"),
    "daily at 09:05": Cron("5 9 * * *"),
    "daily at 9am": Cron("0 9 * * *"),
    "daily at 9 PM": Cron("0 21 * * *"),
    "daily at 9:30pm": Cron("30 21 * * *"),
    "daily at 12am": Cron("0 0 * * *"),
    "daily at 12:15 am": Cron("15 0 * * *"),
    "daily at 12pm": Cron("0 12 * * *"),
    "daily at 23:59": Cron("59 23 * * *"),
    "every day at noon": Cron("0 12 * * *"),
    "at midnight": Cron("0 0 * * *"),
    "daily at 9:00 and 18:00": Cron("0 9,18 * * *"),
    "daily at 18:00, 9:00, and noon": Cron("0 9,12,18 * * *"),
    "daily at 9:00, 9:30, 10:00 and 10:30": Cron("0,30 9,10 * * *"),
    "weekdays at 18:30": Cron("30 18 * * 1-5"),
    "every weekday at 18:30": Cron("30 18 * * 1-5"),
    "weekends at 10:00": Cron("0 10 * * 6,0"),
    "every weekend at 10:00": Cron("0 10 * * 6,0"),
    "weekdays and saturdays at 8:00": Cron("0 8 * * 1-6"),
    "weekdays and weekends at 8:00": Cron("0 8 * * *"),
    "every monday at 8:00": Cron("0 8 * * 1"),
    "every sunday": Cron("0 0 * * 0"),
    "on mondays at 8:00": Cron("0 8 * * 1"),
    "weekly on monday at 8:00": Cron("0 8 * * 1"),
    "every week on fri at 8:00": Cron("0 8 * * 5"),
    "mondays and thursdays at 7:15": Cron("15 7 * * 1,4"),
    "thursdays, mondays at 7:15": Cron("15 7 * * 1,4"),
    "every monday, wednesday, and friday at 7:15": Cron("15 7 * * 1,3,5"),
    "monday to friday at 9:00": Cron("0 9 * * 1-5"),
    "mon-fri at 9:00": Cron("0 9 * * 1-5"),
    "friday through monday at 9:00": Cron("0 9 * * 5-1"),
    "wednesday to sunday at 9:00": Cron("0 9 * * 3-0"),
    "at 9:00 on weekdays": Cron("0 9 * * 1-5"),
    "at noon every monday in Asia/Tokyo": Cron("0 12 * * 1", tz="Asia/Tokyo"),
    "monthly on the 1st at 6:00": Cron("0 6 1 * *"),
    "every month on the 31st at 6:00": Cron("0 6 31 * *"),
    "monthly on the 1st and 15th at 6:00": Cron("0 6 1,15 * *"),
    "on the 15th and the last day of the month": Cron("0 0 15,L * *"),
    "monthly on the last day at 23:00": Cron("0 23 L * *"),
    "on the last day of the month at 23:00": Cron("0 23 L * *"),
    "on the 22nd of every month at 23:00": Cron("0 23 22 * *"),
    "every first monday of the month at 9:00": Cron("0 9 * * 1#1"),
    "on the second sunday of each month at 9:00": Cron("0 9 * * 0#2"),
    "on the last sunday of the month at 9:00": Cron("0 9 * * 0L"),
    "on the first weekday of the month at 9:00": Cron("0 9 1W * *"),
    "on the last weekday of the month at 9:00": Cron("0 9 LW * *"),
    "yearly on 1 january at 0:00": Cron("0 0 1 1 *"),
    "annually on 29 feb": Cron("0 0 29 2 *"),
    "every year on december 24th at 18:00": Cron("0 18 24 12 *"),
    "yearly on the 1st of may at noon": Cron("0 12 1 5 *"),
    "weekdays at 18:30 in Europe/Berlin": Cron("30 18 * * 1-5", tz="Europe/Berlin"),
    "WEEKDAYS AT 18:30 IN Europe/Berlin": Cron("30 18 * * 1-5", tz="Europe/Berlin"),
    "daily at 9:00 in America/Port-au-Prince": Cron("0 9 * * *", tz="America/Port-au-Prince"),
    "weekdays at 18:30; tz=Europe/Berlin; jitter=5m": Cron("30 18 * * 1-5", tz="Europe/Berlin", jitter="5m"),
    "daily at 2:30 in Europe/Berlin; dst=skip": Cron("30 2 * * *", tz="Europe/Berlin", dst="skip"),
    "every 15 minutes; since=start; max_fires=3": Every("15m", since="start", max_fires=3),
}


@pytest.mark.parametrize(("sentence", "rule"), SENTENCES.items(), ids=SENTENCES)
def test_a_sentence_gives_its_rule(sentence: str, rule: When) -> None:
    read = parse_when(sentence)
    assert type(read) is type(rule)
    assert read == rule
    assert parse_when(read.text) == rule
    assert read.explain() == rule.explain()


def test_every_15_minutes_is_aligned_to_the_clock() -> None:
    assert "counted from midnight" in parse_when("every 15 minutes").explain()


@pytest.mark.parametrize(
    "words",
    ["At 09:00, Monday to Friday, in Europe/Berlin", "At 09:00 every day", "At 23:00 on the last day of the month"],
)
def test_simple_explanations_can_be_parsed_as_sentences(words: str) -> None:
    assert parse_when(words).explain() == words


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("sometimes", "sometimes"),
        ("every blue moon", "blue"),
        ("every other day", "other"),
        ("every two hours", "two"),
        ("every 15 minuets", "minuets"),
        ("every 5 min sharp", "sharp"),
        ("every half moon", "half"),
        ("every half hour at 9:00", "at"),
        ("every night on mondays at 2:00", "on"),
        ("daily at 9:00 Japan", "japan"),
        ("every 1 hour 30m", "30m"),
        ("every 15 minutes on weekdays", "on"),
        ("every hour at 9:00", "at"),
        ("hourly on mondays", "on"),
        ("daily at lunch", "lunch"),
        ("daily at 25:00", "25:00"),
        ("daily at 9:60", "9:60"),
        ("daily at 9:5", "9:5"),
        ("daily at 0am", "0am"),
        ("daily at 13pm", "13pm"),
        ("daily at ٩:٠٠", "٩:٠٠"),
        ("daily at 9:00 at 10:00", "at"),
        ("daily at 9:00 and monday", "monday"),
        ("daily at 9:00 and 18:30", "18:30"),
        ("daily at 9:00 in the morning", "in"),
        ("mondays and lundi at 9:00", "lundi"),
        ("weekdays to sunday at 9:00", "weekdays"),
        ("monthly on the 32nd", "32nd"),
        ("monthly on the 1th", "1th"),
        ("monthly on the last", "last"),
        ("on the 1st of the year", "year"),
        ("on the 6th monday of the month", "6th"),
        ("monthly on the 1st and the last friday", "last"),
        ("yearly on 32 january", "32"),
        ("yearly on 1 brumaire", "brumaire"),
        ("in UTC daily", "in"),
        ("in 5 minutes", "in"),
    ],
)
def test_an_unknown_word_is_named_with_examples(text: str, word: str) -> None:
    with pytest.raises(
        InvalidWhen, match=f"^'{re.escape(word)}' in .*; understood (is|are), for example, '"
    ) as refused:
        parse_when(text)
    for example in re.findall("'(.*?)'", str(refused.value).partition("for example, ")[2]):
        assert parse_when(example)


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("every two hours", "every 2 hours"),
        ("every other day", "every 2 days"),
        ("every 15 minuets", "every 5 minutes"),
        ("every 5min", "every 5 minutes"),
        ("each morning at 8:00", "every morning at 8:00"),
        ("every quarter hour", "every half hour"),
        ("on the last day of the year at 23:00", "on the last day of the month at 23:00"),
    ],
)
def test_the_most_similar_form_is_suggested(text: str, nearest: str) -> None:
    with pytest.raises(InvalidWhen, match=f"; understood is, for example, '{nearest}'$"):
        parse_when(text)


def test_text_without_a_similar_form_gets_two_examples() -> None:
    with pytest.raises(InvalidWhen, match=r"'every 15 minutes' and 'weekdays at 18:30'$"):
        parse_when("sometimes")


@pytest.mark.parametrize("make", [Cron, Every])
@pytest.mark.parametrize(
    "sentence", ["every day at 9:00", "weekdays at 18:30", "on the last day of the month", "daily"]
)
def test_a_sentence_given_as_another_rule_is_refused_with_the_right_option(make: type[When], sentence: str) -> None:
    with pytest.raises((InvalidWhen, InvalidDuration), match=r"@scheduler\.when\(\.\.\.\)"):
        make(sentence)


@pytest.mark.parametrize("text", ["15 minutes", "15m", "1h 30m"])
def test_an_interval_given_as_an_expression_is_refused_with_an_expression(text: str) -> None:
    with pytest.raises(InvalidWhen, match=f"this is an interval; write 'every {text}'") as refused:
        parse_when(text)
    assert parse_when(str(refused.value).split("write ")[1].strip("'"))


@pytest.mark.parametrize("text", ["*/5 * * * *", "@daily"])
def test_a_cron_expression_given_as_an_interval_is_refused_with_the_right_option(text: str) -> None:
    with pytest.raises(InvalidDuration, match=r"cron expressions are for @scheduler\.when\(\.\.\.\)"):
        Every(text)


@pytest.mark.parametrize(
    ("text", "word", "why"),
    [
        ("daily at 9", "9", "add am or pm"),
        ("monday at 8:00", "monday", "write 'every monday'"),
        ("weekday at 8:00", "weekday", "write 'every weekday'"),
        ("weekly", "weekly", "on which day"),
        ("every week at 9:00", "week", "on which day"),
        ("every 14 minutes at 9:00", "at", "cannot follow an interval: write it as cron"),
        ("every 15m at 9:00", "at", "cannot follow an interval: write it as cron"),
        ("every 24h on weekdays", "on", "cannot follow an interval: write it as cron"),
        ("monthly at 9:00", "monthly", "on which day"),
        ("yearly", "yearly", "on which day"),
        ("every evening at 8:00", "8:00", "is no time of the evening: write '20:00', or 'daily' for 'evening'"),
        ("every morning at 20:00", "20:00", "is no time of the morning: write 'daily' for 'morning'"),
        ("nightly", "night", "does not say when"),
        ("every morning at 8", "8", "add am or pm"),
        ("every 15 minutes on weekdays", "on", "write it as cron"),
        ("on the 1st at 9:00", "1st", "add 'of the month'"),
        ("on the 1st of january at 9:00", "january", "begin with 'yearly on'"),
    ],
)
def test_an_ambiguous_sentence_is_refused(text: str, word: str, why: str) -> None:
    with pytest.raises(InvalidWhen, match=f"^'{word}' in .*{why}"):
        parse_when(text)


@pytest.mark.parametrize(
    ("text", "instead", "first"),
    [
        ("every 14d at 9:00", "every 14d; since=start; start=2026-01-05T09:00:00Z", "2026-01-05T09:00"),
        ("every 3 days at 9:00", "every 3d; since=start; start=2026-01-05T09:00:00Z", "2026-01-05T09:00"),
        ("every 2 weeks on monday at 9:00", "every 14d; since=start; start=2026-01-05T09:00:00Z", "2026-01-05T09:00"),
        ("every 2 weeks on sunday at 18:30", "every 14d; since=start; start=2026-01-11T18:30:00Z", "2026-01-11T18:30"),
        ("every 2 weeks", "every 14d; since=start; start=2026-01-05T09:00:00Z", "2026-01-05T09:00"),
        ("every other friday at 7:05", "every 14d; since=start; start=2026-01-09T07:05:00Z", "2026-01-09T07:05"),
        ("every other day at 9:00", "every 2d; since=start; start=2026-01-05T09:00:00Z", "2026-01-05T09:00"),
        ("biweekly on tue at 9:00", "every 14d; since=start; start=2026-01-06T09:00:00Z", "2026-01-06T09:00"),
        ("every fortnight", "every 14d; since=start; start=2026-01-05T09:00:00Z", "2026-01-05T09:00"),
        (
            "every 3 days at 9:00 in Europe/Berlin",
            "every 3d; since=start; start=2026-01-05T08:00:00Z",
            "2026-01-05T08:00",
        ),
        ("every 3 days at 6pm", "every 3d; since=start; start=2026-01-05T18:00:00Z", "2026-01-05T18:00"),
        ("every 2 weeks on monday at noon", "every 14d; since=start; start=2026-01-05T12:00:00Z", "2026-01-05T12:00"),
        ("every 1d at 7am in Asia/Tokyo", "daily at 7:00 in Asia/Tokyo", "2026-01-02T07:00"),
        ("every 1d at 9:00", "daily at 9:00", "2026-01-01T09:00"),
        ("every 7 days on monday at 9:00", "weekly on monday at 9:00", "2026-01-05T09:00"),
        ("every 3 months", "0 9 1 */3 *", "2026-01-01T09:00"),
        ("quarterly", "0 9 1 */3 *", "2026-01-01T09:00"),
        ("every 1 month", "monthly on the 1st at 9:00", "2026-01-01T09:00"),
        ("every 5 months on the 1st", "0 9 1 1,6 *", "2026-01-01T09:00"),
        ("every week at 9:00", "weekly on monday at 9:00", "2026-01-05T09:00"),
        ("monthly", "monthly on the 1st at 9:00", "2026-01-01T09:00"),
        ("yearly", "yearly on 1 january at 9:00", "2026-01-01T09:00"),
    ],
)
def test_a_rule_that_no_sentence_can_express_is_refused_with_an_equivalent_rule(
    text: str, instead: str, first: str
) -> None:
    with pytest.raises(InvalidWhen) as refused:
        parse_when(text)
    assert f"'{instead}'" in str(refused.value)
    found = parse_when(instead).next_after(datetime(2026, 1, 1, tzinfo=UTC))
    assert found is not None
    assert found.isoformat().startswith(first)


@pytest.mark.parametrize("text", ["every 2 weeks", "every fortnight", "every other week", "biweekly"])
def test_an_interval_of_weeks_is_refused_with_the_interval_in_days(text: str) -> None:
    with pytest.raises(InvalidWhen, match="write 'every 14d'") as refused:
        parse_when(text)
    assert "time of day" not in str(refused.value)
    assert parse_when("every 14d")


@pytest.mark.parametrize(("given", "why"), [("at 25:00", "not a time of day"), ("at 9:00 and 17:00", "several times")])
def test_no_rule_is_suggested_for_an_invalid_time(given: str, why: str) -> None:
    with pytest.raises(InvalidWhen, match=why):
        parse_when(f"every 3 days {given}")


def test_a_second_weekday_is_ambiguous() -> None:
    with pytest.raises(InvalidWhen) as refused:
        parse_when("every second monday at 9:00")
    expected = re.findall("'([^']*)'", str(refused.value))
    assert expected[1:] == [
        "every 14d; since=start; start=2026-01-05T09:00:00Z",
        "monthly on the second monday at 9:00",
    ]
    assert all(parse_when(rule) for rule in expected[1:])


@pytest.mark.parametrize("given", ["14d at 9:00", "1d at 9:00", "9:00", "at 9:00"])
def test_a_time_of_day_given_as_an_interval_is_refused_with_the_right_option(given: str) -> None:
    with pytest.raises(InvalidDuration, match=r"sentences and cron expressions are for @scheduler\.when\(\.\.\.\)"):
        Every(given)


@pytest.mark.parametrize(
    "text", ["daily at", "daily at 9:00 and", "every 15 minutes and", "yearly on", "in UTC", "every in UTC"]
)
def test_an_incomplete_sentence_is_refused(text: str) -> None:
    with pytest.raises(InvalidWhen, match="is incomplete"):
        parse_when(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("daily at 9:00 in Berlin", "'Berlin' is not a time zone"),
        ("daily at 9:00 Europe/Bärlin", "'europe/bärlin' in"),
        ("daily at 9:00 Europe/Berln", "'Europe/Berln' is not a time zone"),
        ("daily at 9:00 in UTC; tz=UTC", "given twice"),
        ("daily at 9:00; since=start", "'since' is not known to 'cron'"),
        ("every 15 minutes; dst=skip", "'dst' is not known to 'every'"),
        ("daily at 9:00; anchored=true", "anchored"),
        ("yearly on 30 february", "never comes"),
        ("every 0 minutes", "shorter"),
        ("every 999999999 days", "too large"),
        ("every 30 minutes 1 hour", "30m1h"),
        ("mondays " * TEXT_LONGEST, "too long"),
    ],
)
def test_an_impossible_rule_in_a_sentence_is_refused(text: str, expected: str) -> None:
    with pytest.raises((InvalidWhen, InvalidDuration), match=expected):
        parse_when(text)


vocabulary = st.sampled_from(
    sorted(
        {word for sentence in SENTENCES for word in sentence.replace(";", " ; ").split()} | {",", "-", "9", "13pm", "ß"}
    )
)
mixed = st.lists(vocabulary, max_size=10).map(" ".join)
broken = st.tuples(st.sampled_from(sorted(SENTENCES)), st.integers(0, 60), st.text(max_size=4)).map(
    lambda parts: parts[0][: parts[1]] + parts[2] + parts[0][parts[1] :]
)


@thorough
@given(st.one_of(mixed, broken, st.text(max_size=60), st.text(max_size=40).map("every {}".format)))
def test_no_text_raises_an_undocumented_error(text: str) -> None:
    try:
        rule = parse_when(text)
    except (InvalidWhen, InvalidDuration):
        return
    assert rule.explain()
    assert parse_when(rule.text) == rule


weekday_names = st.sampled_from(["mondays", "tuesdays", "wed", "thursday", "fri", "saturdays", "weekends", "weekdays"])
day_phrases = st.one_of(
    st.sampled_from(["daily", "every day", "weekdays", "monthly on the last day", "yearly on 29 february"]),
    st.lists(weekday_names, min_size=1, max_size=4).map(lambda names: f"every {' and '.join(names)}"),
    st.sampled_from(["1st", "2nd", "3rd", "21st", "last day", "last friday"]).map("on the {} of the month".format),
)
times = st.tuples(st.integers(0, 23), st.integers(0, 59)).map(lambda time: f"{time[0]}:{time[1]:02}")
zones = st.sampled_from(["", " in UTC", " in Europe/Berlin", " in Australia/Lord_Howe; jitter=5s"])
understood = st.one_of(
    st.builds("{} at {}{}".format, day_phrases, times, zones),
    st.builds("at {} {}{}".format, times, day_phrases, zones),
    st.builds("every {} {}{}".format, st.integers(1, 999), st.sampled_from(["seconds", "minutes", "hours"]), zones),
)


@thorough
@given(understood)
def test_an_accepted_sentence_has_an_explanation_and_an_equal_text(sentence: str) -> None:
    rule = parse_when(sentence)
    assert rule.explain()
    assert rule.text.startswith(("cron ", "every "))
    again = parse_when(rule.text)
    assert (type(again), again, again.zone) == (type(rule), rule, rule.zone)


@thorough
@given(st.text(st.characters(categories=["L"]), min_size=2, max_size=3), st.text("HLW#*/?,-0123456789() ", max_size=20))
def test_no_cron_expression_begins_with_two_letters(letters: str, rest: str) -> None:
    with pytest.raises(InvalidWhen):
        Cron(letters + rest)
    with pytest.raises(InvalidWhen):
        Cron(f"{letters}{rest} * * * *")


def test_the_table_of_the_reference_is_correct() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/schedules.md").read_text(encoding="utf-8")
    section = page.split("### English")[1].split("\n### ")[0]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| `")]
    assert len(rows) > 10
    for sentences, rules in rows:
        pairs = zip(re.findall("`(.*?)`", sentences), re.findall("`(.*?)`", rules), strict=True)
        for sentence, rule in pairs:
            assert parse_when(sentence).text == rule
