"""SqliteStore: the protocol of a store on one SQLite file. It only opens, closes and dispatches.

What an intent does is in the file of its noun, as a function of a connection and the store's now; how it gets to a
connection is in `lines.py`. Local disks only: SQLite's locks do not hold on network shares.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Concatenate, ParamSpec, TypeVar

from evertick.clock import Clock
from evertick.errors import InvalidSetting, StoreUnavailable
from evertick.model import (
    Attempt,
    Duty,
    Gap,
    LogLine,
    Message,
    MessageOutcome,
    NewMessage,
    NewRun,
    Node,
    Outcome,
    Report,
    Run,
    Schedule,
)
from evertick.model.feed import Cursor
from evertick.store import base
from evertick.store.clock_rows import traces_of
from evertick.store.fork import refuse_fork
from evertick.store.sqlite import outbox
from evertick.store.sqlite.changes import change_schedules
from evertick.store.sqlite.claims import claim
from evertick.store.sqlite.clock import find_off, mend_off
from evertick.store.sqlite.connection import (
    UNWRITABLE,
    StoreTime,
    as_it_can_be_opened,
    check_version,
    open_file,
    translated,
    warn_of_network,
)
from evertick.store.sqlite.dispatched import apply_each, apply_reports, check_dispatched
from evertick.store.sqlite.duties import duties as read_duties
from evertick.store.sqlite.duties import hold_duties, named_duties, resign_duties, tick_duty
from evertick.store.sqlite.endings import finish, finish_each
from evertick.store.sqlite.failing import failing
from evertick.store.sqlite.feed import feed, feed_state, keep_feed
from evertick.store.sqlite.fires import record_fires
from evertick.store.sqlite.job_transaction import FileTransaction
from evertick.store.sqlite.location import location_of
from evertick.store.sqlite.maintenance import FileMaintenance
from evertick.store.sqlite.nodes import die, join, judge, nodes, rehome
from evertick.store.sqlite.queries import SQL
from evertick.store.sqlite.reading import attempts, gaps, log, recorded_moments
from evertick.store.sqlite.reading import runs as read_runs
from evertick.store.sqlite.runs import cancel, enqueue, note, note_each, owned
from evertick.store.sqlite.schedules import (
    calendar_users,
    calendars,
    computed_with,
    declared_schedules,
    due_schedules,
    fingerprints,
    put_calendar,
    remove_calendar,
    stored_schedules,
)
from evertick.store.sqlite.schedules import schedules as read_schedules
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
from evertick.store.sqlite.upkeep import LimitsCursor, PruneCursor, apps, park_unknown, prune, pulse
from evertick.store.sqlite.within import UserTransaction, refuse_memory

__all__ = ["SqliteStore"]

P = ParamSpec("P")
T = TypeVar("T")
# An intent as the files of the nouns write it.
Act = Callable[Concatenate[sqlite3.Connection, int, P], T]


class SqliteStore:
    """The ledger in a SQLite file, or in memory."""

    def __init__(self, url: str, *, clock: Clock, is_inline: bool = False) -> None:
        self._where = location_of(url)
        self._clock = clock
        self._time = StoreTime(clock)
        self._is_inline = is_inline
        self._line: StoreSession | None = None
        self._opener: int | None = None
        # Of an open store: which one it is, and whether a user's connection leads to it.
        self._store_id = ""
        self._opening = threading.Lock()
        self._prune_cursor: PruneCursor = {}
        self._limits_cursor: LimitsCursor = {}

    @classmethod
    def sharing(cls, other: SqliteStore) -> SqliteStore:
        """Another store object on the connection of an open inline one: for a node that stops, and starts again."""
        if not isinstance(other._line, InlineSession):
            raise InvalidSetting("only an open inline store can be shared")
        store = cls("sqlite://", clock=other._clock, is_inline=True)
        store._where = other._where
        store._line = InlineSession(other._line.shared, other._where, store._time)
        store._opener = other._opener
        store._store_id = other._store_id
        return store

    @property
    def id(self) -> str:
        return self._store_id

    @property
    def description(self) -> str:
        """What and where it is; safe to log."""
        return self._where.description

    # --- life ----------------------------------------------------------------------------------------------------

    async def open(self, *, migrate: base.MigrateMode) -> None:
        self._refuse_fork()
        if self._is_inline:
            self._open(migrate)
        else:
            # Waiting for another process that migrates must not hold up the caller's event loop.
            await asyncio.get_running_loop().run_in_executor(None, self._open, migrate)

    def _open(self, migrate: base.MigrateMode) -> None:
        with self._opening:
            if self._line is not None:
                return
            check_version()
            if migrate == "check":
                self._where = as_it_can_be_opened(self._where)
            warn_of_network(self._where)
            db = open_file(self._where, may_create=migrate == "auto")
            try:
                with translated(self._where):
                    migrate_tables(db, self._clock, migrate, self.description)
                    self._store_id = db.execute(SQL["within.store_id"]).fetchone()["store_id"]
                    self._line = self._line_on(db)
            except BaseException:
                db.close()
                raise
            self._opener = os.getpid()

    def _line_on(self, db: sqlite3.Connection) -> StoreSession:
        if self._is_inline:
            return InlineSession(Inline(db), self._where, self._time)
        if self._where.path is None:
            return MemorySession(db, self._where, self._time)
        return FileSession(db, self._where, self._time)

    async def close(self) -> None:
        self._refuse_fork()
        line, self._line, self._opener = self._line, None, None
        if line is not None:
            await line.close()

    async def now(self) -> int:
        self._open_line()
        return self._time.now()

    async def beat_line(self) -> base.HeartbeatSession:
        line = self._open_line()
        return (
            FileHeartbeatSession(self._where, self._time, line.files)
            if isinstance(line, FileSession)
            else SharedHeartbeatSession(line)
        )

    async def changed(self, app: str, timeout: float) -> base.News | None:
        return await self._open_line().changed(app, timeout)

    def _open_line(self) -> StoreSession:
        self._refuse_fork()
        if self._line is None:
            raise StoreUnavailable(f"the {self.description} is not open; open it before using it")
        return self._line

    def _refuse_fork(self) -> None:
        refuse_fork(self.description, self._opener)

    async def _write(self, act: Act[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._open_line().write(lambda db, now: act(db, now, *args, **kwargs))

    async def _end(self, act: Act[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Write how something has ended that has begun already."""
        return await self._open_line().write(lambda db, now: act(db, now, *args, **kwargs), is_end=True)

    async def _read(self, act: Act[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._open_line().read(lambda db, now: act(db, now, *args, **kwargs))

    # --- schedules -----------------------------------------------------------------------------------------------

    async def due_schedules(self, app: str, limit: int, after: base.DuePlace = base.VERY_FIRST) -> base.Due:
        return await self._read(due_schedules, app, limit, after)

    async def stored_schedules(
        self, app: str, *, ids: Sequence[int] = (), keys: Sequence[str] = ()
    ) -> list[base.StoredSchedule]:
        return await self._read(stored_schedules, app, ids, keys)

    async def declared_schedules(self, app: str) -> list[base.StoredSchedule]:
        return await self._read(declared_schedules, app)

    async def fingerprints(self, app: str) -> dict[str, int]:
        return await self._read(fingerprints, app)

    async def computed_with(self, app: str, fingerprint: str, *, after: int, limit: int) -> list[base.StoredSchedule]:
        return await self._read(computed_with, app, fingerprint, after, limit)

    async def record_fires(self, app: str, node: str | None, advances: Sequence[base.Advance]) -> base.Recorded:
        return await self._write(record_fires, app, node, advances)

    async def change_schedules(
        self,
        app: str,
        changes: Sequence[base.Change],
        *,
        all_or_none: bool = False,
        calendars: Sequence[base.NewCalendar] = (),
    ) -> list[bool]:
        return await self._write(change_schedules, app, changes, all_or_none, calendars)

    async def schedules(self, app: str, wanted: base.ScheduleFilter) -> list[Schedule]:
        return await self._read(read_schedules, app, wanted)

    async def calendars(self, app: str) -> dict[str, bytes]:
        return await self._read(calendars, app)

    async def put_calendar(self, app: str, name: str, version: str, content: bytes) -> None:
        await self._write(put_calendar, app, name, version, content)

    async def calendar_users(self, app: str, name: str, *, limit: int = 1000) -> list[str]:
        return await self._read(calendar_users, app, name, limit)

    async def remove_calendar(self, app: str, name: str) -> bool:
        return await self._write(remove_calendar, app, name)

    async def failing(self, app: str, *, ids: Sequence[int] | None = None, limit: int = 1000) -> list[base.Failing]:
        return await self._read(failing, app, ids, limit)

    # --- runs ----------------------------------------------------------------------------------------------------

    async def enqueue(self, app: str, runs: Sequence[NewRun]) -> list[Run]:
        return await self._write(enqueue, app, runs)

    async def claim(
        self, app: str, node: str, queues: Sequence[str], tasks: Mapping[str, base.TaskTerms], limit: int
    ) -> base.Claim:
        return await self._write(claim, app, node, queues, tasks, limit)

    async def finish(self, app: str, node: str, outcomes: Sequence[Outcome]) -> base.Finished:
        try:
            return await self._end(finish, app, node, outcomes)
        except UNWRITABLE:
            # A savepoint for each would cost every batch; so only the batch that needs it.
            return await self._end(finish_each, app, node, outcomes)

    async def apply_reports(self, app: str, reports: Sequence[Report]) -> list[base.ReportAnswer]:
        try:
            return await self._write(apply_reports, app, reports)
        except UNWRITABLE:
            return await self._write(apply_each, app, reports)

    async def check_dispatched(self, app: str, limit: int, heard: Mapping[str, base.Hearing]) -> base.DispatchesChecked:
        return await self._write(check_dispatched, app, limit, heard, self._clock)

    def within(self, connection: object) -> base.Within:
        line = self._open_line()
        if isinstance(line, FileSession):
            line.files.check_beside()
        refuse_memory(self._where)
        return UserTransaction(connection, self._where, self._store_id, self._time)

    def transaction(self, *, seconds: float, is_plain: bool) -> base.JobTransaction:
        line = self._open_line()
        if isinstance(line, FileSession):
            # Before it connects: a new connection would make a new log where the one in use was deleted.
            line.files.check()
        refuse_memory(self._where)
        return FileTransaction(self._where, self._time, seconds=seconds, is_plain=is_plain)

    async def owned(self, app: str, node: str) -> list[base.Owned]:
        return await self._read(owned, app, node)

    async def cancel(self, app: str, ids: Sequence[str], reason: str) -> list[base.Cancelled]:
        return await self._write(cancel, app, ids, reason)

    async def note(self, app: str, node: str, notes: Sequence[base.Note]) -> list[str]:
        try:
            return await self._write(note, app, node, notes)
        except UNWRITABLE:
            return await self._write(note_each, app, node, notes)

    async def runs(self, app: str, wanted: base.RunFilter) -> list[Run]:
        return await self._read(read_runs, app, wanted)

    async def recorded_moments(self, app: str, schedule_id: int, *, first: int, last: int, limit: int) -> list[int]:
        return await self._read(recorded_moments, app, schedule_id, (first, last), limit)

    async def gaps(self, app: str, wanted: base.RunFilter) -> list[Gap]:
        return await self._read(gaps, app, wanted)

    async def attempts(self, app: str, run: str) -> list[Attempt]:
        return await self._read(attempts, app, run)

    async def log(self, app: str, run: str, *, after: int = 0, limit: int = 1000) -> list[LogLine]:
        return await self._read(log, app, run, after, limit)

    # --- messages ------------------------------------------------------------------------------------------------

    async def send(self, app: str, messages: Sequence[NewMessage]) -> list[Message]:
        return await self._write(outbox.send, app, messages)

    async def claim_messages(
        self, app: str, node: str, channels: Mapping[str, int], held: Sequence[str]
    ) -> base.MessageClaim:
        return await self._write(outbox.claim_messages, app, node, channels, held)

    async def settle_messages(self, app: str, node: str, outcomes: Sequence[MessageOutcome]) -> list[base.FinishAnswer]:
        return await self._end(outbox.settle_messages, app, node, outcomes)

    async def messages(self, app: str, wanted: base.MessageFilter) -> list[Message]:
        return await self._read(outbox.messages, app, wanted)

    async def channels(self, app: str) -> list[base.ChannelPulse]:
        return await self._read(outbox.channels, app)

    async def retry_messages(self, app: str, ids: Sequence[str]) -> list[str]:
        return await self._write(outbox.retry_messages, app, ids)

    async def hasten_messages(self, app: str, channel: str, limit: int) -> int:
        return await self._write(outbox.hasten_messages, app, channel, limit)

    async def drop_messages(self, app: str, ids: Sequence[str]) -> list[str]:
        return await self._write(outbox.drop_messages, app, ids)

    # --- nodes ---------------------------------------------------------------------------------------------------

    async def join(self, node: base.NodeJoin) -> int:
        return await self._write(join, node)

    async def leave(self, node: str) -> None:
        await self._end(die, node, "node.left")

    async def judge(self, until: int = base.EVER) -> list[str]:
        return await self._write(judge, until)

    async def rehome(
        self,
        app: str,
        node: str,
        queues: Sequence[str],
        tasks: Mapping[str, base.TaskTerms],
        limit: int,
        until: int = base.EVER,
    ) -> base.Rehomed:
        return await self._write(rehome, app, node, queues, tasks, limit, until)

    async def nodes(self, app: str) -> list[Node]:
        return await self._read(nodes, app)

    # --- duties --------------------------------------------------------------------------------------------------

    async def hold_duties(self, app: str, node: str, names: Sequence[str]) -> base.DutyHolds:
        # Mostly there is nothing to take: then it is a read.
        found = await self._read(named_duties, app, names)
        if len(found.duties) == len(set(names)) and all(duty.node is not None for duty in found.duties):
            return found
        return await self._write(hold_duties, app, node, names)

    async def tick_duty(self, app: str, node: str, tick: base.DutyTick) -> bool:
        return await self._write(tick_duty, app, node, tick)

    async def resign_duties(self, app: str, node: str, terms: Mapping[str, int]) -> None:
        await self._end(resign_duties, app, node, terms)

    async def duties(self, app: str) -> list[Duty]:
        return await self._read(read_duties, app)

    # --- feed ----------------------------------------------------------------------------------------------------

    async def keep_feed(self, app: str, kept: int | None) -> None:
        await self._write(keep_feed, app, kept, self._clock.new_token())

    async def feed(
        self, app: str, *, start: Cursor | None, since: int | None, kinds: Sequence[str] | None, limit: int
    ) -> base.FeedRead | None:
        return await self._read(feed, app, start, since, kinds, limit)

    async def feed_state(self, app: str) -> base.FeedState | None:
        return await self._read(feed_state, app)

    # --- upkeep --------------------------------------------------------------------------------------------------

    async def park_unknown(self, app: str, limit: int) -> int:
        return await self._write(park_unknown, app, limit, self._limits_cursor)

    async def prune(self, app: str, *, before: int, keep_per_schedule: int | None, limit: int) -> int:
        return await self._write(prune, app, before, keep_per_schedule, limit, self._prune_cursor)

    async def pulse(self, app: str) -> base.Pulse:
        return await self._read(pulse, app)

    async def apps(self, *, limit: int = 100) -> list[str]:
        return await self._read(apps, limit)

    async def clock_traces(self, app: str, *, limit: int) -> base.ClockTraces:
        return await self._read(lambda db, now: traces_of(find_off(db, now, app, limit), now))

    async def mend_times(
        self, app: str, gaps: Sequence[base.GapCut], *, traces: base.ClockTraces, limit: int
    ) -> dict[str, int]:
        # Found without the lock for writing: the look reads all of history.
        found = await self._read(find_off, app, limit, traces.first_at)
        return await self._write(mend_off, app, found, gaps, limit)

    def care(self) -> base.Maintenance:
        return FileMaintenance(self._where, self._clock)
