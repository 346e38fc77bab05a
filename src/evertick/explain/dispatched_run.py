"""The next step of a run in the hands of an outside queue, in words: its queue, a worker, or a word of that worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from evertick.model import Dispatched, Message, MessageState, Node, Reason, Run
from evertick.model.message import dispatch_key
from evertick.store.base import MessageFilter, Store
from evertick.text.error_line import error_summary

__all__ = ["dispatched_words", "is_away", "is_heard", "owner_words", "queue_words", "unsent_messages"]

# How many of them are looked up, one by one.
_LOOKED_UP_MOST = 100

# What tells of a lost run whether it was done here, or elsewhere.
_LOST_HERE = (Reason.NODE_DIED, Reason.NODE_GONE)
_LOST_ELSEWHERE = (Reason.NOT_TAKEN, Reason.NO_PROGRESS)

# A moment in words, as the asker writes moments.
Words = Callable[[datetime | None], str]


async def unsent_messages(store: Store, app: str, runs: Iterable[Run]) -> dict[str, Message]:
    """The messages that are still to dispatch these runs, by run."""
    waiting = [(run, run.dispatched) for run in runs if run.dispatched is not None and run.dispatched.pushed_at is None]
    found: dict[str, Message] = {}
    for run, dispatched in waiting[:_LOOKED_UP_MOST]:
        wanted = MessageFilter(channel=dispatched.to, key=dispatch_key(run.id, run.fence or 0), limit=1)
        for message in await store.messages(app, wanted):
            found[run.id] = message
    return found


def dispatched_words(
    run: Run, dispatched: Dispatched, message: Message | None, nodes: Iterable[Node], at: Words
) -> str:
    """`message`: the one that is still to dispatch it, if there is one."""
    nodes = list(nodes)
    asked = ", asked to cancel" if run.is_cancel_requested else ""
    hears = is_heard(dispatched.to, nodes)
    since = f"run {run.id} was dispatched to {queue_words(dispatched)} at {at(dispatched.at)}"
    if dispatched.pushed_at is None:
        return f"{since}, {_unsent_words(dispatched, message, nodes, at)}{asked}"
    if run.is_cancel_requested:
        again = _cancel_words(dispatched, hears=hears)
    else:
        again = _again_words(dispatched, at) if hears else _unheard_words(dispatched.to)
    if dispatched.taken_at is None:
        served_by = "" if dispatched.served_by is None else f" (one is started by `{dispatched.served_by}`)"
        return f"{since}, not taken by a worker yet{'' if asked else served_by}{again}"
    progress = "" if run.progress is None else f", at {run.progress:.0%} {run.progress_text or ''}".rstrip()
    who = f"run {run.id} (attempt {run.attempts + 1}) is with a worker of {queue_words(dispatched)}"
    return f"{who} since {at(dispatched.taken_at)}{progress}{again}"


def queue_words(dispatched: Dispatched) -> str:
    return f"{dispatched.to!r}" if dispatched.queue is None else f"the queue {dispatched.queue!r} of {dispatched.to!r}"


def owner_words(run: Run) -> str:
    """Of a run that had losses. One that went on tells by nothing whether they were of a node or of a worker."""
    if run.dispatched is not None or run.reason in _LOST_ELSEWHERE:
        return "its worker"
    return "its node" if run.reason in _LOST_HERE else "it"


def is_heard(channel: str, nodes: Iterable[Node]) -> bool:
    """Whether one of these nodes, which live, gets what workers say of runs that went by the channel."""
    return any(node.hears(channel) for node in nodes)


def _again_words(dispatched: Dispatched, at: Words) -> str:
    if dispatched.until is None:
        return ""
    if dispatched.taken_at is None:
        return f"; unless one takes it, it is pushed again at {at(dispatched.until)}"
    return f"; unless its worker speaks by {at(dispatched.until)}, it is pushed again"


def _cancel_words(dispatched: Dispatched, *, hears: bool) -> str:
    """A run that is to be cancelled is not pushed again, whatever its worker says."""
    if dispatched.taken_at is not None:
        return "; asked to cancel: it ends when its worker obeys, or has had its time to do so"
    if hears:
        return "; asked to cancel: a node ends it within seconds"
    return (
        f"; asked to cancel: no live node reads the reports of {dispatched.to!r} now, so a worker that has it gets "
        "time to stop"
    )


def _unheard_words(channel: str) -> str:
    return f"; no live node reads the reports of {channel!r} now; until one does, none declares its workers silent"


def is_away(dispatched: Dispatched, nodes: Iterable[Node]) -> bool:
    """Of a queue that has not taken its message: whether it is not there at all, as far as anybody knows. Where reports
    can be read it is; and of a queue that brings none it is not heard that it is back."""
    return dispatched.mode != "forget" and not is_heard(dispatched.to, nodes)


def _unsent_words(dispatched: Dispatched, message: Message | None, nodes: Iterable[Node], at: Words) -> str:
    if message is None:
        return "and its message has just been sent"
    if not any(dispatched.to in node.channels for node in nodes):
        return "and no live node brings messages there: start one that does"
    if message.state is MessageState.SENDING:
        return "and its message is on its way there"
    if not message.attempts:
        return "and its message waits to be sent"
    tries = "1 try" if message.attempts == 1 else f"{message.attempts} tries"
    why = error_summary(message.error)
    what = "which is away" if is_away(dispatched, nodes) else "which has not taken it"
    return f"{what}: {tries}{f' ({why})' if why else ''}, the next at {at(message.due_at)}"
