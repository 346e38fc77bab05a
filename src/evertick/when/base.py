"""The base of all rules: public methods, bounds, calendar, jitter.

A rule is immutable and reads no clock. `Cron`, `Every` and `Once` compute their raw sequence (next, previous, count);
this file applies bounds and calendar to it.

Some rules are incomplete when they are written: `Once(after="10m")` needs the creation time, `H` needs the key of the
schedule. `bind` completes them; an incomplete rule raises an error that names what is missing.

The sequence of a rule is strictly increasing, and `previous` mirrors `next` exactly. All work is bounded: a search
through a closed calendar ends after `JUMPS` closed ranges or `HORIZON_US` of time, as if the sequence ended there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Literal, NoReturn, Self
from zoneinfo import ZoneInfo

import msgspec

from evertick.errors import InvalidWhen
from evertick.text.values import shown
from evertick.when.duration import Duration, duration_text, duration_us
from evertick.when.moment import DAY, EARLIEST, LATEST, from_us, moment_text, to_us
from evertick.when.spacing import nearest_moments
from evertick.when.zone import zone_fingerprint, zone_named

if TYPE_CHECKING:
    from evertick.when.calendar import Calendar

__all__ = ["COUNT_LIMIT", "HORIZON_US", "JUMPS", "UPCOMING_LIMIT", "Bounds", "JitterMode", "When", "check_name"]

JitterMode = Literal["stable", "fresh"]

# A gap is counted exactly up to this limit; beyond it the ledger has "at least".
COUNT_LIMIT = 100_000
UPCOMING_LIMIT = 10_000
# Thirteen years of a daily rule at an hour that is always closed; such a search ends within half a second.
JUMPS = 5_000
HORIZON_US = 50 * 366 * DAY

_NAME_LONGEST = 100
_NAME_ALSO = "._-"


class Bounds(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The limits of a rule's sequence, and the jitter of its fires. Times in microseconds.

    `start` and `end` are inclusive. The rule does not apply `max_fires`; the store counts the fires.
    """

    start: int | None = None
    end: int | None = None
    max_fires: int | None = None
    jitter: int = 0
    jitter_mode: JitterMode = "stable"
    calendar: str | None = None

    @classmethod
    def make(
        cls,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        max_fires: int | None = None,
        jitter: Duration | None = None,
        jitter_mode: JitterMode = "stable",
        calendar: str | Calendar | None = None,
    ) -> Bounds:
        """Check the arguments of a user."""
        start_us = None if start is None else to_us(start)
        end_us = None if end is None else to_us(end)
        _check_order(start_us, end_us)
        if max_fires is not None and (type(max_fires) is not int or max_fires < 1):
            raise InvalidWhen(
                f"max_fires: {shown(max_fires)} is not a whole number from 1 on",
                setting="max_fires",
                value=shown(max_fires),
            )
        if jitter_mode not in ("stable", "fresh"):
            raise InvalidWhen(
                f"jitter_mode: {shown(jitter_mode)} is neither 'stable' nor 'fresh'",
                setting="jitter_mode",
                value=shown(jitter_mode),
            )
        return cls(
            start=start_us,
            end=end_us,
            max_fires=max_fires,
            jitter=0 if jitter is None else duration_us(jitter, what="jitter"),
            jitter_mode=jitter_mode,
            calendar=None if calendar is None else _calendar_name(calendar),
        )

    def texts(self) -> Iterator[str]:
        """The bounds as `name=value`, in canonical order, without defaults."""
        if self.start is not None:
            yield f"start={moment_text(self.start)}"
        if self.end is not None:
            yield f"end={moment_text(self.end)}"
        if self.max_fires is not None:
            yield f"max_fires={self.max_fires}"
        if self.jitter:
            yield f"jitter={duration_text(self.jitter)}"
        if self.jitter_mode != "stable":
            yield f"jitter_mode={self.jitter_mode}"
        if self.calendar is not None:
            yield f"calendar={self.calendar}"

    def words(self) -> Iterator[str]:
        """The bounds in words, without defaults."""
        if self.calendar is not None:
            yield f"only when calendar {self.calendar!r} is open"
        if self.start is not None:
            yield f"from {moment_text(self.start)} on"
        if self.end is not None:
            yield f"until {moment_text(self.end)}"
        if self.max_fires is not None:
            yield f"at most {self.max_fires} {'time' if self.max_fires == 1 else 'times'}"
        if self.jitter:
            yield f"delayed by up to {duration_text(self.jitter)}"


