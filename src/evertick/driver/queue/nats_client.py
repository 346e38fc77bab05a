"""A line to NATS as nodes and workers have it: made when it is needed, made anew when it broke, with its streams.

The library's own reconnecting is off: it holds back what it cannot send, for a time of its own. Here a caller hears at
once that the broker is away, and decides.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import NoStreamResponseError, NotFoundError, ServiceUnavailableError

from evertick.driver.queue.contract import MESSAGE_MAX_BYTES
from evertick.driver.queue.nats_credentials import CredentialsFile
from evertick.driver.queue.nats_names import REMEMBER_SECONDS, NatsNames
from evertick.driver.queue.nats_spec import NatsConnection
from evertick.driver.queue.unencrypted import warn_of_plain_text
from evertick.driver.secret import Secret
from evertick.errors import BrokerUnavailable
from evertick.text.regular_file import open_regular

__all__ = ["NatsSession"]

log = logging.getLogger("evertick.nats")

T = TypeVar("T")

_CONNECT_SECONDS = 5
_ANSWER_SECONDS = 10.0
_CLOSE_SECONDS = 2.0
_LOOK_SECONDS = 0.25
# Without a code nobody has answered at all; with these, JetStream is off for the server or for the account.
_NO_JETSTREAM = (None, 10076, 10039)
# What a server says to whom it does not know, in whatever letters.
_REFUSED = "authorization"
# The same dispatch sent again within that time is dropped by the server already.
_DUPLICATE_SECONDS = 600
_MESSAGES_MOST = 1_000_000
_EVENTS_MOST_BYTES = 1 << 30
_EVENTS_SECONDS = 7 * 86_400


class NatsSession:
    """One line, and what has to be there before it is used."""

    def __init__(
        self,
        connection: NatsConnection,
        resolve_secret: Callable[[str], str],
        on_open: Callable[[Client, JetStreamContext], Any],
    ) -> None:
        self.names = NatsNames(connection.prefix)
        self._connection = connection
        self._file = None if connection.credentials is None else CredentialsFile(connection.credentials, self.shown)
        self._resolve_secret = resolve_secret
        # Makes what belongs to this very line: its subscriptions.
        self._on_open = on_open
        self._client: Client | None = None
        self._stream: JetStreamContext | None = None
        self._opening = asyncio.Lock()
        self._error: Exception | None = None

    @property
    def shown(self) -> str:
        return f"nats at {self._connection.shown}"

    @property
    def is_open(self) -> bool:
        return self._client is not None and self._client.is_connected

    async def opened(self) -> JetStreamContext:
        """The line, made if there is none. Raises what the library raises; see `telling`."""
        async with self._opening:
            if self._stream is None or not self.is_open:
                await self.close()
                await self._open()
            assert self._stream is not None, "it was just opened"
            return self._stream

    async def asked(self, question: Coroutine[Any, Any, T]) -> T:
        """The answer; or soon that the line broke, where the library would wait for its time to be over.

        It is looked for: of a line that breaks while something is written the library does not tell.
        """
        # The line that it was put on: somebody else may make a new one meanwhile.
        task, client = asyncio.ensure_future(question), self._client
        # Given up, it may still end with an error, of which nobody is to hear.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=_LOOK_SECONDS)
                if not task.done() and (client is None or not client.is_connected):
                    raise nats.errors.ConnectionClosedError
        finally:
            task.cancel()
        return task.result()

    async def _open(self) -> None:
        warn_of_plain_text(self._connection, log)
        client = Client()
        self._error = None
        try:
            async with asyncio.timeout(2 * _CONNECT_SECONDS):
                await client.connect(
                    servers=self._connection.urls,
                    name="evertick",
                    error_cb=self._heard_error,
                    connect_timeout=_CONNECT_SECONDS,
                    allow_reconnect=False,
                    # Of the first connecting: one more try, at once.
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    **self._credentials(),
                )
            stream = client.jetstream(timeout=_ANSWER_SECONDS)
            await self._make_streams(stream)
            await self._on_open(client, stream)
        except BaseException:
            await _close(client)
            raise
        self._client, self._stream = client, stream

    async def _make_streams(self, stream: JetStreamContext) -> None:
        try:
            await make_streams(stream, self.names, self._connection)
        except ServiceUnavailableError as error:
            if error.err_code not in _NO_JETSTREAM:
                raise
            fix = "start it with -js, or ask its operator to enable JetStream for the account"
            raise BrokerUnavailable(f"{self.shown}: the server has no JetStream for us; {fix}") from error

    async def close(self) -> None:
        client, self._client, self._stream = self._client, None, None
        if client is None:
            return
        if not client.is_closed:
            with suppress(Exception):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await client.flush()
        await _close(client)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """What goes wrong on the way is the broker's being away, whatever the library calls it."""
        try:
            yield
        except (nats.errors.Error, OSError, TimeoutError) as error:
            if _is_unanswered(error):
                # Whoever deleted the stream, the line is well, and would never be opened again by itself.
                self._stream = None
                what = "the stream is gone, and is made anew with the next try"
                raise BrokerUnavailable(f"{self.shown}: {what}") from error
            # That no server can be had says less than why the last one could not.
            cause = self._error if isinstance(error, nats.errors.NoServersError) and self._error else error
            said = str(cause) or type(cause).__name__
            if self._file is not None and _REFUSED in said.lower():
                said = self._file.refused(said)
            raise BrokerUnavailable(f"{self.shown}: {said}") from error

    async def _heard_error(self, error: Exception) -> None:
        self._error = error
        log.debug("%s: %s", self.shown, str(error) or type(error).__name__)

    def _credentials(self) -> dict[str, Any]:
        connection = self._connection
        given = {
            "user": connection.user,
            "password": self._value(connection.password),
            "token": self._value(connection.token),
            "tls": _tls(connection),
            **({} if self._file is None else self._file.signing()),
        }
        return {name: value for name, value in given.items() if value is not None}

    def _value(self, given: str | Secret | None) -> str | None:
        return self._resolve_secret(given.name) if isinstance(given, Secret) else given


