"""Findings about the database, the outbox, the feed, and the apps of the database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime, timedelta

from evertick.doctor.finding import Finding, Severity, counted, named
from evertick.doctor.thresholds import (
    CHECK_SECONDS,
    DISK_LEAST,
    DISK_LOW,
    FEED_HELD,
    FREE_PAGES,
    FREE_SHARE,
    MEBI,
    WAL_LARGE,
    Thresholds,
)
from evertick.model import Node
from evertick.store.base import ChannelPulse, FeedState, Maintenance, StoreStatus
from evertick.text.time_span import span
from evertick.when import from_us
from evertick.when.moment import SECOND

__all__ = ["about_database", "about_empty_app", "about_feed", "about_outbox", "apps_words", "held_words"]


async def about_database(care: Maintenance) -> AsyncIterator[Finding]:
    status = await care.status()
    for finding in _about_status(status):
        yield finding
    checked = await care.check(is_quick=True, seconds_most=CHECK_SECONDS)
    for problem in checked.problems:
        # A problem may end with its fix, after a semicolon.
        what, _, fix = problem.partition("; ")
        yield Finding(
            severity=Severity.ERROR,
            check="integrity",
            what=what if status.description in what else f"{status.description}: {what}",
            fix=fix or "stop the nodes, keep a copy of the file, and restore it from a backup",
        )
    if not checked.is_complete:
        yield Finding(
            severity=Severity.NOTE,
            check="integrity",
            what=f"{status.description} is too large for a check in {CHECK_SECONDS:.0f} s",
            fix="run the whole check with `evertick db check`",
        )


def _about_status(status: StoreStatus) -> Iterator[Finding]:
    where = status.description
    if status.is_on_network:
        yield Finding(
            severity=Severity.ERROR,
            check="network_file_system",
            what=f"{where} is on a network file system ({status.file_system}), where SQLite's locks do not work",
            fix="move the file to a local disk",
        )
    if status.disk_free_bytes is not None and status.disk_free_bytes < DISK_LOW:
        is_least = status.disk_free_bytes < DISK_LEAST
        yield Finding(
            severity=Severity.ERROR if is_least else Severity.WARNING,
            check="disk_space",
            what=f"the disk of {where} has {status.disk_free_bytes / MEBI:.0f} MiB left",
            fix="free some space; a shorter retention= keeps less history",
        )
    if status.journal_mode not in (None, "wal"):
        yield Finding(
            severity=Severity.WARNING,
            check="journal_mode",
            what=f"{where} has journal mode {status.journal_mode!r}, so readers and writers wait for each other",
            fix="start a node, which turns WAL on; if it is off again later, another program changes it",
        )
    if (status.wal_bytes or 0) > WAL_LARGE:
        yield Finding(
            severity=Severity.WARNING,
            check="wal_size",
            what=f"the write-ahead log of {where} has {(status.wal_bytes or 0) / MEBI:.0f} MiB",
            fix="find the program with an open read transaction; the log shrinks when that ends",
        )
    yield from _about_free_pages(status)


def _about_free_pages(status: StoreStatus) -> Iterator[Finding]:
    free, pages = status.free_pages or 0, status.pages or 0
    if free < FREE_PAGES or free < FREE_SHARE * pages:
        return
    how = "evertick db vacuum --full" if status.vacuum == "none" else "evertick db vacuum"
    yield Finding(
        severity=Severity.NOTE,
        check="free_pages",
        what=f"{free / pages:.0%} of {status.description} is free space",
        fix=f"new rows will use it; `{how}` returns it to the disk",
    )


# --- outbox and feed -------------------------------------------------------------------------------------------------


def about_outbox(
    channels: Sequence[ChannelPulse], living: Sequence[Node], now: datetime, thresholds: Thresholds
) -> Iterator[Finding]:
    sent = {channel for node in living for channel in node.channels}
    for pulse in channels:
        late, failing = _since(pulse.oldest_due_at, now), _since(pulse.oldest_failing_at, now)
        # The next try of a failing message is always in the future, so it is never late.
        if (severity := thresholds.of_lag(failing)) is not None:
            yield Finding(
                severity=severity,
                check="messages_failing",
                what=f"channel {pulse.channel}: the oldest message has failed for {span(failing)}",
                fix=f"`evertick outbox list --channel {pulse.channel}` has the errors; messages are sent when the "
                "receiver is back, and none is lost",
                about=(pulse.channel,),
            )
        if (severity := thresholds.of_lag(late)) is not None:
            yield _unsent(pulse, severity, late) if pulse.channel not in sent else _late(pulse, severity, late)
        if pulse.dead:
            yield _dead(pulse)


def _since(us: int | None, now: datetime) -> timedelta:
    """The time since then; zero for a future time."""
    return timedelta(0) if us is None else max(now - from_us(us), timedelta(0))


def _unsent(pulse: ChannelPulse, severity: Severity, late: timedelta) -> Finding:
    waits = "waits" if pulse.waiting == 1 else "wait"
    return Finding(
        severity=severity,
        check="unsent_channel",
        what=f"channel {pulse.channel}: {counted(pulse.waiting, 'message')} {waits}, the oldest for {span(late)}, and "
        "no live node has a sender for the channel",
        fix=f"start a node that declares @scheduler.sender({pulse.channel!r}), or drop the messages with "
        "`evertick outbox drop`",
        about=(pulse.channel,),
    )


def _late(pulse: ChannelPulse, severity: Severity, late: timedelta) -> Finding:
    return Finding(
        severity=severity,
        check="messages_late",
        what=f"channel {pulse.channel}: the oldest message waits for {span(late)}",
        fix="its senders are busy: raise concurrency= of the sender, shorten its timeout=, or start more nodes",
        about=(pulse.channel,),
    )


def _dead(pulse: ChannelPulse) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        check="dead_messages",
        what=f"channel {pulse.channel}: {counted(pulse.dead, 'dead message')}",
        fix=f"list them with `evertick outbox list --state dead --channel {pulse.channel}`, read the error with "
        "`evertick outbox show MESSAGE`, then send them again with "
        f"`evertick outbox retry --dead --channel {pulse.channel}`",
        about=(pulse.channel,),
    )


def about_feed(state: FeedState | None) -> Iterator[Finding]:
    """`state` None: the feed is off."""
    if state is None or state.held_at is None or state.now - state.held_at <= FEED_HELD:
        return
    yield Finding(
        severity=Severity.WARNING,
        check="feed_held_up",
        what=held_words(state, state.held_at),
        fix="end that transaction; idle_in_transaction_session_timeout limits how long one stays open",
    )


def held_words(state: FeedState, held_at: int) -> str:
    """How far readers of the feed are behind, and the transaction that delays them."""
    holder = state.holder or "a transaction that has ended meanwhile"
    return (
        f"readers of the feed are {(state.now - held_at) // SECOND} s behind: {holder} is open, and events written "
        "after its start can be read only after its end"
    )


# --- apps ------------------------------------------------------------------------------------------------------------


def about_empty_app(app: str, apps: Sequence[str]) -> Iterator[Finding]:
    """A finding about an app without a schedule, a run or a node. `apps`: those that have some."""
    if apps:
        yield Finding(
            severity=Severity.WARNING,
            check="empty_app",
            what=f"app {app} has no schedule, no run and no node; this database has {apps_words(apps)}",
            fix="name another app with --app, or start a node of this one",
            about=(app,),
        )
    else:
        yield Finding(
            severity=Severity.NOTE,
            check="empty_app",
            what=f"app {app} has no schedule, no run and no node, and neither has any other app of this database",
            fix="start a node with `evertick run module:attribute`",
            about=(app,),
        )


def apps_words(apps: Sequence[str]) -> str:
    return f"app {apps[0]}" if len(apps) == 1 else f"the apps {named(apps)}"
