"""The command apply: the jobs of a configuration into the ledger, after a look at what that changes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click
import msgspec

from evertick.cli.command.config import tell_warnings
from evertick.cli.database import Ledger, config_option, daemons_of, is_there
from evertick.cli.show.output import as_json_option, ask, hint, print_json, say
from evertick.cli.show.plan import DAYS, plan_data, readable, say_nothing_changed
from evertick.cli.show.words import stamp
from evertick.config.adding import check_calendars
from evertick.config.build import scheduler_from
from evertick.config.files import find_file, searched_files
from evertick.config.load import Configuration, load_configuration
from evertick.config.paths import make_private
from evertick.config.problem import Problems
from evertick.daemon.pending_reload import (
    PendingReload,
    declared_elsewhere,
    declarers_text,
    pending_reload,
    refuse_to_prune,
)
from evertick.operations.apply import DeclaredPlan, apply_declared, plan_declared
from evertick.operations.change_preview import DAYS_MAX
from evertick.operations.context import Actor
from evertick.plan.change_preview import ChangePlan
from evertick.scheduler.operation import call
from evertick.store.sqlite.location import location_of
from evertick.text.redact import masked

__all__ = ["apply"]

# Lines of one schedule: a look, not a list.
_LINES_OF_PLAN = 5
# After a change of a command, "unchanged" must not read as if it was overlooked.
_NOTHING_HERE = "note: nothing was changed; what jobs do is not in the ledger: each node reads it from its own file"
_WITH_THE_NODES = (
    "note: the ledger has when a job runs, not what it does: a command, request or queue that has changed is taken up "
    "by each node from its own configuration, when it reloads that or starts"
)
_SIGNS = {"add": "+", "update": "~", "calendar": "~", "pause": "-", "remove": "-"}


class _Look(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a plan."""

    prune: bool
    take_back: bool
    days: int


@click.command()
@config_option
@click.option("--yes", is_flag=True, help="Apply without a question.")
@click.option("--prune", is_flag=True, help="Remove schedules that an earlier configuration had and this one has not.")
@click.option("--take-back", is_flag=True, help="Take back changes by hand, like with `update`.")
@click.option("--dry-run", is_flag=True, help="Show the plan, and change nothing.")
@click.option(
    "--days", type=click.IntRange(1, DAYS_MAX), default=DAYS, show_default=True, help="Show the fires of so many days."
)
@as_json_option
def apply(config: str | None, yes: bool, prune: bool, take_back: bool, dry_run: bool, days: int, as_json: bool) -> None:
    """Bring the ledger in line with the configuration.

    Shows first which schedules are added, changed and removed, and which fires of the next days come, go and move; then
    asks, and writes all of it or nothing. Schedules that code declares or that were added by hand are never removed,
    and what a live node declares that goes by another file keeps --prune from removing anything.
    Makes the database if there is none. What the jobs do is with the nodes: they read the same file.

    Exit codes: 0 applied, or nothing to do; 1 something has changed meanwhile, a live node declares what would be
    pruned, or the database is away; 2 the configuration is wrong, or there is no terminal to ask at; 130 not applied
    after the question.

    \b
    Example:
      evertick apply --dry-run --days 30
      evertick apply --yes --prune
    """
    file = find_file(config)
    if file is None:
        raise click.UsageError(f"there is no configuration at {searched_files()}; name one with --config")
    loaded = load_configuration(file)
    if not as_json:
        tell_warnings(loaded.warnings)
    look = _Look(prune=prune, take_back=take_back, days=days)
    asyncio.run(_apply(loaded, look, yes=yes, is_dry=dry_run, as_json=as_json))


async def _apply(loaded: Configuration, look: _Look, *, yes: bool, is_dry: bool, as_json: bool) -> None:
    ledger = Ledger(url=loaded.database_url, app=loaded.node.app, state_directory=loaded.state_directory)
    daemons = daemons_of(ledger)
    plan, pending = await _planned(loaded, look), pending_reload(loaded, daemons)
    elsewhere = declared_elsewhere(loaded, plan, daemons)
    if look.prune:
        refuse_to_prune(elsewhere)
    # They have not gone from anywhere.
    plan = msgspec.structs.replace(plan, left=tuple(key for key in plan.left if key not in elsewhere))
    if not as_json:
        _print(loaded, plan, pending, look.days)
        if elsewhere:
            hint(f"note: of another configuration with the same app and node name: {declarers_text(elsewhere)}")
    is_to_do = not is_dry and not plan.is_empty
    if is_to_do and not yes:
        _ask(as_json)
    if is_to_do:
        await _write(loaded, plan)
    if as_json:
        told = {"elsewhere": elsewhere, "doing": pending.changed, "is_applied": is_to_do}
        print_json({**_data(plan), **told})
        return
    if is_to_do:
        say("applied")
    elif plan.is_empty and not is_dry and _may_differ(loaded, plan, pending):
        hint(_NOTHING_HERE)
    else:
        say_nothing_changed()
    if not plan.is_empty and _may_differ(loaded, plan, pending):
        hint(_WITH_THE_NODES)


