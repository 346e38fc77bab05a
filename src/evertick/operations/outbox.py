"""The outbox: sends and lists messages, and retries or drops dead ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from evertick.definition.settings import check_key
from evertick.errors import InvalidInput, NotFound, Refused
from evertick.model import Message, MessageState
from evertick.model.message import check_name, new_message
from evertick.operations.context import Context, check_limit, checked
from evertick.store.base import ChannelPulse, MessageFilter
from evertick.text.values import shown
from evertick.when.duration import Duration

__all__ = [
    "channels",
    "channels_without_sender",
    "drop_message",
    "get_message",
    "messages",
    "messages_with_prefix",
    "retry_dead",
    "retry_message",
    "send",
]


def _id_of(message: Any) -> str:
    if isinstance(message, Message):
        return message.id
    if not isinstance(message, str):
        raise InvalidInput(
            f"message: {shown(message)} is not a message",
            setting="message",
            value=shown(message),
            fix="pass a Message or the id of one",
        )
    return check_key(message, what="message")


def _checked_states(states: Sequence[MessageState | str]) -> tuple[MessageState, ...]:
    if isinstance(states, str):
        raise InvalidInput(
            f"states: {shown(states)} is one text",
            setting="states",
            value=shown(states),
            fix=f"pass a list, e.g. states=[{shown(states)}]",
        )
    try:
        return tuple(MessageState(state) for state in states)
    except ValueError:
        known = ", ".join(repr(state.value) for state in MessageState)
        problem = f"states: {shown(list(states))} must be among {known}"
        raise InvalidInput(problem, setting="states", value=shown(list(states))) from None


def _check_channel(channel: object) -> None:
    check_name(channel, "channel")


async def send(
    context: Context,
    channel: str,
    body: object,
    *,
    key: str | None = None,
    delay: Duration | None = None,
    headers: Mapping[str, str] | None = None,
    connection: object = None,
) -> Message:
    """Put a message into the outbox; a node with a sender for its channel delivers it, at least once.

    key: the idempotency key, the same at every try; default: the id of the message. While the outbox knows the key,
    sending it again returns the existing message, with `is_new=False`. connection: a connection of the caller to the
    database of the ledger. The message is part of its transaction.
    """
    message = new_message(context.clock.new_id(), channel, body, key=key, delay=delay, headers=headers)
    if connection is not None:
        # No wake-up: the message becomes visible with the user's commit, which nodes notice.
        [sent] = await context.store.within(connection).send(context.app, [message])
        return sent
    [sent] = await context.store.send(context.app, [message])
    context.wake_messages()
    return sent


@checked(channel=_check_channel, states=_checked_states, limit=check_limit)
async def messages(
    context: Context,
    *,
    channel: str | None = None,
    states: Sequence[MessageState | str] | None = None,
    limit: int = 100,
) -> list[Message]:
    """Messages of the outbox, newest first. Sent messages are kept while their key is remembered."""
    wanted = MessageFilter(
        channel=channel,
        states=None if states is None else _checked_states(states),
        limit=limit,
    )
    return await context.store.messages(context.app, wanted)


@checked(message_id=_id_of)
async def get_message(context: Context, message_id: str) -> Message:
    """One message. Raises NotFound."""
    wanted = _id_of(message_id)
    found = await context.store.messages(context.app, MessageFilter(ids=(wanted,)))
    if not found:
        raise NotFound(
            f"there is no message {wanted!r} in the outbox of app {context.app!r}",
            setting="message",
            value=wanted,
            fix="`evertick outbox list` shows the messages",
        )
    return found[0]


async def messages_with_prefix(context: Context, prefix: str, *, limit: int = 2) -> list[Message]:
    """Messages whose id begins with this, newest first."""
    return await context.store.messages(context.app, MessageFilter(id_prefix=prefix, limit=check_limit(limit)))


async def channels(context: Context) -> list[ChannelPulse]:
    """The channels with unsent messages, by name."""
    return await context.store.channels(context.app)


async def channels_without_sender(context: Context, message_ids: Sequence[str]) -> list[str]:
    """The channels of these messages for which no live node has a sender, by name."""
    if not message_ids:
        return []
    wanted = MessageFilter(ids=tuple(message_ids), limit=len(message_ids))
    found = {message.channel for message in await context.store.messages(context.app, wanted)}
    nodes = await context.store.nodes(context.app)
    return sorted(found - {channel for node in nodes if node.died_at is None for channel in node.channels})


@checked(message=_id_of)
async def retry_message(context: Context, message: Message | str) -> Message:
    """Deliver a message now that is dead, or waits for its next try. A dead one gets all its tries again."""
    await _decide(context, message, "retried", context.store.retry_messages)
    context.wake_messages()
    return await get_message(context, _id_of(message))


@checked(channel=_check_channel, limit=check_limit)
async def retry_dead(context: Context, *, channel: str | None = None, limit: int = 1000) -> list[str]:
    """Deliver dead messages again, of one channel or of all. Returns their ids."""
    dead = await messages(context, channel=channel, states=[MessageState.DEAD], limit=limit)
    retried = await context.store.retry_messages(context.app, [message.id for message in dead])
    context.wake_messages()
    return retried


@checked(message=_id_of)
async def drop_message(context: Context, message: Message | str) -> None:
    """Delete a message that is waiting or dead. Its key may be used again."""
    await _decide(context, message, "dropped", context.store.drop_messages)


async def _decide(
    context: Context, message: Message | str, what: str, act: Callable[[str, list[str]], Awaitable[list[str]]]
) -> None:
    id_ = _id_of(message)
    if await act(context.app, [id_]):
        return
    found = await get_message(context, id_)
    if found.state in (MessageState.WAITING, MessageState.DEAD):
        raise Refused(
            f"message {id_} was to dispatch run {found.caused_by}, which has ended or was dispatched again",
            setting="message",
            value=id_,
            fix=f"`evertick rerun {found.caused_by}` runs it again",
        )
    problem = f"message {id_} is {found.state}, and only a waiting or dead message can be {what}"
    raise Refused(problem, setting="message", value=id_)
