"""The ledger as people read it: runs, gaps, attempts, log lines. Nothing here writes.

Live runs and history are two tables; a reader sees one list, newest moment first where nothing else is asked for.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from evertick.model import Attempt, Gap, LogLine, Run
from evertick.store.base import RunFilter
from evertick.store.rows import attempt_of, gap_of, json_text, lines_of, read_each, run_of
from evertick.store.sqlite.queries import SQL

__all__ = ["attempts", "gaps", "log", "recorded_moments", "runs"]

_FIRST, _LAST = -(2**63), 2**63 - 1

# What a filter adds to `runs.live` and `runs.done`; its values are always parameters.
_CLAUSES = {
    "ids": "r.id IN (SELECT value FROM json_each(:ids))",
    "id_prefix": "r.id BETWEEN :id_prefix AND :id_prefix || char(1114111)",
    "schedule_id": "r.schedule_id = :schedule_id",
    "task": "r.task = :task",
    "states": "r.state IN (SELECT value FROM json_each(:states))",
    "verdicts": "r.verdict IN (SELECT value FROM json_each(:verdicts))",
    "since": "r.fire_at >= :since",
    "until": "r.fire_at <= :until",
    "labels": """NOT EXISTS (SELECT 1 FROM json_each(:labels) wanted WHERE NOT EXISTS (
        SELECT 1 FROM json_each(r.labels) label WHERE label.key = wanted.key AND label.value = wanted.value))""",
    # All reruns, listed once per question: people make few.
    "was_rerun": """:was_rerun = (r.id IN (
        SELECT l.caused_by FROM evertick_runs l INDEXED BY evertick_runs_reruns
        WHERE l.app = :app AND l.cause = 'rerun' AND l.caused_by IS NOT NULL
        UNION ALL
        SELECT h.caused_by FROM evertick_history h INDEXED BY evertick_history_reruns
        WHERE h.app = :app AND h.cause = 'rerun' AND h.caused_by IS NOT NULL))""",
}
# The index that serves each table best by the first of these filters that is given; "" where none is.
_INDEXES = {
    "runs.live": {
        "ids": "sqlite_autoindex_evertick_runs_1",
        "id_prefix": "sqlite_autoindex_evertick_runs_1",
        "schedule_id": "evertick_runs_moment",
        "": "sqlite_autoindex_evertick_runs_1",
    },
    "runs.done": {
        "ids": "sqlite_autoindex_evertick_history_1",
        "id_prefix": "sqlite_autoindex_evertick_history_1",
        "schedule_id": "evertick_history_moment",
        "": "evertick_history_time",
    },
}


def runs(db: sqlite3.Connection, now: int, app: str, wanted: RunFilter) -> list[Run]:
    rows = [
        row
        for values in _filters(db, app, wanted)
        for table in _tables(wanted)
        for row in _read(db, table, {**values, "app": app, "limit": wanted.limit}, wanted.is_oldest_first)
    ]
    rows.sort(key=lambda row: (row["fire_at"], row["id"]), reverse=not wanted.is_oldest_first)
    return read_each(rows[: wanted.limit], run_of)[0]


def _filters(db: sqlite3.Connection, app: str, wanted: RunFilter) -> Iterator[dict[str, Any]]:
    """The values of the clauses that apply; one set per schedule, so that each is read in the order of its index."""
    given = {
        "ids": None if wanted.ids is None else json_text(wanted.ids),
        "id_prefix": wanted.id_prefix,
        "task": wanted.task,
        "states": None if wanted.states is None else json_text(wanted.states),
        "verdicts": None if wanted.verdicts is None else json_text(wanted.verdicts),
        "since": wanted.since,
        "until": wanted.until,
        "labels": json_text(wanted.labels) if wanted.labels else None,
        "was_rerun": wanted.was_rerun,
    }
    values = {name: value for name, value in given.items() if value is not None}
    if wanted.schedule_key is None:
        yield values
        return
    for row in db.execute(SQL["runs.schedules_of_key"], (app, wanted.schedule_key)).fetchall():
        yield {**values, "schedule_id": row["schedule_id"]}


def _tables(wanted: RunFilter) -> list[str]:
    return ["runs.live"] * wanted.fits_live + ["runs.done"] * wanted.fits_done


def _read(db: sqlite3.Connection, table: str, values: dict[str, Any], is_oldest_first: bool) -> list[sqlite3.Row]:
    index = next(index for name, index in _INDEXES[table].items() if not name or name in values)
    clauses = "".join(f" AND {clause}" for name, clause in _CLAUSES.items() if name in values)
    order = "ORDER BY r.fire_at, r.id" if is_oldest_first else "ORDER BY r.fire_at DESC, r.id DESC"
    return db.execute(f"{SQL[table].format(index=index)}{clauses} {order} LIMIT :limit", values).fetchall()


def recorded_moments(
    db: sqlite3.Connection, now: int, app: str, schedule: int, stretch: tuple[int, int], limit: int
) -> list[int]:
    return [row["fire_at"] for row in db.execute(SQL["recorded_moments"], (schedule, *stretch, limit, app))]


def gaps(db: sqlite3.Connection, now: int, app: str, wanted: RunFilter) -> list[Gap]:
    of_runs = (wanted.ids, wanted.id_prefix, wanted.task, wanted.states, wanted.labels or None, wanted.was_rerun)
    if any(filter_ is not None for filter_ in of_runs):
        return []
    values: Sequence[object] = (
        app,
        _FIRST if wanted.since is None else wanted.since,
        _LAST if wanted.until is None else wanted.until,
        None if wanted.verdicts is None else json_text(wanted.verdicts),
        wanted.limit,
    )
    if wanted.schedule_key is None:
        rows = db.execute(SQL["gaps"], values)
    else:
        rows = db.execute(SQL["gaps.of_key"], (*values, wanted.schedule_key))
    return [gap_of(row) for row in rows]


def attempts(db: sqlite3.Connection, now: int, app: str, run: str) -> list[Attempt]:
    return [attempt_of(row) for row in db.execute(SQL["attempts"], (app, run))]


def log(db: sqlite3.Connection, now: int, app: str, run: str, after: int, limit: int) -> list[LogLine]:
    return lines_of(db.execute(SQL["log"], (app, run)), after, limit)
