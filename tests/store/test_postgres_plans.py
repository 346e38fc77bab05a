"""The hot statements really use their indexes, with any statistics of the planner about the size of a table."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio
from postgres_stores import PostgresStores

from evertick.store.base import END_OF_TIME
from evertick.store.postgres.connection import PLANNER_SETTINGS, in_schema, statements_for

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Live rows of all kinds, and some history.
_FILL = """
    INSERT INTO evertick.schedules (app, key, created_at, format, definition)
        SELECT 'app', 'key ' || n, 0, 1, '{}' FROM generate_series(1, 2000) n;
    INSERT INTO evertick.due (schedule_id, app, version, format, fire_at, at)
        SELECT id, 'app', 1, 1, id, id FROM evertick.schedules;
    INSERT INTO evertick.runs (id, app, schedule_id, version, task, cause, fire_at, due_at, queue, priority, state,
        created_at, node, fence, started_at)
        SELECT gen_random_uuid(), 'app', n % 2000, 1, 'task', 'fire', n, n, 'default', n % 3,
            CASE WHEN n % 2 = 0 THEN 'waiting' ELSE 'running' END, 0, 'node', n, n
        FROM generate_series(1, 10000) n;
    INSERT INTO evertick.history (id, app, schedule_id, version, task, cause, fire_at, due_at, queue, priority, verdict,
        attempts, losses, created_at, finished_at, is_cancel_requested)
        SELECT gen_random_uuid(), 'app', n % 2000, 1, 'task', 'fire', n, n, 'default', 0, 'succeeded', 1, 0, 0, 0, false
        FROM generate_series(1, 10000) n;
    INSERT INTO evertick.outbox (id, app, channel, key, body, state, due_at, created_at, node, fence, claimed_at,
        forget_at)
        SELECT gen_random_uuid(), 'app', 'mail', n, '1', CASE n % 100 WHEN 0 THEN 'waiting' WHEN 1 THEN 'sending'
            WHEN 2 THEN 'dead' ELSE 'sent' END, n, n, 'node', n, CASE n % 100 WHEN 1 THEN n END,
            CASE WHEN n % 100 > 1 THEN n END
        FROM generate_series(1, 10000) n
