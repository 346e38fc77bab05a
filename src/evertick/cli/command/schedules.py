"""The commands list, show, trigger, remove, add, update, pause and resume."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

import click
import msgspec

from evertick.cli.command.completion import complete_keys, complete_tasks
from evertick.cli.command.nodes import hint_other_apps
from evertick.cli.command.runs import hint_if_stuck, print_ledger, print_run, row_of, run_data, timeline_data
from evertick.cli.database import on_store
from evertick.cli.named import disabled_jobs, schedule_or_run, tell_disabled, try_disabled
from evertick.cli.parameters import ArgumentsParameter, LabelParameter, MomentParameter, labels_option
from evertick.cli.show.output import Column, as_json_option, ask, hint, print_facts, print_json, print_table, say
from evertick.cli.show.plan import (
    checked_days,
    days_option,
    dry_run_option,
    plan_data,
    print_plan,
    readable,
    say_nothing_changed,
)
from evertick.cli.show.progress import note_if_interrupted, progress
from evertick.cli.show.words import (
    ahead,
    data_text,
    decision_words,
    distance,
    names_for,
    now,
    stamp,
    times_of,
    zone_name,
)
from evertick.cli.time_zone import moments_tz_option, zone_of_rule
from evertick.errors import EvertickError, NotFound
from evertick.explain.words import REMEDY
from evertick.model import BLACKOUT_FATES, CATCH_UPS, OVERLAPS, SCHEDULE_MODES, UNIQUE_UNTIL, Run, Schedule, State
from evertick.model.every_node import is_own_queue
from evertick.operations.bulk import OnChange
from evertick.operations.next_fires import first_fires, planned_fires
from evertick.operations.schedules import is_declared_otherwise
from evertick.operations.timeline import Question, timeline
from evertick.scheduler.operation import call
from evertick.scheduler.scheduler import Scheduler
from evertick.text.time_span import span
from evertick.when import parse_when

__all__ = [
    "add",
    "declarer_words",
    "list_schedules",
    "pause",
    "remove",
    "resume",
    "rule_words",
    "show",
    "show_data",
    "trigger",
    "upcoming_of",
    "update",
]

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
        filters = f" with {' and '.join(f'{name}={value}' for name, value in labels)}" if labels else ""
        hint(f"there are no schedules{filters} in app {scheduler.app!r}")
        if not labels:
            await hint_other_apps(scheduler)
    else:
        moment = now()
        firsts = await call(scheduler, first_fires, found)
        rows = [_row(schedule, firsts[schedule.key], moment) for schedule in found]
        columns = [
            Column(title="KEY"),
            Column(title="TASK", is_cut=True, width_least=100),
            Column(title="RULE", below="own", gives_way=4),
            Column(title="NEXT", below="shared", gives_way=2),
            Column(title="AT", is_moment=True, below="shared", gives_way=1),
            # RULE names it, too.
            Column(title="ZONE", gives_way=6),
            Column(title="LAST", is_coloured=True, below="shared", gives_way=3),
            Column(title="NOTE", is_cut=True, cut_least=30, is_whole_below=True, gives_way=5),
        ]
        print_table(columns, rows)
    if not labels and (line := tell_disabled(disabled_jobs(), (schedule.key for schedule in found))):
        hint(line)


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
    # The note comes first, because a narrow terminal cuts the end.
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
    """Show the details of one schedule, or one run.

    For a schedule: its rule in words, next fires, policies and recent runs. For a run, named by its id or the first
    characters of it: its fields, its error with the traceback, its earlier attempts and its log.

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
    found = await call(scheduler, timeline, Question(key=schedule.key, with_gaps=True), _RECENT)
    if as_json:
        recent = await timeline_data(scheduler, found, _RECENT)
        print_json({**await show_data(scheduler, schedule), "recent": recent})
        return
    print_facts(_facts(schedule, await upcoming_of(scheduler, schedule), await _definition(scheduler, schedule)))
    for title, rows in (("Recent", found.happened), ("Planned", found.planned[:_RECENT])):
        if rows:
            say("")
            say((title, "bold"))
            print_ledger(rows, await names_for(scheduler, rows), is_one_schedule=True)


async def show_data(scheduler: Scheduler, schedule: Schedule) -> dict[str, Any]:
    """The schedule as JSON, with its rule in words and its next fires."""
    upcoming = await upcoming_of(scheduler, schedule)
    return {**msgspec.structs.asdict(schedule), "words": rule_words(schedule), "upcoming": upcoming}


