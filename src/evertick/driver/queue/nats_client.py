"""A NATS connection for nodes and workers: opened at the first use, reopened after an error, and creates its streams.

The reconnecting of the library is off, because it buffers messages that it cannot send. Here the caller gets an error
at once and decides. `docs/reference/worker-contract.md` describes subjects and streams.

A credentials file from the operator of the server holds a JWT and its signing key. It is read for each new connection,
so a replaced file is used by the next one. Evertick parses it, because the library hangs on a file without a JWT. The
key is never logged.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import NoStreamResponseError, NotFoundError, ServiceUnavailableError

from evertick.driver.queue.contract import MESSAGE_MAX_BYTES, dispatch_id
from evertick.driver.queue.spec import NatsConnection, warn_if_unencrypted
from evertick.driver.secret import Secret
from evertick.errors import BrokerUnavailable
from evertick.text.regular_file import open_regular, read_regular

__all__ = ["REMEMBER_SECONDS", "NatsNames", "NatsSession", "token_of"]

log = logging.getLogger("evertick.nats")

T = TypeVar("T")

# The server redelivers a message that its reader has not acknowledged within this time.
ACK_SECONDS = 30.0
_UNACKNOWLEDGED_MAX = 10_000
_CONNECT_SECONDS = 5
_ANSWER_SECONDS = 10.0
_CLOSE_SECONDS = 2.0
_POLL_SECONDS = 0.25
# Error codes of a server or account without JetStream; None: the server did not answer.
_NO_JETSTREAM = (None, 10076, 10039)
# Part of the error of a server that rejects the credentials, in upper or lower case.
_REJECTED = "authorization"
# The deduplication window of the server.
_DUPLICATE_SECONDS = 600
_MESSAGES_MAX = 1_000_000
_EVENTS_MAX_BYTES = 1 << 30
_EVENTS_SECONDS = 7 * 86_400
# How long marks (dispatch taken, dispatch cancelled) are kept: longer than a dispatch may wait for a worker.
REMEMBER_SECONDS: Final = 86_400
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_FILE_MAX_BYTES = 64 * 1024
_FILE_FIX = "use the complete file that `nsc generate creds` writes; it begins with -----BEGIN NATS USER JWT-----"
_JWT = re.compile(rb"-{3,}BEGIN NATS USER JWT-{3,}\s+([\w.=-]+)\s+-{3,}END NATS USER JWT-{3,}")
_SEED = re.compile(rb"-{3,}BEGIN USER NKEY SEED-{3,}\s+(SU[A-Z2-7]+)\s+-{3,}END USER NKEY SEED-{3,}")


class NatsNames:
    """The names of streams, subjects and consumers under one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        stream = prefix.upper()
        self.jobs_stream = f"{stream}_JOBS"
        self.reports_stream = f"{stream}_REPORTS"
        # Dispatches that were taken or cancelled.
        self.marks_stream = f"{stream}_MARKS"
        self.events_stream = f"{stream}_EVENTS"

    def jobs(self, queue: str) -> str:
        return f"{self._prefix}.jobs.{queue}"

    def workers(self, queue: str) -> str:
        """The consumer shared by all workers of a queue."""
        return f"workers_{queue}"

    def reports(self, fleet: str) -> str:
        return f"{self._prefix}.reports.{token_of(fleet)}"

    def nodes(self, fleet: str) -> str:
        """The consumer shared by all nodes of a fleet."""
        return f"nodes_{token_of(fleet)}"

    def taken(self, run: str, fence: int) -> str:
        return f"{self._prefix}.taken.{token_of(dispatch_id(run, fence))}"

    def kill(self, run: str, fence: int) -> str:
        return f"{self._prefix}.kill.{token_of(dispatch_id(run, fence))}"

    @property
    def all_kills(self) -> str:
        return f"{self._prefix}.kill.*"

    def event(self, app: str, word: str) -> str:
        return f"{self._prefix}.{token_of(app)}.runs.{token_of(word)}"

    def all_events_subject(self, app: str) -> str:
        return f"{self._prefix}.{token_of(app)}.runs.*"

    def subjects_of(self, stream: str) -> list[str]:
        return {
            self.jobs_stream: [f"{self._prefix}.jobs.*"],
            self.reports_stream: [f"{self._prefix}.reports.*"],
            self.marks_stream: [f"{self._prefix}.taken.*", self.all_kills],
            self.events_stream: [f"{self._prefix}.*.runs.*"],
        }[stream]


def token_of(text: str) -> str:
    """The text as one token of a subject: special characters like ":" and "." become "=" and their bytes in hex."""
    return _UNSAFE.sub(lambda found: "".join(f"={byte:02X}" for byte in found[0].encode()), text)


