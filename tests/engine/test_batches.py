"""Fires, claims and verdicts go to the store in batches of a bounded size, and a batch costs a few statements."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from typing import Any

import asyncpg
import pytest

from evertick import Scheduler
from evertick.engine.finish import Finisher
from evertick.engine.work import Worker
from evertick.model import Claimed, Definition
from evertick.store.base import Change
from evertick.store.sqlite import SqliteStore
from evertick.when.moment import HOUR
from servers.postgres import postgres_server

PATIENCE = 60.0
# At batches of a thousand.
STATEMENTS_PER_FIRE, COMMITS_PER_FIRE = 0.01, 0.005
STATEMENTS_A_MINUTE = 40
# Until a node has said what it says once; and so long that what comes once a minute cannot come twice.
SETTLE_SECONDS, ALMOST_A_MINUTE = 5.0, 59.0
NOT_COUNTED = "pg_stat_statements|pg_snapshot_xmax|typeinfo_tree|AS cur, set_config|^(BEGIN|COMMIT|ROLLBACK)"
NEXT_TRANSACTION = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"


async def add_due(scheduler: Scheduler, count: int, first: int = 0, **fields: Any) -> None:
    """Schedules that are all due now, and not again for an hour."""
    store = await scheduler.runtime.store()
    now = await store.now()
    definition = Definition(task="tick", when="every 1h", **fields)
    adds = [
        Change(key=f"tick-{n}", kind="add", definition=definition, created_at=now - HOUR, fire_at=now, at=now)
        for n in range(first, first + count)
    ]
    assert all(await store.change_schedules(scheduler.app, adds))


async def until_idle(scheduler: Scheduler, ended: list[int], count: int) -> None:
    """Until so many runs have ended and nothing of them is live."""
    async with asyncio.timeout(PATIENCE):
        while len(ended) < count:
            await asyncio.sleep(0.02)
        store = await scheduler.runtime.store()
        # Rarely: these looks are statements, too, and some tests count them.
        while (pulse := await store.pulse(scheduler.app)).waiting or pulse.running:
            await asyncio.sleep(0.2)


# --- the setting -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", ["skip", "allow"])
async def test_no_batch_is_greater_than_its_size(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, overlap: str) -> None:
    sizes: dict[str, list[int]] = {"due": [], "record": [], "claim": [], "finish": []}

    def spy(name: str, what: str, size: Any) -> None:
        intent = getattr(SqliteStore, name)

        async def spied(store: Any, *values: Any, **named: Any) -> Any:
            sizes[what].append(size(values))
            return await intent(store, *values, **named)

        monkeypatch.setattr(SqliteStore, name, spied)

    spy("due_schedules", "due", lambda values: values[1])
    spy("record_fires", "record", lambda values: len(values[2]))
    spy("claim", "claim", lambda values: values[4])
    spy("finish", "finish", lambda values: len(values[2]))
    # Fewer slots than are due: some are claimed as they are recorded, the others from the queue.
    scheduler = Scheduler(f"sqlite:///{tmp_path}/ledger.db", batch_size=7, concurrency=15)
    ended: list[int] = []

    @scheduler.task
    async def tick() -> None:
        ended.append(1)

    await add_due(scheduler, 40, overlap=overlap)
    async with scheduler:
        await until_idle(scheduler, ended, 40)
    # Four batches are read at once.
    assert {what: max(seen) for what, seen in sizes.items()} == {"due": 28, "record": 7, "claim": 7, "finish": 7}
    assert len(ended) == 40


async def test_the_next_batch_is_asked_for_before_this_one_begins(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    claim, start = SqliteStore.claim, Worker._start

    async def spied(store: Any, *values: Any) -> Any:
        heard.append("asked")
        answer = await claim(store, *values)
        heard.append(f"answered {len(answer.runs)}")
        return answer

    def starting(worker: Worker, runs: Sequence[Claimed], *, had_lease: bool) -> None:
        heard.append(f"starts {len(runs)}")
        start(worker, runs, had_lease=had_lease)

    monkeypatch.setattr(SqliteStore, "claim", spied)
    monkeypatch.setattr(Worker, "_start", starting)
    scheduler = Scheduler(f"sqlite:///{tmp_path}/ledger.db", batch_size=5, concurrency=10)
    ended: list[int] = []

    @scheduler.task
    async def tick() -> None:
        heard.append("begun")
        ended.append(1)

    async with scheduler:
        await tick.enqueue_many({} for _ in range(40))
        await until_idle(scheduler, ended, 40)
    said = " ".join(heard)
    assert re.search("answered 5 asked starts 5 (begun )+answered 5", said), said


@pytest.mark.parametrize("source", ["queue", "schedules"])
async def test_no_more_is_done_than_a_few_batches_ahead_of_what_is_written(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """If the node dies, all of that is done again."""
    batch_size, concurrency, count = 10, 20, 300
    scheduler = Scheduler(f"sqlite:///{tmp_path}/ledger.db", batch_size=batch_size, concurrency=concurrency)
    unwritten: list[int] = []
    ended: list[int] = []
    may_write = asyncio.Event()
    finish, put, holds_up = SqliteStore.finish, Finisher.put, Finisher.forbids_claims

    async def finish_later(store: Any, *values: Any) -> Any:
        await may_write.wait()
        return await finish(store, *values)

    def put_counted(finisher: Finisher, *values: Any) -> None:
        put(finisher, *values)
        unwritten.append(len(finisher))

    def holds_up_seen(finisher: Finisher) -> bool:
        answer = holds_up(finisher)
        if answer or len(ended) == count:
            may_write.set()
        return answer

    monkeypatch.setattr(SqliteStore, "finish", finish_later)
    monkeypatch.setattr(Finisher, "put", put_counted)
    monkeypatch.setattr(Finisher, "forbids_claims", holds_up_seen)

    @scheduler.task
    async def tick() -> None:
        ended.append(1)

    async with scheduler:
        if source == "queue":
            await tick.enqueue_many([{}] * count)
        else:
            await add_due(scheduler, count)
            scheduler.runtime.engine.wake_fires()  # type: ignore[union-attr]
        await until_idle(scheduler, ended, count)
    assert len(ended) == count
    assert 4 * batch_size < max(unwritten) <= 4 * batch_size + concurrency + batch_size


# --- what the server counts ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def counting_server() -> Iterator[str]:
    settings = {"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track": "top"}
    # Its transactions are no node's.
    settings["autovacuum"] = "off"
    with postgres_server(**settings) as dsn:
        yield dsn


class Counting:
    """The statements that the server has counted since the last reset.

    BEGIN and COMMIT do no work of their own and are not counted, nor is what the driver asks once of each connection,
    about types that it has not met there. A transaction has written if it was given a number.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._first = 0

    async def reset(self) -> None:
        await self._connection.execute("SELECT pg_stat_statements_reset()")
        self._first = await self._next_transaction()

    async def commits(self) -> int:
        return await self._next_transaction() - self._first

    async def _next_transaction(self) -> int:
        number: int = await self._connection.fetchval(NEXT_TRANSACTION)
        return number

    async def statements(self) -> dict[str, int]:
        rows = await self._connection.fetch(
            "SELECT query, sum(calls)::int AS calls FROM pg_stat_statements "
            "WHERE query !~* $1 GROUP BY query ORDER BY calls DESC",
            NOT_COUNTED,
        )
        return {row["query"]: row["calls"] for row in rows}