async def upcoming_of(scheduler: Scheduler, schedule: Schedule) -> list[datetime]:
    """The next times at which it runs. The first is the planned one, also if it is overdue or counts from a run's end.

    Skipped and dropped moments are left out; moved and held ones have their new time.
    """
    overridden = {each.fire_at for each in schedule.occurrences}
    # More are planned than shown, because a held moment may run at the time of another.
    try:
        planned = await call(scheduler, planned_fires, [schedule], count=2 * _UPCOMING + len(overridden))
    except EvertickError:  # a rule that cannot be parsed: `rule_words` gives the reason
        return []
    normal = {each.at for each in planned if each.prospect is None}
    first = schedule.next_fire_at
    if first is not None and not schedule.is_paused and first not in overridden and schedule.blackout is None:
        normal = {each for each in normal if each > first} | {first}
    delayed = {each.at for each in planned if each.prospect in ("moved", "held")}
    zone = planned[0].fire_at.tzinfo if planned else None
    return [each.astimezone(zone) for each in sorted(normal | delayed)][:_UPCOMING]


def declarer_words(schedule: Schedule) -> str:
    """The source of the declaration of a schedule."""
    return "the configuration" if schedule.declared_in == "file" else "the code"


def rule_words(schedule: Schedule) -> str:
    """The rule in words, or the reason why it cannot be parsed."""
    try:
        return parse_when(schedule.when).explain()
    except EvertickError as error:
        return f"cannot be read: {error}"


async def _definition(scheduler: Scheduler, schedule: Schedule) -> list[str]:
    """Where it is defined, and whether live nodes define it differently."""
    if not schedule.is_declared:
        return ["at run time"]
    is_stale = await call(scheduler, is_declared_otherwise, schedule.key)
    # The ledger does not have the definition of the job.
    in_file = f"in a configuration; `evertick config show {schedule.key}` shows the job"
    where = "in code" if schedule.declared_in == "code" else in_file
    return [
        where,
        *([f"by a node that has ended, and live nodes declare it differently; {REMEDY}"] if is_stale else []),
    ]


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
    yield "Overrides", [decision_words(each) for each in schedule.occurrences]
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
    """Whether it never fires again. A rule that counts from the end of a run has no next moment during the run."""
    return schedule.next_fire_at is None and schedule.last_state in (None, State.DONE) and not schedule.error


