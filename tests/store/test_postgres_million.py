"""Millions of schedules, of live runs and of runs in history: what is sent for a batch reads the batch, and no more.

The server itself tells how it has carried out each statement of the store (auto_explain): the plan that it really used,
and how many rows it has looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from postgres_stores import PostgresStores

from evertick.store.base import Owned, TaskTerms
from evertick.store.postgres import PostgresStore
from evertick.store.postgres import store as store_module
from evertick.store.postgres.connection import in_schema
from evertick.testing.conformance import Bench, a_definition, a_fire, an_advance, an_outcome
from evertick.testing.conformance.bench import APP, DAY, TASK

MILLION = 1_000_000
BATCH = 100
# Rows that a scan may look at for each of the batch: itself, and what lies around it.
ROWS_EACH = 3
# Of the schedules and of the waiting runs some are due, the others in the future; the other runs are running, parked or
# blocked. Ids come in their order, as they are made.
_FILL = """
    INSERT INTO evertick.schedules (app, key, created_at, format, definition)
        SELECT '{app}', 'key ' || n, 0, 1, '{definition}' FROM generate_series(1, {batch}) n;
    INSERT INTO evertick.due (schedule_id, app, version, format, fire_at, at)
        SELECT n, '{app}', 1, 1, moment, moment FROM (
            SELECT n, CASE WHEN n <= {batch} THEN {now} - {day} - n WHEN n % 1000 = 0 THEN {now} - n
                ELSE {now} + {day} + n END AS moment
            FROM generate_series(1, {million}) n) d;
    INSERT INTO evertick.runs (id, app, schedule_id, version, task, cause, fire_at, due_at, queue, priority, state,
        created_at, node, fence, started_at, parked_for, blocked_on)
        SELECT lpad(to_hex(n), 32, '0')::uuid, '{app}', n + {batch}, 1, '{task}', 'fire', {now} - n, moment, 'default',
            n % 3, state, 0, CASE state WHEN 'running' THEN 'node-1' END, CASE state WHEN 'running' THEN n END,
            CASE state WHEN 'running' THEN {now} END, CASE state WHEN 'parked' THEN 'bad_arguments' END,
            CASE state WHEN 'blocked' THEN lpad(to_hex(n - 1), 32, '0')::uuid END
        FROM (
            SELECT n, CASE WHEN n % 100 = 0 THEN {now} - n ELSE {now} + {day} + n END AS moment, CASE n % 4
                WHEN 0 THEN 'waiting' WHEN 1 THEN 'running' WHEN 2 THEN 'parked' ELSE 'blocked' END AS state
            FROM generate_series(1, {million}) n) r;
    INSERT INTO evertick.history (id, app, schedule_id, version, task, cause, fire_at, due_at, queue, priority, verdict,
        attempts, losses, created_at, finished_at, is_cancel_requested)
        SELECT lpad(to_hex(n + 2 * {million}), 32, '0')::uuid, '{app}', n, 1, '{task}', 'fire', {now} - n, {now},
            'default', 0, 'succeeded', 1, 0, 0, {now}, false
        FROM generate_series(1, {million}) n
"""
_ANALYZE = "ANALYZE evertick.due; ANALYZE evertick.runs; ANALYZE evertick.history; ANALYZE evertick.schedules"
_TELL_PLANS = """
    LOAD 'auto_explain';
    SET auto_explain.log_min_duration = 0;
    SET auto_explain.log_analyze = on;
    SET auto_explain.log_timing = off;
    SET auto_explain.log_format = json;
    SET auto_explain.log_level = notice;
    SET client_min_messages = notice
