"""Runs dispatched to Redis, from a full queue of due runs or from due schedules to messages in a list, beside a loop
that only pushes them.

Of due schedules the nodes record the fires as well: each becomes a run before it is claimed.

The raw loop pushes the very messages of the turn before it, a thousand in one pipeline, one command each. It has no
ledger, no outbox and no claims, and would not notice that Redis was away: what it does not do is what the difference is
paid for. It is one process, however many nodes there are. Both by turns, on the same server, which flushes every
second. Processor time is that of the nodes, of the store's server, and of Redis, until the runs are settled, too.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import redis
from redis.asyncio import Redis as Client

from benchmarks import loop
from benchmarks.figure import CPU, Figure, Measured
from benchmarks.fresh import in_fresh_process
from benchmarks.stage import Stage
from benchmarks.store.broker import BrokerPlace
from benchmarks.used import Used

__all__ = ["FIGURES", "measure", "measure_due"]

FIGURES = (
    Figure("rate", "dispatched to Redis", "runs/s", better="more", beside="raw"),
    Figure("raw", "raw loop", "messages/s"),
    Figure("ratio", "Evertick / raw", "ratio"),
    dataclasses.replace(CPU[0], beside="raw_node_us"),
    CPU[1],
    Figure("redis_us", "Redis", "us each"),
    Figure("raw_node_us", "raw loop", "us each"),
    Figure("raw_redis_us", "Redis, raw loop", "us each"),
)
BATCH = 1_000
_QUEUE = "bench"
_KEY = f"builds_{_QUEUE}"
_PROGRAM = "dispatch_program.py"
_LOOK_SECONDS = 0.005
_LATE_SECONDS = 300
# What the nodes find; called with the number of the turn.
_Fill = Callable[[Stage, int], None]


def measure(stage: Stage) -> Measured:
    """A queue of runs that were enqueued."""
    return _measure(stage, lambda stage, _: stage.call("fill", stage.number))


def measure_due(stage: Stage) -> Measured:
    """Schedules that are due, each once."""
    return _measure(stage, lambda stage, turn: stage.call("fill_due", turn * stage.number, stage.number))


def _measure(stage: Stage, fill: _Fill) -> Measured:
    folder = stage.place.folder / "redis"
    folder.mkdir()
    broker = BrokerPlace(folder, Path(sys.prefix))
    stage = dataclasses.replace(
        stage,
        contender=dataclasses.replace(stage.contender, program=_PROGRAM),
        options={"redis": broker.url, "queue": _QUEUE, "concurrency": 2 * BATCH},
    )
    ours, raw = [], []
    try:
        with redis.Redis.from_url(broker.url) as client:
            for turn in range(stage.size.growth_turns):
                fill(stage, turn)
                ours.append(_dispatch(stage, broker, client))
                bodies = _taken(client, stage.number)
                raw.append(_push(broker, bodies))
                client.delete(_KEY)
    finally:
        broker.close()
    stage.ledger.check(stage.number * stage.size.growth_turns)
    return _figures(stage.number, ours, raw)


def _figures(runs: int, ours: list[_Turn], raw: list[_Turn]) -> Measured:
    def each(turns: list[_Turn], seconds: Callable[[_Turn], float]) -> list[float]:
        return [seconds(turn) / runs * 1e6 for turn in turns]

    return {
        "rate": [runs / turn.seconds for turn in ours],
        "raw": [runs / turn.seconds for turn in raw],
        "ratio": [theirs.seconds / own.seconds for own, theirs in zip(ours, raw, strict=True)],
        "node_us": each(ours, lambda turn: turn.node),
        "server_us": each(ours, lambda turn: turn.server),
        "redis_us": each(ours, lambda turn: turn.redis),
        "raw_node_us": each(raw, lambda turn: turn.node),
        "raw_redis_us": each(raw, lambda turn: turn.redis),
    }


@dataclass(frozen=True)
class _Turn:
    """How long it took, and whose processor time, in seconds."""

    seconds: float
    node: float
    server: float
    redis: float


def _dispatch(stage: Stage, broker: BrokerPlace, client: redis.Redis) -> _Turn:
    """From the start of the nodes until all are in the list."""
    with stage.workers("work") as workers:
        workers.wait_until_ready()
        before, pushed = Used.by(workers, stage.place), broker.server_seconds()
        began = time.perf_counter()
        workers.go()
        while (there := client.llen(_KEY)) < stage.number:
            workers.check_alive()
            late = time.perf_counter() - began > _LATE_SECONDS
            assert not late, f"{there} of {stage.number} runs were dispatched in {_LATE_SECONDS} s:\n{workers.said()}"
            time.sleep(_LOOK_SECONDS)
        seconds = time.perf_counter() - began
        time.sleep(stage.size.end_seconds)  # the last of them are in the list, and not settled yet
        used = Used.by(workers, stage.place).since(before)
        return _Turn(seconds, used.node, used.server, broker.server_seconds() - pushed)


def _taken(client: redis.Redis, runs: int) -> list[bytes]:
    """All of them; nothing was lost, nothing is there twice."""
    bodies = cast("list[bytes]", client.lrange(_KEY, 0, -1))
    numbers = sorted(json.loads(body)["args"]["number"] for body in bodies)
    assert numbers == list(range(runs)), f"{len(bodies)} messages came of {runs} runs, of {len(set(numbers))} of them"
    client.delete(_KEY)
    return bodies


def _push(broker: BrokerPlace, bodies: list[bytes]) -> _Turn:
    before = broker.server_seconds()
    seconds, node = in_fresh_process(push_in, broker.url, bodies)
    return _Turn(seconds, node, 0.0, broker.server_seconds() - before)


def push_in(url: str, bodies: list[bytes]) -> tuple[float, float]:
    return loop.run(_pushed(url, bodies))


async def _pushed(url: str, bodies: list[bytes]) -> tuple[float, float]:
    """How long it took, and how much processor time of this process."""
    async with Client.from_url(url) as client:
        await client.ping()
        began, used = time.perf_counter(), time.process_time()
        for first in range(0, len(bodies), BATCH):
            async with client.pipeline(transaction=False) as pipe:
                for body in bodies[first : first + BATCH]:
                    pipe.rpush(_KEY, body)
                await pipe.execute()
        return time.perf_counter() - began, time.process_time() - used