@click.command()
@click.argument("key", shell_complete=complete_keys)
@click.option("--args", type=ArgumentsParameter(), help="Arguments for this run, as a JSON object.")
@as_json_option
@on_store
async def trigger(scheduler: Scheduler, key: str, args: dict[str, Any] | None, as_json: bool) -> None:
    """Run a schedule's task now, by hand.

    Works while the schedule is paused, and obeys its overlap policy. An every-node schedule runs on each node on which
    it does not run already; with --json the first of these runs is printed. A job with enabled = false in the
    configuration and without a schedule is tried once, with a run of its own.

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
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@dry_run_option
@days_option
@as_json_option
@on_store
async def remove(scheduler: Scheduler, key: str, yes: bool, dry_run: bool, days: int | None, as_json: bool) -> None:
    """Remove a schedule; its history stays.

    Its waiting runs, and dispatched runs that no worker has taken, are cancelled; running ones continue. A schedule
    that code or a configuration declares is refused, because the next start would add it again: pause it, or remove it
    there first. --dry-run shows which fires would be removed.

    \b
    Example:
      evertick remove digest-7 --dry-run
      evertick remove digest-7 --yes
    """
    preview_days = checked_days(days, dry_run)
    if dry_run:
        print_plan(await scheduler.preview_change(key, remove=True, days=preview_days), as_json)
        return
    schedule = await scheduler.schedule(key)
    is_refused_anyway = schedule.is_declared and not schedule.is_paused
    if not yes and not is_refused_anyway:
        ask(f"remove the schedule {key!r} ({schedule.when}) of app {schedule.app!r}?", "remove it")
    await scheduler.remove(key)
    if as_json:
        print_json(schedule)
    else:
        say(f"removed {key}; `evertick history {key}` still shows its runs")


F = TypeVar("F", bound=Callable[..., Any])

# The value that removes an option, and the options that can be removed.
_NONE = "none"
_MAY_BE_NONE = ("grace", "expires", "unique", "unique_for", "pause_after", "blackout", "calendar")
# Text options that always have a value, with the default.
_NEVER_NONE = {"queue": "default", "pace": "1s"}
_OPTIONS = (
    click.option("--args", type=ArgumentsParameter(), help="Arguments of its runs, as a JSON object."),
    click.option("--overlap", type=click.Choice(OVERLAPS), help="For a fire during a live run; default: skip."),
    click.option("--mode", type=click.Choice(SCHEDULE_MODES), help="One node per fire, or each; default: claimed."),
    click.option("--catch-up", type=click.Choice(CATCH_UPS), help="For fires missed in downtime; default: latest."),
    click.option("--catch-up-limit", type=int, help="With --catch-up all: run at most N missed fires."),
    click.option("--pace", metavar="DURATION", help="With --catch-up all: the least time between two runs."),
    click.option("--grace", metavar="DURATION|none", help="Fires noticed later than this are recorded as missed."),
    click.option("--expires", metavar="DURATION|none", help="A run not started within this is missed."),
    click.option("--queue", help="The queue of its runs; default: default."),
    click.option("--priority", type=int, help="Higher runs first; default: 0."),
    click.option("--unique", metavar="KEY|none", help="At most one live run with this key."),
    click.option("--unique-until", type=click.Choice(UNIQUE_UNTIL), help="How long --unique holds; default: end."),
    click.option("--unique-for", metavar="DURATION|none", help="Or hold --unique for a fixed time."),
    click.option("--pause-after", metavar="COUNT|none", help="Pause it after N failures in a row."),
    click.option("--blackout", metavar="CALENDAR|none", help="It does not fire while this calendar is closed."),
    click.option("--blackout-fate", type=click.Choice(BLACKOUT_FATES), help="For moments in the blackout."),
    click.option("--label", "labels", type=LabelParameter(), multiple=True, help="A label; may be repeated."),
    click.option("--tz", metavar="ZONE", help="The zone of the rule; default: node.tz of the configuration, else UTC."),
    click.option("--calendar", metavar="NAME|none", help="Fire only while this calendar is open."),
)


def _policy_options(command: F) -> F:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.argument("key")
@click.option("--task", required=True, shell_complete=complete_tasks, help="The name of the task to run.")
@click.option("--when", required=True, metavar="RULE", help='The rule, like "0 9 * * *" or "weekdays at 18:30".')
@_policy_options
@as_json_option
@on_store
async def add(scheduler: Scheduler, /, key: str, task: str, when: str, as_json: bool, **given: Any) -> None:
    """Add a schedule at run time.

    The rule is a cron expression, text like "every 90s", or a sentence; the command prints the rule in words and its
    next fires.

    \b
    Example:
      evertick add digest --task digest --when "weekdays at 18:30" --tz Asia/Tokyo
      evertick add poll --task poll --when "every 5m" --overlap queue
    """
    policies = _policies(given)
    options = {name: given[name] for name in ("tz", "calendar") if given[name] not in (None, _NONE)}
    rule = "; ".join([when, *(f"{name}={value}" for name, value in options.items())])
    schedule = await scheduler.add(key=key, when=rule, task=task, **policies)
    if as_json:
        print_json(await show_data(scheduler, schedule))
        return
    say(f"added {key}")
    await _print_rule(scheduler, schedule)
    if not any(node.died_at is None and task in node.tasks for node in await scheduler.nodes()):
        hint(f"note: no live node knows the task {task!r}; its runs wait until one is started")


@click.command()
@click.argument("key", shell_complete=complete_keys)
@click.option("--when", metavar="RULE", help="The new rule; default: no change.")
@_policy_options
@click.option("--no-labels", is_flag=True, help="Remove all labels.")
@dry_run_option
@days_option
@as_json_option
@on_store
async def update(
    scheduler: Scheduler,
    /,
    key: str,
    when: str | None,
    no_labels: bool,
    dry_run: bool,
    days: int | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Change a schedule; the change itself fires nothing.

    Only the given options change. A new rule keeps the zone of the old one unless it names a zone. "none" removes
    --grace, --expires, --unique, --unique-for, --pause-after, --blackout or --calendar; the others always have a value.
    --label replaces all labels, --no-labels removes them. --dry-run shows which fires would be added, removed and
    moved.

    \b
    Example:
      evertick update digest --when "weekdays at 19:00" --dry-run --days 120
      evertick update digest --grace none --overlap queue
    """
    policies, tz, calendar = _policies(given, is_unlabelled=no_labels), given["tz"], given["calendar"]
    preview_days = checked_days(days, dry_run)
    if when is None and tz is None and calendar is None and not policies:
        raise click.UsageError("no change is given; write --when or another option")
    if when is not None and tz is None:
        tz = await _zone_to_keep(scheduler, key, when)
    if calendar == _NONE:
        when, calendar = _without_calendar(when or (await scheduler.schedule(key)).when), None
    plan = readable(await scheduler.preview_change(key, when, tz=tz, calendar=calendar, days=preview_days, **policies))
    if dry_run:
        print_plan(plan, as_json)
        return
    is_rule_given = when is not None or tz is not None or calendar is not None
    schedule = await scheduler.update(key, when=plan.when_new if is_rule_given else None, **policies)
    if as_json:
        print_json(await show_data(scheduler, schedule))
        return
    say(f"updated {key}; {plan.words().partition(': ')[2]}")
    for option in plan.options:
        say(f"{option.name}: {option.old} -> {option.new}")
    await _print_rule(scheduler, schedule)
    if schedule.overrides:
        back = ", or `evertick apply --take-back`" if schedule.declared_in == "file" else ""
        declarer, options = declarer_words(schedule), ", ".join(schedule.overrides)
        hint(f"note: {declarer} declares it differently ({options}); this holds until {declarer} changes{back}")


