"""Runs on their way: enqueued, claimed, noted about, cancelled, and what a node holds.

A claim takes the highest priority first, then the longest due. It goes down the priorities in use by one seek each, so
that a hundred thousand future runs of a high priority cost nothing.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from evertick.model import Claimed, NewRun, Reason, Run, State, Verdict
from evertick.store.base import Cancelled, Claim, Note, Owned, RunFilter, TaskTerms
from evertick.store.ending import Ending
from evertick.store.rows import claimed_of, json_text, lines_text, plain_text, read_each
from evertick.store.sqlite.connection import UNWRITABLE, savepoint
from evertick.store.sqlite.endings import end, finish
from evertick.store.sqlite.feed import tell_runs
from evertick.store.sqlite.fence import draw_fence
from evertick.store.sqlite.fires import Claimant, insert_run, key_holder
from evertick.store.sqlite.limits import Gate, let_next, look_again
from evertick.store.sqlite.queries import SQL
from evertick.store.sqlite.reading import runs as read_runs
from evertick.store.unreadable import unreadable_runs

__all__ = ["Taker", "cancel", "claim", "enqueue", "note", "note_each", "owned", "priorities"]

log = logging.getLogger("evertick.store")

# Runs that one claim looks at without taking them, at most: too old to start, or held back by a limit. Bounds its
# transaction; what is behind them is there for the next claim, which follows at once.
_PASSED_MOST = 1_000
_ABOVE_ALL = 2**63 - 1


def enqueue(db: sqlite3.Connection, now: int, app: str, runs: Sequence[NewRun]) -> list[Run]:
    claimant = Claimant(db, None)
    answers: list[tuple[str, bool]] = []
    for run in runs:
        is_new = insert_run(db, now, app, run, claimant) == "new"
        answers.append((run.id if is_new else _known_as(db, now, app, run), is_new))
    claimant.tell(now, app)
    ids = tuple(dict.fromkeys(id_ for id_, _ in answers))
    stored = {run.id: run for run in read_runs(db, now, app, RunFilter(ids=ids, limit=len(ids)))}
    return [msgspec.structs.replace(stored[id_], is_new=is_new) for id_, is_new in answers]


def _known_as(db: sqlite3.Connection, now: int, app: str, run: NewRun) -> str:
    """The run that is there instead: the same sent twice, or the one that has the unique key or moment."""
    if db.execute(SQL["cancel.find"], (app, run.id)).fetchone() is not None:
        return run.id
    holder = None if run.unique_key is None else key_holder(db, now, app, run.unique_key)
    if holder is None:
        holder = str(db.execute(SQL["enqueue.find_moment"], (run.schedule_id, run.fire_at)).fetchone()["id"])
    return holder


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
    alive = db.execute(SQL["claim.node"], (node,)).fetchone()
    if alive is None:
        return Claim(now=now, fence=0, runs=[], expired=[], next_due_at=None)
    names = json_text(list(tasks))
    # With free slots only: what is let through is to be taken here, before one who has no room for it holds it back.
    has_more_to_look_at = limit > 0 and alive["looked_at"] is not None and look_again(db, app, node, alive["looked_at"])
    gate = Gate.of(db, now, app, tasks)
    if gate is not None:
        gate.open_due()
    taker = Taker(db, now, app, node, tasks)
    expired: list[str] = []
    passed = 0
    while passed < _PASSED_MOST:
        rows = _due(db, now, app, queues, names, limit - len(taker.claimed))
        too_old = [row["id"] for row in rows if _is_expired(row, now)]
        # They leave the index, and those behind them come into view; the same goes for what a limit holds back.
        end(db, now, app, [Ending(id_, Verdict.MISSED, Reason.EXPIRED) for id_ in too_old])
        expired += too_old
        taken = taker.take([row for row in rows if not _is_expired(row, now)], gate)
        passed += len(rows) - taken
        has_let_through = gate is not None and gate.settle(limit - len(taker.claimed))
        if taken == len(rows) and not has_let_through:
            break
    next_due_at = _next_due(db, app, queues, names)
    if gate is not None and (free_at := gate.next_free_at()) is not None:
        next_due_at = free_at if next_due_at is None else min(free_at, next_due_at)
    if has_more_to_look_at:
        next_due_at = now
    return Claim(now=now, fence=taker.fence, runs=taker.claimed, expired=expired, next_due_at=next_due_at)


class Taker:
    """Makes a node the owner of runs, all under one fence, which is drawn when there is something to take."""

    def __init__(self, db: sqlite3.Connection, now: int, app: str, node: str, tasks: Mapping[str, TaskTerms]) -> None:
        self._db = db
        self._now = now
        self._app = app
        self._node = node
        self._tasks = tasks
        self.fence = 0
        self.claimed: list[Claimed] = []

    def take(self, rows: Sequence[sqlite3.Row], gate: Gate | None = None) -> int:
        """Take runs as read by `claim.read`, those that pass the gate; answers how many did."""
        keys: Mapping[str, str | None] = {} if gate is None else gate.pass_through(rows)
        passed = rows if gate is None else [row for row in rows if row["id"] in keys]
        if not passed:
            return 0
        self.fence = self.fence or draw_fence(self._db)
        self._db.executemany(SQL["claim.take"], [self._taken(row) for row in passed])
        marked = [row for row in passed if row["has_marks"] or keys.get(row["id"]) is not None]
        if marked:
            self._mark(marked, keys, is_gated=gate is not None)
        runs, unreadable = read_each(passed, lambda row: claimed_of(row, self.fence, self._now))
        if unreadable:
            finish(self._db, self._now, self._app, self._node, unreadable_runs(unreadable, self.fence))
        self.claimed += runs
        tell_runs(self._db, self._now, self._app, "run.started", [run.id for run in runs])
        return len(passed)

    def _taken(self, row: sqlite3.Row) -> tuple[object, ...]:
        terms = self._tasks[row["task"]]
        deadline = None if terms.timeout is None else self._now + terms.timeout
        return self._app, row["id"], self._node, self.fence, self._now, deadline, int(terms.at_most_once)

    def _mark(self, rows: Sequence[sqlite3.Row], keys: Mapping[str, str | None], *, is_gated: bool) -> None:
        self._db.executemany(SQL["claim.mark"], [(self._app, row["id"], keys.get(row["id"])) for row in rows])
        if not is_gated:
            # Held back under a limit that the code no longer has: those behind it are not to wait for it either. Two
            # for one, so that a long lane is empty after a few claims.
            for key, count in Counter(row["limit_key"] for row in rows if row["limit_key"] is not None).items():
                let_next(self._db, self._app, key, 2 * count, only_idle=True)


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
    guarded = db.execute(SQL["note.progress"], (*claim_of, one.progress, plain_text(one.progress_text)))
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
        case State.RUNNING | State.HANDED:
            db.execute(SQL["cancel.ask"], (app, id_, plain_text(reason)))
            return Cancelled(id=id_, answer="asked")
        case _:
            end(db, now, app, [Ending(id_, Verdict.CANCELLED, reason or Reason.REQUESTED)])
            return Cancelled(id=id_, answer="ended")
