"""A scheduler can refuse rules that fire too often or are not on its list."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from evertick import Calendar, Cron, Every, InvalidSetting, Once, Refused, Scheduler
from evertick.model import Definition
from evertick.plan.allowed_rules import ScheduleLimits, check_allowed, check_rule
from evertick.when import When, parse_when, to_us
from evertick.when.duration import duration_us

NOW = to_us(datetime(2026, 6, 1, 12, 7, tzinfo=UTC))
BERLIN = "Europe/Berlin"


def check(rule: When | str, *, least: str | None = None, allowed: list[str] | None = None, tz: str = "UTC") -> None:
    limits = ScheduleLimits(
        min_interval=None if least is None else duration_us(least),
        allowed=None if allowed is None else check_allowed(allowed),
        tz=tz,
    )
    given = parse_when(rule) if isinstance(rule, str) else rule
    limits.check("k", given.bind(key="k", created=NOW, tz=tz), NOW)


def refused(rule: When | str, **limits: Any) -> str:
    with pytest.raises(Refused) as error:
        check(rule, **limits)
    return str(error.value)


# --- shortest interval


def test_a_rule_that_fires_too_often_is_refused_with_both_numbers() -> None:
    expected = refused("every 5s", least="10s")
    assert re.search(r"'every 5s; tz=UTC' fires 5s apart .* min_interval is 10s; choose a longer interval", expected)


@pytest.mark.parametrize("rule", ["every 10s", "every 15m", "0 * * * *", "@daily", "*/10 * * * * *"])
def test_a_rule_that_is_slow_enough_is_accepted(rule: str) -> None:
    check(rule, least="10s")


@pytest.mark.parametrize(
    "rule",
    [
        "every 5s; jitter=1m",
        "every 1s; start=2030-01-01T00:00:00Z",
        "0-1 0 1 1 *",
        "0,30 9 * * *",
        "H H/1 * * *; jitter=30m",
        "every 10m; after=end",
    ],
)
def test_jitter_a_late_start_and_a_rare_burst_do_not_hide_a_short_interval(rule: str) -> None:
    refused(rule, least="2h")


def test_a_one_shot_never_fires_too_often() -> None:
    check(Once(datetime(2026, 7, 1, tzinfo=UTC)), least="1d")
    check("once +1s", least="1d")
    check("every 1s; max_fires=1", least="1d")


def test_a_rule_that_is_too_dense_only_at_a_clock_change_is_refused() -> None:
    # In the night of 28 March 2027 the clock goes from 2 to 3: two hours by the clock are one in real time.
    expected = refused(f"every 2h; tz={BERLIN}", least="2h")
    assert "fires 1h apart (2027-03-28T01:00:00Z and 2027-03-28T02:00:00Z)" in expected
    check("every 2h; tz=UTC", least="2h")
    # 02:30 does not exist that night and fires at 03:00, half an hour before its neighbour.
    assert "fires 30m apart" in refused(f"30 2,3 * * *; tz={BERLIN}", least="1h")
    check(f"30 2,3 * * *; tz={BERLIN}; dst=skip", least="1h")


def test_h_is_resolved_with_the_key_before_the_check() -> None:
    check("H * * * *", least="1h")
    refused("H/30 * * * *", least="1h")


# --- allowed rules


@pytest.mark.parametrize(
    ("given", "listed"),
    [
        ("0 * * * *", "@hourly"),
        ("every 15m", "every 15 minutes"),
        ("weekdays at 18:30", "30 18 * * mon-fri"),
        ("H * * * *", "H * * * *"),
        ("0 9 * * *; tz=UTC", "0 9 * * *"),
        ("0 9 * * *; jitter=30s; max_fires=3", "0 9 * * *"),
        ("every 15m; since=start", "every 15m; since=start"),
        ("once +10m", "once +10m"),
        ("once +10m", "once"),
    ],
)
def test_an_allowed_rule_is_accepted_in_every_spelling(given: str, listed: str) -> None:
    check(given, allowed=["5 5 5 5 *", listed])


@pytest.mark.parametrize(
    ("given", "listed"),
    [
        ("1 * * * *", "0 * * * *"),
        (f"0 9 * * *; tz={BERLIN}", "0 9 * * *"),
        ("every 15m; since=start", "every 15m"),
        ("0 9 * * *; dst=skip", "0 9 * * *"),
        ("once +10m", "0 9 * * *"),
        ("H * * * *", "0 * * * *"),
    ],
)
def test_a_rule_that_is_not_allowed_is_refused(given: str, listed: str) -> None:
    expected = refused(given, allowed=[listed])
    assert (
        f"is not among allow_schedules ('{parse_when(listed).text}'); choose one of them, or add it there" in expected
    )


def test_allowed_rules_use_the_zone_of_the_scheduler() -> None:
    check(f"0 9 * * *; tz={BERLIN}", allowed=["0 9 * * *"], tz=BERLIN)
    refused("0 9 * * *; tz=UTC", allowed=["0 9 * * *"], tz=BERLIN)


def test_a_long_list_of_allowed_rules_is_shortened_in_the_error() -> None:
    expected = refused("every 1h", allowed=[f"{minute} * * * *" for minute in range(30)])
    assert "and 20 more" in expected


def test_an_empty_list_of_allowed_rules_refuses_everything() -> None:
    assert "allow_schedules (none)" in refused("every 1h", allowed=[])


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("0 * * * *", r"'0 \* \* \* \*' is not a list of rules"),
        (["not a rule"], r"allow_schedules: "),
        ([5], r"allow_schedules: 5 is not the text of a rule"),
        (["0 9 * * *; calendar=b"], r"names a calendar; leave it out"),
        (["0 9 * * *"] * 1001, r"1001 rules are too many"),
    ],
)
def test_an_invalid_list_of_allowed_rules_is_refused(listed: Any, expected: str) -> None:
    with pytest.raises(InvalidSetting, match=expected):
        Scheduler("sqlite://", allow_schedules=listed)


def test_an_invalid_shortest_interval_is_refused() -> None:
    for wrong in ("0s", "11y", -1):
        with pytest.raises(ValueError, match="min_interval"):
            Scheduler("sqlite://", min_interval=wrong)


# --- calls that check the limits


async def test_adding_a_rule_outside_the_limits_writes_nothing() -> None:
    scheduler = Scheduler("sqlite://", concurrency=0, min_interval="1m")
    closed = Calendar("closed", exclude=["sat,sun"])
    with pytest.raises(Refused, match=r"schedule 'fast': .* min_interval is 1m"):
        await scheduler.add_many(
            [
                {"key": "slow", "when": "every 1h", "task": "job"},
                {"key": "fast", "when": Every("1s", calendar=closed), "task": "job"},
            ]
        )
    assert await scheduler.schedules() == []
    assert await scheduler.calendars() == []
    await scheduler.add(key="slow", when="every 1h", task="job")
    await scheduler.close()


async def test_updates_of_the_rule_are_checked_and_other_updates_are_not() -> None:
    scheduler = Scheduler("sqlite://", concurrency=0)
    await scheduler.add(key="k", when="every 1s", task="job")
    scheduler.runtime.settings = Scheduler("sqlite://", concurrency=0, min_interval="1m").settings
    with pytest.raises(Refused, match="min_interval"):
        await scheduler.update("k", when="every 2s")
    changed = await scheduler.update("k", priority=5)
    assert (changed.when, changed.priority) == ("every 1s; tz=UTC", 5)
    await scheduler.pause("k")
    await scheduler.resume("k")
    await scheduler.update("k", when="every 5m")
    await scheduler.close()


def test_declarations_outside_the_limits_are_refused_where_they_are_written() -> None:
    scheduler = Scheduler("sqlite://", min_interval="1m", allow_schedules=["every 1s", "0 * * * *"])
    with pytest.raises(Refused, match=r"'job': .*min_interval"):

        @scheduler.every("1s")
        def job() -> None: ...

    with pytest.raises(Refused, match="allow_schedules"):

        @scheduler.cron("5 * * * *")
        def other() -> None: ...

    @scheduler.cron("0 * * * *")
    def fine() -> None: ...

    assert set(scheduler.runtime.tasks) == {"fine"}, "a refused declaration leaves no task behind"


async def test_a_declaration_with_a_stored_calendar_is_checked_at_the_start() -> None:
    scheduler = Scheduler("sqlite://", min_interval="1m")
    await scheduler.set_calendar(Calendar.weekdays("business"))

    @scheduler.when(Cron("* * * * * *", calendar="business"))
    def job() -> None: ...

    with pytest.raises(Refused, match="min_interval is 1m"):
        async with scheduler:
            pass


async def test_a_declared_rule_anchored_to_its_first_start_is_checked_as_written(tmp_path: Path) -> None:
    def program(priority: int) -> Scheduler:
        allowed = ["once +10m", "@daily; anchored=true"]
        scheduler = Scheduler(f"sqlite:///{tmp_path}/jobs.db", allow_schedules=allowed)

        @scheduler.cron("@daily", anchored=True, priority=priority)
        def daily() -> None: ...

        @scheduler.once(after="10m", priority=priority)
        def once() -> None: ...

        return scheduler

    async with program(1) as first:
        before = [schedule.when for schedule in await first.schedules()]
    async with program(2) as second:
        after = await second.schedules()
    assert [schedule.when for schedule in after] == before, "both keep the moment of their first start"
    assert [schedule.priority for schedule in after] == [2, 2]


async def test_without_limits_every_rule_is_accepted() -> None:
    scheduler = Scheduler("sqlite://", concurrency=0)
    await scheduler.add(key="k", when="every 1ms", task="job")
    assert (await scheduler.schedule("k")).when.startswith("every 1ms")
    await scheduler.close()


# --- conflicts with other options


def fitting(rule: When | str, **options: Any) -> None:
    given = parse_when(rule) if isinstance(rule, str) else rule
    check_rule(Definition(task="job", when=given.text, **options), given)


def test_catch_up_all_is_refused_for_moments_that_come_faster_than_they_can_be_caught_up() -> None:
    for options in ({"catch_up": "all"}, {"blackout": "freeze", "blackout_fate": "all"}):
        fitting(Every("100ms"), **options)
        fitting(Every("50ms", after="end"), **options)
        with pytest.raises(
            InvalidSetting, match=r"'all' is not possible with 'every 50ms.*below 100ms .*choose 'latest'"
        ):
            fitting(Every("50ms"), **options)
    fitting(Every("50ms"), blackout_fate="all")


async def test_every_way_to_write_a_schedule_refuses_too_fast_catch_up(tmp_path: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path}/l.db", concurrency=0)
    fast = Every("50ms")

    @scheduler.task
    def job() -> None: ...

    with pytest.raises(InvalidSetting, match="can never catch up"):
        scheduler.every("50ms", key="declared", name="declared", catch_up="all")(lambda: None)
    async with scheduler:
        with pytest.raises(InvalidSetting, match="can never catch up"):
            await scheduler.add(key="a", when=fast, task="job", catch_up="all")
        await scheduler.add(key="b", when=fast, task="job")
        await scheduler.add(key="c", when="every 1s", task="job", catch_up="all")
        with pytest.raises(InvalidSetting, match="can never catch up"):
            await scheduler.update("b", catch_up="all")
        with pytest.raises(InvalidSetting, match="can never catch up"):
            await scheduler.update("c", when=fast)
