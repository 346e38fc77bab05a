"""Migrations of a SQLite file: each is applied once, in one transaction.

BEGIN IMMEDIATE is the lock: of several processes that start at once, one migrates and the others find it done.
`store/sql_files.py` has the rules for checksums and `compatible_from`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from evertick.clock import Clock
from evertick.store.base import MigrateMode
from evertick.store.sql_files import Migration, pending, read_migrations, refuse_newer, without_meta, without_migrations
from evertick.store.sqlite.connection import transaction

__all__ = ["SCHEMA_VERSION", "migrate", "missing"]

SCHEMA_VERSION = 1

_FOLDER = Path(__file__).with_name("migrations")
_META, _MIGRATIONS = "evertick_meta", "evertick_migrations"


def migrate(db: sqlite3.Connection, clock: Clock, mode: MigrateMode, description: str) -> list[str]:
    """Apply missing migrations; returns their names. Refuses a changed migration, a newer store and, in mode check, a
    missing migration."""
    _check_meta(db, description)
    applied = []
    for migration in pending(migrations(), _applied(db), description, mode):
        with transaction(db):
            # Another process may have applied it before this one had the lock.
            if migration.version not in _applied(db):
                _apply(db, clock, migration)
                applied.append(migration.name)
    _check_meta(db, description)
    return applied


def missing(db: sqlite3.Connection, description: str) -> list[str]:
    """The names of the missing migrations. Refuses the same as `migrate`."""
    _check_meta(db, description)
    return [migration.name for migration in pending(migrations(), _applied(db), description)]


@cache
def migrations() -> tuple[Migration, ...]:
    return read_migrations(_FOLDER, SCHEMA_VERSION)


def _check_meta(db: sqlite3.Connection, description: str) -> None:
    # In one snapshot, because another process may be creating them.
    with transaction(db, "DEFERRED"):
        tables, applied = _tables(db), _applied(db)
        has_meta = _META in tables
        meta = db.execute("SELECT version, compatible_from FROM evertick_meta").fetchone() if has_meta else None
    if not applied and has_meta:
        raise without_migrations(description, "empty" if _MIGRATIONS in tables else "missing", "file")
    if applied and meta is None:
        raise without_meta(description, "empty" if has_meta else "missing")
    if meta is not None:
        refuse_newer(meta["version"], meta["compatible_from"], SCHEMA_VERSION, description)


def _applied(db: sqlite3.Connection) -> dict[int, str]:
    if _MIGRATIONS not in _tables(db):
        return {}
    return {row["version"]: row["checksum"] for row in db.execute("SELECT version, checksum FROM evertick_migrations")}


def _tables(db: sqlite3.Connection) -> set[str]:
    """The existing ones of the tables meta and migrations."""
    found = db.execute("SELECT name FROM sqlite_master WHERE name IN (?, ?)", (_META, _MIGRATIONS))
    return {row["name"] for row in found}


def _apply(db: sqlite3.Connection, clock: Clock, migration: Migration) -> None:
    for statement in _statements(migration.text):
        db.execute(statement)
    db.execute(
        "INSERT INTO evertick_migrations (version, name, checksum, applied_at) VALUES (?, ?, ?, ?)",
        (migration.version, migration.name, migration.checksum, clock.now_us()),
    )
    reached = (migration.version, migration.compatible_from)
    if db.execute("UPDATE evertick_meta SET version = ?, compatible_from = ?", reached).rowcount == 0:
        db.execute("INSERT INTO evertick_meta VALUES (?, ?, ?)", (clock.new_token(), *reached))


def _statements(text: str) -> Iterator[str]:
    # executescript would commit the transaction, and the migration would not be atomic.
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
