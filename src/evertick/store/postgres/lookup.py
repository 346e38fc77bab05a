"""In which days of history a run is looked for by its id. A look at all days costs a search in each of them.

An id tells when it was made. The moment of a run lies mostly near that, and not always: a backfill is made long after
it, and what is to run later, or was made before its moment, long before. So a run of which nothing but the id is known
is looked for near its making first, and only what is not found there in all days. Of a run that is about to be inserted
more is known: an earlier copy of it has the same moment, or got one from the store between its making and now.
"""

from __future__ import annotations

from collections.abc import Sequence

from evertick.clock import Clock
from evertick.model import NewRun
from evertick.store.postgres.session import Statements
from evertick.when.moment import DAY, MILLISECOND

__all__ = ["days_to_ask", "moments_of", "written_before"]

# How wrong the clock of a caller may be for a run that it sends twice to be found in history.
_CLOCKS_APART = DAY
_ALL = (-(2**63), 2**63 - 1)


def days_to_ask(ids: Sequence[str]) -> list[tuple[int, int]]:
    """Stretches of moments, one after the other, for runs of which only the ids are known."""
    made = [at for at in map(_made_at, ids) if at is not None]
    return [(min(made) - DAY, max(made) + DAY), _ALL] if made else [_ALL] if ids else []


def moments_of(runs: Sequence[NewRun], clock: Clock) -> tuple[int, int]:
    """Between which moments earlier copies of these runs must be, if there are any."""
    moments = [run.fire_at for run in runs if run.fire_at is not None]
    bounds = [(min(moments), max(moments))] if moments else []
    if len(moments) < len(runs):
        bounds.append(_moments_of_new([run for run in runs if run.fire_at is None], clock))
    return min(first for first, _ in bounds), max(last for _, last in bounds)


async def written_before(db: Statements, runs: Sequence[NewRun]) -> set[str]:
    """Those of these runs that are in the ledger already, live or done."""
    if not runs:
        return set()
    rows = await db.rows("record_fires.written_before", [run.id for run in runs], *moments_of(runs, db.clock))
    return {row["id"] for row in rows}


def _moments_of_new(runs: Sequence[NewRun], clock: Clock) -> tuple[int, int]:
    """Of runs that get their moments from the store."""
    ids = [run.id for run in runs]
    # Ids of version 7 sort by the time of their making.
    first, last = _made_at(min(ids)), _made_at(max(ids))
    if first is None or last is None or any(id_[14:15] != "7" for id_ in ids):
        return _ALL
    # They were inserted, by the time of the store, between the making of their ids and now, both by clocks of callers.
    now = clock.now_us()
    delays = [run.delay for run in runs]
    return min(first, now) + min(delays) - _CLOCKS_APART, max(last, now) + max(delays) + _CLOCKS_APART


def _made_at(run_id: str) -> int | None:
    """The time in an id of version 7."""
    digits = run_id.replace("-", "")
    try:
        return int(digits[:12], 16) * MILLISECOND if len(digits) == 32 and digits[12] == "7" else None
    except ValueError:
        return None
