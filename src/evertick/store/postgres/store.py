"""PostgresStore: the protocol of a store on a PostgreSQL database. It only opens, closes and dispatches.

What an intent does is in the file of its noun, as a coroutine function of a session; how it gets to a connection is in
`session.py` and `pool.py`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence

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
from evertick.store.fork import refuse_fork
from evertick.store.postgres import dispatched, endings, feed, fires, nodes, outbox, runs, schedules, upkeep
from evertick.store.postgres import nodes as duties
from evertick.store.postgres import runs as reading
from evertick.store.postgres import schedules as changes
from evertick.store.postgres.connection import (
    Connection,
    Statements,
    connect,
    part_from,
    refused,
    statements_for,
    translated,
)
from evertick.store.postgres.location import location_of
from evertick.store.postgres.maintenance import SchemaMaintenance
from evertick.store.postgres.nodes import OwnBeatLine
from evertick.store.postgres.partitions import drop_days, keep_partitions
from evertick.store.postgres.schema import MIGRATE_SECONDS
from evertick.store.postgres.schema import migrate as migrate_tables
from evertick.store.postgres.session import Pools, StoreSession
from evertick.store.postgres.transactions import (
    Identity,
    JobConnection,
    PsycopgTransaction,
    UserTransaction,
    identity_of,
    load_psycopg,
)
from evertick.store.postgres.upkeep import find_off, mend_off
from evertick.store.postgres.wakeup import UNHEARD_SECONDS, Listener, Notifier, channel_of
from evertick.store.rows import traces_of
from evertick.when.moment import HOUR

__all__ = ["PostgresStore"]

# How often upkeep looks after the days of history.
_PARTITIONS_EVERY = HOUR
# How long a node gets its connections ready before it joins, at most; and which share of its lease.
_WARM_SECONDS, _WARM_SHARE = 2.0, 0.1


class PostgresStore:
    """The ledger in a schema of a PostgreSQL database."""

    def __init__(self, url: str, *, clock: Clock, is_inline: bool = False) -> None:
        if is_inline:
            raise InvalidSetting("a simulation needs a store without threads and network; use sqlite://")
        self._where = location_of(url)
        # What and where it is; safe to log. Every intent has it at hand, so it is put into words once.
        self.description = self._where.description
        self._clock = clock
        self._line: StoreSession | None = None
        self._pools: Pools | None = None
        self._bell: Notifier | None = None
        self._opener: int | None = None
        # Of an open store: which one it is, and whether a user's connection leads to it.
        self._identity: Identity | None = None
        self._prune_cursor: upkeep.PruneCursor = {}
        self._limits_cursor: upkeep.LimitsCursor = {}
        self._partitions_at: int | None = None

    @property
    def id(self) -> str:
        return "" if self._identity is None else self._identity[0]

    # --- life ----------------------------------------------------------------------------------------------------

    async def open(self, *, migrate: base.MigrateMode) -> None:
        self._refuse_fork()
        if self._line is not None:
            return
        try:
            with translated(self._where):
                async with asyncio.timeout(MIGRATE_SECONDS):
                    await self._prepare(migrate)
        except StoreUnavailable as error:
            raise refused(error) from error.__cause__
        if self._line is None:
            self._pools = Pools(lambda: connect(self._where), self._where.pool_size, self.description)
            self._bell = Notifier(channel_of(self._where.schema), self._clock, self._tell)
            self._line = StoreSession(self._where, self._clock, self._pools, self._bell)
            self._opener = os.getpid()

    async def _prepare(self, migrate: base.MigrateMode) -> None:
        connection = await connect(self._where)
        try:
            await migrate_tables(connection, self._where, self._clock, migrate)
            if migrate == "auto":
                await keep_partitions(connection, self._where.schema)
            session = Statements(connection, statements_for(self._where.schema), self._clock)
            self._identity = await identity_of(session)
        finally:
            await part_from(connection)

    async def close(self) -> None:
        self._refuse_fork()
        if self._bell is not None:
            await self._bell.close()
        pools = self._pools
        self._line = self._pools = self._bell = self._opener = None
        if pools is not None:
            await pools.close()

    async def now(self) -> int:
        row = await self._open_line().ask(lambda db: db.only_row("now"))
        now: int = row["now"]
        return now

    async def beat_line(self) -> base.HeartbeatSession:
        self._open_line()
        assert self._pools is not None
        return OwnBeatLine(self._where, statements_for(self._where.schema), self._clock, self._pools.renew)

    async def changed(self, app: str, timeout: float) -> base.News | None:
        self._open_line()
        assert self._pools is not None
        assert self._bell is not None
        if not self._where.listens:
            # Nobody will tell: somebody may have written.
            await asyncio.sleep(min(timeout, UNHEARD_SECONDS))
            return "anything"
        pool, own_name = await self._pools.here(), self._bell.name
        if pool.ear is None:
            pool.ear = Listener(self._where.listening(), own_name)
        return await pool.ear.wait(app, timeout)

    async def _tell(self, statement: str, *values: str) -> None:
        if self._line is not None:
            await self._line.ask(lambda db: db.select(statement, *values))

    def _open_line(self) -> StoreSession:
        self._refuse_fork()
        if self._line is None:
            raise StoreUnavailable(f"the {self.description} is not open; open it before using it")
        return self._line

    def _refuse_fork(self) -> None:
        refuse_fork(self.description, self._opener)

    # --- schedules -----------------------------------------------------------------------------------------------

    async def due_schedules(self, app: str, limit: int, after: base.DuePlace = base.VERY_FIRST) -> base.Due:
        return await self._open_line().ask(lambda db: schedules.due_schedules(db, app, limit, after))

    async def stored_schedules(
        self, app: str, *, ids: Sequence[int] = (), keys: Sequence[str] = ()
    ) -> list[base.StoredSchedule]:
        return await self._open_line().ask(lambda db: schedules.stored_schedules(db, app, ids, keys))

    async def declared_schedules(self, app: str) -> list[base.StoredSchedule]:
        return await self._open_line().ask(lambda db: schedules.declared_schedules(db, app))

    async def fingerprints(self, app: str) -> dict[str, int]:
        return await self._open_line().ask(lambda db: schedules.fingerprints(db, app))

    async def computed_with(self, app: str, fingerprint: str, *, after: int, limit: int) -> list[base.StoredSchedule]:
        return await self._open_line().ask(lambda db: schedules.computed_with(db, app, fingerprint, after, limit))

    async def record_fires(self, app: str, node: str | None, advances: Sequence[base.Advance]) -> base.Recorded:
        return await fires.record_fires(self._open_line(), app, node, advances)

    async def change_schedules(
        self,
        app: str,
        wanted: Sequence[base.Change],
        *,
        all_or_none: bool = False,
        calendars: Sequence[base.NewCalendar] = (),
    ) -> list[bool]:
        try:
            return await self._open_line().write(
                lambda db: changes.change_schedules(db, app, wanted, all_or_none, calendars)
            )
        except changes.AnyRefused as refusal:
            return refusal.taken

    async def schedules(self, app: str, wanted: base.ScheduleFilter) -> list[Schedule]:
        return await self._open_line().read(lambda db: schedules.schedules(db, app, wanted))

    async def calendars(self, app: str) -> dict[str, bytes]:
        return await self._open_line().ask(lambda db: schedules.calendars(db, app))

    async def calendar_users(self, app: str, name: str, *, limit: int = 1000) -> list[str]:
        return await self._open_line().ask(lambda db: schedules.calendar_users(db, app, name, limit))

    async def remove_calendar(self, app: str, name: str) -> bool:
        return await self._open_line().ask(lambda db: schedules.remove_calendar(db, app, name))

    async def failing(self, app: str, *, ids: Sequence[int] | None = None, limit: int = 1000) -> list[base.Failing]:
        return await self._open_line().ask(lambda db: schedules.failing(db, app, ids, limit))

    async def put_calendar(self, app: str, name: str, version: str, content: bytes) -> None:
        await self._open_line().write(lambda db: schedules.put_calendar(db, app, name, version, content))

    # --- runs ----------------------------------------------------------------------------------------------------

    async def enqueue(self, app: str, new: Sequence[NewRun]) -> list[Run]:
        return await runs.enqueue(self._open_line(), app, new)

    async def claim(
        self, app: str, node: str, queues: Sequence[str], tasks: Mapping[str, base.TaskTerms], limit: int
    ) -> base.Claim:
        return await runs.claim(self._open_line(), app, node, queues, tasks, limit)

    async def finish(self, app: str, node: str, outcomes: Sequence[Outcome]) -> base.Finished:
        return await endings.finish(self._open_line(), app, node, outcomes)

    async def apply_reports(self, app: str, reports: Sequence[Report]) -> list[base.ReportAnswer]:
        return await dispatched.apply_reports(self._open_line(), app, reports)

    async def check_dispatched(self, app: str, limit: int, heard: Mapping[str, base.Hearing]) -> base.DispatchesChecked:
        return await self._open_line().write(lambda db: dispatched.check_dispatched(db, app, limit, heard))

    def within(self, connection: object) -> base.Within:
        self._open_line()
        assert self._bell is not None
        assert self._identity is not None
        sql = statements_for(self._where.schema)
        return UserTransaction(connection, self._where, self._identity, sql, self._clock, self._bell)

    def transaction(self, *, seconds: float, is_plain: bool) -> base.JobTransaction:
        self._open_line()
        assert self._bell is not None
        sql = statements_for(self._where.schema)
        if is_plain:
            psycopg = load_psycopg(self.description)
            return PsycopgTransaction(self._where, sql, self._clock, self._bell, seconds=seconds, psycopg=psycopg)
        return JobConnection(self._where, sql, self._clock, self._bell, seconds=seconds)

    async def owned(self, app: str, node: str) -> list[base.Owned]:
        return await self._open_line().ask(lambda db: runs.owned(db, app, node))

    async def cancel(self, app: str, ids: Sequence[str], reason: str) -> list[base.Cancelled]:
        return await self._open_line().write(lambda db: runs.cancel(db, app, ids, reason))

    async def note(self, app: str, node: str, notes: Sequence[base.Note]) -> list[str]:
        return await runs.note(self._open_line(), app, node, notes)

    async def runs(self, app: str, wanted: base.RunFilter) -> list[Run]:
        return await self._open_line().read(lambda db: reading.read_runs(db, app, wanted))

    async def recorded_moments(self, app: str, schedule_id: int, *, first: int, last: int, limit: int) -> list[int]:
        return await self._open_line().ask(
            lambda db: reading.recorded_moments(db, app, schedule_id, first, last, limit)
        )

    async def gaps(self, app: str, wanted: base.RunFilter) -> list[Gap]:
        return await self._open_line().ask(lambda db: reading.gaps(db, app, wanted))

    async def attempts(self, app: str, run: str) -> list[Attempt]:
        return await self._open_line().ask(lambda db: reading.attempts(db, app, run))

    async def log(self, app: str, run: str, *, after: int = 0, limit: int = 1000) -> list[LogLine]:
        return await self._open_line().ask(lambda db: reading.log(db, app, run, after, limit))

    # --- messages ------------------------------------------------------------------------------------------------

    async def send(self, app: str, new: Sequence[NewMessage]) -> list[Message]:
        return await self._open_line().write(lambda db: outbox.send(db, app, new))

    async def claim_messages(
        self, app: str, node: str, channels: Mapping[str, int], held: Sequence[str]
    ) -> base.MessageClaim:
        return await outbox.claim_messages(self._open_line(), app, node, channels, held)

    async def settle_messages(self, app: str, node: str, outcomes: Sequence[MessageOutcome]) -> list[base.FinishAnswer]:
        return await self._open_line().write(lambda db: outbox.settle_messages(db, app, node, outcomes))

    async def messages(self, app: str, wanted: base.MessageFilter) -> list[Message]:
        return await self._open_line().ask(lambda db: outbox.messages(db, app, wanted))

    async def channels(self, app: str) -> list[base.ChannelPulse]:
        return await self._open_line().ask(lambda db: outbox.channels(db, app))

    async def retry_messages(self, app: str, ids: Sequence[str]) -> list[str]:
        return await self._open_line().write(lambda db: outbox.retry_messages(db, app, ids))

    async def hasten_messages(self, app: str, channel: str, limit: int) -> int:
        return await self._open_line().write(lambda db: outbox.hasten_messages(db, app, channel, limit))

    async def drop_messages(self, app: str, ids: Sequence[str]) -> list[str]:
        return await self._open_line().write(lambda db: dispatched.drop_messages(db, app, ids))

    # --- nodes ---------------------------------------------------------------------------------------------------

    async def join(self, node: base.NodeJoin) -> int:
        line = self._open_line()
        # Its first run is not to wait for plans. A node counts its lease from before this.
        seconds = min(_WARM_SECONDS, node.lease / 1e6 * _WARM_SHARE)
        await line.warm_up(lambda db: runs.rehearse(db, node.app), seconds)
        return await line.write(lambda db: nodes.join(db, node))

    async def leave(self, node: str) -> None:
        await self._open_line().write(lambda db: nodes.die(db, node, "node.left"))

    async def judge(self, until: int = base.EVER) -> list[str]:
        return await self._open_line().write(lambda db: nodes.judge(db, until))

    async def rehome(
        self,
        app: str,
        node: str,
        queues: Sequence[str],
        tasks: Mapping[str, base.TaskTerms],
        limit: int,
        until: int = base.EVER,
    ) -> base.Rehomed:
        return await self._open_line().write(lambda db: nodes.rehome(db, app, node, queues, tasks, limit, until))

    async def nodes(self, app: str) -> list[Node]:
        return await self._open_line().ask(lambda db: nodes.nodes(db, app))

    # --- duties --------------------------------------------------------------------------------------------------

    async def hold_duties(self, app: str, node: str, names: Sequence[str]) -> base.DutyHolds:
        # Mostly there is nothing to take: then it is a read.
        found = await self._open_line().ask(lambda db: duties.named_duties(db, app, names))
        if len(found.duties) == len(set(names)) and all(duty.node is not None for duty in found.duties):
            return found
        return await self._open_line().write(lambda db: duties.hold_duties(db, app, node, names))

    async def tick_duty(self, app: str, node: str, tick: base.DutyTick) -> bool:
        return await self._open_line().ask(lambda db: duties.tick_duty(db, app, node, tick))

    async def resign_duties(self, app: str, node: str, terms: Mapping[str, int]) -> None:
        await self._open_line().write(lambda db: duties.resign_duties(db, app, node, terms))

    async def duties(self, app: str) -> list[Duty]:
        return await self._open_line().ask(lambda db: duties.duties(db, app))

    # --- feed ----------------------------------------------------------------------------------------------------

    async def keep_feed(self, app: str, kept: int | None) -> None:
        await self._open_line().ask(lambda db: feed.keep_feed(db, app, kept))

    async def feed(
        self, app: str, *, start: Cursor | None, since: int | None, kinds: Sequence[str] | None, limit: int
    ) -> base.FeedRead | None:
        return await feed.feed(self._open_line(), app, start, since, kinds, limit)

    async def feed_state(self, app: str) -> base.FeedState | None:
        return await self._open_line().ask(lambda db: feed.feed_state(db, app))

    # --- upkeep --------------------------------------------------------------------------------------------------

    async def park_unknown(self, app: str, limit: int) -> int:
        line = self._open_line()
        await self._keep_partitions(line)
        return await line.write(lambda db: upkeep.park_unknown(db, app, limit, self._limits_cursor))

    async def prune(self, app: str, *, before: int, keep_per_schedule: int | None, limit: int) -> int:
        line = self._open_line()
        await self._keep_partitions(line)
        await line.borrow(lambda connection: drop_days(connection, self._where.schema, app, before))
        keep, cursor = keep_per_schedule, self._prune_cursor
        return await line.write(lambda db: upkeep.prune(db, app, before, keep, limit, cursor))

    async def _keep_partitions(self, line: StoreSession) -> None:
        now = self._clock.now_us()
        if self._partitions_at is not None and 0 <= now - self._partitions_at < _PARTITIONS_EVERY:
            return
        self._partitions_at = now

        async def keep(connection: Connection) -> None:
            await keep_partitions(connection, self._where.schema)

        await line.borrow(keep)

    async def clock_traces(self, app: str, *, limit: int) -> base.ClockTraces:
        return traces_of(*await self._open_line().read(lambda db: find_off(db, app, limit)))

    async def mend_times(
        self, app: str, gaps: Sequence[base.GapCut], *, traces: base.ClockTraces, limit: int
    ) -> dict[str, int]:
        line = self._open_line()
        found, _ = await line.read(lambda db: find_off(db, app, limit, traces.first_at))
        return await line.write(lambda db: mend_off(db, app, found, gaps, limit))

    def care(self) -> base.Maintenance:
        return SchemaMaintenance(self._where, self._clock)

    async def pulse(self, app: str) -> base.Pulse:
        return await self._open_line().ask(lambda db: upkeep.pulse(db, app))

    async def apps(self, *, limit: int = 100) -> list[str]:
        return await self._open_line().ask(lambda db: upkeep.apps(db, limit))
