"""Redis for nodes and workers: keys, connection, streams; and as a node uses it: runs go out, reports come back.

A queue is a list (`LPUSH` here, `BRPOP` there) or a stream. Reports come back by a stream that all nodes of a
fleet, which is an app of one ledger, read as one group: each report goes to one of them, and to another if that one
does not acknowledge it in time. `docs/reference/worker-contract.md` has the keys in words.

The client has bounded waits and no retries of its own: the outbox has its retry policy, loops have their backoff.
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
from evertick.driver.queue.contract import Kill, encode, pair_of
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
    "REPORTS_MOST",
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
# Consumer groups: of the nodes that read reports, of the workers that read a queue that is a stream. All members of a
# group go by its name: an entry goes to one of them anyway, and those that are gone leave nothing behind.
NODES: Final = "nodes"
WORKERS: Final = "workers"
KILL_CHANNEL: Final = "evertick:kill"
# How long it is known that a dispatch was taken, or is not wanted any more: longer than any may wait to be taken.
REMEMBER_SECONDS: Final = 86_400
# Unread reports are dropped at some time, the oldest first, before they fill the memory of the server.
REPORTS_MOST: Final = 1_000_000
_CONNECT_SECONDS = 5.0
# Longer than any command here may block on the server.
_ANSWER_SECONDS = 15.0
# A connection that was idle for so long is checked before its use: firewalls forget.
_SILENT_SECONDS = 30
# Of the text of an error.
_TEXT_MAX_CHARS = 200
# An entry that its reader has not settled for so long goes to another.
UNSETTLED_MS = 30_000
_LOOK_FOR_UNSETTLED_SECONDS = 10.0


def taken_key(run: str, fence: int) -> str:
    return f"evertick:taken:{pair_of(run, fence)}"


def kill_key(run: str, fence: int) -> str:
    return f"evertick:kill:{pair_of(run, fence)}"


def reports_key(namespace: str, fleet: str) -> str:
    return f"{namespace}:reports:{fleet}"


# --- the connection


def connect(connection: RedisConnection, resolve_secret: Callable[[str], str]) -> Client:
    """Nothing is opened yet; the first command does."""
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
                os.close(open_regular(path))  # the library would wait for a pipe
    return Client.from_url(
        connection.url,
        socket_connect_timeout=_CONNECT_SECONDS,
        socket_timeout=_ANSWER_SECONDS,
        health_check_interval=_SILENT_SECONDS,
        retry=Retry(NoBackoff(), 0),
        client_name="evertick",
        **options,
    )


@contextmanager
def unavailable_errors(connection: RedisConnection) -> Iterator[None]:
    """Raises errors of the library as `BrokerUnavailable`."""
    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        raise BrokerUnavailable(f"redis at {masked(connection.url)}: {_shortened(error)}") from error


def _shortened(error: Exception) -> str:
    """Another server than Redis may answer with anything."""
    text = str(error) or type(error).__name__
    if isinstance(error, InvalidResponse):
        is_nats = "INFO {" in text
        whose = "a NATS server answers there, whose URL begins with nats://" if is_nats else "no Redis answers there"
        return f"{whose}: check host and port of the URL ({text[:_TEXT_MAX_CHARS]}…)"
    return text if len(text) <= _TEXT_MAX_CHARS else f"{text[:_TEXT_MAX_CHARS]}…"


# --- streams


class Entry(msgspec.Struct, frozen=True):
    token: bytes
    data: bytes


class RedisStream:
    """One stream and one group. The group is made when it is found missing: also after a server came back empty."""

    def __init__(self, key: str, group: str, clock: Clock) -> None:
        self._key, self._group = key, group
        self._clock = clock
        # By `clock.elapsed`. Now and then: it is rare that something is left.
        self._look_for_unsettled_at = 0.0

    async def read(self, client: Client, most: int, seconds: float) -> list[Entry]:
        """At most so many, and fewer only if there are no more. Waits so long for the first."""
        try:
            left = await self._unsettled(client, most)
            if len(left) >= most:
                return left
            return left + await self._new(client, most - len(left), None if left else seconds)
        except ResponseError as error:
            if not str(error).startswith("NOGROUP"):
                raise
            await self._make_group(client)
            return await self._new(client, most, seconds)

    def settle(self, pipe: Any, *tokens: bytes) -> None:
        """With the other commands of a pipeline: remove the entries."""
        pipe.xack(self._key, self._group, *tokens)
        pipe.xdel(self._key, *tokens)

    async def _new(self, client: Client, most: int, seconds: float | None) -> list[Entry]:
        block = None if seconds is None else max(round(seconds * 1000), 1)  # 0 would be for ever
        found = await client.xreadgroup(self._group, self._group, {self._key: ">"}, count=most, block=block)
        # By stream: a dict in RESP 3, pairs in RESP 2.
        streams = found.values() if isinstance(found, dict) else [entries for _, entries in found or ()]
        return [entry for entries in streams for entry in _entries(entries)]

    async def _unsettled(self, client: Client, most: int) -> list[Entry]:
        now = self._clock.elapsed()
        if now < self._look_for_unsettled_at:
            return []
        self._look_for_unsettled_at = now + _LOOK_FOR_UNSETTLED_SECONDS
        answer = await client.xautoclaim(self._key, self._group, self._group, UNSETTLED_MS, count=most)
        found = _entries(answer[1])
        if found:
            self._look_for_unsettled_at = now  # there may be more
        return found

    async def _make_group(self, client: Client) -> None:
        try:
            await client.xgroup_create(self._key, self._group, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):  # another was faster
                raise


def _entries(answer: Any) -> list[Entry]:
    """RESP 3 has one more level around them; one that was deleted meanwhile has no fields."""
    found = []
    for each in answer or ():
        pairs = [each] if isinstance(each, tuple) else each
        found += [Entry(token, fields.get(FIELD.encode(), b"")) for token, fields in pairs if fields is not None]
    return found


# --- the node's side


class RedisBroker:
    """One Redis, for one fleet."""

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
        """One round trip. All for one queue is one command, so that a wrong key fails no other queue."""
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
        """A key for the worker that takes it later, a message for the one that has it now."""
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
        """The answer; on a connection that broke asked once more, at once, on a new one: after a restart of the server
        idle connections are dead, which shows only when they are used. All that a node asks may be asked twice: a run
        that arrives twice is taken once."""
        with unavailable_errors(self._connection):
            client = self._connected()
            try:
                return await question(client)
            except RedisConnectionError:
                if client is not self._client:  # we closed it ourselves
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
