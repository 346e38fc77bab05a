"""Callers of any event loop share one writer: one commit for many, and none of them can stop it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from evertick.clock import Clock, system_clock
from evertick.errors import InvalidSetting, StoreUnavailable
from evertick.model import Cause, NewRun
from evertick.store.base import RunFilter
from evertick.store.sqlite import SqliteStore
from evertick.store.sqlite.session import GROUP_MOST

PATIENCE = 20.0
FORK = """
import asyncio, os, sys, warnings
from evertick.clock import system_clock
from evertick.errors import Forked
from evertick.store.sqlite import SqliteStore
warnings.simplefilter("ignore", DeprecationWarning)

async def refused(intent):
    try:
        await intent
    except Forked as error:
        return "web server" in str(error)
    return False

async def in_child(store):
    intents = [store.now(), store.judge(), store.pulse("a"), store.heartbeat_session(), store.changed("a", 0)]
    intents.append(store.close())
    return all([await refused(intent) for intent in intents]) and await refused(store.open(migrate="auto"))

store = SqliteStore(sys.argv[1], clock=system_clock)
asyncio.run(store.open(migrate="auto"))
child = os.fork()
if child == 0:
    os._exit(0 if asyncio.run(in_child(store)) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child was not refused"
assert asyncio.run(store.judge()) == []
asyncio.run(store.close())
"""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(f"sqlite:///{tmp_path}/evertick.db", clock=system_clock)
    await store.open(migrate="auto")
    yield store
    await store.close()


class Busy:
    """Keeps the writer at its work until told to go on, and writes down the statements it does meanwhile."""

    def __init__(self, store: SqliteStore) -> None:
        self.statements: list[str] = []
        # Released with every commit that begins.
        self.commits = threading.Semaphore(0)
        self._store = store
        self._has_begun = threading.Event()
        self._may_end = threading.Event()

    async def __aenter__(self) -> Busy:
        assert self._store.session() is not None
        self._work = asyncio.ensure_future(self._store.session().write(self._hold))
        await asyncio.get_running_loop().run_in_executor(None, self._has_begun.wait)
        return self

    def forget_attempt(self) -> None:
        self._may_end.set()

    async def __aexit__(self, *_: object) -> None:
        self.forget_attempt()
        await self._work

    def _hold(self, db: sqlite3.Connection, _now: int) -> None:
        db.set_trace_callback(self._traced)
        self._has_begun.set()
        self._may_end.wait()

    def _traced(self, text: str) -> None:
        self.statements.append(text)
        if text == "COMMIT":
            self.commits.release()


def a_run() -> NewRun:
    return NewRun(id=system_clock.new_id(), task="t", cause=Cause.ENQUEUE)


async def begun(count: int, store: SqliteStore) -> list[asyncio.Task[object]]:
    tasks: list[asyncio.Task[object]] = [asyncio.create_task(store.enqueue("a", [a_run()])) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_callers_that_wait_together_share_one_commit(store: SqliteStore) -> None:
    async with Busy(store) as busy:
        tasks = await begun(50, store)
    await asyncio.gather(*tasks)
    # The first commit is that of the work that kept the writer busy.
    assert [text for text in busy.statements if text == "COMMIT"] == ["COMMIT"] * 2
    assert len(await store.runs("a", RunFilter())) == 50


async def test_a_group_is_bounded(store: SqliteStore) -> None:
    async with Busy(store) as busy:
        tasks = await begun(GROUP_MOST + 1, store)
    await asyncio.gather(*tasks)
    assert busy.statements.count("COMMIT") == 3


async def test_the_writer_takes_one_group_after_the_other_while_the_event_loop_stands_still(store: SqliteStore) -> None:
    async with Busy(store) as busy:
        tasks = await begun(GROUP_MOST + 1, store)
        busy.forget_attempt()
        # Nothing else happens on this loop meanwhile, as in a job that blocks it.
        for _ in range(3):
            assert busy.commits.acquire(timeout=PATIENCE)
    await asyncio.gather(*tasks)
    assert len(await store.runs("a", RunFilter(limit=1_000))) == GROUP_MOST + 1


async def test_one_that_fails_fails_alone(store: SqliteStore) -> None:
    async with Busy(store):
        good = await begun(2, store)
        bad = asyncio.create_task(
            store.enqueue("a", [a_run(), NewRun(id="x", task="t", cause=Cause.FIRE, due_at=2**70)])
        )
        await asyncio.sleep(0)
        good += await begun(2, store)
    with pytest.raises(OverflowError):
        await bad
    await asyncio.gather(*good)
    assert len(await store.runs("a", RunFilter())) == 4


async def test_a_commit_that_fails_fails_all_of_its_group(store: SqliteStore) -> None:
    async with Busy(store):
        tasks = await begun(3, store)
        assert store.session() is not None

        def give_up(db: sqlite3.Connection, _now: int) -> None:
            # SQLite rolls back by itself when the disk is full in the middle of a transaction.
            db.execute("ROLLBACK")
            raise StoreUnavailable("the disk is full")

        last = asyncio.create_task(store.session().write(give_up))
        await asyncio.sleep(0)
    answers = await asyncio.gather(*tasks, last, return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 4
    assert await store.runs("a", RunFilter()) == []
    assert (await store.enqueue("a", [a_run()]))[0].is_new


async def test_a_cancelled_caller_disturbs_no_other(store: SqliteStore) -> None:
    async with Busy(store):
        cancelled, waiting = await begun(2, store)
        cancelled.cancel()
        with suppress(asyncio.CancelledError):
            await cancelled
    await waiting
    assert len(await store.runs("a", RunFilter())) == 1


async def test_a_caller_whose_loop_has_closed_disturbs_no_other(store: SqliteStore) -> None:
    def leave_early() -> None:
        loop = asyncio.new_event_loop()
        task = loop.create_task(store.enqueue("a", [a_run()]))
        loop.run_until_complete(asyncio.sleep(0))
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()

    async with Busy(store):
        await asyncio.get_running_loop().run_in_executor(None, leave_early)
    assert (await store.enqueue("a", [a_run()]))[0].is_new


async def test_several_event_loops_may_use_one_store(store: SqliteStore) -> None:
    def elsewhere() -> int:
        async def several() -> int:
            return len(await asyncio.gather(*(store.enqueue("a", [a_run()]) for _ in range(20))))

        return asyncio.run(several())

    loop = asyncio.get_running_loop()
    assert await asyncio.gather(*(loop.run_in_executor(None, elsewhere) for _ in range(4))) == [20] * 4
    assert len(await store.runs("a", RunFilter(limit=1000))) == 80


async def test_reading_goes_on_while_the_writer_is_busy(store: SqliteStore) -> None:
    async with Busy(store):
        assert (await store.pulse("a")).waiting == 0


async def test_what_is_queued_is_written_before_the_store_closes(tmp_path: Path) -> None:
    store = SqliteStore(f"sqlite:///{tmp_path}/x.db", clock=system_clock)
    await store.open(migrate="auto")
    async with Busy(store):
        tasks = await begun(3, store)
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0)
    await asyncio.gather(*tasks, closing)
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.judge()
    await store.open(migrate="check")
    assert len(await store.runs("a", RunFilter())) == 3
    await store.close()


async def test_small_steps_back_of_the_clock_are_not_followed_and_large_ones_are(tmp_path: Path) -> None:
    class Jumping(Clock):
        def __init__(self) -> None:
            super().__init__()
            self.times = [50_000_000, 49_500_000, 51_000_000, 3_000_000]

        def now_us(self) -> int:
            return self.times.pop(0) if self.times else 7_000_000

    clock = Jumping()
    store = SqliteStore("sqlite://", clock=clock, is_inline=True)
    clock.times.insert(0, 1)  # the migration's
    await store.open(migrate="auto")
    assert [await store.now() for _ in range(4)] == [50_000_000, 50_000_000, 51_000_000, 3_000_000]
    await store.close()


async def test_inline_there_are_no_threads_and_the_database_can_be_shared() -> None:
    before = threading.active_count()
    first = SqliteStore("sqlite://", clock=system_clock, is_inline=True)
    await first.open(migrate="auto")
    second = SqliteStore.sharing(first)
    await first.enqueue("a", [a_run()])
    await first.close()
    assert len(await second.runs("a", RunFilter())) == 1
    assert threading.active_count() == before
    await second.close()


async def test_only_an_open_inline_store_can_be_shared(store: SqliteStore) -> None:
    with pytest.raises(InvalidSetting):
        SqliteStore.sharing(store)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_store_that_was_opened_before_a_fork_is_refused_in_the_child(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FORK, f"sqlite:///{tmp_path}/x.db"], check=True)
