"""Connections to a SQLite file, its statements, and the translation of its errors.

Every connection is in autocommit mode (`isolation_level=None`); transactions begin explicitly. A write begins with
BEGIN IMMEDIATE, because a read transaction that becomes a write fails at once, without waiting for the busy timeout.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import warnings
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import msgspec

from evertick.clock import Clock
from evertick.errors import StoreError, StoreRefused, StoreUnavailable
from evertick.store.sql_files import load_statements
from evertick.store.sqlite.file_system import (
    NETWORK_FILE_SYSTEMS,
    file_system_of,
    refuse_deleted_log,
    refuse_second_name,
)
from evertick.store.sqlite.location import Location
from evertick.text.regular_file import kind_of

__all__ = [
    "FILE_MODE",
    "PART_MOST",
    "SQL",
    "UNWRITABLE",
    "NumberedConnection",
    "StoreTime",
    "by_number",
    "check_integers",
    "check_version",
    "connect",
    "connect_to_read",
    "data_version",
    "draw_fence",
    "each_by_number",
    "file_exists",
    "in_parts",
    "is_alive",
    "numbered",
    "open_file",
    "read_only_if_needed",
    "refuse_other_files",
    "savepoint",
    "transaction",
    "translated",
    "warn_of_network",
    "why_read_only",
]

SQL = load_statements(Path(__file__).with_name("queries.sql"))


# --- numbered parameters ----------------------------------------------------------------------------------------------


def _wants_names() -> bool:
    db = sqlite3.connect(":memory:")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            db.execute("SELECT ?1", (0,))
    except (DeprecationWarning, sqlite3.Error):
        return True
    finally:
        db.close()
    return False


_WANTS_NAMES = _wants_names()
_OUR_STATEMENTS = frozenset(text for text in SQL.values() if "?1" in text)
_NAMES = tuple(map(str, range(1, 100)))


def by_number(sql: str, parameters: Any) -> Any:
    """The parameters of one of our statements in the form that this Python requires. Others are unchanged."""
    needs_names = _WANTS_NAMES and sql in _OUR_STATEMENTS and not isinstance(parameters, dict)
    return dict(zip(_NAMES, parameters, strict=False)) if needs_names else parameters


def each_by_number(sql: str, many: Iterable[Any]) -> Iterable[Any]:
    return (by_number(sql, each) for each in many) if _WANTS_NAMES and sql in _OUR_STATEMENTS else many


class NumberedConnection(sqlite3.Connection):
    """Takes the parameters of our statements by position."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        return super().execute(sql, by_number(sql, parameters))

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
        return super().executemany(sql, each_by_number(sql, parameters))


