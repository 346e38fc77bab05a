"""Migrations of a PostgreSQL schema: each is applied once, all missing ones in one transaction.

The lock is an advisory lock of that transaction: of several processes that start at once, one migrates and the others
find it done. `store/sql_files.py` has the rules for checksums and `compatible_from`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import asyncpg

from evertick.clock import Clock
from evertick.errors import StoreRefused
from evertick.store.base import MigrateMode
from evertick.store.postgres.connection import BEGIN, OLDEST, Connection, in_schema, quoted
from evertick.store.postgres.location import Location
from evertick.store.sql_files import Migration, pending, read_migrations, refuse_newer, without_meta, without_migrations

__all__ = ["MIGRATE_SECONDS", "OBJECTS", "SCHEMA_VERSION", "check_server", "migrate", "migrations", "missing"]

SCHEMA_VERSION = 1
# A migration may take longer than any other intent, and so may the wait for a process that migrates.
MIGRATE_SECONDS = 300.0

_FOLDER = Path(__file__).with_name("migrations")
# All objects that the migrations create, one per line.
OBJECTS = _FOLDER / "objects.txt"
_ENCODING = "UTF8"
# The timeouts of other intents do not apply.
_BEGIN = (
    f"{BEGIN}; SET LOCAL statement_timeout = {MIGRATE_SECONDS * 1000:.0f}; "
    "SET LOCAL idle_in_transaction_session_timeout = 0"
)
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('evertick.migrations' || $1, 0))"
_PRIVILEGES = """
    SELECT current_user AS "user", current_database() AS database, n.oid IS NOT NULL AS has_schema,
        CASE WHEN n.oid IS NULL THEN has_database_privilege(current_database(), 'CREATE')
            ELSE has_schema_privilege(n.oid, 'CREATE') END AS may_create
    FROM (SELECT 1) AS one LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = $1
"""
# A table, function or type of that name exists in a schema without our list of migrations.
_FOREIGN = (asyncpg.DuplicateTableError, asyncpg.DuplicateFunctionError, asyncpg.DuplicateObjectError)
# In one statement, because another process may be creating both: the list, and the table with the id of the store.
_TABLES = """
    SELECT EXISTS (SELECT FROM pg_catalog.pg_tables WHERE schemaname = $1 AND tablename = 'migrations') AS has_list,
        EXISTS (SELECT FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
            JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = $1 AND c.relname = 'meta' AND a.attname = 'store_id') AS is_ours
"""


async def migrate(connection: Connection, where: Location, clock: Clock, mode: MigrateMode) -> list[str]:
    """Apply missing migrations; returns their names. Refuses a changed migration, a newer store and, in mode check, a
    missing migration."""
    check_server(connection, where)
    applied = []
    if await _missing(connection, where, mode):
        await connection.execute(_BEGIN)
        try:
            await connection.execute(_LOCK, where.schema)
            # Another process may have applied them before this one had the lock.
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
    """The names of the missing migrations. Refuses the same as `migrate`."""
    return [migration.name for migration in await _missing(connection, where, "auto")]


def check_server(connection: Connection, where: Location) -> None:
    """Refuse a server that is too old, and a database that cannot store every text."""
    version = connection.get_server_version()[0]
    if version < OLDEST:
        raise StoreRefused(
            f"the {where.description} has version {version}, and Evertick needs {OLDEST} or newer",
            fix="use a newer server",
        )
    encoding = connection.get_settings().server_encoding
    if encoding != _ENCODING:
        raise StoreRefused(
            f"the {where.description} has the encoding {encoding}, which cannot store every text",
            fix="use a database in UTF-8, made by `createdb -E UTF8 -T template0 NAME`",
        )


@cache
def migrations() -> tuple[Migration, ...]:
    return read_migrations(_FOLDER, SCHEMA_VERSION)


async def _missing(connection: Connection, where: Location, mode: MigrateMode) -> list[Migration]:
    applied: dict[int, str] = {}
    tables = await connection.fetchrow(_TABLES, where.schema)
    assert tables is not None
    if tables["has_list"]:
        listed = in_schema("SELECT version, checksum FROM evertick.migrations", where.schema)
        try:
            rows = await connection.fetch(listed)
        except asyncpg.UndefinedColumnError as error:
            raise _foreign(where) from error
        applied = {row["version"]: row["checksum"] for row in rows}
    if not applied and tables["is_ours"]:
        raise without_migrations(where.description, "empty" if tables["has_list"] else "missing", "schema")
    if tables["has_list"]:
        await _check_meta(connection, where)
    return pending(migrations(), applied, where.description, mode)


async def _check_meta(connection: Connection, where: Location) -> None:
    try:
        meta = await connection.fetchrow(in_schema("SELECT version, compatible_from FROM evertick.meta", where.schema))
    except asyncpg.UndefinedTableError as error:
        raise without_meta(where.description, "missing") from error
    if meta is None:
        raise without_meta(where.description, "empty")
    refuse_newer(meta["version"], meta["compatible_from"], SCHEMA_VERSION, where.description)


async def _make_schema(connection: Connection, where: Location) -> bool:
    """Create the schema if it is missing; returns whether it was. CREATE SCHEMA IF NOT EXISTS for an existing schema
    would need a right that its owner may lack."""
    found = await connection.fetchrow(_PRIVILEGES, where.schema)
    assert found is not None
    user, schema, database = (quoted(found["user"]), quoted(where.schema), quoted(found["database"]))
    if not found["may_create"]:
        what = f"tables in the schema {where.schema}" if found["has_schema"] else f"the schema {where.schema}"
        on = f"SCHEMA {schema}" if found["has_schema"] else f"DATABASE {database}"
        raise StoreRefused(
            f"the {where.place} does not let the user {found['user']} create {what}",
            fix=f"grant it with `GRANT CREATE ON {on} TO {user}`, or migrate as a user who may",
        )
    if found["has_schema"]:
        return False
    await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    return True


def _foreign(where: Location) -> StoreRefused:
    return StoreRefused(
        f"the schema {where.schema} of the {where.place} has tables of another program under the same names",
        fix="choose another one by schema= in the URL",
    )


async def _apply(connection: Connection, where: Location, clock: Clock, migration: Migration) -> None:
    may_be_foreign = migration.version == 1 and not await _make_schema(connection, where)
    try:
        await connection.execute(in_schema(migration.text, where.schema))
    except _FOREIGN as error:
        if not may_be_foreign:
            raise
        raise _foreign(where) from error
    insert = in_schema("INSERT INTO evertick.migrations VALUES ($1, $2, $3, evertick.now_us())", where.schema)
    await connection.execute(insert, migration.version, migration.name, migration.checksum)
    reached = (migration.version, migration.compatible_from)
    if migration.version == 1:
        first = in_schema("INSERT INTO evertick.meta VALUES ($3, $1, $2)", where.schema)
        await connection.execute(first, *reached, clock.new_token())
    else:
        update = in_schema("UPDATE evertick.meta SET version = $1, compatible_from = $2", where.schema)
        await connection.execute(update, *reached)
