"""Upkeep: park runs that no node can run, prune, the pulse, and the repair of times written by a wrong clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

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
from evertick.store.postgres.connection import Statements, columns_of
from evertick.store.postgres.feed import prune_feed, publish_runs
from evertick.store.postgres.limits import enter_gate, make_room, release_stuck
from evertick.store.postgres.partitions import delete_rows_before
from evertick.store.rows import DATED, WAITING, MistimedRows, add_rows
from evertick.when.moment import DAY

__all__ = ["LimitsCursor", "PruneCursor", "apps", "find_mistimed", "mend_mistimed", "park_unknown", "prune", "pulse"]

# Counts of live runs and of schedules stop at these numbers.
_COUNT_MOST, _SCHEDULES_MOST = 10_000, 1_000_000
# Schedules whose history one call checks.
_SCHEDULES_PER_CALL = 1_000
# Every start of a process is a node, so dead nodes are kept for a day only, however long history is kept.
_DEAD_NODES_KEPT = DAY
# A duty survives a day without any node, however short history is kept.
_FREE_DUTIES_KEPT = DAY

# Where the next call continues, per app: the last schedule (key, id) that was checked.
PruneCursor = dict[str, tuple[str, int]]
# The same for keys of limits.
LimitsCursor = dict[str, str]


async def park_unknown(db: Statements, app: str, limit: int, limits_cursor: LimitsCursor) -> int:
    if (await db.only_row("park_unknown.has_limited", app))["has_limited"]:
        await enter_gate(db, app)
    limits_cursor[app] = await release_stuck(db, app, limits_cursor.get(app, ""), limit)
    parked = await db.rows("park_unknown", app, limit, db.is_in_gate)
    await publish_runs(db, app, "run.parked", [row["id"] for row in parked])
    await make_room(db, app, [row["limit_key"] for row in parked])
    if await db.count("park_unknown.free", app, limit):
        db.wake(app)
    return len(parked)


# --- pruning -----------------------------------------------------------------------------------------------------


class _PruneBatch:
    """Counts the rows that a call has deleted against its limit."""

    def __init__(self, db: Statements, app: str, limit: int) -> None:
        self.db = db
        self.app = app
        self.left = limit
        self.deleted = 0

    async def runs(self, name: str, *values: object) -> None:
        """Delete the runs that a statement returns, with attempts and log. Its last parameter is the limit."""
        rows = await self.db.rows(name, *values, self.left)
        if rows:
            moments = [row["fire_at"] for row in rows]
            self.count(await self.db.count("prune.runs", [row["id"] for row in rows], min(moments), max(moments)))

    async def rows(self, name: str, *values: object) -> None:
        """Execute a DELETE. Its last parameter is the limit."""
        self.count(await self.db.count(name, *values, self.left))

    def count(self, rows: int) -> None:
        self.left -= rows
        self.deleted += rows


async def prune(
    db: Statements, app: str, before: int, keep_per_schedule: int | None, limit: int, cursor: PruneCursor
) -> int:
    batch = _PruneBatch(db, app, limit)
    now = (await db.only_row("now"))["now"]
    steps: tuple[Callable[[], Awaitable[None]], ...] = (
        lambda: batch.runs("prune.old_runs", app, delete_rows_before(before, now), before),
        lambda: batch.runs("prune.old_runs_without_day", app, before),
        lambda: _prune_surplus(batch, keep_per_schedule, cursor),
        lambda: batch.rows("prune.gaps", app, before),
        lambda: batch.rows("prune.starts", app),
        lambda: batch.rows("prune.unique", app),
        lambda: batch.rows("prune.messages", app),
        lambda: batch.rows("prune.nodes", app, before, _DEAD_NODES_KEPT),
        lambda: _prune_duties(batch, before),
        lambda: _prune_finished(batch, before),
        lambda: _prune_feed(batch),
    )
    for step in steps:
        if batch.left > 0:
            await step()
    return batch.deleted


async def _prune_surplus(batch: _PruneBatch, most_kept: int | None, cursor: PruneCursor) -> None:
    """Check the next schedules for surplus runs, and for old definitions that no run refers to."""
    after = cursor.get(batch.app, ("", 0))
    rows = await batch.db.rows("prune.schedules", batch.app, *after, _SCHEDULES_PER_CALL)
    if rows:
        if most_kept is not None:
            await batch.runs("prune.surplus_runs", [row["schedule_id"] for row in rows], most_kept)
        versions = columns_of([(row["key"], row["schedule_id"]) for row in rows])
        await batch.db.count("prune.versions", batch.app, *versions)
        if batch.left <= 0:
            # There may be more of them: the next call checks the same schedules again.
            return
        cursor[batch.app] = (rows[-1]["key"], rows[-1]["schedule_id"])
    if len(rows) < _SCHEDULES_PER_CALL:
        cursor.pop(batch.app, None)


async def _prune_duties(batch: _PruneBatch, before: int) -> None:
    rows = await batch.db.rows("prune.duties", batch.app, before, _FREE_DUTIES_KEPT, batch.left)
    if rows:
        await batch.db.count("prune.duty_terms", batch.app, max(row["term"] for row in rows))
    batch.count(len(rows))


async def _prune_feed(batch: _PruneBatch) -> None:
    batch.count(await prune_feed(batch.db, batch.app, batch.left))


async def _prune_finished(batch: _PruneBatch, before: int) -> None:
    finished = [row["id"] for row in await batch.db.rows("prune.finished_schedules", batch.app, before, batch.left)]
    if not finished:
        return
    # Until the lock, one of them may be triggered or edited.
    await batch.db.rows("schedule.lock", sorted(finished))
    ids = [row["id"] for row in await batch.db.rows("prune.still_finished", finished)]
    await batch.db.count("change_schedules.remove", ids)
    batch.count(len(ids))


# --- pulse -------------------------------------------------------------------------------------------------------


async def pulse(db: Statements, app: str) -> Pulse:
    row = await db.only_row("pulse", app, _COUNT_MOST, _SCHEDULES_MOST)
    now = row["now"]
    failed = await db.rows("pulse.failed", app, now - FAILED_WINDOW, now - FAILED_MOMENT_WINDOW, FAILED_LIMIT)
    return Pulse(
        now=now,
        waiting=row["waiting"],
        running=row["running"],
        parked=row["parked"],
        blocked=row["blocked"],
        dispatched=row["dispatched"],
        oldest_due_at=row["oldest_due_at"],
        schedules=row["schedules"],
        failed={each["name"]: each["count"] for each in failed if each["verdict"] == Verdict.FAILED},
        lost={each["name"]: each["count"] for each in failed if each["verdict"] == Verdict.LOST},
    )


async def apps(db: Statements, *, limit: int = 100) -> list[str]:
    return [row["app"] for row in await db.rows("apps", limit)]


# --- rows written while the clock was ahead ---------------------------------------------------------------------------


async def find_mistimed(db: Statements, app: str, limit: int, since: int | None = None) -> tuple[MistimedRows, int]:
    """Returns them with the store's time. `since`: the earliest wrong time, if an earlier search has found it."""
    now: int = (await db.only_row("now"))["now"]
    found, ahead = MistimedRows({}, [], []), now + CLOCK_AHEAD
    for kind in (*DATED, "gaps", "keys"):
        add_rows(found, kind, await db.rows(f"clock.{kind}", app, ahead, limit))
    # Runs created at a wrong time prove it too; waiting rows are then found by the earliest of these times.
    for kind in ("runs", "messages"):
        rows = await db.rows(f"clock.{kind}", app, ahead, END_OF_TIME, now + CLOCK_FAR, limit)
        found.times.extend(row["at"] for row in rows if row["at"] is not None)
    earliest = min([*found.times, *([] if since is None else [since])], default=END_OF_TIME)
    for kind in ("runs", "messages"):
        add_rows(found, kind, await db.rows(f"clock.{kind}", app, ahead, earliest, now + CLOCK_FAR, limit))
    return found, now


