"""Schedules that have failed so often in a row that they are to be paused. Reads only those that ask for it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from evertick.model import Verdict
from evertick.store.base import Failing
from evertick.store.rows import FORMAT, json_text
from evertick.store.sqlite.queries import SQL

__all__ = ["failing"]


def failing(db: sqlite3.Connection, now: int, app: str, ids: Sequence[int] | None, limit: int) -> list[Failing]:
    if ids is None:
        candidates = db.execute(SQL["failing.all"], (app, FORMAT))
    else:
        candidates = db.execute(SQL["failing.of"], (app, json_text(list(ids)), FORMAT))
    found: list[Failing] = []
    for row in candidates:
        if len(found) == limit:
            break
        if (failed := _failing(db, row)) is not None:
            found.append(failed)
    return found


def _failing(db: sqlite3.Connection, row: sqlite3.Row) -> Failing | None:
    """Reads no further than to the newest success, which for nearly all is the first row."""
    newest: sqlite3.Row | None = None
    count = 0
    for run in db.execute(SQL["failing.verdicts"], (row["id"], row["counts_from"], row["pause_after"])):
        if run["verdict"] == Verdict.SUCCEEDED:
            return None
        newest = newest or run
        count += 1
    if newest is None or count < row["pause_after"]:
        return None
    return Failing(
        schedule_id=row["id"],
        key=row["key"],
        version=row["version"],
        count=count,
        run=newest["id"],
        verdict=Verdict(newest["verdict"]),
        reason=newest["reason"],
        error=newest["error"],
    )
