"""Names on the command line: a schedule by its key, a run or a message by its id or the first characters of it.

Eight characters identify an id among the ids of all other minutes. An unknown name gets a suggestion. It may be a job
that its file disables with `enabled = false`: the ledger has no schedule for it, so the file is read.
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
    "disabled_error",
    "disabled_jobs",
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
# A key is searched for among this many messages, the newest.
_MESSAGES_SEARCHED = 10_000


async def run_named(scheduler: Scheduler, word: str) -> Run:
    """The run with this id, or the only one whose id begins with it."""
    return await _named(word, "runs", scheduler.get_run, lambda: call(scheduler, runs_with_prefix, word))


async def message_named(scheduler: Scheduler, word: str) -> Message:
    """The message with this id or key, or the only one whose id begins with it."""
    try:
        return await _named(
            word, "messages", scheduler.get_message, lambda: call(scheduler, messages_with_prefix, word)
        )
    except NotFound:
        found = [each for each in await scheduler.messages(limit=_MESSAGES_SEARCHED) if each.key == word]
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
        raise click.UsageError(f"several {what} have an id that begins with {word!r}; write more characters")
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
                fix="`evertick list` shows the schedules, and `evertick runs` the runs",
            ) from None


async def last_run_named(scheduler: Scheduler, word: str) -> Run:
    """The run with this id, or else the last run of the schedule with this key: a planned one only without others."""
    found = await schedule_or_run(scheduler, word)
    if isinstance(found, Run):
        return found
    rows = await call(scheduler, timeline, Question(key=found.key), 1)
    for run in (*rows.happened, *rows.planned):
        if isinstance(run, Run):
            return run
    raise Refused(f"{found.key!r} has no run yet", fix=f"`evertick why {found.key}` shows when it fires")


def task_word(word: str) -> str:
    """The name of the task: listings show the run of a task without a schedule as a call, `task()`."""
    return word.removesuffix("()")


async def nearer(scheduler: Scheduler, missing: NotFound) -> NotFound:
    """The error with a suggestion: something of another kind with this name, or a similar key."""
    word = missing.value
    if word is None:
        return missing
    if other := await _of_another_kind(scheduler, word):
        return NotFound(missing.problem, fix=f"{word!r} is {other}")
    for key in (await call(scheduler, similar_keys, word))[:1]:
        return NotFound(missing.problem, fix=f"did you mean {key!r}?")
    return missing


async def _of_another_kind(scheduler: Scheduler, word: str) -> str | None:
    """The kind of a thing with this name that is not a schedule, and the command that shows it."""
    found = await call(scheduler, namesake, word)
    if found is None and word != task_word(word):
        found = await call(scheduler, namesake, task_word(word))
    match found:
        case None:
            return None
        case Namesake(kind="duty", name=name):
            return f"a duty, see `evertick duties {name}`"
        case Namesake(kind="channel", name=name):
            return f"a channel, see `evertick outbox list --channel {name}`"
        case Namesake(kind="node"):
            return "a node, see `evertick nodes`"
        case Namesake(name=task, keys=keys):
            schedules = f"of the schedules {', '.join(keys[:_KEYS_NAMED])}" if keys else "without a schedule"
            return f"a task {schedules}, see `evertick why {task}` and `evertick history --task {task}`"


_FILE = "evertick.cli.file"
_NAMED_MOST = 10


def remember_file(file: str | None, *, is_read: bool) -> None:
    """Remember the configuration file of the command. `is_read`: whether the command uses one."""
    if (context := click.get_current_context(silent=True)) is not None and is_read:
        context.meta[_FILE] = file or ""


def disabled_jobs() -> dict[str, str]:
    """The disabled jobs by name, each with its place in the file. Empty if no file is read, or it cannot be read."""
    context = click.get_current_context(silent=True)
    if context is None or _FILE not in context.meta:
        return {}
    try:
        return load_disabled(context.meta[_FILE] or None)
    except InvalidConfiguration:
        return {}


def disabled_error(name: str, place: str) -> NotFound:
    fix = f"remove `enabled = false` there, or try it once with `evertick trigger {name}`"
    return NotFound(f"job {name!r} is disabled at {place} and has no schedule yet", fix=fix)


def tell_disabled(disabled: Mapping[str, str], known: Iterable[str]) -> str | None:
    """A line about the disabled jobs that have no schedule."""
    missing = {name: place for name, place in disabled.items() if name not in {*known}}
    if not missing:
        return None
    named = ", ".join(f"{name} ({place})" for name, place in [*missing.items()][:_NAMED_MOST])
    more = len(missing) - _NAMED_MOST
    return f"note: disabled jobs without a schedule: {named}{f' and {more} more' if more > 0 else ''}"


async def try_disabled(name: str, args: Mapping[str, Any] | None) -> Run:
    """Run a disabled job once, as its file defines it now, on a node that knows its task."""
    loaded = load_configuration(click.get_current_context().meta[_FILE] or None)
    job = next((each for each in loaded.jobs if each.name == name), None)
    if job is None:
        raise NotFound(
            f"{loaded.file} has no job {name!r}", fix=f"`evertick config show --config {loaded.file}` lists its jobs"
        )
    if job.spec is None or job.definition.mode == "every-node":
        # The task of other code is unknown here, and a fire on every node makes more than one run.
        place, why = (
            job.places.get("enabled", job.place),
            "runs on every node" if job.spec else "runs a task of other code",
        )
        problem = f"job {name!r} is disabled at {place}, and cannot be tried because it {why}"
        raise Refused(problem, fix="remove `enabled = false` there")
    scheduler = scheduler_from(loaded, actor=Actor.of_command_line())
    try:
        definition = job.definition
        return await call(
            scheduler,
            enqueue,
            name,
            definition.args if args is None else args,
            queue=definition.queue,
            priority=definition.priority,
            labels=definition.labels,
        )
    finally:
        await scheduler.close()
