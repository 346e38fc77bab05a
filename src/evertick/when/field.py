"""One field of a cron expression: its text is parsed into items, and the items into a set of values.

Pure. A set is an integer with one bit per value. Days that depend on the month (`L`, `15W`, `5#2`) stay items; `H`
stays an item until the key of the schedule is known.

The canonical text keeps the order and the form of the items, with numbers for names. It keeps a leading `*`, which
matters for the day rule and for clock changes.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import NamedTuple, NoReturn, assert_never

import msgspec

from evertick.errors import InvalidWhen

__all__ = [
    "DAY", "HOUR", "MINUTE", "MONTH", "SECOND", "WEEKDAY", "YEAR",
    "Field", "Item", "Kind", "LastDay", "LastWeekday", "LastWorkday", "NearestWorkday", "NthWeekday", "Spread",
    "Values", "parse_field", "values_of",
]  # fmt: skip


class Kind(NamedTuple):
    """The name of a field and its allowed values."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return self.high - self.low + 1

    @property
    def allowed(self) -> str:
        also = f" or {self.names[0]}-{self.names[-1]}" if self.names else ""
        return f"{self.low}-{7 if self == WEEKDAY else self.high}{also}"


SECOND = Kind("second", 0, 59)
MINUTE = Kind("minute", 0, 59)
HOUR = Kind("hour", 0, 23)
DAY = Kind("day-of-month", 1, 31)
MONTH = Kind("month", 1, 12, ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"))
WEEKDAY = Kind("day-of-week", 0, 6, ("sun", "mon", "tue", "wed", "thu", "fri", "sat"))
YEAR = Kind("year", 1970, 2099)

# Every month has these days, so a schedule with H fires in each of them.
_LAST_SPREAD_DAY = 28


class Values(msgspec.Struct, frozen=True):
    """`*`, `5`, `1-5`, `22-2`, `*/10`, `3/10`: every step-th value from low on; high below low wraps around."""

    low: int
    high: int
    step: int = 1
    is_star: bool = False
    is_open: bool = False  # written `a/n`: up to the maximum


class Spread(msgspec.Struct, frozen=True):
    """`H`, `H(a-b)`, `H/n`, `H(a-b)/n`: a value of the range (or a start and every step-th), chosen by the key."""

    low: int
    high: int
    step: int = 0
    is_whole: bool = True  # written without a range


class LastDay(msgspec.Struct, frozen=True):
    """`L`, `L-3`: the last day of the month, or n days before it."""

    back: int


class LastWorkday(msgspec.Struct, frozen=True):
    """`LW`: the last Monday-to-Friday of the month."""


class NearestWorkday(msgspec.Struct, frozen=True):
    """`15W`: the Monday-to-Friday nearest to the day, within its month."""

    day: int


class NthWeekday(msgspec.Struct, frozen=True):
    """`5#2`: the second Friday of the month."""

    weekday: int
    nth: int


class LastWeekday(msgspec.Struct, frozen=True):
    """`5L`: the last Friday of the month."""

    weekday: int


Item = Values | Spread | LastDay | LastWorkday | NearestWorkday | NthWeekday | LastWeekday

_STAR = re.compile(r"\*(?:/(\d+))?", re.ASCII)
_VALUES = re.compile(r"(\d+|[a-z]{3})(?:-(\d+|[a-z]{3}))?(?:/(\d+))?", re.ASCII)
_SPREAD = re.compile(r"h(?:\((\d+|[a-z]{3})-(\d+|[a-z]{3})\))?(?:/(\d+))?", re.ASCII)
_LAST_DAY = re.compile(r"l(?:-(\d+))?", re.ASCII)
_NEAREST = re.compile(r"(\d+)w", re.ASCII)
_NTH = re.compile(r"(\d+|[a-z]{3})#(\d+)", re.ASCII)
_LAST_OF = re.compile(r"(\d+|[a-z]{3})#?l", re.ASCII)
_MOST_DIGITS = 4


class Field(msgspec.Struct, frozen=True):
    """A parsed field: its kind and its items, in order, without duplicates."""

    kind: Kind
    items: tuple[Item, ...]

    @property
    def text(self) -> str:
        return ",".join(_item_text(self.kind, item) for item in self.items)

    @property
    def begins_with_star(self) -> bool:
        first = self.items[0]
        return isinstance(first, Values) and first.is_star

    @property
    def is_any(self) -> bool:
        """Whether it is a plain `*`."""
        return self.items == (_any(self.kind),)

    @property
    def is_spread(self) -> bool:
        return any(isinstance(item, Spread) for item in self.items)

    def settled(self, key: str) -> Field:
        """The field with each `H` replaced by the values of this key."""
        items = tuple(_settle(self.kind, item, key) if isinstance(item, Spread) else item for item in self.items)
        return Field(self.kind, items)

    def mask(self) -> int:
        """The set of its values, without items that depend on the month."""
        mask = 0
        for item in self.items:
            if isinstance(item, Values):
                for value in values_of(self.kind, item):
                    mask |= 1 << value
        return mask


def values_of(kind: Kind, item: Values) -> list[int]:
    """The values of an item, in the order of a wrapping range."""
    high = item.high if item.high >= item.low else item.high + kind.size
    walk = range(item.low, high + 1, item.step)
    return [value if value <= kind.high else value - kind.size for value in walk]


@lru_cache(maxsize=4096)
def parse_field(kind: Kind, text: str) -> Field:
    """Parse a field. The error names the token, the field and the allowed values."""
    if text == "?" and kind in (DAY, WEEKDAY):
        text = "*"
    items = [_parse_item(kind, token) for token in text.split(",")]
    return Field(kind, tuple(dict.fromkeys(items)))


def _parse_item(kind: Kind, token: str) -> Item:
    lower = token.lower()
    special = _parse_special(kind, token, lower)
    if special is not None:
        return special
    if found := _STAR.fullmatch(lower):
        return Values(kind.low, kind.high, _step(kind, token, found[1]), is_star=True)
    if found := _SPREAD.fullmatch(lower):
        return _parse_spread(kind, token, found)
    found = _VALUES.fullmatch(lower)
    if found is None:
        _refuse(kind, token)
    return _parse_values(kind, token, found)


def _parse_special(kind: Kind, token: str, lower: str) -> Item | None:
    if kind == DAY:
        if lower == "lw":
            return LastWorkday()
        if found := _LAST_DAY.fullmatch(lower):
            back = int(found[1][:_MOST_DIGITS]) if found[1] else 0
            if back >= DAY.high:
                _refuse(kind, token, "L-n goes back 0 to 30 days from the last one")
            return LastDay(back)
        if found := _NEAREST.fullmatch(lower):
            return NearestWorkday(_value(kind, token, found[1]))
    if kind == WEEKDAY:
        if found := _LAST_OF.fullmatch(lower):
            return LastWeekday(_value(kind, token, found[1]) % 7)
        if found := _NTH.fullmatch(lower):
            if found[2] not in ("1", "2", "3", "4", "5"):
                _refuse(kind, token, "a month has a weekday 1 to 5 times, so write #1 to #5, or 5L for the last Friday")
            return NthWeekday(_value(kind, token, found[1]) % 7, int(found[2]))
    return None


def _parse_values(kind: Kind, token: str, found: re.Match[str]) -> Values:
    low = _value(kind, token, found[1])
    step = _step(kind, token, found[3])
    if found[2] is None:
        low = low % 7 if kind == WEEKDAY else low
        return Values(low, kind.high, step, is_open=True) if found[3] else Values(low, low)
    high = _value(kind, token, found[2])
    if kind == WEEKDAY:
        # 7 is Sunday: after Saturday as the end of a range, otherwise 0.
        if low == 7:
            low, high = 0, high % 7
        elif (low, high) == (0, 7):
            high = 6
    if kind == YEAR and high < low:
        _refuse(kind, token, "years do not wrap around")
    return Values(low, high, step if high != low else 1)


def _parse_spread(kind: Kind, token: str, found: re.Match[str]) -> Spread:
    if kind == YEAR:
        _refuse(kind, token, "H spreads within a year, not over years")
    step = _step(kind, token, found[3]) if found[3] else 0
    if found[1] is None:
        return Spread(kind.low, _LAST_SPREAD_DAY if kind == DAY else kind.high, step)
    low, high = _value(kind, token, found[1]), _value(kind, token, found[2])
    if high < low or high > kind.high:
        _refuse(kind, token, f"H(a-b) takes a range that does not wrap around, within {kind.low}-{kind.high}")
    return Spread(low, high, step, is_whole=False)


def _value(kind: Kind, token: str, text: str) -> int:
    if text in kind.names:
        return kind.names.index(text) + kind.low
    value = int(text) if text.isdigit() and len(text) <= _MOST_DIGITS else -1
    if not kind.low <= value <= (7 if kind == WEEKDAY else kind.high):
        _refuse(kind, token)
    return value


def _step(kind: Kind, token: str, text: str | None) -> int:
    if text is None:
        return 1
    step = int(text) if len(text) <= _MOST_DIGITS else 0
    if not 1 <= step <= kind.size:
        _refuse(kind, token, f"a step counts within the field and must be 1-{kind.size}")
    return step


def _refuse(kind: Kind, token: str, why: str = "") -> NoReturn:
    shown = token if len(token) <= 40 else token[:40] + "…"
    hint = why or f"allowed are {kind.allowed}, ranges, lists and steps of them{_ALSO.get(kind.name, '')}"
    problem = f"{shown!r} in the {kind.name} field: {hint}{'' if why else _name_meant(kind, token)}"
    raise InvalidWhen(problem, value=repr(shown))


def _name_meant(kind: Kind, token: str) -> str:
    """The fix for a word that is similar to a name or its beginning."""
    # Imported here: the import takes milliseconds, and only an error needs it.
    from evertick.text.did_you_mean import alike

    names = _WHOLE_NAMES.get(kind.name, ())
    for word in re.findall("[a-z]{2,20}", token.lower()):
        meant: list[str | None] = [name for name in names if name.startswith(word)]
        match meant or [alike(word, names)]:
            case [str(name)] if word not in kind.names:
                return f"; for {word!r} write {name[:3]!r}"
    return ""


_WHOLE_NAMES = {
    MONTH.name: (
        *("january", "february", "march", "april", "may", "june"),
        *("july", "august", "september", "october", "november", "december"),
    ),
    WEEKDAY.name: ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"),
}
_ALSO = {
    "second": ", *, H",
    "minute": ", *, H",
    "hour": ", *, H",
    "day-of-month": ", *, ?, L, L-n, 15W, LW, H",
    "month": ", *, H",
    "day-of-week": ", *, ?, 5L, 5#2, H",
    "year": ", *",
}


def _any(kind: Kind) -> Values:
    return Values(kind.low, kind.high, is_star=True)


def _settle(kind: Kind, item: Spread, key: str) -> Values:
    digest = hashlib.sha256(f"{kind.name}\0{key}".encode(errors="surrogatepass")).digest()
    number = int.from_bytes(digest[:8], "big")
    width = item.high - item.low + 1
    if not item.step:
        value = item.low + number % width
        return Values(value, value)
    return Values(item.low + number % min(item.step, width), item.high, item.step)


def _item_text(kind: Kind, item: Item) -> str:
    match item:
        case Values():
            step = f"/{item.step}" if item.step > 1 or item.is_open else ""
            if item.is_star:
                return "*" + step
            if item.is_open or item.low == item.high:
                return f"{item.low}{step}"
            return f"{item.low}-{item.high}{step}"
        case Spread():
            range_text = "" if item.is_whole else f"({item.low}-{item.high})"
            return f"H{range_text}" + (f"/{item.step}" if item.step else "")
        case LastDay():
            return f"L-{item.back}" if item.back else "L"
        case LastWorkday():
            return "LW"
        case NearestWorkday():
            return f"{item.day}W"
        case NthWeekday():
            return f"{item.weekday}#{item.nth}"
        case LastWeekday():
            return f"{item.weekday}L"
        case _:
            assert_never(item)
