"""A queue in any broker, its node's side, and its workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import nats
import redis.asyncio
from wire import envelope, no_secret, reports_until

from evertick import Scheduler
from evertick.clock import system_clock
from evertick.driver.queue.contract import WorkerReport
from evertick.driver.queue.driver import Broker as NodesBroker
from evertick.driver.queue.driver import envelope_of, stamped
from evertick.driver.queue.nats_broker import NatsBroker
from evertick.driver.queue.nats_client import NatsNames, make_streams
from evertick.driver.queue.redis_broker import FIELD, RedisBroker, reports_key
from evertick.driver.queue.spec import NatsConnection, RedisConnection
from evertick.worker.broker_session import BrokerSession
from evertick.worker.executor import TasksExecutor
from evertick.worker.nats_session import NatsBrokerSession
from evertick.worker.redis_session import RedisBrokerSession
from evertick.worker.worker import Worker
from servers.broker import Broker

__all__ = ["Bench", "Kind", "bench_on"]

Kind = Literal["list", "stream", "nats"]


class Bench:
    """Each has a queue, an app and a run of its own: workers remember what was taken."""

    def __init__(self, server: Broker, own: str, kind: Kind) -> None:
        self.server, self.own, self.kind = server, own, kind
        self.scheduler = Scheduler("sqlite://")
        self.run = system_clock.new_id()
        self.broker: NodesBroker
        if kind == "nats":
            names = NatsNames("evertick")
            self.broker = NatsBroker(NatsConnection(url=server.url), own, system_clock, no_secret)
            self.to, self.reply = own, names.reports(own)
        else:
            self.broker = RedisBroker(RedisConnection(url=server.url), own, system_clock, no_secret)
            self.to, self.reply = f"builds_{own}", reports_key("evertick", own)
        self._running: list[tuple[Worker, asyncio.Task[None]]] = []

    def session(self) -> BrokerSession:
        if self.kind == "nats":
            return NatsBrokerSession(
                NatsConnection(url=self.server.url), self.own, clock=system_clock, resolve_secret=no_secret
            )
        return RedisBrokerSession(
            RedisConnection(url=self.server.url),
            self.own,
            clock=system_clock,
            kind=self.kind,
            resolve_secret=no_secret,
        )

    def worker(self, *, parallelism: int = 4, stop_seconds: float = 30.0) -> Worker:
        made = Worker(
            self.session(),
            TasksExecutor(self.scheduler),
            parallelism=parallelism,
            clock=system_clock,
            name="w1",
            stop_seconds=stop_seconds,
        )
        self._running.append((made, asyncio.create_task(made.run())))
        return made

    async def dispatch(self, **fields: Any) -> None:
        await self.push_all([fields])

    async def push_all(self, many: list[dict[str, Any]]) -> None:
        messages = [envelope(self.to, reply=self.reply, kind=self.kind, **fields) for fields in many]
        assert await self.broker.push(messages) == [None] * len(messages)

    async def push_doubles(self, many: list[dict[str, Any]]) -> None:
        """Send the messages again, without ids, since NATS would drop duplicates by their ids."""
        messages = [envelope(self.to, reply=self.reply, kind=self.kind, **fields) for fields in many]
        await self.put([stamped(envelope_of(each), system_clock.now_us()) for each in messages])

    async def put(self, many: list[bytes]) -> None:
        """Put raw data into the queue, without a node."""
        if self.kind == "nats":
            client = await nats.connect(self.server.url)
            names, stream = NatsNames("evertick"), client.jetstream()
            try:
                # A worker that is starting may not have joined yet.
                await make_streams(stream, names, NatsConnection(url=self.server.url))
                for data in many:
                    await stream.publish(names.jobs(self.own), data)
            finally:
                await client.close()
            return
        redis_client = redis.asyncio.Redis.from_url(self.server.url)
        for data in many:
            if self.kind == "list":
                await redis_client.lpush(self.to, data)
            else:
                await redis_client.xadd(self.to, {FIELD: data})
        await redis_client.aclose()

    async def report(self, reply: str, many: list[bytes]) -> None:
        """Reports as a worker in another language may send them."""
        if self.kind == "nats":
            client = await nats.connect(self.server.url)
            try:
                for data in many:
                    await client.jetstream().publish(reply, data)
            finally:
                await client.close()
            return
        redis_client = redis.asyncio.Redis.from_url(self.server.url)
        for data in many:
            await redis_client.xadd(reply, {FIELD: data})
        await redis_client.aclose()

    async def ends(self, count: int = 1) -> list[WorkerReport]:
        """All reports until this number of runs has ended."""

        def enough(found: list[WorkerReport]) -> bool:
            return sum(each.kind in ("finish", "fail", "skip") for each in found) >= count

        return await reports_until(self.broker, enough)

    async def stop(self) -> None:
        for worker, task in self._running:
            worker.stop()
            await task
        self._running.clear()


@asynccontextmanager
async def bench_on(server: Broker, own: str, kind: Kind) -> AsyncIterator[Bench]:
    bench = Bench(server, own, kind)
    try:
        yield bench
    finally:
        await bench.stop()
        await bench.broker.close()
