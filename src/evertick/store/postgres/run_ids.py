"""Ids of runs and messages: which texts are ids at all, and in which days of history a run is looked for by its id.

A text that is no id is the id of nothing; PostgreSQL would refuse the whole question. A look at all days costs a search
in each of them. An id of version 7 tells when it was made. The moment of a run lies mostly near that, and not always: a
backfill is made long after it, and what is to run later, or was made before its moment, long before. So a run of which
nothing but the id is known is looked for near its making first, and only what is not found there in all days.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from evertick.when.moment import DAY, MILLISECOND

__all__ = ["ALL_MOMENTS", "days_to_ask", "ids_that_begin", "is_run_id", "made_at"]

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


ALL_MOMENTS = (-(2**63), 2**63 - 1)


def days_to_ask(ids: Sequence[str]) -> list[tuple[int, int]]:
    """Stretches of moments, one after the other, for runs of which only the ids are known."""
    made = [at for at in map(made_at, ids) if at is not None]
    return [(min(made) - DAY, max(made) + DAY), ALL_MOMENTS] if made else [ALL_MOMENTS] if ids else []


def made_at(run_id: str) -> int | None:
    """The time in an id of version 7."""
    digits = run_id.replace("-", "")
    try:
        return int(digits[:12], 16) * MILLISECOND if len(digits) == 32 and digits[12] == "7" else None
    except ValueError:
        return None