"""
# Bounds of time; without them no day of history would have to be opened.
_VALUES = {
    "insert_runs": {2: "1", 3: "9"},
    "insert_runs.carefully": {2: "1", 3: "9"},
    "insert_enqueued": {2: "1", 3: "9"},
    "insert_enqueued.carefully": {2: "1", 3: "9"},
    "insert_one": {2: "1", 3: "9"},
    "record_fires.ordinary": {4: "1", 5: "9"},
    "enqueue.known": {7: "1", 8: "9"},
    "finish.answered_before": {5: "1", 6: "9"},
    "apply_reports.answered_before": {4: "1", 5: "9"},
    "cancel.done": {3: "1", 4: "9"},
    "note.own_ends": {5: "1", 6: "9"},
    "record_fires.written_before": {2: "1", 3: "9"},
    "prune.old_runs": {2: "9"},
    "partitions.is_kept": {1: "1", 2: "9"},
    "pulse.failed": {2: "1", 3: "1"},
}
_TABLES = ("schedules", "due", "runs", "history", "nodes", "tasks", "attempts", "schedule_versions", "outbox")


class Planner:
    """Plans as the store gets them: generic, with the settings of its connections."""

    def __init__(self, connection: asyncpg.Connection, schema: str) -> None:
        self.connection = connection
        self._schema = schema
        self.statements = statements_for(schema)

    async def plan(self, name: str) -> str:
        statement = self.statements[name]
        most = max((int(number) for number in re.findall(r"\$(\d+)", statement)), default=0)
        given = _VALUES.get(name, {})
        values = ", ".join(given.get(number, "NULL") for number in range(1, most + 1))
        await self.connection.execute(f"PREPARE asked AS {statement}")
        rows = await self.connection.fetch(f"EXPLAIN EXECUTE asked{f'({values})' if most else ''}")
        await self.connection.execute("DEALLOCATE asked")
        return "\n".join(row[0] for row in rows)

    async def fill(self) -> None:
        await self.connection.execute(in_schema(_FILL, self._schema))

    async def analyze(self) -> None:
        await self.connection.execute(
            in_schema("; ".join(f"ANALYZE evertick.{table}" for table in _TABLES), self._schema)
        )


async def a_planner(stores: PostgresStores) -> Planner:
    await stores.open()
    connection = await stores.connect()
    for setting, value in PLANNER_SETTINGS.items():
        await connection.execute(f"SET {setting} = {value}")
    return Planner(connection, stores.schema)


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=["believed to be empty", "known to be full"])
async def planner(postgres_dsn: str, request: pytest.FixtureRequest) -> AsyncIterator[Planner]:
    """Filled once: reading a plan changes nothing."""
    stores = PostgresStores(postgres_dsn)
    planner = await a_planner(stores)
    if request.param == "believed to be empty":
        await planner.analyze()
        await planner.fill()
    else:
        await planner.fill()
        await planner.analyze()
    yield planner
    await planner.connection.close()
    await stores.close()


@pytest.mark.parametrize(
    ("name", "search"),
    [
        ("due_schedules", "Index Scan using due_at on due d"),
        ("due_schedules", "using runs_moment on runs r"),
        ("due_schedules", "using runs_blocked on runs r"),
        ("schedule.lock", "using due_pkey on due"),
        ("claim_messages", "using outbox_waiting on outbox m"),
        ("claim_messages", "using outbox_pkey on outbox m"),
        ("claim_messages", "using outbox_sending on outbox m"),
        ("claim_messages.release", "using outbox_pkey on outbox l"),
        ("settle_messages", "using outbox_pkey on outbox m"),
        ("settle_messages.answered_before", "using outbox_pkey on outbox m"),
        ("send.known", "using outbox_key on outbox m"),
        ("messages", "Index Scan Backward using outbox_pkey on outbox m"),
        ("messages.by_id", "using outbox_pkey on outbox m"),
        ("messages.unsent", "using outbox_dead on outbox m"),
        ("channels", "using outbox_dead on outbox m"),
        ("channels", "using outbox_failing on outbox m"),
        ("prune.messages", "using outbox_forget on outbox"),
        ("record_fires.advance", "using due_pkey on due d"),
        ("record_fires.advance", "using runs_moment on runs r"),
        ("record_fires.ordinary", "using due_pkey on due d"),
        ("declared_schedules", "using schedules_declared on schedules s"),
        ("failing", "using schedules_pause_after on schedules s"),
        ("failing", "_schedule_id_fire_at_"),
        ("record_fires.ordinary", "One-Time Filter"),
        ("insert_runs", "using runs_moment on runs l"),
        ("insert_runs", "_schedule_id_fire_at_"),
        ("insert_runs", "using schedules_pkey on schedules s"),
        ("insert_runs", "_id_idx on history_"),
        ("insert_enqueued", "using runs_pkey on runs l"),
        ("insert_enqueued", "_id_idx on history_"),
        ("insert_one", "using runs_pkey on runs l"),
        ("insert_one", "_id_idx on history_"),
        ("claim", "using runs_claim on runs r"),
        ("claim", "using runs_pkey on runs r"),
        ("claim", "using runs_expiring on runs r"),
        ("claim", "using schedule_versions_id on schedule_versions v"),
        ("finish.alike", "using runs_pkey on runs r"),
        ("finish.done", "using runs_pkey on runs r"),
        ("finish.dispatch_with_messages", "using runs_pkey on runs r"),
        ("finish.answered_before", "_pkey on attempts_"),
        ("finish.answered_before", "_id_idx on history_"),
        ("cancel.done", "_id_idx on history_"),
        ("note.own_ends", "_id_idx on history_"),
        ("enqueue.known", "_id_idx on history_"),
        ("record_fires.written_before", "_id_idx on history_"),
        ("schedule.has_limited", "using runs_moment on runs"),
        ("run.to_lock", "using runs_pkey on runs"),
        ("park_unknown.has_limited", "using runs_let_through on runs r"),
        ("run.end", "using runs_pkey on runs r"),
        ("run.lock", "using runs_pkey on runs"),
        ("run.unblock", "using runs_blocked on runs"),
        ("run.leave_line", "using runs_blocked on runs r"),
        ("record_fires.lock_early", "using runs_pkey on runs r"),
        ("owned", "using runs_running on runs"),
        ("beat", "using runs_running on runs r"),
        ("beat", "using nodes_pkey on nodes"),
        ("beat", "using runs_dispatched on runs r"),
        ("beat", "using runs_unwanted on runs r"),
        ("check_dispatched.find_cancelled", "using runs_unwanted on runs"),
        ("check_dispatched.find_overdue", "using runs_dispatched on runs"),
        ("check_dispatched.lock", "using runs_pkey on runs"),
        ("check_dispatched.withdraw", "using outbox_key on outbox l"),
        ("check_dispatched.unsent", "using outbox_key on outbox m"),
        ("apply_reports.lock", "using runs_pkey on runs"),
        ("apply_reports.done", "using runs_pkey on runs r"),
        ("apply_reports.last_lines", "_pkey on log_chunks_"),
        ("apply_reports.answered_before", "_pkey on attempts_"),
        ("apply_reports.answered_before", "_id_idx on history_"),
        ("messages.by_key", "using outbox_key on outbox m"),
        ("drop_messages.cancel", "using runs_pkey on runs r"),
        ("drop_messages.dispatch", "using outbox_pkey on outbox"),
        ("retry_messages", "using runs_pkey on runs r"),
        ("hasten_messages", "using outbox_waiting on outbox l"),
        ("limits.running", "using runs_limited on runs r"),
        ("limits.stuck", "using runs_limited on runs r"),
        ("rehome.find", "using runs_running on runs r"),
        ("rehome.find", "using runs_deadline on runs r"),
        ("rehome.find", "using runs_bound on runs r"),
        ("rehome.lock", "using runs_pkey on runs r"),
        ("join.unpark", "using runs_parked on runs r"),
        ("note.hold", "using runs_pkey on runs r"),
        ("prune.old_runs", "_app_expr_idx on history_"),
        ("prune.old_runs_without_day", "history_default_app_expr_idx on history_default"),
        ("partitions.is_kept", "_app_expr_idx on history_"),
        ("partitions.is_kept", "_finished_at_idx on history_"),
        ("pulse.failed", "_app_finished_at_idx on history_"),
        ("feed", "using feed_pkey on feed e"),
        ("prune.feed", "using feed_pkey on feed e"),
        # Without a feed nothing is gathered for it.
        ("finish.alike", "One-Time Filter"),
        ("finish.done", "One-Time Filter"),
        ("finish.dispatch_with_messages", "One-Time Filter"),
        ("claim", "One-Time Filter"),
        ("insert_enqueued", "One-Time Filter"),
        ("insert_one", "One-Time Filter"),
    ],
)
async def test_a_statement_searches_by_its_index(planner: Planner, name: str, search: str) -> None:
    plan = await planner.plan(name)
    assert search in plan, plan


@pytest.mark.parametrize(
    "name",
    [
        "due_schedules",
        "record_fires.advance",
        "record_fires.ordinary",
        "insert_runs",
        "insert_enqueued",
        "insert_one",
        "claim",
        "finish.alike",
        "finish.done",
        "run.end",
        "owned",
    ],
)
async def test_no_hot_statement_reads_a_table_from_its_beginning(planner: Planner, name: str) -> None:
    plan = await planner.plan(name)
    assert "Seq Scan" not in plan, plan
    # The hashes that are wanted: of the runs that a claim has just picked, of the ids that are known.
    hashes = len(re.findall(r"hashed SubPlan", plan))
    assert hashes <= (1 if name in ("claim", "insert_runs", "insert_enqueued") else 0), plan
    assert "Hash Join" not in plan, plan
    assert "Merge Join" not in plan, plan


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def empty_planner(postgres_dsn: str) -> AsyncIterator[Planner]:
    """Of tables that are empty, and known to be: a plan that is made then is kept when they fill up."""
    stores = PostgresStores(postgres_dsn)
    planner = await a_planner(stores)
    await planner.analyze()
    yield planner
    await planner.connection.close()
    await stores.close()


@pytest.mark.parametrize(
    "name",
    [
        "stored_schedules",
        "record_fires.advance",
        "record_fires.ordinary",
        "record_fires.fail",
        "record_fires.count_back",
        "take",
        "finish.alike",
        "finish.done",
        "finish.keep_attempts",
        "finish.retry",
        "finish.park",
        "finish.dispatch_with_messages",
        "finish.dispatch",
        "finish.release",
        "apply_reports.progress",
        "apply_reports.done",
        "check_dispatched.stopping",
        "check_dispatched.postpone",
        "run.end",
        "note.hold",
        "note.progress",
        "limits.hold_back",
        "unique.keep",
        "feed.publish_runs",
        "settle_messages",
    ],
)
async def test_a_plan_for_an_empty_table_searches_for_each_of_a_batch(empty_planner: Planner, name: str) -> None:
    plan = await empty_planner.plan(name)
    scans = re.findall(r"using (?:runs|due|outbox)_pkey on .*\n\s*(.*)", plan)
    assert scans, plan
    assert all(scan.startswith("Index Cond") for scan in scans), plan


@pytest.mark.parametrize(
    "name",
    [
        "insert_runs",
        "insert_enqueued",
        "insert_one",
        "enqueue.known",
        "finish.answered_before",
        "apply_reports.answered_before",
        "cancel.done",
        "note.own_ends",
        "record_fires.written_before",
    ],
)
async def test_a_run_is_looked_for_by_its_id_in_the_days_where_it_may_be(planner: Planner, name: str) -> None:
    """The moments that are asked for lie in the default partition, beside which there are five days."""
    plan = await planner.plan(name)
    assert "Subplans Removed: 5" in plan, plan


# Runs of ten living nodes, none of them late; runs of a dead node, and overdue runs.
_RUNNING = """
    INSERT INTO evertick.nodes (id, name, app, version, started_at, beat_at, lease, lease_until, died_at, queues,
        declares)
        SELECT n, n, 'app', '1', 0, 0, 1, 1, CASE n WHEN 3 THEN 1 END, '[]', '{}' FROM generate_series(0, 10) n;
    INSERT INTO evertick.runs (id, app, task, cause, fire_at, due_at, queue, priority, state, created_at, node, fence,
        started_at, deadline)
        SELECT gen_random_uuid(), 'app', 'task', 'fire', n, n, 'default', n % 3, 'running', 0,
            CASE WHEN n <= 20 THEN 3 WHEN n % 10 = 3 THEN 10 ELSE n % 10 END, n, n,
            CASE WHEN n BETWEEN 21 AND 25 THEN 1 WHEN n % 2 = 0 THEN 9223372036854775807 END
        FROM generate_series(1, 100000) n