@pytest.mark.parametrize("overlap", ["skip", "allow"])
async def test_a_fire_of_a_herd_costs_a_hundredth_of_a_statement_and_half_of_that_in_commits_at_most(
    counting_server: str, overlap: str
) -> None:
    """All of the engine's way: look, record and claim at once, finish, their commits, and all that goes on beside."""
    warm, fires = 1_000, 10_000
    connection = await asyncpg.connect(counting_server)
    await connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
    counting = Counting(connection)
    scheduler = Scheduler(f"{counting_server}?schema=count_{overlap}", concurrency=2_000, batch_size=1_000)
    ended: list[int] = []

    @scheduler.task
    async def tick() -> None:
        ended.append(1)

    await add_due(scheduler, warm, overlap=overlap)
    async with scheduler:
        # By then, a node and its connections have sent the statements that they send once.
        await until_idle(scheduler, ended, warm)
        await add_due(scheduler, fires, first=warm, overlap=overlap)
        await counting.reset()
        # A write through the store alone wakes no loop.
        await scheduler.add(key="wake", when="every 1h", task=tick)
        await until_idle(scheduler, ended, warm + fires)
        statements, commits = sum((await counting.statements()).values()), await counting.commits()
    await connection.close()
    print(f"{statements} statements and {commits} commits for {fires} fires")
    assert len(ended) == warm + fires
    assert statements <= STATEMENTS_PER_FIRE * fires
    assert commits <= COMMITS_PER_FIRE * fires


@pytest.mark.long("store")
async def test_a_node_with_nothing_to_do_asks_forty_times_a_minute_at_most(counting_server: str) -> None:
    """Heartbeats included. Some statements are sent once a minute, so the test takes that long."""
    connection = await asyncpg.connect(counting_server)
    await connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
    counting = Counting(connection)
    scheduler = Scheduler(f"{counting_server}?schema=count_idle")

    @scheduler.task
    async def tick() -> None: ...

    await scheduler.add(key="far", when="every 30d", task=tick)
    async with scheduler:
        await asyncio.sleep(SETTLE_SECONDS)
        await counting.reset()
        await asyncio.sleep(ALMOST_A_MINUTE)
        asked = await counting.statements()
    await connection.close()
    said = "\n".join(f"{calls} {' '.join(query.split())[:100]}" for query, calls in asked.items())
    assert 0 < sum(asked.values()) <= STATEMENTS_A_MINUTE, said
