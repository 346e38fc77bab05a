"""The driver `redis`: what it needs beyond the driver of all queues."""

from __future__ import annotations

from evertick.driver.queue.driver import Queue, QueueDriver, worker_command
from evertick.driver.queue.exchange import exchange_of
from evertick.driver.queue.redis_broker import CHANNEL, RedisBroker
from evertick.driver.queue.redis_keys import reports_key
from evertick.driver.queue.redis_spec import QUEUE_PREFIX, Redis, RedisConnection, redis_connection
from evertick.driver.spec import DriverParts

__all__ = ["redis_driver"]


def redis_driver(spec: Redis, task: str, parts: DriverParts) -> QueueDriver:
    def connection() -> RedisConnection:
        return redis_connection(parts.connections.get("redis"))

    def broker() -> RedisBroker:
        return RedisBroker(connection(), parts.fleet(), parts.clock, parts.resolve_secret)

    def reply() -> str:
        return reports_key(connection().namespace, parts.fleet())

    def served_by() -> str:
        stream = ["--stream"] if spec.kind == "stream" else []
        prefix = ["--prefix", spec.prefix] if spec.prefix != QUEUE_PREFIX else []
        return worker_command("redis", spec.queue, *stream, *prefix)

    queue = Queue(channel=CHANNEL, to=spec.key, kind=spec.kind, reply=reply, served_by=served_by)
    return QueueDriver(spec, task, parts, queue, exchange_of(parts, CHANNEL, broker))
