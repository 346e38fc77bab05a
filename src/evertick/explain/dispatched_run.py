"""Explains a dispatched run: its queue, its worker, and the step that it waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from evertick.model import Dispatched, Message, MessageState, Node, Reason, Run
from evertick.model.message import dispatch_key
from evertick.store.base import MessageFilter, Store
from evertick.text.error_line import error_summary

__all__ = ["dispatched_words", "is_away", "is_heard", "owner_words", "queue_words", "unsent_messages"]

# Messages that are read one by one.
_MESSAGES_MOST = 100

# The reasons of a loss by a node, and by a worker.
_LOST_BY_NODE = (Reason.NODE_DIED, Reason.NODE_GONE)
_LOST_BY_WORKER = (Reason.NOT_TAKEN, Reason.NO_PROGRESS)

# Formats a moment.
Words = Callable[[datetime | None], str]


async def unsent_messages(store: Store, app: str, runs: Iterable[Run]) -> dict[str, Message]:
    """The unsent messages of these dispatched runs, by run."""
    waiting = [(run, run.dispatched) for run in runs if run.dispatched is not None and run.dispatched.pushed_at is None]
    found: dict[str, Message] = {}
    for run, dispatched in waiting[:_MESSAGES_MOST]:
        wanted = MessageFilter(channel=dispatched.to, key=dispatch_key(run.id, run.fence or 0), limit=1)
        for message in await store.messages(app, wanted):
            found[run.id] = message
    return found


def dispatched_words(
    run: Run, dispatched: Dispatched, message: Message | None, nodes: Iterable[Node], at: Words
) -> str:
    """`message`: the unsent message of the run, if there is one."""
    nodes = list(nodes)
    cancel = ", cancel requested" if run.is_cancel_requested else ""
    has_reader = is_heard(dispatched.to, nodes)
    since = f"run {run.id} was dispatched to {queue_words(dispatched)} at {at(dispatched.at)}"
    if dispatched.pushed_at is None:
        return f"{since}, {_unsent_words(dispatched, message, nodes, at)}{cancel}"
    if run.is_cancel_requested:
        next_step = _cancel_words(dispatched, has_reader=has_reader)
    else:
        next_step = _again_words(dispatched, at) if has_reader else _no_reader_words(dispatched.to)
    if dispatched.taken_at is None:
        served_by = "" if dispatched.served_by is None else f" (start one with `{dispatched.served_by}`)"
        return f"{since}, not taken by a worker yet{'' if cancel else served_by}{next_step}"
    progress = "" if run.progress is None else f", at {run.progress:.0%} {run.progress_text or ''}".rstrip()
    holder = f"run {run.id} (attempt {run.attempts + 1}) is with a worker of {queue_words(dispatched)}"
    return f"{holder} since {at(dispatched.taken_at)}{progress}{next_step}"


def queue_words(dispatched: Dispatched) -> str:
    return f"{dispatched.to!r}" if dispatched.queue is None else f"the queue {dispatched.queue!r} of {dispatched.to!r}"


def owner_words(run: Run) -> str:
    """The lost part of a run with losses. A run that was repeated does not say which it was."""
    if run.dispatched is not None or run.reason in _LOST_BY_WORKER:
        return "its worker"
    return "its node" if run.reason in _LOST_BY_NODE else "it"


def is_heard(channel: str, nodes: Iterable[Node]) -> bool:
    """Whether one of these live nodes reads the reports of the channel's workers."""
    return any(node.hears(channel) for node in nodes)


def _again_words(dispatched: Dispatched, at: Words) -> str:
    if dispatched.until is None:
        return ""
    if dispatched.taken_at is None:
        return f"; if no worker takes it, it is sent again at {at(dispatched.until)}"
    return f"; if its worker does not report by {at(dispatched.until)}, it is sent again"


def _cancel_words(dispatched: Dispatched, *, has_reader: bool) -> str:
    """A run with a requested cancel is not sent again."""
    if dispatched.taken_at is not None:
        return "; cancel requested: it ends when its worker obeys, or when the time to stop is over"
    if has_reader:
        return "; cancel requested: a node ends it within seconds"
    return (
        f"; cancel requested: no live node reads the reports of {dispatched.to!r}, so a worker that has it gets time "
        "to stop"
    )


def _no_reader_words(channel: str) -> str:
    return f"; no live node reads the reports of {channel!r}, so none declares its workers silent"


def is_away(dispatched: Dispatched, nodes: Iterable[Node]) -> bool:
    """Whether a queue that has not accepted a message seems to be unreachable. It is reachable if its reports can be
    read; a queue without reports (mode "forget") gives no sign."""
    return dispatched.mode != "forget" and not is_heard(dispatched.to, nodes)


def _unsent_words(dispatched: Dispatched, message: Message | None, nodes: Iterable[Node], at: Words) -> str:
    if message is None:
        return "and its message has just been sent"
    if not any(dispatched.to in node.channels for node in nodes):
        return "and no live node sends to it: start one that does"
    if message.state is MessageState.SENDING:
        return "and its message is being sent"
    if not message.attempts:
        return "and its message waits to be sent"
    tries = "1 try" if message.attempts == 1 else f"{message.attempts} tries"
    error = error_summary(message.error)
    problem = "which is unreachable" if is_away(dispatched, nodes) else "which has not accepted it"
    return f"{problem}: {tries}{f' ({error})' if error else ''}, the next at {at(message.due_at)}"
