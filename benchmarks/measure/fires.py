"""Fires per second: through the store alone, and the same rows by bare statements in a loop.

Both take a thousand due schedules, write their runs as already claimed and move the cursors, and end the runs of the
batch before at the same time, on a second connection. The bare loop has no overlap, no limits, no unique keys, no
second line of defence and no way to recover: what it does not do is what the difference is paid for.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

from benchmarks import loop
from benchmarks.figure import CPU, Figure, Measured
from benchmarks.fresh import in_fresh_process
from benchmarks.order import by_turn
from benchmarks.size import Size
from benchmarks.stage import Stage
from benchmarks.store.meter import Reading, read_here
from benchmarks.store.place import LedgerPlace
from benchmarks.store.postgres import PostgresPlace
from benchmarks.used import Used
from evertick.clock import system_clock
from evertick.model import Cause, Definition, NewRun, Outcome, Verdict
from evertick.store.base import VERY_FIRST, Advance, Change, DuePlace, DueSchedule, NodeJoin, Store, TaskTerms
from evertick.when.moment import HOUR, SECOND

__all__ = ["APP", "FIGURES", "StoreLoop", "add_schedules", "fire", "firing_in", "join", "measure", "timed_turn"]

FIGURES = (
    Figure("rate", "through the store", "fires/s", better="more", beside="raw"),
    Figure("raw", "raw loop", "fires/s"),
    Figure("ratio", "store / raw", "ratio"),
    Figure("statements", "statements", "per fire"),
    Figure("commits", "commits", "per fire"),
    Figure("bytes", "log", "bytes per fire"),
    Figure("raw_bytes", "log of the raw loop", "bytes per fire"),
    *(dataclasses.replace(each, beside=f"raw_{each.name}") for each in CPU),
    *(Figure(f"raw_{each.name}", f"{each.text}, raw loop", each.unit) for each in CPU),
)
APP, NODE, TASK = "default", "bench-node", "count"
BATCH = 1_000
# As a node that is behind looks: each look goes on where the one before has ended, and one in so many begins anew.
_LOOKS = 30
_LEASE = 24 * HOUR


def measure(stage: Stage) -> Measured:
    place, size = stage.place, stage.size
    assert isinstance(place, PostgresPlace)
    with stage.another_place() as beside:
        assert isinstance(beside, PostgresPlace)
        measured = in_fresh_process(measure_in, place, beside, size)
        for each in (place, beside):
            each.check(size.fired_schedules * size.fires_each)
    return measured


def measure_in(place: PostgresPlace, beside: PostgresPlace, size: Size) -> Measured:
    return loop.run(_measure(place, beside, size))


async def _measure(place: PostgresPlace, beside: PostgresPlace, size: Size) -> Measured:
    """By turns, so that what slows the machine down slows both; each schedule fires once in a turn."""
    for each in (place, beside):
        async with each.store() as store:
            await add_schedules(store, size.fired_schedules)
            await join(store)
    plans = {"has_plans": True}
    async with place.store() as store, beside.connection(**plans) as first, beside.connection(**plans) as second:
        ours, raw = _Contender(place, StoreLoop(store)), _Contender(beside, RawLoop(first, second))
        for turn in range(size.fires_each):
            for _, contender in by_turn(turn, {"ours": ours, "raw": raw}):
                await contender.take_turn(size.fired_schedules)
    count = size.fired_schedules * size.fires_each
    return {
        "rate": [size.fired_schedules / each for each in ours.seconds],
        "raw": [size.fired_schedules / each for each in raw.seconds],
        "ratio": [theirs / own for own, theirs in zip(ours.seconds, raw.seconds, strict=True)],
        "statements": sum(each.statements for each in ours.counted) / count,
        "commits": sum(each.commits for each in ours.counted) / count,
        "bytes": sum(each.log_bytes for each in ours.counted) / count,
        "raw_bytes": sum(each.log_bytes for each in raw.counted) / count,
        **_each(ours, size.fired_schedules),
        **{f"raw_{name}": samples for name, samples in _each(raw, size.fired_schedules).items()},
    }


def _each(contender: _Contender, count: int) -> dict[str, list[float]]:
    turns = [each.each(count) for each in contender.used]
    return {figure.name: [turn[figure.name] for turn in turns] for figure in CPU}


class Loop(Protocol):
    """One way to fire."""

    async def record(self, batch: int) -> Coroutine[None, None, None]:
        """Write down what is due, all of it as claimed; answers how to end it."""
        ...


async def fire(firing: Loop, count: int) -> None:
    """Batch after batch; the runs of one are ended while the next is recorded."""
    # A schedule that comes again at once must have ended its last run.
    batch = min(BATCH, count // 2)
    ending: asyncio.Task[None] | None = None
    for _ in range(count // batch):
        end = await firing.record(batch)
        if ending is not None:
            await ending
        ending = asyncio.create_task(end)
    if ending is not None:
        await ending


class _Contender:
    """Somebody who fires in turns."""

    def __init__(self, place: PostgresPlace, firing: Loop) -> None:
        self._place = place
        self._loop = firing
        self.seconds: list[float] = []
        self.counted: list[Reading] = []
        self.used: list[Used] = []

    async def take_turn(self, count: int) -> None:
        counted = await read_here(self._place)
        before, began = Used.here(self._place), time.perf_counter()
        await fire(self._loop, count)
        self.seconds.append(time.perf_counter() - began)
        self.used.append(Used.here(self._place).since(before))
        self.counted.append((await read_here(self._place)).since(counted))


async def add_schedules(store: Store, count: int) -> None:
    """All due for an hour, a microsecond apart: however often they fire in a measurement, they stay due."""
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


class _Walk:
    """Where the next look begins."""

    def __init__(self) -> None:
        self._looks = 0
        self._place = VERY_FIRST

    @property
    def place(self) -> DuePlace:
        self._looks += 1
        return VERY_FIRST if self._looks % _LOOKS == 1 else self._place

    def comes_to(self, place: DuePlace) -> None:
        self._place = place


class StoreLoop:
    """Through the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._walk = _Walk()

    async def record(self, batch: int) -> Coroutine[None, None, None]:
        due = await self._store.due_schedules(APP, batch, self._walk.place)
        self._walk.comes_to(due.schedules[-1].place)
        ids = system_clock.new_ids(len(due.schedules))
        advances = [_advance_of(row, id_) for row, id_ in zip(due.schedules, ids, strict=True)]
        recorded = await self._store.record_fires(APP, NODE, advances)
        assert len(advances) == batch, f"{len(advances)} schedules were due"
        assert all(recorded.taken), "nobody else is here"
        return self._end(ids, recorded.fence)

    async def _end(self, ids: list[str], fence: int) -> None:
        outcomes = [Outcome(id=id_, fence=fence, kind="done", verdict=Verdict.SUCCEEDED, attempts=1) for id_ in ids]
        answers = (await self._store.finish(APP, NODE, outcomes)).answers
        assert set(answers) == {"done"}, f"ended as {set(answers)}"


