"""The days of history, attempts and log lines: one partition per day, created before its first run can end, and dropped
whole.

Rows without a partition of their day are in the default one, so no row is ever refused. When a day gets its partition,
its rows are moved there in the same transaction. Any node creates the coming days; of several at once, one does it.

A day is dropped when no app in it keeps it any more, because all apps of a database share the days. Runs that ended
more than a day after their moment may be kept longer than the day; a day with such a run stays, and its old rows are
deleted one by one. So are those of the default partition.

A drop locks the parent tables exclusively for some milliseconds, for a day of any size. DETACH CONCURRENTLY would not,
but the server refuses it if there is a default partition. No statement here waits long for a lock, because all later
statements would wait behind it; the next upkeep tries again. A role that may not create tables leaves all rows in the
default partition, which works too, but is slower.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from datetime import date
from functools import partial

import asyncpg

from evertick.store.postgres.connection import BEGIN, Connection, in_schema, quoted, statements_for
from evertick.when.moment import DAY, from_us

__all__ = ["delete_rows_before", "drop_days", "keep_partitions"]

log = logging.getLogger("evertick.store")

# In lock order: that of a retry, which writes an attempt before history.
_PARENTS = ("log_chunks", "attempts", "history")
# From yesterday, whose last runs may still end, to some days ahead.
_DAYS_BACK, _DAYS_AHEAD = 1, 3
# Days that one upkeep drops, at most.
_DROPPED_MOST = 10
# A run that ends later than this after its moment may outlive its day; the index `history_late` has those.
_LATE = DAY
# A transaction that waits for the lock of a whole table blocks all later statements on it.
_LOCK_MILLISECONDS = 200

# Attached after the rows were moved, so that none is ever missing. The check constraint avoids a scan of the partition.
_MAKE = """
    CREATE TABLE evertick.{name} (LIKE evertick.{parent} INCLUDING DEFAULTS,
        CONSTRAINT {name}_day CHECK (fire_at >= {first} AND fire_at < {end}))
        WITH (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
    LOCK TABLE evertick.{parent}_default IN ACCESS EXCLUSIVE MODE;
    WITH moved AS (
        DELETE FROM evertick.{parent}_default WHERE fire_at >= {first} AND fire_at < {end} RETURNING *)
    INSERT INTO evertick.{name} SELECT * FROM moved;
    ALTER TABLE evertick.{parent} ATTACH PARTITION evertick.{name} FOR VALUES FROM ({first}) TO ({end});
    ALTER TABLE evertick.{name} DROP CONSTRAINT {name}_day;
"""
# Only the parent, because every write to a partition locks it first.
_LOCK = "LOCK TABLE ONLY evertick.{parent} IN ACCESS EXCLUSIVE MODE;"
_DROP = "DROP TABLE IF EXISTS evertick.{name};"
_STAMP = re.compile(r"\d{8}")
_TRANSIENT = (
    asyncpg.LockNotAvailableError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.DeadlockDetectedError,
    asyncpg.DuplicateTableError,
    asyncpg.ReadOnlySQLTransactionError,
)


def delete_rows_before(before: int, now: int) -> int:
    """Up to which moment rows are deleted one by one; days that are soon dropped whole are left to that."""
    if before > (now // DAY - _DAYS_BACK) * DAY:
        # History is kept for so short a time that whole days would keep much more.
        return before
    return (before - _LATE) // DAY * DAY


async def keep_partitions(connection: Connection, schema: str) -> None:
    """Create the coming days."""
    days = Days(connection, schema)
    today = await days.today()
    wanted = range(today - _DAYS_BACK, today + _DAYS_AHEAD + 1)
    for parent in _PARENTS:
        if await days.missing(parent, wanted):
            await days.change(partial(days.make, parent, wanted), f"days of {parent} were not made")


async def drop_days(connection: Connection, schema: str, app: str, before: int) -> None:
    """Drop days that are completely before, unless another app keeps them. Oldest first, a bounded number."""
    days = Days(connection, schema)
    first_left = min((before - _LATE) // DAY, await days.today() - _DAYS_BACK)
    old = [day for day in await days.known("history") if day < first_left]
    if not old:
        return
    await days.keep_from(app, before)
    dropped = 0
    for day in old:
        if dropped == _DROPPED_MOST:
            return
        if not await days.is_kept(day):
            if not await days.change(partial(days.drop, day), f"the history of {_stamp(day)} was not dropped"):
                return
            dropped += 1


class Days:
    """The days of a schema, counted from 1970, on one connection."""

    def __init__(self, connection: Connection, schema: str) -> None:
        self._connection = connection
        self._schema = schema
        self._sql = statements_for(schema)

    async def today(self) -> int:
        now: int = (await self._connection.fetch(self._sql["now"]))[0]["now"]
        return now // DAY

    async def known(self, parent: str) -> list[int]:
        rows = await self._connection.fetch(self._sql["partitions"], f"{quoted(self._schema)}.{parent}")
        stamps = [row["name"].removeprefix(f"{parent}_") for row in rows]
        return sorted(_day(stamp) for stamp in stamps if _STAMP.fullmatch(stamp))

    async def missing(self, parent: str, wanted: Iterable[int]) -> list[int]:
        known = set(await self.known(parent))
        return [day for day in wanted if day not in known]

    async def make(self, parent: str, wanted: Iterable[int]) -> None:
        for day in await self.missing(parent, wanted):
            name = f"{parent}_{_stamp(day)}"
            await self._execute(_MAKE.format(name=name, parent=parent, first=day * DAY, end=(day + 1) * DAY))

    async def keep_from(self, app: str, moment: int) -> None:
        await self._connection.execute(self._sql["partitions.keep_from"], app, moment)

    async def is_kept(self, day: int) -> bool:
        first, end = day * DAY, (day + 1) * DAY
        rows = await self._connection.fetch(self._sql["partitions.is_kept"], first, end, end + _LATE)
        return bool(rows[0]["is_kept"])

    async def drop(self, day: int) -> None:
        await self._execute("".join(_LOCK.format(parent=parent) for parent in _PARENTS))
        # A run of that day may have ended since the first check.
        if not await self.is_kept(day):
            await self._execute("".join(_DROP.format(name=f"{parent}_{_stamp(day)}") for parent in _PARENTS))

    async def change(self, act: Callable[[], Awaitable[None]], undone: str) -> bool:
        """In its own transaction. False: another transaction does it now, or blocks it."""
        await self._connection.execute(BEGIN)
        try:
            await self._connection.execute(f"SET LOCAL lock_timeout = {_LOCK_MILLISECONDS}")
            is_mine = (await self._connection.fetch(self._sql["partitions.lock"], self._schema))[0]["is_mine"]
            if is_mine:
                await act()
            await self._connection.execute("COMMIT")
        except _TRANSIENT as error:
            await self._connection.execute("ROLLBACK")
            log.info("partitions: %s; trying again later: %s", undone, error)
            return False
        except Exception:
            if not self._connection.is_closed():
                await self._connection.execute("ROLLBACK")
            raise
        return bool(is_mine)

    async def _execute(self, text: str) -> None:
        await self._connection.execute(in_schema(text, self._schema))


def _stamp(day: int) -> str:
    return f"{from_us(day * DAY):%Y%m%d}"


def _day(stamp: str) -> int:
    return (date(int(stamp[:4]), int(stamp[4:6]), int(stamp[6:])) - date(1970, 1, 1)).days
