"""The tables of a PostgreSQL schema are made once, never twice, and never by code that is too old for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest
from postgres_stores import PostgresStores

from evertick.clock import system_clock
from evertick.errors import StoreRefused
from evertick.store.base import MigrateMode
from evertick.store.postgres import SCHEMA_VERSION, PostgresStore
from evertick.store.postgres import schema as code

OPEN = """
import asyncio, sys
from evertick.clock import system_clock
from evertick.store.postgres import PostgresStore

async def main():
    store = PostgresStore(sys.argv[1], clock=system_clock)
    sys.stdin.readline()
    await store.open(migrate="auto")
    print(await store.now() > 0)
    await store.close()

asyncio.run(main())
"""


async def opened(stores: PostgresStores, migrate: MigrateMode = "auto") -> None:
    store = PostgresStore(stores.url, clock=system_clock)
    await store.open(migrate=migrate)
    await store.close()


async def asked(stores: PostgresStores, statement: str) -> list[asyncpg.Record]:
    connection = await stores.connect()
    try:
        found: list[asyncpg.Record] = await connection.fetch(statement.format(schema=stores.schema))
        return found
    finally:
        await connection.close()


async def test_ten_processes_that_start_at_once_migrate_once(postgres_stores: PostgresStores) -> None:
    command = [sys.executable, "-c", OPEN, postgres_stores.url]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(10)]
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate()[0].strip() for process in started] == ["True"] * 10
    assert [row["version"] for row in await asked(postgres_stores, "SELECT version FROM {schema}.migrations")] == [1]
    assert len(await asked(postgres_stores, "SELECT FROM {schema}.meta")) == 1


async def test_opening_again_changes_nothing(postgres_stores: PostgresStores) -> None:
    await opened(postgres_stores)
    before = await asked(postgres_stores, "SELECT * FROM {schema}.meta, {schema}.migrations")
    await opened(postgres_stores)
    await opened(postgres_stores, "check")
    assert await asked(postgres_stores, "SELECT * FROM {schema}.meta, {schema}.migrations") == before


async def test_two_schemas_of_a_database_are_two_stores(postgres_stores: PostgresStores, postgres_dsn: str) -> None:
    other = PostgresStores(postgres_dsn)
    first, second = await postgres_stores.open(), await other.open()
    await first.put_calendar("app", "holidays", "1", b"x")
    assert await second.calendars("app") == {}
    await other.close()


async def test_check_mode_refuses_tables_that_are_missing_and_says_how_to_get_them(
    postgres_stores: PostgresStores,
) -> None:
    with pytest.raises(StoreRefused, match=r'0001_ledger.*migrate="auto"'):
        await opened(postgres_stores, "check")
    found = await asked(postgres_stores, "SELECT FROM pg_namespace WHERE nspname = '{schema}'")
    assert found == []


async def test_a_migration_that_was_changed_after_it_was_applied_is_refused_by_name(
    postgres_stores: PostgresStores,
) -> None:
    await opened(postgres_stores)
    await asked(postgres_stores, "UPDATE {schema}.migrations SET checksum = 'other'")
    with pytest.raises(StoreRefused, match="0001_ledger"):
        await opened(postgres_stores)


async def test_a_store_that_is_too_new_is_refused(postgres_stores: PostgresStores) -> None:
    await opened(postgres_stores)
    newer = f"UPDATE {{schema}}.meta SET version = 9, compatible_from = {SCHEMA_VERSION + 1}"
    await asked(postgres_stores, newer)
    with pytest.raises(StoreRefused, match="newer"):
        await opened(postgres_stores)


async def test_a_newer_store_that_is_still_compatible_works(postgres_stores: PostgresStores) -> None:
    await opened(postgres_stores)
    await asked(postgres_stores, f"UPDATE {{schema}}.meta SET version = 9, compatible_from = {SCHEMA_VERSION}")
    await asked(postgres_stores, "INSERT INTO {schema}.migrations VALUES (9, '0009_more', 'x', 0)")
    await opened(postgres_stores, "check")


async def test_a_migration_that_fails_leaves_nothing_behind(
    postgres_stores: PostgresStores, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "0001_broken.sql").write_text(
        "-- compatible_from: 1\nCREATE TABLE evertick.half (x int);\nCREATE TABLE evertick.half (x int);\n"
    )
    monkeypatch.setattr(code, "_FOLDER", tmp_path)
    code.migrations.cache_clear()
    try:
        with pytest.raises(asyncpg.DuplicateTableError):
            await opened(postgres_stores)
    finally:
        code.migrations.cache_clear()
    found = await asked(postgres_stores, "SELECT FROM pg_namespace WHERE nspname = '{schema}'")
    assert found == []
