"""Maintenance of a PostgreSQL store: status, integrity, and migrations."""

from __future__ import annotations

from pathlib import Path

import pytest
from postgres_stores import PostgresStores

from evertick.clock import system_clock
from evertick.errors import Refused, StoreRefused
from evertick.store.base import Maintainable, Maintenance
from evertick.store.postgres import SCHEMA_VERSION, PostgresStore
from evertick.store.postgres.connection import statements_for
from evertick.store.postgres.maintenance import OBJECTS, _options
from evertick.testing.conformance import Bench
from evertick.testing.conformance.bench import APP, OTHER_APP, us
from servers.postgres import dsn_with


def care_of(stores: PostgresStores) -> Maintenance:
    store = PostgresStore(stores.url, clock=system_clock)
    assert isinstance(store, Maintainable)
    return store.maintenance()


async def test_the_status_tells_what_and_how_much_there_is(postgres_stores: PostgresStores) -> None:
    bench = Bench(postgres_stores, await postgres_stores.open())
    node = await bench.node()
    await bench.add()
    done = await bench.end(node, await bench.hold(node))
    await bench.enqueue(app=OTHER_APP)
    status = await care_of(postgres_stores).status()
    assert status.engine.startswith("PostgreSQL ")
    assert (status.version, status.version_known, status.missing) == (SCHEMA_VERSION, SCHEMA_VERSION, ())
    assert status.store_id
    assert status.bytes > 0
    rows = {table.name: table.rows for table in status.tables}
    assert (rows["schedules"], rows["due"], rows["runs"], rows["history"]) == (1, 1, 1, 1)
    assert status.oldest_at == us(done.fire_at)


async def test_a_store_that_is_not_there_yet_can_be_looked_at_and_made(unmigrated_stores: PostgresStores) -> None:
    care = care_of(unmigrated_stores)
    status = await care.status()
    assert (status.version, status.store_id, len(status.missing)) == (0, None, SCHEMA_VERSION)
    assert "missing" in (await care.check()).problems[0]
    assert await care.migrate() == list(status.missing)
    assert await care.migrate() == []
    assert (await care.check()).problems == ()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("DROP TABLE {schema}.gaps", "the table gaps is missing"),
        ("DROP INDEX {schema}.runs_claim", "the index runs_claim is missing; create it again: CREATE INDEX runs_claim"),
        ("DROP INDEX {schema}.runs_moment", "the unique index runs_moment is missing; create it again: CREATE UNIQUE"),
        ("ALTER TABLE {schema}.nodes DROP CONSTRAINT nodes_pkey CASCADE", "the unique index nodes_pkey is missing"),
        ("DROP FUNCTION {schema}.now_us", "the function now_us is missing; create it again: CREATE FUNCTION"),
        ("DROP SEQUENCE {schema}.fence", "the sequence fence is missing"),
        ("ALTER TABLE {schema}.runs DROP COLUMN due_at", "the column runs.due_at is missing; restore"),
        ("DELETE FROM {schema}.meta", "its table meta is empty; restore"),
        ("DROP TABLE {schema}.meta", "its table meta is missing; restore"),
        ("DELETE FROM {schema}.migrations", "its list of migrations is empty"),
        ("DROP TABLE {schema}.migrations", "its list of migrations is missing"),
        ("DELETE FROM {schema}.due", "1 schedules have no cursor"),
        ("DELETE FROM {schema}.schedules", "1 cursors have no schedule"),
        ("ALTER TABLE {schema}.due RESET (fillfactor)", ".due SET (fillfactor = 50)"),
        ("ALTER TABLE {schema}.runs RESET (autovacuum_vacuum_threshold)", "SET (autovacuum_vacuum_threshold = 50000)"),
        ("UPDATE {schema}.migrations SET checksum = 'x'", "with other content"),
    ],
)
async def test_what_is_wrong_is_said_in_a_sentence(postgres_stores: PostgresStores, damage: str, said: str) -> None:
    bench = Bench(postgres_stores, await postgres_stores.open())
    await bench.add()
    assert await bench.store.pulse(APP)
    care = care_of(postgres_stores)
    checked = await care.check()
    assert (checked.problems, checked.is_complete) == ((), True)
    connection = await postgres_stores.connect()
    await connection.execute(damage.format(schema=postgres_stores.schema))
    await connection.close()
    [problem] = (await care.check()).problems
    assert said in problem


async def test_a_missing_index_is_created_by_the_statement_that_the_check_names(
    postgres_stores: PostgresStores,
) -> None:
    await postgres_stores.open()
    care, connection = care_of(postgres_stores), await postgres_stores.connect()
    await connection.execute(f"DROP INDEX {postgres_stores.schema}.history_moment")
    problems = (await care.check()).problems
    [statement] = [problem.partition("create it again: ")[2] for problem in problems]
    await connection.execute(statement)
    await connection.close()
    assert (await care.check()).problems == ()


