"""The ledger inside a user's own SQLite transaction: what kinds of connection lead there, and what stays untouched."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from evertick import InvalidInput, Refused, Run, Scheduler, StoreUnavailable, Task, WouldBlock
from evertick.clock import system_clock
from evertick.store.sqlite import SqliteStore
from evertick.testing import virtual_time

# --- the kinds of connection ---------------------------------------------------------------------------------------


class User(ABC):
    """A program with a table of its own in the file, and its own kind of connection."""

    connection: Any

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def order(self, n: int) -> None:
        """A row of its own, in the transaction that begins with it."""

    @abstractmethod
    async def commit(self) -> None: ...

    @abstractmethod
    async def rollback(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...


class PlainUser(User):
    async def open(self) -> None:
        self.connection = sqlite3.connect(self.path)

    async def order(self, n: int) -> None:
        self.connection.execute("INSERT INTO orders VALUES (?)", (n,))

    async def commit(self) -> None:
        self.connection.commit()

    async def rollback(self) -> None:
        self.connection.rollback()

    async def close(self) -> None:
        self.connection.close()


class AiosqliteUser(User):
    async def open(self) -> None:
        self.connection = await aiosqlite.connect(self.path)

    async def order(self, n: int) -> None:
        await self.connection.execute("INSERT INTO orders VALUES (?)", (n,))

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()

    async def close(self) -> None:
        await self.connection.close()


class SqlalchemyUser(User):
    async def open(self) -> None:
        self.engine = sqlalchemy.create_engine(f"sqlite:///{self.path}")
        self.connection = self.engine.connect()

    async def order(self, n: int) -> None:
        self.connection.execute(sqlalchemy.text("INSERT INTO orders VALUES (:n)"), {"n": n})

    async def commit(self) -> None:
        self.connection.commit()

    async def rollback(self) -> None:
        self.connection.rollback()

    async def close(self) -> None:
        self.connection.close()
        self.engine.dispose()


class SessionUser(SqlalchemyUser):
    async def open(self) -> None:
        self.engine = sqlalchemy.create_engine(f"sqlite:///{self.path}")
        self.connection = Session(self.engine)


class AsyncSqlalchemyUser(User):
    async def open(self) -> None:
        self.engine = create_async_engine(f"sqlite+aiosqlite:///{self.path}")
        self.connection = await self.engine.connect()

    async def order(self, n: int) -> None:
        await self.connection.execute(sqlalchemy.text("INSERT INTO orders VALUES (:n)"), {"n": n})

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()

    async def close(self) -> None:
        await self.connection.close()
        await self.engine.dispose()


KINDS: list[type[User]] = [PlainUser, AiosqliteUser, SqlalchemyUser, SessionUser, AsyncSqlalchemyUser]
PLAIN_KINDS = [PlainUser, SqlalchemyUser, SessionUser]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        db.execute("CREATE TABLE orders (n INTEGER)")
    return tmp_path / "shop.db"


@pytest.fixture
async def scheduler(path: Path) -> AsyncIterator[Scheduler]:
    scheduler = Scheduler(f"sqlite:///{path}", concurrency=0)
    await scheduler.runs()  # opened: its tables are there
    yield scheduler
    await scheduler.close()


@pytest.fixture
def send(scheduler: Scheduler) -> Task[[int], None]:
    @scheduler.task
    async def send(n: int) -> None: ...

    return send


@pytest.fixture
async def user(request: pytest.FixtureRequest, path: Path, scheduler: Scheduler) -> AsyncIterator[User]:
    user: User = getattr(request, "param", PlainUser)(path)
    await user.open()
    yield user
    with suppress(sqlite3.ProgrammingError):
        await user.rollback()
    await user.close()


@pytest.fixture
def connection(path: Path, scheduler: Scheduler) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, timeout=0.1)) as connection:
        yield connection


def orders(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as db:
        return [n for (n,) in db.execute("SELECT n FROM orders ORDER BY n")]


async def enqueued(scheduler: Scheduler) -> list[int]:
    return sorted(run.args["n"] for run in await scheduler.runs(limit=1000))


# --- together, or not at all ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", KINDS, indirect=True)
async def test_rows_and_runs_are_committed_together(
    path: Path, scheduler: Scheduler, send: Task[[int], None], user: User
) -> None:
    await user.order(1)
    run = await send.options(connection=user.connection).enqueue(n=1)
    many = await send.options(connection=user.connection).enqueue_many([{"n": 2}, {"n": 3}])
    assert [each.is_new for each in (run, *many)] == [True] * 3
    assert (orders(path), await enqueued(scheduler)) == ([], [])
    await user.commit()
    assert (orders(path), await enqueued(scheduler)) == ([1], [1, 2, 3])


@pytest.mark.parametrize("user", KINDS, indirect=True)
async def test_rows_and_runs_are_rolled_back_together(
    path: Path, scheduler: Scheduler, send: Task[[int], None], user: User
) -> None:
    await user.order(1)
    await send.options(connection=user.connection).enqueue(n=1)
    await user.rollback()
    assert (orders(path), await enqueued(scheduler)) == ([], [])


@pytest.mark.parametrize("user", KINDS, indirect=True)
async def test_an_enqueue_may_be_the_first_statement_of_the_transaction(
    path: Path, scheduler: Scheduler, send: Task[[int], None], user: User
) -> None:
    await send.options(connection=user.connection).enqueue(n=1)
    await user.order(1)
    assert (orders(path), await enqueued(scheduler)) == ([], [])
    await user.commit()
    assert (orders(path), await enqueued(scheduler)) == ([1], [1])


async def test_a_commit_of_sqlalchemy_that_has_seen_no_statement_of_its_own_commits_the_run(
    path: Path, scheduler: Scheduler, send: Task[[int], None]
) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        await send.options(connection=connection).enqueue(1)
        connection.commit()
    engine.dispose()
    async_engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    async with async_engine.connect() as async_connection:
        await send.options(connection=async_connection).enqueue(2)
        await async_connection.commit()
    await async_engine.dispose()
    assert await enqueued(scheduler) == [1, 2]


@pytest.mark.parametrize("kind", PLAIN_KINDS)
async def test_plain_code_enqueues_in_its_own_thread(
    path: Path, scheduler: Scheduler, send: Task[[int], None], kind: type[User]
) -> None:
    # A connection of sqlite3 refuses every thread but the one that made it.
    def serve_a_request() -> Run:
        async def main() -> None:
            await user.open()
            await user.order(1)

        user = kind(path)
        asyncio.run(main())
        run = send.options(connection=user.connection).sync.enqueue(n=1)
        send.options(connection=user.connection).sync.enqueue_many([{"n": 2}])
        asyncio.run(user.commit())
        asyncio.run(user.close())
        return run

    run = await asyncio.to_thread(serve_a_request)
    assert (run.is_new, orders(path), await enqueued(scheduler)) == (True, [1], [1, 2])


async def test_the_connection_of_django_leads_to_the_ledger(path: Path, scheduler: Scheduler) -> None:
    # In a process of its own: Django is set up once, for good.
    program = f"""
