"""SqliteStore: the store protocol on one SQLite file. It opens, closes, and passes intents to a session.

An intent is a function of a connection and the store's now, with the parameters of the protocol, in the file of its
noun. `session.py` brings it to a connection. Local disks only, because SQLite's locks do not work on network shares.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from evertick.clock import Clock
from evertick.errors import InvalidSetting
from evertick.store import base
from evertick.store.session_store import SessionStore
from evertick.store.sqlite import claims, dispatched, endings, fires, outbox, upkeep
from evertick.store.sqlite import feed as feed_intents
from evertick.store.sqlite import nodes as node_intents
from evertick.store.sqlite import runs as run_intents
from evertick.store.sqlite import schedules as schedule_intents
from evertick.store.sqlite.connection import (
    SQL,
    UNWRITABLE,
    StoreTime,
    check_version,
    open_file,
    read_only_if_needed,
    translated,
    warn_of_network,
)
from evertick.store.sqlite.location import location_of
from evertick.store.sqlite.maintenance import FileMaintenance
from evertick.store.sqlite.schema import migrate as migrate_tables
from evertick.store.sqlite.session import (
    FileHeartbeatSession,
    FileSession,
    Inline,
    InlineSession,
    MemorySession,
    SharedHeartbeatSession,
    StoreSession,
)
from evertick.store.sqlite.transactions import FileTransaction, UserTransaction, refuse_memory

__all__ = ["SqliteStore"]

P = ParamSpec("P")
T = TypeVar("T")
Intent = Callable[Concatenate[sqlite3.Connection, int, P], T]
Method = Callable[Concatenate["SqliteStore", P], Coroutine[Any, Any, T]]


def _read(intent: Intent[P, T]) -> Method[P, T]:
    async def read(self: SqliteStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.session().read(lambda db, now: intent(db, now, *args, **kwargs))

    return read


def _write(intent: Intent[P, T], *, is_end: bool = False) -> Method[P, T]:
    """`is_end`: it writes the outcome of work that has begun."""

    async def write(self: SqliteStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.session().write(lambda db, now: intent(db, now, *args, **kwargs), is_end=is_end)

    return write


def _write_batch(whole: Intent[P, T], each: Intent[P, T], *, is_end: bool = False) -> Method[P, T]:
    """Try the whole batch first: savepoints for each row are used only if one of them cannot be written."""

    async def write(self: SqliteStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await self.session().write(lambda db, now: whole(db, now, *args, **kwargs), is_end=is_end)
        except UNWRITABLE:
            return await self.session().write(lambda db, now: each(db, now, *args, **kwargs), is_end=is_end)

    return write


class SqliteStore(SessionStore[StoreSession]):
    """The ledger in a SQLite file, or in memory."""

    def __init__(self, url: str, *, clock: Clock, is_inline: bool = False) -> None:
        self._where = location_of(url)
        super().__init__(self._where.description)
        self._clock = clock
        self._time = StoreTime(clock)
        self._is_inline = is_inline
        self._store_id = ""
        self._opening = threading.Lock()
        self._prune_cursor: upkeep.PruneCursor = {}
        self._limits_cursor: upkeep.LimitsCursor = {}

    @classmethod
    def sharing(cls, other: SqliteStore) -> SqliteStore:
        """Another store on the connection of an open inline one, for a node that stops and starts again."""
        if not isinstance(other._session, InlineSession):
            raise InvalidSetting("only an open inline store can be shared", fix="open it first, with is_inline=True")
        store = cls("sqlite://", clock=other._clock, is_inline=True)
        store._where, store._opener, store._store_id = other._where, other._opener, other._store_id
        store._session = InlineSession(other._session.shared, other._where, store._time)
        return store

    @property
    def id(self) -> str:
        return self._store_id

    # --- life

    async def open(self, *, migrate: base.MigrateMode) -> None:
        self._refuse_fork()
        if self._is_inline:
            self._open(migrate)
        else:
            # In a thread: waiting for a process that migrates must not block the caller's event loop.
            await asyncio.get_running_loop().run_in_executor(None, self._open, migrate)

    def _open(self, migrate: base.MigrateMode) -> None:
        with self._opening:
            if self._session is not None:
                return
            check_version()
            if migrate == "check":
                self._where = read_only_if_needed(self._where)
            warn_of_network(self._where)
            db = open_file(self._where, may_create=migrate == "auto")
            try:
                with translated(self._where):
                    migrate_tables(db, self._clock, migrate, self.description)
                    self._store_id = db.execute(SQL["within.store_id"]).fetchone()["store_id"]
                    self._session = self._session_on(db)
            except BaseException:
                db.close()
                raise
            self._opener = os.getpid()

    def _session_on(self, db: sqlite3.Connection) -> StoreSession:
        if self._is_inline:
            return InlineSession(Inline(db), self._where, self._time)
        kind = MemorySession if self._where.path is None else FileSession
        return kind(db, self._where, self._time)

    async def close(self) -> None:
        self._refuse_fork()
        session, self._session, self._opener = self._session, None, None
        if session is not None:
            await session.close()

    async def now(self) -> int:
        self.session()
        return self._time.now()

    async def heartbeat_session(self) -> base.HeartbeatSession:
        session = self.session()
        if isinstance(session, FileSession):
            return FileHeartbeatSession(self._where, self._time, session.files)
        return SharedHeartbeatSession(session)

    async def changed(self, app: str, timeout: float) -> base.News | None:
        return await self.session().changed(app, timeout)

    def within(self, connection: object) -> base.Within:
        session = self.session()
        if isinstance(session, FileSession):
            session.files.check_log()
        refuse_memory(self._where)
        return UserTransaction(connection, self._where, self._store_id, self._time)

    def transaction(self, *, seconds: float, is_plain: bool) -> base.JobTransaction:
        session = self.session()
        if isinstance(session, FileSession):
            # Before it connects: a new connection would create a new log in place of a deleted one.
            session.files.check()
        refuse_memory(self._where)
        return FileTransaction(self._where, self._time, seconds=seconds, is_plain=is_plain)

    def maintenance(self) -> base.Maintenance:
        return FileMaintenance(self._where, self._clock)

    # --- schedules

    due_schedules = _read(schedule_intents.due_schedules)
    stored_schedules = _read(schedule_intents.stored_schedules)
    declared_schedules = _read(schedule_intents.declared_schedules)
    fingerprints = _read(schedule_intents.fingerprints)
    computed_with = _read(schedule_intents.computed_with)
    record_fires = _write(fires.record_fires)
    change_schedules = _write(schedule_intents.change_schedules)
    schedules = _read(schedule_intents.schedules)
    failing = _read(schedule_intents.failing)
    calendars = _read(schedule_intents.calendars)
    calendar_users = _read(schedule_intents.calendar_users)
    put_calendar = _write(schedule_intents.put_calendar)
    remove_calendar = _write(schedule_intents.remove_calendar)

    # --- runs

    enqueue = _write(run_intents.enqueue)
    claim = _write(claims.claim)
    finish = _write_batch(endings.finish, endings.finish_each, is_end=True)
    apply_reports = _write_batch(dispatched.apply_reports, dispatched.apply_each)
    owned = _read(run_intents.owned)
    cancel = _write(run_intents.cancel)
    note = _write_batch(run_intents.note, run_intents.note_each)
    runs = _read(run_intents.read_runs)
    recorded_moments = _read(run_intents.recorded_moments)
    gaps = _read(run_intents.gaps)
    attempts = _read(run_intents.attempts)
    log = _read(run_intents.log)

    async def check_dispatched(
        self, app: str, limit: int, windows: Mapping[str, base.ReportWindow]
    ) -> base.DispatchesChecked:
        new_ids = self._clock.new_ids
        return await self.session().write(
            lambda db, now: dispatched.check_dispatched(db, now, app, limit, windows, new_ids)
        )

    # --- messages

    send = _write(outbox.send)
    claim_messages = _write(outbox.claim_messages)
    settle_messages = _write(outbox.settle_messages, is_end=True)
    messages = _read(outbox.messages)
    channels = _read(outbox.channels)
    retry_messages = _write(outbox.retry_messages)
    hasten_messages = _write(outbox.hasten_messages)
    drop_messages = _write(outbox.drop_messages)

    # --- nodes and duties

    join = _write(node_intents.join)
    leave = _write(node_intents.leave, is_end=True)
    judge = _write(node_intents.judge)
    rehome = _write(node_intents.rehome)
    nodes = _read(node_intents.nodes)
    tick_duty = _write(node_intents.tick_duty)
    resign_duties = _write(node_intents.resign_duties, is_end=True)
    duties = _read(node_intents.duties)
    _named_duties = _read(node_intents.named_duties)
    _take_duties = _write(node_intents.hold_duties)

    # --- feed

    feed = _read(feed_intents.feed)
    feed_state = _read(feed_intents.feed_state)

    async def keep_feed(self, app: str, kept: int | None) -> None:
        epoch = self._clock.new_token()
        await self.session().write(lambda db, _now: feed_intents.keep_feed(db, app, kept, epoch))

    # --- upkeep

    pulse = _read(upkeep.pulse)
    apps = _read(upkeep.apps)
    _find_mistimed = _read(upkeep.find_mistimed)
    _mend_mistimed = _write(upkeep.mend_mistimed)

    async def park_unknown(self, app: str, limit: int) -> int:
        cursor = self._limits_cursor
        return await self.session().write(lambda db, now: upkeep.park_unknown(db, now, app, limit, cursor))

    async def prune(self, app: str, *, before: int, keep_per_schedule: int | None, limit: int) -> int:
        keep, cursor = keep_per_schedule, self._prune_cursor
        return await self.session().write(lambda db, now: upkeep.prune(db, now, app, before, keep, limit, cursor))
