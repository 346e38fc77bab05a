"""What can be wrong with calendars: one that knows no holidays after some year."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from evertick.doctor.finding import Finding, Severity, named
from evertick.explain.all_schedules import ParsedSchedule
from evertick.when import Calendar

__all__ = ["about_calendars"]

# A few dates are single closures, which may pass; so many are a list of holidays.
_DATES_LEAST = 4
_SOON = timedelta(days=60)
_DATE = re.compile(r"\b(\d{4})-\d{2}-\d{2}")


def about_calendars(
    calendars: Mapping[str, Calendar], surveyed: Sequence[ParsedSchedule], now: datetime
) -> Iterator[Finding]:
    """Of those that a schedule uses, in its rule or as its blackout."""
    users: dict[str, list[str]] = {}
    for each in surveyed:
        bound = None if each.rule is None else each.rule.bounds.calendar
        for name in {bound, each.schedule.blackout} - {None}:
            users.setdefault(str(name), []).append(each.schedule.key)
    for name, keys in sorted(users.items()):
        year = _last_year(calendars[name]) if name in calendars else None
        if year is None:
            continue
        # A list of holidays is one of whole years.
        end = datetime(year + 1, 1, 1, tzinfo=calendars[name].zone)
        if now >= end:
            yield Finding(
                severity=Severity.WARNING,
                check="calendar_expired",
                what=f"calendar {name} has dates up to {year} only, and goes on as if there were no holidays since; it "
                f"is used by {named(keys)}",
                fix=_FIX.format(name=name),
                about=(name, *keys),
            )
        elif end - now <= _SOON:
            yield Finding(
                severity=Severity.NOTE,
                check="calendar_expires",
                what=f"calendar {name} has dates up to {year} only, which ends in {(end - now).days} days; it is used "
                f"by {named(keys)}",
                fix=_FIX.format(name=name),
                about=(name, *keys),
            )


_FIX = (
    "store it anew with the holidays of the next years, under the same name (`evertick calendar import-holidays {name} "
    "--help`, `evertick calendar set {name}`, or holiday_calendar in code); its schedules go by it at once"
)


def _last_year(calendar: Calendar) -> int | None:
    """The last year of which it has dates, if it has many of them that do not come every year."""
    entries = [*(calendar.include or ()), *calendar.exclude]
    years = Counter(max(map(int, found)) for entry in entries if (found := _DATE.findall(entry)))
    if years.total() < _DATES_LEAST:
        return None
    # A single date, as the New Year's Day after the list, is no list of that year.
    return max((year for year, count in years.items() if count > 1), default=max(years))
