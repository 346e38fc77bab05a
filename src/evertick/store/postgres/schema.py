"""Bringing the tables of a PostgreSQL schema up to date: numbered files, each applied once, in one transaction.

An advisory lock of that transaction is the lock: of ten processes that start at once one migrates and nine find it
done.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from evertick.clock import Clock
from evertick.errors import StoreRefused
from evertick.store.base import MigrateMode
from evertick.store.migrations import Migration, pending, read_migrations, refuse_newer
from evertick.store.postgres.connection import OLDEST, Connection
from evertick.store.postgres.location import Location
from evertick.store.postgres.queries import in_schema, quoted

__all__ = ["SCHEMA_VERSION", "check_version", "migrate", "migrations", "missing"]

SCHEMA_VERSION = 1

_FOLDER = Path(__file__).with_name("migrations")
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('evertick.migrations' || $1, 0))"
_HAS_TABLES = "SELECT FROM pg_catalog.pg_tables WHERE schemaname = $1 AND tablename = 'migrations'"


async def migrate(connection: Connection, where: Location, clock: Clock, mode: MigrateMode) -> list[str]:
    """Apply what is missing, or refuse: a changed migration, a store too new, or (mode check) anything missing.

    Answers the names of what was applied here.
    """
    check_version(connection, where)
    applied = []
    if await _missing(connection, where, mode):
        await connection.execute("BEGIN")
        try:
            await connection.execute(_LOCK, where.schema)
            # Another process may have been faster between the look and the lock.
            for migration in await _missing(connection, where, mode):
                await _apply(connection, where, clock, migration)
                applied.append(migration.name)
            await connection.execute("COMMIT")
        except Exception:
            if not connection.is_closed():
                await connection.execute("ROLLBACK")
            raise
    return applied


async def missing(connection: Connection, where: Location) -> list[str]:
    """The names of the migrations that the store lacks. Refuses what `migrate` refuses."""
    return [migration.name for migration in await _missing(connection, where, "auto")]


def check_version(connection: Connection, where: Location) -> None:
    version = connection.get_server_version()[0]
    if version < OLDEST:
        raise StoreRefused(f"the {where.description} is of version {version}; Evertick needs {OLDEST} or newer")


@cache
def migrations() -> tuple[Migration, ...]:
    return read_migrations(_FOLDER, SCHEMA_VERSION)


async def _missing(connection: Connection, where: Location, mode: MigrateMode) -> list[Migration]:
    applied: dict[int, str] = {}
    if await connection.fetch(_HAS_TABLES, where.schema):
        rows = await connection.fetch(in_schema("SELECT version, checksum FROM evertick.migrations", where.schema))
        applied = {row["version"]: row["checksum"] for row in rows}
        meta = await connection.fetchrow(in_schema("SELECT version, compatible_from FROM evertick.meta", where.schema))
        assert meta is not None, "made together with the list of migrations"
        refuse_newer(meta["version"], meta["compatible_from"], SCHEMA_VERSION, where.description)
    return pending(migrations(), applied, where.description, mode)


async def _apply(connection: Connection, where: Location, clock: Clock, migration: Migration) -> None:
    if migration.version == 1:
        await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(where.schema)}")
    await connection.execute(in_schema(migration.text, where.schema))
    insert = in_schema("INSERT INTO evertick.migrations VALUES ($1, $2, $3, evertick.now_us())", where.schema)
    await connection.execute(insert, migration.version, migration.name, migration.checksum)
    reached = (migration.version, migration.compatible_from)
    if migration.version == 1:
        first = in_schema("INSERT INTO evertick.meta VALUES ($3, $1, $2)", where.schema)
        await connection.execute(first, *reached, clock.new_token())
    else:
        update = in_schema("UPDATE evertick.meta SET version = $1, compatible_from = $2", where.schema)
        await connection.execute(update, *reached)
