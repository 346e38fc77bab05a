"""Runs handed to Redis: from a full queue of due runs to messages in a list, beside a loop that only pushes them.

The raw loop pushes the very messages of the turn before it, a thousand in one pipeline, one command each. It has no
ledger, no outbox and no claims, and would not notice that Redis was away: what it does not do is what the difference is
paid for. Both by turns, on the same server, which flushes every second. Processor time is that of the node, of the
store's server, and of Redis.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis as Client

from benchmarks import loop
from benchmarks.figure import CPU, Figure, Measured
from benchmarks.fresh import in_fresh_process
from benchmarks.stage import Stage
from benchmarks.store.broker import BrokerPlace
from benchmarks.store.place import Place
from benchmarks.store.processor import session
from benchmarks.used import Used
from evertick import Redis, Scheduler

__all__ = ["FIGURES", "measure"]

FIGURES = (
    Figure("rate", "handed to Redis", "runs/s"),
    Figure("raw", "raw loop", "messages/s"),
    Figure("ratio", "Evertick / raw", "ratio"),
    *CPU,
    Figure("redis_us", "Redis", "us each"),
    Figure("raw_node_us", "raw loop", "us each"),
    Figure("raw_redis_us", "Redis, raw loop", "us each"),
)
BATCH = 1_000
_QUEUE = "bench"
_KEY = f"builds_{_QUEUE}"
_LOOK_SECONDS = 0.005


def measure(stage: Stage) -> Measured:
    folder = stage.place.folder / "redis"
    folder.mkdir()
    broker = BrokerPlace(folder, Path(sys.prefix))
    try:
        redis = _Redis(broker.url, broker.pid)
        measured = in_fresh_process(measure_in, stage.place, redis, stage.number, stage.size.growth_turns)
        stage.ledger.check(stage.number * stage.size.growth_turns)
        return measured
    finally:
        broker.close()


def measure_in(place: Place, redis: _Redis, runs: int, turns: int) -> Measured:
    return loop.run(_measure(place, redis, runs, turns))


async def _measure(place: Place, redis: _Redis, runs: int, turns: int) -> Measured:
    client = Client.from_url(redis.url)
    ours, raw = [], []
    try:
        for _ in range(turns):
            ours.append(await _hand_over(client, place, redis, runs))
            bodies = await _taken(client, runs)
            raw.append(await _push(client, place, redis, bodies))
            await client.delete(_KEY)
    finally:
        await client.aclose()
    return {
        "rate": [runs / each.seconds for each in ours],
        "raw": [runs / each.seconds for each in raw],
        "ratio": [theirs.seconds / own.seconds for own, theirs in zip(ours, raw, strict=True)],
        "node_us": [each.used.node / runs * 1e6 for each in ours],
        "server_us": [each.used.server / runs * 1e6 for each in ours],
        "redis_us": [each.redis / runs * 1e6 for each in ours],
        "raw_node_us": [each.used.node / runs * 1e6 for each in raw],
        "raw_redis_us": [each.redis / runs * 1e6 for each in raw],
    }


@dataclass(frozen=True)
class _Redis:
    url: str
    pid: int

    def processor_seconds(self) -> float:
        return sum(each.seconds for each in session(self.pid))


@dataclass(frozen=True)
class _Turn:
    """How long it took, and whose processor time."""

    seconds: float
    used: Used
    redis: float


class _Watched:
    """A turn from now on."""

    def __init__(self, place: Place, redis: _Redis) -> None:
        self._place, self._redis = place, redis
        self._before = Used.here(place), redis.processor_seconds()
        self._began = time.perf_counter()

    def turn(self) -> _Turn:
        seconds = time.perf_counter() - self._began
        used, redis = self._before
        return _Turn(seconds, Used.here(self._place).since(used), self._redis.processor_seconds() - redis)


async def _hand_over(client: Client, place: Place, redis: _Redis, runs: int) -> _Turn:
    """From the start of a node until all are in the list."""
    node = Scheduler(place.url, drivers=["redis"], concurrency=2 * BATCH)
    node.connect("redis", redis.url)
    job = node.job("hand", Redis(_QUEUE, mode="forget"))
    for first in range(0, runs, BATCH):
        await job.enqueue_many({"number": number} for number in range(first, min(first + BATCH, runs)))
    watched = _Watched(place, redis)
    async with node:
        while await client.llen(_KEY) < runs:
            await asyncio.sleep(_LOOK_SECONDS)
        return watched.turn()


async def _taken(client: Client, runs: int) -> list[bytes]:
    """All of them; nothing was lost, nothing is there twice."""
    bodies: list[bytes] = await client.lrange(_KEY, 0, -1)
    assert len(bodies) == len(set(bodies)) == runs, f"{len(bodies)} messages came of {runs} runs"
    await client.delete(_KEY)
    return bodies


async def _push(client: Client, place: Place, redis: _Redis, bodies: list[bytes]) -> _Turn:
    watched = _Watched(place, redis)
    for first in range(0, len(bodies), BATCH):
        async with client.pipeline(transaction=False) as pipe:
            for body in bodies[first : first + BATCH]:
                pipe.rpush(_KEY, body)
            await pipe.execute()
    return watched.turn()
