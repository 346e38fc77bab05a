"""Wake-ups: NOTIFY after the commit that made something due, LISTEN on a connection of its own.

Only a hint: a node that misses one finds runs at its next poll, and a changed schedule at its next full scan
(engine/fire.py). A store object sends at most a hundred per second; the last one of a burst is always sent, a little
later.

Not inside the transaction: the server commits transactions with NOTIFY one after the other, so they would wait for each
other's disk sync, while a transaction with NOTIFY only waits for none. The exception is a single enqueued run, whose
start would be delayed by a second statement. Its wake-up is sent with the commit while such commits are fast. If they
are slow (slow disk, or many senders), all wake-ups are sent after the commit for a while.

A wake-up names its sender, the kind of news, and the app. All apps of a schema share a channel, but only nodes of that
app react; and news of runs to claim does not make a node read its schedules.
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

# In place of an app: the news may be of any app.
EVERY_APP = ""
_NOTIFY = "SELECT pg_notify($1, $2)"
_INTERVAL_SECONDS = 0.01
# A statement with NOTIFY that takes longer waited in line, or has a slow disk. After this many in a row, wake-ups are
# sent after the commit for a while; a single slow one may be the first of its connection, or have met a checkpoint.
_SLOW_SECONDS, _SLOW_MOST, _APART_SECONDS = 0.01, 3, 10.0
# The sender in transactions of users and jobs. Not the store's name, because the node of this store must receive it
# too: only the user's commit makes the work due, and nothing else reports when that was.
_FOR_ALL = "all"
# Pause before a lost connection is opened again.
_AGAIN_SECONDS = 1.0
# A silent connection looks like a broken one, so it is tested at intervals.
_PROBE = "SELECT 1"
_PROBE_SECONDS = 30.0
_CHANNEL_LONGEST = 63
# Poll interval without wake-ups.
POLL_SECONDS = 1.0


def channel_of(schema: str) -> str:
    channel = f"evertick:{schema}"
    if len(channel.encode()) <= _CHANNEL_LONGEST:
        return channel
    return f"evertick:{blake2b(schema.encode(), digest_size=16).hexdigest()}"


class CommitNotice(NamedTuple):
    """A wake-up that a statement sends with its commit, and the time of sending."""

    channel: str
    words: str
    since: float


class Notifier:
    """Sends wake-ups. `name` identifies those of this store."""

    def __init__(self, channel: str, clock: Clock, send: Callable[[str, str, str], Awaitable[None]]) -> None:
        self._channel = channel
        self._clock = clock
        self._send = send
        self.name = clock.new_token()
        self._notified_at = -_INTERVAL_SECONDS
        # Number of slow commits with NOTIFY in a row, and until when wake-ups are sent after the commit.
        self._slow = 0
        self._apart_until = -_APART_SECONDS
        # By app, news that came too soon after the last wake-up.
        self._pending: dict[str, News] = {}
        self._later: asyncio.Task[None] | None = None

    def with_commit(self, app: str, what: News) -> CommitNotice | None:
        """A wake-up for a statement to send itself, if it may. None: send it after the statement.

        A notice that is never committed only delays the wake-ups of the next moment a little.
        """
        now = self._clock.elapsed()
        if self._wait() > 0 or self._pending or now < self._apart_until:
            return None
        self._notified_at = now
        return CommitNotice(self._channel, _payload(self.name, what, app), now)

    def note_commit(self, notice: CommitNotice) -> None:
        """A statement with a wake-up was committed. Each is timed by itself, because others may be sent meanwhile."""
        now = self._clock.elapsed()
        self._slow = self._slow + 1 if now - notice.since > _SLOW_SECONDS else 0
        if self._slow >= _SLOW_MOST:
            self._slow, self._apart_until = 0, now + _APART_SECONDS

    async def notify(self, connection: Connection, news: Mapping[str, News]) -> None:
        """After a commit, on its connection. Not before: a node that is woken looks once, and would find nothing."""
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
            # The commit is done; the hint is sent later.
            self._notify_later(sending)

    def _notify_later(self, news: Mapping[str, News]) -> None:
        for app, what in news.items():
            add_news(self._pending, app, what)
        if self._later is None or self._later.done():
            self._later = asyncio.get_running_loop().create_task(self._send_pending_later(), name="evertick wake-up")

    async def notify_in(self, connection: QueryConnection, news: Mapping[str, News]) -> None:
        """Inside a transaction of a user or a job, which may be committed at any time: at once, and to all nodes."""
        for app, what in news.items():
            await connection.execute(_NOTIFY, self._channel, _payload(_FOR_ALL, what, app))

    async def close(self) -> None:
        """Send pending wake-ups now, because other nodes take over the work of a node that leaves."""
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
        # Commits during the wait are covered by the next wake-up; commits while sending, by the one after it.
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
    """Receives wake-ups of other stores, on one event loop."""

    def __init__(self, where: Location, own_name: str) -> None:
        self._where = where
        self._channel = channel_of(where.schema)
        self._own_name = own_name
        # By app that was waited for; and the news since.
        self._events: dict[str, asyncio.Event] = {}
        self._news: dict[str, News] = {}
        self._is_connected = False
        # Whether the loss of wake-ups was logged.
        self._is_reported = False
        self._listening: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()

    async def wait(self, app: str, timeout: float) -> News | None:
        """News of an app: a wake-up came, or could not have been received."""
        if self._listening is None:
            self._listening = asyncio.get_running_loop().create_task(self._listen(), name="evertick wake-ups")
        event = self._event_of(app)
        try:
            async with asyncio.timeout(timeout if self._is_connected else min(timeout, POLL_SECONDS)):
                await event.wait()
        except TimeoutError:
            return None if self._is_connected else "anything"
        event.clear()
        # Of several waiters only the first gets the news.
        return self._news.pop(app, "anything")

    def _event_of(self, app: str) -> asyncio.Event:
        event = self._events.get(app)
        if event is None:
            event = self._events[app] = asyncio.Event()
            if self._is_connected:
                event.set()  # earlier wake-ups of this app were ignored
        return event

    def renew(self) -> None:
        """The connection may be broken: open another one."""
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
                # Any error may pass (a certificate that is being replaced), and there is no other listener.
                level = logging.INFO if isinstance(error, StoreError) else logging.WARNING
                log.log(logging.DEBUG if self._is_reported else level, "wake-ups are not received: %s", error)
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
                log.info("wake-ups are received again")
                self._is_reported = False
            # Wake-ups before the connection were missed.
            self._wake_all()
            await self._until_lost(connection, lost)
        finally:
            # Without wake-ups all waiters must look for themselves.
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