async def test_what_the_check_looks_for_is_what_the_migrations_make(postgres_stores: PostgresStores) -> None:
    await postgres_stores.open()
    connection = await postgres_stores.connect()
    rows = await connection.fetch(statements_for(postgres_stores.schema)["maintenance.objects"], postgres_stores.schema)
    await connection.close()
    made = sorted(f"{row['kind']} {row['name']}" for row in rows)
    assert OBJECTS.read_text().splitlines() == made, "write what the migrations make into objects.txt"


@pytest.mark.parametrize("damage", ["DELETE FROM {schema}.migrations", "DROP TABLE {schema}.migrations"])
async def test_a_store_that_lost_its_list_of_migrations_is_refused_with_what_to_do(
    postgres_stores: PostgresStores, damage: str
) -> None:
    await postgres_stores.open()
    connection = await postgres_stores.connect()
    await connection.execute(damage.format(schema=postgres_stores.schema))
    await connection.close()
    with pytest.raises(StoreRefused, match="restore it from a backup, or start with another schema"):
        await care_of(postgres_stores).migrate()


@pytest.mark.parametrize("table", ["gaps", "history", "attempts"])
async def test_the_status_of_a_store_tells_what_is_left(postgres_stores: PostgresStores, table: str) -> None:
    await postgres_stores.open()
    connection = await postgres_stores.connect()
    await connection.execute(f"DROP TABLE {postgres_stores.schema}.{table}")
    await connection.close()
    tables = {each.name for each in (await care_of(postgres_stores).status()).tables}
    assert table not in tables
    assert "runs" in tables


async def test_options_of_a_table_that_an_operator_has_chosen_are_kept(postgres_stores: PostgresStores) -> None:
    await postgres_stores.open()
    connection = await postgres_stores.connect()
    await connection.execute(f"ALTER TABLE {postgres_stores.schema}.due SET (fillfactor = 80)")
    await connection.close()
    assert (await care_of(postgres_stores).check()).problems == ()


async def test_the_status_tells_the_options_of_tables_and_which_are_not_as_migrated(
    postgres_stores: PostgresStores,
) -> None:
    await postgres_stores.open()
    options = {table.name: table for table in (await care_of(postgres_stores).status()).options}
    assert options["due"].options["fillfactor"] == "50"
    assert options["runs"].options["autovacuum_vacuum_threshold"] == "50000"
    assert options["history_default"].options["autovacuum_vacuum_insert_scale_factor"] == "0.05"
    assert not any(table.migrated for table in options.values())
    connection = await postgres_stores.connect()
    day = await connection.fetchval(
        "SELECT max(relname) FROM pg_class WHERE relname ~ '^history_[0-9]{8}$' AND relnamespace = $1::regnamespace",
        postgres_stores.schema,
    )
    await connection.execute(
        f"ALTER TABLE {postgres_stores.schema}.due SET (fillfactor = 80);"
        f"ALTER TABLE {postgres_stores.schema}.runs RESET (fillfactor);"
        f"ALTER TABLE {postgres_stores.schema}.{day} SET (autovacuum_vacuum_insert_scale_factor = 0.2)"
    )
    await connection.close()
    options = {table.name: table for table in (await care_of(postgres_stores).status()).options}
    assert (options["due"].options["fillfactor"], options["due"].migrated) == ("80", {"fillfactor": "50"})
    assert options["runs"].migrated == {"fillfactor": "70"}
    assert options[day].migrated == {"autovacuum_vacuum_insert_scale_factor": "0.05"}


def test_the_tables_that_every_fire_writes_have_options_for_filling_and_vacuum() -> None:
    options = _options()
    assert options["due"] == {
        "fillfactor": "50",
        "autovacuum_vacuum_scale_factor": "0.25",
        "autovacuum_vacuum_threshold": "10000",
        "autovacuum_vacuum_cost_delay": "0",
    }
    assert options["runs"]["autovacuum_vacuum_threshold"] == "50000"
    assert options["runs"]["autovacuum_vacuum_scale_factor"] == "0"
    assert {"due", "runs", "nodes", "history_default"} <= set(options)


async def test_a_check_that_takes_too_long_says_that_it_is_not_complete(postgres_stores: PostgresStores) -> None:
    await postgres_stores.open()
    connection = await postgres_stores.connect()
    async with connection.transaction():
        await connection.execute(f"LOCK TABLE {postgres_stores.schema}.due")
        assert not (await care_of(postgres_stores).check(seconds_most=0.5)).is_complete
    await connection.close()


async def test_free_space_and_copies_are_left_to_the_server(postgres_stores: PostgresStores, tmp_path: Path) -> None:
    care = care_of(postgres_stores)
    with pytest.raises(Refused, match="autovacuum"):
        await care.give_back(1)
    with pytest.raises(Refused, match="VACUUM FULL"):
        await care.rewrite()
    with pytest.raises(Refused, match="pg_dump --schema="):
        await care.backup(str(tmp_path / "copy.db"))
    assert list(tmp_path.iterdir()) == []


async def test_a_database_that_does_not_exist_is_refused(postgres_dsn: str) -> None:
    store = PostgresStore(dsn_with(postgres_dsn, database="no_such"), clock=system_clock)
    with pytest.raises(StoreRefused, match="does not exist"):
        await store.maintenance().status()
