"""What the options of the tables are good for: the fire path for some minutes, as migrated and as a server has it.

Without the options means their reset before the first row: fillfactor 100, and autovacuum by a share of the table.
"""

from __future__ import annotations

import time

from benchmarks import loop
from benchmarks.figure import CPU, Figure, Measured
from benchmarks.fresh import in_fresh_process
from benchmarks.measure.fires import StoreLoop, add_schedules, fire, join
from benchmarks.size import Size
from benchmarks.stage import Stage
from benchmarks.store.postgres import PostgresPlace
from benchmarks.used import Used

__all__ = ["FIGURES", "VARIANTS", "measure"]

FIGURES = (
    Figure("fires", "fires", "fires/s"),
    *CPU,
    Figure("due_dead", "dead cursors at the end", "rows"),
    Figure("due_hot", "cursors moved without touching an index", "%"),
    Figure("due_megabytes", "cursors", "MB"),
    Figure("runs_dead", "dead runs at the end", "rows"),
    Figure("runs_megabytes", "live runs", "MB"),
    Figure("vacuums", "autovacuum came", "times"),
)
VARIANTS = ("as migrated", "as the server has them")
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


def measure(stage: Stage) -> Measured:
    assert isinstance(stage.place, PostgresPlace)
    return in_fresh_process(measure_in, stage.place, stage.size, has_options=stage.variant == VARIANTS[0])


def measure_in(place: PostgresPlace, size: Size, *, has_options: bool) -> dict[str, float]:
    turns, figures = loop.run(_measure(place, size, has_options))
    place.check(turns * size.fires_turn)
    return figures


async def _measure(place: PostgresPlace, size: Size, has_options: bool) -> tuple[int, dict[str, float]]:
    """How often `fires_turn` schedules fired, and the figures."""
    async with place.store():
        pass
    if not has_options:
        await _reset(place)
    async with place.store() as store:
        await add_schedules(store, size.vacuum_schedules)
        await join(store)
        firing, before = StoreLoop(store), await _state(place)
        used, turns, began = Used.here(place), 0, time.perf_counter()
        while time.perf_counter() - began < size.vacuum_seconds:
            await fire(firing, size.fires_turn)
            turns += 1
        seconds, used = time.perf_counter() - began, Used.here(place).since(used)
    after = await _state(place)
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


async def _reset(place: PostgresPlace) -> None:
    async with place.connection() as connection:
        for row in await connection.fetch(_OPTIONS):
            await connection.execute(f"ALTER TABLE evertick.{row['name']} RESET ({row['options']})")


async def _state(place: PostgresPlace) -> dict[str, dict[str, int]]:
    async with place.connection() as connection:
        return {row["name"]: dict(row) for row in await connection.fetch(_STATE)}
