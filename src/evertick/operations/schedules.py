"""Schedules: adding, changing, pausing, triggering and listing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Literal, Unpack
from zoneinfo import ZoneInfo

import msgspec

from evertick.definition.options import (
    PolicyOptions,
    blackout_given,
    make_definition,
    refuse_rule_option,
    refuse_task_options,
    split_added,
)
from evertick.definition.settings import check_key, check_labels
from evertick.definition.task import Task
from evertick.errors import AlreadyDeclared, InvalidInput
from evertick.explain.schedule import Why, explain_schedule
from evertick.explain.words import is_left_behind, living_of
from evertick.ledger.editor import Addition, no_schedule
from evertick.ledger.parsed_rules import rule_in_force
from evertick.model import Run, Schedule
from evertick.operations.context import Context, check_limit, check_note, checked
from evertick.operations.runs import get_run
from evertick.store.base import RunFilter, ScheduleFilter
from evertick.text.values import shown
from evertick.when import When, parse_when, to_us

__all__ = [
    "Namesake",
    "add",
    "add_many",
    "is_declared_otherwise",
    "namesake",
    "pause",
    "remove",
    "resume",
    "rule_given",
    "rule_zone",
    "schedule",
    "schedules",
    "schedules_with_prefix",
    "similar_keys",
    "trigger",
    "update",
    "why",
]

ADD_MANY_MAX = 10_000
_PAGE = 1_000
_KEYS_COMPARED = 10_000
_SIMILAR = 0.6


class Namesake(msgspec.Struct, frozen=True, kw_only=True):
    """A duty, channel, node or task with the name of a wanted schedule."""

    kind: Literal["duty", "channel", "node", "task"]
    name: str
    # Of a task: the keys of its schedules.
    keys: tuple[str, ...] = ()


def rule_given(when: Any) -> When:
    """The rule, also from text: "0 9 * * mon-fri", "weekdays at 18:30", "every 15 minutes"."""
    if isinstance(when, str):
        return parse_when(when)
    if not isinstance(when, When):
        raise InvalidInput(
            f"when: {shown(when)} is not a rule",
            setting="when",
            value=shown(when),
            fix="pass Cron(...), Every(...), Once(...) or text like 'daily at 9:00'",
        )
    return when


@checked(key=check_key, when=rule_given)
async def add(
    context: Context, key: str, *, when: When | str, task: Task[Any, Any] | str, **options: Unpack[PolicyOptions]
) -> Schedule:
    """Add a schedule at run time. An existing key is refused."""
    await add_many(context, [{"key": key, "when": when, "task": task, **options}])
    return await schedule(context, key)


async def add_many(context: Context, schedules: Iterable[Mapping[str, Any]]) -> None:
    """Add many schedules, each given like the arguments of `add`, all or none."""
    additions = [_addition(context, dict(each)) for each in schedules]
    if len(additions) > ADD_MANY_MAX:
        problem = f"{len(additions):,} schedules are too many for one call"
        raise InvalidInput(problem, setting="schedules", fix=f"add at most {ADD_MANY_MAX:,} at a time")
    keys = [added.key for added in additions]
    if len(set(keys)) < len(keys):
        duplicate = next(key for key in keys if keys.count(key) > 1)
        raise AlreadyDeclared(
            f"schedule {duplicate!r} is given twice",
            setting="key",
            value=duplicate,
            fix="use another key, or leave one out",
        )
    taken = await context.editor().add(additions, all_or_none=True)
    if not all(taken):
        key = keys[taken.index(False)]
        raise AlreadyDeclared(f"schedule {key!r} exists already; nothing was added", fix="use update(), or another key")
    context.wake_fires()


@checked(key=check_key, when=rule_given)
async def update(
    context: Context, key: str, *, when: When | str | None = None, **options: Unpack[PolicyOptions]
) -> Schedule:
    """Change a schedule. Its cursor restarts from now; the change itself fires nothing."""
    rule = None if when is None else rule_given(when)
    for stored in await context.store.stored_schedules(context.app, keys=[key]):
        changed = make_definition(stored.definition.task, options, stored.definition)
        context.check_arguments(changed.task, changed.args)
    await context.editor().edit(
        key, lambda base: make_definition(base.task, options, base), rule=rule, blackout=blackout_given(options)
    )
    context.wake_fires()
    return await schedule(context, key)


@checked(key=check_key)
async def remove(context: Context, key: str) -> None:
    """Remove a schedule. Waiting runs, and dispatched runs that no worker has taken, are cancelled. History stays."""
    await context.editor().remove(key)
    context.tell("removed", key)


@checked(key=check_key, note=check_note, until=to_us)
async def pause(context: Context, key: str, *, note: str = "", until: datetime | None = None) -> Schedule:
    """Pause a schedule, with an optional note and end. Running jobs continue."""
    await context.editor().pause(key, note=note, until=None if until is None else to_us(until))
    context.tell("paused", key, note=note)
    context.wake_fires()
    return await schedule(context, key)


@checked(key=check_key)
async def resume(context: Context, key: str) -> Schedule:
    """Resume a paused schedule from now. Its paused moments become one gap."""
    await context.editor().resume(key)
    context.wake_fires()
    return await schedule(context, key)


@checked(key=check_key)
async def trigger(context: Context, key: str, *, args: Mapping[str, Any] | None = None) -> Run:
    """Run a schedule's task now, by hand. Works while the schedule is paused, and obeys its overlap policy."""
    encoded = None if args is None else context.encode_arguments((await schedule(context, key)).task, args)
    run_id = await context.editor().trigger(key, args=encoded)
    context.wake_runs()
    return await get_run(context, run_id)


