"""Time zones: IANA names, their clock changes, and the spans of time that a rule searches.

Pure. The standard library gives the wall time of an instant, but not the clock changes; they are found once per zone by
probing, and cached. All changes of the offset are treated alike, whether or not they are daylight saving time: Samoa's
change of 2011 skipped a whole day.

All times are whole seconds. An *instant* counts from 1970 in UTC; a *wall* time is the reading of the zone's clock in
the same unit. instant + offset = wall.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

from evertick.errors import InvalidWhen

__all__ = ["END", "Change", "GapRule", "Span", "changes", "offset_at", "spans", "zone_fingerprint", "zone_named"]

# Rules have wall times from 1970 to the end of 2099.
END = int(datetime(2100, 1, 1, tzinfo=UTC).timestamp())

_DAY = 86_400
_BEFORE, _AFTER = -2 * _DAY, END + 2 * _DAY
# The two nearest changes of any zone since 1970 are 6 days and 23 hours apart (Brazil 2000, Gaza 2040), so a probe
# every three days finds each change; a test checks this for each zone of the system.
_PROBE = 3 * _DAY
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WALL_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a wall time
_LONGEST_NAME = 64

GapRule = Literal["literal", "skip", "cron", "shift"]


class Change(NamedTuple):
    """A clock change. Wall times are skipped if the offset grows, and repeated if it shrinks."""

    at: int
    before: int
    after: int


class Span(NamedTuple):
    """A range of instants [start, end) in which a rule is compared with the wall clock at these offsets.

    More than one offset: times that were shifted out of a gap mix with regular ones. With `gap`, a range of one second:
    it is also a moment if the rule has one among the wall times of the gap.
    """

    start: int
    end: int
    offsets: tuple[int, ...]
    gap: tuple[int, int] | None


def zone_named(name: str | ZoneInfo) -> ZoneInfo:
    """The zone of an IANA name. Names that depend on the machine or count leap seconds are rejected."""
    if isinstance(name, ZoneInfo):
        name = name.key or ""
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
        raise _no_zone(f"{_shown(name)} is not a time zone", name)
    if name == "localtime" or name.startswith(("posix", "right/")):
        raise _no_zone(f"{name!r} depends on the machine", name)
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise _no_zone(f"{_shown(name)} is not a time zone known here", name, " or 'UTC'") from None


def _no_zone(problem: str, name: object, more: str = "") -> InvalidWhen:
    fix = f"pass an IANA name like 'Europe/Berlin'{more}"
    return InvalidWhen(f"tz: {problem}", setting="tz", value=_shown(name), fix=fix)


def _shown(name: object) -> str:
    shown = repr(name)
    return shown if len(shown) <= _LONGEST_NAME else shown[:_LONGEST_NAME] + "…"


def offset_at(zone: ZoneInfo, instant: int) -> int:
    """The offset of the wall clock at an instant, in seconds."""
    moment = _EPOCH + timedelta(seconds=instant)
    offset = moment.astimezone(zone).utcoffset()
    assert offset is not None
    return offset // timedelta(seconds=1)


@lru_cache(maxsize=1024)
def changes(zone: ZoneInfo) -> tuple[Change, ...]:
    """Every clock change of the zone in the range of rules, in order."""
    # Probing by wall time is much faster than by instant. A probe inside a skipped or repeated hour does no harm, since
    # the search covers one more day on either side.
    found = []
    offset_of, step = zone.utcoffset, timedelta(seconds=_PROBE)
    wall, end = datetime(1969, 12, 28), datetime(2100, 1, 4)  # noqa: DTZ001 - wall times
    offset = offset_of(wall)
    while wall < end:
        wall += step
        probed = offset_of(wall)
        if probed != offset:
            near = (wall - _WALL_EPOCH) // timedelta(seconds=1)
            low, high = near - _PROBE - _DAY, near + _DAY
            before, after = offset_at(zone, low), offset_at(zone, high)
            found.append(Change(_first_with(zone, after, low, high), before, after))
            offset = probed
    return tuple(found)


def _first_with(zone: ZoneInfo, offset: int, low: int, high: int) -> int:
    while high - low > 1:
        middle = (low + high) // 2
        if offset_at(zone, middle) == offset:
            high = middle
        else:
            low = middle
    return high


@lru_cache(maxsize=4096)
def spans(zone: ZoneInfo, rule: GapRule) -> tuple[Span, ...]:
    """The spans in which a rule can have moments, in order and disjoint.

    `literal` uses the wall clock as it is. The others drop repeated wall times. For skipped ones: `skip` drops them,
    `cron` moves them to the first instant after the gap, `shift` keeps the old offset for the length of the gap.
    """
    pieces: list[tuple[int, int, int]] = []
    gaps: dict[int, tuple[int, int]] = {}
    all_changes = changes(zone)
    offset = all_changes[0].before if all_changes else offset_at(zone, 0)
    start, shown = _BEFORE, _BEFORE + offset
    for change in (*all_changes, Change(_AFTER, offset, offset)):
        pieces.append((start, change.at, offset))
        if change.at == _AFTER:
            break
        # The latest wall time so far: anything below it is repeated.
        shown = max(shown, change.at + change.before)
        missing = (max(shown, change.at + change.before), change.at + change.after)
        start, offset = change.at, change.after
        if rule == "literal":
            continue
        start = max(start, shown - offset)
        if missing[0] < missing[1]:
            if rule == "cron":
                gaps[change.at] = missing
            elif rule == "shift":
                pieces.append((missing[0] - change.before, missing[1] - change.before, change.before))
    return _cut(pieces, gaps)


def _cut(pieces: list[tuple[int, int, int]], gaps: dict[int, tuple[int, int]]) -> tuple[Span, ...]:
    """Split overlapping pieces into disjoint spans."""
    pieces = sorted(piece for piece in pieces if piece[0] < piece[1])
    edges = sorted({edge for piece in pieces for edge in piece[:2]} | {edge for at in gaps for edge in (at, at + 1)})
    result, upcoming, active = [], 0, list[tuple[int, int, int]]()
    for start, end in pairwise(edges):
        while upcoming < len(pieces) and pieces[upcoming][0] <= start:
            active.append(pieces[upcoming])
            upcoming += 1
        active = [piece for piece in active if piece[1] > start]
        offsets = tuple(piece[2] for piece in active)
        if offsets:
            result.append(Span(start, end, offsets, gaps.get(start)))
    return tuple(result)


@lru_cache(maxsize=1024)
def zone_fingerprint(name: str | ZoneInfo) -> str:
    """A short hash of the zone's clock changes, which an update of the zone data may change.

    It is a hash of the changes and not of the file, since distributions encode the same rules differently.
    """
    zone = zone_named(name)
    digest = hashlib.sha256(str(offset_at(zone, 0)).encode())
    for change in changes(zone):
        digest.update(b"%d %d %d;" % change)
    return digest.hexdigest()[:16]