import django
from django.conf import settings
settings.configure(DATABASES={{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "{path}"}}}})
django.setup()
from django.db import connection, transaction
from evertick import Scheduler
scheduler = Scheduler("sqlite:///{path}", concurrency=0)
@scheduler.task
def send(n: int) -> None: ...
for n in range(2):
    try:
        with transaction.atomic():
            connection.cursor().execute("INSERT INTO orders VALUES (%s)", [n])
            send.options(connection=connection).sync.enqueue(n=n)
            1 / n
    except ZeroDivisionError:
        pass
connection.close()
scheduler.sync.close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (orders(path), await enqueued(scheduler)) == ([1], [1])


async def test_a_process_killed_before_its_commit_leaves_neither_row_nor_run(
    path: Path, scheduler: Scheduler, send: Task[[int], None]
) -> None:
    program = f"""
import os, sqlite3, sys
from evertick import Scheduler
scheduler = Scheduler("sqlite:///{path}", concurrency=0)
@scheduler.task
def send(n: int) -> None: ...
connection = sqlite3.connect("{path}")
for n in range(2):
    connection.execute("INSERT INTO orders VALUES (?)", (n,))
    run = send.options(connection=connection).sync.enqueue(n=n)
    assert connection.execute("SELECT count(*) FROM evertick_runs").fetchone() == (n + 1,)
    if n == 0:
        connection.commit()
print("written", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (orders(path), await enqueued(scheduler)) == ([0], [0])
    assert (await send.enqueue(n=7)).is_new  # and no lock


async def test_writers_at_once_lose_nothing_and_double_nothing(
    path: Path, scheduler: Scheduler, send: Task[[int], None]
) -> None:
    def order(first: int) -> None:
        with closing(sqlite3.connect(path, timeout=30)) as connection:
            for n in range(first, first + 25):
                with connection:
                    run = send.options(connection=connection).sync.enqueue(n=n)
                    connection.execute("INSERT INTO orders VALUES (?)", (n,))
                    if n % 5 == 0:
                        connection.rollback()
                    assert run.is_new

    others = [asyncio.to_thread(order, first) for first in (0, 100, 200)]
    await asyncio.gather(*others, *(send.enqueue(n=1000 + n) for n in range(25)))
    kept = [n for first in (0, 100, 200) for n in range(first, first + 25) if n % 5]
    assert orders(path) == kept
    assert await enqueued(scheduler) == kept + [1000 + n for n in range(25)]


async def test_a_running_engine_takes_up_the_run_after_the_commit_and_not_before(path: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{path}", poll_interval="1h")
    seen: list[tuple[int, list[int]]] = []
    done = asyncio.Event()

    @scheduler.task
    async def send(n: int) -> None:
        seen.append((n, orders(path)))
        done.set()

    async with scheduler:
        with closing(sqlite3.connect(path)) as connection:
            run = await send.options(connection=connection).enqueue(n=1)
            # The engine has looked at the ledger since, and has seen nothing: this one passes by.
            connection.execute("INSERT INTO orders VALUES (1)")
            assert (await scheduler.runs(), seen) == ([], [])
            began = asyncio.get_running_loop().time()
            connection.commit()
            async with asyncio.timeout(10):
                await done.wait()
            noticed = asyncio.get_running_loop().time() - began
    assert seen == [(1, [1])]
    assert run.args == {"n": 1}
    print(f"noticed {noticed * 1000:.0f} ms after the commit")
    assert noticed < 5  # by the look at the file, not by the poll of an hour


# --- the connection stays the user's -------------------------------------------------------------------------------


async def test_row_and_text_factory_and_isolation_stay_as_they_were(
    scheduler: Scheduler, send: Task[[int], None], connection: sqlite3.Connection
) -> None:
    def as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
        return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}

    connection.row_factory, connection.text_factory, connection.isolation_level = as_dict, bytes, "IMMEDIATE"
    before = (as_dict, bytes, "IMMEDIATE")
    run = await send.options(connection=connection, unique="one").enqueue(n=1)
    again = await send.options(connection=connection, unique="one").enqueue(n=1)
    assert (run.id, run.task, again.is_new) == (again.id, "send", False)
    assert (connection.row_factory, connection.text_factory, connection.isolation_level) == before
    assert connection.execute("SELECT task FROM evertick_runs").fetchone() == {"task": b"send"}


async def test_an_error_of_ours_leaves_the_users_transaction_as_it_was(
    path: Path, scheduler: Scheduler, send: Task[[int], None], connection: sqlite3.Connection
) -> None:
    connection.row_factory = sqlite3.Row
    connection.execute("INSERT INTO orders VALUES (1)")
    # A second run cannot be written: for any error of the database, the first must not stay either.
    connection.execute(
        "CREATE TEMP TRIGGER no_twos BEFORE INSERT ON main.evertick_runs WHEN NEW.args LIKE '%2%' "
        "BEGIN SELECT RAISE(ABORT, 'no twos'); END"
    )
    with pytest.raises(sqlite3.IntegrityError, match="no twos"):
        await send.options(connection=connection).enqueue_many([{"n": 1}, {"n": 2}])
    assert connection.in_transaction
    assert connection.row_factory is sqlite3.Row
    await send.options(connection=connection).enqueue(n=3)
    connection.commit()
    assert (orders(path), await enqueued(scheduler)) == ([1], [3])


async def test_a_transaction_that_we_began_is_not_left_behind_by_an_error(
    send: Task[[int], None], connection: sqlite3.Connection, path: Path
) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            await send.options(connection=connection).enqueue(n=1)
        assert not connection.in_transaction
        other.execute("ROLLBACK")
    await send.options(connection=connection).enqueue(n=1)
    assert connection.in_transaction


async def test_a_deferred_transaction_waits_for_the_lock_like_any_other(
    path: Path, scheduler: Scheduler, send: Task[[int], None]
) -> None:
    # One that had read before it writes would fail at once, however long it may wait.
    with closing(sqlite3.connect(path, isolation_level=None, timeout=10, check_same_thread=False)) as connection:
        connection.execute("BEGIN")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            other.execute("INSERT INTO orders VALUES (1)")
            waiting = threading.Event()
            connection.set_trace_callback(lambda text: waiting.set() if "evertick_meta" in text else None)
            enqueueing = asyncio.create_task(asyncio.to_thread(send.options(connection=connection).sync.enqueue, n=1))
            await asyncio.to_thread(waiting.wait, 10)
            other.execute("COMMIT")
        assert (await enqueueing).is_new
        connection.execute("COMMIT")
    assert (orders(path), await enqueued(scheduler)) == ([1], [1])


async def test_autocommit_without_a_transaction_is_refused(path: Path, send: Task[[int], None]) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        with pytest.raises(Refused, match="begin a transaction first"):
            await send.options(connection=connection).enqueue(n=1)
        connection.execute("BEGIN IMMEDIATE")
        assert (await send.options(connection=connection).enqueue(n=1)).is_new
        connection.execute("COMMIT")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Connection.autocommit came with Python 3.12")
async def test_the_newer_transaction_control_is_understood(path: Path, send: Task[[int], None]) -> None:
    connect = partial(sqlite3.connect, path)
    with closing(connect(autocommit=True)) as connection, pytest.raises(Refused, match="begin a transaction first"):
        await send.options(connection=connection).enqueue(n=1)
    with closing(connect(autocommit=False)) as connection:
        assert (await send.options(connection=connection).enqueue(n=1)).is_new
        connection.commit()


# --- what is refused -----------------------------------------------------------------------------------------------


async def test_a_copy_of_the_store_is_not_the_store(
    path: Path, tmp_path: Path, scheduler: Scheduler, send: Task[[int], None]
) -> None:
    await scheduler.close()
    shutil.copy(path, tmp_path / "copy.db")
    with closing(sqlite3.connect(tmp_path / "copy.db")) as connection:
        with pytest.raises(Refused, match=r"copy\.db, which is another store; connect to .*shop\.db"):
            await send.options(connection=connection).enqueue(n=1)
        assert connection.execute("SELECT count(*) FROM evertick_runs").fetchone() == (0,)


async def test_another_store_in_the_place_of_the_file_is_not_the_store(
    path: Path, tmp_path: Path, send: Task[[int], None]
) -> None:
    other = SqliteStore(f"sqlite:///{tmp_path}/other.db", clock=system_clock)
    await other.open(migrate="auto")
    await other.close()
    for old in tmp_path.glob("shop.db*"):
        old.unlink()
    (tmp_path / "other.db").rename(path)
    with closing(sqlite3.connect(path)) as connection, pytest.raises(Refused, match="another store"):
        await send.options(connection=connection).enqueue(n=1)


async def test_an_attached_store_is_refused_since_two_files_are_not_committed_as_one(
    path: Path, tmp_path: Path, send: Task[[int], None]
) -> None:
    with closing(sqlite3.connect(tmp_path / "main.db")) as connection:
        connection.execute("ATTACH ? AS ledger", (str(path),))
        with pytest.raises(Refused, match=r"leads to .*main\.db, without tables of Evertick"):
            await send.options(connection=connection).enqueue(n=1)


async def test_a_store_in_memory_has_no_transactions_of_others() -> None:
    scheduler = Scheduler("sqlite://", concurrency=0)

    @scheduler.task
    async def send(n: int) -> None: ...

    refusal = "in memory, which no other connection can reach"
    with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(Refused, match=refusal):
        await send.options(connection=connection).enqueue(n=1)
    await scheduler.close()


async def test_the_testing_kit_says_that_its_ledger_is_in_memory(
    path: Path, scheduler: Scheduler, send: Task[[int], None], connection: sqlite3.Connection
) -> None:
    await scheduler.close()
    async with virtual_time(scheduler):
        with pytest.raises(Refused, match="in the testing kit the ledger is always in memory"):
            await send.options(connection=connection).enqueue(n=1)


@pytest.mark.parametrize("given", [7, "shop.db", object()], ids=["int", "str", "object"])
async def test_what_is_no_connection_is_refused(send: Task[[int], None], given: object) -> None:
    with pytest.raises(InvalidInput, match="is no open connection to SQLite"):
        await send.options(connection=given).enqueue(n=1)


async def test_an_async_session_is_refused_with_the_way_to_its_connection(path: Path, send: Task[[int], None]) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    async with AsyncSession(engine) as session:
        with pytest.raises(InvalidInput, match=r"await session.connection\(\)"):
            await send.options(connection=session).enqueue(n=1)
        assert (await send.options(connection=await session.connection()).enqueue(n=1)).is_new
        await session.rollback()
    await engine.dispose()


async def test_an_async_connection_is_not_for_plain_code(path: Path, send: Task[[int], None]) -> None:
    async with aiosqlite.connect(path) as connection:
        with pytest.raises(WouldBlock):
            send.options(connection=connection).sync.enqueue(n=1)
        with pytest.raises(Refused, match="use `await` without"):
            await asyncio.to_thread(send.options(connection=connection).sync.enqueue, n=1)


async def test_a_read_only_connection_says_so(path: Path, send: Task[[int], None]) -> None:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        with pytest.raises(StoreUnavailable, match="read-only"):
            await send.options(connection=connection).enqueue(n=1)
        assert not connection.in_transaction


async def test_no_calls_are_no_transaction(send: Task[[int], None], connection: sqlite3.Connection) -> None:
    assert await send.options(connection=connection).enqueue_many([]) == []
    assert not connection.in_transaction
