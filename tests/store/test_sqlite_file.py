"""A SQLite store is a real file: what can be wrong with one is said clearly, and passes when its cause has passed."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from evertick.clock import system_clock
from evertick.errors import StoreRefused, StoreUnavailable
from evertick.model import Cause, NewRun
from evertick.store.base import NodeJoin, RunFilter
from evertick.store.sqlite import SqliteStore
from evertick.store.sqlite import connection as code

HOLD = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
db.execute("COMMIT")
"""

# As another user where the tests run as root, whom no permission stops.
OPEN_AS_NOBODY = """
import asyncio, os, pwd, sys
from evertick.clock import system_clock
from evertick.errors import StoreError
from evertick.store.sqlite import SqliteStore

async def main():
    # Loads what is loaded lazily: the other user may not even read this Python.
    other = SqliteStore("sqlite://", clock=system_clock)
    await other.open(migrate="auto")
    await other.close()
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    store = SqliteStore(sys.argv[1], clock=system_clock)
    try:
        await store.open(migrate="auto")
    except StoreError as error:
        print(type(error).__name__, error)

asyncio.run(main())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "evertick.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(f"sqlite:///{path}?busy_timeout=50ms", clock=system_clock)
    await store.open(migrate="auto")
    yield store
    await store.close()


@contextmanager
def locked_by_another_process(path: Path) -> Iterator[None]:
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert holder.wait() == 0


def a_run(args: bytes = b"{}") -> NewRun:
    return NewRun(id=system_clock.new_id(), task="t", cause=Cause.ENQUEUE, args=args)


def a_node(id_: str) -> NodeJoin:
    return NodeJoin(id=id_, name=id_, app="a", version="1", lease=1_000_000, queues=("default",), tasks={}, declares={})


async def on_the_writer(store: SqliteStore, statement: str) -> Any:
    assert store.session() is not None
    return await store.session().write(lambda db, _now: db.execute(statement).fetchone()[0])


# --- how the file is set up --------------------------------------------------------------------------------------


async def test_the_file_has_a_write_ahead_log_and_returns_free_pages(path: Path, store: SqliteStore) -> None:
    assert path.with_name("evertick.db-wal").exists()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA auto_vacuum").fetchone() == (2,)


async def test_a_commit_is_on_disk_before_it_is_answered_by_default(path: Path, store: SqliteStore) -> None:
    full, normal = 2, 1
    assert await on_the_writer(store, "PRAGMA synchronous") == full
    quicker = SqliteStore(f"sqlite:///{path}?synchronous=normal", clock=system_clock)
    await quicker.open(migrate="check")
    assert await on_the_writer(quicker, "PRAGMA synchronous") == normal
    await quicker.close()


async def test_closing_leaves_one_file(path: Path) -> None:
    store = SqliteStore(f"sqlite:///{path}", clock=system_clock)
    await store.open(migrate="auto")
    await store.enqueue("a", [a_run()])
    await store.close()
    assert [file.name for file in path.parent.iterdir()] == ["evertick.db"]


async def test_a_store_in_memory_is_its_own(tmp_path: Path) -> None:
    stores = [SqliteStore("sqlite://", clock=system_clock) for _ in range(2)]
    for store in stores:
        await store.open(migrate="auto")
    await stores[0].enqueue("a", [a_run()])
    counts = [len(await store.runs("a", RunFilter())) for store in stores]
    for store in stores:
        await store.close()
    assert counts == [1, 0]


# --- what is refused at the start --------------------------------------------------------------------------------


async def refusal(url: str) -> str:
    store = SqliteStore(url, clock=system_clock)
    with pytest.raises(StoreRefused) as refused:
        await store.open(migrate="auto")
    return str(refused.value)


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    said = await refusal(f"sqlite:///{tmp_path}/nowhere/x.db")
    assert f"{tmp_path}/nowhere" in said
    assert "create it" in said


async def test_a_pipe_is_no_store(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.db")
    assert "is a named pipe; name a regular file" in await refusal(f"sqlite:///{tmp_path}/pipe.db")


async def test_a_directory_is_no_store(tmp_path: Path) -> None:
    assert "is a directory" in await refusal(f"sqlite:///{tmp_path}")


async def test_another_kind_of_file_is_no_store(path: Path) -> None:
    path.write_text("Dear diary, " * 200)
    assert "not a SQLite database" in await refusal(f"sqlite:///{path}")


def test_a_file_that_this_user_may_not_write_is_refused() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.db"
        path.touch(mode=0o444)
        os.chmod(folder, 0o555)
        answer = subprocess.run(
            [sys.executable, "-c", OPEN_AS_NOBODY, f"sqlite:///{path}"], capture_output=True, text=True, check=True
        )
        os.chmod(folder, 0o700)
    assert answer.stdout.startswith("StoreRefused")
    assert "this user" in answer.stdout


async def test_an_old_sqlite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code.sqlite3, "sqlite_version_info", (3, 34, 1))
    assert "3.35 or newer" in await refusal("sqlite://")


# --- what may pass -----------------------------------------------------------------------------------------------


async def test_a_lock_held_too_long_makes_writes_unavailable_until_it_is_gone(path: Path, store: SqliteStore) -> None:
    run = a_run()
    locked = pytest.raises(StoreUnavailable, match=r"evertick\.db is locked by another connection")
    with locked_by_another_process(path), locked:
        await store.enqueue("a", [run])
    assert [found.is_new for found in await store.enqueue("a", [run])] == [True]


async def test_reading_does_not_wait_for_a_lock(path: Path, store: SqliteStore) -> None:
    await store.enqueue("a", [a_run()])
    with locked_by_another_process(path):
        assert len(await store.runs("a", RunFilter())) == 1
        assert (await store.due_schedules("a", 10)).schedules == []


async def test_a_store_without_new_migrations_opens_while_another_process_writes(
    path: Path, store: SqliteStore
) -> None:
    with locked_by_another_process(path):
        late = SqliteStore(f"sqlite:///{path}", clock=system_clock)
        await late.open(migrate="auto")
        assert await late.runs("a", RunFilter()) == []
        await late.close()


async def test_a_beat_gives_up_within_a_part_of_its_lease(path: Path) -> None:
    patient = SqliteStore(f"sqlite:///{path}?busy_timeout=60s", clock=system_clock)
    await patient.open(migrate="auto")
    await patient.join(a_node("n"))
    line = await patient.heartbeat_session()
    lease = 400_000
    with locked_by_another_process(path):
        before = system_clock.elapsed()
        with pytest.raises(StoreUnavailable):
            await line.beat("n", lease)
        assert system_clock.elapsed() - before < 10
    assert (await line.beat("n", lease)).is_alive
    await line.close()
    await patient.close()


async def test_a_full_disk_fails_the_write_and_the_store_goes_on(store: SqliteStore) -> None:
    pages = await on_the_writer(store, "PRAGMA page_count")
    await on_the_writer(store, f"PRAGMA max_page_count = {pages}")
    big = a_run(b'"' + b"x" * 200_000 + b'"')
    with pytest.raises(StoreUnavailable, match="free some space"):
        await store.enqueue("a", [big])
    assert await store.runs("a", RunFilter()) == []
    await on_the_writer(store, "PRAGMA max_page_count = 1000000")
    assert (await store.enqueue("a", [big]))[0].is_new


async def test_a_damaged_file_is_said_to_be_damaged(path: Path) -> None:
    store = SqliteStore(f"sqlite:///{path}", clock=system_clock)
    await store.open(migrate="auto")
    await store.enqueue("a", [a_run(b'"' + b"x" * 5000 + b'"') for _ in range(50)])
    await store.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (path.stat().st_size - 4096))
    with pytest.raises(StoreRefused, match="integrity_check"):
        await store.open(migrate="auto")


async def test_our_own_mistakes_are_not_dressed_up(store: SqliteStore) -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        await on_the_writer(store, "SELECT * FROM no_table_of_ours")


# --- others ------------------------------------------------------------------------------------------------------


async def test_a_commit_of_another_process_is_noticed(path: Path, store: SqliteStore) -> None:
    assert not await store.changed("a", 0)
    other = SqliteStore(f"sqlite:///{path}", clock=system_clock)
    await other.open(migrate="check")
    await other.enqueue("a", [a_run()])
    assert await store.changed("a", 10)
    assert not await store.changed("a", 0)
    await other.close()


async def test_own_commits_wake_no_waiter(store: SqliteStore) -> None:
    await store.enqueue("a", [a_run()])
    assert not await store.changed("a", 0)


async def test_a_damaged_surrogate_in_a_text_is_stored_as_a_question_mark(store: SqliteStore) -> None:
    run = NewRun(id=system_clock.new_id(), task="t", cause=Cause.ENQUEUE, reason="caf\udce9")
    assert (await store.enqueue("a", [run]))[0].reason == "caf?"


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o640), (0o002, 0o660), (0o077, 0o600)])
async def test_a_new_file_is_not_readable_by_all_users(path: Path, umask: int, mode: int) -> None:
    """It holds what jobs print. A group may share it, if the umask lets it."""
    before = os.umask(umask)
    try:
        store = SqliteStore(f"sqlite:///{path}", clock=system_clock)
        await store.open(migrate="auto")
        files = {each.name: each.stat().st_mode & 0o777 for each in path.parent.iterdir()}
        await store.close()
    finally:
        os.umask(before)
    assert files == dict.fromkeys(("evertick.db", "evertick.db-wal", "evertick.db-shm"), mode)


async def test_the_mode_of_a_file_that_is_there_stays(path: Path) -> None:
    path.touch()
    path.chmod(0o644)
    store = SqliteStore(f"sqlite:///{path}", clock=system_clock)
    await store.open(migrate="auto")
    await store.close()
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_directory_that_may_not_be_entered_is_named_with_its_owner(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0o700 if os.getuid() == 0 else 0)
    told = subprocess.run(
        [sys.executable, "-c", OPEN_AS_NOBODY, f"sqlite:///{closed}/evertick.db"], capture_output=True, text=True
    )
    closed.chmod(0o700)
    owner = closed.owner()
    assert told.stdout.startswith("StoreRefused this user may not enter ")
    assert told.stdout.endswith(f"; run it as {owner}, the owner of that directory\n")
