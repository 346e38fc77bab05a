"""Limits on SQLite: which runs pass, which are held back, and which are let through again.

A claim is the only thing that passes a limit, inside its write transaction, which no other claim can interleave: it
counts what runs under the key, takes up to the limit, and holds the rest back. Held back means blocked, out of the
claim index, with the key in `limit_key`. Let through means waiting again with the key still there, as a mark. A running
run has the key of its concurrency there: that is what is counted, and there is no counter that could drift.

Why nothing is held back for ever. Runs of one key, task and queue are a *lane*: a node that can take one of them can
take the others. For every lane in which something is held back, one of these holds after each transaction:

  (a) its key is one of concurrency, and a run of the key is running or dispatched;
  (b) a run of the lane is let through;
  (c) the key has a row in `evertick_limits`, the time at which a claim lets the next through.

It begins with (a) or (c), for a claim holds back under a concurrency only where as many as may are running, and under
a rate only with the time of the next free start. (a) ends when a run of the key leaves both states, and that lets the
next of each lane through: (b). (b) ends in three ways. The run is claimed: then it is running (a), or it used up the
rate and the next free start is set (c); where the limit has room left, the claim lets more through (b), which also
fills up a limit that was raised. Or it leaves otherwise, cancelled, expired, parked, removed: then the next is let
through. Or another limit holds it back: then the next is let through, unless that limit is the same for the whole lane
and would hold it back too; then the key is looked at again when the other may be free (c). (c) ends by (b).

Why nothing is held back under terms that no living node has. (a) and (c) are as true as the limits of the node that
held back: with a longer period the time is far, with a greater number no run need wait for the one that runs. Terms
change with nodes alone. So `evertick_held_under` knows all limits that something of a task may be held back under, and
a node that joins with others looks again at every key; so does a living one when a node dies that had others. It looks
in its own claims, a bounded number of keys in each: the next of each lane is let through, and its time forgotten (b),
and in the same transaction the claim takes it under the terms of its own node, or holds it back under them, (a) or (c).
These terms are forgotten when a node has looked at all and no living node has them; a node that dies on the way leaves
that to the next. While nodes with different limits live, each obeys its own: one with less room may hold back what the
other could have taken, until it is gone.

A claim moves at most a bounded number of runs in and out, and each run moves only when it is at the head of its lane: a
hundred thousand that are held back cost nothing.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from evertick.model.limits import Rate
from evertick.store.base import TaskTerms
from evertick.store.sqlite.connection import SQL
from evertick.when.moment import SECOND

if TYPE_CHECKING:
    from evertick.store.sqlite.claims import Candidate

__all__ = ["Gate", "let_next", "let_stuck_through", "look_again", "make_room"]

# Keys that one claim lets through at most, whose time has come or that its node looks at again: bounds its transaction.
_KEYS_MOST = 100
# When to look again at a rate whose next run was held back by a concurrency: it is unknown when that will be free.
_LOOK_AGAIN = SECOND


def make_room(db: sqlite3.Connection, app: str, keys: Iterable[str | None]) -> bool:
    """Runs with these keys have left running, or were let through and are not claimed after all: the next may come.

    One answer for all: whether anybody was let through.
    """
    left = Counter(key for key in keys if key is not None)
    has_let = False
    for key, count in left.items():
        has_let |= let_next(db, app, key, count)
    return has_let


def let_next(db: sqlite3.Connection, app: str, key: str, count: int = 1, *, only_idle: bool = False) -> bool:
    """Let the best of each lane of the key through; `only_idle`: of lanes in which no run is let through already."""
    has_let = False
    lane = ("", "")
    while (best := db.execute(SQL["limits.next_lane"], (app, key, *lane)).fetchone()) is not None:
        lane = (best["task"], best["queue"])
        if only_idle and db.execute(SQL["limits.is_let_through"], (app, key, *lane)).fetchone() is not None:
            continue
        db.execute(SQL["limits.let_through"], (app, key, *lane, count))
        has_let = True
    return has_let


def look_again(db: sqlite3.Connection, app: str, node: str, after: str) -> bool:
    """Let the next of the next keys' lanes through, under any node's limits. True: there are more keys to look at."""
    for _ in range(_KEYS_MOST):
        key = db.execute(SQL["limits.next_key"], (app, after)).fetchone()[0]
        if key is None:
            db.execute(SQL["limits.looked_up_to"], (node, None))
            db.execute(SQL["limits.forget_terms"], (app, node))
            return False
        after = str(key)
        db.execute(SQL["limits.forget_time"], (app, after))
        let_next(db, app, after, only_idle=True)
    db.execute(SQL["limits.looked_up_to"], (node, after))
    return True


def let_stuck_through(db: sqlite3.Connection, now: int, app: str, after: str, most: int) -> str:
    """Look at the next keys that hold something back; where neither (a) nor (c) holds, see to (b). Answers how far."""
    for _ in range(most):
        key = db.execute(SQL["limits.next_key"], (app, after)).fetchone()[0]
        if key is None:
            return ""
        after = str(key)
        timed = db.execute(SQL["limits.time_of"], (app, after)).fetchone()
        # Set in the future: the clock was put back since, and the time says nothing any more.
        is_timed = timed is not None and timed["free_at"] > now and timed["set_at"] <= now
        if not is_timed and not _running(db, app, after):
            db.execute(SQL["limits.forget_time"], (app, after))
            let_next(db, app, after, only_idle=True)
    return after


def _running(db: sqlite3.Connection, app: str, key: str) -> int:
    return int(db.execute(SQL["limits.running"], (app, key)).fetchone()[0])


class _Starts:
    """The starts of one rate that count now, and those that this claim adds."""

    def __init__(self, db: sqlite3.Connection, now: int, app: str, key: str, rate: Rate) -> None:
        self._db = db
        self._now = now
        self._of = (app, key)
        self.rate = rate
        self._take_back_future()
        self.count = int(db.execute(SQL["limits.starts"], (app, key, now - rate.period)).fetchone()[0])
        self._added = 0
        self._free_at: int | None = None

    @property
    def room(self) -> int:
        return self.rate.most - self.count

    def add(self) -> None:
        self.count += 1
        self._added += 1
        self._free_at = None

    def write(self) -> None:
        """One row for all that were added, and for what it is gathered with."""
        if not self._added:
            return
        grain = self.rate.grain
        since = self._now - self._now % grain if grain else self._now
        self._put(self._added + self._taken_out(since))
        self._added = 0

    def free_at(self) -> int:
        """When the next start is free, if nothing else starts. Asked of a rate that is used up."""
        self.write()
        if self._free_at is None:
            self._free_at = self._first_free()
        return self._free_at

    def _first_free(self) -> int:
        left = self.count
        for row in self._db.execute(SQL["limits.starts_in_order"], (*self._of, self._now - self.rate.period)):
            left -= row["count"]
            if left < self.rate.most:
                return int(row["at"]) + self.rate.period
        return self._now + self.rate.period

    def _take_back_future(self) -> None:
        # The clock was put back. They have happened, so they count from now, and no longer than any other.
        future = self._taken_out(self._now + 1)
        if future:
            self._put(future + self._taken_out(self._now))

    def _taken_out(self, since: int) -> int:
        return sum(row["count"] for row in self._db.execute(SQL["limits.take_out"], (*self._of, since)).fetchall())

    def _put(self, count: int) -> None:
        self._db.execute(SQL["limits.put"], (*self._of, self._now, count, self._now + self.rate.period))


class Gate:
    """The limits as one claim meets them. Counts are read once per key and kept up to date by what the claim does."""

    def __init__(self, db: sqlite3.Connection, now: int, app: str, tasks: Mapping[str, TaskTerms]) -> None:
        self._db = db
        self._now = now
        self._app = app
        self._tasks = tasks
        self._running: dict[str, int] = {}
        self._starts: dict[str, _Starts] = {}
        # Keys that runs were taken under since the last settlement, with the most that any of their tasks allows.
        self._taken: dict[str, int] = {}
        # Keys of limits that runs were held back by and that the code no longer has.
        self._outdated: set[str] = set()
        # Times that this claim has set already.
        self._times: dict[str, int] = {}

    @classmethod
    def of(cls, db: sqlite3.Connection, now: int, app: str, tasks: Mapping[str, TaskTerms]) -> Gate | None:
        """None where no task has a limit: such claims pay for nothing."""
        return cls(db, now, app, tasks) if any(terms.is_limited for terms in tasks.values()) else None

    def open_due(self) -> None:
        """Let through what waits for keys whose time has come."""
        for row in self._db.execute(SQL["limits.due"], (self._app, self._now, _KEYS_MOST)).fetchall():
            self._db.execute(SQL["limits.forget_time"], (self._app, row["key"]))
            let_next(self._db, self._app, row["key"], only_idle=True)

    def pass_through(self, runs: Sequence[Candidate]) -> dict[str, str | None]:
        """The runs that may start, by id, with the key that they count under; the others are held back."""
        passed: dict[str, str | None] = {}
        for run in runs:
            terms = self._tasks[run.task]
            held_by = self._held_by(run, terms) if terms.is_limited else None
            if held_by is not None:
                self._hold_back(run, *held_by)
            else:
                passed[run.id] = self._let_in(run, terms)
        return passed

    def settle(self, slots: int) -> bool:
        """After a batch was taken: what else may come through, or when. True: a run was let through."""
        taken, self._taken = self._taken, {}
        outdated, self._outdated = self._outdated, set()
        has_let = False
        for key in outdated:
            has_let |= let_next(self._db, self._app, key, max(slots, 1), only_idle=True)
        for key, most in taken.items():
            starts = self._starts.get(key)
            if starts is not None:
                starts.write()
            room = most - self._running[key] if starts is None else starts.room
            if room > 0:
                # No more than this claim could take; but one in any case, for the next claim.
                has_let |= let_next(self._db, self._app, key, min(room, max(slots, 1)), only_idle=True)
            elif starts is not None and self._holds_back(key):
                self._look_at(key, starts.free_at())
        return has_let

    def next_free_at(self) -> int | None:
        free_at = self._db.execute(SQL["limits.next_time"], (self._app,)).fetchone()[0]
        return None if free_at is None else int(free_at)

    def _held_by(self, run: Candidate, terms: TaskTerms) -> tuple[str, bool, int] | None:
        """The key that has no room, whether others of the lane may have another one, when to look again; None: none."""
        if terms.concurrency is not None:
            key = terms.concurrency.key(run.args)
            if self._count_of(key) >= terms.concurrency.most:
                return key, terms.concurrency.of.varies, self._now + _LOOK_AGAIN
        if terms.rate is not None:
            key = terms.rate.key(run.args)
            starts = self._starts_of(key, terms.rate)
            if starts.room <= 0:
                free_at = starts.free_at()
                self._look_at(key, free_at)
                return key, terms.rate.of.varies, free_at
        return None

    def _hold_back(self, run: Candidate, key: str, varies: bool, look_again_at: int) -> None:
        self._db.execute(SQL["limits.hold_back"], (self._app, run.id, key))
        before = run.limit_key
        if before is None or before == key:
            return
        if varies:
            let_next(self._db, self._app, before, only_idle=True)
        else:
            self._look_at(before, look_again_at)

    def _let_in(self, run: Candidate, terms: TaskTerms) -> str | None:
        counted_under = None
        if terms.concurrency is not None:
            counted_under = terms.concurrency.key(run.args)
            self._running[counted_under] = self._count_of(counted_under) + 1
            self._taken[counted_under] = max(terms.concurrency.most, self._taken.get(counted_under, 0))
        if terms.rate is not None:
            key = terms.rate.key(run.args)
            self._starts_of(key, terms.rate).add()
            self._taken[key] = terms.rate.most
        if run.limit_key is not None and run.limit_key not in self._taken:
            self._outdated.add(run.limit_key)
        return counted_under

    def _count_of(self, key: str) -> int:
        if key not in self._running:
            self._running[key] = _running(self._db, self._app, key)
        return self._running[key]

    def _starts_of(self, key: str, rate: Rate) -> _Starts:
        starts = self._starts.get(key)
        if starts is None or (starts.rate.most, starts.rate.period) != (rate.most, rate.period):
            if starts is not None:
                starts.write()
            starts = self._starts[key] = _Starts(self._db, self._now, self._app, key, rate)
        return starts

    def _holds_back(self, key: str) -> bool:
        return self._db.execute(SQL["limits.next_lane"], (self._app, key, "", "")).fetchone() is not None

    def _look_at(self, key: str, at: int) -> None:
        if self._times.get(key) != at:
            self._times[key] = at
            self._db.execute(SQL["limits.set_time"], (self._app, key, at, self._now))