async def mend_mistimed(
    db: Statements, app: str, found: MistimedRows, gaps: Sequence[GapCut], limit: int
) -> dict[str, int]:
    """Repair rows that were found before this transaction; a row that is correct by now is unchanged."""
    now: int = (await db.only_row("now"))["now"]
    mended: dict[str, int] = {}
    for kind in WAITING:
        await _mend(db, mended, kind, found, app, now)
        if len(found.names.get(kind, ())) >= limit:
            break  # there may be more of them
    else:
        for kind in DATED:
            await _mend(db, mended, kind, found, app, now)
        if cut := await _cut(db, app, gaps, now):
            mended["gaps"] = cut
    if mended:
        db.wake(app)
    return mended


async def _mend(db: Statements, mended: dict[str, int], kind: str, found: MistimedRows, app: str, now: int) -> None:
    names, ahead = found.names.get(kind, []), now + CLOCK_AHEAD
    if not names:
        return
    values: tuple[Any, ...] = (app, names, now)
    match kind:
        case "runs":
            held = [row["id"] for row in await db.rows("clock.lock_runs", app, names)]
            mended[kind] = (await db.only_row("clock.mend_runs", app, held, now, ahead))["count"]
        case "history":
            mended[kind] = (await db.only_row("clock.mend_history", *values, ahead))["count"]
        case "attempts":
            runs, fences = [run for run, _ in names], [fence for _, fence in names]
            mended[kind] = await db.count("clock.mend_attempts", app, runs, fences, now, ahead)
        case "messages" | "duties":
            mended[kind] = await db.count(f"clock.mend_{kind}", *values, ahead)
        case _:
            mended[kind] = await db.count(f"clock.mend_{kind}", *values)


async def _cut(db: Statements, app: str, gaps: Sequence[GapCut], now: int) -> int:
    cut = 0
    for gap in gaps:
        if gap.count:
            values = (app, gap.id, gap.last_at, gap.count, gap.is_exact, now, now + CLOCK_AHEAD)
            cut += await db.count("clock.mend_gap", *values)
        else:
            cut += await db.count("clock.drop_gap", app, gap.id, now + CLOCK_AHEAD)
    return cut