class NatsSession:
    """One connection and its streams."""

    def __init__(
        self,
        connection: NatsConnection,
        resolve_secret: Callable[[str], str],
        on_open: Callable[[Client, JetStreamContext], Awaitable[None]] | None = None,
    ) -> None:
        self.names = NatsNames(connection.prefix)
        self._connection = connection
        self._file = None if connection.credentials is None else _CredentialsFile(connection.credentials, self.shown)
        self._resolve_secret = resolve_secret
        # Creates the subscriptions of a new connection.
        self._on_open = on_open
        self._client: Client | None = None
        self._stream: JetStreamContext | None = None
        self._subscription: JetStreamContext.PullSubscription | None = None
        self._opening = asyncio.Lock()
        self._error: Exception | None = None

    @property
    def shown(self) -> str:
        return f"nats at {self._connection.shown}"

    @property
    def is_open(self) -> bool:
        return self._client is not None and self._client.is_connected

    async def opened(self) -> JetStreamContext:
        """Connect if there is no connection. Raises errors of the library; see `unavailable_errors`."""
        async with self._opening:
            if self._stream is None or not self.is_open:
                await self.close()
                await self._open()
            assert self._stream is not None, "it was just opened"
            return self._stream

    async def ask(self, question: Callable[[JetStreamContext], Coroutine[Any, Any, T]]) -> T:
        """Send a request and return the answer. Raises BrokerUnavailable if there is none."""
        with self.unavailable_errors():
            stream = await self.opened()
            return await self._answer(question(stream))

    async def pull(self, stream: JetStreamContext, subject: str, durable: str, name: str) -> None:
        """Create the subscription of `fetch`. All subscribers with one durable name share a consumer."""
        config = ConsumerConfig(ack_wait=ACK_SECONDS, max_ack_pending=_UNACKNOWLEDGED_MAX)
        self._subscription = await stream.pull_subscribe(subject, durable=durable, stream=name, config=config)

    async def fetch(self, most: int, seconds: float) -> list[Msg]:
        with self.unavailable_errors():
            await self.opened()
            assert self._subscription is not None, "it is made with the connection"
            try:
                return await self._answer(self._subscription.fetch(most, timeout=seconds))
            except (nats.errors.TimeoutError, TimeoutError):
                return []

    async def _answer(self, question: Coroutine[Any, Any, T]) -> T:
        """The answer, or an error soon after the connection breaks; the library would wait for its timeout.

        It polls, because the library does not report a connection that breaks during a write.
        """
        # The connection of this request; another caller may open a new one meanwhile.
        task, client = asyncio.ensure_future(question), self._client
        # Retrieves the error of an abandoned request, which asyncio would log.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=_POLL_SECONDS)
                if not task.done() and (client is None or not client.is_connected):
                    raise nats.errors.ConnectionClosedError
        finally:
            task.cancel()
        return task.result()

    async def _open(self) -> None:
        warn_if_unencrypted(self._connection, log)
        client = Client()
        self._error = None
        try:
            async with asyncio.timeout(2 * _CONNECT_SECONDS):
                await client.connect(
                    servers=self._connection.urls,
                    name="evertick",
                    error_cb=self._on_error,
                    connect_timeout=_CONNECT_SECONDS,
                    allow_reconnect=False,
                    # One immediate retry of the initial connect.
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    **self._credentials(),
                )
            stream = client.jetstream(timeout=_ANSWER_SECONDS)
            await self._make_streams(stream)
            if self._on_open is not None:
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
            raise BrokerUnavailable(
                f"{self.shown}: JetStream is not enabled",
                fix="start the server with -js, or ask its operator to enable JetStream for the account",
            ) from error

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
    def unavailable_errors(self) -> Iterator[None]:
        """Converts errors of the library to `BrokerUnavailable`."""
        try:
            yield
        except (nats.errors.Error, OSError, TimeoutError) as error:
            if _is_unanswered(error):
                # The stream was deleted. The connection works, so the next use must create the stream.
                self._stream = None
                raise BrokerUnavailable(
                    f"{self.shown}: the stream was deleted; the next attempt creates it again"
                ) from error
            # The last connection error says more than "no servers available".
            cause = self._error if isinstance(error, nats.errors.NoServersError) and self._error else error
            text = str(cause) or type(cause).__name__
            if self._file is not None and _REJECTED in text.lower():
                raise self._file.rejected(text) from error
            raise BrokerUnavailable(f"{self.shown}: {text}") from error

    async def _on_error(self, error: Exception) -> None:
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
    """Whether a stream or consumer did not answer. A full stream raises the same error with a code."""
    if isinstance(error, ServiceUnavailableError):
        return error.err_code is None
    return isinstance(error, NoStreamResponseError)


