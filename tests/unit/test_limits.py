"""Options of limits and unique keys, and their refusals."""

from __future__ import annotations

from typing import Any

import pytest

from evertick import InvalidSetting, Scheduler
from evertick.errors import InvalidKey
from evertick.model import Cause, NewGap, NewRun, Reason, Verdict
from evertick.model.limits import KEY_LONGEST, Concurrency, Rate, Subject, make_concurrency, make_rate, shown_key
from evertick.store.verdicts import gaps_with_duplicates

SECOND = 1_000_000
NAMES: dict[str, Any] = {"customer": ..., "shop": "main", "limits": {"a": [1]}}


def rate(text: Any, key: str | None = None) -> Rate:
    made = make_rate(text, key, "t", NAMES)
    assert made is not None
    return made


def concurrency(most: Any = 1, key: Any = None) -> Concurrency:
    made = make_concurrency(most, key, "t", NAMES)
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("text", "most", "period"),
    [
        ("100/min", 100, 60 * SECOND),
        ("1/s", 1, SECOND),
        ("5/10s", 5, 10 * SECOND),
        (" 5 / 10s ", 5, 10 * SECOND),
        ("1000/h", 1000, 3600 * SECOND),
        ("10/d", 10, 86_400 * SECOND),
        ("3/1h30m", 3, 5400 * SECOND),
        ("2/250ms", 2, 250_000),
        ("1000000/day", 1_000_000, 86_400 * SECOND),
    ],
)
def test_a_rate_is_a_number_of_starts_in_a_period(text: str, most: int, period: int) -> None:
    assert (rate(text).most, rate(text).period) == (most, period)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fast", "is not a rate; write it like '100/min'"),
        ("100", "is not a rate"),
        (100, "is not a rate"),
        ("-1/s", "is not a rate"),
        ("1.5/s", "is not a rate"),
        ("0/s", "from 1 to 1000000"),
        ("1000001/s", "from 1 to 1000000"),
        ("1/fortnight", "'fortnight' is not a period"),
        ("1/1ms", "the period must be from 10ms to 31d"),
        ("1/32d", "the period must be from 10ms to 31d"),
        ("9" * 500 + "/s", "is not a rate"),
    ],
)
def test_an_invalid_rate_is_refused_with_a_valid_example(text: Any, expected: str) -> None:
    with pytest.raises(InvalidSetting, match=expected):
        rate(text)


@pytest.mark.parametrize("most", [0, -1, 10_001, True, 1.5, "2"])
def test_an_invalid_concurrency_is_refused(most: Any) -> None:
    with pytest.raises(InvalidSetting, match=r"concurrency: .* must be a whole number from 1 to 10000"):
        concurrency(most)


@pytest.mark.parametrize(
    ("text", "args", "key"),
    [
        (None, '{"customer":"ann"}', "concurrency=t"),
        ("db", '{"customer":"ann"}', "concurrency:db"),
        ("c-{customer}", '{"customer":"ann"}', "concurrency:c-ann"),
        ("c-{customer}", '{"customer":7}', "concurrency:c-7"),
        ("{customer}/{shop}", '{"customer":"a","shop":"b"}', "concurrency:a/b"),
        ("{customer}/{shop}", '{"customer":"a"}', "concurrency:a/main"),
        ("c-{customer}", "{}", "concurrency:c-null"),
        ("c-{customer}", None, "concurrency:c-null"),
        ("c-{customer}", "[1]", "concurrency:c-null"),
        ("c-{customer}", "no json", "concurrency:c-null"),
        ("{limits}", "{}", 'concurrency:{"a":[1]}'),
        # Text from an argument is not parsed again.
        ("{customer}", '{"customer":"{shop}"}', "concurrency:{shop}"),
    ],
)
def test_a_key_is_made_from_the_arguments_of_a_run(text: str | None, args: str | None, key: str) -> None:
    assert concurrency(1, text).key(args) == key


def test_limit_keys_of_any_length_are_shortened_and_stay_different() -> None:
    limit = concurrency(1, "{customer}")
    one, other = (limit.key(f'{{"customer":"{"x" * 5_000}{end}"}}') for end in "ab")
    assert one != other
    assert max(len(shown_key(one)[1]), len(shown_key(other)[1])) <= KEY_LONGEST


def test_a_key_with_half_a_surrogate_pair_can_be_stored() -> None:
    assert concurrency(1, "{customer}").key('{"customer":"\\ud800"}').encode()


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("concurrency=t", ("concurrency", "t")),
        ("concurrency:a=b:c", ("concurrency", "a=b:c")),
        ("rate:x", ("rate", "x")),
        ("rate=a:b", ("rate", "a:b")),
    ],
)
def test_a_limit_key_of_the_ledger_is_shown_as_the_user_wrote_it(key: str, shown: tuple[str, str]) -> None:
    assert shown_key(key) == shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("c-{custmer}", r"'\{custmer\}' is not an argument; known are \{customer\}, \{shop\}, \{limits\}"),
        ("c-{customer.name}", "is not an argument"),
        ("c-{customer!r}", "is not an argument"),
        ("c-{}", "is not an argument"),
        ("c-{customer", "is not an argument"),
        ("c-}", "is not an argument"),
        ("", "must be text of 1 to 200 characters"),
        ("x" * 201, "must be text of 1 to 200 characters"),
        ("a\nb", "must be text"),
        (7, "must be text"),
    ],
)
def test_a_limit_key_with_an_unknown_argument_is_refused(text: Any, expected: str) -> None:
    with pytest.raises(InvalidSetting, match=expected):
        concurrency(1, text)


