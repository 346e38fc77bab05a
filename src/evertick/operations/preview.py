"""The next fires, and the forecast of the load of the next days."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from evertick.definition.settings import check_key, check_labels
from evertick.errors import InvalidInput
from evertick.explain.all_schedules import survey
from evertick.ledger.editor import no_schedule
from evertick.ledger.parsed_rules import blackout_of, load_calendars, rule_of
from evertick.model import Schedule
from evertick.operations.context import Context, checked
from evertick.operations.schedules import schedule, schedules
from evertick.plan.forecast import DAYS_MAX, Forecast
from evertick.plan.forecast import Expected as Countable
from evertick.plan.forecast import forecast as count_fires
from evertick.plan.spread import Suggestion, suggestions
from evertick.plan.upcoming import Expected, Prospect, upcoming_fires
from evertick.store.base import StoredSchedule
from evertick.text.values import shown
from evertick.when import Calendar, from_us, to_us
from evertick.when.base import UPCOMING_LIMIT
from evertick.when.moment import LATEST
from evertick.when.zone import zone_named

__all__ = ["AppForecast", "Planned", "expected_of", "forecast", "preview"]

_PAGE = 1_000


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A future fire.

    `at` is when it runs, without jitter: `fire_at`, unless it was moved or a blackout holds it. `prospect` is None for
    a normal fire, else "skipped" or "moved" (by hand), "held" (by a blackout; `at` is when that opens) or "dropped" (by
    a blackout).
    """

    fire_at: datetime
    key: str
    task: str
    at: datetime
    prospect: Prospect | None = None


class AppForecast(Forecast, frozen=True, kw_only=True):
    """The counts of future fires, and rules that would spread those at the same instant."""

    # Counted schedules: without paused and finished ones.
    schedules: int
    suggestions: list[Suggestion]
    # By key, why the rule of a schedule cannot be parsed. Such a schedule is left out.
    unreadable: dict[str, str]


def _check_count(count: Any) -> None:
    if type(count) is not int or not 0 <= count <= UPCOMING_LIMIT:
        problem = f"count: {shown(count)} is not a whole number from 0 to {UPCOMING_LIMIT}"
        raise InvalidInput(problem, setting="count", value=shown(count))


def _check_days(days: Any) -> None:
    if type(days) is not int or not 1 <= days <= DAYS_MAX:
        problem = f"days: {shown(days)} is not a whole number from 1 to {DAYS_MAX}"
        raise InvalidInput(problem, setting="days", value=shown(days))


def _zone_given(tz: ZoneInfo | str) -> ZoneInfo:
    return tz if isinstance(tz, ZoneInfo) else zone_named(tz)


def _checked_keys(keys: Sequence[str]) -> tuple[str, ...]:
    if isinstance(keys, str):
        raise InvalidInput(
            f"keys: {shown(keys)} is one text",
            setting="keys",
            value=shown(keys),
            fix=f"pass a list, e.g. keys=[{shown(keys)}]",
        )
    return tuple(check_key(key) for key in keys)


@checked(count=_check_count, until=to_us, after=to_us, key=check_key)
async def preview(
    context: Context,
    *,
    count: int = 10,
    until: datetime | None = None,
    after: datetime | None = None,
    key: str | None = None,
) -> list[Planned]:
    """The next fires of all active schedules, or of one schedule, in order."""
    chosen = [await schedule(context, key)] if key is not None else await schedules(context, is_paused=False)
    expected = await expected_of(context, chosen)
    tasks = {each.key: each.task for each in chosen}
    since = await context.store.now() if after is None else to_us(after)
    found = upcoming_fires(expected.values(), since, LATEST if until is None else to_us(until))
    zones = {key: each.rule.zone for key, each in expected.items()}
    return [
        Planned(
            fire_at=from_us(each.fire_at, zones[each.key]),
            key=each.key,
            task=tasks[each.key],
            at=from_us(each.at, zones[each.key]),
            prospect=each.prospect,
        )
        for each in islice(found, count)
    ]


@checked(days=_check_days, keys=_checked_keys, tz=_zone_given)
async def forecast(
    context: Context,
    *,
    days: int = 7,
    keys: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    tz: ZoneInfo | str | None = None,
    on_read: Callable[[int], None] | None = None,
) -> AppForecast:
    """The fires of the next days, today included: per hour, in the busiest minutes, and at the same instant.

    Of all active schedules, or of those with these keys and labels. `tz`: the zone of the hours and days; None: that of
    this machine. `on_read` gets the number of schedules read so far. Raises NotFound.
    """
    zone = None if tz is None else _zone_given(tz)
    wanted, found = check_labels(labels or {}), set[str]()
    expected, unreadable = dict[str, Countable](), dict[str, str]()
    async for each in survey(context.store, context.app, keys=keys, labels=wanted):
        found.add(each.schedule.key)
        if on_read is not None:
            on_read(len(found))
        if each.rule_error is not None:
            unreadable[each.schedule.key] = each.rule_error
        if each.expected is not None:
            expected[each.schedule.key] = each.expected
    for key in keys:
        if key not in found and not wanted:
            raise no_schedule(context.app, key)
    since = await context.store.now()
    counted = count_fires(expected, since, days, lambda us: from_us(us).astimezone(zone))
    return AppForecast(
        **msgspec.structs.asdict(counted),
        schedules=len(expected),
        suggestions=suggestions(counted.collisions, expected, since),
        unreadable=unreadable,
    )


async def expected_of(context: Context, schedules: Sequence[Schedule]) -> dict[str, Expected]:
    """The inputs of a preview, by key; schedules without a future moment are left out."""
    calendars = await load_calendars(context.store, context.app)
    expected = {}
    for start in range(0, len(schedules), _PAGE):
        keys = [schedule.key for schedule in schedules[start : start + _PAGE]]
        for stored in await context.store.stored_schedules(context.app, keys=keys):
            if stored.fire_at is not None or stored.occurrences:
                expected[stored.key] = _expected(stored, calendars)
    return expected


def _expected(stored: StoredSchedule, calendars: dict[str, Calendar]) -> Expected:
    rule = rule_of(stored, calendars)
    most = rule.bounds.max_fires
    return Expected(
        key=stored.key,
        rule=rule,
        occurrences=stored.occurrences,
        blackout=blackout_of(stored, rule, calendars),
        blackout_fate=stored.definition.blackout_fate,
        left=None if most is None else most - stored.fires,
    )
