"""The store on another major version of PostgreSQL, the one that the system has installed.

Promises about locks and transactions are tested on it behind PgBouncer (test_postgres_pooler.py); every statement is
prepared here. The whole suite is a long test.
"""

from __future__ import annotations

import asyncpg
import pytest
from postgres_stores import OnOneLoop, PostgresStores

from evertick.store.postgres.connection import statements_for
from evertick.testing.conformance import StoreConformance, TransactionConformance
from servers.postgres import system_binaries

pytestmark = [
    pytest.mark.more_servers,
    pytest.mark.skipif(
        system_binaries() is None,
        reason="NO POSTGRESQL OF THE SYSTEM: the store is shown to work on one major version only; "
        "apt-get install postgresql",
    ),
]


async def test_it_is_another_version_than_that_of_the_other_tests(system_dsn: str, postgres_dsn: str) -> None:
    versions = []
    for dsn in (system_dsn, postgres_dsn):
        connection = await asyncpg.connect(dsn)
        versions.append(connection.get_server_version().major)
        await connection.close()
    assert len(set(versions)) == 2, f"both are {versions[0]}: nothing is shown by running the suite twice"


async def test_it_can_prepare_every_statement_of_the_store(system_dsn: str) -> None:
    stores = PostgresStores(system_dsn)
    await stores.open()
    connection = await stores.connect()
    try:
        for statement in statements_for(stores.schema).values():
            await connection.prepare(statement)
    finally:
        await connection.close()
        await stores.close()


class OnTheSystem(OnOneLoop):
    @pytest.fixture
    def postgres_dsn(self, system_dsn: str) -> str:
        return system_dsn


@pytest.mark.long("store")
class TestPostgresOfTheSystem(OnTheSystem, StoreConformance):
    pass


class TestTransactionsOnPostgresOfTheSystem(OnTheSystem, TransactionConformance):
    pass
