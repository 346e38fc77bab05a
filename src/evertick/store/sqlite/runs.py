"""Runs on their way: enqueued, claimed, noted about, cancelled, and what a node holds.

A claim takes the highest priority first, then the longest due. It goes down the priorities in use by one seek each, so
that a hundred thousand future runs of a high priority cost nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from evertick.model import Claimed, NewRun, Reason, Run, State, Verdict
from evertick.store.base import Cancelled, Claim, Note, Owned, RunFilter, TaskTerms
from evertick.store.rows import claimed_of, json_text, plain_text
from evertick.store.sqlite.endings import Ending, end
from evertick.store.sqlite.fires import Claimant, draw_fence, insert_run, is_alive
from evertick.store.sqlite.queries import SQL
from evertick.store.sqlite.reading import runs as read_runs

__all__ = ["cancel", "claim", "enqueue", "note", "owned", "priorities", "take_runs"]

# Runs too old to start that one claim ends at most: bounds its transaction.
_EXPIRED_MOST = 1_000
_ABOVE_ALL = 2**63 - 1


def enqueue(db: sqlite3.Connection, now: int, app: str, runs: Sequence[NewRun]) -> list[Run]:
    claimant = Claimant(db, None)
    answers: list[tuple[str, bool]] = []
    for run in runs:
        is_new = insert_run(db, now, app, run, claimant)
        answers.append((run.id if is_new else _known_as(db, app, run), is_new))
    ids = tuple(dict.fromkeys(id_ for id_, _ in answers))
    stored = {run.id: run for run in read_runs(db, now, app, RunFilter(ids=ids, limit=len(ids)))}
    return [msgspec.structs.replace(stored[id_], is_new=is_new) for id_, is_new in answers]


def _known_as(db: sqlite3.Connection, app: str, run: NewRun) -> str:
    """The run that is there instead: the same sent twice, or the live one with the same unique key or moment."""
    if db.execute(SQL["cancel.find"], (app, run.id)).fetchone() is not None:
        return run.id
    same_key = db.execute(SQL["enqueue.find_unique"], (app, run.unique_key)).fetchone()
    if same_key is None:
        same_key = db.execute(SQL["enqueue.find_moment"], (run.schedule_id, run.fire_at)).fetchone()
    return str(same_key["id"])


# --- claims ------------------------------------------------------------------------------------------------------


def claim(
    db: sqlite3.Connection,
    now: int,
    app: str,
    node: str,
    queues: Sequence[str],
    tasks: Mapping[str, TaskTerms],
    limit: int,
) -> Claim:
    if not is_alive(db, node):
        return Claim(now=now, fence=0, runs=[], expired=[], next_due_at=None)
    names = json_text(list(tasks))
    expired: list[str] = []
    while True:
        rows = _due(db, now, app, queues, names, limit)
        too_old = [row["id"] for row in rows if _is_expired(row, now)]
        # They leave the index, and those behind them come into view.
        end(db, now, app, [Ending(id_, Verdict.MISSED, Reason.EXPIRED) for id_ in too_old])
        expired += too_old
        if not too_old or len(expired) >= _EXPIRED_MOST:
            break
    rows = [row for row in rows if not _is_expired(row, now)]
    fence, claimed = take_runs(db, now, app, node, rows, tasks)
    next_due_at = _next_due(db, app, queues, names)
    return Claim(now=now, fence=fence, runs=claimed, expired=expired, next_due_at=next_due_at)


def take_runs(
    db: sqlite3.Connection, now: int, app: str, node: str, rows: Sequence[sqlite3.Row], tasks: Mapping[str, TaskTerms]
) -> tuple[int, list[Claimed]]:
    """Make the node the owner of runs as read by `claim.read`, under one new fence."""
    if not rows:
        return 0, []
    fence = draw_fence(db)
    taken = []
    for row in rows:
        terms = tasks[row["task"]]
        deadline = None if terms.timeout is None else now + terms.timeout
        taken.append((app, row["id"], node, fence, now, deadline, int(terms.at_most_once)))
    db.executemany(SQL["claim.take"], taken)
    return fence, [claimed_of(row, fence, now) for row in rows]


def priorities(db: sqlite3.Connection, app: str, queues: Sequence[str]) -> Iterator[int]:
    """The priorities in use in these queues, from the highest down."""
    priority = _ABOVE_ALL
    while True:
        lower = [db.execute(SQL["claim.next_priority"], (app, queue, priority)).fetchone()[0] for queue in queues]
        in_use = [found for found in lower if found is not None]
        if not in_use:
            return
        priority = max(in_use)
        yield priority


def _due(
    db: sqlite3.Connection, now: int, app: str, queues: Sequence[str], names: str, limit: int
) -> list[sqlite3.Row]:
    ids: list[str] = []
    if limit <= 0:
        return []
    for priority in priorities(db, app, queues):
        found = [
            row
            for queue in queues
            for row in db.execute(SQL["claim.due"], (app, queue, priority, now, names, limit - len(ids)))
        ]
        found.sort(key=lambda row: row["due_at"])
        ids += [row["id"] for row in found[: limit - len(ids)]]
        if len(ids) == limit:
            break
    return [db.execute(SQL["claim.read"], (app, id_)).fetchone() for id_ in ids]


def _is_expired(row: sqlite3.Row, now: int) -> bool:
    return row["expires"] is not None and row["due_at"] + row["expires"] < now


def _next_due(db: sqlite3.Connection, app: str, queues: Sequence[str], names: str) -> int | None:
    earliest = [
        row["due_at"]
        for priority in priorities(db, app, queues)
        for queue in queues
        for row in db.execute(SQL["claim.next_due"], (app, queue, priority, names))
    ]
    return min(earliest, default=None)


# --- what a node holds -------------------------------------------------------------------------------------------


def owned(db: sqlite3.Connection, now: int, app: str, node: str) -> list[Owned]:
    return [Owned(id=row["id"], fence=row["fence"]) for row in db.execute(SQL["owned"], (app, node))]


def note(db: sqlite3.Connection, now: int, app: str, node: str, notes: Sequence[Note]) -> list[str]:
    return [one.id for one in notes if not _note_one(db, app, node, one)]


def _note_one(db: sqlite3.Connection, app: str, node: str, one: Note) -> bool:
    claim_of = (app, one.id, node, one.fence)
    guarded = db.execute(SQL["note.progress"], (*claim_of, one.progress, plain_text(one.progress_text)))
    if guarded.rowcount == 0:
        return False
    if one.lines:
        lines = json_text([(at, level, plain_text(text)) for at, level, text in one.lines])
        db.execute(SQL["note.lines"], (app, one.id, one.fence, one.seq, len(one.lines), lines))
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
        case State.RUNNING | State.HANDED:
            db.execute(SQL["cancel.ask"], (app, id_, plain_text(reason)))
            return Cancelled(id=id_, answer="asked")
        case _:
            end(db, now, app, [Ending(id_, Verdict.CANCELLED, reason or Reason.REQUESTED)])
            return Cancelled(id=id_, answer="ended")
