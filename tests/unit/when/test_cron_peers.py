"""Compared with other tools: the documented agreements, and exactly the documented differences."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from cron_oracle import MONTHS, WEEKDAYS, Pick, picker
from croniter import croniter
from cronsim import CronSim, CronSimError

from evertick.errors import InvalidWhen
from evertick.when.cron import Cron

ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "America/Sao_Paulo",
    "Europe/Dublin",
    "Asia/Beirut",
]
STARTS = [datetime(2026, 3, 27, tzinfo=UTC), datetime(2026, 10, 23, tzinfo=UTC), datetime(2018, 11, 2, tzinfo=UTC)]


def plain(pick: Pick, low: int, high: int, names: list[str] | None = None) -> str:
    """An item that every tool accepts: no wrapping, no step beyond the field."""

    def text_of(value: int) -> str:
        return names[value - low] if names and pick(3) == 0 else str(value)

    start = low + pick(high - low + 1)
    stop = start + pick(high - start + 1)
    match pick(5):
        case 0:
            return "*"
        case 1:
            return f"*/{1 + pick(high - low)}"
        case 2 if stop > start:
            return f"{text_of(start)}-{text_of(stop)}"
        case 3 if stop > start:
            return f"{start}-{stop}/{1 + pick(5)}"
        case _:
            return ",".join(dict.fromkeys([text_of(start), text_of(stop)]))


def shared(pick: Pick, *, is_star_rule_met: bool = True) -> str:
    """Five fields; on request without those that crontab and croniter interpret differently."""
    day = plain(pick, 1, 28) if pick(2) else "*"
    month = plain(pick, 1, 12, MONTHS) if pick(4) == 0 else "*"
    weekday = plain(pick, 0, 6, WEEKDAYS) if pick(2) else "*"
    if not is_star_rule_met and "*/" in day + weekday:
        day, weekday = (day, "*") if pick(2) else ("*", weekday)
    return f"{plain(pick, 0, 59)} {plain(pick, 0, 23)} {day} {month} {weekday}"


@pytest.mark.parametrize("zone", ZONES)
def test_five_fields_give_the_moments_of_cronsim_over_clock_changes(zone: str) -> None:
    pick, tz = picker(f"cronsim {zone}"), ZoneInfo(zone)
    for _ in range(40):
        text = shared(pick)
        special = ["L", "LW"][pick(2)] if pick(6) == 0 else None
        if special:
            minute, hour, _, month, _ = text.split()
            text = f"{minute} {hour} {special} {month} *"
        start = STARTS[pick(3)]
        foreign = [m.astimezone(UTC) for m in islice(CronSim(text, start.astimezone(tz)), 60)]
        own = [m.astimezone(UTC) for m in Cron(text, tz=zone).upcoming(start, 60)]
        assert own == foreign, text


def test_cronsim_has_no_rule_for_clock_changes_when_seconds_are_given() -> None:
    start = datetime(2026, 3, 28, 12, tzinfo=UTC)
    foreign = next(CronSim("0 30 2 * * *", start.astimezone(ZoneInfo("Europe/Berlin"))))
    assert f"{foreign:%m-%d %H:%M}" == "03-30 02:30"
    assert f"{Cron('0 30 2 * * *', tz='Europe/Berlin').next_after(start):%m-%d %H:%M}" == "03-29 03:00"
    assert Cron("0 30 2 * * *", tz="Europe/Berlin", dst="wall").next_after(start) == foreign


@pytest.mark.parametrize(
    "text", ["0 22-2 * * *", "0 0 * * fri-mon", "0 0 * nov-feb *", "0 0 15W * *", "0 0 L-3 * *", "0 0 ? * *"]
)
def test_cronsim_refuses_what_evertick_takes(text: str) -> None:
    with pytest.raises(CronSimError):
        CronSim(text, STARTS[0])
    Cron(text)


@pytest.mark.parametrize("text", ["*/90 * * * *", "0 0 L/2 * *", "0 0 */28 * 1#3"])
def test_evertick_refuses_what_cronsim_takes(text: str) -> None:
    CronSim(text, STARTS[0])
    with pytest.raises(InvalidWhen):
        Cron(text)


def test_cronsim_includes_sunday_in_an_open_step_over_weekdays() -> None:
    foreign = {f"{moment:%a}" for moment in islice(CronSim("0 0 * * 1/2", STARTS[0]), 14)}
    own = {f"{moment:%a}" for moment in Cron("0 0 * * 1/2").upcoming(STARTS[0], 14)}
    assert foreign == {"Mon", "Wed", "Fri", "Sun"}
    assert own == {"Mon", "Wed", "Fri"}


def test_five_fields_give_the_moments_of_croniter_in_utc() -> None:
    pick = picker("croniter")
    for _ in range(150):
        text = shared(pick, is_star_rule_met=False)
        start = STARTS[pick(3)]
        each = croniter(text, start)
        foreign = [each.get_next(datetime) for _ in range(30)]
        assert Cron(text).upcoming(start, 30) == foreign, text


def test_croniter_writes_seconds_last() -> None:
    pick = picker("croniter seconds")
    for _ in range(40):
        text, second = shared(pick, is_star_rule_met=False), plain(pick, 0, 59)
        each = croniter(f"{text} {second}", STARTS[0])
        foreign = [each.get_next(datetime) for _ in range(20)]
        assert Cron(f"{second} {text}").upcoming(STARTS[0], 20) == foreign, text


@pytest.mark.parametrize(
    ("own", "foreign"),
    [
        ("0 0 * * 5L", "0 0 * * L5"),
        ("0 0 * * 5#2", "0 0 * * 5#2"),
        ("0 0 L * *", "0 0 L * *"),
        ("0 0 * * 7", "0 0 * * 7"),
    ],
)
def test_croniter_knows_these_days(own: str, foreign: str) -> None:
    each = croniter(foreign, STARTS[0])
    assert Cron(own).upcoming(STARTS[0], 24) == [each.get_next(datetime) for _ in range(24)]


def test_croniter_takes_either_day_field_even_if_one_begins_with_a_star() -> None:
    each = croniter("0 0 */2 * 1", STARTS[0])
    foreign = [each.get_next(datetime) for _ in range(3)]
    assert [moment.day for moment in foreign] == [29, 30, 31]
    assert [f"{moment:%d %a}" for moment in Cron("0 0 */2 * 1").upcoming(STARTS[0], 2)] == ["13 Mon", "27 Mon"]


def croniter_in_berlin(text: str, start: datetime, count: int) -> list[str]:
    each = croniter(text, start.astimezone(ZoneInfo("Europe/Berlin")))
    return [f"{each.get_next(datetime).astimezone(ZoneInfo('Europe/Berlin')):%d %H:%M%z}" for _ in range(count)]


def evertick_in_berlin(text: str, start: datetime, count: int) -> list[str]:
    return [f"{moment:%d %H:%M%z}" for moment in Cron(text, tz="Europe/Berlin").upcoming(start, count)]


SPRING, AUTUMN = datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 10, 24, 12, tzinfo=UTC)


def test_croniter_fires_after_a_gap_even_for_an_expression_with_a_star() -> None:
    assert croniter_in_berlin("30 2 * * *", SPRING, 2) == evertick_in_berlin("30 2 * * *", SPRING, 2)
    assert croniter_in_berlin("*/30 2 * * *", SPRING, 2) == ["29 03:00+0200", "30 02:00+0200"]
    assert evertick_in_berlin("*/30 2 * * *", SPRING, 2) == ["30 02:00+0200", "30 02:30+0200"]


def test_croniter_fires_a_fixed_time_in_both_passes_of_a_repeated_hour() -> None:
    assert croniter_in_berlin("*/30 2 * * *", AUTUMN, 5) == evertick_in_berlin("*/30 2 * * *", AUTUMN, 5)
    assert croniter_in_berlin("30 2 * * *", AUTUMN, 3) == ["25 02:30+0200", "25 02:30+0100", "26 02:30+0100"]
    assert evertick_in_berlin("30 2 * * *", AUTUMN, 2) == ["25 02:30+0200", "26 02:30+0100"]


def test_croniter_reads_a_range_of_one_hour_as_every_hour() -> None:
    each = croniter("17 14-14 * * *", STARTS[0])
    assert [each.get_next(datetime).hour for _ in range(3)] == [0, 1, 2]
    assert [moment.hour for moment in Cron("17 14-14 * * *").upcoming(STARTS[0], 3)] == [14, 14, 14]


@pytest.mark.parametrize("day", ["29W", "30W", "31W"])
def test_croniter_moves_a_nearest_weekday_into_a_shorter_month(day: str) -> None:
    each = croniter(f"0 0 {day} 2 *", STARTS[0])
    assert each.get_next(datetime).month == 2
    days = Cron(f"0 0 {day} * *").upcoming(datetime(2026, 1, 1, tzinfo=UTC), 12)
    assert (2026, 2) not in {(moment.year, moment.month) for moment in days}


@pytest.mark.parametrize(
    ("foreign", "instead"),
    [
        ("0 0 W15 * *", "0 0 15W * *"),
        ("0 0 29-L * *", "0 0 29-31 * *"),
        ("0 0 28-L * *", "0 0 28-31 * *"),
        ("0 0 * * MON-FRI#1", "0 0 * * mon#1,tue#1,wed#1,thu#1,fri#1"),
    ],
)
def test_forms_that_only_croniter_accepts_have_an_equivalent(foreign: str, instead: str) -> None:
    with pytest.raises(InvalidWhen):
        Cron(foreign)
    each = croniter(foreign, STARTS[0])
    assert Cron(instead).upcoming(STARTS[0], 40) == [each.get_next(datetime) for _ in range(40)]


@pytest.mark.parametrize("text", ["R 0 * * *", "0 R * * *", "R(0-10) 0 * * *", "0 0 R * *"])
def test_croniter_draws_a_random_value_for_r(text: str) -> None:
    assert croniter.is_valid(text)
    with pytest.raises(InvalidWhen):
        Cron(text)
    drawn = {croniter(text, STARTS[0]).get_next(datetime) for _ in range(100)}
    assert len(drawn) > 1


@pytest.mark.parametrize("text", ["0 0 L-3W * *", "0 0 * * 1-5#1", "0 0 * * L", "0 0 WL * *"])
def test_neither_croniter_nor_evertick_reads(text: str) -> None:
    assert not croniter.is_valid(text)
    with pytest.raises(InvalidWhen):
        Cron(text)


@pytest.mark.parametrize("text", ["0 0 L-3 * *", "0 0 LW * *", "0 0 * * 5L", "0 0 1W,15W * *"])
def test_croniter_refuses_what_evertick_takes(text: str) -> None:
    assert not croniter.is_valid(text)
    Cron(text)


@pytest.mark.parametrize("text", ["*/90 * * * *", "0 0 30 2 *", "0 0 * * L5"])
def test_evertick_refuses_what_croniter_takes(text: str) -> None:
    assert croniter.is_valid(text)
    with pytest.raises(InvalidWhen):
        Cron(text)


def test_long_sequences_agree_with_cronsim_in_both_directions() -> None:
    pick = picker("backward")
    for _ in range(40):
        text, start = shared(pick), STARTS[pick(3)] + timedelta(days=400)
        foreign = list(islice(CronSim(text, start, reverse=True), 20))
        cron, at, own = Cron(text), start, []
        for _ in range(20):
            at = cron.previous_before(at)  # type: ignore[assignment]
            own.append(at)
        assert own == foreign, text
