"""The ledger as people read it: runs, gaps, attempts, log lines. Nothing here writes.

Live runs and history are two tables; a reader sees one list as of one moment, newest first where nothing else is asked
for.
"""

from __future__ import annotations

from typing import Any

from evertick.model import Attempt, Gap, LogLine, Run
from evertick.store.base import RunFilter
from evertick.store.postgres.ids import ids_that_begin, is_run_id
from evertick.store.postgres.session import Statements
from evertick.store.rows import Row, attempt_of, gap_of, json_text, lines_of, plain_text, read_each, run_of

__all__ = ["attempts", "gaps", "log", "recorded_moments", "runs"]

_FIRST, _LAST = -(2**63), 2**63 - 1

# What a filter adds to `runs.live` and `runs.done`; its values are always parameters.
_CLAUSES = {
    "ids": "r.id = ANY({}::uuid[])",
    "first_id": "r.id >= {}::uuid",
    "last_id": "r.id <= {}::uuid",
    "schedule_id": "r.schedule_id = {}",
    "task": "r.task = {}",
    "states": "r.state = ANY({}::text[])",
    "verdicts": "r.verdict = ANY({}::text[])",
    # Once for the days that have to be opened, once for the index of times.
    "since": "r.fire_at >= {0} AND r.fire_at + 0 >= {0}",
    "until": "r.fire_at <= {0} AND r.fire_at + 0 <= {0}",
    "labels": "r.labels @> {}::jsonb",
    # All reruns, listed once per question: people make few.
    "was_rerun": "{} = (r.id::text IN ({{reruns}}))",
}
# What is live has no verdict; in history there are no states.
_LEFT_OUT = {"runs.live": ("verdicts",), "runs.done": ("states",)}


async def runs(db: Statements, app: str, wanted: RunFilter) -> list[Run]:
    rows = [
        row
        for values in await _filters(db, app, wanted)
        for table in _tables(wanted)
        for row in await _read(db, table, app, values, wanted)
    ]
    rows.sort(key=lambda row: (row["fire_at"], row["id"]), reverse=not wanted.is_oldest_first)
    return read_each(rows[: wanted.limit], run_of)[0]


async def _filters(db: Statements, app: str, wanted: RunFilter) -> list[dict[str, Any]]:
    """The values of the clauses that apply; one set per schedule, so that each is read in the order of its index."""
    labels = {plain_text(name): plain_text(value) for name, value in wanted.labels.items()}
    given = {
        "ids": None if wanted.ids is None else [id_ for id_ in wanted.ids if is_run_id(id_)],
        "task": plain_text(wanted.task),
        "states": None if wanted.states is None else [state.value for state in wanted.states],
        "verdicts": None if wanted.verdicts is None else [verdict.value for verdict in wanted.verdicts],
        "since": wanted.since,
        "until": wanted.until,
        "labels": json_text(labels) if labels else None,
        "was_rerun": wanted.was_rerun,
    }
    values = {name: value for name, value in given.items() if value is not None}
    if wanted.id_prefix:
        bounds = ids_that_begin(wanted.id_prefix)
        if bounds is None:
            return []
        values["first_id"], values["last_id"] = bounds
    if wanted.schedule_key is None:
        return [values]
    rows = await db.rows("runs.schedules_of_key", app, plain_text(wanted.schedule_key))
    return [{**values, "schedule_id": row["schedule_id"]} for row in rows]


def _tables(wanted: RunFilter) -> list[str]:
    return ["runs.live"] * wanted.fits_live + ["runs.done"] * wanted.fits_done


async def _read(db: Statements, table: str, app: str, values: dict[str, Any], wanted: RunFilter) -> list[Row]:
    parameters: list[Any] = [app]
    clauses = ""
    for name, value in values.items():
        if name not in _LEFT_OUT[table]:
            parameters.append(value)
            clauses += f" AND {_CLAUSES[name].format(f'${len(parameters)}')}"
    parameters.append(wanted.limit)
    # Where runs or a schedule are asked for, the index of times is the wrong one.
    is_found_otherwise = not values.keys().isdisjoint(("ids", "first_id", "schedule_id"))
    moment = "r.fire_at" if is_found_otherwise else "r.fire_at + 0"
    direction = "" if wanted.is_oldest_first else " DESC"
    order = f"ORDER BY {moment}{direction}, r.id{direction} LIMIT ${len(parameters)}"
    text = f"{db.text(table)}{clauses} {order}".replace("{reruns}", db.text("runs.reruns"))
    return await db.select(text, *parameters)


async def recorded_moments(db: Statements, app: str, schedule: int, first: int, last: int, limit: int) -> list[int]:
    return [row["fire_at"] for row in await db.rows("recorded_moments", schedule, first, last, limit, app)]


async def gaps(db: Statements, app: str, wanted: RunFilter) -> list[Gap]:
    of_runs = (wanted.ids, wanted.id_prefix, wanted.task, wanted.states, wanted.labels or None, wanted.was_rerun)
    if any(filter_ is not None for filter_ in of_runs):
        return []
    values: tuple[object, ...] = (
        app,
        _FIRST if wanted.since is None else wanted.since,
        _LAST if wanted.until is None else wanted.until,
        None if wanted.verdicts is None else [verdict.value for verdict in wanted.verdicts],
        wanted.limit,
    )
    if wanted.schedule_key is None:
        rows = await db.rows("gaps", *values)
    else:
        rows = await db.rows("gaps.of_key", *values, plain_text(wanted.schedule_key))
    return [gap_of(row) for row in rows]


async def attempts(db: Statements, app: str, run: str) -> list[Attempt]:
    return [attempt_of(row) for row in await db.rows("attempts", app, run)] if is_run_id(run) else []


async def log(db: Statements, app: str, run: str, after: int, limit: int) -> list[LogLine]:
    return lines_of(await db.rows("log", app, run), after, limit) if is_run_id(run) else []
