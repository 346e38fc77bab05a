"""A connection to NATS for nodes and workers: made when it is needed, made anew when it broke, with its streams.

The library's own reconnecting is off: it holds back messages that it cannot send, for a time of its own. Here a caller
hears at once that the broker is away, and decides. `docs/reference/worker-contract.md` has subjects and streams in
words.

A credentials file, as the operator of a server gives it out, holds a JWT and the key that proves it. It is read for
each new connection, so a replaced file counts from the next one on; and read here, since the library goes on looking
for ever in a file that has no JWT. Of the key nothing is shown.
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

from evertick.driver.queue.contract import MESSAGE_MAX_BYTES, pair_of
from evertick.driver.queue.spec import NatsConnection, warn_if_unencrypted
from evertick.driver.secret import Secret
from evertick.errors import BrokerUnavailable
from evertick.text.regular_file import open_regular, read_regular

__all__ = ["REMEMBER_SECONDS", "NatsNames", "NatsSession", "token_of"]

log = logging.getLogger("evertick.nats")

T = TypeVar("T")

# A message that its reader has not acknowledged for so long goes to another: the reader is gone, or cannot.
ACK_SECONDS = 30.0
_UNACKNOWLEDGED_MOST = 10_000
_CONNECT_SECONDS = 5
_ANSWER_SECONDS = 10.0
_CLOSE_SECONDS = 2.0
_LOOK_SECONDS = 0.25
# Without a code there was no answer at all; with these, JetStream is off for the server or for the account.
_NO_JETSTREAM = (None, 10076, 10039)
# In the error of a server that rejects the credentials, in any case.
_REFUSED = "authorization"
# The same dispatch sent again within that time is dropped by the server already.
_DUPLICATE_SECONDS = 600
_MESSAGES_MOST = 1_000_000
_EVENTS_MOST_BYTES = 1 << 30
_EVENTS_SECONDS = 7 * 86_400
# How long it is known that a dispatch was taken, or is not wanted any more: longer than any may wait to be taken.
REMEMBER_SECONDS: Final = 86_400
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_FILE_MAX_BYTES = 64 * 1024
_FILE_SHAPE = "it begins with -----BEGIN NATS USER JWT-----, and `nsc generate creds` writes it"
_JWT = re.compile(rb"-{3,}BEGIN NATS USER JWT-{3,}\s+([\w.=-]+)\s+-{3,}END NATS USER JWT-{3,}")
_SEED = re.compile(rb"-{3,}BEGIN USER NKEY SEED-{3,}\s+(SU[A-Z2-7]+)\s+-{3,}END USER NKEY SEED-{3,}")


class NatsNames:
    """All names under one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        stream = prefix.upper()
        self.jobs_stream = f"{stream}_JOBS"
        self.reports_stream = f"{stream}_REPORTS"
        # Which dispatches were taken, and which are not wanted any more.
        self.marks_stream = f"{stream}_MARKS"
        self.events_stream = f"{stream}_EVENTS"

    def jobs(self, queue: str) -> str:
        return f"{self._prefix}.jobs.{queue}"

    def workers(self, queue: str) -> str:
        """The consumer that all workers of a queue share."""
        return f"workers_{queue}"

    def reports(self, fleet: str) -> str:
        return f"{self._prefix}.reports.{token_of(fleet)}"

    def nodes(self, fleet: str) -> str:
        """The consumer that all nodes of a fleet share."""
        return f"nodes_{token_of(fleet)}"

    def taken(self, run: str, fence: int) -> str:
        return f"{self._prefix}.taken.{token_of(pair_of(run, fence))}"

    def kill(self, run: str, fence: int) -> str:
        return f"{self._prefix}.kill.{token_of(pair_of(run, fence))}"

    @property
    def all_kills(self) -> str:
        return f"{self._prefix}.kill.*"

    def event(self, app: str, word: str) -> str:
        return f"{self._prefix}.{token_of(app)}.runs.{token_of(word)}"

    def any_event(self, app: str) -> str:
        return f"{self._prefix}.{token_of(app)}.runs.*"

    def subjects_of(self, stream: str) -> list[str]:
        return {
            self.jobs_stream: [f"{self._prefix}.jobs.*"],
            self.reports_stream: [f"{self._prefix}.reports.*"],
            self.marks_stream: [f"{self._prefix}.taken.*", self.all_kills],
            self.events_stream: [f"{self._prefix}.*.runs.*"],
        }[stream]


def token_of(text: str) -> str:
    """One word of a subject: ":" and "." and the like as "=" and their bytes in hex."""
    return _UNSAFE.sub(lambda found: "".join(f"={byte:02X}" for byte in found[0].encode()), text)


