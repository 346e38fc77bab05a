"""Fires through the store alone, beside the same rows written by bare statements in a loop.

Both take a thousand due schedules, write their runs as already claimed, move the cursors, and end the runs of the batch
before on a second connection. The raw loop has no overlap, no limits, no unique keys, no second guard and no recovery:
the difference is the price of these.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

from benchmarks.backend.postgres import PostgresBackend
from benchmarks.backend.protocol import LedgerBackend
from benchmarks.contender import event_loop
from benchmarks.measurement import CPU, Measured, Metric, alternate
from benchmarks.processes import in_new_process
from benchmarks.size import Size
from benchmarks.trial import Trial
from benchmarks.usage import Counters, CpuTime, read_counters
from evertick.clock import system_clock
from evertick.model import Cause, Definition, NewRun, Outcome, Verdict
from evertick.store.base import FIRST_PLACE, Advance, Change, DuePlace, DueSchedule, NodeJoin, Store, TaskTerms
from evertick.when.moment import HOUR, SECOND

__all__ = ["APP", "METRICS", "StoreLoop", "add_schedules", "fire", "join", "measure", "opened_loops", "timed_turn"]

METRICS = (
    Metric("rate", "through the store", "fires/s", better="more", beside="raw"),
    Metric("raw", "raw loop", "fires/s"),
    Metric("ratio", "store / raw", "ratio"),
    Metric("statements", "statements", "per fire"),
    Metric("commits", "commits", "per fire"),
    Metric("bytes", "WAL", "bytes per fire"),
    Metric("raw_bytes", "WAL, raw loop", "bytes per fire"),
    *(dataclasses.replace(each, beside=f"raw_{each.name}") for each in CPU),
    *(Metric(f"raw_{each.name}", f"{each.text}, raw loop", each.unit) for each in CPU),
)
APP, NODE, TASK = "default", "bench-node", "count"
BATCH = 1_000
# Like a node that is behind: each read continues where the one before ended, and every thirtieth begins again.
_READS = 30
_LEASE = 24 * HOUR


def measure(trial: Trial) -> Measured:
    backend, size = trial.backend, trial.size
    assert isinstance(backend, PostgresBackend)
    with trial.another_backend() as other:
        assert isinstance(other, PostgresBackend)
        measured = in_new_process(measure_in, backend, other, size)
        for each in (backend, other):
            each.check(size.fired_schedules * size.fires_each)
    return measured


def measure_in(backend: PostgresBackend, other: PostgresBackend, size: Size) -> Measured:
    return event_loop.run(_measure(backend, other, size))


async def _measure(backend: PostgresBackend, other: PostgresBackend, size: Size) -> Measured:
    """In turns, so that a slow minute of the machine slows both; each schedule fires once in a turn."""
    for each in (backend, other):
        async with each.store() as store:
            await add_schedules(store, size.fired_schedules)
            await join(store)
    plans = {"has_plans": True}
    async with backend.store() as store, other.connection(**plans) as first, other.connection(**plans) as second:
        ours, raw = _Side(backend, StoreLoop(store)), _Side(other, RawLoop(first, second))
        for turn in range(size.fires_each):
            for _, side in alternate(turn, {"ours": ours, "raw": raw}):
                await side.take_turn(size.fired_schedules)
    count = size.fired_schedules * size.fires_each
    return {
        "rate": [size.fired_schedules / each for each in ours.seconds],
        "raw": [size.fired_schedules / each for each in raw.seconds],
        "ratio": [theirs / own for own, theirs in zip(ours.seconds, raw.seconds, strict=True)],
        "statements": sum(each.statements for each in ours.counted) / count,
        "commits": sum(each.commits for each in ours.counted) / count,
        "bytes": sum(each.bytes for each in ours.counted) / count,
        "raw_bytes": sum(each.bytes for each in raw.counted) / count,
        **_each(ours, size.fired_schedules),
        **{f"raw_{name}": samples for name, samples in _each(raw, size.fired_schedules).items()},
    }


def _each(side: _Side, count: int) -> dict[str, list[float]]:
    turns = [each.each(count) for each in side.used]
    return {metric.name: [turn[metric.name] for turn in turns] for metric in CPU}


class Loop(Protocol):
    """One way to fire."""

    async def record(self, batch: int) -> Coroutine[None, None, None]:
        """Write due runs as claimed, and return a coroutine that ends them."""
        ...


async def fire(loop: Loop, count: int) -> None:
    """Fire in batches; the runs of a batch are ended while the next is recorded."""
    # A schedule must not fire again before its last run has ended.
    batch = min(BATCH, count // 2)
    ending: asyncio.Task[None] | None = None
    for _ in range(count // batch):
        end = await loop.record(batch)
        if ending is not None:
            await ending
        ending = asyncio.create_task(end)
    if ending is not None:
        await ending


class _Side:
    """One of the two loops, with the results of its turns."""

    def __init__(self, backend: PostgresBackend, loop: Loop) -> None:
        self._backend = backend
        self._loop = loop
        self.seconds: list[float] = []
        self.counted: list[Counters] = []
        self.used: list[CpuTime] = []

    async def take_turn(self, count: int) -> None:
        counted = await read_counters(self._backend)
        used, began = CpuTime.of_this_process(self._backend), time.perf_counter()
        await fire(self._loop, count)
        self.seconds.append(time.perf_counter() - began)
        self.used.append(CpuTime.of_this_process(self._backend).since(used))
        self.counted.append((await read_counters(self._backend)).since(counted))


async def add_schedules(store: Store, count: int) -> None:
    """All are due for an hour, a microsecond apart, so that they stay due however often they fire."""
    first = await store.now() - HOUR
    definition = Definition(task=TASK, when="every 1s")
    for start in range(0, count, BATCH):
        numbers = range(start, min(start + BATCH, count))
        changes = [
            Change(key=f"s{n}", kind="add", definition=definition, created_at=1, fire_at=first + n, at=first + n)
            for n in numbers
        ]
        assert all(await store.change_schedules(APP, changes))


async def join(store: Store) -> None:
    terms = {TASK: TaskTerms()}
    await store.join(
        NodeJoin(id=NODE, name=NODE, app=APP, version="1", lease=_LEASE, queues=("default",), tasks=terms, declares={})
    )


class _ScanPosition:
    """Where the next read of due schedules begins."""

    def __init__(self) -> None:
        self._reads = 0
        self._place = FIRST_PLACE

    def next(self) -> DuePlace:
        self._reads += 1
        return FIRST_PLACE if self._reads % _READS == 1 else self._place

    def move_to(self, place: DuePlace) -> None:
        self._place = place


class StoreLoop:
    """Fires through the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._position = _ScanPosition()

    async def record(self, batch: int) -> Coroutine[None, None, None]:
        due = await self._store.due_schedules(APP, batch, self._position.next())
        self._position.move_to(due.schedules[-1].place)
        ids = system_clock.new_ids(len(due.schedules))
        advances = [_advance_of(row, id_) for row, id_ in zip(due.schedules, ids, strict=True)]
        recorded = await self._store.record_fires(APP, NODE, advances)
        assert len(advances) == batch, f"{len(advances)} schedules were due"
        assert all(recorded.taken), "no other node uses this store"
        return self._end(ids, recorded.fence)

    async def _end(self, ids: list[str], fence: int) -> None:
        outcomes = [Outcome(id=id_, fence=fence, kind="done", verdict=Verdict.SUCCEEDED, attempts=1) for id_ in ids]
        answers = (await self._store.finish(APP, NODE, outcomes)).answers
        assert set(answers) == {"done"}, f"ended as {set(answers)}"


