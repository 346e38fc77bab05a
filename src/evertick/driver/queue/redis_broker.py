"""Redis as a node uses it: runs go out, reports come back.

A queue is a list (`LPUSH` here, `BRPOP` there) or a stream. Reports come back by a stream that all nodes of a
fleet, which is an app of one ledger, read as one group: each report goes to one of them, and to another if that one
does not acknowledge it in time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import redis.exceptions
from redis.asyncio import Redis as Client

from evertick.clock import Clock
from evertick.driver.queue.broker import BATCH, Incoming, envelope_of, stamped
from evertick.driver.queue.contract import Kill, encode
from evertick.driver.queue.redis_client import connect, telling_of_redis
from evertick.driver.queue.redis_keys import FIELD, KILL_CHANNEL, NODES, REMEMBER_SECONDS, kill_key, reports_key
from evertick.driver.queue.redis_spec import RedisConnection
from evertick.driver.queue.redis_stream import RedisStream
from evertick.errors import BrokerUnavailable
from evertick.model import ClaimedMessage
from evertick.text.redact import masked

__all__ = ["CHANNEL", "RedisBroker"]

CHANNEL = "redis"

T = TypeVar("T")


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
        answers: list[Exception | None] = []
        for first in range(0, len(messages), BATCH):
            batch = messages[first : first + BATCH]
            try:
                answers += await self._push(batch)
            except BrokerUnavailable as error:
                # It would be away for the others as well; each try would take its time.
                return answers + [error] * (len(messages) - len(answers))
        return answers

    async def _push(self, messages: Sequence[ClaimedMessage]) -> list[Exception | None]:
        """One journey. All that goes to one queue is one command, so that one wrong key spoils nobody else's."""
        queues: dict[tuple[str, str], list[int]] = {}
        bodies: list[bytes] = []
        now = self._clock.now_us()
        for number, message in enumerate(messages):
            parcel = envelope_of(message)
            queues.setdefault((parcel.kind, parcel.to), []).append(number)
            bodies.append(stamped(parcel, now))

        async def journey(client: Client) -> list[tuple[list[int], object]]:
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
        for numbers, answer in await self._asked(journey):
            for number in numbers if isinstance(answer, Exception) else ():
                answers[number] = BrokerUnavailable(f"{self.shown}: {answer}")
        return answers

    async def kill(self, kills: Sequence[Kill]) -> None:
        """A key for whoever takes it later, a word for whoever has it now."""
        if not kills:
            return

        async def journey(client: Client) -> None:
            async with client.pipeline(transaction=False) as pipe:
                for kill in kills:
                    pipe.set(kill_key(kill.run, kill.fence), kill.why, ex=REMEMBER_SECONDS)
                    pipe.publish(KILL_CHANNEL, encode(kill))
                await pipe.execute()

        await self._asked(journey)

    # --- from the workers

    async def read(self, most: int, seconds: float) -> list[Incoming]:
        entries = await self._asked(lambda client: self._reports.read(client, most, seconds))
        return [Incoming(entry.token, entry.data) for entry in entries]

    async def acknowledge(self, reports: Sequence[Incoming]) -> None:
        if not reports:
            return

        async def journey(client: Client) -> None:
            async with client.pipeline(transaction=True) as pipe:
                self._reports.settle(pipe, *(report.token for report in reports))
                await pipe.execute()

        await self._asked(journey)

    # --- the line

    async def _asked(self, question: Callable[[Client], Awaitable[T]]) -> T:
        """The answer. On a line that broke it is asked once more, at once, on a new one: after a restart of the server
        the lines that lay idle are dead, and nothing tells so before they are used. All that a node asks may be asked
        twice: a run that arrives twice is taken once."""
        with telling_of_redis(self._connection):
            client = self._connected()
            try:
                return await question(client)
            except redis.exceptions.ConnectionError:
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
