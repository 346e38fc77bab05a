"""Words on the command line as names: of a schedule by its key, of a run or a message by the beginning of its id.

Eight characters tell an id from the ids of any other minute. A name that nothing has is answered with a suggestion.
That may be a job which its file has with `enabled = false`: the ledger has no schedule of it, so the file is read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

from evertick.config.build import scheduler_from
from evertick.config.load import load_configuration, load_disabled
from evertick.errors import InvalidConfiguration, NotFound, Refused
from evertick.model import Message, Run, Schedule
from evertick.operations.context import Actor
from evertick.operations.outbox import messages_with_prefix
from evertick.operations.runs import runs_with_prefix
from evertick.operations.schedules import Namesake, namesake, similar_keys
from evertick.operations.tasks import enqueue
from evertick.operations.timeline import Question, timeline
from evertick.scheduler.operation import call
from evertick.scheduler.scheduler import Scheduler

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
_KEYS_NAMED = 3
# Messages among which a key is looked for, the newest.
_MESSAGES_COMPARED = 10_000


async def run_named(scheduler: Scheduler, word: str) -> Run:
    """The run with this id, or the only one whose id begins like this."""
    return await _named(word, "runs", scheduler.get_run, lambda: call(scheduler, runs_with_prefix, word))


async def message_named(scheduler: Scheduler, word: str) -> Message:
    """The message with this id or key, or the only one whose id begins like this."""
    try:
        return await _named(
            word, "messages", scheduler.get_message, lambda: call(scheduler, messages_with_prefix, word)
        )
    except NotFound:
        found = [each for each in await scheduler.messages(limit=_MESSAGES_COMPARED) if each.key == word]
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
                f"there is no schedule or run {word!r} in app {scheduler.app!r}",
                setting="key",
                value=word,
                fix="`evertick list` and `evertick runs` show those there are",
            ) from None


async def last_run_named(scheduler: Scheduler, word: str) -> Run:
    """The run with this id, or else the last of the schedule with this key; a planned one only if it has no other."""
    found = await schedule_or_run(scheduler, word)
    if isinstance(found, Run):
        return found
    rows = await call(scheduler, timeline, Question(key=found.key), 1)
    for run in (*rows.happened, *rows.planned):
        if isinstance(run, Run):
            return run
    raise Refused(f"{found.key!r} has no run yet; `evertick why {found.key}` tells when it fires")


def task_word(word: str) -> str:
    """The task that is meant. Listings show the run of a task without a schedule as a call."""
    return word.removesuffix("()")


async def nearer(scheduler: Scheduler, missing: NotFound) -> NotFound:
    """The error with what was perhaps meant: something of another kind that has this name, or a key much like it."""
    word = missing.value
    if word is None:
        return missing
    if other := await _of_another_kind(scheduler, word):
        return NotFound(f"{missing.problem}; {word!r} is {other}")
    for meant in (await call(scheduler, similar_keys, word))[:1]:
        return NotFound(f"{missing.problem}; did you mean {meant!r}?")
    return missing


async def _of_another_kind(scheduler: Scheduler, word: str) -> str | None:
    """The kind of thing that has this name and is no schedule, and the command that shows it."""
    found = await call(scheduler, namesake, word)
    if found is None and word != task_word(word):
        found = await call(scheduler, namesake, task_word(word))
    match found:
        case None:
            return None
        case Namesake(kind="duty", name=name):
            return f"a duty, `evertick duties {name}` tells of it"
        case Namesake(kind="channel", name=name):
            return f"a channel, `evertick outbox list --channel {name}` tells of it"
        case Namesake(kind="node"):
            return "a node, `evertick nodes` tells of it"
        case Namesake(name=task, keys=keys):
            named = f"its schedules are {', '.join(keys[:_KEYS_NAMED])}" if keys else "no schedule has it"
            return f"a task, and {named}; `evertick why {task}` and `evertick history --task {task}` tell of its runs"


_FILE = "evertick.cli.file"
_NAMED_MOST = 10


def remember_file(file: str | None, *, is_read: bool) -> None:
    """Keep the configuration of the command, to be read later. `is_read`: whether the command uses one at all."""
    if (context := click.get_current_context(silent=True)) is not None and is_read:
        context.meta[_FILE] = file or ""


def disabled_jobs() -> dict[str, str]:
    """By name, the place of each in the file. Empty where no file is read, or it cannot be read."""
    context = click.get_current_context(silent=True)
    if context is None or _FILE not in context.meta:
        return {}
    try:
        return load_disabled(context.meta[_FILE] or None)
    except InvalidConfiguration:
        return {}


def disabled_words(name: str, place: str) -> str:
    return f"{_disabled(name, place)}, or try it once with `evertick trigger {name}`"


def _disabled(name: str, place: str) -> str:
    return f"{name!r} is a job that is disabled at {place}, and has no schedule yet; take `enabled = false` out there"


def tell_disabled(disabled: Mapping[str, str], known: Iterable[str]) -> str | None:
    """Those that have no schedule, in a line."""
    left = {name: place for name, place in disabled.items() if name not in {*known}}
    if not left:
        return None
    named = ", ".join(f"{name} ({place})" for name, place in [*left.items()][:_NAMED_MOST])
    more = len(left) - _NAMED_MOST
    return f"note: disabled, and without a schedule: {named}{f' and {more} more' if more > 0 else ''}"


async def try_disabled(name: str, args: Mapping[str, Any] | None) -> Run:
    """Run the job once as its file has it now, on a node that knows its task."""
    loaded = load_configuration(click.get_current_context().meta[_FILE] or None)
    job = next((each for each in loaded.jobs if each.name == name), None)
    if job is None:
        raise NotFound(f"{loaded.file} has no job {name!r}")
    if job.spec is None or job.definition.mode == "every-node":
        # A task of other code is not known here, and a fire for every node is more than one run.
        raise Refused(f"{_disabled(name, job.places.get('enabled', job.place))}; as it is, it cannot be tried")
    scheduler = scheduler_from(loaded, actor=Actor.of_command_line())
    try:
        has, given = job.definition, job.definition.args if args is None else args
        return await call(scheduler, enqueue, name, given, queue=has.queue, priority=has.priority, labels=has.labels)
    finally:
        await scheduler.close()
