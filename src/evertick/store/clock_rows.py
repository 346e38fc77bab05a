"""What a wrong clock leaves in a ledger, by kind of row, in the order in which it is put right. For both stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from evertick.store.base import ClockTraces, GapAhead

__all__ = ["TELLING", "WAITING", "OffRows", "keep", "traces_of"]

# What waits for a time that will not come. Keys first: their period counts from the making of their run.
WAITING = ("keys", "messages", "runs")
# What tells when the clock was wrong, by which the others are found.
TELLING = ("history", "attempts", "nodes", "duties", "events", "schedules")
# What names a row of each kind.
_NAMES = {"events": "seq", "duties": "name", "keys": "key"}


class OffRows(NamedTuple):
    """By kind, the names of rows that are to be put right, and the times at which they say that they were written."""

    names: dict[str, list[Any]]
    times: list[int]
    gaps: list[GapAhead]


def keep(found: OffRows, kind: str, rows: Sequence[Mapping[str, Any]] | Sequence[Any]) -> None:
    found.times.extend(row["at"] for row in rows if row["at"] is not None)
    if kind == "gaps":
        found.gaps.extend(_gap(row) for row in rows)
    elif rows:
        name = _NAMES.get(kind, "id")
        found.names[kind] = [(row["run"], row["fence"]) if kind == "attempts" else row[name] for row in rows]


def _gap(row: Any) -> GapAhead:
    return GapAhead(
        id=row["id"],
        schedule_id=row["schedule_id"],
        key=row["schedule_key"],
        first_at=row["first_at"],
        last_at=row["last_at"],
    )


def traces_of(found: OffRows, now: int) -> ClockTraces:
    rows = {kind: len(found.names[kind]) for kind in (*WAITING, *TELLING) if kind in found.names}
    return ClockTraces(
        now=now,
        first_at=min(found.times, default=None),
        last_at=max(found.times, default=None),
        rows={**rows, "gaps": len(found.gaps)} if found.gaps else rows,
        gaps=tuple(found.gaps),
    )