class NatsSession:
    """One connection, and the streams that it needs."""

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
        # Makes the subscriptions of the new connection.
        self._on_open = on_open
        self._client: Client | None = None
        self._stream: JetStreamContext | None = None
        self._pulled: JetStreamContext.PullSubscription | None = None
        self._opening = asyncio.Lock()
        self._error: Exception | None = None

    @property
    def shown(self) -> str:
        return f"nats at {self._connection.shown}"

    @property
    def is_open(self) -> bool:
        return self._client is not None and self._client.is_connected

    async def opened(self) -> JetStreamContext:
        """Connects if there is no connection. Raises errors of the library; see `unavailable_errors`."""
        async with self._opening:
            if self._stream is None or not self.is_open:
                await self.close()
                await self._open()
            assert self._stream is not None, "it was just opened"
            return self._stream

    async def ask(self, question: Callable[[JetStreamContext], Coroutine[Any, Any, T]]) -> T:
        """The answer of the server; raises BrokerUnavailable without one."""
        with self.unavailable_errors():
            stream = await self.opened()
            return await self._answer(question(stream))

    async def pull(self, stream: JetStreamContext, subject: str, durable: str, name: str) -> None:
        """Subscribe to what `fetch` reads: one consumer is shared by all that use the same durable name."""
        config = ConsumerConfig(ack_wait=ACK_SECONDS, max_ack_pending=_UNACKNOWLEDGED_MOST)
        self._pulled = await stream.pull_subscribe(subject, durable=durable, stream=name, config=config)

    async def fetch(self, most: int, seconds: float) -> list[Msg]:
        with self.unavailable_errors():
            await self.opened()
            assert self._pulled is not None, "it is made with the connection"
            try:
                return await self._answer(self._pulled.fetch(most, timeout=seconds))
            except (nats.errors.TimeoutError, TimeoutError):
                return []  # there was none

    async def _answer(self, question: Coroutine[Any, Any, T]) -> T:
        """The answer; soon an error if the connection breaks, where the library would wait for its timeout.

        Polled: the library does not report a connection that breaks during a write.
        """
        # The connection of this question: another caller may make a new one meanwhile.
        task, client = asyncio.ensure_future(question), self._client
        # Given up, it may still end with an error, which is not to be logged.
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
                    # Of the first connecting: one more try, at once.
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
    def unavailable_errors(self) -> Iterator[None]:
        """Raises errors of the library as `BrokerUnavailable`."""
        try:
            yield
        except (nats.errors.Error, OSError, TimeoutError) as error:
            if _is_unanswered(error):
                # The stream was deleted; the connection is well, and would never be opened again by itself.
                self._stream = None
                what = "the stream is gone, and is made anew with the next try"
                raise BrokerUnavailable(f"{self.shown}: {what}") from error
            # That no server can be reached says less than why the last one could not.
            cause = self._error if isinstance(error, nats.errors.NoServersError) and self._error else error
            text = str(cause) or type(cause).__name__
            if self._file is not None and _REFUSED in text.lower():
                text = self._file.refused(text)
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
    """Whether a stream or a consumer does not answer. A full stream answers with the same error, and a code."""
    if isinstance(error, ServiceUnavailableError):
        return error.err_code is None
    return isinstance(error, NoStreamResponseError)


async def _close(client: Client) -> None:
    """Bounded: a connection whose TLS handshake never ended does not close by itself."""
    with suppress(Exception):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await client.close()
    # The library calls a connection closed that breaks during a write, and leaves its socket open.
    transport = getattr(client, "_transport", None)
    for name in ("_io_writer", "_bare_io_writer"):
        writer: asyncio.StreamWriter | None = getattr(transport, name, None)
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
    """Those that are missing; that of the events where they are published. An existing one keeps its operator's
    limits."""
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
    # Full, a queue takes nothing more: refused messages wait in the outbox.
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


class _CredentialsFile:
    """One such file, for the server that is shown."""

    def __init__(self, file: str, shown: str) -> None:
        self._file, self._shown = file, shown

    def signing(self) -> dict[str, Any]:
        """The callbacks of the library that authenticate. Raises BrokerUnavailable with the file and the fix."""
        jwt, seed = self._read()
        self._sign(seed, b"")  # a key that cannot sign is reported before connecting
        return {
            "user_jwt_cb": lambda: bytearray(jwt),
            "signature_cb": lambda nonce: base64.b64encode(self._sign(seed, nonce.encode())),
        }

    def refused(self, error: str) -> str:
        """The error text when the server rejects them."""
        why = f"the server does not take the credentials in {self._file}"
        return f"{why}; ask its operator for a file of an account that it knows, and that has not run out ({error})"

    def _read(self) -> tuple[bytes, bytes]:
        try:
            text = read_regular(self._file, _FILE_MAX_BYTES)
        except OSError as error:
            raise self._wrong(f"cannot be read: {error.strerror}; make it, or correct the path") from None
        jwt, seed = _JWT.search(text), _SEED.search(text)
        if jwt is None:
            raise self._wrong(
                f"is no file of NATS credentials, for it has no JWT of a user; such a file is text: {_FILE_SHAPE}"
            )
        if seed is None:
            raise self._wrong(f"has the JWT of a user and not its key; take the whole file: {_FILE_SHAPE}")
        return jwt[1], seed[1]

    def _sign(self, seed: bytes, nonce: bytes) -> bytes:
        try:
            import nkeys
        except ModuleNotFoundError:
            raise self._wrong("cannot be used without the package nkeys; install evertick[nats]") from None
        try:
            pair = nkeys.from_seed(bytearray(seed))
            signed: bytes = pair.sign(nonce)
            pair.wipe()
        except (nkeys.NkeysError, ValueError):
            raise self._wrong("has a key that is damaged; copy the file once more, from its operator") from None
        return signed

    def _wrong(self, what: str) -> BrokerUnavailable:
        return BrokerUnavailable(f"{self._shown}: credentials: {self._file} {what}")
