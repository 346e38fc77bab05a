"""The outbox: messages to other systems, written in the transaction of the change that causes them, and claimed like
runs.

A claim first releases abandoned messages: filters of dead nodes, and filters of the calling node that it does not hold.
Only the holder of the newest claim may settle a message.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from evertick.model import ClaimedMessage, Message, MessageFate, MessageOutcome, MessageState, NewMessage, Reason
from evertick.store.base import ChannelPulse, FinishAnswer, MessageClaim, MessageFilter
from evertick.store.rows import LOST_DELIVERY, claimed_message_of, json_text, message_of, read_each, storable_text
from evertick.store.sqlite.connection import SQL, check_integers, draw_fence, in_parts, is_alive
from evertick.store.verdicts import unreadable_messages

__all__ = [
    "channels",
    "claim_messages",
    "drop_messages",
    "hasten_messages",
    "messages",
    "retry_messages",
    "send",
    "settle_messages",
    "write_messages",
]

# Counts of messages stop at this number.
_COUNT_MOST = 10_000

_ids = msgspec.json.Decoder(list[str])
_rows = msgspec.json.Decoder(list[dict[str, Any]])


def write_messages(db: sqlite3.Connection, now: int, app: str, new: Sequence[NewMessage]) -> int:
    """Write messages, except filters whose id or key is known. Returns how many were new."""
    return sum(_insert(db, now, app, part) for part in in_parts(new))


def send(db: sqlite3.Connection, now: int, app: str, messages: Sequence[NewMessage]) -> list[Message]:
    return [_sent(db, now, app, message) for message in messages]


def _sent(db: sqlite3.Connection, now: int, app: str, message: NewMessage) -> Message:
    is_new = write_messages(db, now, app, [message]) == 1
    row = db.execute(SQL["send.known"], (app, message.id, message.channel, message.key)).fetchone()
    return message_of(row, is_new=is_new)


def _insert(db: sqlite3.Connection, now: int, app: str, new: Sequence[NewMessage]) -> int:
    check_integers(number for message in new for number in (message.delay, message.dispatches or 0))
    rows = [
        (
            message.id,
            message.channel,
            message.key,
            message.body.decode(),
            json_text(message.headers) if message.headers else None,
            message.delay,
            message.caused_by,
            message.format,
            message.dispatches,
        )
        for message in new
    ]
    return db.execute(SQL["send"], (app, now, json_text(rows))).rowcount


# --- claims ------------------------------------------------------------------------------------------------------


def claim_messages(
    db: sqlite3.Connection, now: int, app: str, node: str, channels: Mapping[str, int], held: Sequence[str]
) -> MessageClaim:
    if not is_alive(db, node):
        return MessageClaim(now=now, messages=[], next_due_at=None)
    for channel in channels:
        db.execute(SQL["claim_messages.release_lost"], (app, channel, now, LOST_DELIVERY))
        db.execute(SQL["claim_messages.release_strays"], (app, channel, node, now, json_text(held)))
    picked = [
        id_
        for channel, most in channels.items()
        for id_ in _ids.decode(db.execute(SQL["claim_messages.pick"], (app, channel, now, max(most, 0))).fetchone()[0])
    ]
    taken = _take(db, now, app, node, picked)
    waiting = [db.execute(SQL["claim_messages.next_due"], (app, channel)).fetchone() for channel in channels]
    next_due_at = min((row["due_at"] for row in waiting if row is not None), default=None)
    return MessageClaim(now=now, messages=taken, next_due_at=next_due_at)


def _take(db: sqlite3.Connection, now: int, app: str, node: str, ids: Sequence[str]) -> list[ClaimedMessage]:
    if not ids:
        return []
    db.execute(SQL["claim_messages.take"], (json_text(ids), node, draw_fence(db), now))
    rows = [
        row
        for part in in_parts(ids)
        for row in _rows.decode(db.execute(SQL["claim_messages.read"], (json_text(part),)).fetchone()[0])
    ]
    taken, unreadable = read_each(rows, claimed_message_of)
    settle_messages(db, now, app, node, unreadable_messages(unreadable))
    return taken


def settle_messages(
    db: sqlite3.Connection, now: int, app: str, node: str, outcomes: Sequence[MessageOutcome]
) -> list[FinishAnswer]:
    # Of several outcomes of one message the first counts.
    first = {outcome.id: outcome for outcome in reversed(outcomes)}
    fences = json_text({id_: outcome.fence for id_, outcome in first.items()})
    held = set(_ids.decode(db.execute(SQL["settle_messages.held"], (app, fences, node)).fetchone()[0]))
    groups: defaultdict[tuple[MessageFate, int, int, int, str | None], list[str]] = defaultdict(list)
    for id_, each in first.items():
        if id_ in held:
            groups[each.kind, each.attempts, each.delay, each.remember, storable_text(each.error)].append(id_)
    for (kind, attempts, delay, remember, error), ids in groups.items():
        if kind in ("sent", "dead"):
            db.execute(SQL["settle_messages.end"], (json_text(ids), kind, attempts, error, now, remember))
        else:
            tries = attempts if kind == "retry" else None
            db.execute(SQL["settle_messages.put_back"], (json_text(ids), now + delay, tries, error))
    return [
        "done" if outcome.id in held and first[outcome.id] is outcome else _answered_before(db, app, node, outcome)
        for outcome in outcomes
    ]


def _answered_before(db: sqlite3.Connection, app: str, node: str, outcome: MessageOutcome) -> FinishAnswer:
    guard = (app, outcome.id, node, outcome.fence)
    return "already" if db.execute(SQL["settle_messages.answered_before"], guard).fetchone() is not None else "lost"


# --- queries for display ----------------------------------------------------------------------------------------------


def messages(db: sqlite3.Connection, now: int, app: str, wanted: MessageFilter) -> list[Message]:
    states = None if wanted.states is None else json_text(wanted.states)
    filters = (app, wanted.channel, states, wanted.limit)
    if wanted.ids is not None:
        rows = db.execute(SQL["messages.by_id"], (*filters, json_text(wanted.ids)))
    elif wanted.key is not None:
        rows = db.execute(SQL["messages.by_key"], (*filters, wanted.key))
    elif wanted.states is not None and MessageState.SENT not in wanted.states and not wanted.id_prefix:
        rows = db.execute(SQL["messages.unsent"], filters)
    else:
        rows = db.execute(SQL["messages"], (*filters, wanted.id_prefix or ""))
    return read_each(rows, message_of)[0]


def channels(db: sqlite3.Connection, now: int, app: str) -> list[ChannelPulse]:
    found: list[ChannelPulse] = []
    name = ""
    while (name := db.execute(SQL["channels.next"], (app, name)).fetchone()["channel"]) is not None:
        counts = db.execute(SQL["channels.counts"], (app, name, _COUNT_MOST)).fetchone()
        oldest = db.execute(SQL["claim_messages.next_due"], (app, name)).fetchone()
        failing = db.execute(SQL["channels.failing"], (app, name)).fetchone()
        found.append(
            ChannelPulse(
                channel=name,
                **dict(counts),
                oldest_due_at=None if oldest is None else oldest["due_at"],
                oldest_failing_at=None if failing is None else failing["created_at"],
            )
        )
    return found


def retry_messages(db: sqlite3.Connection, now: int, app: str, ids: Sequence[str]) -> list[str]:
    return [id_ for id_ in dict.fromkeys(ids) if db.execute(SQL["retry_messages"], (app, id_, now)).rowcount == 1]


def hasten_messages(db: sqlite3.Connection, now: int, app: str, channel: str, limit: int) -> int:
    return db.execute(SQL["hasten_messages"], (app, channel, now, limit)).rowcount


def drop_messages(db: sqlite3.Connection, now: int, app: str, ids: Sequence[str]) -> list[str]:
    # Before the messages are deleted, because they name the runs that they dispatch.
    db.executemany(SQL["drop_messages.cancel"], [(app, id_, now, Reason.REQUESTED) for id_ in ids])
    return [id_ for id_ in dict.fromkeys(ids) if db.execute(SQL["drop_messages"], (app, id_)).rowcount == 1]
