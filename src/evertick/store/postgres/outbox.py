"""The outbox: messages to other systems, written in the transaction of the change that causes them, and claimed like
runs.

A claim finds abandoned messages: those of dead nodes, and those of the calling node that it does not hold. It releases
them by the fence under which it found them, so that a node that has claimed one since keeps it. Only the holder of the
newest claim may settle a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from evertick.errors import StoreUnavailable
from evertick.model import Message, MessageOutcome, MessageState, NewMessage
from evertick.store.base import ChannelPulse, FinishAnswer, MessageClaim, MessageFilter
from evertick.store.postgres.connection import Statements, columns_of, once_if_equal
from evertick.store.postgres.run_ids import ids_with_prefix, is_run_id
from evertick.store.postgres.session import StoreSession
from evertick.store.rows import LOST_DELIVERY, claimed_message_of, json_text, message_of, read_each, storable_text
from evertick.store.verdicts import unreadable_messages

__all__ = [
    "channels",
    "claim_messages",
    "hasten_messages",
    "ids_changed_by",
    "messages",
    "retry_messages",
    "send",
    "settle_messages",
    "write_messages",
]

# Counts of messages stop at this number.
_COUNT_MOST = 10_000
# How often the insert of a message is repeated whose key was taken and is free since.
_ROUNDS_MOST = 5


async def write_messages(db: Statements, app: str, new: Sequence[NewMessage]) -> None:
    """Write messages, except those whose id or key is known."""
    if new and await db.count("send.with_cause", app, *_columns(new)):
        db.wake(app)


def _columns(new: Iterable[NewMessage]) -> list[list[Any]]:
    rows = [
        (
            message.id,
            message.channel,
            message.key,
            message.body.decode(),
            json_text(message.headers) if message.headers else None,
            message.delay or None,
            message.caused_by,
            None if message.format == 1 else message.format,
            message.dispatches,
        )
        for message in new
    ]
    ids, channels, *others = columns_of(rows)
    return [ids, once_if_equal(channels), *others]


async def send(db: Statements, app: str, messages: Sequence[NewMessage]) -> list[Message]:
    answers: dict[int, Message] = {}
    for _ in range(_ROUNDS_MOST):
        missing = {place: messages[place] for place in range(len(messages)) if place not in answers}
        if not missing:
            break
        answers |= await _send(db, app, missing)
    if len(answers) < len(messages):
        raise StoreUnavailable("messages with the same keys appear and vanish too fast", fix="try again")
    return [answers[place] for place in range(len(messages))]


async def _send(db: Statements, app: str, wanted: Mapping[int, NewMessage]) -> dict[int, Message]:
    """The new messages, and the existing ones unless they have gone meanwhile."""
    rows = await db.rows("send", app, *_columns(wanted.values()))
    if rows:
        db.wake(app)
    new = {str(row["id"]): row for row in rows}
    answers: dict[int, Message] = {}
    for place, message in wanted.items():
        if message.id in new:
            answers[place] = message_of(new.pop(message.id))
    rest = {place: message for place, message in wanted.items() if place not in answers}
    if not rest:
        return answers
    ids = [message.id for message in rest.values()]
    keys = columns_of([(message.channel, message.key) for message in rest.values()])
    known = [message_of(row, is_new=False) for row in await db.rows("send.known", app, ids, *keys)]
    by_id = {message.id: message for message in known}
    by_key = {(message.channel, message.key): message for message in known}
    for place, message in rest.items():
        found = by_id.get(message.id) or by_key.get((message.channel, message.key))
        if found is not None:
            answers[place] = found
    return answers


# --- claims ------------------------------------------------------------------------------------------------------


async def claim_messages(
    session: StoreSession, app: str, node: str, channels: Mapping[str, int], held: Sequence[str]
) -> MessageClaim:
    claim, left = await _claim(session, app, node, channels, held)
    if not left:
        return claim
    released = await session.ask(
        lambda db: db.count("claim_messages.release", app, node, *columns_of(left), LOST_DELIVERY)
    )
    taken = claim.messages
    if not released:
        return claim
    # The released messages are due too. Those claimed before are held by this node, and count against its room.
    still = {channel: most - sum(each.channel == channel for each in taken) for channel, most in channels.items()}
    more, _ = await _claim(session, app, node, still, [*held, *(message.id for message in taken)])
    return MessageClaim(now=more.now, messages=taken + more.messages, next_due_at=more.next_due_at)


async def _claim(
    session: StoreSession, app: str, node: str, room: Mapping[str, int], held: Sequence[str]
) -> tuple[MessageClaim, list[tuple[str, int]]]:
    """The claim, and the abandoned messages: (id, fence)."""
    wanted = (app, node, list(room), [max(most, 0) for most in room.values()], list(held))
    rows = await session.ask(lambda db: db.rows("claim_messages", *wanted))
    head = rows[0]
    taken, unreadable = read_each([row for row in rows if row["id"] is not None], claimed_message_of)
    if unreadable:
        dead = unreadable_messages(unreadable)
        # The claim is committed, so an error here must not hide it. The next claim finds the unreadable ones again.
        with suppress(StoreUnavailable):
            await session.write(lambda db: settle_messages(db, app, node, dead))
    left = list(zip(head["left_ids"], head["left_fences"], strict=True))
    return MessageClaim(now=head["now"], messages=taken, next_due_at=head["next_due_at"]), left


async def settle_messages(
    db: Statements, app: str, node: str, outcomes: Sequence[MessageOutcome]
) -> list[FinishAnswer]:
    # Of several outcomes of one message the first counts.
    first = {outcome.id: outcome for outcome in reversed(outcomes) if is_run_id(outcome.id)}
    if not first:
        return ["lost"] * len(outcomes)
    rows = [(o.id, o.fence, o.kind, o.attempts, o.delay, o.remember, storable_text(o.error)) for o in first.values()]
    ids, *alike, errors = columns_of(rows)
    settled = (await db.only_row("settle_messages", app, node, ids, *map(once_if_equal, alike), errors))["ids"]
    done = first if settled is None else {id_: first[id_] for id_ in settled}
    if any(outcome.kind in ("retry", "release") for outcome in done.values()):
        db.wake(app)
    rest = [(outcome.id, outcome.fence) for outcome in outcomes if outcome.id in first and outcome.id not in done]
    answered = await db.rows("settle_messages.answered_before", app, node, *columns_of(rest)) if rest else []
    before = {(row["id"], row["fence"]) for row in answered} | {(id_, outcome.fence) for id_, outcome in done.items()}
    return [_answer(outcome, done, before) for outcome in outcomes]


def _answer(outcome: MessageOutcome, done: Mapping[str, MessageOutcome], before: set[tuple[str, int]]) -> FinishAnswer:
    if done.get(outcome.id) is outcome:
        return "done"
    return "already" if (outcome.id, outcome.fence) in before else "lost"


# --- queries for display ----------------------------------------------------------------------------------------------


async def messages(db: Statements, app: str, wanted: MessageFilter) -> list[Message]:
    states = None if wanted.states is None else [state.value for state in wanted.states]
    those = (app, wanted.channel, states, wanted.limit)
    if wanted.ids is not None:
        rows = await db.rows("messages.by_id", *those, [id_ for id_ in wanted.ids if is_run_id(id_)])
    elif wanted.key is not None:
        rows = await db.rows("messages.by_key", *those, wanted.key)
    elif states is not None and MessageState.SENT not in states and not wanted.id_prefix:
        rows = await db.rows("messages.unsent", *those)
    else:
        bounds = ids_with_prefix(wanted.id_prefix or "")
        rows = [] if bounds is None else await db.rows("messages", *those, *bounds)
    return read_each(rows, message_of)[0]


async def channels(db: Statements, app: str) -> list[ChannelPulse]:
    return [
        ChannelPulse(
            channel=row["channel"],
            waiting=row["waiting"],
            sending=row["sending"],
            dead=row["dead"],
            oldest_due_at=row["oldest_due_at"],
            oldest_failing_at=row["oldest_failing_at"],
        )
        for row in await db.rows("channels", app, _COUNT_MOST)
    ]


async def retry_messages(db: Statements, app: str, ids: Sequence[str]) -> list[str]:
    retried = await ids_changed_by(db, "retry_messages", app, ids)
    if retried:
        db.wake(app)
    return retried


async def hasten_messages(db: Statements, app: str, channel: str, limit: int) -> int:
    hastened = await db.rows("hasten_messages", app, channel, limit)
    if hastened:
        db.wake(app)
    return len(hastened)


async def ids_changed_by(db: Statements, name: str, app: str, ids: Sequence[str]) -> list[str]:
    """The ids of the messages that a statement has changed, in the given order."""
    found = {row["id"] for row in await db.rows(name, app, [id_ for id_ in ids if is_run_id(id_)])}
    return [id_ for id_ in dict.fromkeys(ids) if id_ in found]
