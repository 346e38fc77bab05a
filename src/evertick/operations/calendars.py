"""Named calendars, which the schedules of an app share."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from evertick.errors import InvalidInput, NotFound, Refused
from evertick.explain.all_schedules import survey
from evertick.ledger.parsed_rules import load_calendars
from evertick.operations.context import Context, checked
from evertick.text.values import shown
from evertick.when import Calendar
from evertick.when.base import check_name

__all__ = [
    "calendar",
    "calendar_users",
    "calendar_zones",
    "calendars",
    "check_calendar",
    "remove_calendar",
    "set_calendar",
]

_USERS_MOST = 100_000
_USERS_SHOWN = 10
_ZONES_ASKED = 1_000


def check_calendar(calendar: object) -> None:
    if not isinstance(calendar, Calendar):
        raise InvalidInput(
            f"calendar: {shown(calendar)} is not a Calendar",
            setting="calendar",
            value=shown(calendar),
            fix="pass Calendar(name, ...)",
        )


def _check_name(name: object) -> None:
    check_name(name, what="calendar")


@checked(calendar=check_calendar)
async def set_calendar(context: Context, calendar: Calendar) -> None:
    """Define or change a named calendar. The schedules that use it follow it from now on."""
    await context.editor().put_calendar(calendar)
    context.wake_fires()


async def calendars(context: Context) -> list[Calendar]:
    """The named calendars, by name."""
    return list((await load_calendars(context.store, context.app)).values())


@checked(name=_check_name)
async def calendar(context: Context, name: str) -> Calendar:
    """One calendar. Raises NotFound."""
    found = (await load_calendars(context.store, context.app)).get(name)
    if found is None:
        raise NotFound(f"there is no calendar {name!r} in app {context.app!r}", setting="calendar", value=name)
    return found


@checked(name=_check_name)
async def calendar_users(context: Context, name: str) -> list[str]:
    """The keys of the schedules that use a calendar, in their rule or as their blackout. Raises NotFound."""
    await calendar(context, name)
    return await context.store.calendar_users(context.app, name, limit=_USERS_MOST)


async def calendar_zones(context: Context, name: str) -> list[ZoneInfo]:
    """The zones of the rules that use a calendar, by name; of many rules, only the first are read."""
    users = await calendar_users(context, name)
    if not users:  # for `survey`, no keys means all schedules
        return []
    found = {}
    async for each in survey(context.store, context.app, keys=users[:_ZONES_ASKED]):
        if each.rule is not None:
            found[each.rule.zone.key] = each.rule.zone
    return [zone for _, zone in sorted(found.items())]


@checked(name=_check_name)
async def remove_calendar(context: Context, name: str) -> None:
    """Remove a calendar. Refused while a schedule uses it."""
    await calendar(context, name)
    if await context.store.remove_calendar(context.app, name):
        return
    users = await context.store.calendar_users(context.app, name, limit=_USERS_SHOWN + 1)
    if not users:
        raise NotFound(f"calendar {name!r} of app {context.app!r} was removed meanwhile")
    named = ", ".join(map(repr, users[:_USERS_SHOWN])) + (" and others" if len(users) > _USERS_SHOWN else "")
    raise Refused(
        f"calendar {name!r} is used by {named}",
        setting="calendar",
        value=name,
        fix="change or remove these schedules first",
    )
