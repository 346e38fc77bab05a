"""Behind a real PgBouncer in transaction mode the store keeps its promises, and nodes wake each other around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from urllib.parse import quote

import pytest
from postgres_stores import PostgresStores, SpareConnections, in_schema_of

from evertick import Scheduler, TransactionTimeout
from evertick.aio.blocking import at_once
from evertick.clock import system_clock
from evertick.errors import StoreRefused
from evertick.model import State
from evertick.store.base import RunFilter
from evertick.store.postgres import PostgresStore, wakeup
from evertick.testing.conformance import Bench, StoreConformance, Stores, a_run, an_outcome
from evertick.testing.conformance import _BenchFixtures as ConformanceFixtures
from evertick.testing.conformance.bench import APP
from evertick.testing.conformance.claims import Claims
from evertick.testing.conformance.duties import Duties
from evertick.testing.conformance.limits import Limits
from servers.pgbouncer import SESSIONS, pgbouncer, pgbouncer_binary
from servers.postgres import system_binaries

pytestmark = [
    pytest.mark.more_servers,
    pytest.mark.skipif(
        pgbouncer_binary() is None,
        reason="PgBouncer IS NOT INSTALLED: nothing shows that the store works behind it; apt-get install pgbouncer",
    ),
]
PATIENCE = 30.0


@pytest.fixture(scope="module")
def postgres_dsn(postgres_dsn: str, request: pytest.FixtureRequest) -> str:
    """The system's server, where there is one: these tests run on a second major version, too."""
    return postgres_dsn if system_binaries() is None else str(request.getfixturevalue("system_dsn"))


@pytest.fixture(scope="module")
def pooler_dsn(postgres_dsn: str) -> Iterator[str]:
    with pgbouncer(postgres_dsn) as dsn:
        yield dsn


class PooledStores(PostgresStores):
    """Stores through the pooler; the test's own connections go around it."""

    def __init__(self, dsn: str, pooler_dsn: str, *, spare: SpareConnections | None = None) -> None:
        super().__init__(dsn, spare=spare)
        self.url = in_schema_of(pooler_dsn, self.schema, pooler="transaction")


@pytest.fixture
async def pooled_stores(postgres_dsn: str, pooler_dsn: str) -> AsyncIterator[PooledStores]:
    stores = PooledStores(postgres_dsn, pooler_dsn)
    yield stores
    await stores.close()


class BehindPgbouncer:
    @pytest.fixture
    async def stores(
        self, postgres_dsn: str, pooler_dsn: str, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[Stores]:
        spare = SpareConnections()
        spare.patch(monkeypatch)
        stores = PooledStores(postgres_dsn, pooler_dsn, spare=spare)
        yield stores
        await stores.close()
        await spare.close()


class TestClaimsBehindPgbouncer(BehindPgbouncer, ConformanceFixtures, Claims, Limits, Duties):
    """The promises that rest on locks and on transactions of several statements; the others rest on single ones."""


@pytest.mark.long("store")
class TestPostgresBehindPgbouncer(BehindPgbouncer, StoreConformance):
    """All promises."""


async def test_a_pooler_without_the_setting_is_refused_with_the_fix(
    pooled_stores: PooledStores, pooler_dsn: str
) -> None:
    store = PostgresStore(in_schema_of(pooler_dsn, pooled_stores.schema), clock=system_clock)
    with pytest.raises(StoreRefused, match=r"behind a pooler.* add pooler=transaction to the URL"):
        await store.open(migrate="auto")
    await store.close()


async def test_stores_that_open_at_once_migrate_once(pooled_stores: PooledStores) -> None:
    await asyncio.gather(*(pooled_stores.open() for _ in range(10)))
    connection = await pooled_stores.connect()
    assert await connection.fetchval(f"SELECT count(*) FROM {pooled_stores.schema}.migrations") == 1
    await connection.close()


async def test_many_clients_share_a_few_sessions_and_leave_nothing_on_them(pooled_stores: PooledStores) -> None:
    stores = [await pooled_stores.open() for _ in range(SESSIONS * 2)]
    for _ in range(3):
        await asyncio.gather(*(store.enqueue(APP, [a_run()]) for store in stores for _ in range(5)))
        await asyncio.gather(*(store.runs(APP, RunFilter(limit=10)) for store in stores))
    assert len(await stores[0].runs(APP, RunFilter(limit=1000))) == 3 * 5 * len(stores)
    connection = await pooled_stores.connect()
    # Of sessions at rest: other tests on this server lock, too, but in transactions.
    left = """SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
        WHERE locktype = 'advisory' AND state = 'idle'"""
    assert await connection.fetchval(left) == 0
    await connection.close()


@pytest.mark.parametrize("is_plain", [True, False])
async def test_a_job_has_its_transaction_through_the_pooler(pooled_stores: PooledStores, is_plain: bool) -> None:
    bench = Bench(pooled_stores, await pooled_stores.open())
    node = await bench.node()
    held = await bench.hold(node)
    job = bench.store.transaction(seconds=60, is_plain=is_plain)
    connection = await job.begin(APP, node, held.id, held.fence)
    table = f"{pooled_stores.schema}.paid"
    if is_plain:
        connection.execute(f"CREATE TABLE {table} (n int)")
        # More often than the driver waits before it would prepare a statement.
        for number in range(10):
            connection.execute(f"INSERT INTO {table} VALUES (%s)", [number])
        assert at_once(job.commit(APP, node, an_outcome(held)))
    else:
        await connection.execute(f"CREATE TABLE {table} (n int)")
        for number in range(10):
            await connection.execute(f"INSERT INTO {table} VALUES ($1)", number)
        assert await job.commit(APP, node, an_outcome(held))
    assert await bench.state(held.id) is State.DONE


@pytest.mark.parametrize("is_plain", [True, False])
async def test_only_the_job_that_takes_too_long_is_ended(pooled_stores: PooledStores, is_plain: bool) -> None:
    bench = Bench(pooled_stores, await pooled_stores.open())
    node = await bench.node()
    held = await bench.hold(node)
    job = bench.store.transaction(seconds=0.2, is_plain=is_plain)
    connection = await job.begin(APP, node, held.id, held.fence)
    sleeping = "SELECT pg_sleep(20)"
    working = asyncio.to_thread(connection.execute, sleeping) if is_plain else connection.execute(sleeping)
    with pytest.raises(Exception, match=r"(?i)terminat|clos|cancel"):
        await working
    with pytest.raises(TransactionTimeout):
        await job.commit(APP, node, an_outcome(held))
    assert await bench.state(held.id) is State.RUNNING


@pytest.mark.parametrize("listens", [True, False])
async def test_nodes_work_together_with_and_without_a_second_way_for_wake_ups(
    pooled_stores: PooledStores, postgres_dsn: str, listens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if listens:
        # Else a node that hears nothing would look by itself.
        monkeypatch.setattr(wakeup, "POLL_SECONDS", 3600.0)
    url = f"{pooled_stores.url}&listen={quote(postgres_dsn, safe='')}" if listens else pooled_stores.url
    node, program = Scheduler(url, poll_interval="1h"), Scheduler(url, concurrency=0)
    started: asyncio.Queue[int] = asyncio.Queue()

    @node.task
    async def echo(number: int) -> None:
        started.put_nowait(number)

    sent = program.task(lambda number: None, name="echo")
    async with node:
        for number in range(5):
            await sent.enqueue(number=number)
            assert await asyncio.wait_for(started.get(), PATIENCE) == number
    await program.close()