def test_a_key_without_a_limit_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="rate_key: 'x' has no effect alone; give rate= too"):
        make_rate(None, "x", "t", {})


def test_a_default_that_is_not_plain_data_cannot_be_part_of_a_limit_key() -> None:
    with pytest.raises(InvalidSetting, match="the default of 'who'"):
        make_concurrency(1, "{who}", "t", {"who": object()})


def test_starts_are_grouped_only_above_a_thousand_per_period() -> None:
    assert rate("1000/h").grain == 0
    assert rate("1001/h").grain == 3600 * SECOND // 1000


# --- declarations of tasks


def test_the_limits_of_a_task_are_checked_at_its_declaration() -> None:
    scheduler = Scheduler("sqlite://")

    @scheduler.task(concurrency=3, concurrency_key="c-{customer}", rate="5/s", rate_key="mail")
    def send(customer: str, text: str = "") -> None: ...

    terms = send.work.terms
    assert terms.is_limited
    assert terms.concurrency == Concurrency(most=3, of=Subject(task="send", text="c-{customer}"))
    with pytest.raises(InvalidSetting, match=r"task 'other': concurrency_key: .* known are \{number\}"):

        @scheduler.task(name="other", concurrency=1, concurrency_key="{nr}")
        def other(number: int) -> None: ...

    assert "other" not in scheduler.runtime.tasks


def test_tasks_that_share_a_rate_key_have_the_same_rate() -> None:
    scheduler = Scheduler("sqlite://")
    scheduler.task(name="a", rate="60/min", rate_key="mail")(lambda: None)
    scheduler.task(name="b", rate="60/1m", rate_key="mail")(lambda: None)
    scheduler.task(name="c", rate="7/min")(lambda: None)
    with pytest.raises(
        InvalidSetting, match="rate: 61/1m differs from 60/1m of task 'a', which shares rate_key 'mail'"
    ):
        scheduler.task(name="d", rate="61/min", rate_key="mail")(lambda: None)


def test_a_rate_by_argument_cannot_be_counted_in_memory() -> None:
    scheduler = Scheduler("sqlite://", rate_limits="memory")
    scheduler.task(name="a", rate="60/min", rate_key="mail")(lambda: None)
    with pytest.raises(InvalidSetting, match="before it knows them; use a text without braces, or rate_limits='store'"):

        @scheduler.task(rate="1/s", rate_key="{who}")
        def b(who: str) -> None: ...


def test_an_unknown_rate_limits_setting_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="rate_limits: 'redis' is neither 'store'"):
        Scheduler("sqlite://", rate_limits="redis")


# --- unique keys


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"unique_until": "start"}, "give the key with unique="),
        ({"unique_for": "1h"}, "give the key with unique="),
        ({"unique": "k", "unique_until": "start", "unique_for": "1h"}, "both say how long"),
        ({"unique": "k", "unique_until": "never"}, "must be one of 'end', 'start'"),
        ({"unique": "k", "unique_for": 0}, "more than nothing and at most 366d"),
        ({"unique": "k", "unique_for": "367d"}, "more than nothing and at most 366d"),
    ],
)
def test_the_scope_of_a_unique_key_is_given_once_and_only_with_a_key(options: dict[str, Any], expected: str) -> None:
    scheduler = Scheduler("sqlite://")
    task = scheduler.task(name="t")(lambda: None)
    with pytest.raises(InvalidSetting, match=expected):
        task.options(**options)
    with pytest.raises(InvalidSetting, match=expected):
        scheduler.every("1h", name="s", **options)(lambda: None)


def test_a_unique_key_is_checked_like_other_keys() -> None:
    with pytest.raises(InvalidKey, match="unique"):
        Scheduler("sqlite://").every("1h", name="s", unique="a;b")(lambda: None)


def a_gap(reason: Reason, verdict: Verdict = Verdict.SKIPPED) -> NewGap:
    return NewGap(first_at=1, last_at=2, count=2, verdict=verdict, reason=reason)


def test_moments_coalesced_into_a_duplicate_are_skipped_as_duplicate() -> None:
    fire = NewRun(id="r", task="t", cause=Cause.FIRE, fire_at=3)
    skipped = NewGap(first_at=3, last_at=3, count=1, verdict=Verdict.SKIPPED, reason=Reason.DUPLICATE)
    paused = a_gap(Reason.PAUSED)
    gaps = [paused, a_gap(Reason.COALESCED), a_gap(Reason.DOWNTIME, Verdict.MISSED)]
    skipped_too = [a_gap(Reason.DUPLICATE), a_gap(Reason.DUPLICATE)]
    assert gaps_with_duplicates(gaps, [fire], {"r"}) == [paused, *skipped_too, skipped]
    assert gaps_with_duplicates(gaps, [fire], ()) == gaps


def test_a_backfill_whose_unique_key_is_taken_leaves_the_gap() -> None:
    backfill = NewRun(id="r", task="t", cause=Cause.BACKFILL, fire_at=3)
    assert gaps_with_duplicates([], [backfill], {"r"}) == []
