"""Which texts are ids at all. What is none is the id of nothing; PostgreSQL would refuse the whole question."""

from __future__ import annotations

import re

__all__ = ["ids_that_begin", "is_run_id"]

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NO_DIGITS = "00000000-0000-0000-0000-000000000000"


def is_run_id(text: str) -> bool:
    """Runs and messages have ids of one kind."""
    return _ID.fullmatch(text) is not None


def ids_that_begin(prefix: str) -> tuple[str, str] | None:
    """The first and the last id that begins like this; None if none can."""
    rest = _NO_DIGITS[len(prefix) :]
    first, last = prefix + rest, prefix + rest.replace("0", "f")
    return (first, last) if is_run_id(first) else None
