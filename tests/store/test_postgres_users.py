"""Runs are enqueued and finished inside the transaction of the user, with any driver."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import psycopg
import pytest
from postgres_stores import PostgresStores, PostgresUsers
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from evertick import Context, Scheduler
from evertick.aio.blocking import at_once
from evertick.clock import system_clock
from evertick.errors import InvalidInput, Refused, TransactionTimeout
from evertick.model import Claimed, State, Verdict
from evertick.store.base import JobTransaction
from evertick.store.postgres import PostgresStore
from evertick.testing.conformance import Bench, a_run, an_outcome
from evertick.testing.conformance.bench import APP


@pytest.fixture
async def bench(kept_postgres_stores: PostgresStores) -> AsyncIterator[Bench]:
    bench = Bench(kept_postgres_stores, await kept_postgres_stores.open())
    yield bench
    await bench.check()


async def is_there(bench: Bench, run: str) -> bool:
    return bool(await bench.runs(ids=(run,)))


# --- plain ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [True, False])
async def test_a_plain_connection_of_psycopg_needs_no_event_loop(
    bench: Bench, postgres_dsn: str, commits: bool
) -> None:
    new = a_run(args=b'{"n":1}', labels={"a": "b"}, unique_key="k", priority=3, expires=5)
    with psycopg.connect(postgres_dsn) as connection:
        within = bench.store.within(connection)
        assert not within.is_async
        [run] = at_once(within.enqueue(APP, [new]))
        [again] = at_once(within.enqueue(APP, [new]))
        assert (run.id, run.is_new, run.args, run.labels, run.priority) == (new.id, True, {"n": 1}, {"a": "b"}, 3)
        assert (again.id, again.is_new) == (new.id, False)
        assert not await is_there(bench, new.id)
        connection.commit() if commits else connection.rollback()
    assert await is_there(bench, new.id) is commits


async def test_a_run_is_finished_on_a_plain_connection(bench: Bench, postgres_dsn: str) -> None:
    node = await bench.node()
    held = await bench.hold(node, await bench.fire(await bench.add()))
    blocked = await bench.fire(await bench.stored(), state=State.BLOCKED)
    with psycopg.connect(postgres_dsn) as connection:
        within = bench.store.within(connection)
        assert at_once(within.finish(APP, node, an_outcome(held, result=b"7"))) == "done"
        assert await bench.state(held.id) is State.RUNNING
    run = await bench.run(held.id)
    assert (run.verdict, run.result) == (Verdict.SUCCEEDED, 7)
    assert await bench.state(blocked) is State.WAITING


async def test_an_error_of_ours_leaves_the_transaction_of_the_user_as_it_was(bench: Bench, postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("CREATE TEMPORARY TABLE mine (x int)")
        connection.execute("INSERT INTO mine VALUES (1)")
        with pytest.raises(Exception, match="surrogates"):
            at_once(bench.store.within(connection).enqueue(APP, [a_run(task="\ud800")]))
        assert connection.execute("SELECT x FROM mine").fetchall() == [(1,)]


async def test_a_connection_without_a_transaction_is_refused(bench: Bench, postgres_dsn: str) -> None:
    with (
        psycopg.connect(postgres_dsn, autocommit=True) as connection,
        pytest.raises(Refused, match="no transaction is open"),
    ):
        at_once(bench.store.within(connection).enqueue(APP, [a_run()]))
    plain = await asyncpg.connect(postgres_dsn)
    with pytest.raises(Refused, match="no transaction is open"):
        await bench.store.within(plain).enqueue(APP, [a_run()])
    await plain.close()


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
async def test_any_isolation_level_of_the_user_will_do(bench: Bench, postgres_dsn: str, isolation: str) -> None:
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        [run] = at_once(bench.store.within(connection).enqueue(APP, [a_run(unique_key="k")]))
    assert await is_there(bench, run.id)


async def test_a_transaction_that_has_failed_is_refused(bench: Bench, postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn) as plain:
        with pytest.raises(psycopg.errors.DivisionByZero):
            plain.execute("SELECT 1 / 0")
        with pytest.raises(Refused, match="has failed before"):
            at_once(bench.store.within(plain).enqueue(APP, [a_run()]))
        plain.rollback()
    connection = await asyncpg.connect(postgres_dsn)
    await connection.execute("BEGIN")
    with pytest.raises(asyncpg.DivisionByZeroError):
        await connection.execute("SELECT 1 / 0")
    with pytest.raises(Refused, match="has failed before"):
        await bench.store.within(connection).enqueue(APP, [a_run()])
    await connection.close()


async def test_a_connection_that_is_closed_is_refused(bench: Bench, postgres_dsn: str) -> None:
    connection = await asyncpg.connect(postgres_dsn)
    await connection.close()
    with pytest.raises(Refused, match="is closed"):
        await bench.store.within(connection).enqueue(APP, [a_run()])
    with psycopg.connect(postgres_dsn) as plain:
        pass
    with pytest.raises(Refused, match="is closed"):
        at_once(bench.store.within(plain).enqueue(APP, [a_run()]))


async def test_a_closed_connection_of_sqlalchemy_is_refused(bench: Bench, postgres_dsn: str) -> None:
    engine = create_engine(sqlalchemy_url(postgres_dsn, "psycopg"))
    with engine.connect() as connection:
        pass
    with pytest.raises(Refused, match="this connection is closed; pass one that is open"):
        bench.store.within(connection)
    engine.dispose()
    async_engine = create_async_engine(sqlalchemy_url(postgres_dsn, "asyncpg"))
    async with async_engine.connect() as async_connection:
        pass
    with pytest.raises(Refused, match="this connection is closed; pass one that is open"):
        bench.store.within(async_connection)
    await async_engine.dispose()


async def test_a_conflict_in_the_transaction_of_the_user_is_an_error_of_its_own_driver(
    bench: Bench, postgres_dsn: str
) -> None:
    """Programs that try again on a serialization failure know it by its type."""
    node = await bench.node()
    held = await bench.hold(node)
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1")
        await bench.cancel(held.id)
        with pytest.raises(psycopg.errors.SerializationFailure):
            at_once(bench.store.within(connection).finish(APP, node, an_outcome(held)))


async def test_a_connection_of_psycopg2_is_refused_with_the_fix(bench: Bench) -> None:
    # As its own class says of itself; that driver and ours are rarely installed together.
    connection = type("connection", (), {"__module__": "psycopg2.extensions"})()
    with pytest.raises(InvalidInput, match=r"pip install 'psycopg\[binary\]'"):
        bench.store.within(connection)


async def test_a_plain_connection_that_leads_elsewhere_is_refused(bench: Bench, postgres_dsn: str) -> None:
    with (
        psycopg.connect(postgres_dsn, dbname="template1") as connection,
        pytest.raises(Refused, match="this connection leads to"),
    ):
        at_once(bench.store.within(connection).enqueue(APP, [a_run()]))


async def test_another_schema_of_the_same_database_is_another_store(
    bench: Bench, kept_postgres_stores: PostgresStores, postgres_users: PostgresUsers
) -> None:
    kept_postgres_stores.forget_attempt()
    connection = await kept_postgres_stores.connect()
    await connection.execute(f"UPDATE {kept_postgres_stores.schema}.meta SET store_id = 'of a copy'")
    await connection.close()
    user = await postgres_users.begin()
    with pytest.raises(Refused, match="another store"):
        await bench.store.within(user.connection).enqueue(APP, [a_run()])
    await user.rollback()


async def test_an_object_that_is_no_connection_is_refused_with_the_accepted_ones(bench: Bench) -> None:
    with pytest.raises(InvalidInput, match="psycopg 3"):
        bench.store.within(object())


# --- async, and wrapped ----------------------------------------------------------------------------------------------


async def test_an_async_connection_of_psycopg(bench: Bench, postgres_dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(postgres_dsn) as connection:
        within = bench.store.within(connection)
        assert within.is_async
        [run] = await within.enqueue(APP, [a_run()])
        assert not await is_there(bench, run.id)
        await connection.commit()
    assert await is_there(bench, run.id)


async def test_a_connection_of_a_pool_of_asyncpg(bench: Bench, postgres_dsn: str) -> None:
    async with (
        asyncpg.create_pool(postgres_dsn, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        [run] = await bench.store.within(connection).enqueue(APP, [a_run()])
        assert not await is_there(bench, run.id)
    assert await is_there(bench, run.id)


async def test_codecs_of_the_user_do_not_disturb(bench: Bench, postgres_dsn: str) -> None:
    connection = await asyncpg.connect(postgres_dsn)
    await connection.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    async with connection.transaction():
        [run] = await bench.store.within(connection).enqueue(APP, [a_run(labels={"a": "b"})])
    assert run.labels == (await bench.run(run.id)).labels == {"a": "b"}
    await connection.close()


def sqlalchemy_url(dsn: str, driver: str) -> str:
    return dsn.replace("postgresql://", f"postgresql+{driver}://")


# Whether the user has said anything on the connection before: SQLAlchemy begins its transactions only then.
first_word = pytest.mark.parametrize("is_first_word", [True, False])


@first_word
async def test_a_session_of_sqlalchemy_on_psycopg(bench: Bench, postgres_dsn: str, is_first_word: bool) -> None:
    engine = create_engine(sqlalchemy_url(postgres_dsn, "psycopg"))
    with Session(engine) as session:
        if not is_first_word:
            session.execute(text("SELECT 1"))
        [run] = at_once(bench.store.within(session).enqueue(APP, [a_run()]))
        assert not await is_there(bench, run.id)
        session.commit()
    engine.dispose()
    assert await is_there(bench, run.id)


@first_word
@pytest.mark.parametrize("commits", [True, False])
async def test_a_connection_of_sqlalchemy_on_psycopg(
    bench: Bench, postgres_dsn: str, is_first_word: bool, commits: bool
) -> None:
    engine = create_engine(sqlalchemy_url(postgres_dsn, "psycopg"))
    with engine.connect() as connection:
        if not is_first_word:
            connection.execute(text("SELECT 1"))
        [run] = at_once(bench.store.within(connection).enqueue(APP, [a_run()]))
        if commits:
            connection.commit()
    engine.dispose()
    assert await is_there(bench, run.id) is commits


@first_word
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_an_async_session_of_sqlalchemy(
    bench: Bench, postgres_dsn: str, driver: str, is_first_word: bool
) -> None:
    engine = create_async_engine(sqlalchemy_url(postgres_dsn, driver))
    async with AsyncSession(engine) as session:
        connection: Any = await session.connection()
        if not is_first_word:
            await session.execute(text("SELECT 1"))
        [run] = await bench.store.within(connection).enqueue(APP, [a_run()])
        assert not await is_there(bench, run.id)
        await session.commit()
    await engine.dispose()
    assert await is_there(bench, run.id)


@first_word
@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_an_async_connection_of_sqlalchemy(
    bench: Bench, postgres_dsn: str, driver: str, is_first_word: bool, commits: bool
) -> None:
    engine = create_async_engine(sqlalchemy_url(postgres_dsn, driver))
    async with engine.connect() as connection:
        if not is_first_word:
            await connection.execute(text("SELECT 1"))
        [run] = await bench.store.within(connection).enqueue(APP, [a_run()])
        if commits:
            await connection.commit()
    await engine.dispose()
    assert await is_there(bench, run.id) is commits


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_sqlalchemy_in_autocommit_is_refused(bench: Bench, postgres_dsn: str, driver: str) -> None:
    engine = create_async_engine(sqlalchemy_url(postgres_dsn, driver), isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        with pytest.raises(Refused, match="AUTOCOMMIT"):
            await bench.store.within(connection).enqueue(APP, [a_run()])
    await engine.dispose()


async def test_an_async_session_itself_is_refused_with_the_fix(bench: Bench, postgres_dsn: str) -> None:
    engine = create_async_engine(sqlalchemy_url(postgres_dsn, "asyncpg"))
    async with AsyncSession(engine) as session:
        with pytest.raises(InvalidInput, match=r"await session.connection\(\)"):
            bench.store.within(session)
    await engine.dispose()


# --- Django ----------------------------------------------------------------------------------------------------------

DJANGO = """
import asyncio, json, sys
import django
from django.conf import settings
from urllib.parse import urlsplit