def _check_order(start: int | None, end: int | None) -> None:
    if start is not None and end is not None and end < start:
        raise InvalidWhen(
            f"end {moment_text(end)} is before start {moment_text(start)}",
            setting="end",
            value=moment_text(end),
            fix="swap them",
        )


def _calendar_name(calendar: str | Calendar) -> str:
    return check_name(calendar if isinstance(calendar, str) else getattr(calendar, "name", calendar), what="calendar")


def check_name(name: object, *, what: str) -> str:
    """Check that the name can be part of the text of a rule: letters, digits, dot, dash, underscore."""
    if not isinstance(name, str):
        raise InvalidWhen(
            f"{what}: {shown(name)} is not a name", setting=what, value=shown(name), fix="pass a string or a Calendar"
        )
    if not 1 <= len(name) <= _NAME_LONGEST:
        raise InvalidWhen(f"{what}: {shown(name)} must have 1 to {_NAME_LONGEST} characters", setting=what)
    if not all(letter.isalnum() or letter in _NAME_ALSO for letter in name):
        raise InvalidWhen(f"{what}: {name!r} may contain only letters, digits, '.', '-' and '_'", setting=what)
    return name


def _checked_count(count: int) -> int:
    if type(count) is not int or not 0 <= count <= UPCOMING_LIMIT:
        problem = f"count: {shown(count)} is not a whole number from 0 to {UPCOMING_LIMIT}"
        raise InvalidWhen(problem, setting="count", value=shown(count))
    return count


# Bypasses `When.__setattr__`, which raises.
_set = object.__setattr__


@lru_cache(maxsize=64)
def _slots_of(kind: type) -> tuple[str, ...]:
    return tuple(name for each in kind.__mro__ for name in getattr(each, "__slots__", ()))


# The caches of a rule, empty.
_NO_CACHE: Final = {"_text": None, "_fingerprint": None, "_next": None}


