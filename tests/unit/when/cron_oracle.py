"""An independent cron implementation: walk over every instant of a window and compare the wall clock.

It shares no code with the code under test. Expressions are not parsed here but built together with the values that they
match, so that no parser mistake can be in both.
"""

from __future__ import annotations

import hashlib
from calendar import monthrange
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

Pick = Callable[[int], int]
"""Asked for n, gives a number from 0 to n - 1."""

MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]


def picker(seed: str) -> Pick:
    """Random-looking numbers that are the same in every run."""
    count = 0

    def pick(n: int) -> int:
        nonlocal count
        count += 1
        return int.from_bytes(hashlib.sha256(f"{seed} {count}".encode()).digest()[:8], "big") % n

    return pick


@dataclass
class Part:
    """One field: its text, and the values (for day fields the dates) that it matches."""

    text: str
    values: set[int] = field(default_factory=set)
    dates: list[Callable[[date], bool]] = field(default_factory=list)

    @property
    def has_star(self) -> bool:
        return self.text.startswith(("*", "?"))

    def matches_day(self, day: date, value: int) -> bool:
        return value in self.values or any(test(day) for test in self.dates)


@dataclass
class Expression:
    """An expression with its meaning."""

    second: Part
    minute: Part
    hour: Part
    day: Part
    month: Part
    weekday: Part
    year: Part | None
    has_seconds: bool

    @property
    def text(self) -> str:
        parts = [self.minute, self.hour, self.day, self.month, self.weekday]
        if self.has_seconds or self.year:
            parts.insert(0, self.second)
        if self.year:
            parts.append(self.year)
        return " ".join(part.text for part in parts)

    @property
    def is_fixed(self) -> bool:
        return not any(part.text.startswith("*") for part in (self.second, self.minute, self.hour))

    def matches(self, wall: datetime, days: str) -> bool:
        if wall.second not in self.second.values or wall.minute not in self.minute.values:
            return False
        return wall.hour in self.hour.values and self.matches_date(wall.date(), days)

    def matches_date(self, day: date, days: str) -> bool:
        if day.month not in self.month.values or (self.year and day.year not in self.year.values):
            return False
        by_day = self.day.matches_day(day, day.day)
        by_weekday = self.weekday.matches_day(day, day.isoweekday() % 7)
        if days == "and" or self.day.has_star or self.weekday.has_star:
            return by_day and by_weekday
        return by_day or by_weekday


def walk(low: int, high: int, start: int, stop: int, step: int) -> set[int]:
    """From start to stop with a step, wrapping around if needed."""
    found, at, taken = set(), start, 0
    while True:
        if taken % step == 0:
            found.add(at)
        if at == stop:
            return found
        at, taken = (low if at == high else at + 1), taken + 1


def number_item(pick: Pick, low: int, high: int, names: list[str], around: Iterable[int] = ()) -> Part:
    """One item of an ordinary field. Most values are near `around`."""
    near = list(around)

    def value() -> int:
        return near[pick(len(near))] if near and pick(3) else low + pick(high - low + 1)

    def shown(number: int) -> str:
        if names and pick(2):
            name = names[number - low]
            return [name, name.upper(), name.title()][pick(3)]
        return f"{number:02}" if pick(8) == 0 else str(number)

    step = 1 + pick(high - low + 1) if pick(3) == 0 else 1 + pick(5)
    match pick(6):
        case 0:
            return Part("*", walk(low, high, low, high, 1))
        case 1:
            return Part(f"*/{step}", walk(low, high, low, high, step))
        case 2:
            start = value()
            return Part(f"{shown(start)}/{step}", walk(low, high, start, high, step))
        case 3:
            start, stop = value(), value()
            if low > 1000 and start > stop:
                start, stop = stop, start
            with_step = f"/{step}" if pick(2) else ""
            return Part(
                f"{shown(start)}-{shown(stop)}{with_step}", walk(low, high, start, stop, step if with_step else 1)
            )
        case _:
            start = value()
            return Part(shown(start), {start})


