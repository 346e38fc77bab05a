"""Reads pickles as data, without importing or calling anything that they name.

A pickle is a program that names functions and calls them. Here a small interpreter runs its opcodes, and each name
becomes a `PickledObject`, which only records the calls. Only dates, times and time zones become real values, because
they have no side effects. A pickle of any origin can be read safely, and errors can name unknown classes.

A small pickle can describe a huge value: nested lists that double, a tuple ten thousand levels deep. Opcodes and copies
are therefore counted, no value is hashed or compared before its size is known, and the result is measured before other
code walks it.
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
_OPCODES_MAX = 200_000
# Of the value as text: a part that is referenced twice counts twice.
_PARTS_MAX = 100_000
_CHARS_MAX = 1024 * 1024
# Parts and characters that all opcodes together may copy.
_COPIED_MAX = 4_000_000
# The lookup of an unknown zone searches many files.
_ZONE_COST = 1_000
# Other code walks the result by recursion.
_DEPTH_MAX = 50
_INT_MAX_BITS = 64
# Keys and members of sets other than text and numbers: their number, and the parts of each.
_KEYS_MAX, _KEY_PARTS_MAX = 1_000, 20
_KIND_MAX_CHARS = 200

_PLAIN = (str, bytes, int, float, bool, type(None))
# Opcodes that push their argument onto the stack.
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
_IGNORED = frozenset(("PROTO", "FRAME"))


class PickledObject(tzinfo):
    """The description of an object: its class, the arguments of its call, its state and items.

    A subclass of tzinfo, because a datetime accepts nothing else as its zone.
    """

    kind: str
    args: tuple[Any, ...]
    named: dict[str, Any]
    state: dict[str, Any]
    items: list[Any]

    def __new__(cls, kind: str = "", args: Iterable[Any] = (), named: Mapping[str, Any] | None = None) -> PickledObject:
        self = super().__new__(cls)
        self.kind = printable(kind[:_KIND_MAX_CHARS])
        self.args, self.named, self.state = tuple(args), dict(named or {}), {}
        self.items = []
        return self

    def __init__(self, *_: Any) -> None:
        """`__new__` has set all attributes."""

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
    """The value of a pickle. Raises InvalidInput if it is not valid or too large."""
    if len(data) > BYTES_MAX:
        raise InvalidInput(f"the pickle has more than {BYTES_MAX} bytes")
    try:
        value = _Interpreter().run(data)
    except InvalidInput:
        raise
    except Exception as error:  # a broken pickle may raise any error
        text = f"{type(error).__name__}: {printable(str(error)[:200])}"
        raise InvalidInput(f"the pickle cannot be read: {text}") from None
    _measure(value)
    return value


def objects_in(data: Any) -> Iterator[PickledObject]:
    """All PickledObjects in the value."""
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
    """Raise InvalidInput if the value is too large to walk."""
    unmeasured: list[tuple[Any, int]] = [(data, 0)]
    parts, chars = 1, 0
    while unmeasured:
        value, depth = unmeasured.pop()
        chars += len(value) if isinstance(value, str | bytes | bytearray) else 0
        inner = _inside(value)
        parts += sum(map(len, inner))
        if parts > parts_max or chars > _CHARS_MAX:
            raise InvalidInput("the pickle holds more values than a job can (repeated references count each time)")
        if depth > _DEPTH_MAX:
            raise InvalidInput(f"the pickle has more than {_DEPTH_MAX} levels of nesting")
        unmeasured += [(each, depth + 1) for collection in inner for each in collection]


def _inside(value: Any) -> tuple[Any, ...]:
    """The collections that the value consists of."""
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


class _Interpreter:
    """Runs the opcodes of a pickle; its methods are named after them."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        # The stacks below the marks.
        self._below: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._keys = 0
        self._copied = 0

    def _spend(self, count: int) -> None:
        self._copied += count
        if self._copied > _COPIED_MAX:
            raise InvalidInput("the pickle copies more values than that of a job")

    def run(self, data: bytes) -> Any:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if number >= _OPCODES_MAX:
                raise InvalidInput(f"the pickle has more than {_OPCODES_MAX} opcodes")
            if opcode.name == "STOP":
                return self._stack.pop()
            if opcode.name in _VALUES:
                self._stack.append(_checked(argument))
            elif opcode.name in _NEW:
                self._stack.append(_NEW[opcode.name]())
            elif opcode.name not in _IGNORED:
                execute = getattr(self, f"_{opcode.name.lower()}", None)
                if execute is None:
                    raise InvalidInput(f"the pickle has the opcode {opcode.name}, which that of a job never has")
                execute(*(() if opcode.arg is None else (argument,)))
        raise InvalidInput("the pickle is incomplete")

    # --- the stack and the memo

    def _mark(self) -> None:
        self._below.append(self._stack)
        self._stack = []

    def _marked(self) -> list[Any]:
        """Pop the values above the mark."""
        values, self._stack = self._stack, self._below.pop()
        return values

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

    def _put(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    _binput = _long_binput = _put

    def _get(self, index: int) -> None:
        self._stack.append(self._memo[index])

    _binget = _long_binget = _get

    # --- collections

    def _tuple(self) -> None:
        values = self._marked()
        self._stack.append(tuple(values))

    def _tuple_of(self, count: int) -> None:
        # By index, so that a stack that is too short raises an error.
        self._stack[-count:] = [tuple(self._stack[-index] for index in range(count, 0, -1))]

    _tuple1 = partialmethod(_tuple_of, 1)
    _tuple2 = partialmethod(_tuple_of, 2)
    _tuple3 = partialmethod(_tuple_of, 3)

    def _list(self) -> None:
        values = self._marked()
        self._stack.append(values)

    def _dict(self) -> None:
        items = self._marked()
        self._stack.append({})
        self._set(items)

    def _frozenset(self) -> None:
        values = self._marked()
        self._stack.append(self._members(values, frozenset))

    def _append(self) -> None:
        item = self._stack.pop()
        self._extend([item])

    def _appends(self) -> None:
        self._extend(self._marked())

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1]
        (target.items if isinstance(target, PickledObject) else _of(list, target)).extend(items)

    def _setitem(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set([key, value])

    def _setitems(self) -> None:
        self._set(self._marked())

    def _set(self, items: list[Any]) -> None:
        target = self._stack[-1]
        pairs = zip(items[::2], items[1::2], strict=True)
        if isinstance(target, PickledObject):
            target.items.extend(pairs)
        else:
            _of(dict, target).update((self._key(key), value) for key, value in pairs)

    def _additems(self) -> None:
        values = self._marked()
        _of(set, self._stack[-1]).update(map(self._key, values))

    def _members(self, values: Any, kind: type[set[Any]] | type[frozenset[Any]]) -> Any:
        self._spend(len(_of((list, tuple, set, frozenset), values)))
        return kind(map(self._key, values))

    def _key(self, key: Any) -> Any:
        """The key, if hashing and comparing it is cheap."""
        if not isinstance(key, (*_PLAIN, PickledObject)):
            self._keys += 1
            if self._keys > _KEYS_MAX:
                raise InvalidInput(f"the pickle has more than {_KEYS_MAX} keys that are neither text nor numbers")
            _measure(key, parts_max=_KEY_PARTS_MAX)
        return key

    # --- classes, functions and their calls

    def _global(self, named: str) -> None:
        module, _, name = named.partition(" ")
        self._stack.append(_named(module, name))

    def _stack_global(self) -> None:
        name, module = _of(str, self._stack.pop()), _of(str, self._stack.pop())
        self._spend(len(module) + len(name))
        self._stack.append(_named(module, name))

    def _reduce(self) -> None:
        args, function = self._stack.pop(), self._stack.pop()
        self._stack.append(self._called(function, _of(tuple, args)))

    _newobj = _reduce

    def _newobj_ex(self) -> None:
        named, args, function = self._stack.pop(), self._stack.pop(), self._stack.pop()
        self._stack.append(self._called(function, _of(tuple, args), _of(dict, named)))

    def _inst(self, named: str) -> None:
        args = self._marked()
        module, _, name = named.partition(" ")
        self._stack.append(self._called(_named(module, name), tuple(args)))

    def _obj(self) -> None:
        function, *args = self._marked()
        self._stack.append(self._called(function, tuple(args)))

    def _called(self, function: Any, args: tuple[Any, ...], named: Mapping[str, Any] | None = None) -> Any:
        """The result of a call: a real value for a safe function, else a description."""
        self._spend(len(args) + len(named or ()))
        if isinstance(function, PickledObject):
            return PickledObject(function.kind, args, named)
        if named or function not in _CALLABLE:
            raise InvalidInput("the pickle calls a value that is not a function")
        if function in (set, frozenset):
            return self._members(args[0] if args else (), function)
        self._spend(_ZONE_COST if function is _zone else sum(len(each) for each in args if isinstance(each, str)))
        value = function(*args)
        # Dates and times from the bytes of a pickle are not checked and may have an hour of 236; `replace` checks them.
        return value.replace() if isinstance(value, datetime | date | time) else value

    def _build(self) -> None:
        state, target = self._stack.pop(), self._stack[-1]
        # A pair for a class with slots: the dictionary and the slots.
        parts = state if isinstance(state, tuple) else (state,)
        self._spend(len(parts))
        for part in parts:
            if isinstance(part, dict) and isinstance(target, PickledObject):
                self._spend(len(part))
                target.state.update(part)

    def _persid(self, named: str) -> None:
        self._stack.append(PickledObject("persistent", (named,)))

    def _binpersid(self) -> None:
        self._stack.append(PickledObject("persistent", (self._stack.pop(),)))


def _checked(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > _INT_MAX_BITS:
        raise InvalidInput(f"the pickle has a number of more than {_INT_MAX_BITS} bits")
    if isinstance(value, str) and not value.isascii():
        value.encode()  # raises for an unpaired surrogate, which cannot be written to a file
    return value


def _of(kind: type | tuple[type, ...], value: Any) -> Any:
    if not isinstance(value, kind):
        raise InvalidInput(f"the pickle has a value of type {type(value).__name__} in a wrong place")
    return value


# --- safe functions


def _zone(name: Any = "UTC", *_: Any) -> tzinfo:
    try:
        return zone_named(name)
    except InvalidWhen:
        return PickledObject("zone", (name,))


def _attribute(owner: Any, name: Any) -> Any:
    """Replaces `getattr`, which pickles of zones call. It gives access to nothing else."""
    return _zone if owner is _zone and name == "_unpickle" else _Name("builtins.getattr")


def _encoded(text: Any, encoding: Any = "latin1") -> bytes:
    """Replaces `_codecs.encode`, which pickles of old protocols call for bytes."""
    if encoding != "latin1":
        raise InvalidInput("the pickle encodes text otherwise than as 'latin1'")
    return bytes(_of(str, text), "latin1")


# By module and name.
_SAFE: dict[tuple[str, str], Any] = {
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
_CALLABLE = (*dict.fromkeys(_SAFE.values()),)


def _named(module: str, name: str) -> Any:
    return _SAFE.get((module, name)) or _Name(f"{module}.{name}")
