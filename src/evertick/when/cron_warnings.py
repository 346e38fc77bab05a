"""Warnings about cron expressions: days that some months do not have, uneven steps, clock changes ahead.

Pure. A warning does not change the rule.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from evertick.when.cron_day import DaysRule
from evertick.when.cron_search import Search
from evertick.when.cron_text import Expression
from evertick.when.cron_words import joined, month_name, ordinal
from evertick.when.field import DAY, Field, NearestWorkday, Values, values_of
from evertick.when.zone import Change, GapRule, changes

__all__ = ["about_steps", "warnings_of"]

_YEAR = 366 * 86_400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LEAP_YEAR = 2028


def warnings_of(fields: Expression, days: DaysRule, zone: ZoneInfo, gap_rule: GapRule, after: int) -> list[str]:
    """The warnings for an expression; clock changes are looked for in the year after an instant, in seconds."""
    return [
        *about_steps(fields),
        *_about_short_months(fields),
        *_about_day_rule(fields, days),
        *_about_clock_changes(fields, days, zone, gap_rule, after),
    ]


def about_steps(fields: Expression) -> Iterator[str]:
    """About steps such as `*/7`, which are not intervals."""
    borders = ((fields.second, "minute"), (fields.minute, "hour"), (fields.hour, "day"), (fields.month, "year"))
    for field, border in borders:
        for item in field.items:
            if isinstance(item, Values) and item.is_star and field.kind.size % item.step:
                name, values = field.kind.name, values_of(field.kind, item)
                last = field.kind.high + 1 - values[-1]
                yield (
                    f"*/{item.step} in the {name} field restarts every {border}: "
                    f"after {name} {values[-1]} the next is {last} {name}{'s' * (last > 1)} later, not {item.step}"
                )
    for item in fields.day.items:
        if isinstance(item, Values) and item.is_star and item.step > 1:
            yield f"*/{item.step} in the {DAY.name} field restarts on the 1st of every month"


def _about_short_months(fields: Expression) -> Iterator[str]:
    months = [month for month in range(1, 13) if fields.month.mask() >> month & 1]
    for day in _days_written(fields.day):
        lacking = [month_name(month) for month in months if monthrange(_LEAP_YEAR, month)[1] < day]
        if day == 29 and 2 in months:
            lacking = ["February outside leap years"]
        if lacking:
            last = "; write L for the last day" if day > 29 else ""
            yield f"{joined(lacking)} {'have' if len(lacking) > 1 else 'has'} no {ordinal(day)}{last}"


def _days_written(field: Field) -> list[int]:
    days = [item.low for item in field.items if isinstance(item, Values) and item.low == item.high]
    days += [item.day for item in field.items if isinstance(item, NearestWorkday)]
    return sorted({day for day in days if day > 28})


def _about_day_rule(fields: Expression, days: DaysRule) -> Iterator[str]:
    if fields.day.is_any or fields.weekday.is_any or days == "and":
        return
    starred = next((field for field in (fields.day, fields.weekday) if field.begins_with_star), None)
    if starred is None:
        yield "day-of-month and day-of-week are both given: it fires when either matches; days='and' asks for both"
    else:
        yield f"{starred.text!r} in the {starred.kind.name} field begins with '*': both day fields must match"


def _about_clock_changes(
    fields: Expression, days: DaysRule, zone: ZoneInfo, gap_rule: GapRule, after: int
) -> Iterator[str]:
    if fields.hour.begins_with_star:
        return  # it fires in every hour, so a clock change does not matter
    walls = Search(fields.clock(), fields.days(days), ZoneInfo("UTC"), "literal")
    for change in changes(zone):
        if after < change.at <= after + _YEAR:
            low, high = sorted((change.at + change.before, change.at + change.after))
            first, last = walls.next(low), walls.previous(high - 1)
            if first is not None and last is not None and first < high:
                yield _clock_warning(change, first, last, zone, gap_rule, is_fixed=fields.is_fixed)


def _clock_warning(change: Change, first: int, last: int, zone: ZoneInfo, gap_rule: GapRule, *, is_fixed: bool) -> str:
    start = _wall(first)
    times = f"{start:%H:%M}" if first == last else f"{start:%H:%M} to {_wall(last):%H:%M}"
    plural = first != last
    where = f"on {start:%Y-%m-%d} in {zone.key}"
    if change.after < change.before:
        fate = "it fires both times" if gap_rule == "literal" else "it fires the first time only"
        return f"{times} {'come' if plural else 'comes'} twice {where}: {fate}"
    moved = change.after - change.before
    match gap_rule:
        case "cron":
            fate = f"fires{' once' * plural} at {_wall(change.at + change.after):%H:%M}"
        case "shift":
            to = f" to {_wall(last + moved):%H:%M}" if plural else ""
            fate = f"fires at {_wall(first + moved):%H:%M}{to}"
        case _:
            fate = "does not fire"
    return f"{times} {'do' if plural else 'does'} not exist {where}: {fate}"


def _wall(wall: int) -> datetime:
    return _EPOCH + timedelta(seconds=wall)