def _advance_of(row: DueSchedule, id_: str) -> Advance:
    """With the default overlap, which checks for a live run."""
    assert row.fire_at is not None
    run = NewRun(
        id=id_,
        task=TASK,
        cause=Cause.FIRE,
        fire_at=row.fire_at,
        due_at=row.fire_at,
        schedule_id=row.id,
        schedule_key=row.key,
        version=row.version,
        is_claimed=True,
    )
    return Advance(
        schedule_id=row.id,
        version=row.version,
        fire_at=row.fire_at,
        at=row.at,
        live=row.live,
        stamp=row.stamp,
        runs=(run,),
        next_fire_at=row.fire_at + SECOND,
        next_at=row.at + SECOND,
    )


_DUE = """
SELECT array_agg(d.schedule_id) AS ids, array_agg(s.key) AS keys, array_agg(d.version) AS versions,
    array_agg(d.fire_at) AS fire_ats, max(d.at) AS last_at
FROM (SELECT schedule_id, version, fire_at, at FROM evertick.due
    WHERE app = $1 AND at <= (SELECT evertick.now_us()) AND (at, schedule_id) > ($3, $4)
    ORDER BY at, schedule_id LIMIT $2) d
    JOIN evertick.schedules s ON s.id = d.schedule_id
"""
_RECORD = """
WITH drawn AS MATERIALIZED (SELECT nextval('evertick.fence') AS fence, evertick.now_us() AS now),
moved AS (
    UPDATE evertick.due d SET fire_at = d.fire_at + 1000000, at = d.at + 1000000, fires = d.fires + 1
    FROM unnest($2::bigint[], $3::text[], $4::int[], $5::bigint[], $6::uuid[])
        AS p(schedule_id, schedule_key, version, fire_at, id)
    WHERE d.schedule_id = ANY(ARRAY[p.schedule_id]) AND d.version = p.version AND d.fire_at = p.fire_at
    RETURNING p.*),
written AS (
    INSERT INTO evertick.runs (id, app, schedule_id, schedule_key, version, task, cause, fire_at, due_at, queue,
        priority, state, created_at, node, fence, started_at)
    SELECT m.id, $1, m.schedule_id, m.schedule_key, m.version, 'count', 'fire', m.fire_at, m.fire_at, 'default',
        0, 'running', c.now, $7, c.fence, c.now
    FROM moved m CROSS JOIN drawn c
    RETURNING id)
SELECT (SELECT fence FROM drawn) AS fence, (SELECT count(*) FROM written) AS count
"""
_FINISH = """
WITH gone AS (
    DELETE FROM evertick.runs WHERE id = ANY($1::uuid[]) AND fence = $2 AND node = $3 RETURNING *)
INSERT INTO evertick.history (id, app, schedule_id, schedule_key, version, task, cause, fire_at, due_at, queue,
    priority, verdict, attempts, losses, node, fence, created_at, started_at, finished_at, is_cancel_requested)
SELECT id, app, schedule_id, schedule_key, version, task, cause, fire_at, due_at, queue, priority, 'succeeded', 1,
    losses, node, fence, created_at, started_at, (SELECT evertick.now_us()), false FROM gone
"""


