"""Limits on SQLite: which runs pass a limit, which are blocked by it, and when they are released.

Only a claim passes a limit, inside its write transaction: it counts the running runs of the key, takes up to the limit
and blocks the others. A *blocked* run is out of the claim index, with the key in `limit_key`. A *released* run waits
again and keeps the key as a mark. A running run has the key of its concurrency limit: these are counted, so no counter
can drift.

Why no run is blocked for ever. The runs of one key, task and queue are a *lane*: a node that can run one of them can
run all. After each transaction one of these holds for every lane with a blocked run:

  (a) the key is of a concurrency limit, and a run of the key is running or dispatched;
  (b) a run of the lane is released;
  (c) the key has a row in `evertick_limits`: the time at which a claim releases the next run.

It begins with (a) or (c): a claim blocks under a concurrency limit only if as many runs as allowed are running, and
under a rate only with the time of the next start. (a) ends when a run of the key stops running; then the next run of
each lane is released (b). (b) ends in three ways:

- The run is claimed. Then it is running (a), or it used up the rate and the next time is set (c). If the limit has more
  room, for example because it was raised, the claim releases more runs (b).
- The run is cancelled, expires, is parked or removed. Then the next run is released.
- Another limit blocks it. Then the next run is released, unless that limit has the same key for the whole lane; then
  the key is checked again when the other limit may be free (c).

(c) ends with (b).

Why no run stays blocked under limits that no living node has. (a) and (c) depend on the limits of the node that blocked
the run: with a longer period the time is too late, with a smaller number the run waits without need. Limits change only
with nodes. So `evertick_held_under` lists all limits under which runs of a task may be blocked. A node that joins with
other limits checks every key again, and so does a living node when a node with other limits dies. It does so in its
claims, a bounded number of keys in each: the next run of each lane is released and its time deleted (b), and in the
same transaction the claim takes it, or blocks it under the limits of its own node, (a) or (c). The listed limits are
deleted when a node has checked all keys and no living node has these limits. If the node dies before that, the next
node does it. While nodes with different limits live, each obeys its own: a node with less room may block runs that the
other could take.

A claim moves a bounded number of runs, and only runs at the head of their lane, so a hundred thousand blocked runs cost
nothing.
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

__all__ = ["Gate", "check_again", "make_room", "release_next", "release_stuck"]

# Keys that one claim releases or checks again, at most: bounds its transaction.
_KEYS_MOST = 100
# When to check a rate again whose next run a concurrency limit blocks: it is unknown when that will be free.
_RECHECK = SECOND


def make_room(db: sqlite3.Connection, app: str, keys: Iterable[str | None]) -> bool:
    """Runs with these keys have stopped running, or were released but not claimed: release the next ones.

    Returns whether any run was released.
    """
    left = Counter(key for key in keys if key is not None)
    has_released = False
    for key, count in left.items():
        has_released |= release_next(db, app, key, count)
    return has_released


def release_next(db: sqlite3.Connection, app: str, key: str, count: int = 1, *, only_idle: bool = False) -> bool:
    """Release the best runs of each lane of the key. `only_idle`: only of lanes without a released run."""
    has_released = False
    lane = ("", "")
    while (best := db.execute(SQL["limits.next_lane"], (app, key, *lane)).fetchone()) is not None:
        lane = (best["task"], best["queue"])
        if only_idle and db.execute(SQL["limits.is_let_through"], (app, key, *lane)).fetchone() is not None:
            continue
        db.execute(SQL["limits.let_through"], (app, key, *lane, count))
        has_released = True
    return has_released


def check_again(db: sqlite3.Connection, app: str, node: str, after: str) -> bool:
    """Release the next run of each lane of the next keys, blocked by any node. True: there are more keys."""
    for _ in range(_KEYS_MOST):
        key = db.execute(SQL["limits.next_key"], (app, after)).fetchone()[0]
        if key is None:
            db.execute(SQL["limits.looked_up_to"], (node, None))
            db.execute(SQL["limits.forget_terms"], (app, node))
            return False
        after = str(key)
        db.execute(SQL["limits.forget_time"], (app, after))
        release_next(db, app, after, only_idle=True)
    db.execute(SQL["limits.looked_up_to"], (node, after))
    return True


def release_stuck(db: sqlite3.Connection, now: int, app: str, after: str, most: int) -> str:
    """Check the next keys with blocked runs: where neither (a) nor (c) holds, release a run (b). Returns the last key
    checked; "" at the end."""
    for _ in range(most):
        key = db.execute(SQL["limits.next_key"], (app, after)).fetchone()[0]
        if key is None:
            return ""
        after = str(key)
        timed = db.execute(SQL["limits.time_of"], (app, after)).fetchone()
        # A time that was set in the future does not count: the clock was put back.
        is_timed = timed is not None and timed["free_at"] > now and timed["set_at"] <= now
        if not is_timed and not _running(db, app, after):
            db.execute(SQL["limits.forget_time"], (app, after))
            release_next(db, app, after, only_idle=True)
    return after


def _running(db: sqlite3.Connection, app: str, key: str) -> int:
    return int(db.execute(SQL["limits.running"], (app, key)).fetchone()[0])


class _Starts:
    """The starts of one rate within its period, and those that this claim adds."""

    def __init__(self, db: sqlite3.Connection, now: int, app: str, key: str, rate: Rate) -> None:
        self._db = db
        self._now = now
        self._of = (app, key)
        self.rate = rate
        self._move_future_starts()
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
        """Write one row for the added starts and those of the same grain."""
        if not self._added:
            return
        grain = self.rate.grain
        since = self._now - self._now % grain if grain else self._now
        self._put(self._added + self._remove_since(since))
        self._added = 0

    def free_at(self) -> int:
        """When the next start is possible, if nothing else starts. For a rate that is used up."""
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

    def _move_future_starts(self) -> None:
        # The clock was put back. These starts have happened, so they count from now, for one period.
        future = self._remove_since(self._now + 1)
        if future:
            self._put(future + self._remove_since(self._now))

    def _remove_since(self, since: int) -> int:
        return sum(row["count"] for row in self._db.execute(SQL["limits.take_out"], (*self._of, since)).fetchall())

    def _put(self, count: int) -> None:
        self._db.execute(SQL["limits.put"], (*self._of, self._now, count, self._now + self.rate.period))


class Gate:
    """The limits for one claim. Counts are read once per key, and updated as the claim takes runs."""

    def __init__(self, db: sqlite3.Connection, now: int, app: str, tasks: Mapping[str, TaskTerms]) -> None:
        self._db = db
        self._now = now
        self._app = app
        self._tasks = tasks
        self._running: dict[str, int] = {}
        self._starts: dict[str, _Starts] = {}
        # Keys of runs taken since the last `settle`, each with the highest limit of their tasks.
        self._taken: dict[str, int] = {}
        # Keys that blocked a run, of limits that the code no longer has.
        self._outdated: set[str] = set()
        # Times that this claim has set.
        self._times: dict[str, int] = {}

    @classmethod
    def of(cls, db: sqlite3.Connection, now: int, app: str, tasks: Mapping[str, TaskTerms]) -> Gate | None:
        """None if no task has a limit, so that such claims have no cost."""
        return cls(db, now, app, tasks) if any(terms.is_limited for terms in tasks.values()) else None

    def open_due(self) -> None:
        """Release runs of keys whose time has come."""
        for row in self._db.execute(SQL["limits.due"], (self._app, self._now, _KEYS_MOST)).fetchall():
            self._db.execute(SQL["limits.forget_time"], (self._app, row["key"]))
            release_next(self._db, self._app, row["key"], only_idle=True)

    def pass_through(self, runs: Sequence[Candidate]) -> dict[str, str | None]:
        """Runs that may start, by id, with the key under which they count. Blocks the others."""
        passed: dict[str, str | None] = {}
        for run in runs:
            terms = self._tasks[run.task]
            held_by = self._blocked_by(run, terms) if terms.is_limited else None
            if held_by is not None:
                self._block(run, *held_by)
            else:
                passed[run.id] = self._admit(run, terms)
        return passed

    def settle(self, slots: int) -> bool:
        """After a batch was taken: release further runs, or set the time for it. True: a run was released."""
        taken, self._taken = self._taken, {}
        outdated, self._outdated = self._outdated, set()
        has_released = False
        for key in outdated:
            has_released |= release_next(self._db, self._app, key, max(slots, 1), only_idle=True)
        for key, most in taken.items():
            starts = self._starts.get(key)
            if starts is not None:
                starts.write()
            room = most - self._running[key] if starts is None else starts.room
            if room > 0:
                # At most as many as this claim could take, but at least one, for the next claim.
                has_released |= release_next(self._db, self._app, key, min(room, max(slots, 1)), only_idle=True)
            elif starts is not None and self._has_blocked(key):
                self._check_at(key, starts.free_at())
        return has_released

    def next_free_at(self) -> int | None:
        free_at = self._db.execute(SQL["limits.next_time"], (self._app,)).fetchone()[0]
        return None if free_at is None else int(free_at)

    def _blocked_by(self, run: Candidate, terms: TaskTerms) -> tuple[str, bool, int] | None:
        """The key that has no room, whether keys vary in a lane, and when to check again. None: the run may start."""
        if terms.concurrency is not None:
            key = terms.concurrency.key(run.args)
            if self._count_of(key) >= terms.concurrency.most:
                return key, terms.concurrency.of.varies, self._now + _RECHECK
        if terms.rate is not None:
            key = terms.rate.key(run.args)
            starts = self._starts_of(key, terms.rate)
            if starts.room <= 0:
                free_at = starts.free_at()
                self._check_at(key, free_at)
                return key, terms.rate.of.varies, free_at
        return None

    def _block(self, run: Candidate, key: str, varies: bool, check_at: int) -> None:
        self._db.execute(SQL["limits.hold_back"], (self._app, run.id, key))
        before = run.limit_key
        if before is None or before == key:
            return
        if varies:
            release_next(self._db, self._app, before, only_idle=True)
        else:
            self._check_at(before, check_at)

    def _admit(self, run: Candidate, terms: TaskTerms) -> str | None:
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

    def _has_blocked(self, key: str) -> bool:
        return self._db.execute(SQL["limits.next_lane"], (self._app, key, "", "")).fetchone() is not None

    def _check_at(self, key: str, at: int) -> None:
        if self._times.get(key) != at:
            self._times[key] = at
            self._db.execute(SQL["limits.set_time"], (self._app, key, at, self._now))
