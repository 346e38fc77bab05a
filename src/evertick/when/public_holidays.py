"""Public holidays as calendars, from the package `holidays` (`pip install 'evertick[holidays]'`).

The package is needed only to make the calendar. The store has a plain calendar of dates, which nodes without the
package can use, and which a newer version of the package does not change.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from types import ModuleType
from typing import Literal
from zoneinfo import ZoneInfo

from evertick.errors import InvalidInput, InvalidWhen
from evertick.text.values import shown
from evertick.when.calendar import Calendar

__all__ = ["holiday_calendar", "holiday_dates"]

_YEAR_FIRST, _YEAR_LAST, _YEARS_MOST = 1970, 2099, 50
_CODE_LONGEST = 50
_SHOWN = 20


def holiday_dates(country: str, *, years: int | Iterable[int], subdivision: str | None = None) -> list[date]:
    """The public holidays of a country, or of a part of it, in these years: `holiday_dates("DE", years=2027)`.

    `country` and `subdivision` are codes of ISO 3166 ("DE", "BY"). `Calendar.weekdays` accepts the dates.
    """
    known = _package()
    wanted = _checked_years(years)
    code, part = _checked_code(country, "country"), None if subdivision is None else _checked_code(subdivision, "part")
    countries: dict[str, list[str]] = known.list_supported_countries()
    if code not in countries:
        raise InvalidInput(
            f"country: {shown(country)} is not known to the package holidays",
            setting="country",
            value=shown(country),
            fix="pass a code like 'DE' or 'US'",
        )
    if part is not None and part not in countries[code]:
        some = ", ".join(countries[code][:_SHOWN]) or "none"
        problem = f"subdivision: {shown(subdivision)} is not a part of {code}"
        raise InvalidInput(problem, setting="subdivision", value=shown(subdivision), fix=f"known are {some}")
    # With observed days, as in the law of the country.
    return sorted(known.country_holidays(code, subdiv=part, years=wanted))


def holiday_calendar(
    name: str,
    country: str,
    *,
    years: int | Iterable[int],
    subdivision: str | None = None,
    on_holidays: Literal["closed", "open"] = "closed",
    days: str | None = None,
    tz: str | ZoneInfo | None = None,
) -> Calendar:
    """A calendar that is closed on public holidays, or open only on them.

    `days` are the days of the week on which a calendar that is closed on holidays is open, such as "mon-fri"; by
    default all. It has no holidays after the last of the years; store a new one before then.
    """
    if on_holidays not in ("closed", "open"):
        problem = f"on_holidays: {shown(on_holidays)} is neither 'closed' nor 'open'"
        raise InvalidInput(problem, setting="on_holidays", value=shown(on_holidays))
    if on_holidays == "open" and days is not None:
        problem = f"days: {shown(days)} is only possible with on_holidays='closed'"
        raise InvalidInput(problem, setting="days", value=shown(days), fix="leave it out")
    dates = holiday_dates(country, years=years, subdivision=subdivision)
    if not dates:
        raise InvalidInput(f"{country} has no public holiday in these years", setting="years", fix="choose others")
    if on_holidays == "open":
        return Calendar(name, include=dates, tz=tz)
    return Calendar(name, include=None if days is None else [days], exclude=dates, tz=tz)


def _package() -> ModuleType:
    try:
        import holidays
    except ImportError as error:
        raise InvalidInput(
            "public holidays need the package holidays, which is not installed here",
            fix="install it with: pip install 'evertick[holidays]'",
        ) from error
    return holidays


def _checked_years(years: int | Iterable[int]) -> list[int]:
    given = [years] if isinstance(years, int) else list(_bounded(years))
    if not given or any(isinstance(year, bool) or not isinstance(year, int) for year in given):
        raise InvalidInput(f"years: {shown(years)} must be a year or a list of years, such as range(2027, 2030)")
    if not all(_YEAR_FIRST <= year <= _YEAR_LAST for year in given):
        raise InvalidWhen(f"years: {min(given)} to {max(given)} is outside of {_YEAR_FIRST} to {_YEAR_LAST}")
    return sorted(set(given))


def _bounded(years: Iterable[int]) -> Iterable[int]:
    if isinstance(years, str) or not isinstance(years, Iterable):
        raise InvalidInput(f"years: {shown(years)} must be a year or a list of years, such as range(2027, 2030)")
    for count, year in enumerate(years, 1):
        if count > _YEARS_MOST:
            problem = f"years: more than {_YEARS_MOST} are too many for one calendar"
            raise InvalidInput(problem, setting="years", fix="choose fewer")
        yield year


def _checked_code(code: str, what: str) -> str:
    if not isinstance(code, str) or not 1 <= len(code) <= _CODE_LONGEST:
        problem = f"{what}: {code!r:.60} is not a code"
        raise InvalidInput(problem, setting=what, value=shown(code), fix="pass one like 'DE' or 'BY'")
    return code
