"""Commands about schedules: list, show (which shows a run, too), trigger, remove."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click
import msgspec

from evertick.cli.apps import hint_other_apps
from evertick.cli.candidates import complete_keys
from evertick.cli.command.history import print_ledger, row_of, timeline_data
from evertick.cli.command.runs import hint_if_stuck, print_run, run_data
from evertick.cli.database import on_store
from evertick.cli.disabled import disabled_jobs, tell_disabled, try_disabled
from evertick.cli.named import schedule_or_run
from evertick.cli.parameters import ArgumentsParameter, labels_option
from evertick.cli.show.ahead import first_fires, planned_fires
from evertick.cli.show.node_names import names_for
from evertick.cli.show.output import Column, as_json_option, ask, hint, print_facts, print_json, print_table, say
from evertick.cli.show.plan import checked_days, days_option, dry_run_option, print_plan
from evertick.cli.show.timeline import Question, timeline
from evertick.cli.show.words import ahead, data_text, decision_words, now, stamp, times_of, zone_name
from evertick.cli.time_zone import moments_tz_option, zone_of_rule
from evertick.errors import EvertickError, NotFound
from evertick.explain.words import REMEDY, is_left_behind
from evertick.model import Run, Schedule, State
from evertick.model.every_node import is_own_queue
from evertick.scheduler.scheduler import Scheduler
from evertick.when import parse_when

__all__ = ["declarer_words", "list_schedules", "remove", "rule_words", "show", "show_data", "trigger", "upcoming_of"]

_UPCOMING = 5
_RECENT = 10


@click.command("list")
@labels_option
@moments_tz_option
@as_json_option
@on_store
async def list_schedules(scheduler: Scheduler, labels: tuple[tuple[str, str], ...], as_json: bool) -> None:
    """List the schedules, their next fire and last verdict.

    AT is in the zone of each schedule, or in that of --tz; ZONE is its name.

    \b
    Example:
      evertick list
      evertick list --tz Asia/Tokyo
      evertick list --label team=sales
      evertick list --database sqlite:////var/lib/shop/jobs.db --app shop --json
    """
    found = await scheduler.schedules(labels=dict(labels))
    if as_json:
        print_json(found)
        return
    if not found:
        those = f" with {' and '.join(f'{name}={value}' for name, value in labels)}" if labels else ""
        hint(f"there are no schedules{those} in app {scheduler.app!r}")
        if not labels:
            await hint_other_apps(scheduler)
    else:
        moment = now()
        firsts = await first_fires(scheduler, found)
        rows = [_row(schedule, firsts[schedule.key], moment) for schedule in found]
        columns = [
            Column(title="KEY"),
            Column(title="TASK", is_cut=True, width_least=100),
            Column(title="RULE", below="own", gives_way=4),
            Column(title="NEXT", below="shared", gives_way=2),
            Column(title="AT", is_moment=True, below="shared", gives_way=1),
            # The rule names it, too.
            Column(title="ZONE", gives_way=6),
            Column(title="LAST", is_coloured=True, below="shared", gives_way=3),
            Column(title="NOTE", is_cut=True, cut_least=30, is_whole_below=True, gives_way=5),
        ]
        print_table(columns, rows)
    if not labels and (told := tell_disabled(disabled_jobs(), (schedule.key for schedule in found))):
        hint(told)


def _row(schedule: Schedule, first: datetime | None, moment: datetime) -> list[str]:
    is_waiting = not schedule.is_paused and first is not None
    with times_of(zone_of_rule(schedule.when)) as zone:
        return [
            schedule.key,
            schedule.task,
            schedule.when,
            "paused" if schedule.is_paused else "over" if _is_over(schedule) else ahead(first, moment),
            stamp(first) if is_waiting else "-",
            zone_name(zone),
            _last(schedule),
            "; ".join(_remarks(schedule)),
        ]


def _last(schedule: Schedule) -> str:
    last = schedule.last_verdict or schedule.last_state
    return "-" if last is None else f"{last.value} ({schedule.last_reason})" if schedule.last_reason else last.value


def _remarks(schedule: Schedule) -> Iterator[str]:
    # The note first: it is what nobody else can tell, and a narrow terminal cuts the end.
    if schedule.pause_note:
        yield schedule.pause_note
    if schedule.paused_until is not None:
        yield f"until {stamp(schedule.paused_until)}"
    if schedule.error:
        yield f"cannot be planned: {schedule.error}"
    if schedule.mode == "every-node":
        yield "on every node"
    if schedule.overrides:
        yield f"differs from {declarer_words(schedule)}: {', '.join(schedule.overrides)}"


@click.command()
@click.argument("key", metavar="KEY|RUN", shell_complete=complete_keys)
@as_json_option
@on_store
async def show(scheduler: Scheduler, key: str, as_json: bool) -> None:
    """Show everything about one schedule, or one run.

    Of a schedule: its rule in words, its next fires, its policies, its recent runs. Of a run, named by its id or the
    beginning of it: its fields, its error with the traceback, its earlier attempts, what it has logged.

    \b
    Example:
      evertick show report
      evertick show 01a1e06c-c7bb-7e9b-8894-4297139cf510
    """
    found = await schedule_or_run(scheduler, key)
    if isinstance(found, Schedule):
        await _show_schedule(scheduler, found, as_json)
    elif as_json:
        print_json(await run_data(scheduler, found))
    else:
        await print_run(scheduler, found)


async def _show_schedule(scheduler: Scheduler, schedule: Schedule, as_json: bool) -> None:
    found = await timeline(scheduler, Question(key=schedule.key, with_gaps=True), _RECENT)
    if as_json:
        recent = await timeline_data(scheduler, found, _RECENT)
        print_json({**await show_data(scheduler, schedule), "recent": recent})
        return
    print_facts(_facts(schedule, await upcoming_of(scheduler, schedule), await _definition(scheduler, schedule)))
    for title, rows in (("Recently", found.happened), ("Planned", found.planned[:_RECENT])):
        if rows:
            say("")
            say((title, "bold"))
            print_ledger(rows, await names_for(scheduler, rows), is_one_schedule=True)


async def show_data(scheduler: Scheduler, schedule: Schedule) -> dict[str, Any]:
    """The schedule as JSON, with its rule in words and its next fires."""
    upcoming = await upcoming_of(scheduler, schedule)
    return {**msgspec.structs.asdict(schedule), "words": rule_words(schedule), "upcoming": upcoming}


async def upcoming_of(scheduler: Scheduler, schedule: Schedule) -> list[datetime]:
    """The next times at which it runs. The first is the planned one, even if overdue or counted from the end of a run.

    What somebody skips and what a blackout drops is left out; what is moved or held is where it goes.
    """
    hidden = {each.fire_at for each in schedule.occurrences}
    # Some may come together: what is held runs when the blackout opens, perhaps at the very moment of another.
    try:
        planned = await planned_fires(scheduler, [schedule], count=2 * _UPCOMING + len(hidden))
    except EvertickError:  # a rule that cannot be read any more: `rule_words` says why
        return []
    plain = {each.at for each in planned if each.prospect is None}
    first = schedule.next_fire_at
    if first is not None and not schedule.is_paused and first not in hidden and schedule.blackout is None:
        plain = {each for each in plain if each > first} | {first}
    elsewhere = {each.at for each in planned if each.prospect in ("moved", "held")}
    zone = planned[0].fire_at.tzinfo if planned else None
    return [each.astimezone(zone) for each in sorted(plain | elsewhere)][:_UPCOMING]


def declarer_words(schedule: Schedule) -> str:
    """What says how a declared schedule is."""
    return "the configuration" if schedule.declared_in == "file" else "the code"


def rule_words(schedule: Schedule) -> str:
    """The rule in words, or why it has none."""
    try:
        return parse_when(schedule.when).explain()
    except EvertickError as error:
        return f"cannot be read: {error}"


async def _definition(scheduler: Scheduler, schedule: Schedule) -> list[str]:
    """Where it is defined, and whether the nodes that run say otherwise."""
    if not schedule.is_declared:
        return ["at run time"]
    stored = await (await scheduler.runtime.store()).stored_schedules(scheduler.app, keys=[schedule.key])
    living = [node for node in await scheduler.nodes() if node.died_at is None]
    is_stale = any(is_left_behind(each.key, each.declared, living) for each in stored)
    # What it does is no part of the ledger.
    does = f"in a configuration; what it does: `evertick config show {schedule.key}`"
    where = "in code" if schedule.declared_in == "code" else does
    return [where, *([f"of a node that has gone: live ones declare it otherwise; {REMEDY}"] if is_stale else [])]


def _facts(
    schedule: Schedule, upcoming: list[datetime], definition: list[str]
) -> Iterator[tuple[str, str | list[str]]]:
    moment = now()
    yield "Schedule", schedule.key
    yield "App", schedule.app
    yield "Task", schedule.task
    yield "Arguments", data_text(schedule.args) if schedule.args else ""
    yield "Rule", schedule.when
    yield "In words", rule_words(schedule)
    yield "State", [_state(schedule), *_remarks(schedule)]
    nexts = [f"{stamp(each, is_exact=True)}  {ahead(each, moment)}" for each in upcoming]
    yield ("Would fire" if schedule.is_paused else "Next fires"), nexts or "never"
    yield "Decided", [decision_words(each) for each in schedule.occurrences]
    yield "Catch-up", schedule.catch_up + (f", up to {schedule.catch_up_limit}" if schedule.catch_up == "all" else "")
    yield "Grace", "" if schedule.grace_seconds is None else f"{schedule.grace_seconds:g} s"
    yield "Overlap", schedule.overlap
    yield "Mode", "" if schedule.mode == "claimed" else "every-node: a run on each live node that knows the task"
    yield "Unique", schedule.unique or ""
    yield "Blackout", "" if schedule.blackout is None else f"{schedule.blackout}, {schedule.blackout_fate}"
    yield "Pauses", "" if schedule.pause_after is None else f"after {schedule.pause_after} failures in a row"
    yield "Queue", f"{schedule.queue}, priority {schedule.priority}"
    yield "Labels", ", ".join(f"{name}={value}" for name, value in schedule.labels.items())
    yield "Defined", definition
    yield "Created", f"{stamp(schedule.created_at)}, version {schedule.version}"
    yield "Fires", str(schedule.fires)
    yield "Last run", schedule.last_run_id or ""
    yield "Finished", ", ".join(f"{count} {verdict}" for verdict, count in sorted(schedule.counts.items())) or "none"


def _state(schedule: Schedule) -> str:
    if schedule.is_paused:
        return "paused"
    return "over: its rule has no further moment" if _is_over(schedule) else "active"


def _is_over(schedule: Schedule) -> bool:
    """One that counts from the end of its run has no next moment while that runs."""
    return schedule.next_fire_at is None and schedule.last_state in (None, State.DONE) and not schedule.error


@click.command()
@click.argument("key", shell_complete=complete_keys)
@click.option("--args", type=ArgumentsParameter(), help="Arguments for this run, as a JSON object.")
@as_json_option
@on_store
async def trigger(scheduler: Scheduler, key: str, args: dict[str, Any] | None, as_json: bool) -> None:
    """Run a schedule's task now, by hand.

    Works while it is paused, and obeys its overlap policy. One that is for every node runs on each that is not still
    at it; with --json the first of these runs is printed. A job that the configuration has with enabled = false and
    that has no schedule yet is tried once: a run of its own, as the file has it.

    \b
    Example:
      evertick trigger report
      evertick trigger report --args '{"month": "2026-01"}'
    """
    run = await _triggered(scheduler, key, args)
    if as_json:
        print_json(await row_of(scheduler, run))
        return
    if is_own_queue(run.queue):
        same = await scheduler.runs(key, since=run.fire_at, until=run.fire_at)
        ids = sorted(each.id for each in same if each.cause is run.cause)
        say(f"triggered {key} on {len(ids)} {'node' if len(ids) == 1 else 'nodes'}: {', '.join(ids)}")
        return
    once = "" if run.schedule_key else ", once: it is disabled"
    say(f"triggered {key}{once}: run {run.id}")
    await hint_if_stuck(scheduler, run)


async def _triggered(scheduler: Scheduler, key: str, args: dict[str, Any] | None) -> Run:
    try:
        return await scheduler.trigger(key, args=args)
    except NotFound:
        if key not in disabled_jobs():
            raise
    return await try_disabled(key, args)


@click.command()
@click.argument("key", shell_complete=complete_keys)
@click.option("--yes", is_flag=True, help="Do not ask.")
@dry_run_option
@days_option
@as_json_option
@on_store
async def remove(scheduler: Scheduler, key: str, yes: bool, dry_run: bool, days: int | None, as_json: bool) -> None:
    """Take a schedule away; its history stays.

    Its waiting runs are cancelled, and those in a queue that no worker has taken; what runs, runs on. One that code or
    a configuration declares is refused, since it would come back at the next start: pause it, or take it out there
    first. With --dry-run nothing is written: it shows which fires would not come.

    \b
    Example:
      evertick remove digest-7 --dry-run
      evertick remove digest-7 --yes
    """
    look_days = checked_days(days, dry_run)
    if dry_run:
        print_plan(await scheduler.preview_change(key, remove=True, days=look_days), as_json)
        return
    schedule = await scheduler.schedule(key)
    is_refused_anyway = schedule.is_declared and not schedule.is_paused
    if not yes and not is_refused_anyway:
        ask(f"remove the schedule {key!r} ({schedule.when}) of app {schedule.app!r}?", "remove it")
    await scheduler.remove(key)
    if as_json:
        print_json(schedule)
    else:
        say(f"removed {key}; `evertick history {key}` still shows what became of it")
