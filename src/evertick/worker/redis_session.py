"""A worker's line to a queue in Redis."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from redis.asyncio import Redis as Client
from redis.exceptions import RedisError, ResponseError

from evertick.aio.cancel import cancel_until_over
from evertick.clock import Clock
from evertick.driver.queue.contract import DispatchMessage, Kill, WorkerReport, decode_kill, encode
from evertick.driver.queue.redis_client import connect, telling_of_redis
from evertick.driver.queue.redis_keys import (
    FIELD,
    KILL_CHANNEL,
    REMEMBER_SECONDS,
    REPORTS_MOST,
    WORKERS,
    kill_key,
    taken_key,
)
from evertick.driver.queue.redis_spec import QUEUE_PREFIX, RedisConnection
from evertick.driver.queue.redis_stream import RedisStream
from evertick.errors import InvalidInput
from evertick.text.redact import masked
from evertick.worker.broker_session import Fetched, Take

__all__ = ["RedisBrokerSession"]

log = logging.getLogger("evertick.worker")

_LISTEN_AGAIN_SECONDS = 1.0
_LAST_WORDS_SECONDS = 5.0


class RedisBrokerSession:
    """One queue, as one worker reads it."""

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
        self._fetched = 0
        self._client: Client = connect(connection, resolve_secret)
        self._listener: asyncio.Task[None] | None = None
        self.on_kill: Callable[[Kill], None] = lambda _: None

    @property
    def shown(self) -> str:
        return f"{self._key} in redis at {masked(self._connection.url)}"

    async def open(self) -> None:
        with telling_of_redis(self._connection):
            await self._client.ping()
        if self._listener is None:
            self._listener = asyncio.get_running_loop().create_task(self._listen(), name="evertick kills")

    async def close(self) -> None:
        if self._listener is not None:
            await cancel_until_over([self._listener], seconds=_LAST_WORDS_SECONDS)
            self._listener = None
        await self._client.aclose()

    # --- out of the queue

    async def fetch(self, most: int, seconds: float) -> list[Fetched]:
        with telling_of_redis(self._connection), self._telling_of_kind():
            if self._stream is None:
                return await self._pop(most, seconds)
            entries = await self._stream.read(self._client, most, seconds)
            return [self._marked(entry.data, entry.token) for entry in entries]

    @contextmanager
    def _telling_of_kind(self) -> Iterator[None]:
        """A queue of the other kind is no outage, and the words of Redis do not name the fix."""
        try:
            yield
        except ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            if self._stream is None:
                what = 'a list is wanted, and the key is none; where its jobs have kind = "stream", say --stream'
            else:
                what = 'a stream is wanted, and the key is none; where its jobs have kind = "list", leave out --stream'
            raise ResponseError(what) from error

    async def _pop(self, most: int, seconds: float) -> list[Fetched]:
        first: Any = await self._client.brpop([self._key], timeout=seconds)
        if first is None:
            return []
        # What comes with an error now is lost here, and comes again by the ledger; the first must not be.
        found = [self._marked(first[1])]
        if most > 1:
            with contextlib.suppress(RedisError, OSError):
                more: Any = await self._client.rpop(self._key, most - 1)
                found += [self._marked(data) for data in more or ()]
        return found

    def _marked(self, data: bytes, token: Any = None) -> Fetched:
        self._fetched += 1
        return Fetched(data, token, f"{self._name}:{self._fetched}")

    async def take(self, fetched: Fetched, dispatched: DispatchMessage) -> Take:
        key = taken_key(dispatched.run, dispatched.fence)
        with telling_of_redis(self._connection):
            async with self._client.pipeline(transaction=True) as pipe:
                pipe.set(key, fetched.mark, nx=True, ex=REMEMBER_SECONDS)
                pipe.get(key)
                pipe.exists(kill_key(dispatched.run, dispatched.fence))
                self._forget(pipe, fetched)
                _, holder, is_killed, *_ = await pipe.execute()
        if holder != fetched.mark.encode():
            return "duplicate"
        return "killed" if is_killed else "taken"

    async def drop(self, fetched: Fetched) -> None:
        if self._stream is not None:
            with telling_of_redis(self._connection):
                async with self._client.pipeline(transaction=True) as pipe:
                    self._forget(pipe, fetched)
                    await pipe.execute()

    async def give_back(self, fetched: Fetched) -> None:
        with telling_of_redis(self._connection):
            async with self._client.pipeline(transaction=True) as pipe:
                if self._stream is None:
                    pipe.rpush(self._key, fetched.data)  # the next to be popped
                else:
                    pipe.xadd(self._key, {FIELD: fetched.data})
                self._forget(pipe, fetched)
                await pipe.execute()

    def _forget(self, pipe: Any, fetched: Fetched) -> None:
        """A list has forgotten it already."""
        if self._stream is not None:
            self._stream.settle(pipe, fetched.token)

    # --- back to the ledger

    async def report(self, dispatched: DispatchMessage, report: WorkerReport) -> bool:
        with telling_of_redis(self._connection):
            async with self._client.pipeline(transaction=False) as pipe:
                if dispatched.reply is not None:
                    pipe.xadd(dispatched.reply, {FIELD: encode(report)}, maxlen=REPORTS_MOST, approximate=True)
                pipe.exists(kill_key(dispatched.run, dispatched.fence))
                said = await pipe.execute()
        return not said[-1]

    # --- kills

    async def _listen(self) -> None:
        """Hear of kills as they are said. Missing one costs time, no more: every report asks for the key."""
        while True:
            try:
                async with self._client.pubsub(ignore_subscribe_messages=True) as said:
                    await said.subscribe(KILL_CHANNEL)
                    while True:
                        message = await said.get_message(timeout=5.0)
                        if message is not None:
                            self._heard(message["data"])
            except (RedisError, OSError) as error:
                log.debug("kills are not heard: %s", error)
                await asyncio.sleep(_LISTEN_AGAIN_SECONDS)

    def _heard(self, data: bytes) -> None:
        try:
            self.on_kill(decode_kill(data))
        except InvalidInput as error:
            log.warning("on %s: %s", KILL_CHANNEL, error)
