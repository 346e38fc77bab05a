"""The driver `nats`: what it needs beyond the driver of all queues."""

from __future__ import annotations

from evertick.driver.queue.driver import Queue, QueueDriver, worker_command
from evertick.driver.queue.exchange import exchange_of
from evertick.driver.queue.nats_broker import CHANNEL, NatsBroker
from evertick.driver.queue.nats_names import NatsNames
from evertick.driver.queue.nats_spec import SUBJECT_PREFIX, Nats, NatsConnection, nats_connection
from evertick.driver.spec import DriverParts

__all__ = ["nats_driver"]


def nats_driver(spec: Nats, task: str, parts: DriverParts) -> QueueDriver:
    def connection() -> NatsConnection:
        return nats_connection(parts.connections.get("nats"))

    def broker() -> NatsBroker:
        return NatsBroker(connection(), parts.fleet(), parts.clock, parts.resolve_secret)

    def reply() -> str:
        return NatsNames(connection().prefix).reports(parts.fleet())

    def served_by() -> str:
        prefix = connection().prefix
        return worker_command("nats", spec.queue, *(["--prefix", prefix] if prefix != SUBJECT_PREFIX else []))

    queue = Queue(channel=CHANNEL, to=spec.queue, kind="subject", reply=reply, served_by=served_by)
    return QueueDriver(spec, task, parts, queue, exchange_of(parts, CHANNEL, broker))