@checked(limit=check_limit)
async def schedules(
    context: Context,
    *,
    labels: Mapping[str, str] | None = None,
    is_paused: bool | None = None,
    limit: int | None = None,
) -> list[Schedule]:
    """All schedules, by key."""
    wanted_labels = check_labels(labels or {})
    found, after = list[Schedule](), None
    while limit is None or len(found) < limit:
        page = _PAGE if limit is None else min(_PAGE, limit - len(found))
        wanted = ScheduleFilter(labels=wanted_labels, is_paused=is_paused, after_key=after, limit=page)
        batch = await context.store.schedules(context.app, wanted)
        found += batch
        if len(batch) < page:
            break
        after = batch[-1].key
    return found


@checked(key=check_key)
async def schedule(context: Context, key: str) -> Schedule:
    """One schedule. Raises NotFound."""
    found = await context.store.schedules(context.app, ScheduleFilter(keys=(key,)))
    if not found:
        raise no_schedule(context.app, key)
    return found[0]


async def schedules_with_prefix(context: Context, prefix: str, *, limit: int = 100) -> list[Schedule]:
    """Schedules whose key begins with this, by key, without counts of their runs."""
    same = ScheduleFilter(keys=(prefix,), with_counts=False)
    after = ScheduleFilter(after_key=prefix, limit=check_limit(limit), with_counts=False)
    found = [*await context.store.schedules(context.app, same), *await context.store.schedules(context.app, after)]
    return [each for each in found if each.key.startswith(prefix)][:limit]


async def similar_keys(context: Context, key: str) -> list[str]:
    """Similar keys of schedules, the most similar first; none if a schedule has the key."""
    known = await _tasks_by_key(context)
    return [] if key in known else get_close_matches(key, known, cutoff=_SIMILAR)


async def namesake(context: Context, name: str) -> Namesake | None:
    """The duty, the channel of the outbox, the node or the task with this name; None if there is none."""
    store, app = context.store, context.app
    if any(name == duty.name for duty in await store.duties(app)):
        return Namesake(kind="duty", name=name)
    nodes = await store.nodes(app)
    unsent = [pulse.channel for pulse in await store.channels(app)]
    if name in unsent or any(name in node.channels for node in nodes):
        return Namesake(kind="channel", name=name)
    if any(name in (node.name, node.id) for node in nodes):
        return Namesake(kind="node", name=name)
    keys = tuple(key for key, task in (await _tasks_by_key(context)).items() if task == name)
    # The ledger has runs of a task that no live node knows.
    if keys or any(name in node.tasks for node in nodes) or await store.runs(app, RunFilter(task=name, limit=1)):
        return Namesake(kind="task", name=name, keys=keys)
    return None


async def _tasks_by_key(context: Context) -> dict[str, str]:
    wanted = ScheduleFilter(limit=_KEYS_COMPARED, with_counts=False)
    return {each.key: each.task for each in await context.store.schedules(context.app, wanted)}


async def rule_zone(context: Context, key: str) -> ZoneInfo | None:
    """The zone of a schedule; None if there is no such schedule, or its rule cannot be parsed."""
    rule = await rule_in_force(context.store, context.app, key)
    return None if rule is None else rule.zone


async def is_declared_otherwise(context: Context, key: str) -> bool:
    """Whether the declaration in force is of a node that has ended, and live nodes declare it differently."""
    stored = await context.store.stored_schedules(context.app, keys=[key])
    living = living_of(await context.store.nodes(context.app))
    return any(is_left_behind(each.key, each.declared, living) for each in stored)


@checked(key=check_key)
async def why(context: Context, key: str) -> Why:
    """When a schedule fires next and why, the outcome of its last moments, and what it waits for now, as text."""
    return await explain_schedule(context.store, context.app, key)


def _addition(context: Context, given: dict[str, Any]) -> Addition:
    missing = [name for name in ("key", "when", "task") if name not in given]
    if missing:
        raise InvalidInput(
            f"a schedule has no {missing[0]}=, only {', '.join(sorted(given)) or 'nothing'}",
            setting=missing[0],
            fix="pass key=, when= and task=",
        )
    key, when, task = check_key(given.pop("key")), rule_given(given.pop("when")), given.pop("task")
    if callable(task) and not isinstance(task, Task):
        raise InvalidInput(
            f"task: {shown(task)} is a function",
            setting="task",
            value=shown(task),
            fix="pass the task that @scheduler.task made of it, or its name",
        )
    name = task.name if isinstance(task, Task) else check_key(task, what="task")
    rules, policies, tasks = split_added(given, key)
    for rule in rules:
        refuse_rule_option(rule, type(when).__name__)
    refuse_task_options(tasks, name)
    definition = make_definition(name, policies)
    context.check_arguments(name, definition.args)
    return Addition(key=key, rule=when, definition=definition, blackout=blackout_given(policies))
