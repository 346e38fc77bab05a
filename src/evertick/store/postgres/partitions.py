"""The days of history: a partition for each, made before its first run can end.

What has no partition of its day is in the default one, so nothing is ever refused. When a day gets its own, its rows
are moved there in the same transaction. Days that are over and empty are dropped. Nobody waits long for a lock here:
what could not be made now is made by the next upkeep. A role that may not make tables leaves everything in the default
partition, which works as well, only slower.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import asyncpg

from evertick.store.postgres.connection import Connection
from evertick.store.postgres.queries import in_schema
from evertick.when.moment import DAY, from_us

__all__ = ["keep_partitions"]

log = logging.getLogger("evertick.store")

# From the day before today, whose last runs may still end, to some days ahead.
_DAYS_BACK, _DAYS_AHEAD = 1, 3
# Emptied days that one upkeep drops at most.
_DROPPED_MOST = 10
_PREFIX = "history_"
# Whoever waits for a lock of a whole table holds up all that come after it.
_LOCK_MILLISECONDS = 200

_PARTITIONS = """
    SELECT c.relname AS name FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'evertick.history'::regclass AND c.relname <> 'history_default' ORDER BY c.relname"""
_TRY_LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended('evertick.partitions' || $1, 0)) AS is_mine"
# Attached only when it is full, so that what is moved is never missing; with a check that spares a scan of it.
_MAKE = """
    CREATE TABLE evertick.{name} (LIKE evertick.history INCLUDING DEFAULTS,
        CONSTRAINT {name}_day CHECK (fire_at >= {first} AND fire_at < {end}))
        WITH (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
    LOCK TABLE evertick.history_default IN ACCESS EXCLUSIVE MODE;
    WITH moved AS (
        DELETE FROM evertick.history_default WHERE fire_at >= {first} AND fire_at < {end} RETURNING *)
    INSERT INTO evertick.{name} SELECT * FROM moved;
    ALTER TABLE evertick.history ATTACH PARTITION evertick.{name} FOR VALUES FROM ({first}) TO ({end});
    ALTER TABLE evertick.{name} DROP CONSTRAINT {name}_day"""
_PASSING = (
    asyncpg.LockNotAvailableError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.DeadlockDetectedError,
    asyncpg.DuplicateTableError,
    asyncpg.ReadOnlySQLTransactionError,
)


async def keep_partitions(connection: Connection, schema: str) -> None:
    """Make the days to come, drop those that are over and empty."""
    now: int = (await connection.fetch(in_schema("SELECT evertick.now_us() AS now", schema)))[0]["now"]
    today = now // DAY
    known = await _known(connection, schema)
    missing = [day for day in range(today - _DAYS_BACK, today + _DAYS_AHEAD + 1) if _name(day) not in known]
    for day in missing:
        statement = _MAKE.format(name=_name(day), first=day * DAY, end=(day + 1) * DAY)
        if not await _change(connection, schema, statement, _name(day), is_to_be=True):
            return
    for name in await _empty(connection, schema, [name for name in known if name < _name(today - _DAYS_BACK)]):
        statement = f"ALTER TABLE evertick.history DETACH PARTITION evertick.{name}; DROP TABLE evertick.{name}"
        if not await _change(connection, schema, statement, name, is_to_be=False):
            return


def _name(day: int) -> str:
    return f"{_PREFIX}{from_us(day * DAY):%Y%m%d}"


async def _known(connection: Connection, schema: str) -> list[str]:
    return [row["name"] for row in await connection.fetch(in_schema(_PARTITIONS, schema))]


async def _empty(connection: Connection, schema: str, names: Sequence[str]) -> list[str]:
    return [
        name
        for name in names[:_DROPPED_MOST]
        if not await connection.fetch(in_schema(f"SELECT FROM evertick.{name} LIMIT 1", schema))
    ]


async def _change(connection: Connection, schema: str, statement: str, name: str, *, is_to_be: bool) -> bool:
    """In a transaction of its own; False: not now, somebody else is at it, or in the way."""
    await connection.execute("BEGIN")
    try:
        await connection.execute(f"SET LOCAL lock_timeout = {_LOCK_MILLISECONDS}")
        is_mine = (await connection.fetch(_TRY_LOCK, schema))[0]["is_mine"]
        is_wanted = is_mine and (name in await _known(connection, schema)) is not is_to_be
        # Between the look and a drop, a run of that day may have ended.
        if is_wanted and (is_to_be or await _empty(connection, schema, [name])):
            await connection.execute(in_schema(statement, schema))
        await connection.execute("COMMIT")
    except _PASSING as error:
        await connection.execute("ROLLBACK")
        log.info("the partition %s was not %s for now: %s", name, "made" if is_to_be else "dropped", error)
        return False
    except Exception:
        if not connection.is_closed():
            await connection.execute("ROLLBACK")
        raise
    return bool(is_mine)
