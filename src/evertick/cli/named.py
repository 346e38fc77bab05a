"""What a word on the command line names: a schedule by its key, a run or a message by its id or the beginning of it.

Nobody types 36 characters: eight tell it from those of any other minute, and where they do not, more are asked for.
What names nothing is answered with what was perhaps meant.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import TypeVar

import click

from evertick.cli.show.timeline import Question, timeline
from evertick.errors import NotFound, Refused
from evertick.model import Message, Run, Schedule
from evertick.scheduler.scheduler import Scheduler
from evertick.store.base import MessageFilter, RunFilter, ScheduleFilter, Store

__all__ = ["PREFIX_LEAST", "last_run_named", "message_named", "nearer", "run_named", "schedule_or_run", "task_word"]

T = TypeVar("T")

PREFIX_LEAST = 8
_KEYS_COMPARED = 10_000
_ALIKE = 0.6
_KEYS_NAMED = 3
# Messages among which a key is looked for, the newest.
_MESSAGES_COMPARED = 10_000


async def run_named(scheduler: Scheduler, word: str) -> Run:
    """The run with this id, or the only one whose id begins like this."""
    store, alike = await scheduler.runtime.store(), RunFilter(id_prefix=word, limit=2)
    return await _named(word, "runs", scheduler.get_run, lambda: store.runs(scheduler.app, alike))


async def message_named(scheduler: Scheduler, word: str) -> Message:
    """The message with this id or key, or the only one whose id begins like this."""
    store, alike = await scheduler.runtime.store(), MessageFilter(id_prefix=word, limit=2)
    try:
        return await _named(word, "messages", scheduler.get_message, lambda: store.messages(scheduler.app, alike))
    except NotFound:
        newest = await store.messages(scheduler.app, MessageFilter(limit=_MESSAGES_COMPARED))
        found = [message for message in newest if message.key == word]
        if not found:
            raise
    if len(found) > 1:
        channels = ", ".join(message.channel for message in found)
        raise click.UsageError(f"messages of several channels have the key {word!r} ({channels}); write the id of one")
    return found[0]


async def _named(
    word: str, what: str, get: Callable[[str], Awaitable[T]], find: Callable[[], Awaitable[Sequence[T]]]
) -> T:
    try:
        return await get(word)
    except NotFound:
        found = await find() if len(word) >= PREFIX_LEAST else []
        if not found:
            raise
    if len(found) > 1:
        raise click.UsageError(f"several {what} have an id that begins with {word!r}; write more of it")
    return found[0]


async def schedule_or_run(scheduler: Scheduler, word: str) -> Schedule | Run:
    """The schedule with this key, or else the run with this id."""
    try:
        return await scheduler.schedule(word)
    except NotFound:
        try:
            return await run_named(scheduler, word)
        except NotFound:
            raise NotFound(
                f"there is no schedule or run {word!r} in app {scheduler.app!r}; "
                "`evertick list` and `evertick runs` show those there are"
            ) from None


async def last_run_named(scheduler: Scheduler, word: str) -> Run:
    """The run with this id, or else the last of the schedule with this key; a planned one only if it has no other."""
    found = await schedule_or_run(scheduler, word)
    if isinstance(found, Run):
        return found
    rows = await timeline(scheduler, Question(key=found.key), 1)
    for run in (*rows.happened, *rows.planned):
        if isinstance(run, Run):
            return run
    raise Refused(f"{found.key!r} has no run yet; `evertick why {found.key}` tells when it fires")


def task_word(word: str) -> str:
    """The task that is meant. Listings show the run of a task without a schedule as a call."""
    return word.removesuffix("()")


async def _of_another_kind(store: Store, app: str, word: str) -> str | None:
    """What else than a schedule has this name, and which command tells of it."""
    if any(word == duty.name for duty in await store.duties(app)):
        return f"a duty, `evertick duties {word}` tells of it"
    nodes = await store.nodes(app)
    unsent = [pulse.channel for pulse in await store.channels(app)]
    if word in unsent or any(word in node.channels for node in nodes):
        return f"a channel, `evertick outbox list --channel {word}` tells of it"
    if any(word in (node.name, node.id) for node in nodes):
        return "a node, `evertick nodes` tells of it"
    page = await store.schedules(app, ScheduleFilter(limit=_KEYS_COMPARED, with_counts=False))
    task = task_word(word)
    keys = [schedule.key for schedule in page if schedule.task == task]
    # The ledger still has its runs when no node that knows it is alive.
    if keys or any(task in node.tasks for node in nodes) or await store.runs(app, RunFilter(task=task, limit=1)):
        named = f"its schedules are {', '.join(keys[:_KEYS_NAMED])}" if keys else "no schedule has it"
        return f"a task, and {named}; `evertick why {task}` and `evertick history --task {task}` tell of its runs"
    return None


async def nearer(store: Store, app: str, words: Iterable[str], missing: NotFound) -> NotFound:
    """The error with what was perhaps meant: something of another kind that has this name, or a key much like it."""
    unknown = [word for word in words if repr(word) in str(missing)]
    for word in unknown:
        if other := await _of_another_kind(store, app, word):
            return NotFound(f"{str(missing).partition('; ')[0]}; {word!r} is {other}")
    wanted = ScheduleFilter(limit=_KEYS_COMPARED, with_counts=False)
    keys = [schedule.key for schedule in await store.schedules(app, wanted)]
    for word in unknown:
        if word not in keys:
            for meant in get_close_matches(word, keys, n=1, cutoff=_ALIKE):
                return NotFound(f"{str(missing).partition('; ')[0]}; did you mean {meant!r}?")
    return missing