def day_item(pick: Pick) -> Part:
    def last(day: date) -> int:
        return monthrange(day.year, day.month)[1]

    def nearest(to: int) -> Callable[[date], bool]:
        def test(day: date) -> bool:
            if to > last(day):
                return False
            candidates = [
                date(day.year, day.month, number)
                for number in range(1, last(day) + 1)
                if date(day.year, day.month, number).isoweekday() <= 5
            ]
            return day == min(candidates, key=lambda other: abs(other.day - to))

        return test

    match pick(8):
        case 0:
            return Part("L", dates=[lambda day: day.day == last(day)])
        case 1:
            back = pick(31)
            return Part(f"L-{back}", dates=[lambda day: day.day == last(day) - back])
        case 2:
            to = 1 + pick(31)
            return Part(f"{to}{'wW'[pick(2)]}", dates=[nearest(to)])
        case 3:

            def is_last_workday(day: date) -> bool:
                later = [date(day.year, day.month, number) for number in range(day.day + 1, last(day) + 1)]
                return day.isoweekday() <= 5 and all(other.isoweekday() > 5 for other in later)

            return Part("LW", dates=[is_last_workday])
        case _:
            return number_item(pick, 1, 31, [])


def weekday_item(pick: Pick) -> Part:
    weekday = pick(7)
    shown = [str(weekday), WEEKDAYS[weekday], "7" if weekday == 0 else str(weekday)][pick(3)]

    def is_it(day: date) -> bool:
        return day.isoweekday() % 7 == weekday

    match pick(8):
        case 0:
            text = f"{shown}L" if pick(2) else f"{shown}#L"
            return Part(text, dates=[lambda day: is_it(day) and (day + timedelta(days=7)).month != day.month])
        case 1:
            nth = 1 + pick(5)
            return Part(f"{shown}#{nth}", dates=[lambda day: is_it(day) and (day.day - 1) // 7 + 1 == nth])
        case 2:
            start = 1 + pick(6)
            return Part(f"{start}-7", {number % 7 for number in range(start, 8)})
        case _:
            return number_item(pick, 0, 6, WEEKDAYS)


def joined(pick: Pick, make: Callable[[], Part]) -> Part:
    parts = [make() for _ in range(1 + (pick(3) if pick(3) == 0 else 0))]
    whole = Part(",".join(part.text for part in parts))
    for part in parts:
        whole.values |= part.values
        whole.dates += part.dates
    return whole


def written(pick: Pick, *, near: datetime | None = None, seconds: bool = False) -> Expression:
    """An expression of any syntax but `H`. With `near`, most are close to that wall time."""
    hours = [(near.hour + shift) % 24 for shift in (-1, 0, 0, 1)] if near else []
    minutes = [0, 15, 30, 45, 59] if near else []
    is_daily = near is not None and pick(4) > 0
    has_seconds = seconds or pick(6) == 0
    any_day = Part("*?"[pick(2)], set(range(1, 32)))
    any_weekday = Part("*?"[pick(2)], set(range(7)))
    any_month = Part("*", set(range(1, 13)))
    return Expression(
        second=joined(pick, lambda: number_item(pick, 0, 59, [], [0, 30])) if seconds else Part("0", {0}),
        minute=joined(pick, lambda: number_item(pick, 0, 59, [], minutes)),
        hour=joined(pick, lambda: number_item(pick, 0, 23, [], hours)),
        day=any_day if is_daily or pick(2) else joined(pick, lambda: day_item(pick)),
        month=any_month if is_daily or pick(2) else joined(pick, lambda: number_item(pick, 1, 12, MONTHS)),
        weekday=any_weekday if is_daily or pick(2) else joined(pick, lambda: weekday_item(pick)),
        year=None if near or pick(4) else joined(pick, lambda: number_item(pick, 1970, 2099, [], range(2020, 2035))),
        has_seconds=has_seconds,
    )


def wall_times(zone: ZoneInfo, start: int, end: int, step: int) -> list[tuple[int, datetime]]:
    """Every step-th instant of [start, end) with its wall time."""
    return [
        (at, datetime.fromtimestamp(at, UTC).astimezone(zone).replace(tzinfo=None, fold=0))
        for at in range(start, end, step)
    ]


def moments(expression: Expression, shown: list[tuple[int, datetime]], dst: str, days: str) -> list[int]:
    """The matching instants, by the definition of the four rules for clock changes."""
    step = timedelta(seconds=shown[1][0] - shown[0][0])
    if dst == "wall" or not expression.is_fixed:
        return [at for at, wall in shown if expression.matches(wall, days)]
    found = set()
    at_before, wall_before = shown[0]
    latest = wall_before - step
    for at, wall in shown:
        missing = max(wall_before, latest) + step
        while missing < wall:
            if expression.matches(missing, days):
                if dst == "cron":
                    found.add(at)
                elif dst == "shift":
                    found.add(at_before + round((missing - wall_before).total_seconds()))
            missing += step
        if wall > latest:
            latest = wall
            if expression.matches(wall, days):
                found.add(at)
        at_before, wall_before = at, wall
    return sorted(at for at in found if at <= shown[-1][0])