async def _close(client: Client) -> None:
    """Close with a timeout, because closing hangs if the TLS handshake never ended."""
    with suppress(Exception):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await client.close()
    # The library leaves the socket open if the connection broke during a write.
    transport = getattr(client, "_transport", None)
    for name in ("_io_writer", "_bare_io_writer"):
        writer: asyncio.StreamWriter | None = getattr(transport, name, None)
        if writer is not None:
            writer.transport.abort()


def _tls(connection: NatsConnection) -> ssl.SSLContext | None:
    if not (connection.ca or connection.cert or any(url.startswith("tls:") for url in connection.urls)):
        return None
    for path in filter(None, (connection.ca, connection.cert, connection.key)):
        os.close(open_regular(path))  # the ssl module would block on a named pipe
    context = ssl.create_default_context(cafile=connection.ca)
    if connection.cert is not None:
        context.load_cert_chain(connection.cert, connection.key)
    return context


async def make_streams(stream: JetStreamContext, names: NatsNames, connection: NatsConnection) -> None:
    """Create missing streams; that of events only if events are published. Existing streams keep their limits."""
    for config in _streams(names, connection.replicas):
        assert config.name is not None
        if config.name == names.events_stream and not connection.events:
            continue
        try:
            await stream.stream_info(config.name)
        except NotFoundError:
            log.info("stream %s: created for %s", config.name, ", ".join(config.subjects or ()))
            await stream.add_stream(config)


def _streams(names: NatsNames, replicas: int) -> list[StreamConfig]:
    # A full queue rejects new messages, which wait in the outbox.
    queue = {"retention": RetentionPolicy.WORK_QUEUE, "discard": DiscardPolicy.NEW, "max_msgs": _MESSAGES_MAX}
    each: dict[str, dict[str, Any]] = {
        names.jobs_stream: {**queue, "max_age": REMEMBER_SECONDS, "duplicate_window": _DUPLICATE_SECONDS},
        names.reports_stream: {**queue, "max_age": _EVENTS_SECONDS},
        names.marks_stream: {"max_msgs_per_subject": 1, "max_age": REMEMBER_SECONDS, "allow_direct": True},
        names.events_stream: {"max_age": _EVENTS_SECONDS, "max_bytes": _EVENTS_MAX_BYTES, "allow_direct": True},
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


class _CredentialsFile:
    """The credentials file of one server."""

    def __init__(self, file: str, server: str) -> None:
        self._file, self._server = file, server

    def signing(self) -> dict[str, Any]:
        """The authentication callbacks of the library. Raises BrokerUnavailable with the file and the fix."""
        jwt, seed = self._read()
        self._sign(seed, b"")  # reports an invalid key before connecting
        return {
            "user_jwt_cb": lambda: bytearray(jwt),
            "signature_cb": lambda nonce: base64.b64encode(self._sign(seed, nonce.encode())),
        }

    def rejected(self, error: str) -> BrokerUnavailable:
        """The error if the server rejects the credentials."""
        return self._error(
            f"was rejected by the server: {error}",
            "ask its operator for a file of a known account that has not expired",
        )

    def _read(self) -> tuple[bytes, bytes]:
        try:
            text = read_regular(self._file, _FILE_MAX_BYTES)
        except OSError as error:
            raise self._error(f"cannot be read: {error.strerror}", "make it, or correct the path") from None
        jwt, seed = _JWT.search(text), _SEED.search(text)
        if jwt is None:
            raise self._error("is not a NATS credentials file: it has no user JWT", _FILE_FIX)
        if seed is None:
            raise self._error("has a user JWT without its key", _FILE_FIX)
        return jwt[1], seed[1]

    def _sign(self, seed: bytes, nonce: bytes) -> bytes:
        try:
            import nkeys
        except ModuleNotFoundError:
            raise self._error("needs the package nkeys", "pip install 'evertick[nats]'") from None
        try:
            pair = nkeys.from_seed(bytearray(seed))
            signed: bytes = pair.sign(nonce)
            pair.wipe()
        except (nkeys.NkeysError, ValueError):
            raise self._error("has a damaged key", "copy the file from its operator again") from None
        return signed

    def _error(self, problem: str, fix: str) -> BrokerUnavailable:
        text = f"{self._server}: credentials: {self._file} {problem}"
        return BrokerUnavailable(text, setting="credentials", value=self._file, fix=fix)
