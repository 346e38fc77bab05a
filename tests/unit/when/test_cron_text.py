"""Accepted expressions, refusals, and the canonical text."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from cron_oracle import written
from hypothesis import given, settings
from hypothesis import strategies as st

from evertick.errors import InvalidWhen
from evertick.when.cron import Cron, rule
from evertick.when.every import Every
from evertick.when.text import parse_when

START = datetime(2026, 1, 1, tzinfo=UTC)


def firsts(text: str, count: int = 4, **options: object) -> list[str]:
    moments = Cron(text, **options).upcoming(START, count)  # type: ignore[arg-type]
    return [f"{moment:%Y-%m-%d %H:%M:%S}".removesuffix(":00") for moment in moments]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5 4 * * *", ["2026-01-01 04:05", "2026-01-02 04:05"]),
        ("10 5 4 * * *", ["2026-01-01 04:05:10", "2026-01-02 04:05:10"]),
        ("10 5 4 * * * 2028", ["2028-01-01 04:05:10", "2028-01-02 04:05:10"]),
        ("0 0 * * fri-mon", ["2026-01-02 00:00", "2026-01-03 00:00", "2026-01-04 00:00", "2026-01-05 00:00"]),
        ("0 22-2/2 * * *", ["2026-01-01 02:00", "2026-01-01 22:00", "2026-01-02 00:00"]),
        ("0 0 1 nov-feb *", ["2026-02-01 00:00", "2026-11-01 00:00", "2026-12-01 00:00", "2027-01-01 00:00"]),
        ("0 0 * * 5-7", ["2026-01-02 00:00", "2026-01-03 00:00", "2026-01-04 00:00", "2026-01-09 00:00"]),
        ("0 0 * * 7", ["2026-01-04 00:00", "2026-01-11 00:00"]),
        ("0 0 * * 7-1", ["2026-01-04 00:00", "2026-01-05 00:00", "2026-01-11 00:00"]),
        ("0 0 L * *", ["2026-01-31 00:00", "2026-02-28 00:00"]),
        ("0 0 L-2 * *", ["2026-01-29 00:00", "2026-02-26 00:00"]),
        ("0 0 LW * *", ["2026-01-30 00:00", "2026-02-27 00:00"]),
        ("0 0 1W * *", ["2026-02-02 00:00", "2026-03-02 00:00", "2026-04-01 00:00", "2026-05-01 00:00"]),
        ("0 0 31W * *", ["2026-01-30 00:00", "2026-03-31 00:00"]),
        ("0 0 * * 5L", ["2026-01-30 00:00", "2026-02-27 00:00"]),
        ("0 0 * * fri#2", ["2026-01-09 00:00", "2026-02-13 00:00"]),
        ("0 0 ? * ?", ["2026-01-02 00:00", "2026-01-03 00:00"]),
        ("50/5 * * * *", ["2026-01-01 00:50", "2026-01-01 00:55", "2026-01-01 01:50"]),
    ],
)
def test_each_form_has_its_documented_moments(text: str, expected: list[str]) -> None:
    assert firsts(text, len(expected)) == expected


@pytest.mark.parametrize(
    ("text", "token", "field", "allowed"),
    [
        ("60 * * * *", "'60'", "minute", "0-59"),
        ("* 24 * * *", "'24'", "hour", "0-23"),
        ("* * 0 * *", "'0'", "day-of-month", "1-31"),
        ("* * * 13 *", "'13'", "month", "1-12 or jan-dec"),
        ("* * * * 8", "'8'", "day-of-week", "0-7 or sun-sat"),
        ("* * * * mo", "'mo'", "day-of-week", "sun-sat"),
        ("* * * sun *", "'sun'", "month", "jan-dec"),
        ("1,,2 * * * *", "''", "minute", "0-59"),
        ("*/0 * * * *", "'*/0'", "minute", "1-60"),
        ("*/90 * * * *", "'*/90'", "minute", "1-60"),
        ("1-5-9 * * * *", "'1-5-9'", "minute", "0-59"),
        ("/5 * * * *", "'/5'", "minute", "0-59"),
        ("* * 1-15W * *", "'1-15W'", "day-of-month", "15W"),
        ("* * L-31 * *", "'L-31'", "day-of-month", "0 to 30"),
        ("* * 32W * *", "'32W'", "day-of-month", "1-31"),
        ("* * * * 5#6", "'5#6'", "day-of-week", "#1 to #5"),
        ("* * * * 5#0", "'5#0'", "day-of-week", "#1 to #5"),
        ("* * * * L", "'L'", "day-of-week", "5L"),
        ("? * * * *", "'?'", "minute", "0-59"),
        ("* * ?,1 * *", "'?'", "day-of-month", "1-31"),
        ("* * +1 * *", "'+1'", "day-of-month", "1-31"),
        ("0 * * * * * 2100", "'2100'", "year", "1970-2099"),
        ("0 * * * * * 2030-2020", "'2030-2020'", "year", "wrap"),
        ("0 * * * * * H", "'H'", "year", "not over years"),
        ("H(5-1) * * * *", "'H(5-1)'", "minute", "wrap"),
        ("H(0-60) * * * *", "'H(0-60)'", "minute", "0-59"),
        ("99999999999999999999 * * * *", "'99999999999999999999'", "minute", "0-59"),
    ],
)
def test_a_refusal_names_the_token_its_field_and_what_is_allowed(
    text: str, token: str, field: str, allowed: str
) -> None:
    with pytest.raises(InvalidWhen) as refused:
        Cron(text)
    assert f"{token} in the {field} field" in str(refused.value)
    assert allowed in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 9 * * mon-fryday", "; for 'fryday' write 'fri'"),
        ("0 9 * * Monday", "; for 'monday' write 'mon'"),
        ("0 9 * * mo", "; for 'mo' write 'mon'"),
        ("0 9 * sept *", "; for 'sept' write 'sep'"),
        ("0 9 * ju *", ", H"),
        ("0 9 * * workday", ", H"),
        ("0 9 * * mon-fri-sat", ", H"),
    ],
)
def test_a_misspelled_name_gets_a_suggestion(text: str, message: str) -> None:
    with pytest.raises(InvalidWhen) as refused:
        Cron(text)
    assert str(refused.value).endswith(message)


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("0 0 30 2 *", "'30' in the day-of-month field with '2' in the month field"),
        ("0 0 31 4,6 *", "'31' in the day-of-month field with '4,6' in the month field"),
        ("0 0 31W 2-2 *", "'31W' in the day-of-month field with '2' in the month field"),
        ("0 0 L-30 2 ?", "'L-30' in the day-of-month field with '2' in the month field"),
        ("0 0 1 1 +1#3", "'1#3' in the day-of-week field"),
        ("0 0 0 29 2 * 2026-2027", "'2026-2027' in the year field"),
    ],
)
def test_days_that_never_come_are_refused(text: str, token: str) -> None:
    with pytest.raises(InvalidWhen, match="never comes") as refused:
        Cron(text)
    assert token in str(refused.value)


def test_a_rare_day_is_found_decades_ahead() -> None:
    assert firsts("0 0 29 2 1", 2, days="and") == ["2044-02-29 00:00", "2072-02-29 00:00"]


def test_a_past_year_has_no_next_moment_but_a_previous_one() -> None:
    cron = Cron("0 0 0 1 1 * 1999")
    assert cron.next_after(START) is None
    assert cron.previous_before(START) == datetime(1999, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", " ", "* * * *", "* * * * * * * *", "@", "@fortnightly", "@daily 0 0 * * *"])
def test_the_wrong_number_of_fields_is_refused(text: str) -> None:
    with pytest.raises(InvalidWhen):
        Cron(text)


@pytest.mark.parametrize(
    "text",
    [
        "1," * 5000 + "1 * * * *",
        "9" * 10_000,
        "*/" * 5000,
        "H(" * 400,
        "\0 * * * *",
        "٣ * * * *",
        "* * * * *\n* * * * *",
    ],
)
def test_hostile_text_is_refused_at_once(text: str) -> None:
    with pytest.raises(InvalidWhen) as refused:
        Cron(text)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("text", [None, 5, b"* * * * *", ["*"] * 5])
def test_an_expression_that_is_no_text_is_refused(text: object) -> None:
    with pytest.raises(InvalidWhen):
        Cron(text)  # type: ignore[arg-type]


@given(st.text(alphabet="0123456789*/-,LW#?H()+@ \tadefjmnosuvyn\u0660é", max_size=60) | st.text(max_size=40))
@settings(max_examples=400, derandomize=True, deadline=None, database=None)
def test_no_text_raises_an_unexpected_error(text: str) -> None:
    try:
        cron = Cron(text)
    except InvalidWhen:
        return
    assert Cron(cron.expression) == cron or cron.days == "and"


ITEM = st.sampled_from(
    [
        "*",
        "*/2",
        "*/60",
        "5",
        "05",
        "7",
        "0-7",
        "7-7",
        "fri-mon",
        "1-5/2",
        "22-2",
        "3/4",
        "L",
        "L-0",
        "L-3",
        "15W",
        "LW",
        "5L",
        "0#5",
        "fri#L",
        "?",
        "H",
        "H/3",
        "H(1-5)",
        "H(1-5)/2",
        "jan",
        "MAR-feb",
        "+1",
        "2030",
    ]
)


@given(st.lists(st.lists(ITEM, min_size=1, max_size=3).map(",".join), min_size=5, max_size=7).map(" ".join))
@settings(max_examples=400, derandomize=True, deadline=None, database=None)
def test_no_mixture_of_known_items_raises_an_unexpected_error(text: str) -> None:
    try:
        cron = Cron(text, key="k")
    except InvalidWhen:
        return
    assert Cron(cron.expression, key="k", days=cron.days) == cron
    cron.next_after(START)


@given(st.data())
@settings(max_examples=150, derandomize=True, deadline=None, database=None)
def test_the_canonical_text_is_an_equal_rule_and_stays_as_it_is(data: st.DataObject) -> None:
    text = written(lambda n: data.draw(st.integers(0, n - 1)), seconds=data.draw(st.booleans())).text
    try:
        cron = Cron(text, tz="Europe/Berlin")
    except InvalidWhen:
        return
    again = Cron(cron.expression, tz="Europe/Berlin")
    assert again == cron
    assert hash(again) == hash(cron)
    assert again.expression == cron.expression
    assert again.is_fixed == cron.is_fixed
    assert again.upcoming(START, 5) == cron.upcoming(START, 5)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("  0\t09 * * MON-fri ", "0 9 * * 1-5"),
        ("0 0 9 * * *", "0 9 * * *"),
        ("0 0 9 * * * *", "0 9 * * *"),
        ("*/1 ?,5 * * *", None),
        ("*/1 * ? * ?", "* * * * *"),
        ("0/5 * * * *", "0/5 * * * *"),
        ("0-59 * * * *", "0-59 * * * *"),
        ("5,5,05 * * * *", "5 * * * *"),
        ("0 0 l,lw,l-3,15w * *", "0 0 L,LW,L-3,15W * *"),
        ("0 0 * * 7,sun,5l,fri#2,1#L", "0 0 * * 0,5L,5#2,1L"),
        ("0 0 * NOV-feb 5-7", "0 0 * 11-2 5-7"),
        ("0 0 * * 0-7", "0 0 * * 0-6"),
        ("0 0 * * 7-2", "0 0 * * 0-2"),
        ("@Weekly", "0 0 * * 0"),
        ("h h(1-5)/2 * * *", "H H(1-5)/2 * * *"),
    ],
)
def test_the_canonical_expression(text: str, canonical: str | None) -> None:
    if canonical is None:
        with pytest.raises(InvalidWhen):
            Cron(text)
    else:
        assert Cron(text).expression == canonical


def test_the_text_has_the_options_that_differ_from_the_default_in_a_fixed_order() -> None:
    cron = Cron("H 9 1 * mon", days="and", dst="skip", tz="Europe/Berlin", key="report", max_fires=3)
    assert cron.text == "cron H 9 1 * 1; tz=Europe/Berlin; dst=skip; days=and; key=report; max_fires=3"
    assert Cron("0 9 * * *").text == "cron 0 9 * * *"


@pytest.mark.parametrize(
    "cron",
    [
        Cron("0 9 * * mon-fri"),
        Cron("H/5 9 1 * mon", days="and", dst="skip", tz="Europe/Berlin", key="report = 1", jitter="5s"),
        Cron("*/10 * 5 L-2 jan 5#2 2030", dst="wall"),
        Cron("@daily", anchored=True, dst="shift"),
        Cron("@daily", anchored=datetime(2026, 1, 31, 22, 17, tzinfo=UTC), start=START, end=START, max_fires=9),
    ],
)
def test_the_text_of_a_cron_rule_parses_to_an_equal_rule(cron: Cron) -> None:
    again = parse_when(cron.text)
    assert again == cron
    assert again.text == cron.text


def test_a_rule_cannot_be_changed_and_survives_pickling() -> None:
    cron = Cron("0 9 1-31/2 * mon", tz="Europe/Berlin")
    with pytest.raises(AttributeError):
        cron.dst = "skip"
    copy = pickle.loads(pickle.dumps(cron))
    assert copy == cron
    assert copy.upcoming(START, 3) == cron.upcoming(START, 3)
    assert copy.explain() == cron.explain()


@pytest.mark.parametrize(
    "options", [{"dst": "maybe"}, {"days": "xor"}, {"tz": "Mars/Base"}, {"tz": "../etc"}, {"key": ""}, {"key": "a;b"}]
)
def test_invalid_options_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(InvalidWhen):
        Cron("H 9 * * *", **options)  # type: ignore[arg-type]


# H


def test_h_without_a_key_is_refused_with_the_fix() -> None:
    with pytest.raises(InvalidWhen, match="key="):
        Cron("H H * * *").next_after(START)


def test_h_is_stable_for_a_key_and_differs_between_keys_and_fields() -> None:
    def times(key: str) -> list[str]:
        return firsts("H H * * *", 1, key=key)

    assert times("report") == times("report")
    assert len({times(f"job {number}")[0] for number in range(200)}) > 150
    seconds = [Cron("H H * * * *", key=f"{n}").next_after(START) for n in range(100)]
    assert sum(moment is not None and moment.second == moment.minute for moment in seconds) < 10


def test_h_never_moves_between_releases() -> None:
    assert firsts("H H H H H", 1, key="report") == ["2026-12-06 18:48"]


@given(st.text(min_size=1, max_size=20).filter(lambda key: key.isprintable() and ";" not in key and key == key.strip()))
@settings(max_examples=200, derandomize=True, deadline=None, database=None)
def test_h_stays_in_its_range(key: str) -> None:
    moment = Cron("H(10-20) H(1-5) H * *", key=key).next_after(START)
    assert moment is not None
    assert 10 <= moment.minute <= 20
    assert 1 <= moment.hour <= 5
    assert 1 <= moment.day <= 28
    minutes = [m.minute for m in Cron("H/15 * * * *", key=key).upcoming(START, 8)]
    assert len(set(minutes)) == 4
    assert {minute % 15 for minute in minutes} == {minutes[0] % 15}
    ranged = [m.minute for m in Cron("H(0-29)/10 * * * *", key=key).upcoming(START, 3)]
    assert [b - a for a, b in pairwise(ranged)] in ([10, 10], [10, -20], [-20, 10])


def test_binding_gives_h_its_key_and_the_rule_its_zone() -> None:
    bound = Cron("H 9 * * *").bind(key="report", created=0, tz="Europe/Berlin")
    assert bound.text == "cron H 9 * * *; tz=Europe/Berlin; key=report"
    assert bound == Cron("H 9 * * *", key="report", tz="Europe/Berlin")
    assert bound.bind(key="other", created=5, tz="UTC") == bound


def test_a_key_without_h_is_dropped() -> None:
    assert Cron("0 9 * * *", key="report") == Cron("0 9 * * *")


# Nicknames and anchors


@pytest.mark.parametrize(
    ("nickname", "expression"),
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
def test_a_nickname_is_its_expression(nickname: str, expression: str) -> None:
    assert Cron(nickname) == Cron(expression)


CREATED = datetime(2026, 1, 31, 22, 17, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("nickname", "expression"),
    [
        ("@hourly", "17 * * * *"),
        ("@daily", "17 23 * * *"),
        ("@weekly", "17 23 * * 6"),
        ("@monthly", "17 23 28 * *"),
        ("@yearly", "17 23 28 1 *"),
        ("@annually", "17 23 28 1 *"),
    ],
)
def test_an_anchored_nickname_keeps_the_wall_time_of_its_creation(nickname: str, expression: str) -> None:
    created = int(CREATED.timestamp()) * 1_000_000
    expected = Cron(expression, tz="Europe/Berlin")
    assert Cron(nickname, anchored=True).bind(key="k", created=created, tz="Europe/Berlin") == expected
    assert Cron(nickname, anchored=CREATED, tz="Europe/Berlin") == expected
    assert Cron(nickname, anchored=CREATED).bind(key="k", created=0, tz="Europe/Berlin") == expected


def test_an_anchored_nickname_without_its_anchor_has_no_moments() -> None:
    cron = Cron("@daily", anchored=True)
    assert cron.text == "cron @daily; anchored=true"
    assert not cron.is_complete
    with pytest.raises(InvalidWhen, match="anchored"):
        cron.next_after(START)


def test_an_anchor_without_a_zone_is_kept_until_the_zone_is_known() -> None:
    cron = Cron("@daily", anchored=CREATED)
    assert cron.text == "cron @daily; anchored=2026-01-31T22:17:30Z"
    assert cron.upcoming(START, 1)[0].hour == 22
    assert Cron("@daily", anchored="2026-01-31T22:17:30Z") == cron


@pytest.mark.parametrize("text", ["0 0 * * *", "@midnight"])
def test_only_a_nickname_can_be_anchored(text: str) -> None:
    with pytest.raises(InvalidWhen, match="anchored"):
        Cron(text, anchored=True)


@pytest.mark.parametrize("anchored", ["yesterday", 5, datetime(2026, 1, 1)])
def test_an_anchor_must_be_a_moment(anchored: object) -> None:
    with pytest.raises(InvalidWhen):
        Cron("@daily", anchored=anchored)  # type: ignore[arg-type]


def test_at_every_is_an_interval_and_not_an_expression() -> None:
    assert Cron("@every 90s") == Every("90s")
    assert Cron(" @EVERY 1h30m ", jitter="5m") == Every("90m", jitter="5m")
    with pytest.raises(InvalidWhen):
        Cron("@every soon")
    assert rule("@every 90s", tz="Europe/Berlin") == Every("90s", tz="Europe/Berlin")
    assert rule("0 9 * * *", dst="skip") == Cron("0 9 * * *", dst="skip")
    with pytest.raises(InvalidWhen, match="dst"):
        rule("@every 90s", dst="skip")
    with pytest.raises(InvalidWhen):
        rule("@every")
    with pytest.raises(InvalidWhen):
        rule(5)  # type: ignore[arg-type]