"""
_LARGE = ("due", "runs", "history")
# The hot statements, by words that only they have, with the index by which each must get at what it is about.
HOT = {
    "due": ("array_agg(d.live)", "due_at"),
    "record by stamps": ("d.xmin = p.stamp", "due_pkey"),
    "record": ("UPDATE {schema}.due d\n    SET version", "due_pkey"),
    "insert": ("w.given_cause", "runs_moment"),
    "claim": ("WITH RECURSIVE clock", "runs_claim"),
    "finish": ("DELETE FROM {schema}.runs", "runs_pkey"),
}


class Plans:
    """The server's report on the statements of a store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        connect = store_module.connect

        async def connect_and_listen(*where: Any, **how: Any) -> Any:
            connection: Any = await connect(*where, **how)
            connection.add_log_listener(self._hear)
            await connection.execute(_TELL_PLANS)
            return connection

        monkeypatch.setattr(store_module, "connect", connect_and_listen)

    def _hear(self, _: Any, message: Any) -> None:
        _, begins, text = message.message.partition("plan:\n")
        if begins:
            explained = json.loads(text)
            self.told.append((explained["Query Text"], explained["Plan"]))


def scans(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Those of the large tables."""
    if plan.get("Relation Name", "").startswith(_LARGE) and "Scan" in plan["Node Type"]:
        yield plan
    for part in plan.get("Plans", ()):
        yield from scans(part)


def rows_read(scan: dict[str, Any]) -> float:
    each = scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0)
    return float(each * scan["Actual Loops"])


async def execute(stores: PostgresStores, text: str) -> None:
    connection = await stores.connect()
    await connection.execute(in_schema(text, stores.schema))
    await connection.close()


async def fill(stores: PostgresStores, now: int) -> None:
    definition = msgspec.json.encode(a_definition()).decode()
    values = {"app": APP, "task": TASK, "now": now, "day": DAY, "million": MILLION, "batch": BATCH}
    await execute(stores, _FILL.format(definition=definition, **values))


async def work_through_a_batch(store: PostgresStore, node: str) -> None:
    """Ticks, a claim and their verdicts, as an engine asks for them: by stamps, and with a look at live runs."""
    for fields in ({}, {"stamp": None}):
        await record_a_batch(store, node, **fields)
    claim = await store.claim(APP, node, ["default"], {TASK: TaskTerms()}, BATCH)
    assert len(claim.runs) == BATCH
    finished = await store.finish(APP, node, [an_outcome(run) for run in claim.runs])
    assert finished.answers == ["done"] * BATCH


async def record_a_batch(store: PostgresStore, node: str, **fields: Any) -> None:
    due = await store.due_schedules(APP, BATCH)
    assert len(due.schedules) == BATCH
    stored = await store.stored_schedules(APP, ids=[row.id for row in due.schedules])
    plans = [an_advance(each, a_fire(each, is_claimed=True), live=each.live, **fields) for each in stored]
    recorded = await store.record_fires(APP, node, plans)
    assert recorded.taken == [True] * BATCH
    held = [Owned(id=plan.runs[0].id, fence=recorded.fence) for plan in plans]
    assert (await store.finish(APP, node, [an_outcome(run) for run in held])).answers == ["done"] * BATCH


@pytest.mark.long("size")
async def test_a_batch_is_found_by_its_indexes_among_millions(
    postgres_stores: PostgresStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await postgres_stores.open()
    node = await Bench(postgres_stores, store).node()
    await execute(postgres_stores, _ANALYZE)
    await fill(postgres_stores, await store.now())
    plans = Plans(monkeypatch)
    # The tables are believed to be empty.
    await check_a_batch(postgres_stores, plans, node)
    await execute(postgres_stores, _ANALYZE)
    # They are known to be full.
    await check_a_batch(postgres_stores, plans, node)


async def check_a_batch(stores: PostgresStores, plans: Plans, node: str) -> None:
    store = await stores.open()
    assert isinstance(store, PostgresStore)
    plans.told.clear()
    await work_through_a_batch(store, node)
    for what, (words, index) in HOT.items():
        told = [plan for text, plan in plans.told if words.format(schema=f'"{stores.schema}"') in text]
        assert told, what
        for plan in told:
            assert index in [scan["Index Name"] for scan in scans(plan)], what
    for text, plan in plans.told:
        for scan in scans(plan):
            assert scan["Node Type"] in ("Index Scan", "Index Only Scan"), (text, scan)
            assert rows_read(scan) <= ROWS_EACH * BATCH, (text, scan)
