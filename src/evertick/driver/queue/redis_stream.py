"""A stream in Redis that several programs read as one: each entry goes to one of them, and to another if that one has
not settled it in time. Used for reports by nodes, and for queues by workers."""

from __future__ import annotations

from typing import Any

import msgspec
from redis.asyncio import Redis as Client
from redis.exceptions import ResponseError

from evertick.clock import Clock
from evertick.driver.queue.redis_keys import FIELD

__all__ = ["Entry", "RedisStream"]

# An entry that its reader has not settled for so long goes to another: the reader is gone, or cannot.
UNSETTLED_MS = 30_000
_LOOK_FOR_UNSETTLED_SECONDS = 10.0


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
        """With the other commands of a pipeline: nobody gets them any more."""
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
        said = await client.xautoclaim(self._key, self._group, self._group, UNSETTLED_MS, count=most)
        found = _entries(said[1])
        if found:
            self._look_for_unsettled_at = now  # there may be more
        return found

    async def _make_group(self, client: Client) -> None:
        try:
            await client.xgroup_create(self._key, self._group, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):  # another was faster
                raise


def _entries(said: Any) -> list[Entry]:
    """RESP 3 has one more level around them; one that was deleted meanwhile has no fields."""
    found = []
    for each in said or ():
        pairs = [each] if isinstance(each, tuple) else each
        found += [Entry(token, fields.get(FIELD.encode(), b"")) for token, fields in pairs if fields is not None]
    return found
