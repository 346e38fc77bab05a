"""Redis for nodes and workers: keys, connections and streams; and the node's side: it dispatches runs, reads reports.

A queue is a list (nodes `LPUSH`, workers `BRPOP`) or a stream. All nodes of a fleet (an app of one ledger) read one
stream of reports as one consumer group: each report goes to one node, and to another one if it is not acknowledged in
time. `docs/reference/worker-contract.md` describes the keys.

The client has timeouts and no retries, because the outbox and the loops retry.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import msgspec
from redis.asyncio import Redis as Client
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, RedisError, ResponseError

from evertick.clock import Clock
from evertick.driver.queue.contract import Kill, dispatch_id, encode
from evertick.driver.queue.driver import (
    BATCH,
    IncomingReport,
    Queue,
    QueueDriver,
    broker_channel,
    envelope_of,
    push_in_batches,
    stamped,
    worker_command,
)
from evertick.driver.queue.spec import QUEUE_PREFIX, Redis, RedisConnection, redis_connection, warn_if_unencrypted
from evertick.driver.secret import Secret
from evertick.driver.spec import DriverParts
from evertick.errors import BrokerUnavailable
from evertick.model import ClaimedMessage
from evertick.text.redact import masked
from evertick.text.regular_file import open_regular

__all__ = [
    "CHANNEL",
    "FIELD",
    "KILL_CHANNEL",
    "NODES",
    "REMEMBER_SECONDS",
    "REPORTS_MAX",
    "WORKERS",
    "Entry",
    "RedisBroker",
    "RedisStream",
    "connect",
    "kill_key",
    "redis_driver",
    "reports_key",
    "taken_key",
    "unavailable_errors",
]

log = logging.getLogger("evertick.redis")

T = TypeVar("T")

CHANNEL = "redis"
# The field of an entry in a stream that holds the JSON.
FIELD: Final = "m"
# The consumer groups of nodes that read reports, and of workers that read a queue of kind stream. The group is also the
# name of its only consumer: Redis gives an entry to one reader anyway, and no dead consumers remain.
NODES: Final = "nodes"
WORKERS: Final = "workers"
KILL_CHANNEL: Final = "evertick:kill"
# How long marks (dispatch taken, dispatch cancelled) are kept: longer than a dispatch may wait for a worker.
REMEMBER_SECONDS: Final = 86_400
# The oldest unread reports are dropped beyond this number, to limit the memory of the server.
REPORTS_MAX: Final = 1_000_000
_CONNECT_SECONDS = 5.0
# Longer than any command blocks on the server.
_ANSWER_SECONDS = 15.0
# A connection that was idle for this time is checked before its use: firewalls drop idle connections.
_IDLE_SECONDS = 30
# Of the text of an error.
_TEXT_MAX_CHARS = 200
# An entry that its reader has not settled within this time goes to another reader.
UNACKNOWLEDGED_MS = 30_000
_CLAIM_UNSETTLED_SECONDS = 10.0


def taken_key(run: str, fence: int) -> str:
    return f"evertick:taken:{dispatch_id(run, fence)}"


def kill_key(run: str, fence: int) -> str:
    return f"evertick:kill:{dispatch_id(run, fence)}"


def reports_key(namespace: str, fleet: str) -> str:
    return f"{namespace}:reports:{fleet}"


# --- the connection


def connect(connection: RedisConnection, resolve_secret: Callable[[str], str]) -> Client:
    """Make a client. Its first command opens the connection."""
    warn_if_unencrypted(connection, log)
    options: dict[str, Any] = {}
    password = connection.password
    if password is not None:
        options["password"] = resolve_secret(password.name) if isinstance(password, Secret) else password
    if connection.username is not None:
        options["username"] = connection.username
    if connection.url.startswith("rediss:"):
        files = {"ssl_ca_certs": connection.ca, "ssl_certfile": connection.cert, "ssl_keyfile": connection.key}
        options |= {name: path for name, path in files.items() if path is not None}
        with unavailable_errors(connection):
            for path in filter(None, files.values()):
                os.close(open_regular(path))  # the ssl module would block on a named pipe
    return Client.from_url(
        connection.url,
        socket_connect_timeout=_CONNECT_SECONDS,
        socket_timeout=_ANSWER_SECONDS,
        health_check_interval=_IDLE_SECONDS,
        retry=Retry(NoBackoff(), 0),
        client_name="evertick",
        **options,
    )


@contextmanager
def unavailable_errors(connection: RedisConnection) -> Iterator[None]:
    """Converts errors of the library to `BrokerUnavailable`."""
    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        text, subject = str(error) or type(error).__name__, f"redis at {masked(connection.url)}"
        short = text if len(text) <= _TEXT_MAX_CHARS else f"{text[:_TEXT_MAX_CHARS]}…"
        if not isinstance(error, InvalidResponse):
            raise BrokerUnavailable(f"{subject}: {short}") from error
        is_nats = "INFO {" in text
        server = "a NATS server, whose URL begins with nats://" if is_nats else "not a Redis server"
        raise BrokerUnavailable(
            f"{subject}: this is {server} ({short})", setting="url", fix="correct host and port of the URL"
        ) from error


# --- streams


class Entry(msgspec.Struct, frozen=True):
    token: bytes
    data: bytes


class RedisStream:
    """One stream and one group. A missing group is created, also after the server lost its data."""

    def __init__(self, key: str, group: str, clock: Clock) -> None:
        self._key, self._group = key, group
        self._clock = clock
        # By `clock.elapsed`. Unsettled entries are rare, so reads seldom claim them.
        self._claim_unsettled_at = 0.0

    async def read(self, client: Client, most: int, seconds: float) -> list[Entry]:
        """Return up to `most` entries; wait up to `seconds` for the first."""
        try:
            unsettled = await self._unsettled(client, most)
            if len(unsettled) >= most:
                return unsettled
            return unsettled + await self._new(client, most - len(unsettled), None if unsettled else seconds)
        except ResponseError as error:
            if not str(error).startswith("NOGROUP"):
                raise
            await self._make_group(client)
            return await self._new(client, most, seconds)

    def settle(self, pipe: Any, *tokens: bytes) -> None:
        """Add commands to a pipeline that remove the entries."""
        pipe.xack(self._key, self._group, *tokens)
        pipe.xdel(self._key, *tokens)

    async def _new(self, client: Client, most: int, seconds: float | None) -> list[Entry]:
        block = None if seconds is None else max(round(seconds * 1000), 1)  # 0 would block without end
        answer = await client.xreadgroup(self._group, self._group, {self._key: ">"}, count=most, block=block)
        # By stream: a dict in RESP 3, pairs in RESP 2.
        streams = answer.values() if isinstance(answer, dict) else [entries for _, entries in answer or ()]
        return [entry for entries in streams for entry in _entries(entries)]

    async def _unsettled(self, client: Client, most: int) -> list[Entry]:
        now = self._clock.elapsed()
        if now < self._claim_unsettled_at:
            return []
        self._claim_unsettled_at = now + _CLAIM_UNSETTLED_SECONDS
        answer = await client.xautoclaim(self._key, self._group, self._group, UNACKNOWLEDGED_MS, count=most)
        entries = _entries(answer[1])
        if entries:
            self._claim_unsettled_at = now  # there may be more
        return entries

    async def _make_group(self, client: Client) -> None:
        try:
            await client.xgroup_create(self._key, self._group, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):  # another reader has created it
                raise


def _entries(answer: Any) -> list[Entry]:
    """The entries of an answer. RESP 3 nests them one level deeper; deleted entries have no fields."""
    entries = []
    for each in answer or ():
        pairs = [each] if isinstance(each, tuple) else each
        entries += [Entry(token, fields.get(FIELD.encode(), b"")) for token, fields in pairs if fields is not None]
    return entries


# --- the node's side


class RedisBroker:
    """A Redis server, for one fleet."""

    channel = CHANNEL

    def __init__(
        self, connection: RedisConnection, fleet: str, clock: Clock, resolve_secret: Callable[[str], str]
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._resolve_secret = resolve_secret
        self._reports = RedisStream(reports_key(connection.namespace, fleet), NODES, clock)
        self._client: Client | None = None

    @property
    def shown(self) -> str:
        return f"redis at {masked(self._connection.url)}"

    # --- to the workers

    async def push(self, messages: Sequence[ClaimedMessage]) -> list[Exception | None]:
        return await push_in_batches(messages, BATCH, self._push)

    async def _push(self, messages: Sequence[ClaimedMessage]) -> list[Exception | None]:
        """Send all messages in one round trip, with one command per list, so that a bad key fails only its queue."""
        queues: dict[tuple[str, str], list[int]] = {}
        bodies: list[bytes] = []
        now = self._clock.now_us()
        for number, message in enumerate(messages):
            envelope = envelope_of(message)
            queues.setdefault((envelope.kind, envelope.to), []).append(number)
            bodies.append(stamped(envelope, now))

        async def send(client: Client) -> list[tuple[list[int], object]]:
            async with client.pipeline(transaction=False) as pipe:
                owners: list[list[int]] = []
                for (kind, key), numbers in queues.items():
                    if kind == "list":
                        pipe.lpush(key, *(bodies[number] for number in numbers))
                        owners.append(numbers)
                    else:
                        for number in numbers:
                            pipe.xadd(key, {FIELD: bodies[number]})
                            owners.append([number])
                return list(zip(owners, await pipe.execute(raise_on_error=False), strict=True))

        answers: list[Exception | None] = [None] * len(messages)
        for numbers, answer in await self._asked(send):
            for number in numbers if isinstance(answer, Exception) else ():
                answers[number] = BrokerUnavailable(f"{self.shown}: {answer}")
        return answers

    async def kill(self, kills: Sequence[Kill]) -> None:
        """Set a key for a worker that takes the run later, and notify the worker that has it now."""
        if not kills:
            return

        async def send(client: Client) -> None:
            async with client.pipeline(transaction=False) as pipe:
                for kill in kills:
                    pipe.set(kill_key(kill.run, kill.fence), kill.why, ex=REMEMBER_SECONDS)
                    pipe.publish(KILL_CHANNEL, encode(kill))
                await pipe.execute()

        await self._asked(send)

    # --- from the workers

    async def read(self, most: int, seconds: float) -> list[IncomingReport]:
        entries = await self._asked(lambda client: self._reports.read(client, most, seconds))
        return [IncomingReport(entry.token, entry.data) for entry in entries]

    async def acknowledge(self, reports: Sequence[IncomingReport]) -> None:
        if not reports:
            return

        async def send(client: Client) -> None:
            async with client.pipeline(transaction=True) as pipe:
                self._reports.settle(pipe, *(report.token for report in reports))
                await pipe.execute()

        await self._asked(send)

    # --- the connection

    async def _asked(self, question: Callable[[Client], Awaitable[T]]) -> T:
        """The answer, retried once on a new connection: after a restart of the server, idle connections fail at their
        next use. Repeating any of these commands is safe, because a run that arrives twice is taken once."""
        with unavailable_errors(self._connection):
            client = self._connected()
            try:
                return await question(client)
            except RedisConnectionError:
                if client is not self._client:  # `close` was called
                    raise
                await client.connection_pool.disconnect(inuse_connections=False)
                return await question(client)

    def _connected(self) -> Client:
        if self._client is None:
            self._client = connect(self._connection, self._resolve_secret)
        return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


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
    return QueueDriver(spec, task, parts, queue, broker_channel(parts, CHANNEL, broker))
