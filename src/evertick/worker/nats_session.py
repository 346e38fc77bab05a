"""A worker's session with a queue in NATS JetStream."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import Header
from nats.js.errors import APIError, NotFoundError

from evertick.clock import Clock
from evertick.driver.queue.contract import DispatchMessage, Kill, WorkerReport, decode_kill, encode
from evertick.driver.queue.nats_client import NatsSession
from evertick.driver.queue.spec import NatsConnection
from evertick.errors import InvalidInput
from evertick.worker.broker_session import QueueMessage, Take

__all__ = ["NatsBrokerSession"]

log = logging.getLogger("evertick.worker")

# The server's error code for a message that is not the first on its subject.
_NOT_THE_FIRST = 10071


class NatsBrokerSession:
    """One worker's session with one queue."""

    def __init__(
        self, connection: NatsConnection, queue: str, *, clock: Clock, resolve_secret: Callable[[str], str]
    ) -> None:
        self._queue = queue
        self._session = NatsSession(connection, resolve_secret, self._subscribe)
        self._name = clock.new_token()
        self._count = 0
        self.on_kill: Callable[[Kill], None] = lambda _: None

    @property
    def shown(self) -> str:
        return f"{self._session.names.jobs(self._queue)} in {self._session.shown}"

    async def open(self) -> None:
        with self._session.unavailable_errors():
            await self._session.opened()

    async def close(self) -> None:
        await self._session.close()

    async def _subscribe(self, client: Client, stream: JetStreamContext) -> None:
        names = self._session.names
        await self._session.pull(stream, names.jobs(self._queue), names.workers(self._queue), names.jobs_stream)
        await client.subscribe(names.all_kills, cb=self._on_message)

    # --- out of the queue

    async def fetch(self, most: int, seconds: float) -> list[QueueMessage]:
        return [self._marked(message) for message in await self._session.fetch(most, seconds)]

    def _marked(self, message: Msg) -> QueueMessage:
        self._count += 1
        return QueueMessage(message.data, message, f"{self._name}:{self._count}")

    async def take(self, message: QueueMessage, dispatched: DispatchMessage) -> Take:
        taken = await self._session.ask(lambda stream: self._take(stream, message, dispatched))
        with suppress(nats.errors.Error, OSError):  # the message is delivered again and recognised as a duplicate
            await message.token.ack()
        return taken

    async def _take(self, stream: JetStreamContext, message: QueueMessage, dispatched: DispatchMessage) -> Take:
        """The worker that publishes the first message on the subject of the dispatch has it."""
        names = self._session.names
        if not await self._is_first(stream, names.taken(dispatched.run, dispatched.fence), message.mark.encode()):
            return "duplicate"
        is_killed = await self._last(stream, names.kill(dispatched.run, dispatched.fence)) is not None
        return "killed" if is_killed else "taken"

    async def _is_first(self, stream: JetStreamContext, subject: str, mark: bytes) -> bool:
        try:
            await stream.publish(subject, mark, headers={Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: "0"})
        except APIError as error:
            if error.err_code != _NOT_THE_FIRST:
                raise
            # An earlier try of this worker may have been the first, without an answer.
            return await self._last(stream, subject) == mark
        return True

    async def _last(self, stream: JetStreamContext, subject: str) -> bytes | None:
        try:
            return (await stream.get_last_msg(self._session.names.marks_stream, subject, direct=True)).data
        except NotFoundError:
            return None

    async def drop(self, message: QueueMessage) -> None:
        with self._session.unavailable_errors():
            await message.token.term()

    async def give_back(self, message: QueueMessage) -> None:
        with self._session.unavailable_errors():
            await message.token.nak()

    # --- back to the ledger

    async def report(self, dispatched: DispatchMessage, report: WorkerReport) -> bool:
        return await self._session.ask(lambda stream: self._report(stream, dispatched, report))

    async def _report(self, stream: JetStreamContext, dispatched: DispatchMessage, report: WorkerReport) -> bool:
        if dispatched.reply is not None:
            await stream.publish(dispatched.reply, encode(report))
        return await self._last(stream, self._session.names.kill(dispatched.run, dispatched.fence)) is None

    # --- kills

    async def _on_message(self, message: Msg) -> None:
        try:
            self.on_kill(decode_kill(message.data))
        except InvalidInput as error:
            log.warning("subject %s: unreadable cancel message ignored: %s", message.subject, error)
