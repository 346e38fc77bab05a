"""Previews a change of a schedule: which fires it adds, removes and moves, and how many stay. Pure.

The fires before and after the change are listed for the same period and compared. Equal instants stay. The others of
one local day are paired in order, each with the nearest, as moved; the rest is added or removed.

The work is bounded: beyond `LISTED` fires a side is only counted, and the comparison ends with the shorter list.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import groupby, islice
from typing import Literal
from zoneinfo import ZoneInfo

import msgspec

from evertick.model import Occurrence
from evertick.when.base import When
from evertick.when.calendar import Calendar
from evertick.when.duration import duration_words
from evertick.when.moment import DAY, SECOND, from_us
from evertick.when.zone import changes

__all__ = [
    "LISTED",
    "ChangePlan",
    "ChangedFire",
    "Comparison",
    "Kind",
    "MovedFire",
    "OptionChange",
    "Side",
    "compare",
    "plan_change",
]

Kind = Literal["add", "update", "pause", "remove", "calendar"]

# At most this many fires of a side are listed; the others are counted.
LISTED = 2_000
_COUNT_MOST = 10**9
# Additional lines for a day with a clock change, enough for an hourly rule.
_LINES_OF_DAY = 25
_MINUTE_SECONDS = 60


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One side of the comparison: before or after the change. Without a rule there are no fires."""

    rule: When | None
    # The remaining fires of `max_fires`; None: no limit.
    left: int | None = None
    # The end of a pause.
    begins: int | None = None
    # The only known moment of a rule that counts from the end of its runs.
    only: int | None = None
    occurrences: tuple[Occurrence, ...] = ()
    blackout: Calendar | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The result of comparing two lists of fires. Times in microseconds, in order."""

    stays: tuple[int, ...]
    adds: tuple[int, ...]
    removes: tuple[int, ...]
    moves: tuple[tuple[int, int], ...]


class ChangedFire(msgspec.Struct, frozen=True, kw_only=True):
    """A fire that is added or removed, in the zone of its rule.

    `clock_change` describes a clock change on this day; usually empty.
    """

    at: datetime
    clock_change: str = ""


class MovedFire(msgspec.Struct, frozen=True, kw_only=True):
    """A fire with another time, each in the zone of its rule. `clock_change` is about the new day."""

    old: datetime
    new: datetime
    clock_change: str = ""

    @property
    def by(self) -> timedelta:
        return self.new - self.old


class OptionChange(msgspec.Struct, frozen=True, kw_only=True):
    """A changed option that does not affect the fires, as JSON text."""

    name: str
    old: str
    new: str


class ChangePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The preview of a change."""

    key: str
    kind: Kind
    # The rule before and after; None if there is none, or if the stored one cannot be read.
    when_old: str | None
    when_new: str | None
    # The end of the pause, if it has one.
    paused_until: datetime | None = None
    # The period of the comparison.
    since: datetime
    until: datetime
    # All fires in the period, before and after.
    fires_old: int
    fires_new: int
    # Compared up to `compared_until`, which is earlier than `until` if there were too many (`is_complete` False).
    stays: int
    adds: tuple[ChangedFire, ...]
    removes: tuple[ChangedFire, ...]
    moves: tuple[MovedFire, ...]
    compared_until: datetime
    is_complete: bool
    options: tuple[OptionChange, ...] = ()
    # Warnings for the user.
    notes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether no fire changes."""
        return not (self.adds or self.removes or self.moves) and self.fires_old == self.fires_new

    def words(self) -> str:
        """In one sentence: "k: 14 fires before, 14 after; 14 move; 1 of them on a day with a clock change: …"."""
        parts = [
            f"{count:,} {verb}"
            for count, verb in (
                (self.stays, "stay" if self.stays != 1 else "stays"),
                (len(self.moves), "move" if len(self.moves) != 1 else "moves"),
                (len(self.adds), "are added" if len(self.adds) != 1 else "is added"),
                (len(self.removes), "are removed" if len(self.removes) != 1 else "is removed"),
            )
            if count
        ]
        upto = "" if self.is_complete else f" up to {_shown(self.compared_until)}"
        count = f"{self.fires_old:,} fires before, {self.fires_new:,} after"
        return f"{self.key}: {count}; {', '.join(parts) or 'none'}{upto}{self._clock_words()}"

    def lines(self, most: int = 50) -> list[str]:
        """For a terminal: the rules, the summary, the changed fires in order, the notes.

        The first `most` fires, and later ones on days with a clock change.
        """
        return [
            self._head(),
            f"{_shown(self.since)} to {_shown(self.until)}",
            self.words(),
            *self._fire_lines(most),
            *([] if self._is_same_rule else self._option_lines()),
            *self.notes,
        ]

    def _head(self) -> str:
        """The change: of the rule, else of the options, else of the calendar."""
        if not self._is_same_rule:
            return f"{self.key}: {self._before()} -> {self._after()}"
        if self.options:
            return f"{self.key}: {', '.join(self._option_lines())}"
        return f"{self.key}: {'its calendar changes' if self.kind == 'calendar' else 'stays as it is'}"

    @property
    def _is_same_rule(self) -> bool:
        return self.kind in ("update", "calendar") and self.when_old is not None and self.when_old == self.when_new

    def _option_lines(self) -> list[str]:
        return [f"{option.name}: {option.old} -> {option.new}" for option in self.options]

    def _before(self) -> str:
        return self.when_old or ("new" if self.kind == "add" else "a rule that cannot be read")

    def _after(self) -> str:
        if self.kind == "pause":
            return "paused" if self.paused_until is None else f"paused until {_shown(self.paused_until)}"
        return "removed" if self.kind == "remove" else self.when_new or "nothing fires"

    def _clock_words(self) -> str:
        """The number of changed fires on days with a clock change, and the days."""
        turned = [row.day for row in self._rows() if row.clock_change]
        if not turned:
            return ""
        days = list(dict.fromkeys(turned))
        on = "a day" if len(days) == 1 else "days"
        return f"; {len(turned):,} of them on {on} with a clock change: {', '.join(days)}"

    def _fire_lines(self, most: int) -> Iterator[str]:
        hidden, of_day = 0, Counter[str]()
        for place, row in enumerate(self._rows()):
            if place >= most and row.clock_change:
                of_day[row.day] += 1
            if place < most or (row.clock_change and of_day[row.day] <= _LINES_OF_DAY):
                if hidden:
                    yield f"  … and {hidden:,} more"
                hidden = 0
                yield row.line()
            else:
                hidden += 1
        if hidden:
            yield f"  … and {hidden:,} more"

    def _rows(self) -> list[_Row]:
        rows = [
            *(_Row(fire.at, "+", fire.clock_change) for fire in self.adds),
            *(_Row(fire.at, "-", fire.clock_change) for fire in self.removes),
            *(_Row(move.old, "~", move.clock_change, move.new) for move in self.moves),
        ]
        return sorted(rows, key=lambda row: (row.at, row.sign))


class _Row(msgspec.Struct, frozen=True):
    """A changed fire for display."""

    at: datetime
    sign: str
    clock_change: str
    to: datetime | None = None

    @property
    def day(self) -> str:
        """The day of `clock_change`."""
        return (self.to or self.at).strftime("%a %Y-%m-%d")

    def line(self) -> str:
        moved = "" if self.to is None else f" -> {_shown(self.to)}"
        return f"  {self.sign} {_shown(self.at)}{moved}{f' ({self.clock_change})' if self.clock_change else ''}"


def plan_change(
    key: str,
    kind: Kind,
    old: Side,
    new: Side,
    *,
    since: int,
    until: int,
    options: tuple[OptionChange, ...] = (),
    notes: tuple[str, ...] = (),
) -> ChangePlan:
    """The fires in (since, until] before and after a change, compared."""
    before, after = _listed(old, since, until), _listed(new, since, until)
    upto = min(until, before.upto, after.upto)
    zone_old, zone_new = _zone(old, new), _zone(new, old)
    compared = compare(_until(before.moments, upto), _until(after.moments, upto), zone_new)
    return ChangePlan(
        key=key,
        kind=kind,
        when_old=None if old.rule is None else old.rule.text,
        when_new=None if new.rule is None else new.rule.text,
        paused_until=from_us(new.begins, zone_new) if kind == "pause" and new.begins is not None else None,
        since=from_us(since, zone_new),
        until=from_us(until, zone_new),
        fires_old=before.count,
        fires_new=after.count,
        stays=len(compared.stays),
        adds=tuple(_changed(at, zone_new) for at in compared.adds),
        removes=tuple(_changed(at, zone_old) for at in compared.removes),
        moves=tuple(
            MovedFire(old=from_us(at, zone_old), new=from_us(to, zone_new), clock_change=clock_change(zone_new, to))
            for at, to in compared.moves
        ),
        compared_until=from_us(upto, zone_new),
        is_complete=upto == until,
        options=options,
        notes=notes if upto == until else (*notes, *_uncompared_changes(zone_new, upto, until)),
    )


def compare(old: Sequence[int], new: Sequence[int], zone: ZoneInfo) -> Comparison:
    """Compare two sorted lists of instants; the unequal ones of one local day are paired."""
    both = set(old) & set(new)
    left: list[tuple[int, bool]] = sorted(
        [*((at, False) for at in old if at not in both), *((at, True) for at in new if at not in both)]
    )
    adds, removes, moves = list[int](), list[int](), list[tuple[int, int]]()
    for _, same_day in groupby(left, key=lambda each: from_us(each[0], zone).date()):
        day = list(same_day)
        gone, come = [at for at, is_new in day if not is_new], [at for at, is_new in day if is_new]
        pairs = _paired(gone, come)
        moves += pairs
        removes += sorted(set(gone) - {before for before, _ in pairs})
        adds += sorted(set(come) - {after for _, after in pairs})
    return Comparison(stays=tuple(sorted(both)), adds=tuple(adds), removes=tuple(removes), moves=tuple(moves))


def _paired(old: Sequence[int], new: Sequence[int]) -> list[tuple[int, int]]:
    """Pair each of the shorter list with the nearest of the longer one, in order, so that moves never cross."""
    if len(old) > len(new):
        return [(before, after) for after, before in _paired(new, old)]
    pairs, free = list[tuple[int, int]](), 0
    for place, at in enumerate(old):
        # Enough must remain for the others.
        last = len(new) - (len(old) - place)
        chosen = bisect_left(new, at, free, last)
        if chosen > free and at - new[chosen - 1] <= new[chosen] - at:
            chosen -= 1
        pairs.append((at, new[chosen]))
        free = chosen + 1
    return pairs


# --- listing ---------------------------------------------------------------------------------------------------------


class _Listed(msgspec.Struct, frozen=True):
    """All fires up to `upto`, and the number of all fires."""

    moments: list[int]
    count: int
    upto: int


def _listed(side: Side, since: int, until: int) -> _Listed:
    if side.rule is None:
        return _Listed([], 0, until)
    if side.only is not None:
        moments = [side.only] if since < side.only <= until else []
        return _Listed(moments, len(moments), until)
    since = since if side.begins is None else max(since, side.begins - 1)
    most = _COUNT_MOST if side.left is None else max(side.left, 0)
    count = min(side.rule.count_us(since + 1, until, _COUNT_MOST), most)
    if count > LISTED:
        listed = list(islice(_moments(side.rule, since, until), LISTED))
        return _Listed(_decided(side, listed, since, listed[-1]), count, listed[-1])
    moments = _decided(side, list(islice(_moments(side.rule, since, until), most)), since, until)
    return _Listed(moments, len(moments), until)


def _moments(rule: When, since: int, until: int) -> Iterator[int]:
    at = rule.next_us(since)
    while at is not None and at <= until:
        yield at
        at = rule.next_us(at)


def _decided(side: Side, moments: list[int], since: int, until: int) -> list[int]:
    """Apply overrides and blackout: without skipped moments, and with moved ones at their new time."""
    apart = {each.fire_at for each in side.occurrences}
    stay = (at for at in moments if at not in apart and (side.blackout is None or side.blackout.permits(at)))
    moved = (each.to for each in side.occurrences if each.to is not None and since < each.to <= until)
    return sorted({*stay, *moved})


def _until(moments: list[int], upto: int) -> list[int]:
    return [at for at in moments if at <= upto]


# --- words -----------------------------------------------------------------------------------------------------------


def clock_change(zone: ZoneInfo, moment: int) -> str:
    """The clock change on the local day of this moment, in words; empty if there is none."""
    day, all_changes = from_us(moment, zone).date(), changes(zone)
    first = bisect_left(all_changes, (moment - 2 * DAY) // SECOND, key=lambda change: change.at)
    for change in islice(all_changes, first, first + 4):
        if change.at * SECOND > moment + 2 * DAY:
            break
        turned = from_us(change.at * SECOND - 1, zone)
        if day in (turned.date(), from_us(change.at * SECOND, zone).date()):
            way = "forward" if change.after > change.before else "back"
            size = duration_words(abs(change.after - change.before) * SECOND)
            wall = (turned + timedelta(microseconds=1)).strftime("%H:%M")
            return f"the clock goes {way} {size} at {wall}, from {_offset(change.before)} to {_offset(change.after)}"
    return ""


def _uncompared_changes(zone: ZoneInfo, upto: int, until: int) -> Iterator[str]:
    """Notes about clock changes after the compared period."""
    all_changes = changes(zone)
    first = bisect_right(all_changes, upto // SECOND, key=lambda change: change.at)
    for change in islice(all_changes, first, None):
        if change.at * SECOND > until:
            return
        day = from_us(change.at * SECOND, zone).strftime("%a %Y-%m-%d")
        yield f"after what is compared, on {day}, {clock_change(zone, change.at * SECOND)}"


def _offset(seconds: int) -> str:
    minutes = abs(seconds) // _MINUTE_SECONDS
    return f"UTC{'-' if seconds < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}"


def _changed(moment: int, zone: ZoneInfo) -> ChangedFire:
    return ChangedFire(at=from_us(moment, zone), clock_change=clock_change(zone, moment))


def _zone(side: Side, other: Side) -> ZoneInfo:
    rule = side.rule or other.rule
    return ZoneInfo("UTC") if rule is None else rule.zone


def _shown(moment: datetime) -> str:
    seconds = ":%S" if moment.second else ""
    return moment.strftime(f"%a %Y-%m-%d %H:%M{seconds} %Z")
