"""Runs handed to Redis: from a full queue of due runs to messages in a list, beside a loop that only pushes them.

The raw loop pushes the very messages of the turn before it, a thousand in one pipeline, one command each. It has no
ledger, no outbox and no claims, and would not notice that Redis was away: what it does not do is what the difference is
paid for. Both by turns, on the same server, which flushes every second.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from redis.asyncio import Redis as Client

from benchmarks.figure import Figure, Measured
from benchmarks.fresh import in_fresh_process
from benchmarks.stage import Stage
from benchmarks.store.broker import BrokerPlace
from evertick import Redis, Scheduler

__all__ = ["FIGURES", "measure"]

FIGURES = (
    Figure("rate", "handed to Redis", "runs/s"),
    Figure("raw", "raw loop", "messages/s"),
    Figure("ratio", "Evertick / raw", "ratio"),
    Figure("node_us", "node", "us each"),
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
        return in_fresh_process(measure_in, stage.place.url, broker.url, stage.number, stage.size.growth_turns)
    finally:
        broker.close()


def measure_in(url: str, redis: str, runs: int, turns: int) -> Measured:
    return asyncio.run(_measure(url, redis, runs, turns))


async def _measure(url: str, redis: str, runs: int, turns: int) -> Measured:
    client = Client.from_url(redis)
    ours, raw, worked = [], [], []
    try:
        for _ in range(turns):
            seconds, processor = await _hand_over(client, url, redis, runs)
            bodies = await _taken(client, runs)
            ours.append(runs / seconds)
            worked.append(processor / runs * 1e6)
            raw.append(runs / await _push(client, bodies))
            await client.delete(_KEY)
    finally:
        await client.aclose()
    ratios = [own / theirs for own, theirs in zip(ours, raw, strict=True)]
    return {"rate": ours, "raw": raw, "ratio": ratios, "node_us": worked}


async def _hand_over(client: Client, url: str, redis: str, runs: int) -> tuple[float, float]:
    """Seconds from the start of a node until all are in the list, and its processor time."""
    node = Scheduler(url, drivers=["redis"], concurrency=2 * BATCH)
    node.connect("redis", redis)
    job = node.job("hand", Redis(_QUEUE, mode="forget"))
    for first in range(0, runs, BATCH):
        await job.enqueue_many({"number": number} for number in range(first, min(first + BATCH, runs)))
    began, worked = time.perf_counter(), time.process_time()
    async with node:
        while await client.llen(_KEY) < runs:
            await asyncio.sleep(_LOOK_SECONDS)
        return time.perf_counter() - began, time.process_time() - worked


async def _taken(client: Client, runs: int) -> list[bytes]:
    """All of them; nothing was lost, nothing is there twice."""
    bodies: list[bytes] = await client.lrange(_KEY, 0, -1)
    assert len(bodies) == len(set(bodies)) == runs, f"{len(bodies)} messages came of {runs} runs"
    await client.delete(_KEY)
    return bodies


async def _push(client: Client, bodies: list[bytes]) -> float:
    began = time.perf_counter()
    for first in range(0, len(bodies), BATCH):
        async with client.pipeline(transaction=False) as pipe:
            for body in bodies[first : first + BATCH]:
                pipe.rpush(_KEY, body)
            await pipe.execute()
    return time.perf_counter() - began
