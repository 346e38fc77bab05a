"""NATS as a node uses it: runs go out, reports come back.

The server drops a dispatch that was sent twice by its message id; what comes later than its memory goes is recognised
by the worker. Reports are read through one consumer by all nodes of a fleet, which is an app of one ledger: each goes
to one of them, and again to any if it is not acknowledged in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, Header

from evertick.clock import Clock
from evertick.driver.queue.broker import BATCH, Incoming, envelope_of, stamped
from evertick.driver.queue.contract import Kill, encode, pair_of
from evertick.driver.queue.nats_client import NatsSession
from evertick.driver.queue.nats_spec import NatsConnection
from evertick.errors import BrokerUnavailable
from evertick.model import ClaimedMessage

__all__ = ["CHANNEL", "NatsBroker"]

CHANNEL = "nats"
# A report that its reader has not acknowledged for so long comes again: the store was away, or the node died.
ACK_SECONDS = 30.0
# Published at once; the server answers each.
_AT_ONCE = 250
_UNACKNOWLEDGED_MOST = 10_000


class NatsBroker:
    """One NATS, for one fleet."""

    channel = CHANNEL

    def __init__(
        self, connection: NatsConnection, fleet: str, clock: Clock, resolve_secret: Callable[[str], str]
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._session = NatsSession(connection, resolve_secret, self._subscribe)
        self._reports: JetStreamContext.PullSubscription | None = None

    @property
    def shown(self) -> str:
        return self._session.shown

    # --- to the workers

    async def push(self, messages: Sequence[ClaimedMessage]) -> list[Exception | None]:
        answers: list[Exception | None] = []
        for first in range(0, len(messages), min(BATCH, _AT_ONCE)):
            batch = messages[first : first + _AT_ONCE]
            try:
                answers += await self._journey(batch)
            except BrokerUnavailable as error:
                # It would be away for the others as well; each try would take its time.
                return answers + [error] * (len(messages) - len(answers))
        return answers

    async def _journey(self, messages: Sequence[ClaimedMessage]) -> list[Exception | None]:
        """On a line that breaks under it once more, at once, on a new one: of a restart of the server nothing may tell
        before the line is used. What did arrive is known by its id."""
        was_open = self._session.is_open
        try:
            return await self._tried(messages)
        except BrokerUnavailable:
            if not was_open or self._session.is_open:
                raise
        return await self._tried(messages)

    async def _tried(self, messages: Sequence[ClaimedMessage]) -> list[Exception | None]:
        with self._session.telling():
            stream = await self._session.opened()
            return await self._session.asked(self._push_all(stream, messages))

    async def _push_all(self, stream: JetStreamContext, messages: Sequence[ClaimedMessage]) -> list[Exception | None]:
        return await asyncio.gather(*(self._push(stream, message) for message in messages))

    async def _push(self, stream: JetStreamContext, message: ClaimedMessage) -> Exception | None:
        parcel = envelope_of(message)
        id_ = pair_of(parcel.message["run"], parcel.message["fence"])
        headers = {Header.MSG_ID.value: id_}
        try:
            with self._session.telling():
                subject = self._session.names.jobs(parcel.to)
                await stream.publish(subject, stamped(parcel, self._clock.now_us()), headers=headers)
        except BrokerUnavailable as error:
            return error
        return None

    async def kill(self, kills: Sequence[Kill]) -> None:
        """Kept by its stream for whoever takes it later, and heard by whoever has it now: it is one message."""
        with self._session.telling():
            stream = await self._session.opened()
            await self._session.asked(self._kill_all(stream, kills))

    async def _kill_all(self, stream: JetStreamContext, kills: Sequence[Kill]) -> None:
        subject = self._session.names.kill
        await asyncio.gather(*(stream.publish(subject(kill.run, kill.fence), encode(kill)) for kill in kills))

    # --- from the workers

    async def read(self, most: int, seconds: float) -> list[Incoming]:
        with self._session.telling():
            await self._session.opened()
            assert self._reports is not None, "it is made with the line"
            try:
                found = await self._session.asked(self._reports.fetch(most, timeout=seconds))
            except (nats.errors.TimeoutError, TimeoutError):
                return []  # there was none
            return [Incoming(message, message.data) for message in found]

    async def acknowledge(self, reports: Sequence[Incoming]) -> None:
        with self._session.telling():
            for report in reports:
                await report.token.ack()

    # --- the line

    async def _subscribe(self, _: Client, stream: JetStreamContext) -> None:
        names = self._session.names
        self._reports = await stream.pull_subscribe(
            names.reports(self._fleet),
            durable=names.nodes(self._fleet),
            stream=names.reports_stream,
            config=ConsumerConfig(ack_wait=ACK_SECONDS, max_ack_pending=_UNACKNOWLEDGED_MOST),
        )

    async def close(self) -> None:
        await self._session.close()
