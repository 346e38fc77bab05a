"""Maintenance of a SQLite file: status, integrity check, backup, and returning free space.

Each call has its own connection in its own thread, so that a check of a large file can be interrupted. Nothing here
uses the writer of an open store.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal, TypeVar

from evertick.clock import Clock
from evertick.errors import Refused, StoreRefused, StoreUnavailable
from evertick.store.base import Checked, Freed, StoreStatus, TableRows
from evertick.store.sqlite.connection import (
    FILE_MODE,
    SQL,
    check_version,
    connect,
    open_file,
    read_only_if_needed,
    refuse_other_files,
    transaction,
    translated,
    why_read_only,
)
from evertick.store.sqlite.file_system import NETWORK_FILE_SYSTEMS, file_system_of
from evertick.store.sqlite.location import Location
from evertick.store.sqlite.schema import SCHEMA_VERSION, migrate, missing
from evertick.store.sqlite.upkeep import free_pages

__all__ = ["FileMaintenance"]

T = TypeVar("T")

_COUNT_MOST = 100_000
_PROBLEMS_MOST = 20
_APPS_MOST = 1_000
# Steps of SQLite's virtual machine between two checks of the clock: some milliseconds.
_STEPS_PER_CHECK = 100_000
_VACUUMS: dict[int, Literal["none", "full", "incremental"]] = {0: "none", 1: "full", 2: "incremental"}
_LEDGER = {
    "maintenance.both": "{} runs are both live and done",
    "maintenance.no_cursor": "{} schedules have no cursor, so they never fire",
    "maintenance.no_schedule": "{} cursors have no schedule",
}


class FileMaintenance:
    """Maintenance of one file. A store in memory has nothing to maintain."""

    def __init__(self, where: Location, clock: Clock) -> None:
        self._where = where
        self._clock = clock

    async def status(self) -> StoreStatus:
        return await self._on_file(self._status)

    async def check(self, *, is_quick: bool = False, seconds_most: float | None = None) -> Checked:
        return await self._on_file(lambda db: self._check(db, is_quick=is_quick, seconds_most=seconds_most))

    async def migrate(self) -> list[str]:
        description = self._where.description
        return await self._on_file(lambda db: migrate(db, self._clock, "auto", description), may_create=True)

    async def give_back(self, pages_most: int) -> Freed:
        return await self._on_file(lambda db: self._give_back(db, pages_most), is_change=True)

    async def rewrite(self) -> None:
        await self._on_file(self._rewrite, is_change=True)

    async def backup(self, path: str) -> int:
        return await self._on_file(lambda db: self._backup(db, path))

    async def _on_file(
        self, act: Callable[[sqlite3.Connection], T], *, may_create: bool = False, is_change: bool = False
    ) -> T:
        check_version()
        opened: list[sqlite3.Connection] = []
        is_given_up = threading.Event()

        def work() -> T:
            opening = self._open(may_create=may_create, is_change=is_change)
            with translated(self._where), closing(opening) as db:
                opened.append(db)
                if is_given_up.is_set():
                    raise StoreUnavailable(f"the call on the {self._where.description} was cancelled")
                return act(db)

        try:
            return await asyncio.get_running_loop().run_in_executor(None, work)
        except asyncio.CancelledError:
            is_given_up.set()
            for db in opened:
                db.interrupt()
            raise

    def _open(self, *, may_create: bool, is_change: bool) -> sqlite3.Connection:
        if may_create:
            return open_file(self._where, may_create=True)
        where = read_only_if_needed(self._where)
        if where.is_read_only and is_change:
            raise StoreRefused(
                f"the {where.description} cannot be written: {why_read_only(where)}",
                fix="run this as a user who may write the file and its directory",
            )
        refuse_other_files(where)
        with translated(where):
            return connect(where)

    # --- status

    def _status(self, db: sqlite3.Connection) -> StoreStatus:
        tables = [row["name"] for row in db.execute(SQL["maintenance.tables"])]
        has_meta = "evertick_meta" in tables
        meta = db.execute(SQL["maintenance.meta"]).fetchone() if has_meta else None
        file_system = None if self._path is None else file_system_of(self._path)
        is_immutable = read_only_if_needed(self._where).access == "immutable"
        return StoreStatus(
            description=self._where.description,
            engine=f"SQLite {sqlite3.sqlite_version}",
            store_id=None if meta is None else meta["store_id"],
            version=0 if meta is None else meta["version"],
            version_known=SCHEMA_VERSION,
            missing=tuple(self._missing(db)),
            bytes=_pragma(db, "page_size") * _pragma(db, "page_count"),
            wal_bytes=None
            if self._path is None or is_immutable
            else _size(Path(f"{os.path.realpath(self._path)}-wal")),
            # Unknown for a file that is read without locks.
            journal_mode=None if is_immutable else str(db.execute("PRAGMA journal_mode").fetchone()[0]),
            page_bytes=_pragma(db, "page_size"),
            pages=_pragma(db, "page_count"),
            free_pages=_pragma(db, "freelist_count"),
            vacuum=_VACUUMS[_pragma(db, "auto_vacuum")],
            disk_free_bytes=None if self._path is None else shutil.disk_usage(self._path.parent).free,
            file_system=file_system,
            is_on_network=file_system in NETWORK_FILE_SYSTEMS,
            tables=tuple(_rows(db, name) for name in tables),
            oldest_at=_oldest(db) if "evertick_history" in tables else None,
        )

    @property
    def _path(self) -> Path | None:
        return None if self._where.path is None else Path(self._where.path).absolute()

    def _missing(self, db: sqlite3.Connection) -> list[str]:
        try:
            return missing(db, self._where.description)
        except StoreRefused:  # a newer store or a changed migration, which `check` reports
            return []

    # --- check

    def _check(self, db: sqlite3.Connection, *, is_quick: bool, seconds_most: float | None) -> Checked:
        problems = list(self._schema_problems(db))
        is_complete = True
        if seconds_most is not None:
            end = self._clock.elapsed() + seconds_most
            db.set_progress_handler(lambda: self._clock.elapsed() > end, _STEPS_PER_CHECK)
        try:
            problems += _damage(db, is_quick=is_quick)
            if not problems:
                problems += _ledger_problems(db)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_INTERRUPT" or seconds_most is None:
                raise
            is_complete = False
        return Checked(problems=tuple(problems), is_complete=is_complete)

    def _schema_problems(self, db: sqlite3.Connection) -> Iterator[str]:
        try:
            lacking = missing(db, self._where.description)
        except StoreRefused as refused:
            yield str(refused)
            return
        if lacking:
            fix = "apply them with `evertick db migrate --database URL`"
            yield f"the migrations {', '.join(lacking)} are missing; {fix}"
            return
        existing, wanted = _objects(db), self._objects_wanted()
        yield from (f"the {kind} {name} is missing" for kind, name in wanted if (kind, name) not in existing)
        for kind, name in existing:
            if (kind, name) in wanted and existing[kind, name] != wanted[kind, name]:
                yield f"the {kind} {name} differs from the one that this code creates"

    def _objects_wanted(self) -> dict[tuple[str, str], str]:
        with closing(connect(Location(path=None))) as db:
            migrate(db, self._clock, "auto", "SQLite in memory")
            return _objects(db)

    # --- free space

    def _give_back(self, db: sqlite3.Connection, pages_most: int) -> Freed:
        if _VACUUMS[_pragma(db, "auto_vacuum")] == "none":
            raise Refused(
                f"the {self._where.description} was created without auto_vacuum, so its free pages are reused but "
                "cannot be returned to the file system",
                fix="run `evertick db vacuum --full`, which rewrites the file and turns auto_vacuum on",
            )
        before = _pragma(db, "freelist_count")
        with transaction(db):
            free_pages(db, pages_most)
        left = _pragma(db, "freelist_count")
        if not left:
            # The file is truncated when the log is folded into it.
            db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        return Freed(pages=max(0, before - left), pages_left=left)

    def _rewrite(self, db: sqlite3.Connection) -> None:
        size = _pragma(db, "page_size") * _pragma(db, "page_count")
        free = None if self._path is None else shutil.disk_usage(self._path.parent).free
        # The copy and the log that it goes through.
        if free is not None and free < 2 * size:
            raise Refused(
                f"a rewrite of the {self._where.description} needs up to {2 * size:,} bytes on its disk, and {free:,} "
                "are free",
                fix="free some space on the disk",
            )
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("VACUUM")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    # --- a copy

    def _backup(self, db: sqlite3.Connection, path: str) -> int:
        copy = _new_file(path)
        try:
            # One read transaction, which includes the log. A copy of the file would lack the log, or be inconsistent.
            db.execute("VACUUM INTO ?", (path,))
            os.fsync(copy)
            return os.fstat(copy).st_size
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(copy)


def _new_file(path: str) -> int:
    """Created here, so that it must be new, and other users cannot read it."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    except FileExistsError:
        raise Refused(f"there is a file {path} already", fix="name a new one") from None
    except OSError as error:
        raise Refused(f"the file {path} cannot be made: {error.strerror}", fix="name another one") from None


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _rows(db: sqlite3.Connection, table: str) -> TableRows:
    # The name is from the file's own list of tables.
    quoted = '"' + table.replace('"', '""') + '"'
    rows = db.execute(SQL["maintenance.rows"].format(table=quoted), (_COUNT_MOST + 1,)).fetchone()[0]
    return TableRows(name=table, rows=min(rows, _COUNT_MOST), is_exact=rows <= _COUNT_MOST)


