"""New runs on their way into the live table.

Runs that have all but their moment, arguments and schedule in common are inserted by one statement. What has a unique
key, or waits for a run before it, is looked at alone: what became of the one before counts.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

from evertick.model import NewRun, State
from evertick.store.rows import json_text, plain_text
from evertick.store.sqlite.connection import savepoint
from evertick.store.sqlite.feed import tell_gaps, tell_runs
from evertick.store.sqlite.fence import draw_fence, is_alive
from evertick.store.sqlite.json_chunks import in_parts
from evertick.store.sqlite.queries import SQL

__all__ = [
    "Claimant",
    "Inserted",
    "as_numbers",
    "goes_together",
    "insert_run",
    "insert_together",
    "is_duplicate",
    "key_holder",
]

Inserted = Literal["new", "known", "duplicate"]
# A run with the state it gets, and the one that it is blocked on.
_Placed = tuple[NewRun, State, str | None]

# What `_claim_of` tells of a run that nobody has.
_UNCLAIMED = (None, None, None, None, 0)


class _NotAllNew(Exception):
    """Some of the runs are in the ledger already: each has to be looked at."""


class Claimant:
    """The node that records, if it lives; its fence is drawn when the first run is claimed."""

    def __init__(self, db: sqlite3.Connection, node: str | None) -> None:
        self._db = db
        self.node = node if node is not None and is_alive(db, node) else None
        self._fence = 0
        # The fence that was really given to a run, else 0.
        self.fence = 0
        self.left_out: list[str] = []
        self.duplicates: list[str] = []
        # What was written and is not in the feed yet.
        self._runs: list[str] = []
        self._gaps: list[int] = []

    def draw(self) -> int:
        self._fence = self._fence or draw_fence(self._db)
        return self._fence

    def has(self, run: NewRun, state: State) -> bool:
        """Whether the run is claimed as it is inserted."""
        return run.is_claimed and state is State.WAITING and self.node is not None

    def wrote_run(self, run: NewRun, state: State) -> None:
        self._runs.append(run.id)
        if self.has(run, state):
            self.fence = self._fence

    def wrote_gaps(self, gaps: Iterable[int]) -> None:
        self._gaps += gaps

    def tell(self, now: int, app: str) -> None:
        """Into the feed, as few rows for many schedules; before anything becomes of these runs."""
        tell_runs(self._db, now, app, "run.recorded", self._runs)
        tell_gaps(self._db, now, app, self._gaps)
        self._runs, self._gaps = [], []


def goes_together(run: NewRun) -> bool:
    """Whether it can be inserted beside others, without a look at what became of the one before."""
    return run.unique_key is None and run.state is not State.BLOCKED


def insert_together(db: sqlite3.Connection, now: int, app: str, runs: Sequence[NewRun], claimant: Claimant) -> bool:
    """All of them at once. False: nothing is written, for one of them is known, or has to be looked at alone."""
    if not runs:
        return True
    if not all(map(goes_together, runs)):
        return False
    if any(claimant.has(run, run.state) for run in runs):
        # Before the savepoint, or rolling back would give the same fence twice.
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
        claimant.wrote_run(run, run.state)
    return True


def insert_run(db: sqlite3.Connection, now: int, app: str, run: NewRun, claimant: Claimant) -> Inserted:
    """known: the ledger has it, or its moment, already. duplicate: another run has its unique key."""
    if run.unique_key is not None and is_duplicate(db, now, app, run):
        return "duplicate"
    state, blocked_on = _state_of(db, app, run)
    if _insert(db, now, app, [(run, state, blocked_on)], claimant) == 0:
        return "known"
    claimant.wrote_run(run, state)
    if run.unique_key is not None and run.unique_for is not None:
        db.execute(SQL["enqueue.keep_unique_for"], (app, run.unique_key, run.id, now + run.unique_for))
    return "new"


def key_holder(db: sqlite3.Connection, now: int, app: str, key: str) -> str | None:
    """The run that has a unique key: a live one, or one whose period is not over."""
    found = db.execute(SQL["enqueue.find_unique"], (app, key)).fetchone()
    if found is None:
        found = db.execute(SQL["enqueue.find_unique_for"], (app, key, now)).fetchone()
    return None if found is None else str(found["id"])


def is_duplicate(db: sqlite3.Connection, now: int, app: str, run: NewRun) -> bool:
    """Whether another run has its key; a run that is sent again is no duplicate of itself."""
    assert run.unique_key is not None, "asked of runs with a unique key"
    if key_holder(db, now, app, run.unique_key) in (None, run.id):
        return False
    return db.execute(SQL["cancel.find"], (app, run.id)).fetchone() is None


def as_numbers(numbers: Iterable[int]) -> None:
    """Raises OverflowError for what no column of numbers holds; in a JSON text it would become an inexact one."""
    array("q", numbers)


def _insert(db: sqlite3.Connection, now: int, app: str, placed: Sequence[_Placed], claimant: Claimant) -> int:
    """How many of them were new."""
    alike: defaultdict[tuple[object, ...], dict[str, tuple[object, ...]]] = defaultdict(dict)
    times: list[int] = []
    for run, state, blocked_on in placed:
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
            plain_text(run.reason),
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
        alike[shared][run.id] = (run.schedule_id, run.version, fire_at, due_at, args)
        times += fire_at, due_at
    as_numbers(times)
    return sum(
        db.execute(SQL["record_fires.run"], (app, json_text(own), *shared)).rowcount for shared, own in alike.items()
    )


def _claim_of(now: int, run: NewRun, claimant: Claimant) -> tuple[object, ...]:
    """Node, fence, start, deadline, and whether it runs at most once."""
    deadline = None if run.timeout is None else now + run.timeout
    return claimant.node, claimant.draw(), now, deadline, int(run.at_most_once)


def _state_of(db: sqlite3.Connection, app: str, run: NewRun) -> tuple[State, str | None]:
    """A blocked run waits for the last in line of its schedule; if that has ended meanwhile it waits for nothing."""
    if run.state is not State.BLOCKED:
        return run.state, None
    last = db.execute(SQL["record_fires.last_in_line"], (run.schedule_id, app)).fetchone()
    return (State.WAITING, None) if last is None else (State.BLOCKED, last["id"])
