"""The feed of an app: stored in the ledger, and read from a cursor."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from evertick.clock import system_clock
from evertick.definition.settings import check_feed, check_key
from evertick.errors import InvalidInput, Refused, StoreUnavailable
from evertick.model.feed import FEED_KINDS, Cursor, FeedEvent, FeedPage, cursor_of, events_of
from evertick.operations.context import Context, ContextSource, check_limit, checked
from evertick.store.base import FeedRead, FeedState
from evertick.text.log_level import LogSummary, such_as
from evertick.text.values import shown
from evertick.when.duration import Duration, duration_us
from evertick.when.moment import MILLISECOND, to_us

__all__ = ["feed", "feed_cursor", "feed_page", "feed_state", "keep_feed"]

log = logging.getLogger("evertick.feed")

# A row has a few hundred events at most, so these rows have a few megabytes.
_ROWS_MOST = 50
_POLL_LEAST = 10 * MILLISECOND
_PAGE = 1_000


def _check_retention(kept: Duration | None) -> None:
    if kept is not None:
        check_feed(kept)


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    since: int | None
    kinds: tuple[str, ...] | None
    schedule: str | None
    limit: int

    def has(self, event: FeedEvent) -> bool:
        return self.schedule is None or event.schedule_key == self.schedule


@checked(kept=_check_retention)
async def keep_feed(context: Context, kept: Duration | None) -> None:
    """Turn the feed of this app on, and keep its events for this long; None turns it off."""
    await context.store.keep_feed(context.app, None if kept is None else check_feed(kept))


async def feed_state(context: Context) -> FeedState | None:
    """How long events are kept, and whether an open transaction delays them; None if the feed is off."""
    return await context.store.feed_state(context.app)


async def feed_cursor(context: Context) -> str:
    """The current end of the feed. Later events follow it."""
    read = await _read_feed(context, None, _wanted(None, None, None, 1), rows=0)
    return str(read.end)


async def feed_page(
    context: Context,
    after: str | None = None,
    *,
    since: datetime | None = None,
    kinds: Sequence[str] | None = None,
    schedule: str | None = None,
    limit: int = _PAGE,
) -> FeedPage:
    """The events after a cursor, at most `limit`; None: from the oldest event. Raises CursorGone.

    An empty page means the end of the feed. Continue with the cursor of the page, also then.
    """
    wanted = _wanted(since, kinds, schedule, limit)
    while True:
        page = await _page(context, after, wanted)
        if page.events or page.is_end:
            return page
        after = page.cursor


def feed(
    source: ContextSource,
    after: str | None = None,
    *,
    since: datetime | None = None,
    kinds: Sequence[str] | None = None,
    schedule: str | None = None,
    poll: Duration = "1s",
) -> AsyncIterator[FeedEvent]:
    """The events after a cursor, and new ones when they come: `async for event in scheduler.feed(cursor)`.

    Reads every `poll`, or sooner if the store signals a change. Waits while the store is unavailable.
    """
    _wanted(since, kinds, schedule, _PAGE)
    pause = duration_us(poll, what="poll")
    if pause < _POLL_LEAST:
        raise InvalidInput(
            f"poll: {shown(poll)} is too short",
            setting="poll",
            value=shown(poll),
            fix=f"pass {_POLL_LEAST // MILLISECOND}ms or more",
        )
    if after is not None:
        Cursor.parse(after)
    return _follow(source, after, since, kinds, schedule, pause / 1e6)


async def _follow(
    source: ContextSource,
    after: str | None,
    since: datetime | None,
    kinds: Sequence[str] | None,
    schedule: str | None,
    seconds: float,
) -> AsyncIterator[FeedEvent]:
    summary, is_unavailable = LogSummary(system_clock.elapsed), False
    try:
        while True:
            try:
                page = await feed_page(await source.context(), after, since=since, kinds=kinds, schedule=schedule)
            except StoreUnavailable as error:
                is_unavailable = True
                _log_unavailable(summary, error)
                await asyncio.sleep(seconds)
                continue
            if is_unavailable:
                is_unavailable = False
                summary.flush()
                log.info("feed: store available again")
            for event in page.events:
                yield event
            after = page.cursor
            if page.is_end:
                await _wait_for_more(source, seconds)
    finally:
        summary.flush()


def _log_unavailable(summary: LogSummary, error: StoreUnavailable) -> None:
    say = functools.partial(log.warning, "feed: store unavailable, retrying: %s", error)
    summary.tell("store", "", log, logging.WARNING, say, _unavailable_words, lines=1)


def _unavailable_words(count: int, names: list[str], seconds: float | None) -> str:
    return f"feed: store unavailable: {count} more {'try' if count == 1 else 'tries'} failed{such_as(names, seconds)}"


async def _wait_for_more(source: ContextSource, seconds: float) -> None:
    try:
        context = await source.context()
        if context.engine is None:
            await context.store.changed(context.app, seconds)
            return
    except StoreUnavailable:
        pass
    # The wake-ups of the store are for the engine, if there is one: received here, they would be late there.
    await asyncio.sleep(seconds)


async def _page(context: Context, after: str | None, wanted: _Wanted) -> FeedPage:
    rows = min(_ROWS_MOST, wanted.limit)
    read = await _read_feed(context, after, wanted, rows=rows)
    start = cursor_of(after, read.first, read.end, context.app)
    events: list[FeedEvent] = []
    for event in _events(context.app, read, start):
        if wanted.has(event):
            events.append(event)
        if len(events) == wanted.limit:
            return FeedPage(events=events, cursor=event.cursor, is_end=False)
    if len(read.rows) < rows:
        return FeedPage(events=events, cursor=str(max(start, read.end)), is_end=True)
    last = read.rows[-1]
    return FeedPage(events=events, cursor=str(Cursor(start.epoch, last.txid, last.seq + 1)), is_end=False)


def _events(app: str, read: FeedRead, start: Cursor) -> Iterator[FeedEvent]:
    for row in read.rows:
        # The cursor may point into a row.
        is_start = (row.txid, row.seq) == (start.txid, start.seq)
        place = start if is_start else Cursor(start.epoch, row.txid, row.seq)
        yield from events_of(app, place, row.at, row.kind, row.body)


async def _read_feed(context: Context, after: str | None, wanted: _Wanted, *, rows: int) -> FeedRead:
    start = None if after is None else Cursor.parse(after)
    read = await context.store.feed(context.app, start=start, since=wanted.since, kinds=wanted.kinds, limit=rows)
    if read is None:
        raise Refused(
            f"app {context.app!r} keeps no feed",
            setting="feed",
            value=context.app,
            fix="turn it on with Scheduler(feed='7d') or scheduler.keep_feed('7d')",
        )
    return read


def _wanted(since: Any, kinds: Any, schedule: Any, limit: Any) -> _Wanted:
    if since is not None and (not isinstance(since, datetime) or since.tzinfo is None):
        raise InvalidInput(
            f"since: {shown(since)} is not a datetime with a zone",
            setting="since",
            value=shown(since),
            fix="pass one, e.g. datetime.now(UTC)",
        )
    if isinstance(kinds, str):
        raise InvalidInput(
            f"kinds: {shown(kinds)} is one text",
            setting="kinds",
            value=shown(kinds),
            fix=f"pass a list, e.g. kinds=[{shown(kinds)}]",
        )
    for kind in kinds or ():
        if kind not in FEED_KINDS:
            raise InvalidInput(
                f"kinds: {shown(kind)} is not a kind of event",
                setting="kinds",
                value=shown(kind),
                fix=f"the kinds are {', '.join(FEED_KINDS)}",
            )
    return _Wanted(
        since=None if since is None else to_us(since),
        kinds=None if kinds is None else tuple(kinds),
        schedule=None if schedule is None else check_key(schedule, what="schedule"),
        limit=check_limit(limit),
    )