class When(ABC):
    """The rule of a schedule: which moments are nominal, in which zone, and how far a fire may be delayed.

    A subclass's constructor calls `_fill_common` for the slots below, and `_fill` for its own. `is_zone_given`: the
    user gave the zone, or `bind` set it; otherwise `bind` may replace it.
    """

    __slots__ = ("_fingerprint", "_next", "_text", "bounds", "calendar", "is_zone_given", "zone")

    bounds: Bounds
    zone: ZoneInfo
    is_zone_given: bool
    calendar: Calendar | None
    _text: str | None
    _fingerprint: str | None
    # The last result of `next_us`: thousands of schedules with one rule ask for the same moment.
    _next: tuple[int, int | None] | None
    # Whether its next moment counts from the end of a run.
    is_after_end: bool = False

    # Methods that a rule implements, in microseconds, without bounds and calendar.

    @abstractmethod
    def _raw_next(self, after: int) -> int | None:
        """The first moment strictly after."""

    @abstractmethod
    def _raw_previous(self, before: int) -> int | None:
        """The last moment strictly before."""

    @abstractmethod
    def _raw_count(self, first: int, last: int, limit: int) -> int:
        """How many moments lie in [first, last], at most `limit`."""

    @abstractmethod
    def _rule_text(self) -> str:
        """The rule with its own options, without bounds; `parse_when` reads it back."""

    @abstractmethod
    def _words(self) -> str:
        """The rule in words, without bounds."""

    def _missing(self) -> str | None:
        """The input that `bind` must still give; None: the rule is complete."""
        return None

    def _repr_parts(self) -> tuple[str, list[str]]:
        """The first argument and the rule's own `name=value` options, as its constructor takes them."""
        head, *options = self._rule_text().split("; ")
        own = [f"{name}={value!r}" for name, _, value in (option.partition("=") for option in options)]
        return repr(head.partition(" ")[2]), own

    # Making and completing a rule.

    def _fill(self, **slots: object) -> None:
        """Set slots during construction; afterwards a rule does not change."""
        for name, value in slots.items():
            _set(self, name, value)

    def _fill_common(
        self, *, zone: ZoneInfo, is_zone_given: bool, bounds: Bounds, calendar: str | Calendar | None, **own: object
    ) -> None:
        """Set the slots that every rule has, and its own. `bind` resolves a calendar that is given by name."""
        resolved = None if calendar is None or isinstance(calendar, str) else calendar.in_zone(zone)
        self._fill(zone=zone, is_zone_given=is_zone_given, bounds=bounds, calendar=resolved, **_NO_CACHE, **own)

    def _with(self, **changes: object) -> Self:
        """A copy with some slots changed."""
        twin = object.__new__(type(self))
        changes = {**_NO_CACHE, **changes}
        for name in _slots_of(type(self)):
            _set(twin, name, changes[name] if name in changes else getattr(self, name))
        return twin

    def bind(self, *, key: str, created: int, tz: str = "UTC", calendars: Mapping[str, Calendar] | None = None) -> Self:
        """Complete the rule for the schedule `key`, created at `created`.

        `tz` is the zone if the rule has none. The calendar comes from `calendars`, or else from the rule. A subclass
        that needs more overrides this method and calls it first.
        """
        zone = self.zone if self.is_zone_given else zone_named(tz)
        calendar = self.calendar
        if self.bounds.calendar is not None:
            calendar = (calendars or {}).get(self.bounds.calendar, calendar)
            if calendar is None:
                raise InvalidWhen(
                    f"calendar {self.bounds.calendar!r} of {key!r} is not defined",
                    value=repr(self.bounds.calendar),
                    fix="define it first",
                )
            calendar = calendar.in_zone(zone)
        return self._with(zone=zone, is_zone_given=True, calendar=calendar)

    def starting_at(self, start: int) -> Self:
        """The same rule with another start; parts that do not depend on the start are shared."""
        _check_order(start, self.bounds.end)
        return self._with(bounds=msgspec.structs.replace(self.bounds, start=start))

    @property
    def is_complete(self) -> bool:
        """Whether the rule has moments without `bind`."""
        return self._missing() is None and (self.bounds.calendar is None or self.calendar is not None)

    def _check_complete(self) -> None:
        missing = self._missing()
        if missing is None and self.bounds.calendar is not None and self.calendar is None:
            missing = f"the calendar {self.bounds.calendar!r}"
        if missing is not None:
            raise InvalidWhen(
                f"{self.text!r} has no moments yet: it lacks {missing}",
                value=repr(self.text),
                fix="bind it to a schedule first",
            )

    def _reach(self) -> tuple[int, int]:
        """The first and the last possible moment of the sequence."""
        start, end = self.bounds.start, self.bounds.end
        return EARLIEST if start is None else max(EARLIEST, start), LATEST if end is None else min(LATEST, end)

    # The sequence, in microseconds.

    def next_us(self, after: int) -> int | None:
        """The first moment strictly after, or None when there is none."""
        last = self._next
        if last is not None and last[0] == after:
            return last[1]
        found = self._find_next(after)
        _set(self, "_next", (after, found))
        return found

    def _find_next(self, after: int) -> int | None:
        self._check_complete()
        lowest, highest = self._reach()
        after = max(after, lowest - 1)
        horizon = after + HORIZON_US
        for _ in range(JUMPS):
            found = self._raw_next(after) if after < highest else None
            if found is None or found > highest:
                return None
            assert found > after, "a rule went backwards"
            opens = found if self.calendar is None else self.calendar.next_open(found)
            if opens == found:
                return found
            if opens is None or opens > horizon:
                return None
            after = opens - 1
        return None

    def previous_us(self, before: int) -> int | None:
        """The last moment strictly before, or None when there is none."""
        self._check_complete()
        lowest, highest = self._reach()
        before = min(before, highest + 1)
        horizon = before - HORIZON_US
        for _ in range(JUMPS):
            found = self._raw_previous(before) if before > lowest else None
            if found is None or found < lowest:
                return None
            assert found < before, "a rule went forwards"
            opened = found if self.calendar is None else self.calendar.previous_open(found)
            if opened == found:
                return found
            if opened is None or opened < horizon:
                return None
            before = opened + 1
        return None

    def count_us(self, first: int, last: int, limit: int = COUNT_LIMIT) -> int:
        """How many moments lie in [first, last], at most `limit`.

        With a calendar it counts one open range at a time, and stops after `JUMPS` of them: a lower bound then.
        """
        self._check_complete()
        lowest, highest = self._reach()
        first, last = max(first, lowest), min(last, highest)
        if first > last or limit <= 0:
            return 0
        if self.calendar is None:
            return self._raw_count(first, last, limit)
        return self._count_open(self.calendar, first, last, limit)

    def _count_open(self, calendar: Calendar, first: int, last: int, limit: int) -> int:
        count, at = 0, first
        for _ in range(2 * JUMPS):  # one step for an open range, one for a closed one
            found = self._raw_next(at - 1)
            if found is None or found > last or count >= limit:
                break
            opens = calendar.next_open(found)
            if opens is None:
                break
            if opens == found:
                opens = calendar.open_until(found, last + 1)
                count += self._raw_count(found, opens - 1, limit - count)
            at = opens
        return count

    # Jitter.

    def jitter_cap_us(self, fire_at: int) -> int:
        """The limit of this fire's delay: the jitter, or the distance to the next fire if that is less."""
        if not self.bounds.jitter:
            return 0
        following = self.next_us(fire_at)
        return self.bounds.jitter if following is None else min(self.bounds.jitter, following - fire_at)

    def jitter_us(self, fire_at: int, key: str) -> int:
        """The delay of this fire of the schedule `key`, the same on every node and in every call.

        0 without jitter, and in fresh mode, where the plan draws and stores a delay below `jitter_cap_us`.
        """
        cap = self.jitter_cap_us(fire_at) if self.bounds.jitter_mode == "stable" else 0
        if cap == 0:
            return 0
        digest = blake2b(f"{fire_at} {key}".encode(errors="surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest, "big") * cap >> 64

    # The sequence, as datetimes.

    def next_after(self, moment: datetime) -> datetime | None:
        """The first moment strictly after, in the rule's zone."""
        found = self.next_us(to_us(moment))
        return None if found is None else from_us(found, self.zone)

    def previous_before(self, moment: datetime) -> datetime | None:
        """The last moment strictly before, in the rule's zone."""
        found = self.previous_us(to_us(moment))
        return None if found is None else from_us(found, self.zone)

    def upcoming(self, after: datetime, count: int) -> list[datetime]:
        """The next `count` moments, fewer if the sequence ends."""
        return [from_us(us, self.zone) for us in self._upcoming_us(to_us(after), count)]

    def minimum_distance(self, after: datetime, count: int = 100) -> timedelta | None:
        """The shortest distance between two consecutive moments; None for fewer than two.

        Checks the next `count` moments, and those around the clock changes of the coming year.
        """
        nearest = nearest_moments(self, to_us(after), _checked_count(count))
        return None if nearest is None else timedelta(microseconds=nearest[1] - nearest[0])

    def _upcoming_us(self, after: int, count: int) -> Iterator[int]:
        for _ in range(_checked_count(count)):
            found = self.next_us(after)
            if found is None:
                return
            yield found
            after = found

    def explain(self) -> str:
        """The rule in words: "At 09:00, Monday to Friday, in Europe/Berlin, only when calendar 'business' is open"."""
        return ", ".join([self._words(), *self.bounds.words()])

    # Identity.

    @property
    def text(self) -> str:
        """The canonical text. Equal rules have the same text, and `parse_when` reads it back."""
        if self._text is None:
            self._fill(_text="; ".join([self._rule_text(), *self.bounds.texts()]))
        assert self._text is not None
        return self._text

    @property
    def fingerprint(self) -> str:
        """A hash of the zone's clock changes and the calendar: if it changes, cursors are computed again."""
        if self._fingerprint is None:
            self._fill(_fingerprint=self._make_fingerprint())
        assert self._fingerprint is not None
        return self._fingerprint

    def _make_fingerprint(self) -> str:
        zone, calendar = self.zone.key, self.calendar
        if calendar is None:
            return _hashed(f"{zone}={zone_fingerprint(zone)}")
        parts = [f"{name}={zone_fingerprint(name)}" for name in dict.fromkeys((zone, calendar.zone.key))]
        return _hashed(" ".join([*parts, f"{calendar.name}={calendar.version}"]))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        first, options = self._repr_parts()
        bounds = [f"{name}={value!r}" for name, _, value in (text.partition("=") for text in self.bounds.texts())]
        return f"{type(self).__name__}({', '.join([first, *options, *bounds])})"

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, When) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a rule is immutable; make a new {type(self).__name__} instead of setting {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a rule is immutable; {name!r} cannot be deleted")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        # Text, unlike slots, is compatible with other versions of Evertick.
        return _restore, (self.text, self.calendar)


# Many rules share a few zones.
@lru_cache(maxsize=1024)
def _hashed(parts: str) -> str:
    return blake2b(parts.encode(), digest_size=8).hexdigest()


def _restore(text: str, calendar: Calendar | None) -> When:
    from evertick.when.text import parse_when

    return parse_when(text, {} if calendar is None else {calendar.name: calendar})
