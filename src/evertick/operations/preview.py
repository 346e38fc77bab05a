"""Looking ahead: the fires to come."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import islice

import msgspec

from evertick.errors import InvalidInput
from evertick.ledger.parsed_rules import blackout_of, load_calendars, rule_of
from evertick.model import Schedule
from evertick.operations.context import Context
from evertick.operations.schedules import schedule, schedules
from evertick.plan.upcoming import Expected, Prospect, upcoming_fires
from evertick.store.base import StoredSchedule
from evertick.text.values import shown
from evertick.when import Calendar, from_us, to_us
from evertick.when.base import UPCOMING_LIMIT
from evertick.when.moment import LATEST

__all__ = ["Planned", "expected_of", "preview"]

_PAGE = 1_000


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A fire to come.

    `at` is when it is to run, jitter aside: `fire_at`, unless it was moved or a blackout holds it. `prospect` is None
    for a fire that just runs, else "skipped" or "moved" (by hand), "held" (a blackout is closed; `at` is
    when it opens) or "dropped" (by its blackout).
    """

    fire_at: datetime
    key: str
    task: str
    at: datetime
    prospect: Prospect | None = None


async def preview(
    context: Context,
    *,
    count: int = 10,
    until: datetime | None = None,
    after: datetime | None = None,
    key: str | None = None,
) -> list[Planned]:
    """The next fires over all schedules that are not paused (or of one), in order."""
    if type(count) is not int or not 0 <= count <= UPCOMING_LIMIT:
        raise InvalidInput(f"count: {shown(count)} is not a whole number from 0 to {UPCOMING_LIMIT}")
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


async def expected_of(context: Context, schedules: Sequence[Schedule]) -> dict[str, Expected]:
    """The inputs of a preview, by key; schedules without a moment to come are left out."""
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
