"""Pickles as data: what they say is read, and nothing that they name is imported or called.

A pickle is a program that names functions and has them called. Here every name stands for a `Seen`, which only
remembers what was done to it; only dates, times and zones, which have no effects, become what they are. So a pickle of
anybody may be looked at, and what it holds of classes that nobody here knows can be told by name.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from typing import Any

from evertick.errors import InvalidInput, InvalidWhen
from evertick.when.zone import zone_named

__all__ = ["Seen", "read_pickle", "seen_in"]

_BYTES_MAX = 1024 * 1024

# By module and name.
_HARMLESS: dict[tuple[str, str], Any] = {
    ("datetime", "datetime"): datetime,
    ("datetime", "date"): date,
    ("datetime", "time"): time,
    ("datetime", "timedelta"): timedelta,
    ("datetime", "timezone"): timezone,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("__builtin__", "set"): set,
    ("__builtin__", "frozenset"): frozenset,
}


class Seen(tzinfo):
    """An object that was not made: what it is called, what it was called with, what was put into it.

    It passes for a zone, because a datetime refuses anything else in that place.
    """

    kind = ""

    def __new__(cls, *args: Any, **named: Any) -> Seen:
        made = super().__new__(cls)
        made.args, made.named, made.state = args, named, {}
        made.items = []
        return made

    def __init__(self, *args: Any, **named: Any) -> None:
        """Nothing more: `__new__` has kept them."""

    args: tuple[Any, ...]
    named: dict[str, Any]
    state: dict[str, Any]
    items: list[Any]

    def __setstate__(self, state: Any) -> None:
        # With slots it is a pair: what was in the dictionary, and what was in the slots.
        parts = state if isinstance(state, tuple) else (state,)
        for part in parts:
            if isinstance(part, Mapping):
                self.state.update(part)

    def utcoffset(self, _: datetime | None, /) -> timedelta | None:
        return None

    def dst(self, _: datetime | None, /) -> timedelta | None:
        return None

    def tzname(self, _: datetime | None, /) -> str | None:
        return None

    def append(self, item: Any) -> None:
        self.items.append(item)

    def extend(self, items: Any) -> None:
        self.items.extend(items)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))

    def __repr__(self) -> str:
        return f"<{self.kind}>"


def read_pickle(data: bytes) -> Any:
    """What is in it. Raises InvalidInput where it is no pickle, or one that makes no sense."""
    if len(data) > _BYTES_MAX:
        raise InvalidInput(f"it has {len(data)} bytes, more than {_BYTES_MAX}")
    try:
        return _Reader(io.BytesIO(data)).load()
    except Exception as error:  # a broken pickle may raise anything
        raise InvalidInput(f"it cannot be read: {type(error).__name__}: {str(error)[:200]}") from None


def seen_in(data: Any) -> Iterator[Seen]:
    """The objects in it that were not made."""
    match data:
        case Seen():
            yield data
        case datetime() | time():
            yield from seen_in(data.tzinfo)
        case Mapping():
            for name, value in data.items():
                yield from seen_in(name)
                yield from seen_in(value)
        case list() | tuple() | set() | frozenset():
            for each in data:
                yield from seen_in(each)


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _HARMLESS.get((module, name)) or _ZONES.get((module, name)) or _seen(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        return _seen("persistent")(pid)


def _seen(kind: str) -> type[Seen]:
    return type("Seen", (Seen,), {"kind": kind})


def _zone(name: Any = "UTC", *_: Any) -> tzinfo:
    try:
        return zone_named(name)
    except InvalidWhen:
        return _seen("zone")(name)


class _ZoneClass:
    """Stands for `zoneinfo.ZoneInfo`."""

    _unpickle = staticmethod(_zone)


def _attribute(of: Any, name: Any) -> Any:
    """Stands for `getattr`, by which zones are pickled; of anything else there is nothing to be had."""
    return _zone if of is _ZoneClass and name == "_unpickle" else _seen("builtins.getattr")


_ZONES: dict[tuple[str, str], Any] = {
    ("zoneinfo", "ZoneInfo"): _ZoneClass,
    ("zoneinfo", "ZoneInfo._unpickle"): _zone,
    ("backports.zoneinfo", "ZoneInfo"): _ZoneClass,
    ("backports.zoneinfo", "ZoneInfo._unpickle"): _zone,
    ("builtins", "getattr"): _attribute,
    ("__builtin__", "getattr"): _attribute,
    ("pytz", "_p"): _zone,
    ("pytz", "_UTC"): _zone,
}
