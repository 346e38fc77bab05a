"""A worker's session with a queue in Redis."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from redis.asyncio import Redis as Client
from redis.exceptions import RedisError, ResponseError

from evertick.aio.cancel import cancel_reliably
from evertick.clock import Clock
from evertick.driver.queue.contract import DispatchMessage, Kill, WorkerReport, decode_kill, encode
from evertick.driver.queue.redis_broker import (
    FIELD,
    KILL_CHANNEL,
    REMEMBER_SECONDS,
    REPORTS_MAX,
    WORKERS,
    RedisStream,
    connect,
    kill_key,
    taken_key,
    unavailable_errors,
)
from evertick.driver.queue.spec import QUEUE_PREFIX, RedisConnection
from evertick.errors import InvalidInput
from evertick.text.redact import masked
from evertick.worker.broker_session import QueueMessage, Take

__all__ = ["RedisBrokerSession"]

log = logging.getLogger("evertick.worker")

_LISTEN_AGAIN_SECONDS = 1.0
_CANCEL_SECONDS = 5.0


class RedisBrokerSession:
    """One worker's session with one queue."""

    def __init__(
        self,
        connection: RedisConnection,
        queue: str,
        *,
        clock: Clock,
        kind: Literal["list", "stream"] = "list",
        prefix: str = QUEUE_PREFIX,
        resolve_secret: Callable[[str], str],
    ) -> None:
        self._connection = connection
        self._key = f"{prefix}{queue}"
        self._stream = RedisStream(self._key, WORKERS, clock) if kind == "stream" else None
        self._name = clock.new_token()
        self._count = 0
        self._client: Client = connect(connection, resolve_secret)
        self._listener: asyncio.Task[None] | None = None
        self.on_kill: Callable[[Kill], None] = lambda _: None

    @property
    def shown(self) -> str:
        return f"{self._key} in redis at {masked(self._connection.url)}"

    async def open(self) -> None:
        with unavailable_errors(self._connection):
            await self._client.ping()
        if self._listener is None:
            self._listener = asyncio.get_running_loop().create_task(self._listen(), name="evertick kills")

    async def close(self) -> None:
        if self._listener is not None:
            await cancel_reliably([self._listener], seconds=_CANCEL_SECONDS)
            self._listener = None
        await self._client.aclose()

    # --- out of the queue

    async def fetch(self, most: int, seconds: float) -> list[QueueMessage]:
        with unavailable_errors(self._connection), self._wrong_kind_errors():
            if self._stream is None:
                return await self._pop(most, seconds)
            entries = await self._stream.read(self._client, most, seconds)
            return [self._marked(entry.data, entry.token) for entry in entries]

    @contextmanager
    def _wrong_kind_errors(self) -> Iterator[None]:
        """Name the fix if the queue is of the other kind, which the error of Redis does not."""
        try:
            yield
        except ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            if self._stream is None:
                what = f'key {self._key} is not a list; if its jobs have kind = "stream", add --stream'
            else:
                what = f'key {self._key} is not a stream; if its jobs have kind = "list", remove --stream'
            raise ResponseError(what) from error

    async def _pop(self, most: int, seconds: float) -> list[QueueMessage]:
        first: Any = await self._client.brpop([self._key], timeout=seconds)
        if first is None:
            return []
        # If this fails, the ledger dispatches the lost messages again; the first one is kept.
        found = [self._marked(first[1])]
        if most > 1:
            with contextlib.suppress(RedisError, OSError):
                more: Any = await self._client.rpop(self._key, most - 1)
                found += [self._marked(data) for data in more or ()]
        return found

    def _marked(self, data: bytes, token: Any = None) -> QueueMessage:
        self._count += 1
        return QueueMessage(data, token, f"{self._name}:{self._count}")

    async def take(self, message: QueueMessage, dispatched: DispatchMessage) -> Take:
        key = taken_key(dispatched.run, dispatched.fence)
        with unavailable_errors(self._connection):
            async with self._client.pipeline(transaction=True) as pipe:
                pipe.set(key, message.mark, nx=True, ex=REMEMBER_SECONDS)
                pipe.get(key)
                pipe.exists(kill_key(dispatched.run, dispatched.fence))
                self._forget(pipe, message)
                _, holder, is_killed, *_ = await pipe.execute()
        if holder != message.mark.encode():
            return "duplicate"
        return "killed" if is_killed else "taken"

    async def drop(self, message: QueueMessage) -> None:
        if self._stream is not None:
            with unavailable_errors(self._connection):
                async with self._client.pipeline(transaction=True) as pipe:
                    self._forget(pipe, message)
                    await pipe.execute()

    async def give_back(self, message: QueueMessage) -> None:
        with unavailable_errors(self._connection):
            async with self._client.pipeline(transaction=True) as pipe:
                if self._stream is None:
                    pipe.rpush(self._key, message.data)  # at the end that is popped
                else:
                    pipe.xadd(self._key, {FIELD: message.data})
                self._forget(pipe, message)
                await pipe.execute()

    def _forget(self, pipe: Any, message: QueueMessage) -> None:
        """Remove the message from a stream; a list no longer has it."""
        if self._stream is not None:
            self._stream.settle(pipe, message.token)

    # --- back to the ledger

    async def report(self, dispatched: DispatchMessage, report: WorkerReport) -> bool:
        with unavailable_errors(self._connection):
            async with self._client.pipeline(transaction=False) as pipe:
                if dispatched.reply is not None:
                    pipe.xadd(dispatched.reply, {FIELD: encode(report)}, maxlen=REPORTS_MAX, approximate=True)
                pipe.exists(kill_key(dispatched.run, dispatched.fence))
                answers = await pipe.execute()
        return not answers[-1]

    # --- kills

    async def _listen(self) -> None:
        """Receive cancels. A missed one is only noticed later, by the answer to the next report."""
        while True:
            try:
                async with self._client.pubsub(ignore_subscribe_messages=True) as pubsub:
                    await pubsub.subscribe(KILL_CHANNEL)
                    while True:
                        message = await pubsub.get_message(timeout=5.0)
                        if message is not None:
                            self._on_message(message["data"])
            except (RedisError, OSError) as error:
                log.debug("channel %s: receiving cancels failed, retrying: %s", KILL_CHANNEL, error)
                await asyncio.sleep(_LISTEN_AGAIN_SECONDS)

    def _on_message(self, data: bytes) -> None:
        try:
            self.on_kill(decode_kill(data))
        except InvalidInput as error:
            log.warning("channel %s: unreadable cancel message ignored: %s", KILL_CHANNEL, error)