def _oldest(db: sqlite3.Connection) -> int | None:
    oldest: list[int] = []
    app = db.execute(SQL["maintenance.next_app"], ("",)).fetchone()[0]
    while app is not None and len(oldest) < _APPS_MOST:
        oldest.append(db.execute(SQL["maintenance.oldest"], (app,)).fetchone()[0])
        app = db.execute(SQL["maintenance.next_app"], (app,)).fetchone()[0]
    return min(oldest, default=None)


def _objects(db: sqlite3.Connection) -> dict[tuple[str, str], str]:
    return {(row["type"], row["name"]): " ".join(row["sql"].split()) for row in db.execute(SQL["maintenance.objects"])}


def _damage(db: sqlite3.Connection, *, is_quick: bool) -> list[str]:
    how = "quick_check" if is_quick else "integrity_check"
    try:
        problems = [str(row[0]) for row in db.execute(f"PRAGMA {how}({_PROBLEMS_MOST})")]
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorname not in ("SQLITE_CORRUPT", "SQLITE_NOTADB"):
            raise
        problems = [str(error)]
    return [] if problems == ["ok"] else [f"the file is damaged: {' '.join(text.split())}" for text in problems]


def _ledger_problems(db: sqlite3.Connection) -> Iterator[str]:
    for name, words in _LEDGER.items():
        count = db.execute(SQL[name], (_COUNT_MOST,)).fetchone()[0]
        if count:
            yield words.format(count)