class _Numbered:
    """The same on a connection of the user."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        return self._db.execute(sql, by_number(sql, parameters))

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
        return self._db.executemany(sql, each_by_number(sql, parameters))


def numbered(db: sqlite3.Connection) -> sqlite3.Connection:
    """A connection of the user, for our statements."""
    return cast("sqlite3.Connection", _Numbered(db)) if _WANTS_NAMES else db


STORE_CONNECTION = NumberedConnection if _WANTS_NAMES else sqlite3.Connection


# --- many rows as one JSON text ---------------------------------------------------------------------------------------


T = TypeVar("T")

# SQLite's limit for a text is a gigabyte; the largest arguments or results of so many runs take half of that.
PART_MOST = 1_000


def in_parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[first : first + PART_MOST] for first in range(0, len(items), PART_MOST))


# --- used by every claim ----------------------------------------------------------------------------------------------


def check_integers(numbers: Iterable[int]) -> None:
    """Raises OverflowError for a number that no column can store; in a JSON text it would lose precision."""
    array("q", numbers)


def is_alive(db: sqlite3.Connection, node: str) -> bool:
    return db.execute(SQL["node.is_alive"], (node,)).fetchone() is not None


def draw_fence(db: sqlite3.Connection) -> int:
    return int(db.execute(SQL["fence.draw"]).fetchone()[0])


# --- connections ------------------------------------------------------------------------------------------------------


log = logging.getLogger("evertick.store")

# RETURNING came with 3.35.
_OLDEST = (3, 35, 0)
_STATEMENTS_CACHED = 256
# Pause between attempts to turn on WAL, for which SQLite does not call its busy handler.
_WAL_PAUSE_SECONDS = 0.02
# The mode of a new file, reduced by the umask.
FILE_MODE = 0o660
_create_lock = threading.Lock()

# Problem and fix by the name of SQLite's result code; extended codes begin with the name of their primary code.
_RIGHTS = "give this user the right to write the file and its directory"
_PROBLEMS = {
    "SQLITE_BUSY": (
        "is locked by another connection for too long",
        "look for a program that holds a transaction open",
    ),
    "SQLITE_LOCKED": (
        "is locked by another connection of this process",
        "look for a transaction that is held open",
    ),
    "SQLITE_FULL": ("cannot grow: its disk or its page limit is full", "free some space"),
    "SQLITE_READONLY": ("is read-only", _RIGHTS),
    "SQLITE_PERM": ("is read-only", _RIGHTS),
    "SQLITE_IOERR": (
        "could not be read or written (disk I/O error)",
        "check the disk, and keep the file on a local one",
    ),
    "SQLITE_CANTOPEN": (
        "cannot be opened",
        "check that it exists and that this user may write it and its directory",
    ),
    "SQLITE_CORRUPT": ("is damaged", "check it with PRAGMA integrity_check and restore it from a backup"),
    "SQLITE_NOTADB": ("is not a SQLite database", "check that the URL names the right file"),
    "SQLITE_PROTOCOL": ("could not be locked", "keep the file on a local disk, not on a network share"),
    "SQLITE_NOMEM": ("could not be used: out of memory", None),
    "SQLITE_INTERRUPT": ("was interrupted in the middle of a statement", "try again"),
}


# Errors of values in a row, not of the store.
UNWRITABLE = (
    sqlite3.DataError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    ValueError,
    OverflowError,
    TypeError,
)

_SMALL_STEP_US = 1_000_000


class StoreTime:
    """The store's time: the clock without the small steps back of clock synchronisation.

    A large step back is the correction of a wrong clock, and is followed: waiting for the old time would stop all
    nodes.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = 0
        self._lock = threading.Lock()

    def now(self) -> int:
        with self._lock:
            now = self._clock.now_us()
            self._last = self._last if 0 < self._last - now <= _SMALL_STEP_US else now
            return self._last


def check_version() -> None:
    if sqlite3.sqlite_version_info < _OLDEST:
        wanted = ".".join(map(str, _OLDEST[:2]))
        raise StoreRefused(
            f"this Python has SQLite {sqlite3.sqlite_version}, and Evertick needs {wanted} or newer",
            fix="use a newer Python build or system library",
        )


def read_only_if_needed(where: Location) -> Location:
    """The location, for reading only if this user cannot write it: no permission, or a read-only file system."""
    path = where.path
    if path is None or not file_exists(path) or Path(path).is_dir():
        return where
    real = os.path.realpath(path)
    has_log, has_index = os.path.exists(f"{real}-wal"), os.path.exists(f"{real}-shm")
    # Without a log SQLite creates one, which needs the right to write to the directory.
    if _may_write(real) and ((has_log and has_index) or _may_write(os.path.dirname(real))):
        return where
    if has_index and has_log:
        return msgspec.structs.replace(where, access="read")
    if has_log and os.stat(f"{real}-wal").st_size:
        raise StoreRefused(
            f"the {where.description} cannot be read: {why_read_only(where)}, part of it is in {real}-wal, and the "
            f"file {real}-shm is missing",
            fix=f"copy {real} and {real}-wal together to a directory that you may write, and open the copy",
        )
    return msgspec.structs.replace(where, access="immutable")


