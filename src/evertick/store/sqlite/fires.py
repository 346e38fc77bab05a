"""Recording fires: insert runs and gaps and advance the cursors, guarded, many schedules in one batch.

The guard reads the narrow row `due`: if it is not the one from which the plan was made, nothing of the plan is written.
No other connection can write before the transaction ends. Plans that only move the cursor and insert runs and gaps are
applied together, by a few statements; the others one by one. The unique index on (schedule, fire_at) is the second line
of defence.

Runs that differ only in moment, arguments and schedule are inserted by one statement. A run with a unique key, and a
blocked run, are inserted one by one, because the result of the one before counts.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from evertick.model import Cause, NewGap, NewRun, Reason, State, Verdict
from evertick.store.base import Advance, Recorded, count_fires
from evertick.store.rows import json_text, storable_text
from evertick.store.sqlite.connection import SQL, check_integers, draw_fence, in_parts, is_alive, savepoint
from evertick.store.sqlite.endings import count_from_end, end
from evertick.store.sqlite.feed import publish, publish_gaps, publish_runs
from evertick.store.sqlite.outbox import write_messages
from evertick.store.verdicts import Ending, gaps_with_duplicates
from evertick.when.moment import MINUTE

__all__ = ["Claimant", "apply_advance", "insert_batch", "insert_run", "key_holder", "record_fires"]

# --- insert new runs --------------------------------------------------------------------------------------------------


Inserted = Literal["new", "known", "duplicate"]
# A run, its state as inserted, and the run that it is blocked on.
_NewRow = tuple[NewRun, State, str | None]

# The values of `_claim_of` for a run that is not claimed.
_UNCLAIMED = (None, None, None, None, 0)


class _NotAllNew(Exception):
    """The ledger has some of the runs already, so each must be checked."""


class Claimant:
    """The recording node, if it is alive. Its fence is drawn with the first claimed run."""

    def __init__(self, db: sqlite3.Connection, node: str | None) -> None:
        self._db = db
        self.node = node if node is not None and is_alive(db, node) else None
        self._fence = 0
        # The fence of an inserted run; 0 if none was claimed.
        self.fence = 0
        self.left_out: list[str] = []
        self.duplicates: list[str] = []
        # Whether the app has a feed; None: not read yet.
        self.has_feed: bool | None = None
        # Rows that are written but not in the feed yet.
        self._runs: list[str] = []
        self._gaps: list[int] = []

    def draw(self) -> int:
        self._fence = self._fence or draw_fence(self._db)
        return self._fence

    def has(self, run: NewRun, state: State) -> bool:
        """Whether the run is inserted as claimed."""
        return run.is_claimed and state is State.WAITING and self.node is not None

    def add_run(self, run: NewRun, state: State) -> None:
        self._runs.append(run.id)
        if self.has(run, state):
            self.fence = self._fence

    def add_gaps(self, gaps: Iterable[int]) -> None:
        self._gaps += gaps

    def publish(self, now: int, app: str) -> None:
        """Write the feed: few rows for many schedules. Before these runs can change."""
        if self.has_feed is not False:
            publish_runs(self._db, now, app, "run.recorded", self._runs)
            publish_gaps(self._db, now, app, self._gaps)
        self._runs, self._gaps = [], []


def can_batch(run: NewRun) -> bool:
    """Whether the run can be inserted in a batch: it does not depend on the result of the run before it."""
    return run.unique_key is None and run.state is not State.BLOCKED


def insert_batch(db: sqlite3.Connection, now: int, app: str, runs: Sequence[NewRun], claimant: Claimant) -> bool:
    """Insert all of them. False: nothing was written, because one is known already, or cannot be in a batch."""
    if not runs:
        return True
    if not all(map(can_batch, runs)):
        return False
    if any(claimant.has(run, run.state) for run in runs):
        # Before the savepoint: a rollback would return the same fence twice.
        claimant.draw()
    try:
        with savepoint(db):
            written = sum(
                _insert(db, now, app, [(run, run.state, None) for run in part], claimant) for part in in_parts(runs)
            )
            if written < len(runs):
                raise _NotAllNew
    except _NotAllNew:
        return False
    for run in runs:
        claimant.add_run(run, run.state)
    return True


def insert_run(db: sqlite3.Connection, now: int, app: str, run: NewRun, claimant: Claimant) -> Inserted:
    """known: the ledger has the run or its moment. duplicate: another run has its unique key."""
    if run.unique_key is not None and is_duplicate(db, now, app, run):
        return "duplicate"
    state, blocked_on = _state_of(db, app, run)
    if _insert(db, now, app, [(run, state, blocked_on)], claimant) == 0:
        return "known"
    claimant.add_run(run, state)
    if run.unique_key is not None and run.unique_for is not None:
        db.execute(SQL["enqueue.keep_unique_for"], (app, run.unique_key, run.id, now + run.unique_for))
    return "new"


def key_holder(db: sqlite3.Connection, now: int, app: str, key: str) -> str | None:
    """The run that holds a unique key: a live run, or one whose period is not over."""
    found = db.execute(SQL["enqueue.find_unique"], (app, key)).fetchone()
    if found is None:
        found = db.execute(SQL["enqueue.find_unique_for"], (app, key, now)).fetchone()
    return None if found is None else str(found["id"])


def is_duplicate(db: sqlite3.Connection, now: int, app: str, run: NewRun) -> bool:
    """Whether another run holds its key. A repeated run is no duplicate of itself."""
    assert run.unique_key is not None, "only runs with a unique key"
    if key_holder(db, now, app, run.unique_key) in (None, run.id):
        return False
    return db.execute(SQL["cancel.find"], (app, run.id)).fetchone() is None


def _insert(db: sqlite3.Connection, now: int, app: str, new_rows: Sequence[_NewRow], claimant: Claimant) -> int:
    """Returns how many of them were new."""
    groups: defaultdict[tuple[object, ...], dict[str, tuple[object, ...]]] = defaultdict(dict)
    times: list[int] = []
    for run, state, blocked_on in new_rows:
        fire_at = run.fire_at if run.fire_at is not None else now + run.delay
        due_at = run.due_at if run.due_at is not None else fire_at
        args = None if run.args is None else run.args.decode()
        is_claimed = claimant.has(run, state)
        shared = (
            run.task,
            run.cause,
            run.queue,
            run.priority,
            State.RUNNING if is_claimed else state,
            storable_text(run.reason),
            json_text(run.labels) if run.labels else None,
            run.expires,
            run.unique_key if run.unique_for is None else None,
            None if run.unique_key is None else run.unique_until,
            run.caused_by,
            run.traceparent,
            now,
            *(_claim_of(now, run, claimant) if is_claimed else _UNCLAIMED),
            blocked_on,
            run.format,
        )
        groups[shared][run.id] = (run.schedule_id, run.version, fire_at, due_at, args)
        times += fire_at, due_at
    check_integers(times)
    return sum(
        db.execute(SQL["record_fires.run"], (app, json_text(own), *shared)).rowcount for shared, own in groups.items()
    )


def _claim_of(now: int, run: NewRun, claimant: Claimant) -> tuple[object, ...]:
    """Node, fence, start, deadline, at_most_once."""
    deadline = None if run.timeout is None else now + run.timeout
    return claimant.node, claimant.draw(), now, deadline, int(run.at_most_once)


def _state_of(db: sqlite3.Connection, app: str, run: NewRun) -> tuple[State, str | None]:
    """A blocked run waits for the last run of its schedule's line; if none is live any more, it is not blocked."""
    if run.state is not State.BLOCKED:
        return run.state, None
    last = db.execute(SQL["record_fires.last_in_line"], (run.schedule_id, app)).fetchone()
    return (State.WAITING, None) if last is None else (State.BLOCKED, last["id"])


