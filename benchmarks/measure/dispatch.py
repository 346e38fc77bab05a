"""Runs dispatched to Redis, from a full queue or from due schedules to messages in a list, beside a raw loop.

With due schedules the nodes also record the fires: each becomes a run before it is claimed. The raw loop pushes the
same messages, a thousand in a pipeline, one command each, from one process. It has no ledger, no outbox and no claims,
and would not notice a Redis outage: the difference is the price of these. Both use the same server in turns. Processor
time is that of the nodes, the store's server and Redis, until the runs are settled.
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

from benchmarks.backend.broker import Broker
from benchmarks.contender import event_loop
from benchmarks.measurement import CPU, Measured, Metric
from benchmarks.processes import in_new_process
from benchmarks.trial import Trial
from benchmarks.usage import CpuTime

__all__ = ["METRICS", "measure", "measure_due"]

METRICS = (
    Metric("rate", "dispatched to Redis", "runs/s", better="more", beside="raw"),
    Metric("raw", "raw loop", "messages/s"),
    Metric("ratio", "Evertick / raw", "ratio"),
    dataclasses.replace(CPU[0], beside="raw_node_us"),
    CPU[1],
    Metric("redis_us", "Redis CPU", "µs each"),
    Metric("raw_node_us", "raw loop CPU", "µs each"),
    Metric("raw_redis_us", "Redis CPU, raw loop", "µs each"),
)
BATCH = 1_000
_QUEUE = "bench"
_KEY = f"builds_{_QUEUE}"
_PROGRAM = "dispatch_program.py"
_LOOK_SECONDS = 0.005
_LATE_SECONDS = 300
# Puts work into the store; called with the number of the turn.
_Fill = Callable[[Trial, int], None]


def measure(trial: Trial) -> Measured:
    """From a queue of enqueued runs."""
    return _measure(trial, lambda trial, _: trial.call("fill", trial.number))


def measure_due(trial: Trial) -> Measured:
    """From schedules that are due once."""
    return _measure(trial, lambda trial, turn: trial.call("fill_due", turn * trial.number, trial.number))


def _measure(trial: Trial, fill: _Fill) -> Measured:
    folder = trial.backend.folder / "redis"
    folder.mkdir()
    broker = Broker(folder, Path(sys.prefix))
    trial = dataclasses.replace(
        trial,
        contender=dataclasses.replace(trial.contender, program=_PROGRAM),
        options={"redis": broker.url, "queue": _QUEUE, "concurrency": 2 * BATCH},
    )
    ours, raw = [], []
    try:
        with redis.Redis.from_url(broker.url) as client:
            for turn in range(trial.size.growth_turns):
                fill(trial, turn)
                ours.append(_dispatch(trial, broker, client))
                bodies = _taken(client, trial.number)
                raw.append(_push(broker, bodies))
                client.delete(_KEY)
    finally:
        broker.close()
    trial.ledger.check(trial.number * trial.size.growth_turns)
    return _metrics(trial.number, ours, raw)


def _metrics(runs: int, ours: list[_Turn], raw: list[_Turn]) -> Measured:
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
    """Duration and processor times, in seconds."""

    seconds: float
    node: float
    server: float
    redis: float


def _dispatch(trial: Trial, broker: Broker, client: redis.Redis) -> _Turn:
    """From the start of the nodes until all messages are in the list."""
    with trial.workers("work") as workers:
        workers.wait_until_ready()
        before, redis_before = CpuTime.of_workers(workers, trial.backend), broker.server_seconds()
        began = time.perf_counter()
        workers.go()
        while (pushed := client.llen(_KEY)) < trial.number:
            workers.check_alive()
            late = time.perf_counter() - began > _LATE_SECONDS
            assert not late, (
                f"{pushed} of {trial.number} runs were dispatched in {_LATE_SECONDS} s:\n{workers.output()}"
            )
            time.sleep(_LOOK_SECONDS)
        seconds = time.perf_counter() - began
        time.sleep(trial.size.end_seconds)  # the last messages are in the list, but their runs are not settled yet
        used = CpuTime.of_workers(workers, trial.backend).since(before)
        return _Turn(seconds, used.node, used.server, broker.server_seconds() - redis_before)


def _taken(client: redis.Redis, runs: int) -> list[bytes]:
    """Take all messages; none may be lost or doubled."""
    bodies = cast("list[bytes]", client.lrange(_KEY, 0, -1))
    numbers = sorted(json.loads(body)["args"]["number"] for body in bodies)
    assert numbers == list(range(runs)), f"{len(bodies)} messages for {len(set(numbers))} of {runs} runs"
    client.delete(_KEY)
    return bodies


def _push(broker: Broker, bodies: list[bytes]) -> _Turn:
    before = broker.server_seconds()
    seconds, node = in_new_process(push_in, broker.url, bodies)
    return _Turn(seconds, node, 0.0, broker.server_seconds() - before)


def push_in(url: str, bodies: list[bytes]) -> tuple[float, float]:
    return event_loop.run(_pushed(url, bodies))


async def _pushed(url: str, bodies: list[bytes]) -> tuple[float, float]:
    """The duration, and the processor time of this process."""
    async with Client.from_url(url) as client:
        await client.ping()
        began, used = time.perf_counter(), time.process_time()
        for first in range(0, len(bodies), BATCH):
            async with client.pipeline(transaction=False) as pipe:
                for body in bodies[first : first + BATCH]:
                    pipe.rpush(_KEY, body)
                await pipe.execute()
        return time.perf_counter() - began, time.process_time() - used