url = sys.argv[1]
parts = urlsplit(url)
settings.configure(DATABASES={"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": parts.path[1:], "USER": parts.username,
    "PASSWORD": parts.password or "", "HOST": parts.hostname, "PORT": parts.port}})
django.setup()

from asgiref.sync import sync_to_async
from django.db import connection, transaction
from evertick import Refused, Scheduler

scheduler = Scheduler(url, concurrency=0)

@scheduler.task
def ship(how: str) -> None: ...

def enqueue(how):
    ship.options(connection=connection, labels={"how": how}).sync.enqueue(how=how)

def refusal(how):
    try:
        enqueue(how)
    except Refused as refused:
        return str(refused)

scheduler.sync.runs()
outside = refusal("outside")
with transaction.atomic():
    enqueue("committed")
try:
    with transaction.atomic():
        enqueue("rolled back")
        raise KeyError
except KeyError:
    pass
with transaction.atomic():
    enqueue("around")
    try:
        with transaction.atomic():
            enqueue("in a savepoint that was rolled back")
            raise KeyError
    except KeyError:
        pass
try:
    with transaction.atomic():
        try:
            connection.cursor().execute("SELECT 1 / 0")
        except Exception:
            failed = refusal("failed")
        transaction.set_rollback(True)
except Exception:
    pass

