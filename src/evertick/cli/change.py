"""The commands add and update: a schedule made or changed at run time, with its rule told back in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from evertick.change import ChangePlan
from evertick.cli.candidates import complete_keys, complete_tasks
from evertick.cli.database import on_store
from evertick.cli.output import as_json_option, hint, print_facts, print_json, say
from evertick.cli.parameters import ArgumentsParameter, LabelParameter
from evertick.cli.schedules import rule_words, show_data, upcoming_of
from evertick.cli.words import distance, now, stamp
from evertick.errors import EvertickError
from evertick.model import BLACKOUT_FATES, CATCH_UPS, OVERLAPS, UNIQUE_UNTIL, Schedule
from evertick.scheduler import Scheduler
from evertick.when import duration_text, parse_when

__all__ = ["add", "update"]

F = TypeVar("F", bound=Callable[..., Any])

# What takes an option back to having none.
_NONE = "none"
_DAYS = 14
_DURATIONS = ("pace", "grace", "expires", "unique_for")
_OPTIONS = (
    click.option("--args", type=ArgumentsParameter(), help="Arguments of its runs, as a JSON object."),
    click.option("--overlap", type=click.Choice(OVERLAPS), help="While a run of it is live; default: skip."),
    click.option("--catch-up", type=click.Choice(CATCH_UPS), help="After downtime; default: latest."),
    click.option("--catch-up-limit", type=int, help="With --catch-up all: at most so many."),
    click.option("--pace", metavar="DURATION", help="With --catch-up all: so far apart."),
    click.option("--grace", metavar="DURATION|none", help="Noticed later than this, a moment is missed."),
    click.option("--expires", metavar="DURATION|none", help="Not started within this, a run is missed."),
    click.option("--queue", help="The queue of its runs; default: default."),
    click.option("--priority", type=int, help="Higher runs first; default: 0."),
    click.option("--unique", metavar="KEY|none", help="No second run with this key while one is live."),
    click.option("--unique-until", type=click.Choice(UNIQUE_UNTIL), help="How long --unique holds; default: end."),
    click.option("--unique-for", metavar="DURATION|none", help="Or so long, whatever becomes of the run."),
    click.option("--pause-after", metavar="COUNT|none", help="Pause it after so many failures in a row."),
    click.option("--blackout", metavar="CALENDAR|none", help="Nothing fires while this calendar is closed."),
    click.option("--blackout-fate", type=click.Choice(BLACKOUT_FATES), help="What becomes of what it holds back."),
    click.option("--label", "labels", type=LabelParameter(), multiple=True, help="A label; may be repeated."),
    click.option("--tz", metavar="ZONE", help="The zone of the rule, like Europe/Berlin; default: UTC."),
    click.option("--calendar", metavar="NAME", help="Only while this calendar is open."),
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

    The rule is a cron expression, text like "every 90s", or a sentence; it is told back in words, with the next fires.

    \b
    Example:
      evertick add digest --task make_digest --when "weekdays at 18:30" --tz Europe/Berlin
      evertick add poll --task poll --when "every 5m" --overlap queue --label team=sales
    """
    rule = "; ".join([when, *(f"{name}={given[name]}" for name in ("tz", "calendar") if given[name] is not None)])
    schedule = await scheduler.add(key=key, when=rule, task=task, **_policies(given))
    if as_json:
        print_json(await show_data(scheduler, schedule))
        return
    say(f"added {key}")
    await _print_rule(scheduler, schedule)
    if not any(node.died_at is None and task in node.tasks for node in await scheduler.nodes()):
        hint(f"note: no live node knows the task {task!r}; its runs wait until one is started")


@click.command()
@click.argument("key", shell_complete=complete_keys)
@click.option("--when", metavar="RULE", help="The new rule; left out, it stays.")
@_policy_options
@click.option("--dry-run", is_flag=True, help=f"Show what would become of the fires of the next {_DAYS} days.")
@as_json_option
@on_store
async def update(
    scheduler: Scheduler, /, key: str, when: str | None, dry_run: bool, as_json: bool, **given: Any
) -> None:
    """Change a schedule; nothing fires by the change itself.

    Only what is given changes: a new rule keeps the zone of the old one unless it names its own. "none" takes an option
    away, and --label replaces all labels. With --dry-run nothing is written: it shows which fires would be added,
    removed and moved.

    \b
    Example:
      evertick update digest --when "weekdays at 19:00" --dry-run
      evertick update digest --grace none --overlap queue
    """
    policies, tz, calendar = _policies(given), given["tz"], given["calendar"]
    if when is None and tz is None and calendar is None and not policies:
        raise click.UsageError("nothing is given that could change")
    if when is not None and tz is None:
        tz = await _zone_to_keep(scheduler, key, when)
    plan = _readable(await scheduler.preview_change(key, when, tz=tz, calendar=calendar, days=_DAYS, **policies))
    if dry_run:
        _print_plan(plan, as_json)
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


async def _zone_to_keep(scheduler: Scheduler, key: str, when: str) -> str | None:
    """The zone of the rule there is, for a new one that names none: "at 19:00" means the clock that it went by."""
    schedule = await scheduler.schedule(key)
    try:
        return None if parse_when(when).is_zone_given else parse_when(schedule.when).zone.key
    except EvertickError:  # one of them cannot be read, which the change itself says better
        return None


def _readable(plan: ChangePlan) -> ChangePlan:
    """With durations as people write them; stored they are microseconds."""
    options = tuple(
        msgspec.structs.replace(option, old=_duration(option.old), new=_duration(option.new))
        if option.name in _DURATIONS
        else option
        for option in plan.options
    )
    return msgspec.structs.replace(plan, options=options)


def _duration(text: str) -> str:
    return duration_text(int(text)) if text.isdigit() else _NONE


def _policies(given: dict[str, Any]) -> dict[str, Any]:
    """What was written, as `add` and `update` of the library take it."""
    policies = {
        name: None if value == _NONE else value
        for name, value in given.items()
        if value is not None and name not in ("tz", "calendar", "labels")
    }
    if given["labels"]:
        policies["labels"] = dict(given["labels"])
    if isinstance(count := policies.get("pause_after"), str):
        if not count.isdigit():
            raise click.UsageError(f"--pause-after: {count!r} is neither a whole number nor {_NONE!r}")
        policies["pause_after"] = int(count)
    return policies


def _print_plan(plan: ChangePlan, as_json: bool) -> None:
    if as_json:
        print_json({**msgspec.structs.asdict(plan), "words": plan.words()})
        return
    for line in plan.lines():
        say(line)
    hint("note: nothing was changed")


async def _print_rule(scheduler: Scheduler, schedule: Schedule) -> None:
    moment = now()
    fires = [
        f"{stamp(each, is_local=False, is_exact=True)}  {distance(each, moment)}"
        for each in await upcoming_of(scheduler, schedule)
    ]
    would = "Would fire" if schedule.is_paused else "Next fires"
    print_facts([("Rule", schedule.when), ("In words", rule_words(schedule)), (would, fires or "never")])
