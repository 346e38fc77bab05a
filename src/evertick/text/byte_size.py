"""Sizes: a number of bytes, or text like "64KiB" and "10MB". Pure."""

from __future__ import annotations

import re
from typing import Any

from evertick.errors import InvalidSetting
from evertick.text.values import shown

__all__ = ["size_bytes", "size_text"]

_UNITS = {"b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_UNITS |= {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZE = re.compile(r"(\d{1,19})(?:\.(\d{1,6}))? ?([a-z]{1,3})", re.ASCII)
# A common short form of a binary unit, for the suggestion in the error.
_SHORT = re.compile(r"(\d{1,15}) ?([kmgt])i?", re.ASCII)
_MOST = 2**60


def size_bytes(value: Any, *, what: str = "size") -> int:
    """The size in bytes, at least 0. `what`: the option, for the error."""
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str):
        size = _parsed(value, what)
    else:
        raise _invalid(what, value, "write a number of bytes, or text like '64KiB'")
    if not 0 <= size <= _MOST:
        text = shown(value)
        raise InvalidSetting(f"{what}: {text} must be between 0 and {_MOST} bytes", setting=what, value=text)
    return size


def size_text(size: int) -> str:
    """A short text that reads back as the same size: "64KiB", "10MB", "1000001B"."""
    if size == 0:
        return "0B"
    names = ("TiB", "GiB", "MiB", "KiB", "TB", "GB", "MB", "KB", "B")
    fitting = [(size // _UNITS[name.lower()], name) for name in names if size % _UNITS[name.lower()] == 0]
    count, name = min(fitting, key=lambda pair: pair[0])
    return f"{count}{name}"


def _parsed(text: str, what: str) -> int:
    normal = text.strip().lower()
    found = _SIZE.fullmatch(normal)
    if found is None or found[3] not in _UNITS:
        short = _SHORT.fullmatch(normal)
        form = f"as '{short[1]}{short[2].upper()}iB'" if short else "like '64KiB', '10MB' or '512B'"
        raise _invalid(what, text, f"write it {form}")
    unit, part = _UNITS[found[3]], found[2] or ""
    return int(found[1]) * unit + (int(part) * unit // 10 ** len(part) if part else 0)


def _invalid(what: str, value: object, fix: str) -> InvalidSetting:
    text = shown(value)
    return InvalidSetting(f"{what}: {text} is not a size", setting=what, value=text, fix=fix)
