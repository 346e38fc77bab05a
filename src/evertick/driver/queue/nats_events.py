"""Publishes events of runs on NATS: each app has a subject for each verdict and kind of event.

One node at a time publishes the feed of the app. Each message carries the cursor of its event, and a node continues
after the last message of the stream, so the cursor always matches the published events. Messages are therefore sent one
by one. If a node dies before the server's answer, the next node publishes the message again, and the server drops it by
its id.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from nats.js import JetStreamContext
from nats.js.api import Header
from nats.js.errors import NotFoundError

from evertick.clock import system_clock
from evertick.driver.queue.contract import VERSION
from evertick.driver.queue.nats_client import NatsSession
from evertick.driver.queue.spec import NatsConnection
from evertick.errors import BrokerUnavailable, CursorGone, EvertickError
from evertick.model.feed import FeedEvent, FeedPage
from evertick.text.log_level import LogSummary, such_as

__all__ = ["NatsEvents"]

log = logging.getLogger("evertick.nats")

_CURSOR_HEADER = "Evertick-Cursor"
_POLL_SECONDS = 1.0
_RETRY_SECONDS = 5.0

# Reads the events after a cursor; None: from the oldest.
ReadPage = Callable[[str | None, Sequence[str]], Awaitable[FeedPage]]


class NatsEvents:
    """Publishes the ends of the runs of one app, or the kinds of events that the connection names."""

    def __init__(
        self, connection: NatsConnection, app: str, read_page: ReadPage, resolve_secret: Callable[[str], str]
    ) -> None:
        self._app = app
        self._kinds = connection.event_kinds
        self._read_page = read_page
        self._session = NatsSession(connection, resolve_secret)
        self._summary = LogSummary(system_clock.elapsed)
        self._is_failing = False

    async def run(self) -> None:
        """Runs until the duty cancels it."""
        try:
            while True:
                try:
                    await self._publish_all()
                except EvertickError as error:
                    self._log_failure(error)
                    await asyncio.sleep(_RETRY_SECONDS)
        finally:
            self._summary.flush()
            await self._session.close()

    async def _publish_all(self) -> None:
        cursor = await self._last_cursor()
        while True:
            page = await self._page_after(cursor)
            for event in page.events:
                await self._publish(event)
            if self._is_failing:
                self._is_failing = False
                log.info("app %r: run events are published on NATS again", self._app)
            cursor = page.cursor
            if page.is_end:
                await asyncio.sleep(_POLL_SECONDS)

    async def _page_after(self, cursor: str | None) -> FeedPage:
        try:
            return await self._read_page(cursor, self._kinds)
        except CursorGone as error:
            log.warning("app %r: some run events were not published on NATS: %s", self._app, error)
            return await self._read_page(error.oldest, self._kinds)

    async def _last_cursor(self) -> str | None:
        """The cursor of the last event that any node has published."""
        names = self._session.names

        async def last(stream: JetStreamContext) -> str | None:
            try:
                message = await stream.get_last_msg(names.events_stream, names.all_events_subject(self._app))
            except NotFoundError:
                return None
            return (message.headers or {}).get(_CURSOR_HEADER)

        return await self._session.ask(last)

    async def _publish(self, event: FeedEvent) -> None:
        subject = self._session.names.event(self._app, _word(event))
        headers = {Header.MSG_ID.value: f"{self._app}:{event.cursor}", _CURSOR_HEADER: event.cursor}
        await self._session.ask(lambda stream: stream.publish(subject, _body(event), headers=headers))

    def _log_failure(self, error: EvertickError) -> None:
        self._is_failing = True
        level = logging.WARNING if isinstance(error, BrokerUnavailable) else logging.ERROR
        words = "app %r: run events are not published on NATS: %s; retrying every %.0f s"
        say = functools.partial(log.log, level, words, self._app, error, _RETRY_SECONDS)
        self._summary.tell("failing", "", log, level, say, _failures, about=str(error), lines=1)


def _failures(count: int, errors: list[str], seconds: float | None) -> str:
    return f"run events could not be published on NATS {count} more times{such_as(errors, seconds)}"


def _word(event: FeedEvent) -> str:
    """The verdict of an ended run, or the kind of any other event. No kind has the name of a verdict."""
    return event.verdict or "unknown" if event.kind == "run.finished" else event.kind.removeprefix("run.")


def _body(event: FeedEvent) -> bytes:
    fields: dict[str, Any] = msgspec.to_builtins(event)
    return msgspec.json.encode({"v": VERSION, **{name: value for name, value in fields.items() if value is not None}})
