"""Ids of runs and messages: which texts are ids, and in which days of history a run is searched by its id.

A text that is no id matches nothing, and PostgreSQL would refuse the whole statement. A search of all days costs an
index search in each of them. An id of version 7 has its time of creation, and the moment of a run is mostly near it,
but not always: a backfill is created long after its moment, a delayed or early run long before. So a run of which only
the id is known is searched near its creation first, and in all days only if it is not found there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from evertick.when.moment import DAY, MILLISECOND

__all__ = ["ALL_MOMENTS", "days_to_search", "ids_with_prefix", "is_run_id", "made_at"]

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NO_DIGITS = "00000000-0000-0000-0000-000000000000"


def is_run_id(text: str) -> bool:
    """Runs and messages have the same kind of id."""
    return _ID.fullmatch(text) is not None


def ids_with_prefix(prefix: str) -> tuple[str, str] | None:
    """The first and the last id with this prefix; None if there can be none."""
    rest = _NO_DIGITS[len(prefix) :]
    first, last = prefix + rest, prefix + rest.replace("0", "f")
    return (first, last) if is_run_id(first) else None


ALL_MOMENTS = (-(2**63), 2**63 - 1)


def days_to_search(ids: Sequence[str]) -> list[tuple[int, int]]:
    """Ranges of moments to search, in this order, for runs of which only the ids are known."""
    made = [at for at in map(made_at, ids) if at is not None]
    return [(min(made) - DAY, max(made) + DAY), ALL_MOMENTS] if made else [ALL_MOMENTS] if ids else []


def made_at(run_id: str) -> int | None:
    """The time of creation in an id of version 7."""
    digits = run_id.replace("-", "")
    try:
        return int(digits[:12], 16) * MILLISECOND if len(digits) == 32 and digits[12] == "7" else None
    except ValueError:
        return None
