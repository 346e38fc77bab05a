"""Jobs that end their own runs: their rows and the end of the run are committed together, and then it is over."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import aiosqlite
import pytest

from evertick import (
    Constant,
    Context,
    Event,
    Lost,
    Refused,
    Run,
    Scheduler,
    State,
    StoreUnavailable,
    Task,
    TransactionTimeout,
    Verdict,
    WouldBlock,
)
from evertick.clock import system_clock
from evertick.engine.recovery import Recoverer
from evertick.job.context import JobRecord
from evertick.model import Claimed
from evertick.store.sqlite import SqliteStore
from evertick.store.sqlite.transactions import FileTransaction
from evertick.testing import virtual_time

ENDS = ("succeeded", "failed", "cancelled", "lost", "skipped", "retrying")


class Office:
    """A scheduler on a file with a table of the user's own, and what its hooks heard."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.path = folder / "shop.db"
        with closing(sqlite3.connect(self.path)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("CREATE TABLE paid (n INTEGER)")
        self.scheduler = Scheduler(f"sqlite:///{self.path}", **{"lease": "6s", **settings})
        self.heard: list[Event] = []
        self._ended = asyncio.Condition()
        for kind in ENDS:
            self.scheduler.on(kind, self._hear)  # type: ignore[arg-type]

    async def _hear(self, event: Event) -> None:
        async with self._ended:
            self.heard.append(event)
            self._ended.notify_all()

    async def until_heard(self, count: int = 1) -> list[str]:
        async with asyncio.timeout(30), self._ended:
            await self._ended.wait_for(lambda: len(self.heard) >= count)
            return [event.kind for event in self.heard]

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path)

    def paid(self) -> list[int]:
        with closing(self.connect()) as db:
            return [n for (n,) in db.execute("SELECT n FROM paid ORDER BY n")]

    async def outcome_of(self, task: Task[[], Any], events: int = 1) -> Run:
        """Run it once, and wait until a hook was called for its end."""
        async with self.scheduler:
            run = await task.enqueue()
            await self.until_heard(events)
            return await self.scheduler.get_run(run.id)


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(tmp_path)


def pay(connection: sqlite3.Connection, n: int = 1) -> None:
    connection.execute("INSERT INTO paid VALUES (?)", (n,))


# --- ctx.finish ----------------------------------------------------------------------------------------------------


async def plain_with_sqlite3(office: Office) -> Callable[[Context], Any]:
    def job(ctx: Context) -> str:
        with closing(office.connect()) as connection, connection:
            pay(connection)
            ctx.finish(connection=connection, result={"paid": 1})
        return "ignored"

    return job


async def async_with_sqlite3(office: Office) -> Callable[[Context], Any]:
    async def job(ctx: Context) -> str:
        with closing(office.connect()) as connection, connection:
            pay(connection)
            await ctx.finish(connection=connection, result={"paid": 1})
        return "ignored"

    return job


async def async_with_aiosqlite(office: Office) -> Callable[[Context], Any]:
    async def job(ctx: Context) -> str:
        async with aiosqlite.connect(office.path) as connection:
            await connection.execute("INSERT INTO paid VALUES (1)")
            await ctx.finish(connection=connection, result={"paid": 1})
            await connection.commit()
        return "ignored"

    return job


async def plain_block(office: Office) -> Callable[[Context], Any]:
    def job(ctx: Context) -> str:
        with ctx.transaction() as connection:
            pay(connection)
            ctx.finish(connection=connection, result={"paid": 1})
        return "ignored"

    return job


async def async_block(office: Office) -> Callable[[Context], Any]:
    async def job(ctx: Context) -> str:
        async with ctx.transaction() as connection:
            pay(connection)
            await ctx.finish(connection=connection, result={"paid": 1})
        return "ignored"

    return job


FORMS = [plain_with_sqlite3, async_with_sqlite3, async_with_aiosqlite, plain_block, async_block]


@pytest.mark.parametrize("form", FORMS)
async def test_a_job_ends_its_run_with_its_own_rows(
    office: Office, form: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "evertick")
    run = await office.outcome_of(office.scheduler.task(await form(office), name="pay"))
    assert (run.verdict, run.result, run.attempts, run.error) == (Verdict.SUCCEEDED, {"paid": 1}, 1, None)
    assert (office.paid(), await office.until_heard()) == ([1], ["succeeded"])
    assert "finished in its own transaction" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("is_block", [False, True], ids=["finish", "block"])
