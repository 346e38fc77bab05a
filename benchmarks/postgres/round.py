"""One round on PostgreSQL: every measurement once, each in a fresh interpreter and a schema of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from functools import partial

from benchmarks import latency, lateness, throughput
from benchmarks.figure import with_ratios
from benchmarks.fresh import in_fresh_process
from benchmarks.postgres import engine, fires, growth, limits, queue, vacuum
from benchmarks.postgres.ledger import PostgresLedger
from benchmarks.postgres.size import FleetSize
from benchmarks.size import Size

__all__ = ["measure_all"]

Measure = Callable[[PostgresLedger], dict[str, float]]


def measure_all(dsn: str, size: Size, fleet: FleetSize, groups: Collection[str]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for group, measure in _measurements(size, fleet):
        if group in groups:
            ledger = PostgresLedger(dsn, "bench")
            try:
                figures |= in_fresh_process(measure, ledger)
            finally:
                asyncio.run(ledger.drop())
    return with_ratios(figures)


def _measurements(size: Size, fleet: FleetSize) -> Iterator[tuple[str, Measure]]:
    # What makes a ratio stands side by side.
    yield "fires", partial(fires.measure, size=fleet)
    yield "fires", partial(engine.measure_fires, size=fleet)
    for at_once in (100, 1_000):
        yield "queue", partial(throughput.measure_execution, size=size, concurrency=at_once)
        yield "queue", partial(queue.measure_execution, size=size, batch=at_once)
    for name in throughput.LIMITS:
        yield "queue", partial(throughput.measure_limited, size=size, name=name)
    yield "queue", partial(throughput.measure_enqueue, size=size)
    yield "queue", partial(queue.measure_enqueue, size=size)
    yield "waits", partial(latency.measure, size=size, is_remote=False)
    yield "waits", partial(latency.measure, size=size, is_remote=True)
    yield "waits", partial(lateness.measure_spread, size=size)
    yield "waits", partial(lateness.measure_herd, size=size)
    for nodes in engine.IDLE_NODES:
        yield "idle", partial(engine.measure_idle, size=size, nodes=nodes)
    for name in limits.LIMITS:
        yield "limits", partial(limits.measure, size=fleet, name=name)
    yield "growth", partial(growth.measure, size=fleet)
    for has_options in (True, False):
        yield "vacuum", partial(vacuum.measure, size=fleet, has_options=has_options)
