"""The hot statements really use their indexes: what nobody asked for costs nothing, however much of it there is."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from evertick.clock import system_clock
from evertick.model import Cause, NewRun
from evertick.store.base import NodeJoin, TaskTerms
from evertick.store.sqlite import SqliteStore
from evertick.store.sqlite.queries import SQL
from evertick.store.sqlite.reading import _CLAUSES, _INDEXES
from evertick.store.sqlite.schema import migrate


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.row_factory = sqlite3.Row
        migrate(db, system_clock, "auto", "test")
        yield db


def plan(db: sqlite3.Connection, statement: str) -> list[str]:
    most = max((int(number) for number in re.findall(r"\?(\d+)", statement)), default=0)
    names = dict.fromkeys(re.findall(r":(\w+)", statement))
    values: object = names or [None] * most
    return [row["detail"] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", values)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "search"),
    [
        ("due_schedules", "evertick_due_at (app=? AND at<?)"),
        ("due_schedules", "evertick_runs_moment (schedule_id=?)"),
        ("due_schedules", "evertick_runs_blocked (app=? AND schedule_id=?)"),
        ("due_schedules.next", "evertick_due_at (app=? AND at>?)"),
        ("stored_schedules.by_ids", "s USING INTEGER PRIMARY KEY (rowid=?)"),
        ("stored_schedules.by_keys", "(app=? AND key=?)"),
        ("record_fires.advance", "evertick_due USING INTEGER PRIMARY KEY (rowid=?)"),
        ("record_fires.advance", "evertick_runs_blocked (app=? AND schedule_id=?)"),
        ("record_fires.run", "evertick_history_moment (schedule_id=? AND fire_at=?)"),
        ("claim.next_priority", "evertick_runs_claim (app=? AND queue=? AND priority<?)"),
        ("claim.due", "evertick_runs_claim (app=? AND queue=? AND priority=? AND due_at<?)"),
        ("claim.next_due", "evertick_runs_claim (app=? AND queue=? AND priority=?)"),
        ("claim.read", "v USING PRIMARY KEY (app=? AND key=? AND schedule_id=? AND version<?)"),
        ("finish.done", "PRIMARY KEY (app=? AND id=?)"),
        ("run.unblock", "evertick_runs_blocked (app=? AND schedule_id=? AND blocked_on=?)"),
        ("owned", "evertick_runs_running (app=? AND node=?)"),
        ("beat.cancels", "evertick_runs_running (app=? AND node=?)"),
        ("rehome.find", "evertick_runs_running (app=?)"),
        ("join.unpark", "evertick_runs_parked (app=? AND task=?)"),
        ("prune.old_runs", "evertick_history_time (app=? AND fire_at<?)"),
        ("prune.finished_schedules", "evertick_due_finished (app=?)"),
    ],
)
def test_a_statement_searches_by_its_index(db: sqlite3.Connection, name: str, search: str) -> None:
    steps = plan(db, SQL[name])
    assert any(search in step for step in steps), steps


@pytest.mark.parametrize("name", ["due_schedules", "due_schedules.next", "claim.due", "claim.next_due", "owned"])
def test_what_comes_in_order_is_not_sorted(db: sqlite3.Connection, name: str) -> None:
    assert not any("ORDER BY" in step for step in plan(db, SQL[name])), plan(db, SQL[name])


def test_every_statement_is_valid(db: sqlite3.Connection) -> None:
    for name, statement in SQL.items():
        if "{index}" not in statement:
            plan(db, statement)
        assert name


@pytest.mark.parametrize("table", ["runs.live", "runs.done"])
@pytest.mark.parametrize(
    "names",
    [[], ["ids"], ["schedule_id"], ["schedule_id", "since"], ["task", "states", "labels"], ["verdicts", "was_rerun"]],
)
def test_reading_runs_never_scans_a_table(db: sqlite3.Connection, table: str, names: list[str]) -> None:
    index = _INDEXES[table][names[0] if names and names[0] in _INDEXES[table] else ""]
    clauses = "".join(f" AND {_CLAUSES[name]}" for name in names)
    steps = plan(db, f"{SQL[table].format(index=index)}{clauses} ORDER BY r.fire_at DESC, r.id DESC")
    assert not any(step.startswith("SCAN r") for step in steps), steps
    if "was_rerun" in names:
        assert "LIST SUBQUERY" in " ".join(steps), steps
        assert not any(step.startswith("CORRELATED LIST") for step in steps), steps


async def test_future_runs_of_a_high_priority_are_not_walked_over() -> None:
    store = SqliteStore("sqlite://", clock=system_clock, is_inline=True)
    await store.open(migrate="auto")
    tasks = {"t": TaskTerms()}
    joined = NodeJoin(
        id="n", name="n", app="a", version="1", lease=10**9, queues=("default",), tasks=tasks, declares={}
    )
    await store.join(joined)

    def a_run(**fields: object) -> NewRun:
        return NewRun(id=system_clock.new_id(), task="t", cause=Cause.ENQUEUE, **fields)  # type: ignore[arg-type]

    async def steps_of_a_claim() -> int:
        assert store._line is not None
        db = await store._line.read(lambda db, _now: db)
        await store.enqueue("a", [a_run()])
        steps = 0

        def count() -> int:
            nonlocal steps
            steps += 1
            return 0

        db.set_progress_handler(count, 10)
        claim = await store.claim("a", "n", ["default"], tasks, 10)
        db.set_progress_handler(None, 10)
        assert len(claim.runs) == 1
        return steps

    await store.enqueue("a", [a_run(priority=9, delay=10**12)])
    few = await steps_of_a_claim()
    await store.enqueue("a", [a_run(priority=9, delay=10**12) for _ in range(5_000)])
    many = await steps_of_a_claim()
    await store.close()
    assert many <= few * 1.5
