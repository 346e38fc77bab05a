"""What an operator can do to a SQLite ledger that is in use, as SQLite's page "How To Corrupt" lists it.

Real processes: the defects are about what one process does not see of another.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

import preloaded
from evertick import Scheduler, StoreRefused, StoreReplaced, StoreUnavailable
from evertick.clock import system_clock
from evertick.model import Cause, NewRun
from evertick.scheduler.process import EXIT_REPLACED
from evertick.store.base import MigrateMode, NodeJoin, RunFilter
from evertick.store.sqlite import SqliteStore, file_system

NODE = """
import sys
from evertick import Context, Scheduler
scheduler = Scheduler(
    sys.argv[1], lease="3s", poll_interval="200ms", stop_timeout="5s", start_timeout="1s", node_name=sys.argv[2]
)

@scheduler.every("200ms", catch_up="all", catch_up_limit=1000, pace="5ms", overlap="allow")
async def tick(ctx: Context) -> None:
    with open(sys.argv[3], "a") as done:
        print(ctx.fire_at.isoformat(), flush=True, file=done)

scheduler.run()
"""

# What another program does to the file while the node is stopped.
READ = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM sqlite_master').fetchall()"
WRITE = "import sqlite3, sys; sqlite3.connect(sys.argv[1], isolation_level=None).execute('CREATE TABLE theirs (a)')"


class Nodes:
    """Nodes with one schedule on one ledger, each a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "l.db"
        self.done = folder / "done"
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *, path: Path | None = None, parameters: str = "") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", NODE, f"sqlite:///{path or self.path}{parameters}", name, str(self.done)]
        with self._log(name).open("wb") as log:
            node = preloaded.popen(command, stderr=log)
        self._started.append(node)
        return node

    async def code(self, node: subprocess.Popen[bytes]) -> int:
        return await asyncio.to_thread(node.wait, 20)

    async def stopped(self, node: subprocess.Popen[bytes]) -> int:
        node.send_signal(signal.SIGTERM)
        return await self.code(node)

    def said(self, name: str) -> str:
        return self._log(name).read_text()

    def _log(self, name: str) -> Path:
        return self.path.with_name(f"log-{name}")

    def moments(self) -> list[str]:
        return self.done.read_text().splitlines() if self.done.exists() else []

    def ran_twice(self) -> dict[str, int]:
        return {moment: count for moment, count in Counter(self.moments()).items() if count > 1}

    async def until_more(self, count: int) -> None:
        seen = len(self.moments())
        async with asyncio.timeout(20):
            while len(self.moments()) < seen + count:
                await asyncio.sleep(0.02)

    def end(self) -> None:
        for node in self._started:
            if node.poll() is None:
                node.kill()
            node.wait()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path)
    yield nodes
    nodes.end()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "l.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(f"sqlite:///{path}?busy_timeout=100ms", clock=system_clock)
    await store.open(migrate="auto")
    yield store
    await store.close()


def delete(path: Path, *ends: str) -> None:
    for end in ends or ("-wal", "-shm"):
        path.with_name(path.name + end).unlink()


def beside(path: Path) -> set[str]:
    return {each.name for each in path.parent.glob(f"{path.name}-*")}


def succeeded(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("SELECT count(*) FROM evertick_history WHERE verdict = 'succeeded'").fetchone()[0])


