"""Values from outside: encoded as JSON without loss, and shortened for error messages."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from evertick.errors import InvalidSetting
from evertick.text.surrogates import json_bytes

__all__ = ["bytes_in", "check_whole", "encode_data", "has_control", "shown"]

_SHOWN = 80
_LEVELS = 3
# PostgreSQL rejects some control characters, terminals obey others, and UTF-8 cannot encode surrogates.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_CONTROL_IN_LINES = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
# Types that JSON keeps. Raw: already JSON, from a child process.
_PLAIN = frozenset({str, int, bool, type(None), msgspec.Raw})
_FLOAT = frozenset({float})
_BYTES = (bytes, bytearray, memoryview)
_SEQUENCES = (list, tuple, set, frozenset)


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = _LEVELS, _SHOWN, _SHOWN, _SHOWN

    def repr_bytes(self, value: bytes, _level: int) -> str:
        return repr(value[:_SHOWN])


_short = _Short()


def shown(value: object) -> str:
    """The value for an error message: whole if it is short, else its beginning and its size."""
    if isinstance(value, (str, bytes, bytearray)) and len(value) > _SHOWN:
        unit = "characters" if isinstance(value, str) else "bytes"
        return f"{value[:_SHOWN]!r}… ({len(value):,} {unit})"
    try:
        text = _short.repr(value)
    except Exception:  # a number with more digits than Python prints, or a repr that fails
        return f"this {type(value).__name__}"
    return text if len(text) <= 4 * _SHOWN else f"{text[: 4 * _SHOWN]}…"


def check_whole(value: Any, setting: str, least: int, most: int) -> int:
    """The value of a setting, if it is a whole number of this range."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        problem = f"{setting}: {shown(value)} must be a whole number from {least} to {most}"
        raise InvalidSetting(problem, setting=setting, value=shown(value))
    return value


def has_control(text: str, *, in_lines: bool = False) -> bool:
    """Whether the text has control characters or surrogates. `in_lines`: line breaks and tabs are allowed."""
    return (_CONTROL_IN_LINES if in_lines else _CONTROL).search(text) is not None


def encode_data(value: Any, root: str = "", *, allows_bytes: bool = False, replaces_surrogates: bool = False) -> bytes:
    """The value as JSON. Raises ValueError or TypeError for a value that JSON would drop or change.

    root: the name of the value for the error; empty for arguments, which have names. allows_bytes: the caller checks
    bytes itself. mends_halves: surrogates are replaced, not rejected.
    """
    try:
        data = (json_bytes if replaces_surrogates else msgspec.json.encode)(value)
        for path, odd in () if _is_plain(value) else _odd_parts(value, root):
            if isinstance(odd, float):
                raise ValueError(f"{path}: {odd!r} is not a JSON number; pass None or text instead")
            if not allows_bytes:
                raise ValueError(
                    f"{path}: {shown(bytes(odd))} would come back as text, since JSON has no bytes; pass text, like "
                    "value.decode() or value.hex()"
                )
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the text {shown(error.object)} has an unpaired surrogate; decode it with data.decode(errors='replace')"
        ) from None
    except RecursionError:
        raise ValueError(f"{root or 'the value'} is nested too deeply, or contains itself; make it flatter") from None
    return data


def bytes_in(value: Any, root: str = "") -> list[tuple[str, bytes]]:
    """All bytes in the value, each with its path."""
    return [(path, bytes(odd)) for path, odd in _odd_parts(value, root) if not isinstance(odd, float)]


def _odd_parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Parts that JSON changes without an error: nan and infinities become null, bytes become text."""
    if _is_plain(value):
        return
    if isinstance(value, (float, *_BYTES)):
        yield path, value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            if not _is_plain(name):
                yield from _odd_parts(name, f"the key {shown(name)}")
            if not _is_plain(part):
                yield from _odd_parts(part, f"{path}[{shown(name)}]" if path else str(name))
    elif isinstance(value, _SEQUENCES):
        for number, part in enumerate(value):
            if not _is_plain(part):
                yield from _odd_parts(part, f"{path}[{number}]")
    else:
        builtin = msgspec.to_builtins(value, builtin_types=_BYTES)
        if isinstance(builtin, (dict, list, float)):  # of a dataclass, a struct or an enum
            yield from _odd_parts(builtin, path)


def _is_plain(value: Any) -> bool:
    """Whether the types show that JSON keeps the value; a fast path, since most values are small."""
    kind = type(value)
    if kind is dict:
        return _PLAIN.issuperset(map(type, value)) and _PLAIN.issuperset(map(type, value.values()))
    if kind is list or kind is tuple:
        kinds = set(map(type, value))
        return kinds <= _PLAIN or (kinds == _FLOAT and all(map(math.isfinite, value)))
    return kind in _PLAIN or (kind is float and math.isfinite(value))
