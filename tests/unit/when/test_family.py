"""Rules made from another rule of their family are equal to their parsed texts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertick.errors import InvalidWhen
from evertick.when import Cron, Every, Once, When, family, from_us, parse_when, to_us
from evertick.when.family import Families

thorough = settings(derandomize=True, deadline=None, max_examples=200)

START = datetime(2026, 11, 16, 18, tzinfo=UTC)
starts = st.integers(10**14, 4 * 10**15).map(from_us)
zones = st.none() | st.sampled_from(["UTC", "Europe/Berlin"])
alignments = st.sampled_from([{}, {"since": "start"}, {"after": "end"}])
expressions = st.sampled_from(["0 9 * * 1-5", "*/5 * * * *", "@daily", "H 6 * * *", "0 0 12 * * mon"])
rules = st.one_of(
    st.builds(
        lambda seconds, way, tz: (Every, (timedelta(seconds=seconds),), {**way, "tz": tz}),
        st.integers(1, 10**6),
        alignments,
        zones,
    ),
    st.builds(lambda text, tz: (Cron, (text,), {"tz": tz}), expressions, zones),
)


@thorough
@given(
    rules, st.lists(starts, min_size=2, max_size=4), st.none() | st.integers(0, 10**6), st.none() | st.integers(1, 9)
)
def test_a_rule_of_a_known_family_is_equal_to_its_parsed_text(
    made: tuple[type[When], tuple[object, ...], dict[str, object]],
    starts: list[datetime],
    seconds: int | None,
    max_fires: int | None,
) -> None:
    kind, first, options = made
    known = Families()
    for start in starts:
        end = None if seconds is None else start + timedelta(seconds=seconds)
        text = kind(*first, **options, start=start, end=end, max_fires=max_fires).text

        found, read = known.rule(text), parse_when(text)

        assert type(found) is type(read)
        assert (found.text, found.bounds, found.zone, found.is_zone_given) == (
            read.text,
            read.bounds,
            read.zone,
            read.is_zone_given,
        )
        assert found.is_complete == read.is_complete
        assert found.fingerprint == read.fingerprint
        complete = [each.bind(key="k", created=to_us(START)) for each in (found, read)]
        for at in (to_us(start) - 1, to_us(start), to_us(start) + 10**12):
            assert complete[0].next_us(at) == complete[1].next_us(at)
            assert complete[0].previous_us(at) == complete[1].previous_us(at)
            if found.is_complete:
                assert found.next_us(at) == read.next_us(at)
    assert seconds is not None or len(known._families) == 1


def test_cron_rules_of_a_family_share_their_search_tables() -> None:
    known = Families()

    first, second = (known.rule(Cron("0 9 * * *", start=START + timedelta(hours=n)).text) for n in range(2))

    assert isinstance(first, Cron)
    assert isinstance(second, Cron)
    assert first is not second
    assert first._search is second._search is not None


@pytest.mark.parametrize(
    "text",
    [
        "every 1m; start=2026-01-02T00:00:00Z; end=2026-01-01T00:00:00Z",
        "every 1m; start=2026-01-02T00:00:00Z; start=2026-01-02T00:00:00Z",
        "every 1m; start=2026-01-02T00:00:00Z; since=moon",
        "cron 0 9 31 2 *; start=2026-01-02T00:00:00Z",
        "cron 0 9; start=2026-01-02T00:00:00Z",
        "every 1m; start=tomorrow",
        "every 1m; start=",
        "once 2026-01-01T00:00:00Z; start=2026-01-02T00:00:00Z",
    ],
)
def test_invalid_text_is_refused_in_a_family_too(text: str) -> None:
    known = Families()
    known.rule("every 1m; start=2026-01-01T00:00:00Z; end=2026-01-01T00:00:00Z")

    with pytest.raises(InvalidWhen):
        parse_when(text)
    with pytest.raises(InvalidWhen):
        known.rule(text)


def test_a_one_shot_has_no_start() -> None:
    with pytest.raises(InvalidWhen, match="'once 2026-11-16T18:00:00Z' is a single moment and cannot start at 1970-"):
        Once(START).starting_at(0)


def test_the_cache_of_families_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family, "_KNOWN_MAX", 3)
    known = Families()

    for minutes in range(1, 9):
        text = f"every {minutes}m; since=start; start=2026-01-01T00:00:00Z"
        assert known.rule(text) == parse_when(text)
        assert len(known._families) <= 3