@transaction.atomic
def pay():
    enqueue("from an async view")

async def view():
    await sync_to_async(pay)()

asyncio.run(view())
runs = sorted(run.args["how"] for run in scheduler.sync.runs())
print(json.dumps({"outside": outside, "failed": failed, "runs": runs}))
scheduler.sync.close()
"""


def test_the_connection_of_django_takes_part_in_its_atomic_blocks(postgres_url: str) -> None:
    program = subprocess.run([sys.executable, "-c", DJANGO, postgres_url], capture_output=True, text=True, timeout=60)
    assert program.returncode == 0, program.stderr
    seen = json.loads(program.stdout)
    assert "transaction.atomic()" in seen["outside"]
    assert "has failed before" in seen["failed"]
    assert seen["runs"] == ["around", "committed", "from an async view"]


# --- transactions for jobs -------------------------------------------------------------------------------------------


async def begun(bench: Bench, *, is_plain: bool, seconds: float = 60) -> tuple[Any, JobTransaction, str, Claimed]:
    node = await bench.node()
    held = await bench.hold(node)
    job = bench.store.transaction(seconds=seconds, is_plain=is_plain)
    connection = await job.begin(APP, node, held.id, held.fence)
    assert connection is not None
    return connection, job, node, held


async def test_a_plain_job_writes_its_rows_and_its_end_together(
    bench: Bench, kept_postgres_stores: PostgresStores
) -> None:
    kept_postgres_stores.forget_attempt()
    connection, job, node, held = await begun(bench, is_plain=True)
    connection.execute(f"CREATE TABLE {kept_postgres_stores.schema}.paid AS SELECT 1 AS amount")
    assert await bench.state(held.id) is State.RUNNING
    assert at_once(job.commit(APP, node, an_outcome(held)))
    assert (await bench.run(held.id)).verdict is Verdict.SUCCEEDED
    reader = await kept_postgres_stores.connect()
    assert await reader.fetchval(f"SELECT amount FROM {kept_postgres_stores.schema}.paid") == 1
    await reader.close()


async def test_a_plain_job_whose_claim_is_lost_writes_nothing(
    bench: Bench, kept_postgres_stores: PostgresStores
) -> None:
    kept_postgres_stores.forget_attempt()
    connection, job, node, held = await begun(bench, is_plain=True)
    connection.execute(f"CREATE TABLE {kept_postgres_stores.schema}.paid AS SELECT 1 AS amount")
    await bench.store.leave(node)
    await bench.rehome(await bench.node())
    assert not at_once(job.commit(APP, node, an_outcome(held)))
    reader = await kept_postgres_stores.connect()
    assert await reader.fetchval("SELECT to_regclass($1)", f"{kept_postgres_stores.schema}.paid") is None
    await reader.close()


@pytest.mark.parametrize("is_plain", [True, False])
async def test_a_job_may_take_longer_than_an_intent_of_the_store(
    kept_postgres_stores: PostgresStores, postgres_dsn: str, is_plain: bool
) -> None:
    await kept_postgres_stores.open()
    store = PostgresStore(f"{kept_postgres_stores.url}&timeout=500ms", clock=system_clock)
    await store.open(migrate="check")
    bench = Bench(kept_postgres_stores, store)
    connection, job, node, held = await begun(bench, is_plain=is_plain)
    working, elsewhere = "SELECT pg_sleep(1)", await asyncpg.connect(postgres_dsn)
    # One statement that takes longer, and a pause between two that does.
    await (asyncio.to_thread(connection.execute, working) if is_plain else connection.execute(working))
    await elsewhere.execute(working)
    await elsewhere.close()
    ended = job.commit(APP, node, an_outcome(held))
    assert at_once(ended) if is_plain else await ended
    assert (await bench.run(held.id)).verdict is Verdict.SUCCEEDED
    await store.close()


@pytest.mark.parametrize("is_plain", [True, False])
async def test_a_job_that_takes_too_long_is_rolled_back_by_itself(bench: Bench, is_plain: bool) -> None:
    connection, job, node, held = await begun(bench, is_plain=is_plain, seconds=0.1)
    sleeping = "SELECT pg_sleep(20)"
    working = asyncio.to_thread(connection.execute, sleeping) if is_plain else connection.execute(sleeping)
    with pytest.raises(Exception, match=r"(?i)terminat|clos|cancel"):
        await working
    with pytest.raises(TransactionTimeout):
        await job.commit(APP, node, an_outcome(held))
    assert await bench.state(held.id) is State.RUNNING


@pytest.mark.parametrize("is_plain", [True, False])
async def test_a_job_that_takes_too_long_gets_an_error_of_evertick(postgres_url: str, is_plain: bool) -> None:
    scheduler = Scheduler(postgres_url, lease="1s")

    async def slow(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("SELECT pg_sleep(20)")

    def slow_plain(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute("SELECT pg_sleep(20)")

    task = scheduler.task(slow_plain if is_plain else slow)
    async with scheduler:
        run = await task.enqueue()
        async with asyncio.timeout(30):
            while (ended := await scheduler.get_run(run.id)).verdict is None:
                await asyncio.sleep(0.02)
    assert ended.verdict is Verdict.FAILED
    assert ended.error is not None
    assert "TransactionTimeout" in ended.error


@pytest.mark.parametrize("is_plain", [True, False])
async def test_a_job_that_ends_its_transaction_by_itself_gets_an_error(bench: Bench, is_plain: bool) -> None:
    connection, job, node, held = await begun(bench, is_plain=is_plain)
    if is_plain:
        connection.execute("COMMIT")
    else:
        await connection.execute("COMMIT; BEGIN")
    with pytest.raises(Refused, match="ended the transaction"):
        await job.commit(APP, node, an_outcome(held))
    assert await bench.state(held.id) is State.RUNNING


async def test_no_session_waits_for_the_transaction_of_a_job(bench: Bench) -> None:
    _, job, node, held = await begun(bench, is_plain=False)
    async with asyncio.timeout(20):
        assert await bench.cancel(held.id) == ["asked"]
    await job.rollback()
    assert await bench.finish(node, an_outcome(held)) == ["done"]


async def test_without_psycopg_the_error_of_a_plain_job_names_the_package(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(Refused, match="pip install"):
        bench.store.transaction(seconds=1, is_plain=True)