@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
async def test_a_job_that_raises_after_its_commit_has_succeeded(
    office: Office, is_plain: bool, is_block: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def end(ctx: Context) -> None:
        with closing(office.connect()) as connection, connection:
            pay(connection)
            ctx.finish(connection=connection)

    async def job(ctx: Context) -> None:
        if is_block:
            async with ctx.transaction() as connection:
                pay(connection)
        else:
            end(ctx)
        raise RuntimeError("too late")

    def plain_job(ctx: Context) -> None:
        if is_block:
            with ctx.transaction() as connection:
                pay(connection)
        else:
            end(ctx)
        raise RuntimeError("too late")

    task = office.scheduler.task(name="pay", retry=Constant("1s", attempts=5))(plain_job if is_plain else job)
    run = await office.outcome_of(task)
    assert (run.verdict, run.error, run.attempts) == (Verdict.SUCCEEDED, None, 1)
    assert (office.paid(), await office.until_heard()) == ([1], ["succeeded"])
    assert "RuntimeError: too late" in caplog.text  # not in silence


@pytest.mark.parametrize("is_error", [False, True], ids=["returns", "raises"])
async def test_after_a_rollback_the_normal_outcome_counts(office: Office, is_error: bool) -> None:
    @office.scheduler.task
    def job(ctx: Context) -> str:
        with closing(office.connect()) as connection:
            pay(connection)
            ctx.finish(connection=connection, result="rolled back")
            connection.rollback()
        if is_error:
            raise RuntimeError("no")
        return "returned"

    run = await office.outcome_of(job)
    wanted = (Verdict.FAILED, None, "failed") if is_error else (Verdict.SUCCEEDED, "returned", "succeeded")
    assert (run.verdict, run.result, office.heard[0].kind) == wanted
    assert (len(office.heard), office.paid()) == (1, [])


async def test_a_finish_that_was_rolled_back_may_be_written_again(office: Office) -> None:
    @office.scheduler.task
    def job(ctx: Context) -> None:
        with closing(office.connect()) as connection:
            for n in (1, 2):
                pay(connection, n)
                ctx.finish(connection=connection, result=n)
                if n == 1:
                    connection.rollback()
            connection.commit()

    run = await office.outcome_of(job)
    assert (run.verdict, run.result, office.paid()) == (Verdict.SUCCEEDED, 2, [2])


async def test_a_run_ends_once(office: Office) -> None:
    refusals: list[BaseException] = []

    @office.scheduler.task
    def job(ctx: Context) -> None:
        with closing(office.connect()) as connection:
            ctx.finish(connection=connection)
            with pytest.raises(Refused, match="has already finished") as refusal:
                ctx.finish(connection=connection)
            refusals.append(refusal.value)
            connection.commit()
            with pytest.raises(Refused, match="has already finished") as refusal:
                ctx.finish(connection=connection)
            refusals.append(refusal.value)
            connection.rollback()
        with pytest.raises(Refused, match="has already finished") as refusal, ctx.transaction() as own:
            pay(own)
        refusals.append(refusal.value)

    run = await office.outcome_of(job)
    assert (run.verdict, len(refusals), office.paid()) == (Verdict.SUCCEEDED, 3, [])


async def test_what_a_job_says_around_its_finish_is_kept(office: Office) -> None:
    @office.scheduler.task
    async def job(ctx: Context) -> None:
        ctx.log("before")
        with ctx.phase("pay"):
            pass
        async with ctx.transaction() as connection:
            pay(connection)
            ctx.log("inside")
        ctx.log("after")

    async with office.scheduler:
        run = await job.enqueue()
        await office.until_heard()
        lines = await office.scheduler.log(run)
        ended = await office.scheduler.get_run(run.id)
    assert [line.text for line in lines] == ["before", "inside", "after"]
    assert [phase.name for phase in ended.phases] == ["pay"]


async def test_a_job_may_go_on_after_its_commit_without_being_stopped(office: Office) -> None:
    """The store no longer has it among what the node holds, which would otherwise be a lost claim."""
    is_still_well: list[bool] = []

    @office.scheduler.task
    async def job(ctx: Context) -> None:
        with closing(office.connect()) as connection, connection:
            pay(connection)
            await ctx.finish(connection=connection)
        engine = office.scheduler.runtime.engine
        assert engine is not None
        await engine._recoverer._reconcile()
        is_still_well.append(not ctx.cancelled)
        await asyncio.sleep(0)

    run = await office.outcome_of(job)
    assert (is_still_well, run.verdict) == ([True], Verdict.SUCCEEDED)


async def test_a_job_whose_claim_is_lost_after_a_rollback_is_stopped(office: Office) -> None:
    """That a finish was written does not say that it was committed."""
    stopped = asyncio.Event()

    @office.scheduler.task
    async def job(ctx: Context) -> None:
        with closing(office.connect()) as connection:
            ctx.finish(connection=connection)
            connection.rollback()
        take_claim_away(office.path)
        engine = office.scheduler.runtime.engine
        assert engine is not None
        await engine._recoverer._reconcile()
        try:
            await asyncio.sleep(30)
        finally:
            stopped.set()

    async with office.scheduler:
        await job.enqueue()
        async with asyncio.timeout(20):
            await stopped.wait()
    assert office.heard == []


async def test_a_node_declared_dead_after_the_commit_still_tells_of_the_success(office: Office) -> None:
    @office.scheduler.task
    async def job(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            pay(connection)
        engine = office.scheduler.runtime.engine
        assert engine is not None
        await engine._be_reborn()
        await asyncio.sleep(30)

    run = await office.outcome_of(job)
    assert (run.verdict, office.paid(), [event.kind for event in office.heard]) == (
        Verdict.SUCCEEDED,
        [1],
        ["succeeded"],
    )


async def test_a_commit_whose_answer_is_lost_is_not_a_failure(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = FileTransaction._commit

    def lose_answer(*args: Any) -> bool:
        assert commit(*args)
        raise StoreUnavailable("the answer was lost")

    monkeypatch.setattr(FileTransaction, "_commit", lose_answer)

    @office.scheduler.task(retry=Constant("10ms", attempts=5))
    async def job(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            pay(connection)

    run = await office.outcome_of(job)
    assert (run.verdict, run.attempts, run.error, office.paid()) == (Verdict.SUCCEEDED, 1, None, [1])
    assert [event.kind for event in office.heard] == ["succeeded"]


async def test_a_failure_whose_answer_is_lost_after_a_rollback_is_reported_as_the_ledger_has_it(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, calls = SqliteStore.finish, 0

    async def lose_first_answer(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        answer = await finish(*args)
        if calls == 1:
            raise StoreUnavailable("the answer was lost")
        return answer

    monkeypatch.setattr(SqliteStore, "finish", lose_first_answer)

    @office.scheduler.task
    def job(ctx: Context) -> None:
        with closing(office.connect()) as connection:
            pay(connection)
            ctx.finish(connection=connection)
            connection.rollback()
        raise RuntimeError("no")

    run = await office.outcome_of(job)
    assert (run.verdict, calls, office.paid()) == (Verdict.FAILED, 2, [])
    assert [event.kind for event in office.heard] == ["failed"]


async def test_the_next_run_in_line_starts_after_the_commit(office: Office) -> None:
    order: list[str] = []

    @office.scheduler.every("1h", overlap="queue", since="start")
    async def job(ctx: Context) -> None:
        order.append(ctx.run_id)
        async with ctx.transaction() as connection:
            pay(connection, len(order))

    async with office.scheduler:
        await office.scheduler.trigger("job")
        await office.until_heard(1)
        await office.scheduler.trigger("job")
        await office.until_heard(2)
    assert (len(set(order)), office.paid()) == (2, [1, 2])


# --- lost claims ---------------------------------------------------------------------------------------------------


def take_claim_away(path: Path) -> None:
    """As another node does after this one was declared dead."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE evertick_runs SET node = 'another', fence = fence + 1000 WHERE state = 'running'")


@pytest.mark.parametrize("form", FORMS)
async def test_a_job_that_has_lost_its_claim_gets_an_error_and_its_rows_are_not_written(
    office: Office, form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else the engine might notice first, and cancel the job.
    monkeypatch.setattr(Recoverer, "step", AsyncMock(return_value=None))
    ended = asyncio.get_running_loop().create_future()
    inner = await form(office)

    def settle(error: BaseException | None) -> None:
        ended.get_loop().call_soon_threadsafe(ended.set_result, error)

    async def job(ctx: Context) -> None:
        take_claim_away(office.path)
        try:
            await inner(ctx)
        except BaseException as error:
            settle(error)
            raise
        settle(None)

    def plain_job(ctx: Context) -> None:
        take_claim_away(office.path)
        try:
            inner(ctx)
        except BaseException as error:
            settle(error)
            raise
        settle(None)

    task = office.scheduler.task(job if asyncio.iscoroutinefunction(inner) else plain_job, name="pay")
    async with office.scheduler:
        run = await task.enqueue()
        async with asyncio.timeout(30):
            error = await ended
        stored = await office.scheduler.get_run(run.id)
    assert isinstance(error, Lost)
    assert "lost its claim (fence " in str(error)
    assert office.paid() == []
    assert (stored.state, stored.node) == (State.RUNNING, "another")  # as the other node has it
    assert office.heard == []


async def test_an_abandoned_job_that_comes_back_late_cannot_finish_what_was_given_up(office: Office) -> None:
    ended = asyncio.get_running_loop().create_future()
    go_on = threading.Event()

    @office.scheduler.task(timeout="100ms")
    def job(ctx: Context) -> None:
        go_on.wait(30)
        try:
            with ctx.transaction() as connection:
                pay(connection)
        except BaseException as error:
            ended.get_loop().call_soon_threadsafe(ended.set_result, error)

    async with office.scheduler:
        run = await job.enqueue()
        assert await office.until_heard() == ["failed"]  # abandoned after its patience
        go_on.set()
        async with asyncio.timeout(30):
            error = await ended
        assert (await office.scheduler.get_run(run.id)).verdict is Verdict.FAILED
    assert isinstance(error, Lost)
    assert office.paid() == []


# --- ctx.transaction -----------------------------------------------------------------------------------------------


async def test_a_block_that_raises_finishes_nothing(office: Office) -> None:
    @office.scheduler.task(retry=Constant("10ms", attempts=2))
    async def job(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            pay(connection, ctx.attempt)
            if ctx.attempt == 1:
                raise RuntimeError("not yet")

    run = await office.outcome_of(job, events=2)
    assert [event.kind for event in office.heard] == ["retrying", "succeeded"]
    assert (run.attempts, office.paid()) == (2, [2])


@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
async def test_a_block_that_takes_too_long_is_rolled_back_while_the_job_still_sleeps(
    tmp_path: Path, is_plain: bool
) -> None:
    # Its third is longer than the first statements take, however busy the machine is.
    office = Office(tmp_path, lease="6s")
    errors: list[BaseException] = []
    is_free = threading.Event()

    def wait_for_the_lock() -> None:
        """Another writer gets the lock, though the job has not moved."""
        with closing(sqlite3.connect(office.path, timeout=20, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            pay(other, 7)
            other.execute("COMMIT")
        is_free.set()

    def work(connection: sqlite3.Connection) -> None:
        pay(connection, 1)
        cursor = connection.cursor()
        cursor.execute("INSERT INTO paid VALUES (2)")
        threading.Thread(target=wait_for_the_lock).start()
        assert is_free.wait(20)
        # Outside a transaction these would be committed one by one.
        for late in (connection, cursor):
            with pytest.raises(TransactionTimeout) as refusal:
                late.execute("INSERT INTO paid VALUES (2)")
            errors.append(refusal.value)
        pay(connection, 3)

    async def job(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            work(connection)

    def plain_job(ctx: Context) -> None:
        with ctx.transaction() as connection:
            work(connection)

    run = await office.outcome_of(office.scheduler.task(plain_job if is_plain else job, name="pay"))
    assert (run.verdict, len(errors)) == (Verdict.FAILED, 2)
    assert run.error is not None
    assert "TransactionTimeout" in run.error
    assert "was open for more than 2 s, a third of the lease, and was rolled back" in run.error
    assert office.paid() == [7]


async def test_a_statement_that_takes_too_long_is_interrupted(tmp_path: Path) -> None:
    office = Office(tmp_path, lease="1s")

    @office.scheduler.task
    def job(ctx: Context) -> None:
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) INSERT INTO paid SELECT i FROM n"
        with ctx.transaction() as connection:
            connection.execute(endless + " WHERE i < 0")

    run = await office.outcome_of(job)
    assert run.error is not None
    assert "TransactionTimeout" in run.error
    assert (run.verdict, office.paid()) == (Verdict.FAILED, [])


async def test_leaving_too_late_without_a_word_is_an_error_too(tmp_path: Path) -> None:
    office = Office(tmp_path, lease="1s")

    @office.scheduler.task
    def job(ctx: Context) -> None:
        transaction = ctx.transaction()
        with transaction as connection:
            pay(connection)
            watched: Any = transaction._job
            watched._watch.join()
            assert not connection.in_transaction

    run = await office.outcome_of(job)
    assert run.error is not None
    assert "TransactionTimeout" in run.error
    assert office.paid() == []


@pytest.mark.parametrize(
    "end",
    [
        lambda connection: connection.commit(),
        lambda connection: connection.execute("COMMIT"),
        lambda connection: connection.execute("  end transaction"),
        lambda connection: connection.rollback(),
        lambda connection: connection.cursor().execute("ROLLBACK"),
        lambda connection: connection.execute("BEGIN"),
        lambda connection: connection.executescript("INSERT INTO paid VALUES (2);"),
        lambda connection: connection.cursor().executescript("INSERT INTO paid VALUES (2);"),
        lambda connection: connection.__enter__(),
        lambda connection: connection.cursor(sqlite3.Cursor),
    ],
    ids=[
        "commit",
        "COMMIT",
        "END",
        "rollback",
        "ROLLBACK",
        "BEGIN",
        "executescript",
        "cursor.executescript",
        "with",
        "cursor",
    ],
)
async def test_a_job_cannot_end_the_block_by_itself(office: Office, end: Callable[[sqlite3.Connection], Any]) -> None:
    @office.scheduler.task
    def job(ctx: Context) -> None:
        with ctx.transaction() as connection:
            pay(connection)
            with pytest.raises(Refused, match="transaction"):
                end(connection)
            with pytest.raises(sqlite3.OperationalError, match="no such table"):
                connection.execute("SELECT * FROM nowhere")
            connection.execute("SAVEPOINT own")
            pay(connection, 3)
            connection.execute("ROLLBACK TO own")

    run = await office.outcome_of(job)
    assert (run.verdict, office.paid()) == (Verdict.SUCCEEDED, [1])


async def test_a_commit_by_statement_is_refused_with_the_words_of_a_commit_by_call(office: Office) -> None:
    said: list[str] = []

    @office.scheduler.task
    def job(ctx: Context) -> None:
        with ctx.transaction() as connection:
            for end in (connection.commit, lambda: connection.execute("COMMIT")):
                with pytest.raises(Refused) as refused:
                    end()
                said.append(str(refused.value))

    await office.outcome_of(job)
    assert [words.partition(" would end the transaction")[0] for words in said] == ["commit()", "COMMIT"]
    assert said[0].removeprefix("commit()") == said[1].removeprefix("COMMIT")


async def test_what_comes_after_the_block_is_not_written_by_its_connection(office: Office) -> None:
    refused: list[str] = []
    taken: list[int] = []

    async def pay_on(connection: sqlite3.Connection) -> None:
        """Left behind by the job: goes on until it is refused."""
        while not refused:
            try:
                pay(connection, len(taken))
                taken.append(len(taken))
            except (Refused, sqlite3.ProgrammingError) as error:
                refused.append(str(error))
            await asyncio.sleep(0)

    @office.scheduler.task
    async def job(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            stray = asyncio.create_task(pay_on(connection))
            await asyncio.sleep(0.01)
        await stray

    run = await office.outcome_of(job)
    assert "the block of this transaction was left" in refused[0] or "closed" in refused[0]
    assert taken
    assert (run.verdict, office.paid()) == (Verdict.SUCCEEDED, taken)


async def test_nothing_is_written_after_sqlite_itself_has_rolled_back(office: Office) -> None:
    refusals: list[str] = []

    @office.scheduler.task
    def job(ctx: Context) -> None:
        with ctx.transaction() as connection:
            pay(connection)
            connection.execute("CREATE TABLE once (n UNIQUE)")
            with pytest.raises(sqlite3.IntegrityError):
                connection.execute("INSERT OR ROLLBACK INTO once VALUES (1), (1)")
            with pytest.raises(Refused) as refusal:  # it would be committed alone
                pay(connection, 2)
            refusals.append(str(refusal.value))

    run = await office.outcome_of(job)
    assert "SQLite has rolled back the transaction" in refusals[0]
    assert run.verdict is Verdict.FAILED
    assert "SQLite has rolled back the transaction" in str(run.error)
    assert office.paid() == []


async def test_a_block_that_cannot_get_the_lock_says_so(tmp_path: Path) -> None:
    office = Office(tmp_path)
    office.scheduler.use_database(f"sqlite:///{office.path}?busy_timeout=50ms")
    raised: list[BaseException] = []
    blocker = sqlite3.connect(office.path, isolation_level=None, check_same_thread=False)

    @office.scheduler.task
    async def job(ctx: Context) -> None:
        blocker.execute("BEGIN IMMEDIATE")
        try:
            async with ctx.transaction() as connection:
                pay(connection)
        except StoreUnavailable as error:
            raised.append(error)
        finally:
            blocker.execute("ROLLBACK")

    run = await office.outcome_of(job)
    blocker.close()
    assert "locked by another connection" in str(raised[0])
    assert (run.verdict, office.paid()) == (Verdict.SUCCEEDED, [])  # by the normal outcome: it returned


async def test_a_job_cancelled_while_it_waits_for_the_lock_leaves_none_behind(office: Office) -> None:
    is_waiting = asyncio.Event()
    blocker = sqlite3.connect(office.path, isolation_level=None)

    @office.scheduler.task
    async def job(ctx: Context) -> None:
        blocker.execute("BEGIN IMMEDIATE")
        asyncio.get_running_loop().call_soon(is_waiting.set)
        async with ctx.transaction() as connection:
            pay(connection)

    async with office.scheduler:
        run = await job.enqueue()
        async with asyncio.timeout(10):
            await is_waiting.wait()
        engine = office.scheduler.runtime.engine
        assert engine is not None
        engine.cancel([run.id])
        blocker.execute("ROLLBACK")
        assert await office.until_heard() == ["cancelled"]
        blocker.execute("PRAGMA busy_timeout = 5000")
        blocker.execute("BEGIN IMMEDIATE")  # the lock is free
        blocker.execute("ROLLBACK")
    blocker.close()
    assert office.paid() == []


async def test_a_plain_block_on_an_event_loop_is_refused(office: Office) -> None:
    @office.scheduler.task
    async def job(ctx: Context) -> None:
        with pytest.raises(WouldBlock, match="use `async with"), ctx.transaction() as connection:
            pay(connection)

    run = await office.outcome_of(job)
    assert (run.verdict, office.paid()) == (Verdict.SUCCEEDED, [])


async def test_a_block_is_entered_once(office: Office) -> None:
    @office.scheduler.task
    async def job(ctx: Context) -> None:
        transaction = ctx.transaction()
        with suppress(ZeroDivisionError):
            async with transaction as connection:
                pay(connection)
                raise ZeroDivisionError
        with pytest.raises(Refused, match="entered already"):
            async with transaction as connection:
                pay(connection)

    run = await office.outcome_of(job)
    assert (run.verdict, office.paid()) == (Verdict.SUCCEEDED, [])


async def test_runs_may_be_enqueued_in_the_block_of_a_job(office: Office) -> None:
    @office.scheduler.task
    async def mail(n: int) -> None: ...

    @office.scheduler.task
    async def job(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            pay(connection)
            await mail.options(connection=connection).enqueue(n=1)

    async with office.scheduler:
        await job.enqueue()
        assert await office.until_heard(2) == ["succeeded", "succeeded"]
        assert {run.task for run in await office.scheduler.runs(states=["done"])} == {"job", "mail"}


# --- where there is no way to the ledger ---------------------------------------------------------------------------


async def test_in_the_testing_kit_a_job_gets_an_error_for_a_ledger_in_memory() -> None:
    memory = Scheduler("sqlite://")

    @memory.task
    async def job(ctx: Context) -> None:
        async with ctx.transaction():
            pass

    async with virtual_time(memory) as kit:
        run = await job.enqueue()
        await kit.run_until_idle()
        [ended] = kit.runs(task="job")
    assert (ended.id, ended.verdict) == (run.id, Verdict.FAILED)
    assert "the testing kit the ledger is always in memory" in str(ended.error)


def test_a_context_without_a_way_to_the_ledger_refuses() -> None:
    run = Claimed(id="r", fence=1, task="t", args=b"{}", fire_at=0, due_at=0, claimed_at=0)
    ctx = Context(JobRecord(run, system_clock))
    with pytest.raises(Refused, match="as in a child process"):
        ctx.transaction()
    with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(Refused, match="as in a child process"):
        ctx.finish(connection=connection)
