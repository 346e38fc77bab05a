"""The plans that nearly all are: a moment has come, its run is recorded, the cursor goes on. A batch is one statement.

Their guard is the stamp of the row that they were made from. A plan that needs more than that (other runs are looked at
or end, a gap, a message, a unique key, ...) goes the longer way, and so does a batch of which the ledger has a moment
already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evertick.model import Cause, NewRun, State
from evertick.store.base import Advance, Recorded
from evertick.store.postgres.connection import sqlstate_of
from evertick.store.postgres.insertion import labels_text
from evertick.store.postgres.lookup import moments_of
from evertick.store.postgres.session import Statements, once_if_alike, unless_all
from evertick.store.rows import plain_text

__all__ = ["are_ordinary", "is_in_history", "record_ordinary"]

_FIRE, _WAITING = Cause.FIRE, State.WAITING
# A row without an id: see the statement.
_NO_ID = "23502"


def are_ordinary(advances: Sequence[Advance]) -> bool:
    """Whether all of them are, each of another schedule."""
    if not all(map(_is_ordinary, advances)):
        return False
    return 0 < len(advances) == len({advance.schedule_id for advance in advances})


def _is_ordinary(advance: Advance) -> bool:
    if advance.stamp is None or advance.live or len(advance.runs) != 1:
        return False
    is_plain = (
        advance.error is None
        and not advance.gaps
        and not advance.messages
        and not advance.ends_pause
        and not advance.replaces_live
        and advance.after_end is None
        and advance.occurrences is None
        and advance.takes_back is None
    )
    return is_plain and _is_ordinary_run(advance, advance.runs[0])


def _is_ordinary_run(advance: Advance, run: NewRun) -> bool:
    return (
        run.cause is _FIRE
        and run.state is _WAITING
        and run.fire_at is not None
        and run.fire_at == advance.fire_at
        and run.schedule_key is not None
        and run.version == advance.version
        and run.unique_key is None
        and run.args is None
        and run.caused_by is None
        and run.traceparent is None
    )


async def record_ordinary(db: Statements, app: str, node: str | None, advances: Sequence[Advance]) -> Recorded:
    """Of a batch that is ordinary. Fails if the ledger has one of the moments already, live or in history."""
    # By schedule, as everybody locks them.
    in_order = sorted(advances, key=lambda advance: advance.schedule_id)
    runs = [advance.runs[0] for advance in in_order]
    bounds, ids = moments_of(runs, db.clock), [run.id for run in runs]
    stamps = [advance.stamp for advance in in_order]
    row = await db.only_row("record_fires.ordinary", app, node, stamps, *bounds, ids, *_columns(in_order, runs))
    if row["has_waiting"]:
        db.wake(app, "runs")
    moved = row["taken"]
    taken = [True] * len(advances) if moved is None else _are_among(set(moved), advances)
    return Recorded(now=row["now"], fence=row["fence"] or 0, taken=taken)


def is_in_history(error: Exception) -> bool:
    """Whether it was a moment that history has."""
    return sqlstate_of(error) == _NO_ID


def _are_among(moved: set[int], advances: Sequence[Advance]) -> list[bool]:
    return [advance.schedule_id in moved for advance in advances]


def _columns(advances: Sequence[Advance], runs: Sequence[NewRun]) -> list[Any]:
    """What the statement takes from its seventh parameter on, in the order in which it names them (`AS p`). Empty: as
    it says there, the moments themselves or what is usual."""
    moments = [run.fire_at for run in runs]
    looks = [advance.at for advance in advances]
    due = [run.due_at for run in runs]
    next_moments = [advance.next_fire_at for advance in advances]
    next_looks = [advance.next_at for advance in advances]
    return [
        [advance.schedule_id for advance in advances],
        [run.schedule_key for run in runs],
        once_if_alike([advance.version for advance in advances]),
        once_if_alike([run.task for run in runs]),
        moments,
        [] if looks == moments else looks,
        [] if due == moments else due,
        next_moments,
        [] if next_looks == next_moments else next_looks,
        once_if_alike([advance.fingerprint for advance in advances]),
        unless_all("default", [run.queue for run in runs]),
        unless_all(0, [run.priority for run in runs]),
        [plain_text(reason) for reason in unless_all(None, [run.reason for run in runs])],
        [labels_text(labels) for labels in unless_all({}, [run.labels for run in runs])],
        unless_all(None, [run.expires for run in runs]),
        unless_all(False, [not run.is_claimed for run in runs]),
        unless_all(None, [run.timeout for run in runs]),
        unless_all(False, [run.at_most_once for run in runs]),
        unless_all(1, [run.format for run in runs]),
    ]
