"""Runs: enqueue, notes, cancel, claims held by a node, and queries for display. `claims.py` has the claims.

Live runs and history are two tables; a reader gets one list, newest moment first by default.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from evertick.model import Attempt, Gap, LogLine, NewRun, Reason, Run, State, Verdict
from evertick.store.base import Cancelled, Note, Owned, RunFilter
from evertick.store.rows import (
    attempt_of,
    gap_of,
    is_self_contained,
    json_text,
    lines_of,
    lines_text,
    phases_text,
    read_each,
    run_as_enqueued,
    run_of,
    storable_text,
)
from evertick.store.sqlite.connection import SQL, UNWRITABLE, savepoint
from evertick.store.sqlite.endings import end
from evertick.store.sqlite.fires import Claimant, insert_batch, insert_run, key_holder
from evertick.store.verdicts import Ending

__all__ = [
    "attempts",
    "cancel",
    "enqueue",
    "gaps",
    "log",
    "note",
    "note_each",
    "owned",
    "read_runs",
    "recorded_moments",
]

_logger = logging.getLogger("evertick.store")

_owned = msgspec.json.Decoder(list[Owned])


def enqueue(db: sqlite3.Connection, now: int, app: str, runs: Sequence[NewRun]) -> list[Run]:
    claimant = Claimant(db, None)
    if len(runs) > 1 and insert_batch(db, now, app, runs, claimant):
        answers = [(run.id, True) for run in runs]
    else:
        answers = [_enqueue_one(db, now, app, run, claimant) for run in runs]
    claimant.publish(now, app)
    if all(is_new for _, is_new in answers) and all(is_self_contained(run) for run in runs):
        return [run_as_enqueued(app, now, run) for run in runs]
    ids = tuple(dict.fromkeys(id_ for id_, _ in answers))
    stored = {run.id: run for run in read_runs(db, now, app, RunFilter(ids=ids, limit=len(ids)))}
    return [msgspec.structs.replace(stored[id_], is_new=is_new) for id_, is_new in answers]


def _enqueue_one(db: sqlite3.Connection, now: int, app: str, run: NewRun, claimant: Claimant) -> tuple[str, bool]:
    """The id of the run in the ledger, and whether it is new."""
    if insert_run(db, now, app, run, claimant) == "new":
        return run.id, True
    return _known_as(db, now, app, run), False


def _known_as(db: sqlite3.Connection, now: int, app: str, run: NewRun) -> str:
    """The existing run: the same one sent twice, or the one with the unique key or moment."""
    if db.execute(SQL["cancel.find"], (app, run.id)).fetchone() is not None:
        return run.id
    holder = None if run.unique_key is None else key_holder(db, now, app, run.unique_key)
    if holder is None:
        holder = str(db.execute(SQL["enqueue.find_moment"], (run.schedule_id, run.fire_at)).fetchone()["id"])
    return holder


# --- runs held by a node ----------------------------------------------------------------------------------------------


def owned(db: sqlite3.Connection, now: int, app: str, node: str) -> list[Owned]:
    return _owned.decode(db.execute(SQL["owned"], (app, node)).fetchone()[0])


def note(db: sqlite3.Connection, now: int, app: str, node: str, notes: Sequence[Note]) -> list[str]:
    return [one.id for one in notes if not _note_one(db, app, node, one)]


def note_each(db: sqlite3.Connection, now: int, app: str, node: str, notes: Sequence[Note]) -> list[str]:
    """For a batch with a note that cannot be stored: the others are written."""
    lost: list[str] = []
    for one in notes:
        try:
            with savepoint(db):
                lost += note(db, now, app, node, [one])
        except UNWRITABLE as error:
            _logger.error("run %s: app %r: a note cannot be stored, and is dropped: %s", one.id, app, error)
    return lost


def _note_one(db: sqlite3.Connection, app: str, node: str, one: Note) -> bool:
    claim_of = (app, one.id, node, one.fence)
    progress = one.progress, storable_text(one.progress_text), phases_text(one.phases)
    guarded = db.execute(SQL["note.progress"], (*claim_of, *progress))
    if guarded.rowcount == 0 and db.execute(SQL["note.is_own_end"], claim_of).fetchone() is None:
        return False
    if one.lines:
        written = (app, one.id, one.fence, one.seq, len(one.lines), lines_text(one.lines))
        db.execute(SQL["note.lines"], written)
    return True


def cancel(db: sqlite3.Connection, now: int, app: str, ids: Sequence[str], reason: str) -> list[Cancelled]:
    return [_cancel_one(db, now, app, id_, reason) for id_ in ids]


def _cancel_one(db: sqlite3.Connection, now: int, app: str, id_: str, reason: str) -> Cancelled:
    found = db.execute(SQL["cancel.find"], (app, id_)).fetchone()
    match None if found is None else State(found["state"]):
        case None:
            return Cancelled(id=id_, answer="unknown")
        case State.DONE:
            return Cancelled(id=id_, answer="done")
        case State.RUNNING | State.DISPATCHED:
            db.execute(SQL["cancel.ask"], (app, id_, storable_text(reason), now))
            return Cancelled(id=id_, answer="asked")
        case _:
            end(db, now, app, [Ending(id_, Verdict.CANCELLED, reason or Reason.REQUESTED)])
            return Cancelled(id=id_, answer="ended")


# --- queries for display ----------------------------------------------------------------------------------------------


_FIRST, _LAST = -(2**63), 2**63 - 1

# Filter clauses for `runs.live` and `runs.done`. Values are always parameters.
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
    # All reruns, read once per query: there are few.
    "was_rerun": """:was_rerun = (r.id IN (
        SELECT l.caused_by FROM evertick_runs l INDEXED BY evertick_runs_reruns
        WHERE l.app = :app AND l.cause = 'rerun' AND l.caused_by IS NOT NULL
        UNION ALL
        SELECT h.caused_by FROM evertick_history h INDEXED BY evertick_history_reruns
        WHERE h.app = :app AND h.cause = 'rerun' AND h.caused_by IS NOT NULL))""",
}
# The index to use with the first of these filters that is given; "": with none.
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


def read_runs(db: sqlite3.Connection, now: int, app: str, wanted: RunFilter) -> list[Run]:
    rows = [
        row
        for values in _filters(db, app, wanted)
        for table in _tables(wanted)
        for row in _read(db, table, {**values, "app": app, "limit": wanted.limit}, wanted.is_oldest_first)
    ]
    rows.sort(key=lambda row: (row["fire_at"], row["id"]), reverse=not wanted.is_oldest_first)
    return read_each(rows[: wanted.limit], run_of)[0]


def _filters(db: sqlite3.Connection, app: str, wanted: RunFilter) -> Iterator[dict[str, Any]]:
    """The values of the clauses that apply; one set per schedule, so that each is read in index order."""
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
    db: sqlite3.Connection, now: int, app: str, schedule_id: int, *, first: int, last: int, limit: int
) -> list[int]:
    return [row["fire_at"] for row in db.execute(SQL["recorded_moments"], (schedule_id, first, last, limit, app))]


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


def log(db: sqlite3.Connection, now: int, app: str, run: str, *, after: int = 0, limit: int = 1000) -> list[LogLine]:
    return lines_of(db.execute(SQL["log"], (app, run)), after, limit)
