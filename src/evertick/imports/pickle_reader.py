"""Pickles as data: nothing that they name is imported or called.

A pickle is a program that names functions and has them called. Here a small machine goes over its steps, and every
name stands for a `PickledObject`, which only remembers what was done to it; only dates, times and zones, which have no
effects, become what they are. So a pickle of any origin may be read, and objects of unknown classes can be named.

A few bytes can stand for more than fits into a computer: lists that hold the one before twice, a tuple ten thousand
deep, a place far beyond the end of the memo. So steps and copies are counted, nothing is hashed or compared before its
size is known, and the result is measured as it would be written, before other code walks it.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from functools import partialmethod
from typing import Any

from evertick.errors import InvalidInput, InvalidWhen
from evertick.text.printable import printable
from evertick.when.zone import zone_named

__all__ = ["BYTES_MAX", "PickledObject", "objects_in", "read_pickle"]

BYTES_MAX = 1024 * 1024
_STEPS_MAX = 200_000
# As it would be written: what is held twice counts twice.
_PARTS_MAX = 100_000
_CHARS_MAX = 1024 * 1024
# Parts and characters that steps may copy, over and over.
_COPIED_MAX = 4_000_000
# A name of a zone that is not known is looked for in many files.
_ZONE_COST = 1_000
# As deep as others can walk it by recursion.
_DEPTH_MAX = 50
_INT_MAX_BITS = 64
# Keys and members of sets that are more than text and numbers: how many, and how many parts each may have.
_KEYS_MAX, _KEY_PARTS_MAX = 1_000, 20
_KIND_MAX_CHARS = 200

_PLAIN = (str, bytes, int, float, bool, type(None))
# Steps that put a value onto the stack, which stands behind them.
_VALUES = frozenset(
    (
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    )
)
_NEW: Mapping[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "EMPTY_SET": set,
}
_NOTHING = frozenset(("PROTO", "FRAME"))


class PickledObject(tzinfo):
    """An object that was not made: what it is called, what it was called with, what was put into it.

    It passes for a zone, because a datetime refuses anything else in that place.
    """

    kind: str
    args: tuple[Any, ...]
    named: dict[str, Any]
    state: dict[str, Any]
    items: list[Any]

    def __new__(cls, kind: str = "", args: Iterable[Any] = (), named: Mapping[str, Any] | None = None) -> PickledObject:
        made = super().__new__(cls)
        made.kind = printable(kind[:_KIND_MAX_CHARS])
        made.args, made.named, made.state = tuple(args), dict(named or {}), {}
        made.items = []
        return made

    def __init__(self, *_: Any) -> None:
        """Nothing more: `__new__` has kept them."""

    def utcoffset(self, _: datetime | None, /) -> timedelta | None:
        return None

    def dst(self, _: datetime | None, /) -> timedelta | None:
        return None

    def tzname(self, _: datetime | None, /) -> str | None:
        return None

    def __repr__(self) -> str:
        return f"<{self.kind}>"


class _Name(PickledObject):
    """A class or function that a pickle names."""


def read_pickle(data: bytes) -> Any:
    """Its content. Raises InvalidInput where it is no valid pickle, or holds too much."""
    if len(data) > BYTES_MAX:
        raise InvalidInput(f"it has more than {BYTES_MAX} bytes")
    try:
        made = _Machine().run(data)
    except InvalidInput:
        raise
    except Exception as error:  # a broken pickle may raise anything
        raise InvalidInput(f"it cannot be read: {type(error).__name__}: {printable(str(error)[:200])}") from None
    _measure(made)
    return made


def objects_in(data: Any) -> Iterator[PickledObject]:
    """The objects in it that were not made."""
    match data:
        case PickledObject():
            yield data
        case datetime() | time():
            yield from objects_in(data.tzinfo)
        case Mapping():
            for name, value in data.items():
                yield from objects_in(name)
                yield from objects_in(value)
        case list() | tuple() | set() | frozenset():
            for each in data:
                yield from objects_in(each)


def _measure(data: Any, *, parts_max: int = _PARTS_MAX) -> None:
    """Refuse a value that is too large to walk through."""
    left: list[tuple[Any, int]] = [(data, 0)]
    parts, chars = 1, 0
    while left:
        value, depth = left.pop()
        chars += len(value) if isinstance(value, str | bytes | bytearray) else 0
        inner = _inside(value)
        parts += sum(map(len, inner))
        if parts > parts_max or chars > _CHARS_MAX:
            raise InvalidInput("it holds more than a job can, counting what it holds several times as often")
        if depth > _DEPTH_MAX:
            raise InvalidInput(f"it is nested more than {_DEPTH_MAX} deep")
        left += [(each, depth + 1) for some in inner for each in some]


def _inside(value: Any) -> tuple[Any, ...]:
    """Its parts, as collections."""
    match value:
        case PickledObject():
            return value.args, value.named.values(), value.state.keys(), value.state.values(), value.items
        case datetime() | time():
            return ((value.tzinfo,),) if isinstance(value.tzinfo, PickledObject) else ()
        case dict():
            return value.keys(), value.values()
        case list() | tuple() | set() | frozenset():
            return (value,)
        case _:
            return ()


class _Machine:
    """Goes over the steps of a pickle, as the module pickle does."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        # The stacks below each mark.
        self._below: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._keys = 0
        self._copied = 0

    def _spend(self, count: int) -> None:
        self._copied += count
        if self._copied > _COPIED_MAX:
            raise InvalidInput("it does more than the pickle of a job ever does")

    def run(self, data: bytes) -> Any:
        for number, (step, argument, _) in enumerate(pickletools.genops(data)):
            if number >= _STEPS_MAX:
                raise InvalidInput(f"it has more than {_STEPS_MAX} steps")
            if step.name == "STOP":
                return self._stack.pop()
            if step.name in _VALUES:
                self._stack.append(_checked(argument))
            elif step.name in _NEW:
                self._stack.append(_NEW[step.name]())
            elif step.name not in _NOTHING:
                do = getattr(self, f"_{step.name.lower()}", None)
                if do is None:
                    raise InvalidInput(f"it has a step {step.name}, which the pickle of a job never has")
                do(*(() if step.arg is None else (argument,)))
        raise InvalidInput("it has no end")

    # --- the stack, and what is remembered

    def _mark(self) -> None:
        self._below.append(self._stack)
        self._stack = []

    def _marked(self) -> list[Any]:
        """The values above the mark."""
        found, self._stack = self._stack, self._below.pop()
        return found

    def _pop(self) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self._marked()

    def _pop_mark(self) -> None:
        self._marked()

    def _dup(self) -> None:
        self._stack.append(self._stack[-1])

    def _memoize(self) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _put(self, place: int) -> None:
        self._memo[place] = self._stack[-1]

    _binput = _long_binput = _put

    def _get(self, place: int) -> None:
        self._stack.append(self._memo[place])

    _binget = _long_binget = _get

    # --- collections

    def _tuple(self) -> None:
        found = self._marked()
        self._stack.append(tuple(found))

    def _tuple_of(self, count: int) -> None:
        # One by one: a stack that is too short raises.
        self._stack[-count:] = [tuple(self._stack[-place] for place in range(count, 0, -1))]

    _tuple1 = partialmethod(_tuple_of, 1)
    _tuple2 = partialmethod(_tuple_of, 2)
    _tuple3 = partialmethod(_tuple_of, 3)

    def _list(self) -> None:
        found = self._marked()
        self._stack.append(found)

    def _dict(self) -> None:
        found = self._marked()
        self._stack.append({})
        self._set(found)

    def _frozenset(self) -> None:
        found = self._marked()
        self._stack.append(self._members(found, frozenset))

    def _append(self) -> None:
        item = self._stack.pop()
        self._extend([item])

    def _appends(self) -> None:
        self._extend(self._marked())

    def _extend(self, items: list[Any]) -> None:
        to = self._stack[-1]
        (to.items if isinstance(to, PickledObject) else _of(list, to)).extend(items)

    def _setitem(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set([key, value])

    def _setitems(self) -> None:
        self._set(self._marked())

    def _set(self, items: list[Any]) -> None:
        to = self._stack[-1]
        pairs = zip(items[::2], items[1::2], strict=True)
        if isinstance(to, PickledObject):
            to.items.extend(pairs)
        else:
            _of(dict, to).update((self._key(key), value) for key, value in pairs)

    def _additems(self) -> None:
        found = self._marked()
        _of(set, self._stack[-1]).update(map(self._key, found))

    def _members(self, found: Any, kind: type[set[Any]] | type[frozenset[Any]]) -> Any:
        self._spend(len(_of((list, tuple, set, frozenset), found)))
        return kind(map(self._key, found))

    def _key(self, key: Any) -> Any:
        """One that is hashed and compared within bounds."""
        if not isinstance(key, (*_PLAIN, PickledObject)):
            self._keys += 1
            if self._keys > _KEYS_MAX:
                raise InvalidInput(f"it has more than {_KEYS_MAX} keys that are neither text nor numbers")
            _measure(key, parts_max=_KEY_PARTS_MAX)
        return key

    # --- classes, functions and what they make

    def _global(self, named: str) -> None:
        module, _, name = named.partition(" ")
        self._stack.append(_named(module, name))

    def _stack_global(self) -> None:
        name, module = _of(str, self._stack.pop()), _of(str, self._stack.pop())
        self._spend(len(module) + len(name))
        self._stack.append(_named(module, name))

    def _reduce(self) -> None:
        args, function = self._stack.pop(), self._stack.pop()
        self._stack.append(self._made(function, _of(tuple, args)))

    _newobj = _reduce

    def _newobj_ex(self) -> None:
        named, args, function = self._stack.pop(), self._stack.pop(), self._stack.pop()
        self._stack.append(self._made(function, _of(tuple, args), _of(dict, named)))

    def _inst(self, named: str) -> None:
        args = self._marked()
        module, _, name = named.partition(" ")
        self._stack.append(self._made(_named(module, name), tuple(args)))

    def _obj(self) -> None:
        function, *args = self._marked()
        self._stack.append(self._made(function, tuple(args)))

    def _made(self, function: Any, args: tuple[Any, ...], named: Mapping[str, Any] | None = None) -> Any:
        self._spend(len(args) + len(named or ()))
        if isinstance(function, PickledObject):
            return PickledObject(function.kind, args, named)
        if named or function not in _CALLED:
            raise InvalidInput("it calls what is no function")
        if function in (set, frozenset):
            return self._members(args[0] if args else (), function)
        self._spend(_ZONE_COST if function is _zone else sum(len(each) for each in args if isinstance(each, str)))
        made = function(*args)
        # From the bytes of a pickle they are made unchecked, with an hour of 236, too; to replace nothing checks them.
        return made.replace() if isinstance(made, datetime | date | time) else made

    def _build(self) -> None:
        state, to = self._stack.pop(), self._stack[-1]
        # With slots it is a pair: what was in the dictionary, and what was in the slots.
        parts = state if isinstance(state, tuple) else (state,)
        self._spend(len(parts))
        for part in parts:
            if isinstance(part, dict) and isinstance(to, PickledObject):
                self._spend(len(part))
                to.state.update(part)

    def _persid(self, named: str) -> None:
        self._stack.append(PickledObject("persistent", (named,)))

    def _binpersid(self) -> None:
        self._stack.append(PickledObject("persistent", (self._stack.pop(),)))


def _checked(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > _INT_MAX_BITS:
        raise InvalidInput(f"it holds a number of more than {_INT_MAX_BITS} bits")
    if isinstance(value, str) and not value.isascii():
        value.encode()  # half a character cannot be written anywhere
    return value


def _of(kind: type | tuple[type, ...], value: Any) -> Any:
    if not isinstance(value, kind):
        raise InvalidInput(f"it puts {type(value).__name__} where that cannot be")
    return value


# --- values that are made


def _zone(name: Any = "UTC", *_: Any) -> tzinfo:
    try:
        return zone_named(name)
    except InvalidWhen:
        return PickledObject("zone", (name,))


def _attribute(of: Any, name: Any) -> Any:
    """Stands for `getattr`, by which zones are pickled; of anything else there is nothing to be had."""
    return _zone if of is _zone and name == "_unpickle" else _Name("builtins.getattr")


def _encoded(text: Any, encoding: Any = "latin1") -> bytes:
    """Stands for `_codecs.encode`, by which bytes are pickled in old protocols."""
    if encoding != "latin1":
        raise InvalidInput("it encodes text in another way than pickles do")
    return bytes(_of(str, text), "latin1")


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
    ("zoneinfo", "ZoneInfo"): _zone,
    ("zoneinfo", "ZoneInfo._unpickle"): _zone,
    ("backports.zoneinfo", "ZoneInfo"): _zone,
    ("backports.zoneinfo", "ZoneInfo._unpickle"): _zone,
    ("builtins", "getattr"): _attribute,
    ("__builtin__", "getattr"): _attribute,
    ("pytz", "_p"): _zone,
    ("pytz", "_UTC"): _zone,
    ("_codecs", "encode"): _encoded,
}
_CALLED = (*dict.fromkeys(_HARMLESS.values()),)


def _named(module: str, name: str) -> Any:
    return _HARMLESS.get((module, name)) or _Name(f"{module}.{name}")
