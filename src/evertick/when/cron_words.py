"""Cron expressions in English.

Pure. `0 9 * * 1-5` is "At 09:00, Monday to Friday".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from evertick.when.cron_day import DaysRule
from evertick.when.cron_text import Expression
from evertick.when.field import (
    DAY,
    HOUR,
    Field,
    Item,
    Kind,
    LastDay,
    LastWeekday,
    LastWorkday,
    NearestWorkday,
    NthWeekday,
    Spread,
    Values,
    values_of,
)

__all__ = ["anchored_words", "joined", "month_name", "ordinal", "words"]

_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_NTH = ("first", "second", "third", "fourth", "fifth")
_MOST_TIMES = 6


def words(fields: Expression, days: DaysRule) -> str:
    """The expression in words, without its zone."""
    time = _time(fields)
    day = _day(fields, days)
    month = "" if fields.month.is_any else f" in {_list(fields.month)}"
    year = "" if fields.year.is_any else f" in {_list(fields.year)}"
    if not day and _is_at_times(fields):
        day = " every day"
    sentence = f"{time}{day}{month}{year}"
    return sentence[0].upper() + sentence[1:]


def anchored_words(nickname: str) -> str:
    """The words of an anchored nickname without its anchor."""
    rhythm = {"@hourly": "hour", "@daily": "day", "@weekly": "week", "@monthly": "month"}.get(nickname, "year")
    return f"Once every {rhythm}, counted from its creation"


def joined(parts: Iterable[str], last: str = "and") -> str:
    *most, end = parts
    return f"{', '.join(most)} {last} {end}" if most else end


def ordinal(number: int) -> str:
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number not in (11, 12, 13) else "th"
    return f"{number}{suffix}"


def month_name(month: int) -> str:
    return _MONTHS[month - 1]


# The time of day.


def _is_at_times(fields: Expression) -> bool:
    """Whether second, minute and hour are few single values, so that the times can be listed."""
    plain = [_singles(field) for field in (fields.second, fields.minute, fields.hour)]
    count = 1
    for values in plain:
        count *= len(values)
    return 0 < count <= _MOST_TIMES


def _singles(field: Field) -> list[int]:
    """Its values if all of them are single values, else none."""
    singles = [item.low for item in field.items if isinstance(item, Values) and item.low == item.high]
    return sorted(set(singles)) if len(singles) == len(field.items) else []


def _time(fields: Expression) -> str:
    if _is_at_times(fields):
        with_seconds = _singles(fields.second) != [0]
        return "At " + joined(
            f"{hour:02}:{minute:02}" + (f":{second:02}" if with_seconds else "")
            for hour in _singles(fields.hour)
            for minute in _singles(fields.minute)
            for second in _singles(fields.second)
        )
    hour = _hours(fields.hour)
    if _singles(fields.second) != [0]:
        if fields.minute.is_any:
            return f"{_unit(fields.second)}{hour}"
        return f"{_unit(fields.second)}, {_during(fields.minute)}{hour}"
    if _singles(fields.minute) == [0] and not _singles(fields.hour):
        return _whole_hours(fields.hour)
    if _stepped(fields.minute):
        return f"{_unit(fields.minute)}{hour}"
    return f"{_unit(fields.minute)}{hour or ' of every hour'}"


def _stepped(field: Field) -> int:
    """The step of a field that is one star with a step, else 0."""
    first = field.items[0]
    return first.step if len(field.items) == 1 and isinstance(first, Values) and first.is_star else 0


def _unit(field: Field) -> str:
    """`every 5 minutes`, `at minute 5`."""
    name = field.kind.name
    step = _stepped(field)
    if step:
        return f"every {name}" if step == 1 else f"every {step} {name}s"
    if field.is_spread and len(field.items) == 1:
        return f"at {_list(field)}"
    return f"at {name}{'' if len(_singles(field)) == 1 else 's'} {_list(field)}"


def _during(field: Field) -> str:
    step = _stepped(field)
    name = field.kind.name
    if step:
        return f"during every {ordinal(step)} {name}"
    return f"during {name}{'' if len(_singles(field)) == 1 else 's'} {_list(field)}"


def _hours(field: Field) -> str:
    """The hours of an expression that fires several times an hour."""
    if field.is_any:
        return ""
    step = _stepped(field)
    if step:
        return f" of every {ordinal(step)} hour"
    only = field.items[0]
    if len(field.items) == 1 and isinstance(only, Values) and only.step == 1:
        return f" from {only.low:02}:00 to {only.high:02}:59"
    if field.is_spread and len(field.items) == 1:
        return f" of {_list(field)}"
    return f" of hour {_list(field)}" if len(_singles(field)) == 1 else f" of the hours {_list(field)}"


def _whole_hours(field: Field) -> str:
    step = _stepped(field)
    if step:
        return "Every hour" if step == 1 else f"Every {step} hours"
    only = field.items[0]
    if len(field.items) == 1 and isinstance(only, Values):
        every = "Every hour" if only.step == 1 else f"Every {only.step} hours"
        return f"{every} from {only.low:02}:00 to {only.high:02}:00"
    return f"At the full hours {_list(field)}"


# The day.


def _day(fields: Expression, days: DaysRule) -> str:
    by_day, by_weekday = not fields.day.is_any, not fields.weekday.is_any
    is_weekly = all(isinstance(item, Values) for item in fields.weekday.items)
    if by_day and by_weekday:
        both = days == "and" or fields.day.begins_with_star or fields.weekday.begins_with_star
        if both:
            return f" on {_list(fields.day)} if that is {_list(fields.weekday, 'or')}"
        return f" on {_list(fields.day)}, and also on {'every ' * is_weekly}{_list(fields.weekday)}"
    if by_day:
        return f" on {_list(fields.day)}"
    if by_weekday:
        return f", {_list(fields.weekday)}," if is_weekly else f" on {_list(fields.weekday)}"
    return ""


def _list(field: Field, last: str = "and") -> str:
    return joined((_item(field.kind, item) for item in field.items), last)


def _item(kind: Kind, item: Item) -> str:
    match item:
        case Values():
            return _values(kind, item)
        case Spread():
            return _spread(kind, item)
        case LastDay(back=0):
            return "the last day of the month"
        case LastDay(back=back):
            return f"the day {back} before the last of the month"
        case LastWorkday():
            return "the last weekday (Monday to Friday) of the month"
        case NearestWorkday(day=day):
            return f"the weekday (Monday to Friday) nearest to the {ordinal(day)}"
        case NthWeekday(weekday=weekday, nth=nth):
            return f"the {_NTH[nth - 1]} {_WEEKDAYS[weekday]} of the month"
        case LastWeekday(weekday=weekday):
            return f"the last {_WEEKDAYS[weekday]} of the month"
        case _:
            assert_never(item)


def _values(kind: Kind, item: Values) -> str:
    low, high = _name(kind, item.low), _name(kind, item.high)
    if item.low == item.high:
        return low
    if item.step == 1:
        return f"every {kind.name.removeprefix('day-of-')}" if item.is_star else f"{low} to {high}"
    if len(values_of(kind, item)) <= _MOST_TIMES:
        return joined(_name(kind, value) for value in values_of(kind, item))
    if item.is_star:
        return f"every {ordinal(item.step)} {'day of the month' if kind == DAY else kind.name}"
    return f"every {ordinal(item.step)} from {low} to {high}"


def _spread(kind: Kind, item: Spread) -> str:
    """An `H` without its key."""
    name = kind.name.replace("day-of-month", "day").replace("day-of-week", "weekday")
    within = "" if item.is_whole else f" from {_name(kind, item.low)} to {_name(kind, item.high)}"
    if item.step:
        return f"every {ordinal(item.step)} {name}{within}, from one chosen by its key"
    return f"{'an' if kind == HOUR else 'a'} {name}{within} chosen by its key"


def _name(kind: Kind, value: int) -> str:
    match kind.name:
        case "month":
            return _MONTHS[value - 1]
        case "day-of-week":
            return _WEEKDAYS[value % 7]
        case "day-of-month":
            return f"the {ordinal(value)}"
        case _:
            return str(value)
