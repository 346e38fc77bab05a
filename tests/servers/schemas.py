"""Schemas with the tables of a store, for one test after the other.

To make one takes the server longer than most tests take: so one that a test leaves as it was made, but for its rows, is
emptied for the next.
"""

from __future__ import annotations

import asyncio
from threading import Thread

import psycopg

from evertick.clock import system_clock
from evertick.store.postgres import PostgresStore

__all__ = ["Schemas", "in_schema", "new_schema"]

# A node that was killed may hold a lock for a moment.
_LOCK_TIMEOUT = "SET lock_timeout = '5s'"
# All that a test might have changed besides rows, without the name of the schema.
_STRUCTURE = """
WITH own AS (SELECT oid, nspname, nspacl FROM pg_namespace WHERE nspname = %(schema)s),
relations AS (SELECT c.* FROM pg_class c JOIN own ON c.relnamespace = own.oid),
lines AS (
    SELECT concat_ws(' ', relname, relkind, relpersistence, reloptions, relacl, relowner) AS line FROM relations
    UNION ALL SELECT concat_ws(' ', r.relname, a.attname, a.atttypid, a.attnotnull, a.attoptions, a.attisdropped,
            pg_get_expr(d.adbin, d.adrelid))
        FROM pg_attribute a JOIN relations r ON a.attrelid = r.oid
        LEFT JOIN pg_attrdef d ON d.adrelid = r.oid AND d.adnum = a.attnum WHERE a.attnum > 0
    UNION ALL SELECT concat_ws(' ', r.relname, i.indisvalid, pg_get_indexdef(i.indexrelid))
        FROM pg_index i JOIN relations r ON i.indrelid = r.oid
    UNION ALL SELECT concat_ws(' ', r.relname, o.conname, pg_get_constraintdef(o.oid))
        FROM pg_constraint o JOIN relations r ON o.conrelid = r.oid
    UNION ALL SELECT concat_ws(' ', r.relname, t.tgname, t.tgenabled)
        FROM pg_trigger t JOIN relations r ON t.tgrelid = r.oid WHERE NOT t.tgisinternal
    UNION ALL SELECT concat_ws(' ', p.proname, p.prosrc, p.proacl) FROM pg_proc p JOIN own ON p.pronamespace = own.oid
    UNION ALL SELECT concat_ws(' ', nspacl) FROM own
)
SELECT md5(replace(string_agg(line, '|' ORDER BY line COLLATE "C"), %(schema)s, '')) FROM lines
"""
_ARE_THERE = "SELECT to_regclass(%s) IS NOT NULL AND to_regclass(%s) IS NOT NULL"
_OF_THE_STORE = """
SELECT (SELECT max(ROW(version, compatible_from)::text) FROM {schema}.meta),
    (SELECT string_agg(name || checksum, ' ' ORDER BY version) FROM {schema}.migrations)
"""
_TABLES = """
SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind IN ('r', 'p') AND NOT relispartition
    AND relname NOT IN ('meta', 'migrations')
"""
# Nothing is vacuumed: where so many rows were written, later tests would pass over them.
_IS_LARGE = """
SELECT max(pg_relation_size(oid)) > 1000000 FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r'
"""
_RESTART = """
SELECT setval(oid::regclass, 1, false) FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind = 'S'
"""


def new_schema() -> str:
    return f"test_{system_clock.new_token()[:12]}"


def in_schema(dsn: str, schema: str) -> str:
    """The URL of a store in a schema of the server."""
    return f"{dsn}{'&' if '?' in dsn else '?'}schema={schema}"


class Schemas:
    """Those of one worker on one server."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._spare: list[str] = []
        self._structure: object = None
        self._connection: psycopg.Connection | None = None

    def take(self) -> str:
        if self._structure is None:
            self._structure = self._made()
        if not self._spare:
            self._made()
        return self._spare.pop()

    def give_back(self, schema: str) -> None:
        connection = self._connected()
        if self._structure_of(connection, schema) == self._structure and not self._is_large(connection, schema):
            tables = [name for (name,) in connection.execute(_TABLES, [schema])]
            connection.execute(";".join(f'DELETE FROM "{schema}"."{table}"' for table in tables))
            connection.execute(_RESTART, [schema])
            self._spare.append(schema)
        else:
            connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')

    def drop(self) -> None:
        while self._spare:
            self._connected().execute(f'DROP SCHEMA "{self._spare.pop()}" CASCADE')

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _made(self) -> object:
        """Make one, and answer what `_structure_of` says of it."""
        schema = new_schema()
        # A thread: a test may have its event loop running.
        thread = Thread(target=lambda: asyncio.run(_migrate(in_schema(self._dsn, schema))))
        thread.start()
        thread.join()
        structure = self._structure_of(self._connected(), schema)
        assert structure is not None
        self._spare.append(schema)
        return structure

    def _connected(self) -> psycopg.Connection:
        """One connection for all schemas: the server needs longer for a new one than for the rest."""
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._dsn, autocommit=True)
            self._connection.execute(_LOCK_TIMEOUT)
        return self._connection

    @staticmethod
    def _is_large(connection: psycopg.Connection, schema: str) -> bool:
        return connection.execute(_IS_LARGE, [schema]).fetchone() == (True,)

    @staticmethod
    def _structure_of(connection: psycopg.Connection, schema: str) -> object:
        structure = connection.execute(_STRUCTURE, {"schema": schema}).fetchone()
        are_there = connection.execute(_ARE_THERE, [f"{schema}.meta", f"{schema}.migrations"]).fetchone()
        if are_there != (True,):
            return None
        return structure, connection.execute(_OF_THE_STORE.format(schema=f'"{schema}"')).fetchone()


async def _migrate(url: str) -> None:
    store = PostgresStore(url, clock=system_clock)
    await store.open(migrate="auto")
    await store.close()
