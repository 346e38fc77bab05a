"""What becomes of runs, published on NATS for others: in each app one subject for each verdict and kind of event.

One node does it at a time, from the feed of the app. Where to go on after a stop is not kept here: every message has
the cursor of its event with it, so the last one in the stream says it, and what was published and what is remembered
cannot come apart. Messages go one after the other for that reason. One that was published by a node that died before it
heard so is published again under the same id, which the server knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import Header
from nats.js.errors import NotFoundError

from evertick.driver.queue.contract import VERSION
from evertick.driver.queue.nats_client import NatsSession
from evertick.driver.queue.nats_spec import NatsConnection
from evertick.errors import BrokerUnavailable, CursorGone, EvertickError
from evertick.model.feed import FeedEvent, FeedPage

__all__ = ["CURSOR_HEADER", "NatsEvents"]

log = logging.getLogger("evertick.nats")

CURSOR_HEADER = "Evertick-Cursor"
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
        self._session = NatsSession(connection, resolve_secret, _no_subscriptions)
        # Told once, until it works again.
        self._trouble = ""

    async def run(self) -> None:
        """Go on for ever; whoever holds this as a duty cancels it."""
        try:
            while True:
                try:
                    await self._publish_on()
                except EvertickError as error:
                    self._tell(error)
                    await asyncio.sleep(_AWAY_SECONDS)
        finally:
            await self._session.close()

    async def _publish_on(self) -> None:
        cursor = await self._last_cursor()
        while True:
            page = await self._page_after(cursor)
            for event in page.events:
                await self._publish(event)
            self._trouble = ""
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
        """Of the last event that was published, by whichever node."""
        names = self._session.names
        with self._session.telling():
            stream = await self._session.opened()
            try:
                last = await self._session.asked(stream.get_last_msg(names.events_stream, names.any_event(self._app)))
            except NotFoundError:
                return None
        return (last.headers or {}).get(CURSOR_HEADER)

    async def _publish(self, event: FeedEvent) -> None:
        subject = self._session.names.event(self._app, _word(event))
        headers = {Header.MSG_ID.value: f"{self._app}:{event.cursor}", CURSOR_HEADER: event.cursor}
        with self._session.telling():
            stream = await self._session.opened()
            await self._session.asked(stream.publish(subject, _body(event), headers=headers))

    def _tell(self, error: EvertickError) -> None:
        if str(error) != self._trouble:
            self._trouble = str(error)
            level = logging.WARNING if isinstance(error, BrokerUnavailable) else logging.ERROR
            log.log(level, "events of app %r are not published for now: %s", self._app, error)


def _word(event: FeedEvent) -> str:
    """An end goes by its verdict, everything else by its kind; no kind is called like a verdict."""
    return event.verdict or "unknown" if event.kind == "run.finished" else event.kind.removeprefix("run.")


def _body(event: FeedEvent) -> bytes:
    fields: dict[str, Any] = msgspec.to_builtins(event)
    return msgspec.json.encode({"v": VERSION, **{name: value for name, value in fields.items() if value is not None}})


async def _no_subscriptions(_: Client, __: JetStreamContext) -> None:
    """Nothing is listened to."""
