"""Foreign commits to a file are noticed at once, or else found a little later. Nothing stays open."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from evertick.clock import system_clock
from evertick.model import Cause, NewRun
from evertick.store.sqlite import SqliteStore, connection, foreign_commits
from evertick.store.sqlite.foreign_commits import FileWatch

PATIENCE = 30.0
HOUR = 3600.0

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="this system has no inotify")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "evertick.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(f"sqlite:///{path}", clock=system_clock)
    await store.open(migrate="auto")
    yield store
    await store.close()


@pytest.fixture
async def program(path: Path, store: SqliteStore) -> AsyncIterator[SqliteStore]:
    """Another store on the same file: to the first, its commits are foreign."""
    program = SqliteStore(f"sqlite:///{path}", clock=system_clock)
    await program.open(migrate="check")
    yield program
    await program.close()


@pytest.fixture
def theirs(path: Path, store: SqliteStore) -> Iterator[sqlite3.Connection]:
    """A program with a table of its own in the same file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("CREATE TABLE theirs (x)")
        yield db


@pytest.fixture
def heard_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks by himself: what is found was heard."""
    monkeypatch.setattr(foreign_commits, "_WATCHED_SECONDS", HOUR)
    monkeypatch.setattr(foreign_commits, "_POLL_SECONDS", HOUR)


def a_run() -> NewRun:
    return NewRun(id=system_clock.new_id(), task="t", cause=Cause.ENQUEUE)


async def hears(store: SqliteStore) -> str | None:
    return await asyncio.wait_for(store.changed("a", HOUR), PATIENCE)


async def waiting(store: SqliteStore) -> asyncio.Task[str | None]:
    """One who waits already, with nothing left to tell of before."""
    while await store.changed("a", 0.01):
        pass
    task: asyncio.Task[str | None] = asyncio.create_task(hears(store))
    await asyncio.sleep(0.01)
    return task


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# --- hearing -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("heard_alone")
async def test_a_commit_is_noticed_without_polling(store: SqliteStore, program: SqliteStore) -> None:
    for _ in range(5):
        hearing = await waiting(store)
        await program.enqueue("a", [a_run()])
        assert await hearing


@pytest.mark.usefixtures("heard_alone")
async def test_the_log_stays_the_watched_file_for_all_acts_of_other_processes(
    path: Path, store: SqliteStore, theirs: sqlite3.Connection
) -> None:
    log = Path(f"{path}-wal")
    before = log.stat().st_ino
    for pragma in ("PRAGMA wal_checkpoint(TRUNCATE)", "PRAGMA journal_mode = WAL", "VACUUM"):
        hearing = await waiting(store)
        theirs.execute(pragma)
        program = f"import sqlite3; d = sqlite3.connect({str(path)!r}); d.execute('INSERT INTO theirs VALUES (1)')"
        other = await asyncio.create_subprocess_exec(sys.executable, "-c", f"{program}; d.commit(); d.close()")
        assert await hearing
        assert await other.wait() == 0
    with suppress(sqlite3.OperationalError):
        # Refused while we are connected.
        theirs.execute("PRAGMA journal_mode = DELETE")
    assert log.stat().st_ino == before


@pytest.mark.usefixtures("heard_alone")
async def test_a_file_behind_a_link_is_watched(tmp_path: Path, store: SqliteStore, program: SqliteStore) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.db"
    link.symlink_to(tmp_path / "evertick.db")
    linked = SqliteStore(f"sqlite:///{link}", clock=system_clock)
    await linked.open(migrate="check")
    hearing = await waiting(linked)
    await program.enqueue("a", [a_run()])
    assert await hearing
    await linked.close()


@pytest.mark.usefixtures("heard_alone")
async def test_a_commit_that_comes_long_after_its_first_write_is_noticed(
    store: SqliteStore, theirs: sqlite3.Connection
) -> None:
    theirs.execute("PRAGMA cache_size = 2")
    theirs.execute("PRAGMA cache_spill = 2")
    hearing = await waiting(store)
    theirs.execute("BEGIN IMMEDIATE")
    theirs.executemany("INSERT INTO theirs VALUES (?)", [("x" * 4000,)] * 100)
    await asyncio.sleep(0.3)
    assert not hearing.done()
    theirs.execute("COMMIT")
    assert await hearing


@pytest.mark.usefixtures("heard_alone")
async def test_after_a_write_waits_are_short_and_grow_since_its_commit_is_seen_later(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.touch()
    watching = FileWatch(file)
    loop = asyncio.get_running_loop()
    first = asyncio.create_task(watching.wait(HOUR))
    await asyncio.sleep(0.01)
    file.write_bytes(b"x")
    times = [loop.time()]
    async with asyncio.timeout(PATIENCE):
        await first
        for _ in range(12):
            await watching.wait(HOUR)
            times.append(loop.time())
    assert times[-1] - times[-2] > 3 * (times[2] - times[1])
    # All commits were found: the next one is noticed.
    watching.found()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watching.wait(HOUR), 0.2)
    watching.close()


@pytest.mark.usefixtures("heard_alone")
async def test_several_may_wait_on_one_loop(store: SqliteStore, tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.touch()
    watching = FileWatch(file)
    waits = [asyncio.create_task(watching.wait(HOUR)) for _ in range(3)]
    await asyncio.sleep(0.01)
    file.write_bytes(b"x")
    await asyncio.wait_for(asyncio.gather(*waits), PATIENCE)
    watching.close()


# --- not hearing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
async def test_without_a_watch_the_file_is_looked_at_and_the_log_says_why(
    store: SqliteStore,
    program: SqliteStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    def refuse(path: Path) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(foreign_commits, "_inotify", refuse)
    caplog.set_level("INFO")
    hearing = await waiting(store)
    await program.enqueue("a", [a_run()])
    assert await hearing
    assert "fs.inotify.max_user_" in caplog.text
    assert "every 0.25 s" in caplog.text


async def test_on_an_event_loop_that_cannot_listen_the_file_is_looked_at(
    store: SqliteStore, program: SqliteStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(descriptor: int, *_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", refuse)
    caplog.set_level("INFO")
    before = descriptors()
    hearing = await waiting(store)
    await program.enqueue("a", [a_run()])
    assert await hearing
    assert caplog.text.count("every 0.25 s") == 1
    assert descriptors() == before


async def test_where_there_is_no_log_to_watch_the_file_is_looked_at(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = SqliteStore(f"sqlite:///{path}", clock=system_clock)
    await first.open(migrate="auto")
    await first.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = DELETE")
        store = SqliteStore(f"sqlite:///{path}", clock=system_clock)
        await store.open(migrate="check")
        hearing = await waiting(store)
        db.execute("CREATE TABLE theirs (x)")
        assert await hearing
        await store.close()


async def test_a_commit_without_a_notice_is_found_by_polling(
    store: SqliteStore, program: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hear_nothing(descriptor: int, seconds: float) -> bool:
        await asyncio.sleep(seconds)
        return False

    monkeypatch.setattr(foreign_commits, "_can_be_read", hear_nothing)
    monkeypatch.setattr(foreign_commits, "_WATCHED_SECONDS", 0.05)
    hearing = await waiting(store)
    await program.enqueue("a", [a_run()])
    assert await hearing


# --- notices --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("heard_alone")
async def test_between_full_checks_only_new_runs_are_reported(
    store: SqliteStore, program: SqliteStore, theirs: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    hearing = await waiting(store)
    monkeypatch.setattr(foreign_commits, "_ANYTHING_SECONDS", -1.0)
    theirs.execute("INSERT INTO theirs VALUES (1)")
    assert await hearing == "anything"
    monkeypatch.setattr(foreign_commits, "_ANYTHING_SECONDS", HOUR)
    theirs.execute("INSERT INTO theirs VALUES (2)")
    assert await store.changed("a", 0.3) is None
    await program.enqueue("a", [a_run()])
    assert await hears(store) == "runs"
    await program.enqueue("of others", [a_run()])
    assert await store.changed("a", 0.3) is None
    monkeypatch.setattr(foreign_commits, "_ANYTHING_SECONDS", -1.0)
    assert await hears(store) == "anything", "the runs may not have been all"
    assert await store.changed("a", 0.05) is None


async def test_constant_writes_to_other_tables_cause_few_checks_of_ours(
    store: SqliteStore, theirs: sqlite3.Connection
) -> None:
    loop = asyncio.get_running_loop()
    began, told = loop.time(), []

    async def listen() -> None:
        while loop.time() - began < 1.2:
            told.append((await store.changed("a", PATIENCE), loop.time()))

    listening = asyncio.create_task(listen())
    while not listening.done():
        theirs.execute("INSERT INTO theirs VALUES (1)")
        await asyncio.sleep(0.005)
    assert {news for news, _ in told} == {"anything"}
    assert 3 <= len(told) <= 1 + (told[-1][1] - began) / foreign_commits._ANYTHING_SECONDS


async def test_writes_that_no_commit_follows_cause_a_bounded_number_of_looks(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.touch()
    watching, looks = FileWatch(file), 0
    loop = asyncio.get_running_loop()

    async def write_on() -> None:
        with file.open("wb", buffering=0) as log:
            while True:
                log.write(b"x")
                await asyncio.sleep(0.001)

    writing = asyncio.create_task(write_on())
    began = loop.time()
    while loop.time() - began < 1:
        await watching.wait(HOUR)
        looks += 1
    assert 10 <= looks <= 60 * (loop.time() - began) + 20
    writing.cancel()
    watching.close()


async def test_runs_of_our_own_are_no_news(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await store.changed("a", 0.01) is None
    monkeypatch.setattr(foreign_commits, "_ANYTHING_SECONDS", HOUR)
    for _ in range(20):
        await store.enqueue("a", [a_run()])
        assert await store.changed("a", 0.01) is None


async def test_our_own_commits_cause_a_bounded_number_of_looks(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look = 0, connection.data_version

    def counted(db: sqlite3.Connection) -> int:
        nonlocal looks
        looks += 1
        return look(db)

    hearing = await waiting(store)
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(foreign_commits, "data_version", counted)
    began = loop.time()
    while loop.time() - began < 1:
        await store.enqueue("a", [a_run()])
    seconds = loop.time() - began
    assert not hearing.done()
    hearing.cancel()
    # A look, and a question to the writer where new runs wait.
    assert looks <= 2 * 60 * seconds + 40


# --- the end -----------------------------------------------------------------------------------------------------


async def test_nothing_is_left_open(path: Path) -> None:
    async def live() -> None:
        store = SqliteStore(f"sqlite:///{path}", clock=system_clock)
        await store.open(migrate="auto")
        assert await store.changed("a", 0.01) is None
        cancelled = asyncio.create_task(store.changed("a", HOUR))
        await asyncio.sleep(0.01)
        cancelled.cancel()
        with suppress(asyncio.CancelledError):
            await cancelled
        await store.close()

    await live()
    before = descriptors()
    for _ in range(5):
        await live()
    assert descriptors() == before


async def test_a_store_that_only_writes_has_no_watch(store: SqliteStore) -> None:
    before = descriptors()
    await store.enqueue("a", [a_run()])
    assert descriptors() == before
    await store.changed("a", 0.01)
    assert descriptors() == before + 1


async def test_a_waiter_gets_nothing_when_the_store_is_closed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_commits, "_WATCHED_SECONDS", 0.1)
    before = descriptors()
    store = SqliteStore(f"sqlite:///{path}", clock=system_clock)
    await store.open(migrate="auto")
    hearing = await waiting(store)
    await store.close()
    assert await hearing is None
    assert descriptors() == before


def test_an_event_loop_that_ends_under_a_waiter_leaves_nothing_open(path: Path) -> None:
    store = SqliteStore(f"sqlite:///{path}", clock=system_clock)
    asyncio.run(store.open(migrate="auto"))
    asyncio.run(store.changed("a", 0.01))
    before = descriptors()

    def leave_early() -> None:
        loop = asyncio.new_event_loop()
        task = loop.create_task(store.changed("a", HOUR))
        loop.run_until_complete(asyncio.sleep(0.01))
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()

    leave_early()
    gc.collect()
    assert descriptors() == before
    assert asyncio.run(store.changed("a", 0.01)) is None
    asyncio.run(store.close())


def test_no_program_that_is_started_inherits_the_watch(path: Path) -> None:
    store = SqliteStore(f"sqlite:///{path}", clock=system_clock)
    asyncio.run(store.open(migrate="auto"))
    asyncio.run(store.changed("a", 0.01))
    listing = subprocess.run(
        ["ls", "-l", "/proc/self/fd"], check=True, capture_output=True, text=True, close_fds=False
    ).stdout
    assert "inotify" not in listing
    asyncio.run(store.close())
