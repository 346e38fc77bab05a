"""The ledger as people read it: runs, gaps, attempts, log lines. Nothing here writes.

Live runs and history are two tables; a reader sees one list, newest moment first, as of one moment.
"""

from __future__ import annotations

from typing import Any

from evertick.model import Attempt, Gap, LogLine, Run, State
from evertick.store.base import RunFilter
from evertick.store.postgres.endings import is_run_id
from evertick.store.postgres.session import Session
from evertick.store.rows import Row, attempt_of, gap_of, json_text, lines_of, plain_text, run_of

__all__ = ["attempts", "gaps", "log", "runs"]

_FIRST, _LAST = -(2**63), 2**63 - 1

# What a filter adds to `runs.live` and `runs.done`; its values are always parameters. Live runs have no verdict and are
# of other states than done, which `_tables` sees to.
_CLAUSES = {
    "ids": "r.id = ANY({}::uuid[])",
    "schedule_ids": "r.schedule_id = ANY({}::bigint[])",
    "task": "r.task = {}",
    "states": "r.state = ANY({}::text[])",
    "verdicts": "r.verdict = ANY({}::text[])",
    "since": "r.fire_at >= {}",
    "until": "r.fire_at <= {}",
    "labels": "r.labels @> {}::jsonb",
    # All reruns, listed once per question. Looking for those of each run would need an index that nothing else uses.
    "was_rerun": "{} = (r.id::text IN ({{reruns}}))",
}
_ONLY_LIVE, _ONLY_DONE = frozenset({"states"}), frozenset({"verdicts"})


async def runs(db: Session, app: str, wanted: RunFilter) -> list[Run]:
    values = await _values(db, app, wanted)
    rows = [row for table in _tables(wanted) for row in await _read(db, table, app, values, wanted.limit)]
    rows.sort(key=lambda row: (row["fire_at"], row["id"]), reverse=True)
    return [run_of(row) for row in rows[: wanted.limit]]


async def _values(db: Session, app: str, wanted: RunFilter) -> dict[str, Any]:
    """The values of the clauses that apply."""
    given = {
        "ids": None if wanted.ids is None else [id_ for id_ in wanted.ids if is_run_id(id_)],
        "task": plain_text(wanted.task),
        "states": None if wanted.states is None else [state.value for state in wanted.states],
        "verdicts": None if wanted.verdicts is None else [verdict.value for verdict in wanted.verdicts],
        "since": wanted.since,
        "until": wanted.until,
        "labels": json_text({plain_text(k): plain_text(v) for k, v in wanted.labels.items()})
        if wanted.labels
        else None,
        "was_rerun": wanted.was_rerun,
    }
    if wanted.schedule_key is not None:
        rows = await db.rows("runs.schedules_of_key", app, plain_text(wanted.schedule_key))
        given["schedule_ids"] = [row["schedule_id"] for row in rows]
    return {name: value for name, value in given.items() if value is not None}


def _tables(wanted: RunFilter) -> list[str]:
    states = set(State) if wanted.states is None else set(wanted.states)
    # What is live has no verdict, and was not rerun.
    has_live = wanted.verdicts is None and not wanted.was_rerun and bool(states - {State.DONE})
    return ["runs.live"] * has_live + ["runs.done"] * (State.DONE in states)


async def _read(db: Session, table: str, app: str, values: dict[str, Any], limit: int) -> list[Row]:
    left_out = _ONLY_LIVE if table == "runs.done" else _ONLY_DONE
    clauses = ""
    parameters: list[Any] = [app]
    for name, value in values.items():
        if name not in left_out:
            parameters.append(value)
            clauses += f" AND {_CLAUSES[name].format(f'${len(parameters)}')}".replace(
                "{reruns}", db.text("runs.reruns")
            )
    parameters.append(limit)
    order = f"ORDER BY r.fire_at DESC, r.id DESC LIMIT ${len(parameters)}"
    return await db.select(f"{db.text(table)}{clauses} {order}", *parameters)


async def gaps(db: Session, app: str, wanted: RunFilter) -> list[Gap]:
    of_runs = (wanted.ids, wanted.task, wanted.states, wanted.labels or None, wanted.was_rerun)
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


async def attempts(db: Session, app: str, run: str) -> list[Attempt]:
    return [attempt_of(row) for row in await db.rows("attempts", app, run)] if is_run_id(run) else []


async def log(db: Session, app: str, run: str, after: int, limit: int) -> list[LogLine]:
    return lines_of(await db.rows("log", app, run), after, limit) if is_run_id(run) else []