def _advance_of(row: DueSchedule, id_: str) -> Advance:
    """As with the usual overlap, which looks whether a run is live."""
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
    """The bare statements, on two connections."""

    def __init__(self, recording: Any, ending: Any) -> None:
        self._recording = recording
        self._ending = ending
        self._walk = _Walk()

    async def record(self, batch: int) -> Coroutine[None, None, None]:
        due = await self._recording.fetchrow(_DUE, APP, batch, *self._walk.place)
        # No two of these schedules want to be looked at at the same moment.
        self._walk.comes_to(DuePlace(due["last_at"] + 1, 0))
        ids = system_clock.new_ids(len(due["ids"]))
        wanted = (due["ids"], due["keys"], due["versions"], due["fire_ats"], ids, NODE)
        recorded = await self._recording.fetchrow(_RECORD, APP, *wanted)
        assert recorded["count"] == batch, f"{recorded['count']} fires were recorded"
        return self._end(ids, recorded["fence"])

    async def _end(self, ids: list[str], fence: int) -> None:
        status = await self._ending.execute(_FINISH, ids, fence, NODE)
        assert status == f"INSERT 0 {len(ids)}", status


@asynccontextmanager
async def firing_in(
    places: Mapping[str, LedgerPlace], schedules: int, warm_up: int
) -> AsyncIterator[dict[str, StoreLoop]]:
    """A loop at each place, by its name: schedules are there, caches are filled, and plans are made."""
    async with AsyncExitStack() as opened:
        firing = {}
        for name, place in places.items():
            store = await opened.enter_async_context(place.store())
            await add_schedules(store, schedules)
            await join(store)
            firing[name] = StoreLoop(store)
            await fire(firing[name], warm_up)
        yield firing


async def timed_turn(firing: StoreLoop, place: LedgerPlace, count: int) -> tuple[float, Used]:
    """What so many fires take: seconds, and processor time."""
    before, began = Used.here(place), time.perf_counter()
    await fire(firing, count)
    return time.perf_counter() - began, Used.here(place).since(before)
