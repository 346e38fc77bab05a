"""The feed of an app: kept by the store, read from a cursor on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from evertick.definition.settings import check_feed, check_key
from evertick.errors import InvalidInput, Refused, StoreUnavailable
from evertick.model.feed import FEED_KINDS, Cursor, FeedEvent, FeedPage, cursor_of, events_of
from evertick.operations.context import Context, ContextSource, check_limit, checked
from evertick.store.base import FeedRead, FeedState
from evertick.text.values import shown
from evertick.when.duration import Duration, duration_us
from evertick.when.moment import MILLISECOND, to_us

__all__ = ["feed", "feed_cursor", "feed_page", "feed_state", "keep_feed"]

log = logging.getLogger("evertick.feed")

# A row has some hundred events at most: so many rows are a few megabytes at the very worst.
_ROWS_MOST = 50
_POLL_LEAST = 10 * MILLISECOND
_PAGE = 1_000


def _check_kept(kept: Duration | None) -> None:
    if kept is not None:
        check_feed(kept)


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    since: int | None
    kinds: tuple[str, ...] | None
    schedule: str | None
    limit: int

    def has(self, event: FeedEvent) -> bool:
        return self.schedule is None or event.schedule_key == self.schedule


@checked(kept=_check_kept)
async def keep_feed(context: Context, kept: Duration | None) -> None:
    """Keep the events of this app for other programs from now on, for so long; None turns that off."""
    await context.store.keep_feed(context.app, None if kept is None else check_feed(kept))


async def feed_state(context: Context) -> FeedState | None:
    """How long events are kept, and whether an open transaction delays them; None without a feed."""
    return await context.store.feed_state(context.app)


async def feed_cursor(context: Context) -> str:
    """The end of the feed as it is now: what happens from here on follows it."""
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
    """The events after a cursor, at most `limit`; None: from the oldest that is kept. Raises CursorGone.

    None of them only at the end of the feed. The cursor of the page is where to go on, also then.
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
    """The events after a cursor and all that follow, as they come: `async for event in scheduler.feed(cursor)`.

    Looks for more every `poll`, sooner where the store tells of changes. Waits for a store that is away.
    """
    _wanted(since, kinds, schedule, _PAGE)
    pause = duration_us(poll, what="poll")
    if pause < _POLL_LEAST:
        raise InvalidInput(f"poll: {shown(poll)} is too often; look every {_POLL_LEAST // MILLISECOND}ms at most")
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
    while True:
        try:
            page = await feed_page(await source.context(), after, since=since, kinds=kinds, schedule=schedule)
        except StoreUnavailable as error:
            log.warning("the feed waits for the store: %s", error)
            await asyncio.sleep(seconds)
            continue
        for event in page.events:
            yield event
        after = page.cursor
        if page.is_end:
            await _wait_for_more(source, seconds)


async def _wait_for_more(source: ContextSource, seconds: float) -> None:
    try:
        context = await source.context()
        if context.engine is None:
            await context.store.changed(context.app, seconds)
            return
    except StoreUnavailable:
        pass
    # Where an engine runs, wake-ups of the store are the engine's: heard here, they would be late there.
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
        # The row that the cursor points into is read from there on.
        is_begun = (row.txid, row.seq) == (start.txid, start.seq)
        place = start if is_begun else Cursor(start.epoch, row.txid, row.seq)
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
        raise InvalidInput(f"since: {shown(since)} is no datetime with a zone; pass one, e.g. datetime.now(UTC)")
    if isinstance(kinds, str):
        raise InvalidInput(f"kinds: {shown(kinds)} is one text; pass a list, e.g. kinds=[{shown(kinds)}]")
    for kind in kinds or ():
        if kind not in FEED_KINDS:
            raise InvalidInput(f"kinds: {shown(kind)} is no kind of event; there are {', '.join(FEED_KINDS)}")
    return _Wanted(
        since=None if since is None else to_us(since),
        kinds=None if kinds is None else tuple(kinds),
        schedule=None if schedule is None else check_key(schedule, what="schedule"),
        limit=check_limit(limit),
    )
