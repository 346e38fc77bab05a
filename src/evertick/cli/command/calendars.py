"""The group calendar: named sets of open days and hours that the schedules of an app share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from evertick.cli.database import on_store
from evertick.cli.show.output import Column, as_json_option, ask, hint, print_facts, print_json, print_table, say
from evertick.cli.show.plan import DAYS, checked_days, days_option, dry_run_option, plan_data, say_nothing_changed
from evertick.cli.show.words import now, stamp
from evertick.errors import InvalidInput, NotFound, Refused
from evertick.operations.calendars import calendar_zones
from evertick.plan.change_preview import ChangePlan
from evertick.scheduler.operation import call
from evertick.scheduler.scheduler import Scheduler
from evertick.text.regular_file import read_regular
from evertick.when import Calendar, from_us, to_us
from evertick.when.moment import DAY
from evertick.when.public_holidays import holiday_calendar

__all__ = ["calendar"]

_ENTRIES_SHOWN = 20
_FILE_MAX_BYTES = 4 * 1024 * 1024
_USERS_SHOWN = 5
_LOOK_AHEAD = 366 * DAY


@click.group(no_args_is_help=True)
def calendar() -> None:
    """Manage calendars: list, show, set, remove, import-holidays.

    \b
    Example:
      evertick calendar list
      evertick calendar set business --include mon-fri
    """


@calendar.command("list")
@as_json_option
@on_store
async def list_calendars(scheduler: Scheduler, as_json: bool) -> None:
    """List the calendars, and which schedules use them.

    \b
    Example:
      evertick calendar list
    """
    found = await scheduler.calendars()
    users = {each.name: await scheduler.calendar_users(each.name) for each in found}
    if as_json:
        print_json([{**_data(each), "users": users[each.name]} for each in found])
    elif not found:
        hint(f"there are no calendars in app {scheduler.app!r}; create one with `evertick calendar set`")
    else:
        columns = [
            Column(title="NAME"),
            Column(title="ZONE"),
            Column(title="INCLUDE", is_cut=True, is_whole_below=True),
            Column(title="EXCLUDE", is_cut=True, is_whole_below=True),
            Column(title="USED BY", is_cut=True, is_whole_below=True),
        ]
        print_table(columns, [_row(each, users[each.name]) for each in found])


def _row(each: Calendar, users: Sequence[str]) -> list[str]:
    return [each.name, each.tz or "-", _some(each.include or ["always"]), _some(each.exclude), _some(users)]


def _some(entries: Sequence[str]) -> str:
    more = len(entries) - _USERS_SHOWN
    return ", ".join(entries[:_USERS_SHOWN]) + (f" and {more} more" if more > 0 else "")


@calendar.command()
@click.argument("name")
@as_json_option
@on_store
async def show(scheduler: Scheduler, name: str, as_json: bool) -> None:
    """Show one calendar: its entries, its schedules, and whether it is open.

    \b
    Example:
      evertick calendar show business
    """
    found, users = await scheduler.calendar(name), await scheduler.calendar_users(name)
    if as_json:
        print_json({**_data(found), "users": users})
        return
    print_facts(
        [
            ("Calendar", found.name),
            ("Zone", found.tz or "that of each rule"),
            ("Include", _listed(found.include or ("always",))),
            ("Exclude", _listed(found.exclude)),
            ("Now", await _states(scheduler, found)),
            ("Used by", _listed(users) or "no schedule"),
        ]
    )


async def _states(scheduler: Scheduler, found: Calendar) -> list[str]:
    """Whether it is open now. A calendar without a zone has that of each rule that uses it."""
    if found.tz is not None:
        return [_state_words(found)]
    zones = await call(scheduler, calendar_zones, found.name)
    if not zones:
        return [f"{_state_words(found)} in UTC; a rule that uses it sets its zone"]
    return [f"{_state_words(found.in_zone(zone))} in {zone.key}" for zone in zones][:_ENTRIES_SHOWN]


def _state_words(found: Calendar) -> str:
    """Whether it is open now, and until when."""
    moment = to_us(now())
    if not found.permits(moment):
        opens = found.next_open(moment)
        return "closed, and never opens again" if opens is None else f"closed until {stamp(from_us(opens))}"
    closes = found.open_until(moment, moment + _LOOK_AHEAD)
    return "open" if closes >= moment + _LOOK_AHEAD else f"open until {stamp(from_us(closes))}"


def _listed(entries: Sequence[str]) -> list[str]:
    more = len(entries) - _ENTRIES_SHOWN
    return [*entries[:_ENTRIES_SHOWN], *([f"and {more} more"] if more > 0 else [])]


@calendar.command("set")
@click.argument("name")
@click.option("--include", multiple=True, metavar="ENTRY", help="Open only then; may be repeated.")
@click.option("--exclude", multiple=True, metavar="ENTRY", help="Closed then; may be repeated.")
@click.option("--tz", metavar="ZONE", help="The zone of its days and hours; default: that of each rule.")
@click.option("--file", type=click.Path(path_type=Path, dir_okay=False), help="JSON with include, exclude and tz.")
@dry_run_option
@days_option
@as_json_option
@on_store
async def set_calendar(
    scheduler: Scheduler,
    name: str,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    tz: str | None,
    file: Path | None,
    dry_run: bool,
    days: int | None,
    as_json: bool,
) -> None:
    """Define or change a calendar. Schedules use it at once.

    An ENTRY is a day of the week, a date, a range of them, or hours.

    \b
    Example:
      evertick calendar set business --include mon-fri --exclude 2026-12-24
      evertick calendar set business --file business.json --dry-run --days 366
    """
    preview_days = checked_days(days, dry_run)
    if file is not None and (include or exclude or tz):
        raise click.UsageError("--file has include, exclude and tz; leave out these flags")
    if file is None and not include and not exclude:
        raise click.UsageError("an empty calendar is always open; write --include, --exclude or --file")
    made = _read(name, file) if file else Calendar(name, include=include or None, exclude=exclude, tz=tz)
    await _set(scheduler, made, preview_days, dry_run, as_json)


def _read(name: str, path: Path) -> Calendar:
    try:
        data = read_regular(path, _FILE_MAX_BYTES, may_be_stream=True)
        if len(data) > _FILE_MAX_BYTES:
            problem = f"{str(path)!r} has more than {_FILE_MAX_BYTES} bytes"
            raise InvalidInput(problem, fix="name a file with one calendar")
        content = msgspec.json.decode(data, type=dict[str, Any])
    except OSError as error:
        problem = f"{str(path)!r} cannot be read ({error.strerror})"
        raise Refused(problem, fix="name another file with --file") from error
    except msgspec.MsgspecError as error:
        raise click.UsageError(f"{str(path)!r} is not a JSON object ({error})") from error
    return Calendar.from_json(
        msgspec.json.encode({"include": None, "exclude": [], "tz": None, **content, "name": name})
    )


@calendar.command("import-holidays")
@click.argument("name")
@click.option("--country", required=True, metavar="CODE", help="ISO 3166, like DE.")
@click.option("--subdivision", metavar="CODE", help="A part of the country, like BY.")
@click.option("--year", "years", type=int, multiple=True, help="May be repeated; default: this year and the next four.")
@click.option("--on-holidays", type=click.Choice(["closed", "open"]), default="closed", show_default=True)
@click.option("--days", metavar="DAYS", help="Open on these days of the week, like mon-fri; default: all.")
@click.option("--tz", metavar="ZONE", help="The zone of its days; default: that of each rule.")
@dry_run_option
@as_json_option
@on_store
async def import_holidays(
    scheduler: Scheduler,
    name: str,
    country: str,
    subdivision: str | None,
    years: tuple[int, ...],
    on_holidays: Any,
    days: str | None,
    tz: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make a calendar of the public holidays of a country.

    Needs the package holidays: pip install 'evertick[holidays]'. The calendar stores the dates.

    \b
    Example:
      evertick calendar import-holidays bavaria --country DE --subdivision BY
    """
    chosen = years or tuple(range(now().year, now().year + 5))
    made = holiday_calendar(
        name, country, years=chosen, subdivision=subdivision, on_holidays=on_holidays, days=days, tz=tz
    )
    await _set(scheduler, made, DAYS, dry_run, as_json)


