"""The commands add and update: a schedule made or changed at run time, with its rule told back in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from evertick.cli.candidates import complete_keys, complete_tasks
from evertick.cli.command.schedules import declarer_words, rule_words, show_data, upcoming_of
from evertick.cli.database import on_store
from evertick.cli.parameters import ArgumentsParameter, LabelParameter
from evertick.cli.show.output import as_json_option, hint, print_facts, print_json, say
from evertick.cli.show.plan import checked_days, days_option, dry_run_option, print_plan, readable
from evertick.cli.show.words import distance, now, stamp
from evertick.errors import EvertickError
from evertick.model import BLACKOUT_FATES, CATCH_UPS, OVERLAPS, SCHEDULE_MODES, UNIQUE_UNTIL, Schedule
from evertick.scheduler.scheduler import Scheduler
from evertick.when import parse_when

__all__ = ["add", "update"]

F = TypeVar("F", bound=Callable[..., Any])

# What takes an option back to having none, and what can be without.
_NONE = "none"
_MAY_BE_NONE = ("grace", "expires", "unique", "unique_for", "pause_after", "blackout", "calendar")
# What is written as text and always has a value, with the one to go back to.
_NEVER_NONE = {"queue": "default", "pace": "1s"}
_OPTIONS = (
    click.option("--args", type=ArgumentsParameter(), help="Arguments of its runs, as a JSON object."),
    click.option("--overlap", type=click.Choice(OVERLAPS), help="While a run of it is live; default: skip."),
    click.option("--mode", type=click.Choice(SCHEDULE_MODES), help="One node per fire, or each; default: claimed."),
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
    click.option("--tz", metavar="ZONE", help="The zone of the rule; default: node.tz of the configuration, else UTC."),
    click.option("--calendar", metavar="NAME|none", help="Only while this calendar is open."),
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
@click.option("--when", metavar="RULE", help="The new rule; left out, it stays.")
@_policy_options
@click.option("--no-labels", is_flag=True, help="Take all labels away.")
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
    """Change a schedule; nothing fires by the change itself.

    Only what is given changes: a new rule keeps the zone of the old one unless it names its own. "none" takes --grace,
    --expires, --unique, --unique-for, --pause-after, --blackout or --calendar away; the others always have a value.
    --label replaces all labels, --no-labels takes them away. With --dry-run nothing is written: it shows which fires
    would be added, removed and moved.

    \b
    Example:
      evertick update digest --when "weekdays at 19:00" --dry-run --days 120
      evertick update digest --grace none --overlap queue
    """
    policies, tz, calendar = _policies(given, is_unlabelled=no_labels), given["tz"], given["calendar"]
    look_days = checked_days(days, dry_run)
    if when is None and tz is None and calendar is None and not policies:
        raise click.UsageError("nothing is given that could change")
    if when is not None and tz is None:
        tz = await _zone_to_keep(scheduler, key, when)
    if calendar == _NONE:
        when, calendar = _without_calendar(when or (await scheduler.schedule(key)).when), None
    plan = readable(await scheduler.preview_change(key, when, tz=tz, calendar=calendar, days=look_days, **policies))
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
        who, what = declarer_words(schedule), ", ".join(schedule.overrides)
        hint(f"note: {who} declares it otherwise ({what}); this holds until {who} changes{back}")


async def _zone_to_keep(scheduler: Scheduler, key: str, when: str) -> str | None:
    """The zone of the rule there is, for a new one that names none: "at 19:00" means the clock that it went by."""
    schedule = await scheduler.schedule(key)
    try:
        return None if parse_when(when).is_zone_given else parse_when(schedule.when).zone.key
    except EvertickError:  # one of them cannot be read, which the change itself says better
        return None


def _without_calendar(rule: str) -> str:
    head, *options = rule.split(";")
    return ";".join([head, *(each for each in options if each.partition("=")[0].strip() != "calendar")])


def _policies(given: dict[str, Any], *, is_unlabelled: bool = False) -> dict[str, Any]:
    """What was written, as `add` and `update` of the library take it."""
    for name, usual in _NEVER_NONE.items():
        if given[name] == _NONE:
            raise click.UsageError(f"--{name} always has a value, so that {_NONE!r} is none for it; usual is {usual!r}")
    policies = {
        name: None if name in _MAY_BE_NONE and value == _NONE else value
        for name, value in given.items()
        if value is not None and name not in ("tz", "calendar", "labels")
    }
    if given["labels"] and is_unlabelled:
        raise click.UsageError("--label and --no-labels contradict each other; leave out one of them")
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
    would = "Would fire" if schedule.is_paused else "Next fires"
    print_facts([("Rule", schedule.when), ("In words", rule_words(schedule)), (would, fires or "never")])