def _is_unanswered(error: Exception) -> bool:
    """Whether nobody answers for a stream, or for a consumer. A full stream answers with the same error, and a code."""
    if isinstance(error, ServiceUnavailableError):
        return error.err_code is None
    return isinstance(error, NoStreamResponseError)


async def _close(client: Client) -> None:
    """Bounded: a line whose TLS was never agreed on does not end by itself."""
    with suppress(Exception):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await client.close()
    # A line that breaks while something is written is called closed by the library, and its socket is left open.
    for name in ("_io_writer", "_bare_io_writer"):
        writer: asyncio.StreamWriter | None = getattr(client._transport, name, None)
        if writer is not None:
            writer.transport.abort()


def _tls(connection: NatsConnection) -> ssl.SSLContext | None:
    if not (connection.ca or connection.cert or any(url.startswith("tls:") for url in connection.urls)):
        return None
    for path in filter(None, (connection.ca, connection.cert, connection.key)):
        os.close(open_regular(path))  # the library would wait for a pipe
    context = ssl.create_default_context(cafile=connection.ca)
    if connection.cert is not None:
        context.load_cert_chain(connection.cert, connection.key)
    return context


async def make_streams(stream: JetStreamContext, names: NatsNames, connection: NatsConnection) -> None:
    """Those that are missing; that of the events where they are published. One that is there is used as it is: its
    limits are its operator's."""
    for config in _streams(names, connection.replicas):
        assert config.name is not None
        if config.name == names.events_stream and not connection.events:
            continue
        try:
            await stream.stream_info(config.name)
        except NotFoundError:
            log.info("stream %s is made, for %s", config.name, ", ".join(config.subjects or ()))
            await stream.add_stream(config)


def _streams(names: NatsNames, replicas: int) -> list[StreamConfig]:
    # Full, a queue takes nothing more: what is refused waits in the outbox, and is not lost.
    queue = {"retention": RetentionPolicy.WORK_QUEUE, "discard": DiscardPolicy.NEW, "max_msgs": _MESSAGES_MOST}
    each: dict[str, dict[str, Any]] = {
        names.jobs_stream: {**queue, "max_age": REMEMBER_SECONDS, "duplicate_window": _DUPLICATE_SECONDS},
        names.reports_stream: {**queue, "max_age": _EVENTS_SECONDS},
        names.marks_stream: {"max_msgs_per_subject": 1, "max_age": REMEMBER_SECONDS, "allow_direct": True},
        names.events_stream: {"max_age": _EVENTS_SECONDS, "max_bytes": _EVENTS_MOST_BYTES, "allow_direct": True},
    }
    return [
        StreamConfig(
            name=name,
            subjects=names.subjects_of(name),
            storage=StorageType.FILE,
            num_replicas=replicas,
            max_msg_size=MESSAGE_MAX_BYTES + 4096,
            **options,
        )
        for name, options in each.items()
    ]
