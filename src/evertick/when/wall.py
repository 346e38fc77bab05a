"""Conversion between wall times ("readings") of a zone and moments.

A reading is the wall time in microseconds since it was 1970-01-01 00:00. A clock change skips or repeats readings;
`first_moment` gives each reading one moment: the first at which the clock shows it or a later one. So the moments of
increasing readings never decrease.

Pure. Intervals and calendars count days and hours with it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from evertick.when.moment import DAY, EARLIEST, LATEST, SECOND
from evertick.when.zone import offset_at

__all__ = ["day_of", "first_moment", "midnight", "offset_us", "turn_in_day"]

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - readings are naive by nature
_ONE = timedelta(microseconds=1)
_UTC = "UTC"
# Calendars search fifty years ahead.
_MARGIN = 60 * 366 * DAY


def offset_us(zone: ZoneInfo, moment: int) -> int:
    """How far the zone's clock is ahead of UTC at that moment."""
    if zone.key == _UTC:
        return 0
    return offset_at(zone, moment // SECOND) * SECOND


def first_moment(zone: ZoneInfo, reading: int) -> int:
    """The first moment at which the zone's clock shows the reading or a later one."""
    # Beyond the range of rules the offset does not matter, and datetime may overflow.
    if zone.key == _UTC or not EARLIEST - _MARGIN <= reading <= LATEST + _MARGIN:
        return reading
    # Fast path: equal offsets a day before and two days after mean no clock change between, since any two changes of a
    # zone are almost a week apart.
    offset = _offset_at_day(zone, reading // DAY - 1)
    if offset == _offset_at_day(zone, reading // DAY + 2):
        return reading - offset
    at = _EPOCH + timedelta(microseconds=reading)
    before, after = (_offset(at.replace(tzinfo=zone, fold=fold)) for fold in (0, 1))
    if before >= after:
        return reading - before
    return _turn(zone, reading - after, reading - before)


def midnight(zone: ZoneInfo, day: int) -> int:
    """The moment at which a day begins; days are counted from 1970-01-01."""
    return first_moment(zone, day * DAY)


def day_of(zone: ZoneInfo, moment: int) -> int:
    """The day of a moment: the last one that has begun.

    It differs from the date on the clock after a clock change back over midnight: the new day continues.
    """
    day = (moment + offset_us(zone, moment)) // DAY
    return day + 1 if midnight(zone, day + 1) <= moment else day


@lru_cache(maxsize=8192)
def turn_in_day(zone: ZoneInfo, utc_day: int) -> tuple[int, int, int] | None:
    """The moment in (0:00, 24:00] of a day of UTC at which the zone's offset changes, with the offsets around it.

    No zone has changed its offset twice in one day of UTC; two such changes would count as one.
    """
    first, last = utc_day * DAY, (utc_day + 1) * DAY
    before, after = _offset_at_day(zone, utc_day), _offset_at_day(zone, utc_day + 1)
    return None if before == after else (_turn(zone, first, last), before, after)


@lru_cache(maxsize=8192)
def _offset_at_day(zone: ZoneInfo, utc_day: int) -> int:
    return offset_us(zone, utc_day * DAY)


def _turn(zone: ZoneInfo, low: int, high: int) -> int:
    """The first moment in (low, high] that no longer has the offset of `low`: always a whole second."""
    before = offset_us(zone, low)
    last, first = low // SECOND, high // SECOND
    while first - last > 1:
        middle = (last + first) // 2
        if offset_us(zone, middle * SECOND) == before:
            last = middle
        else:
            first = middle
    return first * SECOND


def _offset(at: datetime) -> int:
    offset = at.utcoffset()
    assert offset is not None
    return offset // _ONE
