"""Commands about schedules: list, show, trigger, pause, resume."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click
import msgspec

from evertick.cli.database import on_store
from evertick.cli.ledger import print_ledger, row_data
from evertick.cli.output import Column, as_json_option, hint, print_facts, print_json, print_table, say
from evertick.cli.parameters import ArgumentsParameter, MomentParameter
from evertick.cli.words import data_text, distance, now, span, stamp
from evertick.errors import EvertickError
from evertick.model import Schedule, State
from evertick.scheduler import Planned, Scheduler
from evertick.when import parse_when

__all__ = ["list_schedules", "pause", "resume", "show", "trigger"]

_UPCOMING = 5
_RECENT = 10


@click.command("list")
@as_json_option
@on_store
async def list_schedules(scheduler: Scheduler, as_json: bool) -> None:
    """List the schedules, their next fire and last verdict.

    \b
    Example:
      evertick list
      evertick list --database sqlite:////var/lib/shop/jobs.db --app shop --json
    """
    found = await scheduler.schedules()
    if as_json:
        print_json(found)
    elif not found:
        hint(f"there are no schedules in app {scheduler.app!r}")
    else:
        moment = now()
        columns = [
            Column(title="KEY"),
            Column(title="TASK", is_cut=True, width_least=100),
            Column(title="RULE", is_cut=True),
            Column(title="NEXT"),
            Column(title="AT"),
            Column(title="LAST", is_coloured=True),
            Column(title="NOTE", is_cut=True),
        ]
        print_table(columns, [_row(schedule, moment) for schedule in found])


def _row(schedule: Schedule, moment: datetime) -> list[str]:
    is_waiting = not schedule.is_paused and schedule.next_fire_at is not None
    return [
        schedule.key,
        schedule.task,
        schedule.when,
        "paused" if schedule.is_paused else distance(schedule.next_fire_at, moment).replace("ago", "overdue"),
        stamp(schedule.next_fire_at) if is_waiting else "-",
        _last(schedule),
        "; ".join(_remarks(schedule)),
    ]


def _last(schedule: Schedule) -> str:
    last = schedule.last_verdict or schedule.last_state
    return "-" if last is None else f"{last.value} ({schedule.last_reason})" if schedule.last_reason else last.value


def _remarks(schedule: Schedule) -> Iterator[str]:
    if schedule.paused_until is not None:
        yield f"until {stamp(schedule.paused_until)}"
    if schedule.pause_note:
        yield schedule.pause_note
    if schedule.error:
        yield f"cannot be planned: {schedule.error}"
    if schedule.overrides:
        yield f"differs from the code: {', '.join(schedule.overrides)}"


@click.command()
@click.argument("key")
@as_json_option
@on_store
async def show(scheduler: Scheduler, key: str, as_json: bool) -> None:
    """Show everything about one schedule.

    Its rule in words, its next fires, its policies, its recent runs.

    \b
    Example:
      evertick show report
    """
    schedule = await scheduler.schedule(key)
    upcoming = await _upcoming(scheduler, key)
    recent = await scheduler.history(key, limit=_RECENT)
    if as_json:
        more = {"words": _rule_words(schedule), "upcoming": [planned.fire_at for planned in upcoming]}
        print_json({**msgspec.structs.asdict(schedule), **more, "recent": [row_data(row) for row in recent]})
        return
    print_facts(_facts(schedule, upcoming))
    if recent:
        say("")
        print_ledger(recent, is_one_schedule=True)


async def _upcoming(scheduler: Scheduler, key: str) -> list[Planned]:
    try:
        return await scheduler.preview(key=key, count=_UPCOMING)
    except EvertickError:  # a rule that cannot be read any more: `_rule_words` says why
        return []


def _rule_words(schedule: Schedule) -> str:
    try:
        return parse_when(schedule.when).explain()
    except EvertickError as error:
        return f"cannot be read: {error}"


def _facts(schedule: Schedule, upcoming: list[Planned]) -> Iterator[tuple[str, str | list[str]]]:
    moment = now()
    yield "Schedule", schedule.key
    yield "App", schedule.app
    yield "Task", schedule.task
    yield "Arguments", data_text(schedule.args) if schedule.args else ""
    yield "Rule", schedule.when
    yield "In words", _rule_words(schedule)
    yield "State", [_state(schedule), *_remarks(schedule)]
    nexts = [
        f"{stamp(each.fire_at, is_local=False, is_exact=True)}  {distance(each.fire_at, moment)}" for each in upcoming
    ]
    yield ("Would fire" if schedule.is_paused else "Next fires"), nexts or "never"
    yield "Catch-up", schedule.catch_up + (f", up to {schedule.catch_up_limit}" if schedule.catch_up == "all" else "")
    yield "Grace", "" if schedule.grace_seconds is None else f"{schedule.grace_seconds:g} s"
    yield "Overlap", schedule.overlap
    yield "Queue", f"{schedule.queue}, priority {schedule.priority}"
    yield "Labels", ", ".join(f"{name}={value}" for name, value in schedule.labels.items())
    yield "Defined", "in code" if schedule.is_declared else "at run time"
    yield "Created", f"{stamp(schedule.created_at)}, version {schedule.version}"
    yield "Fires", str(schedule.fires)
    yield "Finished", ", ".join(f"{count} {verdict}" for verdict, count in sorted(schedule.counts.items())) or "none"


def _state(schedule: Schedule) -> str:
    if schedule.is_paused:
        return "paused"
    # One that counts from the end of its run has no next moment while that runs.
    is_over = schedule.next_fire_at is None and schedule.last_state in (None, State.DONE)
    return "over: its rule has no further moment" if is_over else "active"


@click.command()
@click.argument("key")
@click.option("--args", type=ArgumentsParameter(), help="Arguments for this run, as a JSON object.")
@as_json_option
@on_store
async def trigger(scheduler: Scheduler, key: str, args: dict[str, Any] | None, as_json: bool) -> None:
    """Run a schedule's task now, by hand.

    Works while it is paused, and obeys its overlap policy.

    \b
    Example:
      evertick trigger report
      evertick trigger report --args '{"month": "2026-01"}'
    """
    run = await scheduler.trigger(key, args=args)
    if as_json:
        print_json(row_data(run))
        return
    say(f"triggered {key}: run {run.id}")
    if not any(node.died_at is None and run.task in node.tasks for node in await scheduler.nodes()):
        hint(f"note: no live node knows the task {run.task!r}; the run waits until one is started")


@click.command()
@click.argument("key")
@click.option("--note", default="", help="Why; shown wherever the schedule is.")
@click.option("--until", type=MomentParameter(), help="Resume by itself then.")
@as_json_option
@on_store
async def pause(scheduler: Scheduler, key: str, note: str, until: datetime | None, as_json: bool) -> None:
    """Stop a schedule from firing.

    What runs, runs on; the moments that pass are recorded as skipped.

    \b
    Example:
      evertick pause report --note "the warehouse moves" --until 2h
      evertick pause report --until 2026-01-31T09:00:00Z
    """
    schedule = await scheduler.pause(key, note=note, until=until)
    if as_json:
        print_json(schedule)
    elif schedule.paused_until is None:
        say(f"paused {key}, until `evertick resume {key}`")
    else:
        say(f"paused {key} until {stamp(schedule.paused_until)} ({distance(schedule.paused_until, now())})")


@click.command()
@click.argument("key")
@as_json_option
@on_store
async def resume(scheduler: Scheduler, key: str, as_json: bool) -> None:
    """Let a paused schedule go on from now.

    The moments that have passed do not run.

    \b
    Example:
      evertick resume report
    """
    before = await scheduler.schedule(key)
    schedule = await scheduler.resume(key)
    if as_json:
        print_json(schedule)
    elif not before.is_paused:
        say(f"{key} was not paused")
    else:
        next_fire = schedule.next_fire_at
        following = "" if next_fire is None else f"; next fire {stamp(next_fire)} ({distance(next_fire, now())})"
        stood = "" if before.paused_at is None else f" after {span(now() - before.paused_at)}"
        say(f"resumed {key}{stood}{following}")
