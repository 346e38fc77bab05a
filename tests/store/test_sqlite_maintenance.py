"""Looking after a SQLite file: what it tells about itself, what it finds wrong, how it gives space back."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from evertick import Every, Scheduler
from evertick.clock import system_clock
from evertick.errors import Refused, StoreRefused, StoreUnavailable
from evertick.store.base import Maintainable, Maintenance
from evertick.store.sqlite import SCHEMA_VERSION, SqliteStore, maintenance
from evertick.store.sqlite.file_system import file_system_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "evertick.db"


@pytest.fixture
async def made(path: Path) -> Path:
    """A store with a schedule and a run that has ended."""
    scheduler = Scheduler(f"sqlite:///{path}", concurrency=0)
    await scheduler.add(key="report", when=Every("1h"), task="make_report")
    run = await scheduler.trigger("report")
    await scheduler.cancel(run)
    await scheduler.close()
    return path


def care_for(path: Path) -> Maintenance:
    store = SqliteStore(f"sqlite:///{path}", clock=system_clock)
    assert isinstance(store, Maintainable)
    return store.maintenance()


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


async def test_the_status_tells_what_is_in_the_file(made):
    status = await care_for(made).status()
    assert (status.version, status.version_known, status.missing) == (SCHEMA_VERSION, SCHEMA_VERSION, ())
    assert status.store_id
    assert status.engine == f"SQLite {sqlite3.sqlite_version}"
    assert status.bytes == made.stat().st_size == status.pages * status.page_bytes
    assert (status.journal_mode, status.vacuum) == ("wal", "incremental")
    assert status.disk_free_bytes > 0
    rows = {table.name: (table.rows, table.is_exact) for table in status.tables}
    assert rows["evertick_schedules"] == (1, True)
    assert rows["evertick_history"] == (1, True)
    assert status.oldest_at <= system_clock.now_us()


async def test_rows_are_counted_up_to_a_bound(made, monkeypatch):
    monkeypatch.setattr(maintenance, "_COUNT_MOST", 0)
    rows = {table.name: (table.rows, table.is_exact) for table in (await care_for(made).status()).tables}
    assert rows["evertick_schedules"] == (0, False)
    assert rows["evertick_attempts"] == (0, True)


async def test_a_file_without_tables_of_ours_says_what_it_lacks(path):
    execute(path, "CREATE TABLE theirs (x)")
    status = await care_for(path).status()
    assert (status.version, status.store_id, status.missing) == (0, None, ("0001_ledger",))
    (problem,) = (await care_for(path).check()).problems
    assert problem == "the migrations 0001_ledger are missing; apply them with `evertick db migrate --database URL`"


async def test_migrating_applies_what_is_missing_once_and_leaves_the_tables_of_others_alone(path):
    execute(path, "CREATE TABLE theirs (x)", "INSERT INTO theirs VALUES (7)")
    assert await care_for(path).migrate() == ["0001_ledger"]
    assert await care_for(path).migrate() == []
    assert (await care_for(path).check()).problems == ()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT x FROM theirs").fetchall() == [(7,)]


@pytest.mark.parametrize("is_quick", [False, True])
async def test_a_store_as_it_should_be_has_no_problems(made, is_quick):
    checked = await care_for(made).check(is_quick=is_quick)
    assert (checked.problems, checked.is_complete) == ((), True)


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DROP INDEX evertick_history_time", "the index evertick_history_time is missing"),
        (
            "ALTER TABLE evertick_fence ADD COLUMN colour TEXT",
            "the table evertick_fence differs from the one that this code creates",
        ),
        ("DELETE FROM evertick_due", "1 schedules have no cursor, so they never fire"),
        ("DELETE FROM evertick_schedules", "1 cursors have no schedule"),
        (
            "INSERT INTO evertick_runs SELECT *, NULL, NULL, NULL, NULL FROM evertick_history",
            "1 runs are both live and done",
        ),
    ],
)
async def test_manual_changes_of_the_schema_are_found(made, statement, problem):
    execute(made, statement)
    assert (await care_for(made).check()).problems == (problem,)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DELETE FROM evertick_meta", "its table meta is empty; restore it from a backup"),
        ("DROP TABLE evertick_meta", "its table meta is missing; restore it from a backup"),
        ("DELETE FROM evertick_migrations", "its list of migrations is empty"),
        ("DROP TABLE evertick_migrations", "its list of migrations is missing"),
    ],
)
async def test_a_store_that_does_not_know_what_it_is_is_refused_with_what_to_do(made, statement, said):
    execute(made, statement)
    (problem,) = (await care_for(made).check()).problems
    assert said in problem
    assert (await care_for(made).status()).bytes > 0
    with pytest.raises(StoreRefused, match=said):
        await care_for(made).migrate()
    with pytest.raises(StoreRefused, match=said):
        await SqliteStore(f"sqlite:///{made}", clock=system_clock).open(migrate="auto")


async def test_a_store_that_is_too_new_is_a_problem_and_no_crash(made):
    execute(made, "UPDATE evertick_meta SET version = 99, compatible_from = 99")
    (problem,) = (await care_for(made).check()).problems
    assert "newer than this code" in problem
    assert (await care_for(made).status()).version == 99


async def test_a_damaged_page_is_found(made):
    with closing(sqlite3.connect(made)) as db:
        root = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'evertick_history_time'").fetchone()[0]
        size = db.execute("PRAGMA page_size").fetchone()[0]
    content = bytearray(made.read_bytes())
    content[(root - 1) * size : root * size] = b"\xff" * size
    made.write_bytes(content)
    problems = (await care_for(made).check(is_quick=True)).problems
    assert problems
    assert all(problem.startswith("the file is damaged: ") for problem in problems)


async def test_a_file_that_is_no_database_is_reported(path):
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreUnavailable, match="is not a SQLite database"):
        await care_for(path).status()


async def test_a_check_that_may_not_take_long_says_that_it_is_not_complete(made, monkeypatch):
    monkeypatch.setattr(maintenance, "_STEPS_PER_CHECK", 1)
    checked = await care_for(made).check(seconds_most=-1.0)
    assert (checked.problems, checked.is_complete) == ((), False)


async def test_a_check_whose_caller_is_cancelled_is_interrupted(made):
    """Or Ctrl-C would wait for the end of a check that takes an hour."""
    begun, ended = threading.Event(), threading.Event()

    def endless(db: sqlite3.Connection) -> None:
        db.create_function("begin", 0, begun.set)
        try:
            db.execute("WITH RECURSIVE n(i) AS (VALUES (begin()) UNION ALL SELECT 1 FROM n) SELECT count(*) FROM n")
        finally:
            ended.set()

    care = care_for(made)
    assert isinstance(care, maintenance.FileMaintenance)
    waiting = asyncio.ensure_future(care._on_file(endless))
    assert await asyncio.to_thread(begun.wait, 20)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.to_thread(ended.wait, 20)


# --- free space


def fill_and_empty(path: Path, rows: int = 2_000) -> None:
    execute(
        path,
        "CREATE TABLE theirs (x)",
        f"WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) "
        "INSERT INTO theirs SELECT zeroblob(2000) FROM n",
    )
    execute(path, "DELETE FROM theirs")


async def test_free_pages_are_returned_in_steps_until_the_file_is_small(made):
    fill_and_empty(made)
    care = care_for(made)
    before = await care.status()
    given = await care.give_back(100)
    assert given.pages == 100
    assert given.pages_left == before.free_pages - 100
    while given.pages_left:
        given = await care.give_back(100)
    after = await care.status()
    assert after.free_pages == 0
    assert made.stat().st_size == after.bytes < before.bytes / 4
    assert (await care.give_back(100)).pages == 0


async def test_each_call_of_prune_returns_two_hundred_pages(made):
    fill_and_empty(made)
    before = (await care_for(made).status()).free_pages
    store = SqliteStore(f"sqlite:///{made}", clock=system_clock)
    await store.open(migrate="check")
    await store.prune("default", before=0, keep_per_schedule=10, limit=10)
    await store.close()
    assert before - (await care_for(made).status()).free_pages == 200


@pytest.fixture
async def without_auto_vacuum(path: Path) -> Path:
    """A file of another program, in which Evertick has created its tables."""
    execute(path, "PRAGMA auto_vacuum = NONE", "CREATE TABLE first (x)")
    await care_for(path).migrate()
    return path


async def test_returning_free_pages_is_refused_for_a_file_without_auto_vacuum(without_auto_vacuum):
    with pytest.raises(Refused, match="evertick db vacuum --full"):
        await care_for(without_auto_vacuum).give_back(100)


async def test_a_rewrite_makes_the_file_small_and_turns_auto_vacuum_on(without_auto_vacuum):
    path = without_auto_vacuum
    fill_and_empty(path)
    care = care_for(path)
    before = await care.status()
    await care.rewrite()
    after = await care.status()
    assert (before.vacuum, after.vacuum) == ("none", "incremental")
    assert after.free_pages == 0
    assert path.stat().st_size == after.bytes < before.bytes / 4
    assert after.store_id == before.store_id
    assert (await care.check()).problems == ()


async def test_a_rewrite_is_refused_if_the_disk_has_no_room(made, monkeypatch):
    monkeypatch.setattr(maintenance.shutil, "disk_usage", lambda path: shutil_usage(free=10))
    with pytest.raises(Refused, match="10 are free"):
        await care_for(made).rewrite()


def shutil_usage(*, free: int) -> object:
    return type("Usage", (), {"free": free})()


async def test_a_rewrite_does_not_wait_for_ever(made):
    with closing(sqlite3.connect(made, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        store = SqliteStore(f"sqlite:///{made}?busy_timeout=50ms", clock=system_clock)
        with pytest.raises(StoreUnavailable, match="is locked"):
            await store.maintenance().rewrite()


# --- where it lies

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:25 / /srv/shared\\040files rw shared:2 - nfs4 server:/files rw
31 22 0:26 / /srv/shared\\040files/cache rw - tmpfs tmpfs rw
this line says nothing
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/jobs.db", "ext4"),
        ("/srv/shared files/jobs.db", "nfs4"),
        ("/srv/shared files/cache/jobs.db", "tmpfs"),
        ("/srv/shared filesystem/jobs.db", "ext4"),
    ],
)
def test_the_file_system_is_that_of_the_deepest_mount(tmp_path, path, kind):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert file_system_of(Path(path), mounts) == kind


def test_where_the_system_does_not_tell_its_mounts_nothing_is_known(tmp_path):
    assert file_system_of(Path("/"), tmp_path / "nothing") is None
