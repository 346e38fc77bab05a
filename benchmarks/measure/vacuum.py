"""The effect of the vacuum options of the tables: fires for some minutes with the migrated options, and without.

Without the options means that they are reset before the first row: fillfactor 100, and autovacuum by a share of the
table.
"""

from __future__ import annotations

import time

from benchmarks.backend.postgres import PostgresBackend
from benchmarks.contender import event_loop
from benchmarks.measure.fires import StoreLoop, add_schedules, fire, join
from benchmarks.measurement import CPU, Measured, Metric
from benchmarks.processes import in_new_process
from benchmarks.size import Size
from benchmarks.trial import Trial
from benchmarks.usage import CpuTime

__all__ = ["METRICS", "VARIANTS", "measure"]

METRICS = (
    Metric("fires", "fires", "fires/s"),
    *CPU,
    Metric("due_dead", "dead cursor rows at the end", "rows"),
    Metric("due_hot", "HOT updates of cursors", "%"),
    Metric("due_megabytes", "cursor table", "MB"),
    Metric("runs_dead", "dead run rows at the end", "rows"),
    Metric("runs_megabytes", "run table", "MB"),
    Metric("vacuums", "autovacuum runs", "times"),
)
VARIANTS = ("as migrated", "server defaults")
_OPTIONS = """
SELECT c.relname AS name,
    array_to_string(ARRAY(SELECT split_part(o, '=', 1) FROM unnest(c.reloptions) o), ', ') AS options
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'evertick' AND c.relname IN ('due', 'runs') AND c.reloptions IS NOT NULL
"""
_STATE = """
SELECT relname AS name, n_dead_tup AS dead, n_tup_upd AS updated, n_tup_hot_upd AS hot, autovacuum_count AS vacuums,
    pg_total_relation_size(relid) AS bytes
FROM pg_stat_user_tables WHERE schemaname = 'evertick' AND relname IN ('due', 'runs')
"""


def measure(trial: Trial) -> Measured:
    assert isinstance(trial.backend, PostgresBackend)
    return in_new_process(measure_in, trial.backend, trial.size, has_options=trial.variant == VARIANTS[0])


def measure_in(backend: PostgresBackend, size: Size, *, has_options: bool) -> dict[str, float]:
    turns, metrics = event_loop.run(_measure(backend, size, has_options))
    backend.check(turns * size.fires_turn)
    return metrics


async def _measure(backend: PostgresBackend, size: Size, has_options: bool) -> tuple[int, dict[str, float]]:
    """The number of turns of `fires_turn` fires, and the metrics."""
    async with backend.store():
        pass
    if not has_options:
        await _reset(backend)
    async with backend.store() as store:
        await add_schedules(store, size.vacuum_schedules)
        await join(store)
        loop, before = StoreLoop(store), await _state(backend)
        used, turns, began = CpuTime.of_this_process(backend), 0, time.perf_counter()
        while time.perf_counter() - began < size.vacuum_seconds:
            await fire(loop, size.fires_turn)
            turns += 1
        seconds, used = time.perf_counter() - began, CpuTime.of_this_process(backend).since(used)
    after = await _state(backend)
    updated = max(after["due"]["updated"] - before["due"]["updated"], 1)
    return turns, {
        "fires": turns * size.fires_turn / seconds,
        **used.each(turns * size.fires_turn),
        "due_dead": float(after["due"]["dead"]),
        "due_hot": (after["due"]["hot"] - before["due"]["hot"]) / updated * 100,
        "due_megabytes": after["due"]["bytes"] / 1e6,
        "runs_dead": float(after["runs"]["dead"]),
        "runs_megabytes": after["runs"]["bytes"] / 1e6,
        "vacuums": float(after["due"]["vacuums"] + after["runs"]["vacuums"]),
    }


async def _reset(backend: PostgresBackend) -> None:
    async with backend.connection() as connection:
        for row in await connection.fetch(_OPTIONS):
            await connection.execute(f"ALTER TABLE evertick.{row['name']} RESET ({row['options']})")


async def _state(backend: PostgresBackend) -> dict[str, dict[str, int]]:
    async with backend.connection() as connection:
        return {row["name"]: dict(row) for row in await connection.fetch(_STATE)}
