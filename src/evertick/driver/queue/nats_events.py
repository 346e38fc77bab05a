"""Events of runs, published on NATS for others: in each app one subject for each verdict and kind of event.

One node does it at a time, from the feed of the app. Every message carries the cursor of its event, and publishing goes
on behind the last message of the stream: the cursor and the published events cannot come apart. Messages go one after
the other for that reason. A node that died before it heard the server's answer had its message published; the next node
publishes it again under the same id, which the server knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from nats.js import JetStreamContext
from nats.js.api import Header
from nats.js.errors import NotFoundError

from evertick.driver.queue.contract import VERSION
from evertick.driver.queue.nats_client import NatsSession
from evertick.driver.queue.spec import NatsConnection
from evertick.errors import BrokerUnavailable, CursorGone, EvertickError
from evertick.model.feed import FeedEvent, FeedPage

__all__ = ["NatsEvents"]

log = logging.getLogger("evertick.nats")

_CURSOR_HEADER = "Evertick-Cursor"
_LOOK_SECONDS = 1.0
_AWAY_SECONDS = 5.0

# The events after a cursor; None: from the oldest that is kept.
ReadPage = Callable[[str | None, Sequence[str]], Awaitable[FeedPage]]


class NatsEvents:
    """Publishes the ends of the runs of one app, or what else the connection names."""

    def __init__(
        self, connection: NatsConnection, app: str, read_page: ReadPage, resolve_secret: Callable[[str], str]
    ) -> None:
        self._app = app
        self._kinds = connection.event_kinds
        self._read_page = read_page
        self._session = NatsSession(connection, resolve_secret)
        # The last error, logged once, until it works again.
        self._last_error = ""

    async def run(self) -> None:
        """Endless; the duty that runs it cancels it."""
        try:
            while True:
                try:
                    await self._publish_on()
                except EvertickError as error:
                    self._log_once(error)
                    await asyncio.sleep(_AWAY_SECONDS)
        finally:
            await self._session.close()

    async def _publish_on(self) -> None:
        cursor = await self._last_cursor()
        while True:
            page = await self._page_after(cursor)
            for event in page.events:
                await self._publish(event)
            self._last_error = ""
            cursor = page.cursor
            if page.is_end:
                await asyncio.sleep(_LOOK_SECONDS)

    async def _page_after(self, cursor: str | None) -> FeedPage:
        try:
            return await self._read_page(cursor, self._kinds)
        except CursorGone as gone:
            log.warning("events of app %r are missing on NATS: %s", self._app, gone)
            return await self._read_page(gone.oldest, self._kinds)

    async def _last_cursor(self) -> str | None:
        """Of the last event that any node has published."""
        names = self._session.names

        async def last(stream: JetStreamContext) -> str | None:
            try:
                message = await stream.get_last_msg(names.events_stream, names.any_event(self._app))
            except NotFoundError:
                return None
            return (message.headers or {}).get(_CURSOR_HEADER)

        return await self._session.ask(last)

    async def _publish(self, event: FeedEvent) -> None:
        subject = self._session.names.event(self._app, _word(event))
        headers = {Header.MSG_ID.value: f"{self._app}:{event.cursor}", _CURSOR_HEADER: event.cursor}
        await self._session.ask(lambda stream: stream.publish(subject, _body(event), headers=headers))

    def _log_once(self, error: EvertickError) -> None:
        if str(error) != self._last_error:
            self._last_error = str(error)
            level = logging.WARNING if isinstance(error, BrokerUnavailable) else logging.ERROR
            log.log(level, "events of app %r are not published for now: %s", self._app, error)


def _word(event: FeedEvent) -> str:
    """An end goes by its verdict, everything else by its kind; no kind is called like a verdict."""
    return event.verdict or "unknown" if event.kind == "run.finished" else event.kind.removeprefix("run.")


def _body(event: FeedEvent) -> bytes:
    fields: dict[str, Any] = msgspec.to_builtins(event)
    return msgspec.json.encode({"v": VERSION, **{name: value for name, value in fields.items() if value is not None}})
