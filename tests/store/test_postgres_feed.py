"""The feed on a real server: no late commit is missed, in any order of begin, write and commit."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import Protocol

import asyncpg
import pytest
from postgres_stores import PostgresStores, in_schema_of

from evertick.doctor.database import about_feed
from evertick.errors import CursorGone
from evertick.model import Verdict
from evertick.model.feed import Cursor, cursor_of, events_of
from evertick.scheduler.scheduler import Scheduler
from evertick.store.base import Store
from evertick.store.postgres.connection import quoted
from evertick.testing.conformance import Bench, a_fire, a_run, an_advance, an_outcome
from evertick.testing.conformance.bench import APP, DAY, MINUTE

WRITER = Path(__file__).with_name("feed_writer.py")
DEADLINE_SECONDS = 60


class Reader(Protocol):
    async def read(self) -> list[str]:
        """The ids of the runs whose events have come since the last time."""
        ...


class FeedReader:
    """As programs read it: by the cursor of what was read last."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._start: Cursor | None = None

    async def read(self) -> list[str]:
        read = await self._store.feed(APP, start=self._start, since=None, kinds=["run.recorded"], limit=1000)
        assert read is not None
        self._start = read.end
        return [
            event.run_id or ""
            for row in read.rows
            for event in events_of(APP, Cursor(read.first.epoch, row.txid, row.seq), row.at, row.kind, row.body)
        ]


class NumberReader:
    """The mistake: by the number of the row, which is given before the commit."""

    def __init__(self, connection: asyncpg.Connection, schema: str) -> None:
        self._connection = connection
        self._schema = quoted(schema)
        self._last = 0

    async def read(self) -> list[str]:
        rows = await self._connection.fetch(
            f"SELECT seq, body FROM {self._schema}.feed WHERE kind = 'run.recorded' AND seq > $1 ORDER BY seq",
            self._last,
        )
        self._last = max([self._last, *(row["seq"] for row in rows)])
        events = [events_of(APP, Cursor("0", 0, row["seq"]), 0, "run.recorded", row["body"]) for row in rows]
        return [event.run_id or "" for some in events for event in some]


async def read_until(reader: Reader, wanted: set[str]) -> list[str]:
    """Everything that comes until all of these have."""
    seen: list[str] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not wanted <= set(seen):
            seen += await reader.read()
    return seen


async def commit_late(stores: PostgresStores, store: Store, reader: Reader) -> tuple[list[str], list[str]]:
    """A writes first and commits last, B in between; the reader looks before and after. All ids, and those it saw."""
    late = await stores.connect()
    try:
        transaction = late.transaction()
        await transaction.start()
        [first] = await store.within(late).enqueue(APP, [a_run()])
        [second] = await store.enqueue(APP, [a_run()])
        seen = await reader.read()
        await transaction.commit()
        [third] = await store.enqueue(APP, [a_run()])
        seen += await read_until(reader, {third.id} - set(seen))
    finally:
        await late.close()
    return [first.id, second.id, third.id], seen


async def test_a_commit_that_comes_late_is_read_late_and_once(postgres_stores: PostgresStores) -> None:
    store = await postgres_stores.open()
    await store.keep_feed(APP, DAY)
    written, seen = await commit_late(postgres_stores, store, FeedReader(store))
    assert seen == written


async def test_a_reader_that_goes_by_numbers_alone_would_miss_it(postgres_stores: PostgresStores) -> None:
    store = await postgres_stores.open()
    await store.keep_feed(APP, DAY)
    connection = await postgres_stores.connect()
    try:
        reader = NumberReader(connection, postgres_stores.schema)
        written, seen = await commit_late(postgres_stores, store, reader)
    finally:
        await connection.close()
    assert seen == written[1:], "the test above could not fail"


async def test_of_many_writing_processes_nothing_is_missed_and_nothing_comes_twice(
    postgres_stores: PostgresStores,
) -> None:
    store = await postgres_stores.open()
    await store.keep_feed(APP, DAY)
    writers = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, str(WRITER), postgres_stores.url, postgres_stores.dsn, str(seed), "60"),
            stdout=asyncio.subprocess.PIPE,
        )
        for seed in range(3)
    ]
    outputs = asyncio.gather(*(writer.communicate() for writer in writers))
    reader = FeedReader(store)
    seen: list[str] = []
    looks = 0
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not outputs.done():
            seen += await reader.read()
            looks += 1
    written = [line for out, _ in await outputs for line in out.decode().split()]
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert len(written) == 180
    assert looks > 3, "it read while they wrote"
    seen += await read_until(reader, set(written) - set(seen))
    assert Counter(seen) == Counter(written)


