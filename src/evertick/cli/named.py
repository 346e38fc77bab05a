"""What a word on the command line names: a schedule by its key, a run or a message by the beginning of its id.

Eight characters tell an id from those of any other minute; where they do not, more are asked for. A word that names
nothing is answered with what was perhaps meant, as a job that its file has with `enabled = false`: the ledger knows
nothing of one that was never enabled, and its daemon has its task alone, so commands look into the file.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

import click

from evertick.config.build import scheduler_from
from evertick.config.load import load_configuration, load_disabled
from evertick.errors import InvalidConfiguration, NotFound, Refused
from evertick.model import Message, Run, Schedule
from evertick.operations.context import Actor
from evertick.operations.timeline import Question, timeline
from evertick.scheduler.scheduler import Scheduler
from evertick.store.base import MessageFilter, RunFilter, ScheduleFilter, Store

__all__ = [
    "PREFIX_LEAST",
    "disabled_jobs",
    "disabled_words",
    "last_run_named",
    "message_named",
    "nearer",
    "remember_file",
    "run_named",
    "schedule_or_run",
    "task_word",
    "tell_disabled",
    "try_disabled",
]

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
    rows = await timeline(await scheduler.runtime.context(), Question(key=found.key), 1)
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


_FILE = "evertick.cli.file"
_NAMED_MOST = 10


def remember_file(file: str | None, *, is_read: bool) -> None:
    """Which configuration the command goes by, to be asked for later. `is_read`: whether it goes by one at all."""
    if (context := click.get_current_context(silent=True)) is not None and is_read:
        context.meta[_FILE] = file or ""


def disabled_jobs() -> dict[str, str]:
    """By name, where each stands. None where no file is read, or it cannot be."""
    context = click.get_current_context(silent=True)
    if context is None or _FILE not in context.meta:
        return {}
    try:
        return load_disabled(context.meta[_FILE] or None)
    except InvalidConfiguration:
        return {}


def disabled_words(name: str, place: str) -> str:
    return (
        f"{name!r} is a job that is disabled at {place}, and has no schedule yet; take `enabled = false` out there, or "
        f"try it once with `evertick trigger {name}`"
    )


def tell_disabled(disabled: Mapping[str, str], known: Iterable[str]) -> str | None:
    """Those that have no schedule, in a line."""
    left = {name: place for name, place in disabled.items() if name not in {*known}}
    if not left:
        return None
    named = ", ".join(f"{name} ({place})" for name, place in [*left.items()][:_NAMED_MOST])
    more = len(left) - _NAMED_MOST
    return f"note: disabled, and without a schedule: {named}{f' and {more} more' if more > 0 else ''}"


async def try_disabled(name: str, args: Mapping[str, Any] | None) -> Run:
    """Have the job run once, as its file has it now; by a node that knows its task."""
    loaded = load_configuration(click.get_current_context().meta[_FILE] or None)
    job = next((each for each in loaded.jobs if each.name == name), None)
    if job is None:
        raise NotFound(f"{loaded.file} has no job {name!r}")
    if job.spec is None or job.definition.mode == "every-node":
        # A task of other code is not known here, and a fire for every node is more than one run.
        disabled = disabled_words(name, job.places.get("enabled", job.place)).partition(", or try")[0]
        raise Refused(f"{disabled}; as it is, it cannot be tried")
    scheduler = scheduler_from(loaded, actor=Actor.of_command_line())
    try:
        has, task = job.definition, scheduler.runtime.tasks[name]
        options = task.options(queue=has.queue, priority=has.priority, labels=has.labels)
        return await options.enqueue(**(has.args if args is None else args))
    finally:
        await scheduler.close()
