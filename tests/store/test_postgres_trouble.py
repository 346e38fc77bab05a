"""A server that is away, slow or full is said to be so in time, without a password, and used again when it is back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from urllib.parse import urlsplit

import asyncpg
import pytest
from postgres_stores import PostgresStores, in_schema_of

from evertick.clock import system_clock
from evertick.errors import StoreRefused, StoreUnavailable
from evertick.store.base import RunFilter
from evertick.store.postgres import PostgresStore, limits, wakeup
from evertick.store.postgres.connection import Statements
from evertick.testing.conformance import Bench, a_run
from evertick.testing.conformance.bench import APP, HOUR, TASK, TERMS
from evertick.testing.conformance.limits import at_once
from servers.postgres import dsn_with

SECRET = "hunter2"
# Far more than anything here may take, far less than it would wait without a deadline.
PATIENCE = 20.0


class Proxy:
    """A way to the server that can be cut, or swallow all that is sent."""

    def __init__(self, dsn: str) -> None:
        self._target = urlsplit(dsn)
        self._may_pass = asyncio.Event()
        self._may_pass.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        return f"postgresql://{self._target.username}:{SECRET}@127.0.0.1:{port}{self._target.path}"

    def swallow(self) -> None:
        self._may_pass.clear()

    def heal(self) -> None:
        self._may_pass.set()

    def lose(self) -> None:
        """From now on every open connection leads nowhere, without notice."""
        for task in self._tasks:
            task.cancel()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            ahead, behind = await asyncio.open_connection(self._target.hostname, self._target.port)
            self._writers |= {writer, behind}
            for pump in (self._pump(reader, behind), self._pump(ahead, writer)):
                self._tasks.add(asyncio.create_task(pump))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                await self._may_pass.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@pytest.fixture
async def proxy(postgres_dsn: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(postgres_dsn)
    yield proxy
    await proxy.close()


@pytest.fixture
async def distant(proxy: Proxy, postgres_stores: PostgresStores) -> AsyncIterator[PostgresStore]:
    """A store behind the proxy, which does not wait for long."""
    # So much patience is not for migrations.
    await postgres_stores.open()
    url = in_schema_of(await proxy.start(), postgres_stores.schema, timeout="1s", connect_timeout="1s")
    store = PostgresStore(url, clock=system_clock)
    await store.open(migrate="check")
    yield store
    proxy.heal()
    await store.close()


async def is_well(store: PostgresStore) -> None:
    """Works again, at the latest at the second try: a line may be found broken by the first. Only a machine that stands
    still may need more: it is then too late for any answer."""
    with suppress(StoreUnavailable):
        await store.now()
    async with asyncio.timeout(PATIENCE):
        while not await answers(store):
            pass


async def answers(store: PostgresStore) -> bool:
    try:
        return await store.now() > 0
    except StoreUnavailable as unavailable:
        if "does not answer in time" in str(unavailable):
            return False
        raise


async def is_waited_for(connection: asyncpg.Connection, schema: str) -> bool:
    """Whether a session waits for the table of runs of this schema: other tests use the same server."""
    waiting = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = $1::regclass)"
    return bool(await connection.fetchval(waiting, f"{schema}.runs"))


# --- a server that does not answer -----------------------------------------------------------------------------------


async def test_a_server_that_never_answers_is_abandoned_in_time(distant: PostgresStore, proxy: Proxy) -> None:
    await distant.now()
    proxy.swallow()
    for _ in range(2):  # on a line that was there, and on a new one
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(StoreUnavailable, match="does not answer in time") as unavailable:
                await distant.enqueue(APP, [a_run()])
        assert SECRET not in str(unavailable.value)
    proxy.heal()
    await is_well(distant)


async def test_no_caller_waits_longer_for_a_connection_than_for_an_answer(distant: PostgresStore, proxy: Proxy) -> None:
    await distant.now()
    proxy.swallow()
    # More than there are connections, and one who makes its own transactions.
    asking = [distant.now() for _ in range(20)]
    pruning = distant.prune(APP, before=0, keep_per_schedule=None, limit=9)
    async with asyncio.timeout(PATIENCE):
        answers = await asyncio.gather(*asking, pruning, return_exceptions=True)
    assert {type(answer) for answer in answers} == {StoreUnavailable}
    proxy.heal()
    await is_well(distant)


async def test_a_line_that_breaks_is_replaced(distant: PostgresStore, proxy: Proxy) -> None:
    await distant.now()
    proxy.cut()
    await is_well(distant)


async def test_when_heartbeats_are_answered_again_no_caller_waits_on_old_connections(
    proxy: Proxy, postgres_stores: PostgresStores
) -> None:
    # By itself none of these would give up while the test waits.
    url = in_schema_of(await proxy.start(), postgres_stores.schema, timeout="10m", connect_timeout="10m")
    store = PostgresStore(url, clock=system_clock)
    await store.open(migrate="auto")
    node = await Bench(postgres_stores, store).node()
    line, lease = await store.heartbeat_session(), 2_000_000
    await line.beat(node, lease)
    await asyncio.gather(*(store.now() for _ in range(5)))
    assert await store.changed(APP, 20), "a line that was just opened is news by itself"
    proxy.lose()
    # More than there are connections: some wait for one.
    asking = [asyncio.create_task(store.now()) for _ in range(8)]
    listening = asyncio.create_task(store.changed(APP, 3600))
    with pytest.raises(StoreUnavailable):
        await line.beat(node, lease)
    assert not any(task.done() for task in asking)
    assert (await line.beat(node, lease)).is_alive
    async with asyncio.timeout(PATIENCE):
        answers = await asyncio.gather(*asking, return_exceptions=True)
        assert StoreUnavailable in {type(answer) for answer in answers}
        assert await listening, "what was said meanwhile was not heard"
        assert await store.now() > 0
    await line.close()
    await store.close()


async def test_a_line_for_wake_ups_that_leads_nowhere_is_noticed_and_replaced(
    distant: PostgresStore, proxy: Proxy, postgres_stores: PostgresStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeup, "_PROBE_SECONDS", 0.1)
    assert await distant.changed(APP, 20), "a line that was just opened is news by itself"
    proxy.swallow()
    async with asyncio.timeout(PATIENCE):
        assert await distant.changed(APP, 3600), "nothing can be heard, so there may be news"
    proxy.heal()
    near = await postgres_stores.open()
    async with asyncio.timeout(20):
        while not await distant.changed(APP, 20):
            await near.enqueue(APP, [a_run()])


async def test_a_line_that_breaks_during_an_intent_leaves_its_outcome_unknown(
    distant: PostgresStore, proxy: Proxy, postgres_stores: PostgresStores
) -> None:
    blocker = await postgres_stores.connect()
    transaction = blocker.transaction()
    await transaction.start()
    await blocker.execute(f"LOCK TABLE {postgres_stores.schema}.runs")
    enqueueing = asyncio.create_task(distant.enqueue(APP, [new := a_run()]))
    while not await is_waited_for(blocker, postgres_stores.schema):
        assert not enqueueing.done()
    proxy.cut()
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await enqueueing
    await transaction.rollback()
    await blocker.close()
    await is_well(distant)
    # In any case, sending it again makes it one run.
    [run] = await distant.enqueue(APP, [new])
    assert [found.id for found in await distant.runs(APP, RunFilter())] == [run.id]


async def test_a_beat_that_cannot_get_through_fails_while_there_is_time(distant: PostgresStore, proxy: Proxy) -> None:
    line = await distant.heartbeat_session()
    assert not (await line.beat("nobody", HOUR)).is_alive
    proxy.swallow()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(StoreUnavailable):
            await line.beat("nobody", 2_000_000)
    proxy.heal()
    assert not (await line.beat("nobody", HOUR)).is_alive
    await line.close()


async def test_closing_does_not_wait_for_a_server_that_is_away(distant: PostgresStore, proxy: Proxy) -> None:
    await distant.now()
    proxy.swallow()
    async with asyncio.timeout(PATIENCE):
        await distant.close()
    with pytest.raises(StoreUnavailable, match="not open"):
        await distant.now()


async def test_a_session_that_the_server_ends_is_replaced(postgres_stores: PostgresStores) -> None:
    store = await postgres_stores.open()
    await store.now()
    connection = await postgres_stores.connect()
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'evertick' AND query LIKE $1",
        f"%{postgres_stores.schema}%",
    )
    await connection.close()
    assert isinstance(store, PostgresStore)
    await is_well(store)


# --- at the start ----------------------------------------------------------------------------------------------------


async def test_a_server_that_is_not_there_is_unavailable_and_not_refused() -> None:
    store = PostgresStore(f"postgresql://u:{SECRET}@127.0.0.1:1/db", clock=system_clock)
    with pytest.raises(StoreUnavailable, match=r"database db at 127\.0\.0\.1:1 cannot be reached") as unavailable:
        await store.open(migrate="auto")
    assert SECRET not in str(unavailable.value)


async def test_a_database_that_does_not_exist_is_refused_by_name(postgres_dsn: str) -> None:
    store = PostgresStore(dsn_with(postgres_dsn, database="no_such"), clock=system_clock)
    with pytest.raises(StoreRefused, match=r"no_such .*does not exist .*; create the database"):
        await store.open(migrate="auto")


async def test_an_intent_before_opening_is_refused_with_the_fix() -> None:
    with pytest.raises(StoreUnavailable, match="not open; open it"):
        await PostgresStore("postgresql://h/db", clock=system_clock).now()


def test_a_store_that_was_opened_before_a_fork_is_refused_in_the_child(postgres_dsn: str) -> None:
    program = """
