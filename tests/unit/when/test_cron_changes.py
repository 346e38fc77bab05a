"""Clock changes by example, and the bounds of a search."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from evertick.when.cron import Cron, DstRule
from evertick.when.cron_day import Days

US = 1_000_000
YEAR = 365 * 86_400 * US


def local(text: str, zone: str, first: str, last: str, dst: DstRule = "cron") -> list[str]:
    """The moments between two wall times, as wall times, with the offset where it matters."""
    cron, tz = Cron(text, tz=zone, dst=dst), ZoneInfo(zone)
    at = datetime.fromisoformat(first).replace(tzinfo=tz)
    end = datetime.fromisoformat(last).replace(tzinfo=tz)
    shown = []
    before = at.astimezone(UTC)
    moments = [m for m in cron.upcoming(before, 200) if m.astimezone(UTC) <= end.astimezone(UTC)]
    for moment in moments:
        assert cron.previous_before(moment) == (shown[-1] if shown else cron.previous_before(moment))
        shown.append(moment)
    return [f"{moment:%d %H:%M%z}" for moment in shown]


SPRING = ("2026-03-28 12:00", "2026-03-30 00:59")
AUTUMN = ("2026-10-24 12:00", "2026-10-26 01:00")


@pytest.mark.parametrize(
    ("text", "dst", "expected"),
    [
        ("30 2 * * *", "cron", ["29 03:00+0200"]),
        ("30 2 * * *", "skip", []),
        ("30 2 * * *", "shift", ["29 03:30+0200"]),
        ("30 2 * * *", "wall", []),
        ("0,20,40 2 * * *", "cron", ["29 03:00+0200"]),
        ("0,20,40 2 * * *", "shift", ["29 03:00+0200", "29 03:20+0200", "29 03:40+0200"]),
        ("30 2,3 * * *", "cron", ["29 03:00+0200", "29 03:30+0200"]),
        ("30 2,3 * * *", "shift", ["29 03:30+0200"]),
        ("15,45 2-3 * * *", "shift", ["29 03:15+0200", "29 03:45+0200"]),
        ("0 3 * * *", "cron", ["29 03:00+0200"]),
        ("0 2,3 * * *", "cron", ["29 03:00+0200"]),
        ("*/30 2 * * *", "cron", []),
        ("*/30 1-3 * * *", "shift", ["29 01:00+0100", "29 01:30+0100", "29 03:00+0200", "29 03:30+0200"]),
        ("30 */1 29 3 *", "cron", None),
    ],
)
def test_when_berlin_sets_the_clock_forward(text: str, dst: DstRule, expected: list[str] | None) -> None:
    found = local(text, "Europe/Berlin", *SPRING, dst)
    if expected is None:
        assert len(found) == 23
        assert "29 01:30+0100" in found
        assert "29 03:30+0200" in found
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("text", "dst", "expected"),
    [
        ("30 2 * * *", "cron", ["25 02:30+0200"]),
        ("30 2 * * *", "skip", ["25 02:30+0200"]),
        ("30 2 * * *", "shift", ["25 02:30+0200"]),
        ("30 2 * * *", "wall", ["25 02:30+0200", "25 02:30+0100"]),
        ("0 2,3 * * *", "cron", ["25 02:00+0200", "25 03:00+0100"]),
        ("*/30 2 * * *", "cron", ["25 02:00+0200", "25 02:30+0200", "25 02:00+0100", "25 02:30+0100"]),
        ("30 */2 25 10 *", "cron", None),
    ],
)
def test_when_berlin_sets_the_clock_back(text: str, dst: DstRule, expected: list[str] | None) -> None:
    found = local(text, "Europe/Berlin", *AUTUMN, dst)
    if expected is None:
        assert found[1:3] == ["25 02:30+0200", "25 02:30+0100"]
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("zone", "text", "window", "dst", "expected"),
    [
        ("Australia/Lord_Howe", "15 2 * * *", ("2026-10-03 12:00", "2026-10-04 12:00"), "cron", ["04 02:30+1100"]),
        ("Australia/Lord_Howe", "15 2 * * *", ("2026-10-03 12:00", "2026-10-04 12:00"), "shift", ["04 02:45+1100"]),
        ("Australia/Lord_Howe", "45 1 * * *", ("2026-04-04 12:00", "2026-04-05 12:00"), "cron", ["05 01:45+1100"]),
        ("Antarctica/Troll", "30 1,2 * * *", ("2026-03-28 12:00", "2026-03-29 12:00"), "cron", ["29 03:00+0200"]),
        (
            "Antarctica/Troll",
            "30 1,2 * * *",
            ("2026-03-28 12:00", "2026-03-29 12:00"),
            "shift",
            ["29 03:30+0200", "29 04:30+0200"],
        ),
        (
            "Pacific/Apia",
            "0 9 * * *",
            ("2011-12-29 00:00", "2012-01-01 00:00"),
            "cron",
            ["29 09:00-1000", "31 00:00+1400", "31 09:00+1400"],
        ),
        (
            "Pacific/Apia",
            "0 9 * * *",
            ("2011-12-29 00:00", "2012-01-01 00:00"),
            "skip",
            ["29 09:00-1000", "31 09:00+1400"],
        ),
        (
            "Pacific/Apia",
            "0 9 * * *",
            ("2011-12-29 00:00", "2012-01-01 00:00"),
            "shift",
            ["29 09:00-1000", "31 09:00+1400"],
        ),
        ("Pacific/Apia", "0 9 30 12 *", ("2011-12-29 00:00", "2012-01-02 00:00"), "cron", ["31 00:00+1400"]),
        ("Africa/Cairo", "0 0 * * *", ("2024-04-25 12:00", "2024-04-26 12:00"), "cron", ["26 01:00+0300"]),
        ("Africa/Cairo", "0 0 * * *", ("2024-04-25 12:00", "2024-04-26 12:00"), "skip", []),
        ("America/Sao_Paulo", "0 0 * * *", ("2018-11-03 12:00", "2018-11-04 12:00"), "cron", ["04 01:00-0200"]),
        ("Asia/Pyongyang", "45 23 * * *", ("2018-05-04 12:00", "2018-05-05 12:00"), "cron", ["05 00:00+0900"]),
        ("Europe/Dublin", "30 1 * * *", ("2026-03-28 12:00", "2026-03-29 12:00"), "cron", ["29 02:00+0100"]),
        ("Europe/Dublin", "30 1 * * *", ("2026-10-24 12:00", "2026-10-25 12:00"), "cron", ["25 01:30+0100"]),
    ],
)
def test_when_other_clocks_change(
    zone: str, text: str, window: tuple[str, str], dst: DstRule, expected: list[str]
) -> None:
    assert local(text, zone, *window, dst) == expected


def test_seconds_follow_the_same_test() -> None:
    assert Cron("0 30 2 * * *").is_fixed
    assert not Cron("*/10 30 2 * * *").is_fixed
    assert local("*/20 30 2 * * *", "Europe/Berlin", *SPRING) == []
    assert local("0,20 30 2 * * *", "Europe/Berlin", *SPRING) == ["29 03:00+0200"]
    assert local("59 59 2 * * *", "Europe/Berlin", *SPRING, "shift") == ["29 03:59+0200"]
    assert local("59 59 2 * * *", "Europe/Berlin", *SPRING, "cron") == ["29 03:00+0200"]


@pytest.mark.parametrize("text", ["0 H * * *", "H(0-29) 2 * * *", "0-59 0-23 * * *", "0/5 0/1 * * *"])
def test_only_a_leading_star_makes_an_expression_literal(text: str) -> None:
    assert Cron(text, key="k").is_fixed


def test_a_yearly_time_in_a_gap_is_found_from_afar_in_both_directions() -> None:
    cron = Cron("30 2 28 3 *", tz="Europe/Berlin")
    at = datetime(2027, 3, 28, 1, tzinfo=UTC)
    assert cron.previous_before(datetime(2027, 12, 1, tzinfo=UTC)) == at
    assert cron.next_after(datetime(2026, 12, 1, tzinfo=UTC)) == at


def test_the_second_pass_of_a_yearly_time_is_found() -> None:
    cron = Cron("30 2 25 10 *", tz="Europe/Berlin", dst="wall")
    first, second = datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    # Compared in UTC: datetimes of different zones are never equal in Python if one is in a repeated hour.
    assert [moment.astimezone(UTC) for moment in cron.upcoming(first, 1)] == [second]
    assert cron.previous_us(int(second.timestamp()) * US) == int(first.timestamp()) * US


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 0 1W 8 *", "2026-08-03"),
        ("0 0 31W 5 *", "2026-05-29"),
        ("0 0 LW 5 *", "2026-05-29"),
        ("0 0 LW 10 *", "2026-10-30"),
    ],
)
def test_the_nearest_working_day_stays_in_its_month(text: str, expected: str) -> None:
    assert f"{Cron(text).next_after(datetime(2026, 1, 1, tzinfo=UTC)):%Y-%m-%d}" == expected


def test_moments_lie_between_1970_and_2099_of_the_wall_clock() -> None:
    for zone in ("UTC", "Pacific/Kiritimati", "Pacific/Niue"):
        cron = Cron("0 0 * * *", tz=zone)
        first = cron.next_after(datetime(1900, 1, 1, tzinfo=UTC))
        last = cron.previous_before(datetime(2500, 1, 1, tzinfo=UTC))
        assert first is not None
        assert last is not None
        assert f"{first:%Y-%m-%d %H:%M}" in ("1970-01-01 00:00", "1970-01-02 00:00")
        assert f"{last:%Y-%m-%d %H:%M}" == "2099-12-31 00:00"
        assert cron.next_after(last) is None
        assert cron.previous_before(first) is None


def test_fractions_of_a_second_are_respected() -> None:
    cron = Cron("0 9 * * *")
    at = int(datetime(2026, 1, 1, 9, tzinfo=UTC).timestamp()) * US
    assert cron.next_us(at - 1) == at
    assert cron.previous_us(at + 1) == at
    assert (cron.next_us(at) or 0) > at
    assert (cron.previous_us(at) or 0) < at
    assert [cron.count_us(at, at), cron.count_us(at + 1, at + 2), cron.count_us(at - 1, at + 1)] == [1, 0, 1]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Africa/Casablanca"])
@pytest.mark.parametrize("text", ["0 0 29 2 +1", "30 2 L 2 +0", "0 0 0 1 1 * 2099", "0 0 0 1 1 * 1970", "0 0 13 * +5"])
def test_a_search_visits_every_month_at_most_a_few_times(zone: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    look = Days._in_month

    def counted(days: Days, month: int) -> int:
        nonlocal looks
        looks += 1
        return look(days, month)

    cron = Cron(text, tz=zone)
    monkeypatch.setattr(Days, "_in_month", counted)
    for year in (1970, 2026, 2098):
        for ask in (cron.next_after, cron.previous_before):
            looks = 0
            ask(datetime(year, 6, 1, tzinfo=UTC))
            assert looks <= 4 * 130 * 12


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_counting_decades_visits_months_and_not_moments(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    look = Days._in_month

    def counted(days: Days, month: int) -> int:
        nonlocal looks
        looks += 1
        return look(days, month)

    monkeypatch.setattr(Days, "_in_month", counted)
    start = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * US
    assert Cron("* * * * * *", tz=zone).count_us(start, start + 10 * YEAR - 1, 10**12) == 10 * 365 * 86_400
    assert Cron("0 9 * * *", tz=zone).count_us(start, start + 30 * YEAR - 1, 10**12) == 30 * 365
    assert looks < 2_000
    looks = 0
    assert Cron("* * * * * *", tz=zone).count_us(start, start + 10 * YEAR, 100_000) == 100_000
    assert looks < 20


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize("text", ["* * * * * *", "*/5 * * * *", "0 9 * * *", "0 0 L * *", "30 2 * * *"])
def test_a_count_is_exact_up_to_its_limit(zone: str, text: str) -> None:
    cron = Cron(text, tz=zone)
    # From late in a day to early in another, so that nearly all moments are on the days between.
    start, end = (
        int(datetime(year, 1, 15, hour, 31, tzinfo=UTC).timestamp()) * US for year, hour in ((2026, 22), (2027, 0))
    )
    exact = cron.count_us(start, end, 10**12)
    for limit in (0, 1, 2, 11, 12, 100, 287, 288, 289, 1440, 86_399, 86_401, exact - 1, exact, exact + 1):
        assert cron.count_us(start, end, limit) == min(limit, exact)


def test_coinciding_moments_of_a_shifted_day_are_counted_once() -> None:
    cron = Cron("0 0-23 * * *", tz="Pacific/Apia", dst="shift")
    start = int(datetime(2011, 12, 29, 10, tzinfo=UTC).timestamp()) * US
    assert cron.count_us(start, start + 3 * 86_400 * US - 1) == 72
