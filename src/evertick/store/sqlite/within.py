"""The ledger inside a transaction of the user's own, on the user's own connection.

The user's connection stays the user's: its row and text factories are put back, an error of ours is rolled back to a
savepoint and leaves the transaction as it was. It must lead to the very file of the store, in its `main` database: only
then is a commit one commit. Other processes notice it like any commit, by the `data_version` of the file.
"""

from __future__ import annotations

import functools
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from evertick.errors import InvalidInput, Refused
from evertick.model import Message, NewMessage, NewRun, Outcome, Run
from evertick.store.base import FinishAnswer
from evertick.store.sqlite.connection import StoreTime, savepoint, translated
from evertick.store.sqlite.endings import finish
from evertick.store.sqlite.location import Location
from evertick.store.sqlite.numbered import numbered
from evertick.store.sqlite.outbox import send
from evertick.store.sqlite.queries import SQL
from evertick.store.sqlite.runs import enqueue
from evertick.store.wrappers import begin_as_library, layers_of
from evertick.text.redact import shown_value

__all__ = ["UserTransaction", "as_we_read", "refuse_memory"]

T = TypeVar("T")

# `Connection.autocommit` where Python itself begins transactions, as it always did before 3.12.
_LEGACY = -1


def refuse_memory(where: Location) -> None:
    if where.path is None:
        raise Refused(
            f"the ledger is {where.description}, which no other connection can reach: transactions that it shares with "
            "other tables need a file, as in sqlite:///jobs.db (in the testing kit the ledger is always in memory: "
            "test such code with a file in a temporary directory)"
        )


class UserTransaction:
    """The transaction that is open on a connection of the user, or that begins on it with our first statement."""

    def __init__(self, given: object, where: Location, store_id: str, time: StoreTime) -> None:
        self._given = given
        self._db, self._aio = _connection_of(given)
        self._where = where
        self._store_id = store_id
        self._time = time

    @property
    def is_async(self) -> bool:
        return self._aio is not None

    async def enqueue(self, app: str, runs: Sequence[NewRun]) -> list[Run]:
        return await self._perform(lambda db: enqueue(db, self._time.now(), app, runs))

    async def send(self, app: str, messages: Sequence[NewMessage]) -> list[Message]:
        return await self._perform(lambda db: send(db, self._time.now(), app, messages))

    async def finish(self, app: str, node: str, outcome: Outcome) -> FinishAnswer:
        finished = await self._perform(lambda db: finish(db, self._time.now(), app, node, [outcome]))
        return finished.answers[0]

    async def _perform(self, act: Callable[[sqlite3.Connection], T]) -> T:
        await begin_as_library(self._given, is_begun=self._db.in_transaction)
        if self._aio is None:
            return self._perform_here(act)
        # Its own thread does the work, in the order of the user's other statements.
        answer: T = await self._aio._execute(functools.partial(self._perform_here, act))
        return answer

    def _perform_here(self, act: Callable[[sqlite3.Connection], T]) -> T:
        with translated(self._where), as_we_read(self._db), _in_transaction(self._db), savepoint(self._db):
            _check_store(self._db, self._where, self._store_id)
            return act(numbered(self._db))


def _connection_of(given: object) -> tuple[sqlite3.Connection, Any | None]:
    """SQLite's own connection, and the async one around it if there is one; through the wrappers of others."""
    for found in layers_of(given):
        if isinstance(found, sqlite3.Connection):
            return found, None
        if callable(getattr(found, "_execute", None)) and isinstance(getattr(found, "_conn", None), sqlite3.Connection):
            return found._conn, found
    raise InvalidInput(
        f"connection: {shown_value(given)} is no open connection to SQLite; pass one of sqlite3 or aiosqlite, "
        "Django's, a Connection or Session of SQLAlchemy, or an AsyncConnection (of an AsyncSession: `await "
        "session.connection()`)"
    )


@contextmanager
def as_we_read(db: sqlite3.Connection) -> Iterator[None]:
    """Rows and texts as our statements expect them, and then as the user has them."""
    row_factory, text_factory = db.row_factory, db.text_factory
    db.row_factory, db.text_factory = sqlite3.Row, str
    try:
        yield
    finally:
        db.row_factory, db.text_factory = row_factory, text_factory


@contextmanager
def _in_transaction(db: sqlite3.Connection) -> Iterator[None]:
    """The open transaction, or one that begins as Python itself would begin it before an INSERT."""
    if db.in_transaction:
        yield
        return
    if getattr(db, "autocommit", _LEGACY) != _LEGACY or db.isolation_level is None:
        raise Refused(
            "no transaction is open on this connection, and it begins none by itself (autocommit); begin a transaction "
            'first, with connection.execute("BEGIN IMMEDIATE"), and commit it together with your own changes'
        )
    db.execute(f"BEGIN {db.isolation_level}")
    try:
        yield
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _check_store(db: sqlite3.Connection, where: Location, store_id: str) -> None:
    """Is it the very store? A copy of the file has the same id, and a file that was put in its place the same path."""
    try:
        db.execute(SQL["within.lock"])
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname != "SQLITE_ERROR":
            raise
        raise Refused(
            f"this connection leads to {_file_of(db)}, without tables of Evertick; {_advice(where)}"
        ) from error
    found = db.execute(SQL["within.store_id"]).fetchone()["store_id"]
    if found != store_id or not _is_same_file(_file_of(db), where.path):
        raise Refused(f"this connection leads to {_file_of(db)}, which is another store; {_advice(where)}")


def _is_same_file(one: str, other: str | None) -> bool:
    try:
        return other is not None and os.path.samefile(one, other)
    except OSError:
        return False


def _file_of(db: sqlite3.Connection) -> str:
    [main] = [row["file"] for row in db.execute("PRAGMA database_list") if row["name"] == "main"]
    return str(main) or "a database in memory"


def _advice(where: Location) -> str:
    return f"the ledger is in {where.path}: connect to that file, so that one commit is enough for both"
