"""Runs on their way: enqueued, noted about, cancelled, and what a node holds. Claims have a file of their own."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence

import msgspec

from evertick.model import NewRun, Reason, Run, State, Verdict
from evertick.store.base import Cancelled, Note, Owned, RunFilter
from evertick.store.ending import Ending
from evertick.store.enqueued import is_all_there, run_as_enqueued
from evertick.store.rows import lines_text, phases_text, plain_text
from evertick.store.sqlite.connection import UNWRITABLE, savepoint
from evertick.store.sqlite.endings import end
from evertick.store.sqlite.new_runs import Claimant, insert_run, insert_together, key_holder
from evertick.store.sqlite.queries import SQL
from evertick.store.sqlite.reading import runs as read_runs

__all__ = ["cancel", "enqueue", "note", "note_each", "owned"]

log = logging.getLogger("evertick.store")

_owned = msgspec.json.Decoder(list[Owned])


def enqueue(db: sqlite3.Connection, now: int, app: str, runs: Sequence[NewRun]) -> list[Run]:
    claimant = Claimant(db, None)
    if len(runs) > 1 and insert_together(db, now, app, runs, claimant):
        answers = [(run.id, True) for run in runs]
    else:
        answers = [_enqueue_one(db, now, app, run, claimant) for run in runs]
    claimant.tell(now, app)
    if all(is_new for _, is_new in answers) and all(is_all_there(run) for run in runs):
        return [run_as_enqueued(app, now, run) for run in runs]
    ids = tuple(dict.fromkeys(id_ for id_, _ in answers))
    stored = {run.id: run for run in read_runs(db, now, app, RunFilter(ids=ids, limit=len(ids)))}
    return [msgspec.structs.replace(stored[id_], is_new=is_new) for id_, is_new in answers]


def _enqueue_one(db: sqlite3.Connection, now: int, app: str, run: NewRun, claimant: Claimant) -> tuple[str, bool]:
    """The id of the run that is there now, and whether it is new."""
    if insert_run(db, now, app, run, claimant) == "new":
        return run.id, True
    return _known_as(db, now, app, run), False


def _known_as(db: sqlite3.Connection, now: int, app: str, run: NewRun) -> str:
    """The run that is there instead: the same sent twice, or the one that has the unique key or moment."""
    if db.execute(SQL["cancel.find"], (app, run.id)).fetchone() is not None:
        return run.id
    holder = None if run.unique_key is None else key_holder(db, now, app, run.unique_key)
    if holder is None:
        holder = str(db.execute(SQL["enqueue.find_moment"], (run.schedule_id, run.fire_at)).fetchone()["id"])
    return holder


# --- what a node holds -------------------------------------------------------------------------------------------


def owned(db: sqlite3.Connection, now: int, app: str, node: str) -> list[Owned]:
    return _owned.decode(db.execute(SQL["owned"], (app, node)).fetchone()[0])


def note(db: sqlite3.Connection, now: int, app: str, node: str, notes: Sequence[Note]) -> list[str]:
    return [one.id for one in notes if not _note_one(db, app, node, one)]


def note_each(db: sqlite3.Connection, now: int, app: str, node: str, notes: Sequence[Note]) -> list[str]:
    """For a batch of which one cannot be written: the others do not wait for it."""
    lost: list[str] = []
    for one in notes:
        try:
            with savepoint(db):
                lost += note(db, now, app, node, [one])
        except UNWRITABLE as error:
            log.error("what run %s of app %s has said cannot be written, and is left out: %s", one.id, app, error)
    return lost


def _note_one(db: sqlite3.Connection, app: str, node: str, one: Note) -> bool:
    claim_of = (app, one.id, node, one.fence)
    said = one.progress, plain_text(one.progress_text), phases_text(one.phases)
    guarded = db.execute(SQL["note.progress"], (*claim_of, *said))
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
            db.execute(SQL["cancel.ask"], (app, id_, plain_text(reason), now))
            return Cancelled(id=id_, answer="asked")
        case _:
            end(db, now, app, [Ending(id_, Verdict.CANCELLED, reason or Reason.REQUESTED)])
            return Cancelled(id=id_, answer="ended")