async def _set(scheduler: Scheduler, made: Calendar, days: int, is_dry_run: bool, as_json: bool) -> None:
    """Store the calendar, and print how the fires of its schedules change."""
    plans = await _plans(scheduler, made, days)
    if not is_dry_run:
        await scheduler.set_calendar(made)
    if as_json:
        print_json({**_data(made), "is_dry_run": is_dry_run, "changes": [plan_data(plan) for plan in plans]})
        return
    for plan in plans:
        for line in plan.lines() if is_dry_run else [plan.words()]:
            say(line)
    if is_dry_run:
        say_nothing_changed()
    else:
        closed = f", closed on {_some(made.exclude)}" if made.exclude else ""
        say(f"set calendar {made.name}: open on {_some(made.include or ['every day'])}{closed}")


async def _plans(scheduler: Scheduler, made: Calendar, days: int) -> list[ChangePlan]:
    try:
        await scheduler.calendar(made.name)
    except NotFound:  # a new calendar has no schedules
        return []
    return await scheduler.preview_calendar(made, days=days)


@calendar.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@as_json_option
@on_store
async def remove(scheduler: Scheduler, name: str, yes: bool, as_json: bool) -> None:
    """Remove a calendar. Refused while a schedule uses it.

    \b
    Example:
      evertick calendar remove business --yes
    """
    found = await scheduler.calendar(name)
    if not yes and not await scheduler.calendar_users(name):
        ask(f"remove the calendar {name!r} of app {scheduler.app!r}?", "remove it")
    await scheduler.remove_calendar(name)
    if as_json:
        print_json(_data(found))
    else:
        say(f"removed calendar {name}")


def _data(found: Calendar) -> dict[str, Any]:
    return {"name": found.name, "include": found.include, "exclude": found.exclude, "tz": found.tz}