# --- fires ------------------------------------------------------------------------------------------------------------


# When to plan a schedule again whose rows could not be written.
_UNWRITABLE_PAUSE = MINUTE
_BY_HAND = frozenset({Cause.TRIGGER, Cause.RERUN})

_ids = msgspec.json.Decoder(list[int])


def record_fires(db: sqlite3.Connection, now: int, app: str, node: str | None, advances: Sequence[Advance]) -> Recorded:
    db.execute("SAVEPOINT fires")
    try:
        recorded = _record_all(db, now, app, node, advances)
    except (sqlite3.Error, ValueError, OverflowError, TypeError):
        # One of them cannot be written. Savepoints for each would slow every batch, so they are used only now.
        if not db.in_transaction:
            raise
        db.execute("ROLLBACK TO fires")
        recorded = _record_each(db, now, app, node, advances)
    db.execute("RELEASE fires")
    return recorded


def _record_all(db: sqlite3.Connection, now: int, app: str, node: str | None, advances: Sequence[Advance]) -> Recorded:
    claimant = Claimant(db, node)
    schedules = Counter(advance.schedule_id for advance in advances)
    plain = [advance for advance in advances if schedules[advance.schedule_id] == 1 and _is_plain(advance)]
    together = _apply_batch(db, now, app, plain, claimant)
    taken = [
        together[advance.schedule_id]
        if advance.schedule_id in together
        else _record_one(db, now, app, advance, claimant)
        for advance in advances
    ]
    claimant.publish(now, app)
    return _recorded(now, claimant, taken)


