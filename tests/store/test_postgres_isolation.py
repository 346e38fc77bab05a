"""With any default isolation of the server the ledger is read committed; otherwise limits would be exceeded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import asyncpg
import pytest
from postgres_stores import PostgresStores, in_schema_of

from evertick.aio.blocking import at_once
from evertick.clock import system_clock
from evertick.errors import Refused
from evertick.model import Verdict
from evertick.model.limits import Concurrency, Subject
from evertick.store.base import TaskTerms
from evertick.store.postgres.connection import statements_for
from evertick.testing.conformance import Bench, an_outcome
from evertick.testing.conformance.bench import APP, TASK

LIMITED = {TASK: TaskTerms(concurrency=Concurrency(most=1, of=Subject(task=TASK)))}


@pytest.fixture(params=["repeatable read", "serializable"])
async def isolated_dsn(request: pytest.FixtureRequest, postgres_dsn: str) -> AsyncIterator[str]:
    """As a role whose transactions have another isolation unless they say otherwise."""
    role = f"isolated_{system_clock.new_token()[:12]}"
    connection = await asyncpg.connect(postgres_dsn)
    await connection.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
    await connection.execute(f"ALTER ROLE {role} SET default_transaction_isolation = '{request.param}'")
    parts = urlsplit(postgres_dsn)
    host = parts.netloc.rpartition("@")[2]
    yield parts._replace(netloc=f"{role}@{host}").geturl()
    await connection.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")
    await connection.close()


class IsolatedStores(PostgresStores):
    """Stores of that role; the test's own connections are those of another."""

    def __init__(self, dsn: str, isolated_dsn: str, **parameters: str) -> None:
        super().__init__(dsn)
        self.url = in_schema_of(isolated_dsn, self.schema, **parameters)


@pytest.fixture(params=[{}, {"pooler": "transaction"}], ids=["direct", "pooled"])
async def isolated_stores(
    request: pytest.FixtureRequest, postgres_dsn: str, isolated_dsn: str
) -> AsyncIterator[IsolatedStores]:
    stores = IsolatedStores(postgres_dsn, isolated_dsn, **request.param)
    yield stores
    await stores.close()


async def test_a_claim_that_waited_at_the_gate_counts_what_was_claimed_before_it(
    isolated_stores: IsolatedStores,
) -> None:
    bench = Bench(isolated_stores, await isolated_stores.open())
    first, second = await bench.node(tasks=LIMITED), await bench.node(tasks=LIMITED)
    # In queues of their own: at one and the same run the two would notice each other.
    theirs, _ = await bench.enqueue(queue="other"), await bench.enqueue()
    other = await isolated_stores.connect()
    gate = statements_for(isolated_stores.schema)["limits.gate"]
    async with other.transaction(isolation="read_committed"):
        await other.execute(gate, APP)
        claiming = asyncio.create_task(bench.claim(second, tasks=LIMITED))
        await _until_somebody_waits(isolated_stores, other)
        # The rows that a claim of the first node writes.
        await other.execute(
            f"UPDATE {isolated_stores.schema}.runs SET state = 'running', node = $2, fence = 1, started_at = 1,"
            " limit_key = $3 WHERE id = $1",
            theirs.id,
            first,
            LIMITED[TASK].concurrency.key(None),
        )
    await other.close()
    assert (await claiming).runs == []


async def test_each_way_to_the_database_is_read_committed(isolated_stores: IsolatedStores) -> None:
    store = await isolated_stores.open()
    asked = "SELECT current_setting('transaction_isolation') AS level"
    line = store.session()  # type: ignore[attr-defined]
    seen = [
        *await line.write(lambda db: db.select(asked)),
        *await line.ask(lambda db: db.select(asked)),
        *await line.borrow(lambda connection: connection.fetch(asked)),
    ]
    assert [row["level"] for row in seen] == ["read committed"] * 3


async def _until_somebody_waits(stores: IsolatedStores, holder: asyncpg.Connection) -> None:
    looking = await stores.connect()
    waits = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))"
    async with asyncio.timeout(10):
        while not await looking.fetchval(waits, holder.get_server_pid()):
            await asyncio.sleep(0.01)
    await looking.close()


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_run_with_waiters_cannot_be_finished_where_they_are_not_visible(
    postgres_stores: PostgresStores, isolation: str
) -> None:
    bench = Bench(postgres_stores, await postgres_stores.open())
    node = await bench.node(tasks=LIMITED)
    held = await bench.hold(node, terms=LIMITED[TASK])
    own = await postgres_stores.connect()
    async with own.transaction(isolation=isolation):
        await own.fetch("SELECT FROM pg_class")
        waiting = await bench.enqueue()
        assert (await bench.claim(node, tasks=LIMITED)).runs == []
        with pytest.raises(Refused, match=r"others wait for its end.* begin it as read committed"):
            await bench.store.within(own).finish(APP, node, an_outcome(held))
        # The transaction is as it was.
        assert await own.fetchval("SELECT 1") == 1
    async with own.transaction(isolation="read_committed"):
        assert await bench.store.within(own).finish(APP, node, an_outcome(held)) == "done"
    await own.close()
    assert [run.id for run in (await bench.claim(node, tasks=LIMITED)).runs] == [waiting.id]


async def test_a_run_without_waiters_is_finished_in_any_isolation(postgres_stores: PostgresStores) -> None:
    bench = Bench(postgres_stores, await postgres_stores.open())
    node = await bench.node()
    held = await bench.hold(node)
    own = await postgres_stores.connect()
    async with own.transaction(isolation="serializable"):
        assert await bench.store.within(own).finish(APP, node, an_outcome(held)) == "done"
    await own.close()
    assert (await bench.run(held.id)).verdict is Verdict.SUCCEEDED


@pytest.mark.parametrize("is_plain", [True, False])
async def test_a_job_works_in_read_committed(isolated_stores: IsolatedStores, is_plain: bool) -> None:
    bench = Bench(isolated_stores, await isolated_stores.open())
    node = await bench.node(tasks=LIMITED)
    held = await bench.hold(node, terms=LIMITED[TASK])
    job = bench.store.transaction(seconds=60, is_plain=is_plain)
    connection = await job.begin(APP, node, held.id, held.fence)
    asked = "SELECT current_setting('transaction_isolation')"
    found = connection.execute(asked).fetchone()[0] if is_plain else await connection.fetchval(asked)
    assert found == "read committed"
    ended = job.commit(APP, node, an_outcome(held))
    assert at_once(ended) if is_plain else await ended
