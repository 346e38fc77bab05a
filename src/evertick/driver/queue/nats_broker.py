"""The node's side of NATS: dispatches runs and reads reports.

The server drops a duplicate dispatch by its message id; after the deduplication window the worker recognises it. All
nodes of a fleet (an app of one ledger) read reports through one consumer: each report goes to one node, and to any node
again if it is not acknowledged in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import Header

from evertick.clock import Clock
from evertick.driver.queue.contract import Kill, dispatch_id, encode
from evertick.driver.queue.driver import (
    IncomingReport,
    Queue,
    QueueDriver,
    broker_channel,
    envelope_of,
    push_in_batches,
    stamped,
    worker_command,
)
from evertick.driver.queue.nats_client import NatsNames, NatsSession
from evertick.driver.queue.spec import SUBJECT_PREFIX, Nats, NatsConnection, nats_connection
from evertick.driver.spec import DriverParts
from evertick.errors import BrokerUnavailable
from evertick.model import ClaimedMessage

__all__ = ["CHANNEL", "NatsBroker", "nats_driver"]

CHANNEL = "nats"
# Concurrent publishes; the server acknowledges each.
_AT_ONCE = 250


class NatsBroker:
    """A NATS server or cluster, for one fleet."""

    channel = CHANNEL

    def __init__(
        self, connection: NatsConnection, fleet: str, clock: Clock, resolve_secret: Callable[[str], str]
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._session = NatsSession(connection, resolve_secret, self._subscribe)

    @property
    def shown(self) -> str:
        return self._session.shown

    # --- to the workers

    async def push(self, messages: Sequence[ClaimedMessage]) -> list[Exception | None]:
        return await push_in_batches(messages, _AT_ONCE, self._push_batch)

    async def _push_batch(self, messages: Sequence[ClaimedMessage]) -> list[Exception | None]:
        """Try again on a new connection if the old one breaks, because a restart of the server shows only at the next
        use. The server recognises messages that arrived by their ids."""
        was_open = self._session.is_open
        try:
            return await self._push_once(messages)
        except BrokerUnavailable:
            if not was_open or self._session.is_open:
                raise
        return await self._push_once(messages)

    async def _push_once(self, messages: Sequence[ClaimedMessage]) -> list[Exception | None]:
        async def push_all(stream: JetStreamContext) -> list[Exception | None]:
            return await asyncio.gather(*(self._push(stream, message) for message in messages))

        return await self._session.ask(push_all)

    async def _push(self, stream: JetStreamContext, message: ClaimedMessage) -> Exception | None:
        envelope = envelope_of(message)
        id_ = dispatch_id(envelope.message["run"], envelope.message["fence"])
        headers = {Header.MSG_ID.value: id_}
        try:
            with self._session.unavailable_errors():
                subject = self._session.names.jobs(envelope.to)
                await stream.publish(subject, stamped(envelope, self._clock.now_us()), headers=headers)
        except BrokerUnavailable as error:
            return error
        return None

    async def kill(self, kills: Sequence[Kill]) -> None:
        """The worker that has the run receives the message; the stream keeps it for a later one."""

        async def kill_all(stream: JetStreamContext) -> None:
            subject = self._session.names.kill
            await asyncio.gather(*(stream.publish(subject(kill.run, kill.fence), encode(kill)) for kill in kills))

        await self._session.ask(kill_all)

    # --- from the workers

    async def read(self, most: int, seconds: float) -> list[IncomingReport]:
        return [IncomingReport(message, message.data) for message in await self._session.fetch(most, seconds)]

    async def acknowledge(self, reports: Sequence[IncomingReport]) -> None:
        with self._session.unavailable_errors():
            for report in reports:
                await report.token.ack()

    # --- the connection

    async def _subscribe(self, _: Client, stream: JetStreamContext) -> None:
        names = self._session.names
        await self._session.pull(stream, names.reports(self._fleet), names.nodes(self._fleet), names.reports_stream)

    async def close(self) -> None:
        await self._session.close()


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
    return QueueDriver(spec, task, parts, queue, broker_channel(parts, CHANNEL, broker))