def is_whole(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as db:
        return db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def in_another_process(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    return preloaded.run([sys.executable, "-c", code, str(path)], timeout=60)


def evertick(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "evertick", *words, "--database", f"sqlite:///{path}?busy_timeout=100ms"]
    return preloaded.run(command, timeout=60)


def a_run() -> NewRun:
    return NewRun(id=system_clock.new_id(), task="t", cause=Cause.ENQUEUE, args=b"{}")


async def until_replaced(store: SqliteStore) -> None:
    """It looks ten times a second."""
    async with asyncio.timeout(10):
        with suppress(StoreReplaced):
            while True:
                await store.runs("a", RunFilter())


# --- the -wal and the -shm are deleted, or replaced ---------------------------------------------------------------


@pytest.mark.parametrize("ends", [("-wal", "-shm"), ("-wal",), ("-shm",)])
async def test_a_node_whose_log_was_deleted_ends_and_the_next_goes_on_from_all_that_it_did(
    nodes: Nodes, ends: tuple[str, ...]
) -> None:
    first = nodes.start("first")
    await nodes.until_more(3)
    delete(nodes.path, *ends)
    second = nodes.start("second")
    assert await nodes.code(first) == EXIT_REPLACED
    await nodes.until_more(5)
    assert await nodes.stopped(second) == 0, nodes.said("second")
    said = nodes.said("first")
    for end in ends:
        assert f"{nodes.path}{end}" in said
    assert "deleted while the SQLite file" in said
    assert "restart this process, which keeps all that was committed" in said
    assert said.count("deleted while the SQLite file") == 1
    assert nodes.ran_twice() == {}
    assert succeeded(nodes.path) == len(nodes.moments())
    assert is_whole(nodes.path)


async def test_of_several_nodes_with_a_deleted_log_the_last_keeps_what_all_have_done(nodes: Nodes) -> None:
    both = [nodes.start("first"), nodes.start("second")]
    await nodes.until_more(5)
    delete(nodes.path)
    assert [await nodes.code(node) for node in both] == [EXIT_REPLACED] * 2
    assert beside(nodes.path) == set()
    assert nodes.ran_twice() == {}
    assert succeeded(nodes.path) == len(nodes.moments())
    assert is_whole(nodes.path)


async def test_nothing_starts_beside_a_process_that_holds_a_deleted_log(nodes: Nodes) -> None:
    first = nodes.start("first")
    await nodes.until_more(3)
    first.send_signal(signal.SIGSTOP)
    delete(nodes.path)
    for words in (["list"], ["db", "check"], ["db", "migrate"]):
        refused = evertick(nodes.path, *words)
        assert refused.returncode == 1
        assert f"is in use by process {first.pid} with a -wal or -shm file that was deleted" in refused.stderr
    second = nodes.start("second", parameters="?busy_timeout=100ms")
    assert await nodes.code(second) == 1
    assert f"is in use by process {first.pid}" in nodes.said("second")
    assert beside(nodes.path) == set()
    first.send_signal(signal.SIGCONT)
    assert await nodes.code(first) == EXIT_REPLACED
    assert evertick(nodes.path, "list").returncode == 0
    assert succeeded(nodes.path) == len(nodes.moments())


async def test_a_program_that_only_reads_in_between_costs_nothing(nodes: Nodes) -> None:
    """It makes a new log, which is empty; the next node is refused by who holds which locks."""
    first = nodes.start("first")
    await nodes.until_more(3)
    first.send_signal(signal.SIGSTOP)
    delete(nodes.path)
    assert in_another_process(READ, nodes.path).returncode == 0
    refused = evertick(nodes.path, "list")
    assert refused.returncode == 1
    assert f"is in use by process {first.pid}" in refused.stderr
    first.send_signal(signal.SIGCONT)
    assert await nodes.code(first) == EXIT_REPLACED
    assert "replaced while the SQLite file" in nodes.said("first")
    assert succeeded(nodes.path) >= len(nodes.moments()) - 1
    assert is_whole(nodes.path)


async def test_a_program_that_writes_in_between_is_not_overwritten_and_ours_is_saved_beside(nodes: Nodes) -> None:
    first = nodes.start("first")
    await nodes.until_more(3)
    first.send_signal(signal.SIGSTOP)
    seen = len(nodes.moments())
    delete(nodes.path)
    assert in_another_process(WRITE, nodes.path).returncode == 0
    first.send_signal(signal.SIGCONT)
    assert await nodes.code(first) == EXIT_REPLACED
    rescued = nodes.path.with_name(f"l.db.rescued-{first.pid}")
    assert f"saved as {rescued}" in nodes.said("first")
    assert succeeded(rescued) >= seen - 1
    assert is_whole(rescued)
    with closing(sqlite3.connect(nodes.path)) as db:
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'theirs'").fetchone() == (1,)
    assert is_whole(nodes.path)


async def test_a_killed_process_leaves_a_log_that_the_next_one_takes_up(nodes: Nodes) -> None:
    first = nodes.start("first")
    await nodes.until_more(3)
    first.kill()
    first.wait()
    assert beside(nodes.path) == {"l.db-wal", "l.db-shm"}
    delete(nodes.path, "-shm")
    assert evertick(nodes.path, "list").returncode == 0
    assert succeeded(nodes.path) >= 2
    assert is_whole(nodes.path)


async def test_what_begins_is_refused_and_what_ends_is_written_when_the_log_was_deleted(
    path: Path, store: SqliteStore
) -> None:
    node = NodeJoin(id="n", name="n", app="a", version="1", lease=60_000_000, queues=(), tasks={}, declares={})
    await store.join(node)
    delete(path)
    await until_replaced(store)
    with pytest.raises(StoreReplaced):
        await store.enqueue("a", [a_run()])
    with pytest.raises(StoreReplaced, match=r"-wal and .*-shm were deleted"):
        await store.runs("a", RunFilter())
    with pytest.raises(StoreReplaced):
        await store.heartbeat_session()
    with closing(sqlite3.connect(":memory:")) as theirs, pytest.raises(StoreReplaced):
        store.within(theirs)
    with pytest.raises(StoreReplaced):
        store.transaction(seconds=1, is_plain=True)
    await store.leave("n")
    await store.close()
    again = SqliteStore(f"sqlite:///{path}", clock=system_clock)
    await again.open(migrate="check")
    assert [each.died_at is None for each in await again.nodes("a")] == [False]
    await again.close()


# --- copies -------------------------------------------------------------------------------------------------------


async def test_a_copy_of_the_file_alone_lacks_what_is_in_the_log(path: Path, store: SqliteStore) -> None:
    await store.enqueue("a", [a_run()])
    copy = path.with_name("copy.db")
    subprocess.run(["cp", str(path), str(copy)], check=True)
    assert evertick(copy, "db", "check").returncode == 1


async def test_a_backup_under_load_is_whole_and_has_what_was_committed_before(nodes: Nodes) -> None:
    node = nodes.start("first", parameters="?synchronous=normal")
    await nodes.until_more(3)
    copy = nodes.path.with_name("copy.db")
    for count in range(3):
        await nodes.until_more(1)
        before = len(nodes.moments())
        assert evertick(nodes.path, "db", "backup", str(copy)).returncode == 0
        assert evertick(copy, "db", "check").returncode == 0
        # The newest run has written its line before its end.
        assert succeeded(copy) >= before - 1, count
        copy.unlink()
    assert await nodes.stopped(node) == 0


async def test_a_copy_that_is_torn_is_found_by_the_check(path: Path, store: SqliteStore) -> None:
    for _ in range(50):
        await store.enqueue("a", [a_run() for _ in range(20)])
    await store.close()
    # As a copy is that was made while pages were written: its second half is of before.
    half = path.stat().st_size // 2 // 4096 * 4096
    with path.open("r+b") as file:
        file.truncate(half)
    checked = evertick(path, "db", "check")
    assert checked.returncode == 1
    assert "damaged" in checked.stdout + checked.stderr


# --- several names of one file ------------------------------------------------------------------------------------


async def test_a_file_with_two_names_is_refused(path: Path) -> None:
    first = SqliteStore(f"sqlite:///{path}", clock=system_clock)
    await first.open(migrate="auto")
    other = path.with_name("other.db")
    os.link(path, other)
    second = SqliteStore(f"sqlite:///{other}", clock=system_clock)
    with pytest.raises(StoreRefused, match=r"has 2 names \(hard links\).*find / -xdev -inum \d+"):
        await second.open(migrate="auto")
    refused = evertick(other, "db", "check")
    assert (refused.returncode, "hard links" in refused.stderr) == (1, True)
    assert beside(other) == set()
    other.unlink()
    await first.close()


async def test_nodes_that_name_the_file_by_a_symbolic_link_share_one_ledger(nodes: Nodes, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    link = folder / "link.db"
    link.symlink_to(nodes.path)
    first = nodes.start("first")
    await nodes.until_more(2)
    second = nodes.start("second", path=link)
    await nodes.until_more(5)
    assert beside(link) == set()
    # The link leads to the files that are guarded.
    delete(nodes.path)
    assert [await nodes.code(node) for node in (first, second)] == [EXIT_REPLACED] * 2
    assert nodes.ran_twice() == {}
    assert succeeded(nodes.path) == len(nodes.moments())


# --- locks that a second descriptor of the same process cancels -----------------------------------------------------

FREE = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
db.execute("PRAGMA locking_mode = EXCLUSIVE")
try:
    db.execute("SELECT count(*) FROM sqlite_master").fetchall()
except sqlite3.OperationalError as error:
    sys.exit(7)
"""


def is_locked(path: Path) -> bool:
    """Whether another process finds the shared lock of this one: SQLite folds and deletes the log where it does not."""
    return in_another_process(FREE, path).returncode == 7


async def test_nothing_that_we_do_in_a_process_cancels_its_locks(path: Path, store: SqliteStore) -> None:
    care = store.maintenance()
    await care.status()
    await care.check()
    assert is_locked(path)
    second = SqliteStore(f"sqlite:///{path}", clock=system_clock)
    await second.open(migrate="auto")
    await second.close()
    assert is_locked(path)
    line = await store.heartbeat_session()
    await line.close()
    scheduler = Scheduler(f"sqlite:///{path}", concurrency=0)
    await scheduler.schedules()
    await scheduler.close()
    assert is_locked(path)
    await store.enqueue("a", [a_run()])
    assert is_whole(path)


async def test_a_lock_that_a_copy_in_this_process_has_cancelled_is_reported_once(
    path: Path, store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    node = NodeJoin(id="n", name="n", app="a", version="1", lease=60_000_000, queues=(), tasks={}, declares={})
    await store.join(node)
    line = await store.heartbeat_session()
    with caplog.at_level(logging.ERROR, logger="evertick.store"):
        await line.beat("n", 60_000_000)
        assert caplog.messages == []
        shutil.copy(path, path.with_name("copy.db"))
        await line.beat("n", 60_000_000)
        await line.beat("n", 60_000_000)
    await line.close()
    [message] = caplog.messages
    assert f"has lost its lock on the SQLite file {path}" in message
    assert "evertick db backup" in message


async def test_a_log_that_another_process_has_deleted_after_that_is_noticed(path: Path, store: SqliteStore) -> None:
    await store.enqueue("a", [a_run()])
    shutil.copy(path, path.with_name("copy.db"))
    # It ends as the last that has the file open, as far as it can see.
    in_another_process(READ, path)
    assert beside(path) == set()
    await until_replaced(store)


# --- a fork, a network ----------------------------------------------------------------------------------------------

FORK = """
import asyncio, os, sys
from evertick import Forked, Scheduler

scheduler = Scheduler(sys.argv[1], concurrency=0)

@scheduler.task
def task() -> None: ...

async def enqueue(count):
    for _ in range(count):
        await task.enqueue()

scheduler.sync.schedules()
for _ in range(3):
    task.sync.enqueue()
child = os.fork()
if child == 0:
    try:
        task.sync.enqueue()
    except Forked:
        # Without os._exit: what the child has inherited is closed as a program that ends closes it.
        sys.exit(3)
    sys.exit(4)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
for _ in range(3):
    task.sync.enqueue()
print(len(scheduler.sync.runs()))
scheduler.sync.close()
"""


def test_a_fork_is_refused_and_its_end_takes_nothing_from_its_parent(path: Path) -> None:
    command = [sys.executable, "-c", FORK, f"sqlite:///{path}"]
    program = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (program.stdout, program.returncode) == ("6\n", 0), program.stderr
    assert is_whole(path)
    assert beside(path) == set()


@pytest.mark.parametrize("migrate", ["auto", "check"])
@pytest.mark.parametrize(("kind", "is_told"), [("nfs4", True), ("cifs", True), ("ext4", False)])
async def test_a_network_file_system_is_reported_when_a_program_opens_the_ledger(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    is_told: bool,
    migrate: MigrateMode,
) -> None:
    made = SqliteStore(f"sqlite:///{path}", clock=system_clock)
    await made.open(migrate="auto")
    await made.close()
    mounts = path.with_name("mountinfo")
    mounts.write_text(f"36 35 98:0 / / rw,noatime shared:1 - {kind} /dev/root rw\n")
    monkeypatch.setattr(file_system, "MOUNTS", mounts)
    store = SqliteStore(f"sqlite:///{path}", clock=system_clock)
    with caplog.at_level(logging.WARNING, logger="evertick.store"):
        await store.open(migrate=migrate)
    await store.close()
    told = [message for message in caplog.messages if f"network file system ({kind})" in message]
    assert len(told) == is_told
    assert all("move it to a local disk, or keep the ledger in PostgreSQL" in message for message in told)


async def test_a_file_that_is_locked_at_the_start_is_said_to_be(path: Path) -> None:
    """Of a file without a log the lock of the whole file is asked for, and here another program holds that."""
    with closing(sqlite3.connect(path, isolation_level=None)) as theirs:
        theirs.execute("CREATE TABLE theirs (a)")
        theirs.execute("BEGIN EXCLUSIVE")
        store = SqliteStore(f"sqlite:///{path}?busy_timeout=100ms", clock=system_clock)
        with pytest.raises(StoreUnavailable, match=r"is in use by|is locked"):
            await store.open(migrate="auto")