class RawLoop:
    """Fires by bare statements, on two connections."""

    def __init__(self, recording: Any, ending: Any) -> None:
        self._recording = recording
        self._ending = ending
        self._position = _ScanPosition()

    async def record(self, batch: int) -> Coroutine[None, None, None]:
        due = await self._recording.fetchrow(_DUE, APP, batch, *self._position.next())
        # No two of these schedules are due at the same moment.
        self._position.move_to(DuePlace(due["last_at"] + 1, 0))
        ids = system_clock.new_ids(len(due["ids"]))
        wanted = (due["ids"], due["keys"], due["versions"], due["fire_ats"], ids, NODE)
        recorded = await self._recording.fetchrow(_RECORD, APP, *wanted)
        assert recorded["count"] == batch, f"{recorded['count']} fires were recorded"
        return self._end(ids, recorded["fence"])

    async def _end(self, ids: list[str], fence: int) -> None:
        status = await self._ending.execute(_FINISH, ids, fence, NODE)
        assert status == f"INSERT 0 {len(ids)}", status


@asynccontextmanager
async def opened_loops(
    backends: Mapping[str, LedgerBackend], schedules: int, warm_up: int
) -> AsyncIterator[dict[str, StoreLoop]]:
    """A loop for each backend, with its schedules, after a warm-up that fills caches and plans."""
    async with AsyncExitStack() as opened:
        loops = {}
        for name, backend in backends.items():
            store = await opened.enter_async_context(backend.store())
            await add_schedules(store, schedules)
            await join(store)
            loops[name] = StoreLoop(store)
            await fire(loops[name], warm_up)
        yield loops


async def timed_turn(loop: StoreLoop, backend: LedgerBackend, count: int) -> tuple[float, CpuTime]:
    """The seconds and the processor time of that many fires."""
    before, began = CpuTime.of_this_process(backend), time.perf_counter()
    await fire(loop, count)
    return time.perf_counter() - began, CpuTime.of_this_process(backend).since(before)