async def test_the_transaction_that_delays_the_feed_is_named(postgres_stores: PostgresStores) -> None:
    store = await postgres_stores.open()
    await store.keep_feed(APP, DAY)
    other = await asyncpg.connect(postgres_stores.dsn, server_settings={"application_name": "report"})
    try:
        transaction = other.transaction()
        await transaction.start()
        await other.execute("SELECT pg_current_xact_id()")
        [run] = await store.enqueue(APP, [a_run()])
        reader = FeedReader(store)
        # Transactions of other tests may be older; they end.
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                state = await store.feed_state(APP)
                assert state is not None
                assert state.held_at is not None
                if state.holder is not None and f"process {other.get_server_pid()} (report)" in state.holder:
                    break
        assert await reader.read() == []
        assert list(about_feed(state)) == [], "a moment is nothing to complain about"
        await postgres_stores.pass_time(2 * MINUTE)
        [finding] = about_feed(await store.feed_state(APP))
        assert finding.check == "feed_held_up"
        assert "(report)" in finding.what
        await transaction.rollback()
        assert await read_until(reader, {run.id}) == [run.id]
    finally:
        await other.close()


async def test_in_another_server_the_feed_starts_again(postgres_stores: PostgresStores) -> None:
    """As after a dump and a restore: transactions are counted from the beginning there."""
    store = await postgres_stores.open()
    await store.keep_feed(APP, DAY)
    [old] = await store.enqueue(APP, [a_run()])
    reader = FeedReader(store)
    assert await read_until(reader, {old.id}) == [old.id]
    before = await store.feed(APP, start=None, since=None, kinds=None, limit=0)
    assert before is not None
    connection = await postgres_stores.connect()
    schema = quoted(postgres_stores.schema)
    await connection.execute(f"UPDATE {schema}.feeds SET cluster = cluster + 1")
    await connection.execute(f"UPDATE {schema}.feed SET txid = '9000000000000000'")
    after = await store.feed(APP, start=None, since=None, kinds=None, limit=10)
    assert after is not None
    assert after.rows == []
    with pytest.raises(CursorGone, match="restored"):
        cursor_of(str(before.end), after.first, after.end, APP)
    [new] = await store.enqueue(APP, [a_run()])
    assert await read_until(FeedReader(store), {new.id}) == [new.id]
    await store.prune(APP, before=0, keep_per_schedule=10, limit=100)
    assert await connection.fetchval(f"SELECT count(*) FROM {schema}.feed") == 1, "rows of the old feed are pruned"
    await connection.close()


async def test_events_that_were_not_readable_yet_are_not_pruned(postgres_stores: PostgresStores) -> None:
    store = await postgres_stores.open()
    await store.keep_feed(APP, MINUTE)
    other = await postgres_stores.connect()
    try:
        transaction = other.transaction()
        await transaction.start()
        await other.execute("SELECT pg_current_xact_id()")
        [run] = await store.enqueue(APP, [a_run()])
        await postgres_stores.pass_time(DAY)
        assert await store.prune(APP, before=0, keep_per_schedule=10, limit=100) == 0
        await transaction.rollback()
        assert await read_until(FeedReader(store), {run.id}) == [run.id]
    finally:
        await other.close()


async def test_a_batch_costs_a_row_or_two_however_large_it_is(postgres_stores: PostgresStores) -> None:
    store = await postgres_stores.open()
    bench = Bench(postgres_stores, store)
    node = await bench.node()
    schedules = [await bench.add(f"s{number}") for number in range(100)]
    await store.keep_feed(APP, DAY)
    fires = [a_fire(schedule, is_claimed=True) for schedule in schedules]
    advances = [an_advance(schedule, fire) for schedule, fire in zip(schedules, fires, strict=True)]
    recorded = await bench.record(*advances, node=node)
    owned = await store.owned(APP, node)
    assert len(owned) == 100
    await bench.finish(node, *(an_outcome(held, verdict=Verdict.SUCCEEDED) for held in owned))
    connection = await postgres_stores.connect()
    kinds = await connection.fetch(f"SELECT kind FROM {quoted(postgres_stores.schema)}.feed ORDER BY seq")
    await connection.close()
    assert recorded.taken == [True] * 100
    assert [row["kind"] for row in kinds] == ["run.recorded", "run.finished"]


async def test_a_program_follows_the_feed_through_a_scheduler(postgres_stores: PostgresStores) -> None:
    url = in_schema_of(postgres_stores.dsn, postgres_stores.schema)
    await postgres_stores.open()
    writer, reader = Scheduler(url, app=APP), Scheduler(url, app=APP, concurrency=0)

    @writer.task
    def job(n: int) -> None: ...

    await writer.keep_feed("1d")
    start = await reader.feed_cursor()
    try:
        async with writer, asyncio.timeout(DEADLINE_SECONDS):
            runs = [await job.enqueue(n=n) for n in range(5)]
            seen = []
            async for event in reader.feed(start, kinds=["run.finished"], poll="20ms"):
                seen.append(event)
                if len(seen) == 5:
                    break
    finally:
        await reader.close()
    assert sorted(event.run_id or "" for event in seen) == sorted(run.id for run in runs)
    assert {event.verdict for event in seen} == {"succeeded"}
