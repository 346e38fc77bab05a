"""One moment: an instant, or a delay from the creation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from evertick.errors import InvalidDuration, InvalidWhen
from evertick.when import Once, parse_when, to_us
from evertick.when.moment import MINUTE

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
US = to_us(MOMENT)


def test_once_has_exactly_one_moment() -> None:
    rule = Once(MOMENT)
    assert rule.next_us(US - 1) == US
    assert rule.next_us(US) is None
    assert rule.previous_us(US + 1) == US
    assert rule.previous_us(US) is None
    assert (rule.count_us(US, US), rule.count_us(US + 1, US + 9), rule.count_us(0, US, limit=0)) == (1, 0, 0)
    assert rule.upcoming(MOMENT - timedelta(days=1), 5) == [MOMENT]


def test_a_delay_counts_from_the_creation() -> None:
    bound = Once(after="10m").bind(key="k", created=US)
    assert bound.next_us(0) == US + 10 * MINUTE
    assert bound.text == "once 2026-01-01T00:10:00Z; tz=UTC"
    assert bound.bind(key="k", created=0) == bound


def test_an_unbound_delay_has_no_moment_and_explains_why() -> None:
    rule = Once(after="10m")
    assert not rule.is_complete
    for ask in (rule.next_us, rule.previous_us):
        with pytest.raises(InvalidWhen, match="creation"):
            ask(0)
    with pytest.raises(InvalidWhen, match="creation"):
        rule.count_us(0, 1)


def test_a_delay_of_zero_is_the_creation_time() -> None:
    assert Once(after=0).bind(key="k", created=US).next_us(US - 1) == US


def test_once_needs_a_moment_or_a_delay_but_not_both() -> None:
    with pytest.raises(InvalidWhen, match="exclude each other"):
        Once(MOMENT, after="10m")
    with pytest.raises(InvalidWhen, match="needs"):
        Once()


@pytest.mark.parametrize("at", ["2026-01-01", 7, datetime(2026, 1, 1), datetime(9999, 1, 1, tzinfo=UTC)])
def test_an_invalid_moment_is_refused(at: object) -> None:
    with pytest.raises(InvalidWhen):
        Once(at)  # type: ignore[arg-type]


def test_a_delay_that_is_no_duration_is_refused() -> None:
    with pytest.raises(InvalidDuration, match="after"):
        Once(after="later")


def test_the_text_of_once_parses_to_an_equal_rule() -> None:
    for rule in (Once(MOMENT), Once(after="90s"), Once(MOMENT, tz="Asia/Tokyo", jitter="5s", calendar="c")):
        assert parse_when(rule.text) == rule


def test_once_has_an_explanation() -> None:
    assert Once(MOMENT).explain() == "once, at 2026-01-01T00:00:00Z"
    assert Once(after="90s").explain() == "once, 1 minute 30 seconds after its creation"