def _is_plain(advance: Advance) -> bool:
    """Whether it only moves the cursor, and inserts runs and gaps that can be in a batch."""
    return (
        advance.error is None
        and all(map(can_batch, advance.runs))
        and not advance.messages
        and not advance.ends_pause
        and not advance.replaces_live
        and advance.after_end is None
        and advance.occurrences is None
        and advance.undoes_run is None
    )


def _apply_batch(
    db: sqlite3.Connection, now: int, app: str, advances: Sequence[Advance], claimant: Claimant
) -> Mapping[int, bool]:
    """Whether each schedule's advance was applied. Empty: nothing was written, because one of the runs is known."""
    matching = {schedule for part in in_parts(advances) for schedule in _matching(db, app, part, claimant)}
    taken = [advance for advance in advances if advance.schedule_id in matching]
    if not insert_batch(db, now, app, [run for advance in taken for run in advance.runs], claimant):
        return {}
    for part in in_parts(taken):
        _move_cursors(db, [(advance, 0, count_fires(advance.runs)) for advance in part])
    _insert_gaps(db, now, app, [(advance.schedule_id, gap) for advance in taken for gap in advance.gaps], claimant)
    return {advance.schedule_id: advance.schedule_id in matching for advance in advances}


def _recorded(now: int, claimant: Claimant, taken: list[bool]) -> Recorded:
    return Recorded(
        now=now, fence=claimant.fence, taken=taken, left_out=claimant.left_out, duplicates=claimant.duplicates
    )


def _record_each(db: sqlite3.Connection, now: int, app: str, node: str | None, advances: Sequence[Advance]) -> Recorded:
    claimant = Claimant(db, node)
    # Before the first savepoint: a rollback would return the same fence twice.
    claimant.draw()
    taken = []
    for advance in advances:
        db.execute("SAVEPOINT fire")
        try:
            taken.append(_record_one(db, now, app, advance, claimant))
        except (sqlite3.Error, ValueError, OverflowError, TypeError) as error:
            if not db.in_transaction:
                raise
            db.execute("ROLLBACK TO fire")
            _note_failure(db, app, advance, f"its rows cannot be stored: {error}", now + _UNWRITABLE_PAUSE)
            taken.append(False)
        db.execute("RELEASE fire")
    claimant.publish(now, app)
    return _recorded(now, claimant, taken)


def _record_one(db: sqlite3.Connection, now: int, app: str, advance: Advance, claimant: Claimant) -> bool:
    if advance.error is not None:
        return _note_failure(db, app, advance, advance.error, advance.next_at)
    # Schedules are cached by version, with their pause, so its end raises the version.
    if not apply_advance(db, now, app, advance, claimant, bump=int(advance.ends_pause)):
        return False
    if advance.ends_pause:
        db.execute(SQL["change_schedules.pause"], (advance.schedule_id, None))
        db.execute(SQL["change_schedules.count_failures_anew"], (advance.schedule_id,))
        key = db.execute(SQL["schedule.key"], (advance.schedule_id,)).fetchone()["key"]
        publish(db, now, app, "schedule.resumed", [(key,)])
    if advance.after_end is not None:
        count_from_end(db, now, [advance.schedule_id])
    return True


def apply_advance(
    db: sqlite3.Connection, now: int, app: str, advance: Advance, claimant: Claimant, *, bump: int
) -> bool:
    """Move the cursor if the guard matches, then write the runs and gaps of the plan.

    Raises the version by `bump`, or by one for changed overrides, because schedules are cached by version.
    """
    duplicates = [run for run in advance.runs if run.unique_key is not None and is_duplicate(db, now, app, run)]
    by_hand = [run.id for run in duplicates if run.cause in _BY_HAND]
    # A fire for every node still runs on the nodes whose key is free.
    if by_hand and len(by_hand) == len(advance.runs):
        claimant.duplicates += by_hand
        return False
    if advance.undoes_run is not None and not _is_early(db, app, advance, advance.undoes_run):
        return False
    of_nodes = {run.id for run in duplicates if run.cause is Cause.EVERY_NODE}
    fires = count_fires(advance.runs, of_nodes) - (advance.undoes_run is not None)
    if not _matching(db, app, [advance], claimant):
        return False
    _move_cursors(db, [(advance, bump or int(advance.occurrences is not None), fires)])
    if advance.occurrences is not None:
        overrides = json_text(advance.occurrences) if advance.occurrences else None
        db.execute(SQL["record_fires.decide"], (advance.schedule_id, overrides))
    if advance.undoes_run is not None or advance.replaces_live:
        claimant.publish(now, app)
    if advance.undoes_run is not None:
        _undo_early(db, now, app, advance.schedule_id, advance.undoes_run)
    # A run that is not inserted replaces none.
    if advance.replaces_live and not duplicates and not _was_written(db, app, advance):
        _replace_live(db, now, app, advance.schedule_id)
    _write_rows(db, now, app, advance, claimant)
    if advance.messages:
        write_messages(db, now, app, advance.messages)
    return True