async def _zone_to_keep(scheduler: Scheduler, key: str, when: str) -> str | None:
    """The zone of the old rule, for a new rule that names none."""
    schedule = await scheduler.schedule(key)
    try:
        return None if parse_when(when).is_zone_given else parse_when(schedule.when).zone.key
    except EvertickError:  # the change reports a rule that cannot be parsed
        return None


def _without_calendar(rule: str) -> str:
    head, *options = rule.split(";")
    return ";".join([head, *(each for each in options if each.partition("=")[0].strip() != "calendar")])


def _policies(given: dict[str, Any], *, is_unlabelled: bool = False) -> dict[str, Any]:
    """The given options, as `add` and `update` of the library take them."""
    for name, default in _NEVER_NONE.items():
        if given[name] == _NONE:
            raise click.UsageError(
                f"--{name} cannot be {_NONE!r}, since it always has a value; its default is {default!r}"
            )
    policies = {
        name: None if name in _MAY_BE_NONE and value == _NONE else value
        for name, value in given.items()
        if value is not None and name not in ("tz", "calendar", "labels")
    }
    if given["labels"] and is_unlabelled:
        raise click.UsageError("--label excludes --no-labels; leave out one of them")
    if given["labels"] or is_unlabelled:
        policies["labels"] = dict(given["labels"])
    if isinstance(count := policies.get("pause_after"), str):
        if not count.isdigit():
            raise click.UsageError(f"--pause-after: {count!r} is neither a whole number nor {_NONE!r}")
        policies["pause_after"] = int(count)
    return policies


async def _print_rule(scheduler: Scheduler, schedule: Schedule) -> None:
    moment = now()
    fires = [
        f"{stamp(each, is_local=False, is_exact=True)}  {distance(each, moment)}"
        for each in await upcoming_of(scheduler, schedule)
    ]
    title = "Would fire" if schedule.is_paused else "Next fires"
    print_facts([("Rule", schedule.when), ("In words", rule_words(schedule)), (title, fires or "never")])


@click.command()
@click.argument("key", required=False, shell_complete=complete_keys)
@labels_option
@click.option("--note", default="", help="The reason; listings show it.")
@click.option("--until", type=MomentParameter(), help="Resume automatically at this moment.")
@dry_run_option
@days_option
@moments_tz_option
@as_json_option
@on_store
async def pause(
    scheduler: Scheduler,
    key: str | None,
    labels: tuple[tuple[str, str], ...],
    note: str,
    until: datetime | None,
    dry_run: bool,
    days: int | None,
    as_json: bool,
) -> None:
    """Pause a schedule, or all with a label.

    Running jobs continue. Moments during the pause are recorded as skipped when it ends. --dry-run shows which fires
    would be removed.

    \b
    Example:
      evertick pause report --note "the warehouse moves" --until 2h
      evertick pause report --until 2026-01-31T09:00:00Z
      evertick pause --label team=sales
      evertick pause report --until 48h --dry-run
    """
    is_many, preview_days = _is_many(key, labels), checked_days(days, dry_run)
    if dry_run:
        await _preview_pause(scheduler, key, dict(labels), until, preview_days, as_json)
        return
    if is_many:
        await _pause_many(scheduler, dict(labels), note, until, as_json)
        return
    assert key is not None
    schedule = await scheduler.pause(key, note=note, until=until)
    if as_json:
        print_json(schedule)
    else:
        say(f"paused {key}{_until_words(schedule.paused_until, f'`evertick resume {key}`')}")


