"""PostgresStore: the store protocol on a PostgreSQL database. It opens, closes, and passes intents to a session.

An intent is a coroutine function of a connection's statements, or of the session, with the parameters of the protocol,
in the file of its noun. `session.py` brings it to a connection.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from evertick.clock import Clock
from evertick.errors import InvalidSetting, StoreUnavailable
from evertick.store import base
from evertick.store.postgres import dispatched, endings, fires, outbox, upkeep
from evertick.store.postgres import feed as feed_intents
from evertick.store.postgres import nodes as node_intents
from evertick.store.postgres import runs as run_intents
from evertick.store.postgres import schedules as schedule_intents
from evertick.store.postgres.connection import (
    Connection,
    Statements,
    connect,
    disconnect,
    refused,
    statements_for,
    translated,
)
from evertick.store.postgres.location import location_of
from evertick.store.postgres.maintenance import SchemaMaintenance
from evertick.store.postgres.partitions import drop_days, keep_partitions
from evertick.store.postgres.schema import MIGRATE_SECONDS
from evertick.store.postgres.schema import migrate as migrate_tables
from evertick.store.postgres.session import Pools, StoreSession
from evertick.store.postgres.transactions import (
    AsyncpgTransaction,
    Identity,
    PsycopgTransaction,
    UserTransaction,
    identity_of,
    load_psycopg,
)
from evertick.store.postgres.wakeup import POLL_SECONDS, Listener, Notifier, channel_of
from evertick.store.session_store import SessionStore
from evertick.when.moment import HOUR

__all__ = ["PostgresStore"]

# How often upkeep creates the coming partitions.
_PARTITIONS_EVERY = HOUR
# The longest time for the preparation of connections before a node joins, in seconds and as a share of its lease.
_WARM_SECONDS, _WARM_SHARE = 2.0, 0.1

P = ParamSpec("P")
T = TypeVar("T")
Intent = Callable[Concatenate[Statements, P], Coroutine[Any, Any, T]]
Method = Callable[Concatenate["PostgresStore", P], Coroutine[Any, Any, T]]


def _ask(intent: Intent[P, T]) -> Method[P, T]:
    """One statement in autocommit."""

    async def ask(self: PostgresStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.session().ask(lambda db: intent(db, *args, **kwargs))

    return ask


def _read(intent: Intent[P, T]) -> Method[P, T]:
    """Several statements in one snapshot."""

    async def read(self: PostgresStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.session().read(lambda db: intent(db, *args, **kwargs))

    return read


def _write(intent: Intent[P, T]) -> Method[P, T]:
    async def write(self: PostgresStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.session().write(lambda db: intent(db, *args, **kwargs))

    return write


def _with_session(intent: Callable[Concatenate[StoreSession, P], Coroutine[Any, Any, T]]) -> Method[P, T]:
    """An intent that chooses its own transactions."""

    async def perform(self: PostgresStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await intent(self.session(), *args, **kwargs)

    return perform


class PostgresStore(SessionStore[StoreSession]):
    """The ledger in a schema of a PostgreSQL database."""

    def __init__(self, url: str, *, clock: Clock, is_inline: bool = False) -> None:
        if is_inline:
            raise InvalidSetting(
                "a simulation needs a store without threads and network", setting="url", fix="use sqlite://"
            )
        self._where = location_of(url)
        super().__init__(self._where.description)
        self._clock = clock
        # Of an open store: its id, and its database, to check users' connections.
        self._identity: Identity | None = None
        self._prune_cursor: upkeep.PruneCursor = {}
        self._limits_cursor: upkeep.LimitsCursor = {}
        self._partitions_at: int | None = None

    @property
    def id(self) -> str:
        return "" if self._identity is None else self._identity[0]

    # --- life

    async def open(self, *, migrate: base.MigrateMode) -> None:
        self._refuse_fork()
        if self._session is not None:
            return
        try:
            with translated(self._where):
                async with asyncio.timeout(MIGRATE_SECONDS):
                    await self._prepare(migrate)
        except StoreUnavailable as error:
            raise refused(error) from error.__cause__
        if self._session is None:
            pools = Pools(lambda: connect(self._where), self._where.pool_size, self.description)
            notifier = Notifier(channel_of(self._where.schema), self._clock, self._notify)
            self._session = StoreSession(self._where, self._clock, pools, notifier)
            self._opener = os.getpid()

    async def _prepare(self, migrate: base.MigrateMode) -> None:
        connection = await connect(self._where)
        try:
            await migrate_tables(connection, self._where, self._clock, migrate)
            if migrate == "auto":
                await keep_partitions(connection, self._where.schema)
            db = Statements(connection, statements_for(self._where.schema), self._clock)
            self._identity = await identity_of(db)
        finally:
            await disconnect(connection)

    async def close(self) -> None:
        self._refuse_fork()
        if self._session is not None:
            await self._session.notifier.close()
        session, self._session, self._opener = self._session, None, None
        if session is not None:
            await session.pools.close()

    async def now(self) -> int:
        row = await self.session().ask(lambda db: db.only_row("now"))
        now: int = row["now"]
        return now

    async def heartbeat_session(self) -> base.HeartbeatSession:
        session = self.session()
        sql = statements_for(self._where.schema)
        return node_intents.OwnHeartbeatSession(self._where, sql, self._clock, session.pools.renew)

    async def changed(self, app: str, timeout: float) -> base.News | None:
        session = self.session()
        if not self._where.listens:
            # Without wake-ups, something may have been written.
            await asyncio.sleep(min(timeout, POLL_SECONDS))
            return "anything"
        pool = await session.pools.here()
        if pool.listener is None:
            pool.listener = Listener(self._where.listening(), session.notifier.name)
        return await pool.listener.wait(app, timeout)

    async def _notify(self, statement: str, *values: str) -> None:
        if self._session is not None:
            await self._session.ask(lambda db: db.select(statement, *values))

    def within(self, connection: object) -> base.Within:
        session = self.session()
        assert self._identity is not None
        sql = statements_for(self._where.schema)
        return UserTransaction(connection, self._where, self._identity, sql, self._clock, session.notifier)

    def transaction(self, *, seconds: float, is_plain: bool) -> base.JobTransaction:
        session = self.session()
        about = (self._where, statements_for(self._where.schema), self._clock, session.notifier)
        if is_plain:
            return PsycopgTransaction(*about, seconds=seconds, psycopg=load_psycopg(self.description))
        return AsyncpgTransaction(*about, seconds=seconds)

    def maintenance(self) -> base.Maintenance:
        return SchemaMaintenance(self._where, self._clock)

    # --- schedules

    due_schedules = _ask(schedule_intents.due_schedules)
    stored_schedules = _ask(schedule_intents.stored_schedules)
    declared_schedules = _ask(schedule_intents.declared_schedules)
    fingerprints = _ask(schedule_intents.fingerprints)
    computed_with = _ask(schedule_intents.computed_with)
    record_fires = _with_session(fires.record_fires)
    change_schedules = _with_session(schedule_intents.change_schedules)
    schedules = _read(schedule_intents.schedules)
    failing = _ask(schedule_intents.failing)
    calendars = _ask(schedule_intents.calendars)
    calendar_users = _ask(schedule_intents.calendar_users)
    put_calendar = _write(schedule_intents.put_calendar)
    remove_calendar = _ask(schedule_intents.remove_calendar)

    # --- runs

    enqueue = _with_session(run_intents.enqueue)
    claim = _with_session(run_intents.claim)
    finish = _with_session(endings.finish)
    apply_reports = _with_session(dispatched.apply_reports)
    check_dispatched = _write(dispatched.check_dispatched)
    owned = _ask(run_intents.owned)
    cancel = _write(run_intents.cancel)
    note = _with_session(run_intents.note)
    runs = _read(run_intents.read_runs)
    recorded_moments = _ask(run_intents.recorded_moments)
    gaps = _ask(run_intents.gaps)
    attempts = _ask(run_intents.attempts)
    log = _ask(run_intents.log)

    # --- messages

    send = _write(outbox.send)
    claim_messages = _with_session(outbox.claim_messages)
    settle_messages = _write(outbox.settle_messages)
    messages = _ask(outbox.messages)
    channels = _ask(outbox.channels)
    retry_messages = _write(outbox.retry_messages)
    hasten_messages = _write(outbox.hasten_messages)
    drop_messages = _write(dispatched.drop_messages)

    # --- nodes and duties

    leave = _write(node_intents.leave)
    judge = _write(node_intents.judge)
    rehome = _write(node_intents.rehome)
    nodes = _ask(node_intents.nodes)
    tick_duty = _ask(node_intents.tick_duty)
    resign_duties = _write(node_intents.resign_duties)
    duties = _ask(node_intents.duties)
    _named_duties = _ask(node_intents.named_duties)
    _take_duties = _write(node_intents.hold_duties)

    async def join(self, node: base.NodeJoin) -> int:
        session = self.session()
        # So that the node's first run does not wait for query plans. The node counts its lease from before this.
        seconds = min(_WARM_SECONDS, node.lease / 1e6 * _WARM_SHARE)
        await session.warm_up(lambda db: run_intents.rehearse(db, node.app), seconds)
        return await session.write(lambda db: node_intents.join(db, node))

    # --- feed

    feed = _with_session(feed_intents.feed)
    feed_state = _ask(feed_intents.feed_state)
    keep_feed = _ask(feed_intents.keep_feed)

    # --- upkeep

    pulse = _ask(upkeep.pulse)
    apps = _ask(upkeep.apps)
    _find_mistimed = _read(upkeep.find_mistimed)
    _mend_mistimed = _write(upkeep.mend_mistimed)

    async def park_unknown(self, app: str, limit: int) -> int:
        session = self.session()
        await self._keep_partitions(session)
        return await session.write(lambda db: upkeep.park_unknown(db, app, limit, self._limits_cursor))

    async def prune(self, app: str, *, before: int, keep_per_schedule: int | None, limit: int) -> int:
        session = self.session()
        await self._keep_partitions(session)
        await session.borrow(lambda connection: drop_days(connection, self._where.schema, app, before))
        keep, cursor = keep_per_schedule, self._prune_cursor
        return await session.write(lambda db: upkeep.prune(db, app, before, keep, limit, cursor))

    async def _keep_partitions(self, session: StoreSession) -> None:
        now = self._clock.now_us()
        if self._partitions_at is not None and 0 <= now - self._partitions_at < _PARTITIONS_EVERY:
            return
        self._partitions_at = now

        async def keep(connection: Connection) -> None:
            await keep_partitions(connection, self._where.schema)

        await session.borrow(keep)
