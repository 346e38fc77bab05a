"""The tables of a SQLite file are made once, never twice, and never by code that is too old for them."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import preloaded
from evertick.clock import system_clock
from evertick.errors import StoreRefused
from evertick.store.base import MigrateMode
from evertick.store.sqlite import SCHEMA_VERSION, SqliteStore
from evertick.store.sqlite import schema as code

OPEN = """
import asyncio, sys
from evertick.clock import system_clock
from evertick.store.sqlite import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1], clock=system_clock)
    sys.stdin.readline()
    await store.open(migrate="auto")
    print(await store.now() > 0)
    await store.close()

asyncio.run(main())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "evertick.db"


async def opened(path: Path, migrate: MigrateMode = "auto") -> None:
    store = SqliteStore(f"sqlite:///{path}", clock=system_clock)
    await store.open(migrate=migrate)
    await store.close()


@contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as db, db:
        yield db


def test_eight_processes_that_start_at_once_migrate_once(path: Path) -> None:
    command = [sys.executable, "-c", OPEN, f"sqlite:///{path}"]
    started = [preloaded.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [process.communicate()[0].strip() for process in started]
    assert answers == ["True"] * 8
    with database(path) as db:
        assert [row[0] for row in db.execute("SELECT version FROM evertick_migrations")] == [1]
        assert db.execute("SELECT count(*) FROM evertick_meta").fetchone() == (1,)


async def test_opening_again_changes_nothing(path: Path) -> None:
    await opened(path)
    with database(path) as db:
        before = db.execute("SELECT * FROM evertick_meta, evertick_migrations").fetchall()
    await opened(path)
    await opened(path, "check")
    with database(path) as db:
        assert db.execute("SELECT * FROM evertick_meta, evertick_migrations").fetchall() == before


async def test_the_tables_live_beside_the_users_own(path: Path) -> None:
    with database(path) as db:
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        db.execute("INSERT INTO orders VALUES (7)")
    await opened(path)
    with database(path) as db:
        assert db.execute("SELECT id FROM orders").fetchall() == [(7,)]
        tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert all(name.startswith(("evertick_", "sqlite_")) for name in tables - {"orders"})


async def test_check_mode_refuses_tables_that_are_missing_and_says_how_to_get_them(path: Path) -> None:
    path.touch()
    with pytest.raises(StoreRefused, match=r'0001_ledger.*migrate="auto"'):
        await opened(path, "check")


async def test_check_mode_does_not_make_a_file(path: Path) -> None:
    with pytest.raises(StoreRefused, match="there is no store"):
        await opened(path, "check")
    assert not path.exists()


async def test_a_migration_that_was_changed_after_it_was_applied_is_refused_by_name(path: Path) -> None:
    await opened(path)
    with database(path) as db:
        db.execute("UPDATE evertick_migrations SET checksum = 'other'")
    with pytest.raises(StoreRefused, match="0001_ledger"):
        await opened(path)


async def test_a_store_that_is_too_new_is_refused(path: Path) -> None:
    await opened(path)
    with database(path) as db:
        db.execute("UPDATE evertick_meta SET version = 9, compatible_from = ?", (SCHEMA_VERSION + 1,))
    with pytest.raises(StoreRefused, match="newer"):
        await opened(path)


async def test_a_newer_store_that_is_still_compatible_works(path: Path) -> None:
    await opened(path)
    with database(path) as db:
        db.execute("UPDATE evertick_meta SET version = 9, compatible_from = ?", (SCHEMA_VERSION,))
        db.execute("INSERT INTO evertick_migrations VALUES (9, '0009_more', 'x', 0)")
    store = SqliteStore(f"sqlite:///{path}", clock=system_clock)
    await store.open(migrate="check")
    await store.put_calendar("app", "holidays", "1", b"x")
    assert await store.calendars("app") == {"holidays": b"x"}
    await store.close()
    with database(path) as db:
        assert db.execute("SELECT version FROM evertick_meta").fetchall() == [(9,)]


async def test_a_migration_that_fails_leaves_nothing_behind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = "-- compatible_from: 1\nCREATE TABLE evertick_half (x);\nCREATE TABLE evertick_half (x);\n"
    folder = path.parent / "migrations"
    folder.mkdir()
    (folder / "0001_broken.sql").write_text(broken)
    monkeypatch.setattr(code, "_FOLDER", folder)
    code.migrations.cache_clear()
    try:
        with pytest.raises(sqlite3.OperationalError):
            await opened(path)
    finally:
        code.migrations.cache_clear()
    with database(path) as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == []


def test_history_has_the_columns_of_runs_in_the_same_order_but_for_those_of_dispatched_ones() -> None:
    text = code.migrations()[0].text
    columns = []
    for table in ("evertick_runs", "evertick_history"):
        body = re.search(rf"CREATE TABLE {table} \((.*?)\n\)", text, re.DOTALL)
        assert body is not None
        columns.append(re.findall(r"^    (\w+) +(?:TEXT|INTEGER|REAL)", body[1], re.MULTILINE))
    assert columns[1] != []
    assert columns[0] == [*columns[1], "dispatched_at", "pushed_at", "taken_at", "killed_at"]
