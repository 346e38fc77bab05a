"""Previews of changes: fires that are added, removed, moved, or unchanged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertick import Calendar, Cron, Every, InvalidInput, NotFound, Refused, Scheduler
from evertick.model import Occurrence
from evertick.plan.change_preview import LISTED, ChangePlan, Comparison, Side, clock_change, compare, plan_change
from evertick.testing import Kit, virtual_time
from evertick.when import When, parse_when, to_us
from evertick.when.moment import DAY, HOUR, MINUTE, from_us

START = datetime(2026, 6, 1, 12, tzinfo=UTC)  # a Monday
NOW = to_us(START)
BERLIN = ZoneInfo("Europe/Berlin")
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Pacific/Apia", "Australia/Lord_Howe"]

moments = st.lists(st.integers(0, 14 * DAY // (10 * MINUTE)), unique=True, max_size=60).map(
    lambda places: sorted(NOW + place * 10 * MINUTE for place in places)
)


# --- comparing two lists


@given(moments, moments, st.sampled_from(ZONES))
@settings(deadline=None)
def test_applying_the_changes_to_the_old_fires_gives_the_new_fires(old: list[int], new: list[int], tz: str) -> None:
    compared = compare(old, new, ZoneInfo(tz))
    gone = {*compared.removes, *(before for before, _ in compared.moves)}
    stays = [at for at in old if at not in gone]
    assert sorted([*stays, *compared.adds, *(after for _, after in compared.moves)]) == new


@given(moments, moments, st.sampled_from(ZONES))
@settings(deadline=None)
def test_every_fire_is_in_one_change(old: list[int], new: list[int], tz: str) -> None:
    compared = compare(old, new, ZoneInfo(tz))
    assert sorted([*compared.stays, *compared.removes, *(at for at, _ in compared.moves)]) == old
    assert sorted([*compared.stays, *compared.adds, *(at for _, at in compared.moves)]) == new
    assert set(compared.stays) == set(old) & set(new)


@given(moments, moments, st.sampled_from(ZONES))
@settings(deadline=None)
def test_moves_stay_on_their_day_and_never_cross(old: list[int], new: list[int], tz: str) -> None:
    zone = ZoneInfo(tz)
    compared = compare(old, new, zone)
    assert all(from_us(at, zone).date() == from_us(to, zone).date() for at, to in compared.moves)
    assert all(first[0] < second[0] and first[1] < second[1] for first, second in pairwise(compared.moves))


@given(moments, moments, st.sampled_from(ZONES))
@settings(deadline=None)
def test_no_day_has_both_an_addition_and_a_removal(old: list[int], new: list[int], tz: str) -> None:
    zone = ZoneInfo(tz)
    compared = compare(old, new, zone)
    days = {from_us(at, zone).date() for at in compared.adds} & {from_us(at, zone).date() for at in compared.removes}
    assert not days, "they would have been a move"


def test_fires_are_paired_with_their_nearest_counterparts() -> None:
    day = to_us(datetime(2026, 6, 2, tzinfo=UTC))
    old, new = [day + 9 * HOUR], [day + hour * HOUR for hour in (0, 6, 10, 18)]
    assert compare(old, new, ZoneInfo("UTC")) == Comparison(
        stays=(), adds=(new[0], new[1], new[3]), removes=(), moves=((old[0], new[2]),)
    )
    assert compare(new, old, ZoneInfo("UTC")).moves == ((new[2], old[0]),)


# --- two rules


def side(rule: str | None, **fields: Any) -> Side:
    bound = None if rule is None else parse_when(rule).bind(key="k", created=NOW)
    return Side(rule=bound, **fields)


def planned(old: str | None, new: str | None, days: int = 14, since: int = NOW, **fields: Any) -> ChangePlan:
    return plan_change("k", "update", side(old), side(new, **fields), since=since, until=since + days * DAY)


RULES = [
    "0 9 * * *",
    "30 2 * * *; tz=Europe/Berlin",
    "every 2h; tz=Europe/Berlin",
    "0 9 * * 1-5; tz=America/New_York",
    "every 45m",
    "0 0 1 * *",
    "*/10 8-17 * * *; tz=Australia/Lord_Howe",
    "once 2026-06-04T00:00:00Z",
]


@given(
    st.sampled_from(RULES),
    st.sampled_from(RULES),
    st.integers(1, 40),
    st.integers(0, 365).map(lambda day: NOW + day * DAY),
)
@settings(deadline=None)
def test_applying_a_preview_to_the_fires_of_the_old_rule_gives_those_of_the_new_rule(
    old: str, new: str, days: int, since: int
) -> None:
    plan = planned(old, new, days, since)
    before, after = (fires(rule, since, to_us(plan.compared_until)) for rule in (old, new))
    gone = {to_us(fire.at) for fire in plan.removes} | {to_us(move.old) for move in plan.moves}
    come = {to_us(fire.at) for fire in plan.adds} | {to_us(move.new) for move in plan.moves}
    assert gone <= before
    assert (before - gone) | come == after
    assert plan.stays == len(before & after)
    if plan.is_complete:
        assert (plan.fires_old, plan.fires_new) == (len(before), len(after))


def fires(rule: str, since: int, until: int) -> set[int]:
    bound: When = parse_when(rule).bind(key="k", created=NOW)
    found, at = set[int](), bound.next_us(since)
    while at is not None and at <= until:
        found.add(at)
        at = bound.next_us(at)
    return found


def test_a_daily_rule_at_another_hour_moves_each_day() -> None:
    plan = planned("0 9 * * *", "0 10 * * *", days=3)
    assert [(move.old.hour, move.new.hour, move.by) for move in plan.moves] == [(9, 10, timedelta(hours=1))] * 3
    assert (plan.stays, plan.adds, plan.removes) == (0, (), ())
    assert plan.words() == "k: 3 fires before, 3 after; 3 move"


def test_doubling_the_frequency_adds_as_many_fires_as_it_keeps() -> None:
    plan = planned("every 1h", "every 30m", days=1)
    assert (plan.stays, len(plan.adds), plan.moves, plan.removes) == (24, 24, (), ())


def test_a_change_of_the_zone_shows_each_fire_in_its_own_zone() -> None:
    midnight = NOW - 12 * HOUR
    plan = planned("0 9 * * *; tz=Europe/Berlin", "0 9 * * *; tz=America/New_York", 2, midnight)
    assert [(move.old.hour, move.new.hour, move.by) for move in plan.moves] == [(9, 9, timedelta(hours=6))] * 2
    assert [str(move.old.tzinfo) for move in plan.moves] == ["Europe/Berlin"] * 2
    assert [str(move.new.tzinfo) for move in plan.moves] == ["America/New_York"] * 2


def test_a_rule_of_every_second_is_counted_and_listed_up_to_a_limit() -> None:
    plan = planned("0 9 * * *", "* * * * * *")
    assert (plan.fires_old, plan.fires_new, plan.is_complete) == (14, 14 * 86_400, False)
    assert len(plan.adds) + plan.stays == LISTED
    assert to_us(plan.compared_until) == NOW + LISTED * 1_000_000
    assert "up to Mon 2026-06-01 12:33:20 UTC" in plan.words()
    both = planned("* * * * * *", "*/2 * * * * *")
    assert (both.stays, len(both.removes), both.is_complete) == (1_000, 1_000, False)


def test_days_with_a_clock_change_are_marked() -> None:
    since = to_us(datetime(2026, 10, 23, 12, tzinfo=UTC))
    plan = planned("0 9 * * *; tz=Europe/Berlin", "0 10 * * *; tz=Europe/Berlin", 4, since)
    assert [(move.new.day, move.clock_change) for move in plan.moves] == [
        (24, ""),
        (25, "the clock goes back 1 hour at 03:00, from UTC+02:00 to UTC+01:00"),
        (26, ""),
        (27, ""),
    ]
    spring = to_us(datetime(2027, 3, 28, 12, tzinfo=UTC))
    assert clock_change(BERLIN, spring) == "the clock goes forward 1 hour at 02:00, from UTC+01:00 to UTC+02:00"
    assert clock_change(BERLIN, spring + DAY) == ""
    assert "30 minutes" in clock_change(
        ZoneInfo("Australia/Lord_Howe"), to_us(datetime(2026, 10, 4, tzinfo=ZoneInfo("Australia/Lord_Howe")))
    )


def test_a_move_across_a_clock_change_shows_its_real_length() -> None:
    since = to_us(datetime(2027, 3, 27, 12, tzinfo=UTC))
    plan = planned("0 1 * * *; tz=Europe/Berlin", "0 4 * * *; tz=Europe/Berlin", 1, since)
    [move] = plan.moves
    assert (move.old.hour, move.new.hour) == (1, 4)
    assert to_us(move.new) - to_us(move.old) == 2 * HOUR


def test_only_the_remaining_fires_of_a_bounded_rule_are_compared() -> None:
    plan = planned("0 9 * * *", "0 9 * * *", left=3)
    assert (plan.fires_old, plan.fires_new, plan.stays, len(plan.removes)) == (14, 3, 3, 11)
    assert planned("0 9 * * *", "0 9 * * *", left=0).fires_new == 0


def test_overrides_are_part_of_the_comparison() -> None:
    nine = to_us(datetime(2026, 6, 2, 9, tzinfo=UTC))
    decisions = (
        Occurrence(fire_at=nine, kind="skip"),
        Occurrence(fire_at=nine + DAY, kind="move", to=nine + DAY + HOUR),
    )
    plan = planned("0 9 * * *", "0 9 * * *", days=4, occurrences=decisions)
    assert [fire.at.day for fire in plan.removes] == [2]
    assert [(move.old.hour, move.new.hour) for move in plan.moves] == [(9, 10)]
    assert plan.stays == 2


def test_the_changes_are_listed_in_order_of_time() -> None:
    lines = planned("0 9 * * *", "0 10 * * 2-4", days=4).lines()
    assert lines == [
        "k: cron 0 9 * * *; tz=UTC -> cron 0 10 * * 2-4; tz=UTC",
        "Mon 2026-06-01 12:00 UTC to Fri 2026-06-05 12:00 UTC",
        "k: 4 fires before, 3 after; 3 move, 1 is removed",
        "  ~ Tue 2026-06-02 09:00 UTC -> Tue 2026-06-02 10:00 UTC",
        "  ~ Wed 2026-06-03 09:00 UTC -> Wed 2026-06-03 10:00 UTC",
        "  ~ Thu 2026-06-04 09:00 UTC -> Thu 2026-06-04 10:00 UTC",
        "  - Fri 2026-06-05 09:00 UTC",
    ]
    assert planned("0 9 * * *", "0 10 * * 2-4", days=4).lines(most=1)[-1] == "  … and 3 more"


def test_days_with_a_clock_change_are_shown_at_any_distance() -> None:
    since = to_us(datetime(2026, 12, 1, 12, tzinfo=UTC))
    plan = planned("0 9 * * *; tz=Europe/Berlin", "0 10 * * *; tz=Europe/Berlin", 120, since)
    assert plan.words() == (
        "k: 120 fires before, 120 after; 120 move; 1 of them on a day with a clock change: Sun 2027-03-28"
    )
    fires = plan.lines()[3:]
    assert len(fires) == 50 + 3
    assert fires[50:] == [
        "  … and 66 more",
        "  ~ Sun 2027-03-28 09:00 CEST -> Sun 2027-03-28 10:00 CEST "
        "(the clock goes forward 1 hour at 02:00, from UTC+01:00 to UTC+02:00)",
        "  … and 3 more",
    ]


def test_a_day_with_a_clock_change_is_complete_for_an_hourly_rule_and_shortened_for_a_denser_one() -> None:
    since = to_us(datetime(2026, 10, 22, 12, tzinfo=UTC))
    hourly = planned("0 * * * *; tz=Europe/Berlin", "30 * * * *; tz=Europe/Berlin", 7, since)
    assert "25 of them on a day with a clock change: Sun 2026-10-25" in hourly.words()
    assert sum("the clock goes back" in line for line in hourly.lines(most=0)) == 25
    dense = planned("*/10 * * * *; tz=Europe/Berlin", "5-55/10 * * * *; tz=Europe/Berlin", 7, since)
    assert "150 of them on a day with a clock change" in dense.words()
    assert sum("the clock goes back" in line for line in dense.lines(most=0)) == 25


def test_each_day_with_a_clock_change_is_named() -> None:
    plan = planned("0 9 * * *; tz=Europe/Berlin", "0 10 * * *; tz=Europe/Berlin", 366)
    assert plan.words().endswith("; 2 of them on days with a clock change: Sun 2026-10-25, Sun 2027-03-28")
    assert "clock change" not in planned("0 9 * * *", "0 10 * * *", 366).words()


def test_a_clock_change_after_the_compared_range_is_a_note() -> None:
    plan = planned("*/10 * * * *; tz=Europe/Berlin", "5-55/10 * * * *; tz=Europe/Berlin", 366)
    assert not plan.is_complete
    assert plan.notes == (
        "after what is compared, on Sun 2026-10-25, the clock goes back 1 hour at 03:00, from UTC+02:00 to UTC+01:00",
        "after what is compared, on Sun 2027-03-28, "
        "the clock goes forward 1 hour at 02:00, from UTC+01:00 to UTC+02:00",
    )


def test_a_change_that_changes_no_fire_is_empty() -> None:
    assert planned("0 9 * * *", "0 9 * * *").is_empty
    assert not planned("0 9 * * *", "0 10 * * *").is_empty
    assert planned(None, None).words() == "k: 0 fires before, 0 after; none"


# --- previews of the scheduler


class World:
    def __init__(self, **settings: Any) -> None:
        self.scheduler = Scheduler("sqlite://", app="shop", **settings)
        self.kit: Kit

        @self.scheduler.task
        async def job(amount: int = 1) -> None: ...


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    async with virtual_time(made.scheduler, start=START) as made.kit:
        yield made


async def add(world: World, when: When | str = "0 9 * * *", **options: Any) -> None:
    await world.scheduler.add(key="k", when=when, task="job", **options)


async def test_a_preview_writes_nothing_and_shows_the_effect_of_the_update(world: World) -> None:
    await add(world)
    before = await world.scheduler.schedule("k")
    plan = await world.scheduler.preview_change("k", "weekdays at 10:00", priority=5)
    assert await world.scheduler.schedule("k") == before
    assert [(option.name, option.old, option.new) for option in plan.options] == [("priority", "0", "5")]
    assert (len(plan.moves), len(plan.removes)) == (10, 4)
    assert plan.when_new is not None
    await world.scheduler.update("k", when=plan.when_new, priority=5)
    await world.kit.advance("14d")
    fired = [run.fire_at for run in world.kit.runs("k")]
    assert fired == [move.new for move in plan.moves]


async def test_a_preview_can_change_only_the_zone(world: World) -> None:
    await add(world, Cron("0 9 * * *", tz="UTC", jitter="30s"))
    plan = await world.scheduler.preview_change("k", tz="Europe/Berlin", days=2)
    assert plan.when_new == "cron 0 9 * * *; tz=Europe/Berlin; jitter=30s"
    assert [move.by for move in plan.moves] == [timedelta(hours=-2)] * 2
    assert "jitter delays the fires" in " ".join(plan.notes)
    business = Calendar.weekdays("business")
    both = await world.scheduler.preview_change("k", Cron("0 9 * * *", calendar=business), tz="Europe/Berlin", days=7)
    assert both.when_new == "cron 0 9 * * *; tz=Europe/Berlin; calendar=business"
    assert (len(both.moves), len(both.removes)) == (5, 2)
    with pytest.raises(InvalidInput, match="is not a time zone"):
        await world.scheduler.preview_change("k", tz="UTC; max_fires=1")


async def test_a_preview_can_change_only_the_calendar(world: World) -> None:
    await add(world)
    plan = await world.scheduler.preview_change("k", calendar=Calendar.weekdays("business"))
    assert {fire.at.date() for fire in plan.removes} == {date(2026, 6, day) for day in (6, 7, 13, 14)}
    assert await world.scheduler.calendars() == []
    with pytest.raises(InvalidInput, match="calendar 'gone' of 'k' is not defined"):
        await world.scheduler.preview_change("k", calendar="gone")


async def test_a_preview_of_a_blackout_shows_the_removed_fires(world: World) -> None:
    await add(world)
    closed = Calendar.blackout("move", datetime(2026, 6, 3, tzinfo=UTC), datetime(2026, 6, 5, tzinfo=UTC))
    given = await world.scheduler.preview_change("k", blackout=closed)
    assert [fire.at.day for fire in given.removes] == [3, 4]
    with pytest.raises(InvalidInput, match="the blackout 'move' of 'k' is a calendar that is not defined"):
        await world.scheduler.preview_change("k", blackout="move")
    await world.scheduler.set_calendar(closed)
    plan = await world.scheduler.preview_change("k", blackout="move")
    assert [fire.at.day for fire in plan.removes] == [3, 4]
    held = await world.scheduler.preview_change("k", blackout="move", blackout_fate="all")
    assert "moments in blackout 'move' run when it ends" in " ".join(held.notes)
    await world.scheduler.update("k", blackout="move")
    [wider] = await world.scheduler.preview_calendar(
        Calendar.blackout("move", datetime(2026, 6, 3, tzinfo=UTC), datetime(2026, 6, 6, tzinfo=UTC))
    )
    assert [fire.at.day for fire in wider.removes] == [5]


async def test_a_pause_and_a_removal_have_previews(world: World) -> None:
    await add(world)
    paused = await world.scheduler.preview_change("k", pause=True, days=7)
    assert (paused.kind, paused.when_new, len(paused.removes)) == ("pause", None, 7)
    assert paused.lines()[0].endswith("-> paused")
    until = datetime(2026, 6, 4, 9, tzinfo=UTC)
    for_a_while = await world.scheduler.preview_change("k", pause=True, until=until, days=7)
    assert ([fire.at.day for fire in for_a_while.removes], for_a_while.stays) == ([2, 3], 5)
    assert for_a_while.paused_until == until
    removed = await world.scheduler.preview_change("k", remove=True, days=7)
    assert (removed.kind, removed.fires_new, removed.lines()[0][-7:]) == ("remove", 0, "removed")
    assert not (await world.scheduler.schedule("k")).is_paused


async def test_a_preview_of_a_paused_schedule_shows_the_pause(world: World) -> None:
    await add(world)
    await world.scheduler.pause("k")
    plan = await world.scheduler.preview_change("k", "0 10 * * *")
    assert len(plan.moves) == 14
    assert plan.notes[0].startswith("it is paused: these are the fires it would have if it were resumed now")
    await world.scheduler.pause("k", until=datetime(2026, 6, 8, tzinfo=UTC))
    until = await world.scheduler.preview_change("k", "0 10 * * *")
    assert (until.moves[0].new.day, len(until.moves)) == (8, 8)
    assert until.notes == ("it is paused until 2026-06-08T00:00:00Z",)


async def test_a_preview_of_an_after_end_rule_has_one_fire(world: World) -> None:
    await add(world)
    plan = await world.scheduler.preview_change("k", Every("2h", after="end"))
    assert plan.fires_new == 1
    assert "only its next fire is known" in " ".join(plan.notes)


async def test_the_preview_of_removing_a_declared_schedule_is_refused() -> None:
    scheduler = Scheduler("sqlite://", app="shop")

    @scheduler.cron("0 9 * * *")
    async def job() -> None: ...

    async with virtual_time(scheduler, start=START):
        plan = await scheduler.preview_change("job", remove=True)
    assert "so removing it is refused: pause it instead" in plan.notes[0]


async def test_a_preview_of_an_invalid_change_is_refused(world: World) -> None:
    await add(world)
    with pytest.raises(InvalidInput, match="different changes; preview one at a time"):
        await world.scheduler.preview_change("k", "every 1h", pause=True)
    with pytest.raises(InvalidInput, match="goes with pause=True"):
        await world.scheduler.preview_change("k", until=START + timedelta(days=1))
    with pytest.raises(InvalidInput, match="has passed"):
        await world.scheduler.preview_change("k", pause=True, until=START)
    with pytest.raises(InvalidInput, match="days: 0 must be a whole number from 1 to 366"):
        await world.scheduler.preview_change("k", days=0)
    with pytest.raises(InvalidInput, match="colour: no such option of a schedule"):
        await world.scheduler.preview_change("k", colour="red")  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match="amount"):
        await world.scheduler.preview_change("k", args={"amount": "much"})
    with pytest.raises(InvalidInput, match="5 is not a Calendar"):
        await world.scheduler.preview_change("k", calendar=5)  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        await world.scheduler.preview_change("gone", "every 1h")


async def test_a_preview_of_a_rule_outside_the_limits_of_the_scheduler_is_refused() -> None:
    limited = World(min_interval="1m")
    async with virtual_time(limited.scheduler, start=START):
        await add(limited)
        with pytest.raises(Refused, match="min_interval"):
            await limited.scheduler.preview_change("k", "every 1s")


def test_a_preview_has_a_sync_form() -> None:
    scheduler = Scheduler("sqlite://", concurrency=0)
    scheduler.sync.add(key="k", when="0 9 * * *", task="job")
    # On the first and last day only one of the two moments may be in the range.
    assert len(scheduler.sync.preview_change("k", "0 10 * * *", days=5).moves) in (4, 5)
    scheduler.sync.close()