async def _preview_pause(
    scheduler: Scheduler,
    key: str | None,
    labels: Mapping[str, str],
    until: datetime | None,
    days: int,
    as_json: bool,
) -> None:
    """Show the effect of a pause: the fires of one schedule, or a sentence for each of many."""
    if key is not None:
        print_plan(await scheduler.preview_change(key, pause=True, until=until, days=days), as_json)
        return
    found, plans = await scheduler.schedules(labels=labels, is_paused=False), []
    with progress("schedules checked", is_quiet=as_json) as report:
        for count, schedule in enumerate(found, 1):
            plans.append(await scheduler.preview_change(schedule.key, pause=True, until=until, days=days))
            report(count, len(found))
    if as_json:
        print_json([plan_data(plan) for plan in plans])
        return
    for plan in plans:
        say(plan.words())
    if plans:
        say_nothing_changed()
    else:
        _hint_nothing_to_pause(scheduler, labels)


def _hint_nothing_to_pause(scheduler: Scheduler, labels: Mapping[str, str]) -> None:
    hint(f"app {scheduler.app!r} has no active schedule with {_words(labels)}")


async def _pause_many(
    scheduler: Scheduler, labels: Mapping[str, str], note: str, until: datetime | None, as_json: bool
) -> None:
    with _counted("paused", as_json) as on_change:
        keys = await scheduler.pause_many(labels=labels, note=note, until=until, on_change=on_change)
    if as_json:
        print_json(keys)
        return
    for key in keys:
        say(f"paused {key}{_until_words(until, f'`evertick resume {key}`')}")
    if not keys:
        _hint_nothing_to_pause(scheduler, labels)


@click.command()
@click.argument("key", required=False, shell_complete=complete_keys)
@labels_option
@as_json_option
@on_store
async def resume(scheduler: Scheduler, key: str | None, labels: tuple[tuple[str, str], ...], as_json: bool) -> None:
    """Resume a paused schedule, or all with a label.

    Moments during the pause do not run.

    \b
    Example:
      evertick resume report
      evertick resume --label team=sales
    """
    if _is_many(key, labels):
        await _resume_many(scheduler, dict(labels), as_json)
        return
    assert key is not None
    before = await scheduler.schedule(key)
    schedule = await scheduler.resume(key)
    if as_json:
        print_json(schedule)
    elif not before.is_paused:
        say(f"{key} was not paused")
    else:
        next_fire = schedule.next_fire_at
        following = "" if next_fire is None else f"; next fire {stamp(next_fire)} ({distance(next_fire, now())})"
        paused = "" if before.paused_at is None else f" after {span(now() - before.paused_at)}"
        say(f"resumed {key}{paused}{following}")


async def _resume_many(scheduler: Scheduler, labels: Mapping[str, str], as_json: bool) -> None:
    with _counted("resumed", as_json) as on_change:
        keys = await scheduler.resume_many(labels=labels, on_change=on_change)
    if as_json:
        print_json(keys)
        return
    for key in keys:
        say(f"resumed {key}")
    if not keys:
        hint(f"app {scheduler.app!r} has no schedule with {_words(labels)} that was paused by hand")


@contextmanager
def _counted(verb: str, as_json: bool) -> Iterator[OnChange]:
    """Show how many schedules were changed, also after an interruption."""
    changed = 0

    with (
        note_if_interrupted(lambda: f"{verb} {changed}; call it again to continue"),
        progress(verb, is_quiet=as_json) as report,
    ):

        def on_change(_: str, count: int) -> None:
            nonlocal changed
            changed = count
            report(count, None)

        yield on_change


def _is_many(key: str | None, labels: tuple[tuple[str, str], ...]) -> bool:
    if (key is None) == (not labels):
        raise click.UsageError("name one schedule by its key, or several with --label")
    return key is None


def _until_words(until: datetime | None, otherwise: str) -> str:
    return f", until {otherwise}" if until is None else f" until {stamp(until)} ({distance(until, now())})"


def _words(labels: Mapping[str, str]) -> str:
    return " and ".join(f"{name}={value}" for name, value in labels.items())
