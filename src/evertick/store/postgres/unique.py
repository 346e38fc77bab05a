"""Unique keys: which are taken, and keeping them for a period.

A key is a live run's by the unique index, and a run's for a period by a row of its own. One index cannot guard both, so
whoever wants to take a key holds its lock from the look to the commit. Giving one up needs no lock: it can only make a
look come out stricter than it had to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evertick.model import NewRun
from evertick.store.postgres.lookup import written_before
from evertick.store.postgres.session import Statements, columns_of

__all__ = ["duplicates_among", "keep_for_periods", "lock_keys"]


async def lock_keys(db: Statements, app: str, runs: Iterable[NewRun]) -> None:
    """Before any other lock: of two that want the same keys, one is first."""
    keys = list(dict.fromkeys(run.unique_key for run in runs if run.unique_key is not None))
    if keys:
        await db.rows("unique.lock", app, keys)


async def duplicates_among(db: Statements, app: str, runs: Iterable[NewRun]) -> set[str]:
    """Runs whose key another run has. One that is sent again is no duplicate of itself. Locks the keys."""
    keyed = [run for run in runs if run.unique_key is not None]
    if not keyed:
        return set()
    await lock_keys(db, app, keyed)
    keys = list(dict.fromkeys(run.unique_key for run in keyed))
    holders = {row["key"]: row["id"] for row in await db.rows("unique.holders", app, keys)}
    held = [run for run in keyed if holders[run.unique_key] not in (None, run.id)]
    return {run.id for run in held} - await written_before(db, held)


async def keep_for_periods(db: Statements, app: str, inserted: Sequence[NewRun]) -> None:
    rows = [
        (run.unique_key, run.id, run.unique_for)
        for run in inserted
        if run.unique_key is not None and run.unique_for is not None
    ]
    if rows:
        await db.count("unique.keep", app, *columns_of(rows))
