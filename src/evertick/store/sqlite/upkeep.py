"""Upkeep: park runs that no node can run, prune, the pulse, and the repair of times written by a wrong clock."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence

from evertick.model import Verdict
from evertick.store.base import (
    CLOCK_AHEAD,
    CLOCK_FAR,
    END_OF_TIME,
    FAILED_LIMIT,
    FAILED_MOMENT_WINDOW,
    FAILED_WINDOW,
    GapCut,
    Pulse,
)
from evertick.store.rows import DATED, WAITING, MistimedRows, add_rows, json_text
from evertick.store.sqlite.connection import SQL
from evertick.store.sqlite.feed import prune_feed, publish_runs
from evertick.store.sqlite.limits import make_room, release_stuck
from evertick.when.moment import DAY

__all__ = [
    "LimitsCursor",
    "PruneCursor",
    "apps",
    "find_mistimed",
    "free_pages",
    "mend_mistimed",
    "park_unknown",
    "prune",
    "pulse",
]

_ABOVE_ALL = 2**63 - 1
# Counts of live runs stop at this number.
_COUNT_MOST = 10_000
# Per call of `prune`: schedules whose history is checked, and pages returned to the file system.
_SCHEDULES_PER_CALL = 1_000
_PAGES_PER_CALL = 200
# Every start of a process is a node, so dead nodes are kept for a day only, however long history is kept.
_DEAD_NODES_KEPT = DAY
# A duty survives a day without any node, however short history is kept.
_FREE_DUTIES_KEPT = DAY

# Default number of finished runs kept per schedule: a file should stay small enough to copy.
_KEPT_PER_SCHEDULE = 10_000

# Where the next call continues, per app: the last schedule (key, id) that was checked.
PruneCursor = dict[str, tuple[str, int]]
# The same for keys of limits.
LimitsCursor = dict[str, str]


def park_unknown(db: sqlite3.Connection, now: int, app: str, limit: int, limits_cursor: LimitsCursor) -> int:
    unknown = db.execute(SQL["park_unknown"], (app, now, limit)).fetchall()
    db.executemany(SQL["park_unknown.park"], [(app, row["id"]) for row in unknown])
    publish_runs(db, now, app, "run.parked", [row["id"] for row in unknown])
    make_room(db, app, [row["limit_key"] for row in unknown])
    limits_cursor[app] = release_stuck(db, now, app, limits_cursor.get(app, ""), limit)
    known = db.execute(SQL["park_unknown.known_again"], (app, limit)).fetchall()
    db.executemany(SQL["park_unknown.free"], [(app, row["id"]) for row in known])
    return len(unknown)


# --- pruning -----------------------------------------------------------------------------------------------------


class _PruneBatch:
    """Counts the rows that a call has deleted against its limit."""

    def __init__(self, db: sqlite3.Connection, app: str, limit: int) -> None:
        self.db = db
        self.app = app
        self.left = limit
        self.deleted = 0

    def runs(self, name: str, *values: object) -> None:
        """Delete the runs that a statement returns, with attempts and log. Its last parameter is the limit."""
        ids = [(self.app, row["id"]) for row in self.db.execute(SQL[name], (*values, self.left)).fetchall()]
        for statement in ("prune.run", "prune.attempts", "prune.log"):
            self.db.executemany(SQL[statement], ids)
        self.count(len(ids))

    def rows(self, name: str, *values: object) -> None:
        self.count(self.db.execute(SQL[name], (*values, self.left)).rowcount)

    def count(self, rows: int) -> None:
        self.left -= rows
        self.deleted += rows


def prune(
    db: sqlite3.Connection,
    now: int,
    app: str,
    before: int,
    keep_per_schedule: int | None,
    limit: int,
    cursor: PruneCursor,
) -> int:
    batch = _PruneBatch(db, app, limit)
    most_kept = _KEPT_PER_SCHEDULE if keep_per_schedule is None else keep_per_schedule
    steps: tuple[Callable[[], None], ...] = (
        lambda: batch.runs("prune.old_runs", app, before),
        lambda: _prune_surplus(batch, most_kept, cursor),
        lambda: batch.rows("prune.gaps", app, before),
        lambda: batch.rows("prune.starts", app, now),
        lambda: batch.rows("prune.unique", app, now),
        lambda: batch.rows("prune.messages", app, now),
        lambda: batch.rows("prune.nodes", app, max(before, now - _DEAD_NODES_KEPT)),
        lambda: _prune_duties(batch, now, min(before, now - _FREE_DUTIES_KEPT)),
        lambda: _prune_finished(batch, before),
        lambda: batch.count(prune_feed(db, now, app, batch.left)),
    )
    for step in steps:
        if batch.left > 0:
            step()
    free_pages(db, _PAGES_PER_CALL)
    return batch.deleted


def free_pages(db: sqlite3.Connection, most: int) -> None:
    """Return free pages at the end of the file to the file system.

    One page per statement: `incremental_vacuum` frees a page per step and returns rows without columns, which Python's
    sqlite3 does not step through, so that a request for 200 frees one.
    """
    left = int(db.execute("PRAGMA freelist_count").fetchone()[0])
    for _ in range(min(most, left)):
        db.execute("PRAGMA incremental_vacuum(1)")


def _prune_surplus(batch: _PruneBatch, most_kept: int, cursor: PruneCursor) -> None:
    """Check the next schedules for surplus runs, and for old definitions that no run refers to."""
    after = cursor.get(batch.app, ("", 0))
    rows = batch.db.execute(SQL["prune.schedules"], (batch.app, *after, _SCHEDULES_PER_CALL)).fetchall()
    for row in rows:
        if batch.left <= 0:
            return
        batch.runs("prune.surplus_runs", row["schedule_id"], most_kept)
        batch.db.execute(SQL["prune.versions"], (batch.app, row["key"], row["schedule_id"]))
        cursor[batch.app] = (row["key"], row["schedule_id"])
    if len(rows) < _SCHEDULES_PER_CALL:
        cursor.pop(batch.app, None)


def _prune_duties(batch: _PruneBatch, now: int, before: int) -> None:
    terms = [row["term"] for row in batch.db.execute(SQL["prune.duties"], (batch.app, before, batch.left)).fetchall()]
    if terms:
        batch.db.execute(SQL["prune.duty_terms"], (batch.app, max(terms), now))
    batch.count(len(terms))


def _prune_finished(batch: _PruneBatch, before: int) -> None:
    finished = batch.db.execute(SQL["prune.finished_schedules"], (batch.app, before, batch.left)).fetchall()
    ids = [(row["id"],) for row in finished]
    batch.db.executemany(SQL["change_schedules.remove"], ids)
    batch.db.executemany(SQL["change_schedules.remove_due"], ids)
    batch.count(len(ids))


# --- pulse -------------------------------------------------------------------------------------------------------


def pulse(db: sqlite3.Connection, now: int, app: str) -> Pulse:
    def counted(name: str) -> int:
        return int(db.execute(SQL[name], (app, _COUNT_MOST)).fetchone()[0])

    failed = db.execute(
        SQL["pulse.failed"], (app, now - FAILED_WINDOW, now - FAILED_MOMENT_WINDOW, FAILED_LIMIT)
    ).fetchall()
    return Pulse(
        now=now,
        waiting=counted("pulse.waiting"),
        running=counted("pulse.running"),
        parked=counted("pulse.parked"),
        blocked=counted("pulse.blocked"),
        dispatched=counted("pulse.dispatched"),
        oldest_due_at=_oldest_due(db, app),
        schedules=db.execute(SQL["pulse.schedules"], (app,)).fetchone()[0],
        failed=_counts(failed, Verdict.FAILED),
        lost=_counts(failed, Verdict.LOST),
    )


def _counts(rows: Iterable[sqlite3.Row], verdict: Verdict) -> dict[str, int]:
    return {row["name"]: row["count"] for row in rows if row["verdict"] == verdict}


def apps(db: sqlite3.Connection, now: int, *, limit: int = 100) -> list[str]:
    found: list[str] = []
    app = ""
    while len(found) < limit and (app := db.execute(SQL["apps.next"], (app,)).fetchone()["app"]) is not None:
        found.append(app)
    return found


def _oldest_due(db: sqlite3.Connection, app: str) -> int | None:
    earliest: list[int] = []
    queue = ""
    while (queue := db.execute(SQL["pulse.next_queue"], (app, queue)).fetchone()[0]) is not None:
        for priority in _priorities(db, app, queue):
            earliest += [row["due_at"] for row in db.execute(SQL["pulse.oldest_due"], (app, queue, priority))]
    return min(earliest, default=None)


def _priorities(db: sqlite3.Connection, app: str, queue: str) -> Iterator[int]:
    """The priorities in use in a queue, highest first."""
    priority = _ABOVE_ALL
    while (priority := db.execute(SQL["pulse.next_priority"], (app, queue, priority)).fetchone()[0]) is not None:
        yield priority


# --- rows written while the clock was ahead ---------------------------------------------------------------------------


def find_mistimed(
    db: sqlite3.Connection, now: int, app: str, limit: int, since: int | None = None
) -> tuple[MistimedRows, int]:
    """Read all rows without a lock; returns them with the store's time. `since`: the earliest wrong time, if an earlier
    search has found it."""
    found, ahead = MistimedRows({}, [], []), now + CLOCK_AHEAD
    for kind in (*DATED, "gaps", "keys"):
        add_rows(found, kind, db.execute(SQL[f"clock.{kind}"], (app, ahead, limit)).fetchall())
    # Runs created at a wrong time prove it too; waiting rows are then found by the earliest of these times.
    for kind in ("runs", "messages"):
        values = (app, ahead, END_OF_TIME, now + CLOCK_FAR, limit)
        found.times.extend(row["at"] for row in db.execute(SQL[f"clock.{kind}"], values) if row["at"] is not None)
    earliest = min([*found.times, *([] if since is None else [since])], default=END_OF_TIME)
    for kind in ("runs", "messages"):
        values = (app, ahead, earliest, now + CLOCK_FAR, limit)
        add_rows(found, kind, db.execute(SQL[f"clock.{kind}"], values).fetchall())
    return found, now


def mend_mistimed(
    db: sqlite3.Connection, now: int, app: str, found: MistimedRows, gaps: Sequence[GapCut], limit: int
) -> dict[str, int]:
    """Repair rows that were found before this transaction; a row that is correct by now is unchanged."""
    ahead, mended = now + CLOCK_AHEAD, dict[str, int]()

    def mend(kind: str) -> None:
        if names := found.names.get(kind):
            statement = SQL[f"clock.mend_{kind}"]
            values = (app, json_text(names), now, ahead)[: 4 if "?4" in statement else 3]
            mended[kind] = db.execute(statement, values).rowcount

    for kind in WAITING:
        mend(kind)
        if len(found.names.get(kind, ())) >= limit:
            return mended  # there may be more of them
    for kind in DATED:
        mend(kind)
    cut = 0
    for gap in gaps:
        if gap.count:
            values = (app, gap.id, gap.last_at, gap.count, gap.is_exact, now, ahead)
            cut += db.execute(SQL["clock.mend_gap"], values).rowcount
        else:
            cut += db.execute(SQL["clock.drop_gap"], (app, gap.id, ahead)).rowcount
    return {**mended, "gaps": cut} if cut else mended
