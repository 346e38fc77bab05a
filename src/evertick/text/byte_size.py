"""Sizes: a number of bytes, or text like "64KiB" and "10MB". Pure."""

from __future__ import annotations

import re
from typing import Any

from evertick.errors import InvalidSetting

__all__ = ["size_bytes", "size_text"]

_UNITS = {"b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_UNITS |= {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_SIZE = re.compile(r"(\d{1,19})(?:\.(\d{1,6}))? ?([a-z]{1,3})", re.ASCII)
# What people write for the binary unit, to be told how it is written here.
_SHORT = re.compile(r"(\d{1,15}) ?([kmgt])i?", re.ASCII)
_MOST = 2**60
_SHOWN = 40


def size_bytes(value: Any, *, what: str = "size") -> int:
    """The size in bytes, at least 0. `what` names the offending option in the error."""
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str):
        size = _parsed(value, what)
    else:
        raise InvalidSetting(f"{what}: {value!r:.60} is no size; write a number of bytes, or text like '64KiB'")
    if not 0 <= size <= _MOST:
        raise InvalidSetting(f"{what}: {value!r:.60} must be between 0 and {_MOST} bytes")
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
    plain = text.strip().lower()
    found = _SIZE.fullmatch(plain)
    if found is None or found[3] not in _UNITS:
        short = _SHORT.fullmatch(plain)
        fix = f"as '{short[1]}{short[2].upper()}iB'" if short else "like '64KiB', '10MB' or '512B'"
        raise InvalidSetting(f"{what}: {text[:_SHOWN]!r} is no size; write it {fix}")
    unit, part = _UNITS[found[3]], found[2] or ""
    return int(found[1]) * unit + (int(part) * unit // 10 ** len(part) if part else 0)
