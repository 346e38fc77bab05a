"""Moments as integers: microseconds since 1970 in UTC.

Pure. Datetimes of the public API are converted here, without floats.
"""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta, tzinfo

from evertick.errors import InvalidWhen
from evertick.text.values import shown

__all__ = [
    "DAY",
    "EARLIEST",
    "HOUR",
    "LATEST",
    "MILLISECOND",
    "MINUTE",
    "SECOND",
    "from_us",
    "moment_of",
    "moment_text",
    "to_us",
]

MILLISECOND = 1_000
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ONE = timedelta(microseconds=1)
_TEXT_LONGEST = 40
_FIX = "write it like '2026-01-31T09:00:00Z'"

# The years of rules; every zone's offset keeps them inside the range of datetime.
EARLIEST = (datetime(1800, 1, 1, tzinfo=UTC) - _EPOCH) // _ONE
LATEST = (datetime(9900, 1, 1, tzinfo=UTC) - _EPOCH) // _ONE
_FIRST = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _ONE
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _ONE


def to_us(moment: datetime) -> int:
    """The moment in microseconds. A naive datetime is rejected: its zone is unknown."""
    if not isinstance(moment, datetime):
        fix = "pass an aware datetime, e.g. datetime.now(UTC)"
        raise InvalidWhen(f"{shown(moment)} is not a datetime", value=shown(moment), fix=fix)
    if moment.tzinfo is None or moment.utcoffset() is None:
        fix = "pass an aware datetime, e.g. tzinfo=UTC"
        raise InvalidWhen(f"{moment.isoformat()} has no time zone", value=moment.isoformat(), fix=fix)
    us = (moment - _EPOCH) // _ONE
    if not _FIRST <= us <= _LAST:
        raise InvalidWhen(f"{moment.isoformat()} is outside the years 1 to 9999 of UTC", value=moment.isoformat())
    return us


def from_us(us: int, zone: tzinfo = UTC) -> datetime:
    """The aware datetime of a moment, in the given zone."""
    utc = _EPOCH + timedelta(microseconds=us)
    return utc if zone is UTC else utc.astimezone(zone)


# Rows that are written together often share a moment.
@functools.lru_cache(maxsize=256)
def moment_text(us: int) -> str:
    """The moment in ISO 8601 with Z; with microseconds if it has any."""
    return from_us(us).isoformat().replace("+00:00", "Z")


def moment_of(text: str, *, what: str = "moment") -> int:
    """Parse ISO 8601 text, which must have an offset."""
    try:
        moment = datetime.fromisoformat(text.strip()) if len(text) <= _TEXT_LONGEST else None
    except ValueError:
        moment = None
    if moment is None:
        raise InvalidWhen(f"{what}: {text[:_TEXT_LONGEST]!r} is not a moment", value=shown(text), fix=_FIX)
    if moment.tzinfo is None:
        raise InvalidWhen(f"{what}: {text!r} has no offset", value=shown(text), fix=_FIX)
    return to_us(moment)