def _matching(db: sqlite3.Connection, app: str, advances: Sequence[Advance], claimant: Claimant) -> list[int]:
    """The guard: the schedules that are unchanged since their plan was made."""
    plans = [(advance.schedule_id, advance.version, advance.fire_at, advance.at, advance.live) for advance in advances]
    matching, has_feed = db.execute(SQL["record_fires.fitting"], (app, json_text(plans))).fetchone()
    claimant.has_feed = bool(has_feed)
    return _ids.decode(matching)


def _move_cursors(db: sqlite3.Connection, moves: Sequence[tuple[Advance, int, int]]) -> None:
    """Each with the increase of the version and the number of fires."""
    groups: defaultdict[tuple[object, ...], dict[int, tuple[int | None, int | None]]] = defaultdict(dict)
    for advance, bump, fires in moves:
        groups[bump, advance.after_end, fires, advance.fingerprint][advance.schedule_id] = (
            advance.next_fire_at,
            advance.next_at,
        )
    check_integers(at for cursors in groups.values() for ats in cursors.values() for at in ats if at is not None)
    for shared, cursors in groups.items():
        db.execute(SQL["record_fires.advance"], (json_text(cursors), *shared))


def _write_rows(db: sqlite3.Connection, now: int, app: str, advance: Advance, claimant: Claimant) -> None:
    duplicates = []
    for run in advance.runs:
        answer = insert_run(db, now, app, run, claimant)
        if answer == "new":
            continue
        claimant.left_out.append(run.id)
        if run.cause is Cause.FIRE:
            db.execute(SQL["record_fires.count_back"], (advance.schedule_id,))
        if answer == "duplicate":
            duplicates.append(run)
    claimant.duplicates += [run.id for run in duplicates]
    gaps = gaps_with_duplicates(advance.gaps, advance.runs, {run.id for run in duplicates})
    _insert_gaps(db, now, app, [(advance.schedule_id, gap) for gap in gaps], claimant)


def _insert_gaps(
    db: sqlite3.Connection, now: int, app: str, gaps: Sequence[tuple[int, NewGap]], claimant: Claimant
) -> None:
    """Gaps, each with its schedule. After an outage every schedule has one."""
    check_integers(number for _, gap in gaps for number in (gap.first_at, gap.last_at, gap.count))
    for part in in_parts(gaps):
        rows = [
            (schedule, gap.first_at, gap.last_at, gap.count, int(gap.is_exact), gap.verdict, storable_text(gap.reason))
            for schedule, gap in part
        ]
        claimant.add_gaps(row["id"] for row in db.execute(SQL["record_fires.gaps"], (app, json_text(rows), now)))


def _is_early(db: sqlite3.Connection, app: str, advance: Advance, run: str) -> bool:
    return db.execute(SQL["record_fires.find_early"], (app, run, advance.schedule_id)).fetchone() is not None


def _undo_early(db: sqlite3.Connection, now: int, app: str, schedule: int, run: str) -> None:
    """Detach a run that has not started from its moment, and cancel it."""
    db.execute(SQL["record_fires.give_moment_back"], (app, run))
    db.execute(SQL["record_fires.give_key_back"], (app, run, schedule))
    end(db, now, app, [Ending(run, Verdict.CANCELLED, Reason.UNDONE)])


def _was_written(db: sqlite3.Connection, app: str, advance: Advance) -> bool:
    """A trigger does not move the cursor, so a repeated one passes the guard; it must not replace its own run."""
    return any(db.execute(SQL["cancel.find"], (app, run.id)).fetchone() is not None for run in advance.runs)


def _replace_live(db: sqlite3.Connection, now: int, app: str, schedule: int) -> None:
    db.execute(SQL["record_fires.ask_to_cancel"], (schedule, Reason.REPLACED, now))
    idle = [row["id"] for row in db.execute(SQL["schedule.idle_runs"], (schedule,))]
    end(db, now, app, [Ending(id_, Verdict.CANCELLED, Reason.REPLACED) for id_ in idle])


def _note_failure(db: sqlite3.Connection, app: str, advance: Advance, error: str, next_at: int | None) -> bool:
    guard = (advance.version, advance.fire_at, advance.at)
    noted = db.execute(SQL["record_fires.fail"], (advance.schedule_id, app, next_at, storable_text(error), *guard))
    return noted.rowcount == 1
