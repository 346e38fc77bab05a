"""Time zones: IANA names, the changes of their clocks, and the stretches of time a rule has to look at.

Pure. The standard library answers "which wall clock at this instant", but does not say when a clock changes; the
changes are found here once per zone by probing, and kept. Every change of offset is treated alike, whether or not it
is called daylight saving time: Dublin's is negative, Samoa's change of 2011 took a whole day, North Korea's were
politics.

All times are whole seconds. An *instant* counts from 1970 in UTC; a *wall* time counts the same way what the clock on
the wall shows. instant + offset = wall.
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

# Rules answer for wall clocks from 1970 up to the end of 2099.
END = int(datetime(2100, 1, 1, tzinfo=UTC).timestamp())

_DAY = 86_400
_BEFORE, _AFTER = -2 * _DAY, END + 2 * _DAY
# The two nearest changes of any zone since 1970 are 6 days and 23 hours apart (Brazil 2000, Gaza 2040), so a probe
# every three days sees every change on its own; a test holds this against each zone of the system.
_PROBE = 3 * _DAY
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WALL_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a wall time
_LONGEST_NAME = 64

GapRule = Literal["literal", "skip", "cron", "shift"]


class Change(NamedTuple):
    """At this instant the offset of the wall clock changes. A gap if it grows, a repetition if it shrinks."""

    at: int
    before: int
    after: int


class Span(NamedTuple):
    """A stretch of instants [start, end) in which a rule is asked about the wall clock at these offsets.

    More than one offset: times moved out of a gap mix with the regular ones. With `gap`, a stretch of one second: it is
    also a moment when the rule has one among the wall times of the gap.
    """

    start: int
    end: int
    offsets: tuple[int, ...]
    gap: tuple[int, int] | None


def zone_named(name: str | ZoneInfo) -> ZoneInfo:
    """The zone of an IANA name. Names that depend on the machine or count leap seconds are refused."""
    if isinstance(name, ZoneInfo):
        name = name.key or ""
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
        raise _no_zone(f"{_shown(name)} is not a time zone", name)
    if name == "localtime" or name.startswith(("posix", "right/")):
        raise _no_zone(f"{name!r} means something else on every machine", name)
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
    """Every change of the zone's clock that a rule can meet, in order."""
    # Probing by wall time is much faster than by instant; which side of a change a probe inside a gap or a
    # repeated hour falls on does not matter, because the search goes a day further to either side.
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
    """The stretches of instants in which a rule can have moments, in order and without overlap.

    `literal` takes the wall clock as it is. The others leave out what the clock shows again after it was set back, and
    treat the wall times of a gap by their name: `skip` drops them, `cron` gathers them at the first instant after the
    gap, `shift` keeps counting with the old offset for as long as the gap is wide.
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
        # What the clock showed up to here: anything below it is a repetition.
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
    """Pieces that may overlap, cut into spans that do not."""
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
    """A short hash of the zone's clock changes: it differs when an update of the zone data moves any of them.

    Taken over the changes and not over the file, so that nodes whose packagers store the same rules differently agree.
    """
    zone = zone_named(name)
    digest = hashlib.sha256(str(offset_at(zone, 0)).encode())
    for change in changes(zone):
        digest.update(b"%d %d %d;" % change)
    return digest.hexdigest()[:16]
