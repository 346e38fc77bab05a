"""Wake-ups: NOTIFY after the commit that made something due, LISTEN on a connection of its own.

A hint, never relied on: a node that misses one finds runs at the next poll, and a schedule that was changed at its next
look from the very first (engine/fire.py). At most a hundred a second are sent by one store object; the last of
a burst is always sent, a little later.

Not inside of the transaction: those that notify are committed one after the other by the server, and would wait for
each other's disk; one that does nothing else waits for no disk. A single run that is enqueued is the exception, because
its start is waited for, which a statement for the wake-up would put off. So it is sent with the commit while
such commits are quick; where they are not, the disk is slow or many are at it, and for a while all are sent afterwards.

A wake-up has its sender, the kind of news, and the app: all apps of a schema share a channel, and wake only
their own; and for a run that waits to be claimed no node looks at schedules.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import NamedTuple

from evertick.clock import Clock
from evertick.errors import StoreError
from evertick.store.base import News
from evertick.store.postgres.connection import (
    CLOSE_SECONDS,
    Connection,
    QueryConnection,
    add_news,
    connect,
    disconnect,
    translated,
)
from evertick.store.postgres.location import Location

__all__ = ["EVERY_APP", "POLL_SECONDS", "Listener", "Notifier", "channel_of"]

log = logging.getLogger("evertick.store")

# In the place of an app, where the news may be of any.
EVERY_APP = ""
_NOTIFY = "SELECT pg_notify($1, $2)"
_INTERVAL_SECONDS = 0.01
# Statements that notify with their commit and take longer stood in line, or have a slow disk. After so many in a row
# none does for a while; a single one may be the first of its connection, or have met a checkpoint.
_SLOW_SECONDS, _SLOW_MOST, _APART_SECONDS = 0.01, 3, 10.0
# The sender in transactions of users and jobs: no store's own name, so that the node of this very store gets it, too.
# Only their commit makes the work due, and nothing else tells when that was.
_FOR_ALL = "all"
# How soon a lost connection is opened again.
_AGAIN_SECONDS = 1.0
# A silent connection looks like a broken one; so it is tried now and then.
_PROBE = "SELECT 1"
_PROBE_SECONDS = 30.0
_CHANNEL_LONGEST = 63
# How often to look where no wake-up can come.
POLL_SECONDS = 1.0


def channel_of(schema: str) -> str:
    channel = f"evertick:{schema}"
    if len(channel.encode()) <= _CHANNEL_LONGEST:
        return channel
    return f"evertick:{blake2b(schema.encode(), digest_size=16).hexdigest()}"


class CommitNotice(NamedTuple):
    """A wake-up that a statement sends with its commit, and when."""

    channel: str
    words: str
    since: float


class Notifier:
    """Wakes the others. `name` tells our own wake-ups from theirs."""

    def __init__(self, channel: str, clock: Clock, send: Callable[[str, str, str], Awaitable[None]]) -> None:
        self._channel = channel
        self._clock = clock
        self._send = send
        self.name = clock.new_token()
        self._notified_at = -_INTERVAL_SECONDS
        # How many that notified with their commit were slow, in a row; until when none does.
        self._slow = 0
        self._apart_until = -_APART_SECONDS
        # By app, what was committed too soon after the last ring.
        self._pending: dict[str, News] = {}
        self._later: asyncio.Task[None] | None = None

    def with_commit(self, app: str, what: News) -> CommitNotice | None:
        """For a statement that is about to be sent, if it may notify by itself. None: ring after it.

        A notice that is never committed delays only those that come in the next moment, a little.
        """
        now = self._clock.elapsed()
        if self._wait() > 0 or self._pending or now < self._apart_until:
            return None
        self._notified_at = now
        return CommitNotice(self._channel, _payload(self.name, what, app), now)

    def note_commit(self, notice: CommitNotice) -> None:
        """The wake-up with a commit was sent. Others may have been sent meanwhile: each is timed by itself."""
        now = self._clock.elapsed()
        self._slow = self._slow + 1 if now - notice.since > _SLOW_SECONDS else 0
        if self._slow >= _SLOW_MOST:
            self._slow, self._apart_until = 0, now + _APART_SECONDS

    async def notify(self, connection: Connection, news: Mapping[str, News]) -> None:
        """After a commit, on its connection. Not before: who is woken looks once, and would find nothing."""
        if not news:
            return
        if self._wait() > 0:
            self._notify_later(news)
            return
        self._notified_at = self._clock.elapsed()
        sending = dict(news)
        for app in news:
            if app in self._pending:  # sent by this
                add_news(sending, app, self._pending.pop(app))
        try:
            for app, what in sending.items():
                await connection.execute(_NOTIFY, self._channel, _payload(self.name, what, app))
        except Exception:
            # The commit stands, whatever comes of the hint.
            self._notify_later(sending)

    def _notify_later(self, news: Mapping[str, News]) -> None:
        for app, what in news.items():
            add_news(self._pending, app, what)
        if self._later is None or self._later.done():
            self._later = asyncio.get_running_loop().create_task(self._send_pending_later(), name="evertick wake-up")

    async def notify_in(self, connection: QueryConnection, news: Mapping[str, News]) -> None:
        """Inside a transaction of a user or a job, which may be committed at any time: now or never, and to all."""
        for app, what in news.items():
            await connection.execute(_NOTIFY, self._channel, _payload(_FOR_ALL, what, app))

    async def close(self) -> None:
        """Send pending wake-ups now: a node that leaves hands its work over by them."""
        later, self._later = self._later, None
        if later is None or later.done() or later.get_loop() is not asyncio.get_running_loop():
            return
        later.cancel()
        with suppress(asyncio.CancelledError):
            await later
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._send_pending()

    async def _send_pending_later(self) -> None:
        # Commits while it waits are covered by the next wake-up; while it sends, by the one after that.
        while self._pending:
            await asyncio.sleep(self._wait())
            self._notified_at = self._clock.elapsed()
            await self._send_pending()

    async def _send_pending(self) -> None:
        sending, self._pending = self._pending, {}
        try:
            with suppress(StoreError):
                for app, what in sending.items():
                    await self._send(_NOTIFY, self._channel, _payload(self.name, what, app))
        except asyncio.CancelledError:
            for app, what in sending.items():
                add_news(self._pending, app, what)  # sent when the store is closed
            raise

    def _wait(self) -> float:
        return max(self._notified_at + _INTERVAL_SECONDS - self._clock.elapsed(), 0.0)


class Listener:
    """Listens for the wake-ups of others, on one event loop."""

    def __init__(self, where: Location, own_name: str) -> None:
        self._where = where
        self._channel = channel_of(where.schema)
        self._own_name = own_name
        # By app, of those that were waited for; and the news since.
        self._events: dict[str, asyncio.Event] = {}
        self._news: dict[str, News] = {}
        self._is_connected = False
        # Whether it was logged that there is none.
        self._is_reported = False
        self._listening: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()

    async def wait(self, app: str, timeout: float) -> News | None:
        """News of an app: a wake-up came, or none could have been received."""
        if self._listening is None:
            self._listening = asyncio.get_running_loop().create_task(self._listen(), name="evertick wake-ups")
        event = self._event_of(app)
        try:
            async with asyncio.timeout(timeout if self._is_connected else min(timeout, POLL_SECONDS)):
                await event.wait()
        except TimeoutError:
            return None if self._is_connected else "anything"
        event.clear()
        # Of several that wait together, the others do not know the news.
        return self._news.pop(app, "anything")

    def _event_of(self, app: str) -> asyncio.Event:
        event = self._events.get(app)
        if event is None:
            event = self._events[app] = asyncio.Event()
            if self._is_connected:
                event.set()  # earlier wake-ups of it were not kept
        return event

    def renew(self) -> None:
        """The connection may be broken: another one is opened."""
        self._lost.set()

    async def close(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening

    async def _listen(self) -> None:
        while True:
            try:
                with translated(self._where):
                    await self._listen_once()
            except Exception as error:
                # Whatever it is (a certificate that is being replaced), it may pass; and there is no other listener.
                level = logging.INFO if isinstance(error, StoreError) else logging.WARNING
                log.log(logging.DEBUG if self._is_reported else level, "no wake-ups for now: %s", error)
                self._is_reported = True
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _listen_once(self) -> None:
        """Until the connection is lost."""
        connection = await connect(self._where)
        lost = self._lost = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: lost.set())
            await connection.add_listener(self._channel, self._on_notify)
            self._is_connected = True
            if self._is_reported:
                log.info("wake-ups are heard again")
                self._is_reported = False
            # All wake-ups before the connection were missed.
            self._wake_all()
            await self._until_lost(connection, lost)
        finally:
            # All that wait must look by themselves from now on.
            self._is_connected = False
            self._wake_all()
            await disconnect(connection)

    async def _until_lost(self, connection: Connection, lost: asyncio.Event) -> None:
        while not lost.is_set():
            try:
                async with asyncio.timeout(_PROBE_SECONDS):
                    await lost.wait()
            except TimeoutError:
                async with asyncio.timeout(self._where.timeout):
                    await connection.execute(_PROBE)

    def _on_notify(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        name, _, rest = payload.partition(" ")
        what, _, app = rest.partition(" ")
        if name == self._own_name:
            return
        if app == EVERY_APP:
            self._wake_all()
        elif app in self._events:
            add_news(self._news, app, "runs" if what == "runs" else "anything")
            self._events[app].set()

    def _wake_all(self) -> None:
        for app, event in self._events.items():
            add_news(self._news, app, "anything")
            event.set()


def _payload(name: str, what: News, app: str) -> str:
    return f"{name} {what} {app}"
