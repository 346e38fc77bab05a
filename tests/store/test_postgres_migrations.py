"""The tables of a PostgreSQL schema are made once, never twice, and never by code that is too old for them."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import asyncpg
import pytest
from postgres_stores import PostgresStores, in_schema_of

import preloaded
from evertick import Scheduler
from evertick.clock import system_clock
from evertick.errors import StoreRefused, StoreUnavailable
from evertick.store.base import MessageFilter, MigrateMode
from evertick.store.postgres import SCHEMA_VERSION, PostgresStore
from evertick.store.postgres import schema as code
from servers.postgres import dsn_with

# A node of the released code, or of code to come that knows one migration more.
NODE = """
import asyncio, sys
from pathlib import Path
from evertick import Scheduler
from evertick.store.postgres import schema

async def main(url, folder, version):
    if folder:
        schema._FOLDER, schema.SCHEMA_VERSION = Path(folder), int(version)
    scheduler = Scheduler(url, node_name="new" if folder else "late")

    @scheduler.task
    async def echo(): ...

    print("ready", flush=True)
    sys.stdin.readline()
    async with scheduler:
        print("started", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
    print("stopped", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


class NodeProcess:
    """A node in its own process, which starts on request."""

    def __init__(self, url: str, folder: Path | None = None) -> None:
        about = [url, str(folder or ""), str(SCHEMA_VERSION + 1)]
        command = [sys.executable, "-c", NODE, *about]
        self._process = preloaded.popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid

    def said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def start(self) -> str:
        assert self.said() == "ready", self.end()
        self.go_on()
        return self.said()

    def stop(self) -> str:
        self.go_on()
        return self.said()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> str:
        """Its error output."""
        return self._process.communicate(timeout=30)[1]


@pytest.fixture
def start(unmigrated_stores: PostgresStores) -> Iterator[Callable[..., NodeProcess]]:
    processes: list[NodeProcess] = []

    def begin(folder: Path | None = None) -> NodeProcess:
        processes.append(NodeProcess(unmigrated_stores.url, folder))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.end()


@pytest.fixture
def newer(tmp_path: Path) -> Callable[..., Path]:
    """The migrations of code to come: those that there are, and one more."""

    def write(statements: str, *, compatible_from: int = SCHEMA_VERSION) -> Path:
        folder = tmp_path / "migrations"
        shutil.copytree(code._FOLDER, folder)
        name = f"{SCHEMA_VERSION + 1:04}_more.sql"
        (folder / name).write_text(f"-- compatible_from: {compatible_from}\n{statements}\n")
        return folder

    return write


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


async def test_ten_nodes_that_start_at_once_migrate_once(
    unmigrated_stores: PostgresStores, start: Callable[..., NodeProcess]
) -> None:
    nodes = [start() for _ in range(10)]
    assert [node.said() for node in nodes] == ["ready"] * 10
    for node in nodes:
        node.go_on()
    assert [node.said() for node in nodes] == ["started"] * 10
    assert [row["version"] for row in await asked(unmigrated_stores, "SELECT version FROM {schema}.migrations")] == [1]
    assert len(await asked(unmigrated_stores, "SELECT FROM {schema}.meta")) == 1
    assert len(await asked(unmigrated_stores, "SELECT FROM {schema}.nodes WHERE died_at IS NULL")) == 10
    assert [node.stop() for node in nodes] == ["stopped"] * 10


async def test_opening_again_changes_nothing(unmigrated_stores: PostgresStores) -> None:
    await opened(unmigrated_stores)
    before = await asked(unmigrated_stores, "SELECT * FROM {schema}.meta, {schema}.migrations")
    await opened(unmigrated_stores)
    await opened(unmigrated_stores, "check")
    assert await asked(unmigrated_stores, "SELECT * FROM {schema}.meta, {schema}.migrations") == before


async def test_two_schemas_of_a_database_are_two_stores(unmigrated_stores: PostgresStores, postgres_dsn: str) -> None:
    other = PostgresStores(postgres_dsn)
    first, second = await unmigrated_stores.open(), await other.open()
    await first.put_calendar("app", "holidays", "1", b"x")
    assert await second.calendars("app") == {}
    await other.close()


async def test_check_mode_refuses_tables_that_are_missing_and_says_how_to_get_them(
    unmigrated_stores: PostgresStores,
) -> None:
    with pytest.raises(StoreRefused, match=r'0001_ledger.*migrate="auto"'):
        await opened(unmigrated_stores, "check")
    found = await asked(unmigrated_stores, "SELECT FROM pg_namespace WHERE nspname = '{schema}'")
    assert found == []


async def test_a_migration_that_was_changed_after_it_was_applied_is_refused_by_name(
    unmigrated_stores: PostgresStores,
) -> None:
    await opened(unmigrated_stores)
    await asked(unmigrated_stores, "UPDATE {schema}.migrations SET checksum = 'other'")
    with pytest.raises(StoreRefused, match="0001_ledger"):
        await opened(unmigrated_stores)


async def test_a_store_that_is_too_new_is_refused(unmigrated_stores: PostgresStores) -> None:
    await opened(unmigrated_stores)
    newer = f"UPDATE {{schema}}.meta SET version = 9, compatible_from = {SCHEMA_VERSION + 1}"
    await asked(unmigrated_stores, newer)
    with pytest.raises(StoreRefused, match="newer"):
        await opened(unmigrated_stores)


async def test_a_newer_store_that_is_still_compatible_works(unmigrated_stores: PostgresStores) -> None:
    await opened(unmigrated_stores)
    await asked(unmigrated_stores, f"UPDATE {{schema}}.meta SET version = 9, compatible_from = {SCHEMA_VERSION}")
    await asked(unmigrated_stores, "INSERT INTO {schema}.migrations VALUES (9, '0009_more', 'x', 0)")
    store = PostgresStore(unmigrated_stores.url, clock=system_clock)
    await store.open(migrate="check")
    await store.put_calendar("app", "holidays", "1", b"x")
    assert await store.calendars("app") == {"holidays": b"x"}
    await store.close()
    assert [row["version"] for row in await asked(unmigrated_stores, "SELECT version FROM {schema}.meta")] == [9]


async def test_a_migration_that_fails_leaves_nothing_behind(
    unmigrated_stores: PostgresStores, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "0001_broken.sql").write_text(
        "-- compatible_from: 1\nCREATE TABLE evertick.half (x int);\nCREATE TABLE evertick.half (x int);\n"
    )
    monkeypatch.setattr(code, "_FOLDER", tmp_path)
    code.migrations.cache_clear()
    try:
        with pytest.raises(asyncpg.DuplicateTableError):
            await opened(unmigrated_stores)
    finally:
        code.migrations.cache_clear()
    found = await asked(unmigrated_stores, "SELECT FROM pg_namespace WHERE nspname = '{schema}'")
    assert found == []


# --- a fleet that is updated node by node ----------------------------------------------------------------------------

# Changes that a later release may make to tables while old nodes write to them.
MORE = """
    ALTER TABLE evertick.runs ADD COLUMN colour text;
    ALTER TABLE evertick.history ADD COLUMN colour text;
    ALTER TABLE evertick.nodes ADD COLUMN colour text DEFAULT 'red';
    ALTER TABLE evertick.schedules ADD COLUMN colour text;
    ALTER TABLE evertick.due ADD COLUMN colour text;
    CREATE TABLE evertick.colours (name text PRIMARY KEY);
"""


async def test_old_nodes_go_on_beside_new_ones_on_a_store_that_is_still_compatible(
    unmigrated_stores: PostgresStores, start: Callable[..., NodeProcess], newer: Callable[..., Path]
) -> None:
    old = Scheduler(unmigrated_stores.url, node_name="old", migrate="check")
    await opened(unmigrated_stores)
    fired = asyncio.Semaphore(0)

    @old.every("100ms")
    async def tick() -> None:
        fired.release()

    async def fires(count: int) -> None:
        async with asyncio.timeout(30):
            for _ in range(count):
                await fired.acquire()

    async with old:
        await fires(3)
        new = start(newer(MORE))
        assert await asyncio.to_thread(new.start) == "started"
        [meta] = await asked(unmigrated_stores, "SELECT version, compatible_from FROM {schema}.meta")
        assert (meta["version"], meta["compatible_from"]) == (SCHEMA_VERSION + 1, SCHEMA_VERSION)
        await fires(5)
        assert {node.name for node in await old.nodes() if node.died_at is None} == {"old", "new"}
        # While it runs: later fires are of a task that no node knows any more, and may end in any way.
        runs = await old.runs(limit=1000)
        assert {(str(run.verdict), run.losses) for run in runs if run.verdict is not None} == {("succeeded", 0)}
    # An old node that starts now, too.
    late = start()
    assert await asyncio.to_thread(late.start) == "started"
    await old.close()


async def test_old_code_refuses_a_store_that_was_changed_beyond_it(
    unmigrated_stores: PostgresStores, start: Callable[..., NodeProcess], newer: Callable[..., Path]
) -> None:
    await opened(unmigrated_stores)
    new = start(newer(MORE, compatible_from=SCHEMA_VERSION + 1))
    assert new.start() == "started"
    old = start()
    assert old.start() == ""
    assert f"requires code of version {SCHEMA_VERSION + 1} or newer, and this code has version" in old.end()


async def test_a_migration_that_is_killed_in_the_middle_leaves_nothing_half_done(
    unmigrated_stores: PostgresStores, start: Callable[..., NodeProcess], newer: Callable[..., Path]
) -> None:
    await opened(unmigrated_stores)
    folder = newer("CREATE TABLE evertick.half (x int);\nSELECT pg_sleep(600);")
    killed = start(folder)
    assert killed.said() == "ready"
    killed.go_on()
    sleeping = "SELECT FROM pg_stat_activity WHERE query LIKE '%{schema}%half%' AND wait_event = 'PgSleep'"
    async with asyncio.timeout(30):
        while not await asked(unmigrated_stores, sleeping):
            await asyncio.sleep(0.01)
    killed.kill()
    # Its remains do not delay the next one, either.
    (folder / f"{SCHEMA_VERSION + 1:04}_more.sql").write_text(
        f"-- compatible_from: {SCHEMA_VERSION}\nCREATE TABLE evertick.half (x int);\n"
    )
    again = start(folder)
    async with asyncio.timeout(30):
        assert await asyncio.to_thread(again.start) == "started"
    applied = await asked(unmigrated_stores, "SELECT version FROM {schema}.migrations ORDER BY version")
    assert [row["version"] for row in applied] == list(range(1, SCHEMA_VERSION + 2))


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_a_database_that_cannot_hold_every_text_is_refused(postgres_dsn: str, encoding: str) -> None:
    name = f"other_{system_clock.new_token()[:12]}"
    connection = await asyncpg.connect(postgres_dsn)
    await connection.execute(f"CREATE DATABASE {name} ENCODING {encoding} LOCALE 'C' TEMPLATE template0")
    try:
        store = PostgresStore(dsn_with(postgres_dsn, database=name), clock=system_clock)
        for opening in (store.open(migrate="auto"), store.maintenance().check()):
            with pytest.raises(StoreRefused, match=f"encoding {encoding}.*createdb -E UTF8"):
                await opening
    finally:
        await connection.execute(f"DROP DATABASE {name} (FORCE)")
        await connection.close()


async def test_a_migration_may_take_longer_than_other_intents(
    unmigrated_stores: PostgresStores, newer: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    await opened(unmigrated_stores)
    folder = newer("SELECT pg_sleep(1.5); CREATE TABLE evertick.more (x int);")
    monkeypatch.setattr(code, "_FOLDER", folder)
    monkeypatch.setattr(code, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    code.migrations.cache_clear()
    try:
        store = PostgresStore(f"{unmigrated_stores.url}&timeout=1s", clock=system_clock)
        await store.open(migrate="auto")
        await store.close()
    finally:
        code.migrations.cache_clear()
    assert await asked(unmigrated_stores, "SELECT FROM {schema}.migrations WHERE version > 1")


@pytest.fixture
async def plain_role(postgres_dsn: str) -> AsyncIterator[str]:
    """A user without any right of its own, and the name of a schema for it."""
    role = f"plain_{system_clock.new_token()[:12]}"
    connection = await asyncpg.connect(postgres_dsn)
    await connection.execute(f"CREATE ROLE {role} LOGIN")
    yield role
    await connection.execute(f"DROP SCHEMA IF EXISTS {role} CASCADE")
    await connection.execute(f"DROP OWNED BY {role}")
    await connection.execute(f"DROP ROLE {role}")
    await connection.close()


def as_role(dsn: str, role: str) -> PostgresStore:
    return PostgresStore(in_schema_of(dsn_with(dsn, user=role), role), clock=system_clock)


async def test_a_user_who_may_not_create_the_schema_gets_the_grant_for_it(postgres_dsn: str, plain_role: str) -> None:
    store = as_role(postgres_dsn, plain_role)
    with pytest.raises(StoreRefused, match=f"does not let the user {plain_role} create the schema") as refused:
        await store.open(migrate="auto")
    grant = str(refused.value).split("`")[1]
    connection = await asyncpg.connect(postgres_dsn)
    database = await connection.fetchval("SELECT current_database()")
    assert grant == f'GRANT CREATE ON DATABASE "{database}" TO "{plain_role}"'
    await connection.execute(grant)
    await connection.close()
    await store.open(migrate="auto")
    await store.close()


async def test_an_existing_schema_is_enough_for_its_owner(postgres_dsn: str, plain_role: str) -> None:
    connection = await asyncpg.connect(postgres_dsn)
    await connection.execute(f"CREATE SCHEMA {plain_role}")
    store = as_role(postgres_dsn, plain_role)
    with pytest.raises(StoreRefused, match=f'`GRANT CREATE ON SCHEMA "{plain_role}" TO "{plain_role}"`'):
        await store.open(migrate="auto")
    await connection.execute(f"ALTER SCHEMA {plain_role} OWNER TO {plain_role}")
    await connection.close()
    await store.open(migrate="auto")
    await store.close()


@pytest.mark.parametrize("table", ["runs (id int)", "migrations (name text)"])
async def test_a_schema_with_tables_of_others_under_our_names_is_refused(empty_postgres_url: str, table: str) -> None:
    dsn, _, schema = empty_postgres_url.partition("?schema=")
    connection = await asyncpg.connect(dsn)
    await connection.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.{table}")
    with pytest.raises(StoreRefused, match=rf"{schema} .*of another program.*choose another one by schema=") as refused:
        await PostgresStore(empty_postgres_url, clock=system_clock).open(migrate="auto")
    assert str(refused.value).count(schema) == 1
    tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", schema)
    assert [row["tablename"] for row in tables] == [table.partition(" ")[0]], "nothing of ours is left behind"
    await connection.close()


async def test_tables_of_others_under_other_names_are_no_trouble(empty_postgres_url: str) -> None:
    dsn, _, schema = empty_postgres_url.partition("?schema=")
    connection = await asyncpg.connect(dsn)
    await connection.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.orders AS SELECT 7 AS id")
    store = PostgresStore(empty_postgres_url, clock=system_clock)
    await store.open(migrate="auto")
    await store.put_calendar("app", "holidays", "1", b"x")
    assert await store.calendars("app") == {"holidays": b"x"}
    await store.close()
    assert await connection.fetchval(f"SELECT id FROM {schema}.orders") == 7
    await connection.close()


async def test_a_lost_table_must_be_restored_and_a_removed_schema_is_created_again(empty_postgres_url: str) -> None:
    dsn, _, schema = empty_postgres_url.partition("?schema=")
    store = PostgresStore(empty_postgres_url, clock=system_clock)
    await store.open(migrate="auto")
    connection = await asyncpg.connect(dsn)
    await connection.execute(f"DROP TABLE {schema}.outbox CASCADE")
    with pytest.raises(StoreUnavailable, match=r"lacks a table of Evertick .*; restore the database from a backup"):
        await store.messages("app", MessageFilter())
    await connection.execute(f"DROP SCHEMA {schema} CASCADE")
    await connection.close()
    await store.close()
    await store.open(migrate="auto")
    assert await store.messages("app", MessageFilter()) == []
    await store.close()