def why_read_only(where: Location) -> str:
    """The reason why a location is read-only, for an error."""
    assert where.path is not None
    with contextlib.suppress(OSError, AttributeError):
        if os.statvfs(where.path).f_flag & os.ST_RDONLY:
            return "its file system is mounted read-only"
    return "this user may not write the file and its directory"


def _may_write(path: str) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def connect(
    where: Location,
    *,
    mode: Literal["rwc", "rw", "ro"] = "rw",
    busy_timeout_ms: int | None = None,
    factory: type[sqlite3.Connection] = STORE_CONNECTION,
) -> sqlite3.Connection:
    """A connection with the settings of the store. `open_file` sets the properties of the file (WAL, auto_vacuum)."""
    timeout = where.busy_timeout_ms if busy_timeout_ms is None else busy_timeout_ms
    name = ":memory:" if where.path is None else where.uri(mode)
    db = sqlite3.connect(
        name,
        uri=where.path is not None,
        timeout=timeout / 1000,
        isolation_level=None,
        # One thread at a time uses a connection, but not always the one that opened it.
        check_same_thread=False,
        cached_statements=_STATEMENTS_CACHED,
        factory=factory,
    )
    db.row_factory = sqlite3.Row
    try:
        db.execute(f"PRAGMA synchronous = {where.synchronous}")
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("PRAGMA temp_store = MEMORY")
    except sqlite3.Error:
        # The first statement is the first to read the file.
        db.close()
        raise
    return db


def connect_to_read(where: Location) -> sqlite3.Connection:
    """A connection that cannot write. It never folds the log into the file, even if it is the last to close."""
    db = connect(where, mode="ro")
    db.execute("PRAGMA query_only = ON")
    return db


def open_file(where: Location, *, may_create: bool) -> sqlite3.Connection:
    """The first connection: checks the path, creates the file if allowed, and turns on WAL."""
    _check_path(where, may_create=may_create)
    if may_create and read_only_if_needed(where).is_read_only:
        raise StoreRefused(
            f"the {where.description} cannot be written: {why_read_only(where)}",
            fix="give this user the right to write, or only read it with `evertick history`, `evertick list` and so on",
        )
    db: sqlite3.Connection | None = None
    try:
        if where.path is not None and may_create:
            _make_file(where.path)
        refuse_other_files(where)
        db = connect(where, mode="rwc" if may_create else "rw")
        if may_create and db.execute("PRAGMA page_count").fetchone()[0] == 0:
            # Takes effect with the first page only; later it would have none, and would need the lock.
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        # A file that we must not create tables in may belong to another program and stays unchanged.
        if where.path is not None and may_create:
            _turn_wal_on(db, tries=1 + round(where.busy_timeout_ms / 1000 / _WAL_PAUSE_SECONDS))
    except sqlite3.Error as error:
        if db is not None:
            db.close()
        raise _refusal(error, where) from error
    return db


def warn_of_network(where: Location) -> None:
    kind = None if where.path is None else file_system_of(Path(where.path))
    if kind in NETWORK_FILE_SYSTEMS:
        log.warning(
            "%s: on a network file system (%s), where SQLite's locks do not work, so that programs on two machines "
            "would damage it; move it to a local disk, or use PostgreSQL",
            where.description,
            kind,
        )


def refuse_other_files(where: Location) -> None:
    """Before a process opens a file for writing: all processes must use the same file and the same log."""
    if not where.is_read_only:
        refuse_second_name(where)
        refuse_deleted_log(where)


def _turn_wal_on(db: sqlite3.Connection, tries: int) -> None:
    pause = threading.Event()
    for left in range(tries, 0, -1):
        try:
            if db.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
                return
            db.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if left == 1 or not _code(error).startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                raise
            pause.wait(_WAL_PAUSE_SECONDS)