"""


@pytest.mark.parametrize("is_analyzed", [False, True])
async def test_looking_for_lost_runs_costs_what_the_dead_have_held(
    unmigrated_stores: PostgresStores, is_analyzed: bool
) -> None:
    planner = await a_planner(unmigrated_stores)
    connection = planner.connection
    await planner.analyze()
    await connection.execute(in_schema(_RUNNING, unmigrated_stores.schema))
    if is_analyzed:
        await planner.analyze()
    statement = planner.statements["rehome.find"]
    assert len(await connection.fetch(statement, "app", "0", 60_000_000, 2_000, END_OF_TIME)) == 25
    await connection.execute(f"PREPARE asked AS {statement}")
    asked = f"EXECUTE asked('app', '0', 60000000, 2000, {END_OF_TIME})"
    explained = f"EXPLAIN (ANALYZE, TIMING OFF, BUFFERS, FORMAT JSON) {asked}"
    [plan] = json.loads(await connection.fetchval(explained))
    await connection.close()
    pages = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
    # A few for each of the ten nodes, and one at most for each of the runs found: all that run would be thousands.
    assert pages < 150, plan


async def test_every_statement_is_valid(planner: Planner) -> None:
    for name in planner.statements:
        if not name.startswith("runs."):
            assert await planner.plan(name), name