def _may_differ(loaded: Configuration, plan: DeclaredPlan, pending: PendingReload) -> bool:
    """Whether what a job does may have changed although its schedule has not: no daemon here can tell."""
    return not pending.is_known and any(job.spec is not None and job.name in plan.unchanged for job in loaded.jobs)


async def _planned(loaded: Configuration, look: _Look) -> DeclaredPlan:
    """A look makes no database: one that is not there yet is as good as an empty one."""
    scheduler = scheduler_from(loaded, actor=Actor.of_command_line())
    if not is_there(loaded.database_url):
        scheduler.use_database("sqlite://")
    disabled, problems = [job.name for job in loaded.jobs if not job.is_enabled], Problems()
    try:
        await check_calendars(scheduler, loaded.jobs, problems)
        problems.raise_any()
        return await call(
            scheduler,
            plan_declared,
            disabled=disabled,
            calendars=loaded.calendars,
            prune=look.prune,
            take_back=look.take_back,
            days=look.days,
        )
    finally:
        await scheduler.close()


async def _write(loaded: Configuration, plan: DeclaredPlan) -> None:
    if _is_in_state(loaded) and (told := make_private(loaded.state_directory)):
        hint(f"warning: {told}")
    scheduler = scheduler_from(loaded, actor=Actor.of_command_line())
    try:
        await call(scheduler, apply_declared, plan)
    finally:
        await scheduler.close()


def _is_in_state(loaded: Configuration) -> bool:
    """Whether the ledger is a file in the state directory, named or not: else this user may need none here."""
    if not loaded.database_url.startswith("sqlite://"):
        return False
    path = location_of(loaded.database_url).path
    return path is not None and Path(path).absolute().parent == loaded.state_directory.absolute()


def _ask(as_json: bool) -> None:
    if as_json:
        raise click.UsageError("--json asks no questions; write --yes to apply it, or --dry-run to see the plan")
    ask("Apply this?", "apply it")


def _data(plan: DeclaredPlan) -> dict[str, Any]:
    return {
        "adds": [plan_data(each) for each in plan.adds],
        "changes": [plan_data(each) for each in plan.changes],
        "pauses": [plan_data(each) for each in plan.pauses],
        "removes": [plan_data(each) for each in plan.removes],
        "unchanged": plan.unchanged,
        "left": plan.left,
        "edited": plan.edited,
        "calendars": plan.calendars,
        "words": plan.words(),
    }


def _print(loaded: Configuration, plan: DeclaredPlan, pending: PendingReload, days: int) -> None:
    say(f"{loaded.file} -> {masked(loaded.database_url)}, app {loaded.node.app}")
    for each in plan.plans:
        _print_one(each)
    for name in plan.calendars:
        say(f"~ calendar {name}")
    for name, keys in pending.changed.items():
        say(f"~ {name} does something else: {', '.join(keys)}")
    if plan.edited:
        names = ", ".join(f"{key} ({', '.join(each)})" for key, each in plan.edited.items())
        hint(f"note: changed by hand, and left as they are without --take-back: {names}")
    if plan.left:
        hint(f"note: not in the configuration any more, and left as they are without --prune: {', '.join(plan.left)}")
    span = "the next day" if days == 1 else f"the next {days} days"
    does = f"; {_jobs(len(pending.changed))} something else" if pending.changed else ""
    say(f"{plan.words()} ({span}){does}")
    for words in pending.hints():
        hint(f"note: {words}")


def _jobs(count: int) -> str:
    return "1 job does" if count == 1 else f"{count:,} jobs do"


def _print_one(plan: ChangePlan) -> None:
    head, _, *rest = readable(plan).lines(_LINES_OF_PLAN)
    is_same_rule = plan.kind == "update" and plan.when_old == plan.when_new and plan.is_empty
    # Only its declarer has changed: the nodes have another name, or code has declared it.
    more = ", and is declared by this configuration from now on" if is_same_rule and not plan.options else ""
    say(f"{_SIGNS[plan.kind]} {head}{more}")
    if plan.kind == "add":
        rest = [_fires_of_new(plan), *plan.notes]
    is_silent = plan.kind == "remove" and plan.is_empty
    for line in plan.notes if is_same_rule or is_silent else rest:
        say(f"    {line.removeprefix(f'{plan.key}: ')}")


def _fires_of_new(plan: ChangePlan) -> str:
    """One line: where a crontab becomes a file, all of it is new."""
    if not plan.adds:
        return "no fires"
    fires = "1 fire" if plan.fires_new == 1 else f"{plan.fires_new:,} fires"
    return f"{fires}, the first at {stamp(plan.adds[0].at, is_local=False, is_exact=True)}"