def _check_path(where: Location, *, may_create: bool) -> None:
    if where.path is None:
        return
    path = Path(where.path)
    is_there = file_exists(where.path)
    if is_there and path.is_dir():
        raise StoreRefused(
            f"the store {where.path} is a directory", fix=f"name a file in it, like {path / 'evertick.db'}"
        )
    if is_there and not path.is_file():
        kind = kind_of(path.stat().st_mode)
        raise StoreRefused(f"the store {where.path} is {kind}", fix="name a regular file, like evertick.db")
    if not path.absolute().parent.is_dir():
        raise StoreRefused(
            f"the directory {path.absolute().parent} of the store {where.path} does not exist",
            fix="create it, or correct the URL",
        )
    if not may_create and not is_there:
        raise StoreRefused(
            f"there is no store at {where.path}", fix="start a node, which creates it, or correct the URL"
        )


def file_exists(path: str) -> bool:
    """Whether anything has that name. Refuses if this user may not enter the directory, so that it is unknown."""
    try:
        os.stat(path)
    except PermissionError:
        folder, owner = _nearest_folder(path)
        raise StoreRefused(
            f"this user may not enter {folder}, where the store {path} is",
            fix=f"run it as {owner}, the owner of that directory",
        ) from None
    except (OSError, ValueError):
        return False
    return True


def _nearest_folder(path: str) -> tuple[Path, str]:
    """The nearest folder above the file that this user may read, and its owner."""
    for folder in Path(path).absolute().parents:
        with contextlib.suppress(PermissionError):
            try:
                return folder, folder.owner()
            except KeyError:  # a user without a name
                return folder, f"user {folder.stat().st_uid}"
    raise AssertionError("every user may look at the root")


def _make_file(path: str) -> None:
    """Create the file before SQLite does, which would let all users read it: it has arguments and output of jobs.

    A group shares it by its umask. SQLite gives the WAL files the same mode. Errors are left to SQLite, which opens the
    file next.
    """
    # One thread at a time: closing the file would cancel locks that SQLite has on it for another thread.
    with _create_lock, contextlib.suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))


def _refusal(error: sqlite3.Error, where: Location) -> StoreError:
    """At the start: an unusable path is refused; a condition that may pass is reported as unavailable."""
    transient = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_IOERR")
    kind = StoreUnavailable if _code(error).startswith(transient) else StoreRefused
    problem, fix = _problem_of(error) or (str(error), None)
    return kind(f"the {where.description} {problem}", fix=fix)


@contextmanager
def translated(where: Location) -> Iterator[None]:
    """Raise errors of the file as StoreUnavailable, with the file and the fix. Errors of our SQL stay as they are."""
    try:
        yield
    except sqlite3.Error as error:
        found = _problem_of(error)
        if found is None:
            raise
        problem, fix = found
        raise StoreUnavailable(f"the {where.description} {problem}", fix=fix) from error


@contextmanager
def transaction(db: sqlite3.Connection, how: str = "IMMEDIATE") -> Iterator[None]:
    """BEGIN and COMMIT around a block; ROLLBACK if it raises, unless SQLite has already rolled back."""
    db.execute(f"BEGIN {how}")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


@contextmanager
def savepoint(db: sqlite3.Connection) -> Iterator[None]:
    """A part of a transaction that may fail alone."""
    db.execute("SAVEPOINT evertick_part")
    try:
        yield
    except BaseException:
        # After a full disk or an I/O error SQLite may have rolled back the whole transaction.
        if db.in_transaction:
            db.execute("ROLLBACK TO evertick_part")
            db.execute("RELEASE evertick_part")
        raise
    db.execute("RELEASE evertick_part")


def data_version(db: sqlite3.Connection) -> int:
    """A number that changes when another connection has committed, in this process or another."""
    return int(db.execute("PRAGMA data_version").fetchone()[0])


def _code(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", None) or ""


def _problem_of(error: sqlite3.Error) -> tuple[str, str | None] | None:
    code = _code(error)
    return next((found for name, found in _PROBLEMS.items() if code.startswith(name)), None)