import asyncio, os, sys
from evertick.clock import system_clock
from evertick.errors import Forked
from evertick.store.postgres import PostgresStore

store = PostgresStore(sys.argv[1], clock=system_clock)
asyncio.run(store.open(migrate="auto"))
if os.fork() == 0:
    try:
        asyncio.run(store.now())
    except Forked as error:
        print("refused" if "after the fork" in str(error) else error, flush=True)
    os._exit(0)
os.wait()
asyncio.run(store.close())
"""
    stores = PostgresStores(postgres_dsn)
    answer = subprocess.run([sys.executable, "-c", program, stores.url], capture_output=True, text=True)
    asyncio.run(stores.close())
    assert answer.stdout.strip() == "refused", answer.stderr


# --- connections -----------------------------------------------------------------------------------------------------


async def connections(stores: PostgresStores) -> int:
    connection = await stores.connect()
    count: int = await connection.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'evertick' AND query LIKE $1",
        f"%{stores.schema}%",
    )
    await connection.close()
    return count


async def test_many_intents_at_once_share_a_few_connections(postgres_dsn: str) -> None:
    stores = PostgresStores(postgres_dsn, pool_size="2")
    store = await stores.open()
    await asyncio.gather(*(store.enqueue(APP, [a_run()]) for _ in range(30)))
    assert len(await store.runs(APP, RunFilter(limit=100))) == 30
    assert await connections(stores) <= 2
    await stores.close()


async def test_an_event_loop_that_ends_takes_its_connections_with_it(postgres_stores: PostgresStores) -> None:
    store = await postgres_stores.open()
    for _ in range(3):
        await asyncio.to_thread(asyncio.run, store.enqueue(APP, [a_run()]))
    async with asyncio.timeout(PATIENCE):
        while await connections(postgres_stores) > 0:
            pass
    assert len(await store.runs(APP, RunFilter())) == 3


async def test_a_caller_who_is_cancelled_leaves_nothing_open(postgres_stores: PostgresStores) -> None:
    store = await postgres_stores.open()
    blocker = await postgres_stores.connect()
    async with blocker.transaction():
        await blocker.execute(f"LOCK TABLE {postgres_stores.schema}.runs")
        enqueueing = asyncio.create_task(store.enqueue(APP, [a_run()]))
        while not await is_waited_for(blocker, postgres_stores.schema):
            assert not enqueueing.done()
        enqueueing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await enqueueing
    await blocker.close()
    assert await store.runs(APP, RunFilter()) == []
    assert (await store.enqueue(APP, [a_run()]))[0].is_new


async def test_a_beat_does_not_wait_for_a_connection_of_the_pool(postgres_dsn: str) -> None:
    stores = PostgresStores(postgres_dsn, pool_size="1")
    bench = Bench(stores, await stores.open())
    node = await bench.node()
    blocker = await stores.connect()
    line = await bench.store.heartbeat_session()
    async with blocker.transaction():
        await blocker.execute(f"LOCK TABLE {stores.schema}.runs IN SHARE MODE")
        enqueueing = asyncio.create_task(bench.store.enqueue(APP, [a_run()]))
        while not await is_waited_for(blocker, stores.schema):
            assert not enqueueing.done()
        async with asyncio.timeout(PATIENCE):
            assert (await line.beat(node, HOUR)).is_alive
    await enqueueing
    await line.close()
    await blocker.close()
    await stores.close()


async def test_a_node_that_falls_silent_in_the_gate_of_the_limits_loses_it(postgres_stores: PostgresStores) -> None:
    bench = Bench(postgres_stores, await postgres_stores.open())
    frozen = await postgres_stores.open()
    assert isinstance(frozen, PostgresStore)
    is_in, may_go_on = asyncio.Event(), asyncio.Event()

    async def stops_in_the_gate(db: Statements) -> None:
        await limits.enter_gate(db, APP)
        is_in.set()
        await may_go_on.wait()
        await db.rows("limits.next_keys", APP, "", 1)

    stopped = asyncio.create_task(frozen.session().write(stops_in_the_gate))
    await is_in.wait()
    node = await bench.node(tasks={TASK: at_once(1)})
    await bench.enqueue()
    async with asyncio.timeout(PATIENCE):
        claim = await bench.store.claim(APP, node, ["default"], {TASK: at_once(1)}, 10)
    assert len(claim.runs) == 1
    may_go_on.set()
    with pytest.raises(StoreUnavailable):
        await stopped


async def test_behind_a_pooler_nothing_is_left_on_a_connection(postgres_dsn: str) -> None:
    stores = PostgresStores(postgres_dsn, pooler="transaction")
    bench = Bench(stores, await stores.open())
    node = await bench.node()
    held = await bench.hold(node, await bench.fire(await bench.add()))
    await bench.end(node, held)
    assert await bench.store.changed(APP, 0.001)
    assert isinstance(bench.store, PostgresStore)

    async def left(connection: object) -> tuple[list[object], str]:
        prepared = await connection.fetch("SELECT name FROM pg_prepared_statements WHERE name <> ''")  # type: ignore[attr-defined]
        return prepared, (await connection.fetchrow("SHOW enable_seqscan"))[0]  # type: ignore[attr-defined]

    assert await bench.store.session().borrow(left) == ([], "on")
    assert len((await bench.claim(node, tasks=TERMS)).runs) == 0
    await stores.close()


@pytest.mark.parametrize("asked", ["sslmode=require", "sslmode=verify-full"])
async def test_a_server_without_tls_is_said_to_have_none(postgres_dsn: str, asked: str) -> None:
    store = PostgresStore(f"{postgres_dsn}?{asked}", clock=system_clock)
    with pytest.raises(StoreRefused, match=r"does not speak TLS.*turn it on at the server.*sslmode=prefer") as refused:
        await store.open(migrate="check")
    assert "network" not in str(refused.value)
