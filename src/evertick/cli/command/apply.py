"""The command apply: shows what a configuration changes in the ledger, and writes it."""

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

# Lines per schedule in the plan.
_LINES_OF_PLAN = 5
_DEFINITIONS = "the ledger has only the schedules; each node reads what its jobs do from its own file"
_UNCHANGED = f"note: nothing was changed; {_DEFINITIONS}"
_ON_NODES = f"note: {_DEFINITIONS}, when it starts or reloads: a changed command, request or queue takes effect then"
_SIGNS = {"add": "+", "update": "~", "calendar": "~", "pause": "-", "remove": "-"}


class _PlanOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a plan."""

    prune: bool
    take_back: bool
    days: int


@click.command()
@config_option
@click.option("--yes", is_flag=True, help="Apply without confirmation.")
@click.option("--prune", is_flag=True, help="Remove schedules that are no longer in the configuration.")
@click.option("--take-back", is_flag=True, help="Undo changes made by hand, like with `update`.")
@click.option("--dry-run", is_flag=True, help="Show the plan, and change nothing.")
@click.option(
    "--days", type=click.IntRange(1, DAYS_MAX), default=DAYS, show_default=True, help="Compare the fires of N days."
)
@as_json_option
def apply(config: str | None, yes: bool, prune: bool, take_back: bool, dry_run: bool, days: int, as_json: bool) -> None:
    """Bring the ledger in line with the configuration.

    Shows which schedules are added, changed and removed, and which fires of the next days are added, removed and moved.
    Then it asks for confirmation, and writes all changes or none. Schedules that code declares or that were added by
    hand are never removed. --prune is refused if a live node with another file declares one of the schedules. Creates
    the database if there is none. The ledger has only the schedules: nodes read what the jobs do from the file.

    Exit codes: 0 applied, or nothing to do; 1 a schedule changed meanwhile, a live node declares what would be pruned,
    or the database is unavailable; 2 the configuration is wrong, or there is no terminal to confirm; 130 declined.

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
    options = _PlanOptions(prune=prune, take_back=take_back, days=days)
    asyncio.run(_apply(loaded, options, yes=yes, is_dry=dry_run, as_json=as_json))


async def _apply(loaded: Configuration, options: _PlanOptions, *, yes: bool, is_dry: bool, as_json: bool) -> None:
    ledger = Ledger(url=loaded.database_url, app=loaded.node.app, state_directory=loaded.state_directory)
    daemons = daemons_of(ledger)
    plan, pending = await _planned(loaded, options), pending_reload(loaded, daemons)
    elsewhere = declared_elsewhere(loaded, plan, daemons)
    if options.prune:
        refuse_to_prune(elsewhere)
    # These are still declared, by another file.
    plan = msgspec.structs.replace(plan, left=tuple(key for key in plan.left if key not in elsewhere))
    if not as_json:
        _print(loaded, plan, pending, options.days)
        if elsewhere:
            hint(f"note: of another configuration with the same app and node name: {declarers_text(elsewhere)}")
    is_to_do = not is_dry and not plan.is_empty
    if is_to_do and not yes:
        _ask(as_json)
    if is_to_do:
        await _write(loaded, plan)
    if as_json:
        print_json({**_data(plan), "elsewhere": elsewhere, "doing": pending.changed, "is_applied": is_to_do})
        return
    if is_to_do:
        say("applied")
    elif plan.is_empty and not is_dry and _may_differ(loaded, plan, pending):
        hint(_UNCHANGED)
    else:
        say_nothing_changed()
    if not plan.is_empty and _may_differ(loaded, plan, pending):
        hint(_ON_NODES)


def _may_differ(loaded: Configuration, plan: DeclaredPlan, pending: PendingReload) -> bool:
    """Whether a job with an unchanged schedule may do something else now, which no daemon here can tell."""
    return not pending.is_known and any(job.spec is not None and job.name in plan.unchanged for job in loaded.jobs)


async def _planned(loaded: Configuration, options: _PlanOptions) -> DeclaredPlan:
    """The plan. It creates no database: a missing one is compared as an empty one."""
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
            prune=options.prune,
            take_back=options.take_back,
            days=options.days,
        )
    finally:
        await scheduler.close()


async def _write(loaded: Configuration, plan: DeclaredPlan) -> None:
    if _is_in_state(loaded) and (problem := make_private(loaded.state_directory)):
        hint(f"warning: {problem}")
    scheduler = scheduler_from(loaded, actor=Actor.of_command_line())
    try:
        await call(scheduler, apply_declared, plan)
    finally:
        await scheduler.close()


def _is_in_state(loaded: Configuration) -> bool:
    """Whether the ledger is a file in the state directory. If it is not, this user may need no such directory."""
    if not loaded.database_url.startswith("sqlite://"):
        return False
    path = location_of(loaded.database_url).path
    return path is not None and Path(path).absolute().parent == loaded.state_directory.absolute()


def _ask(as_json: bool) -> None:
    if as_json:
        raise click.UsageError("--json cannot ask; write --yes to apply it, or --dry-run to see the plan")
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
        hint(f"note: changed by hand, and kept without --take-back: {names}")
    if plan.left:
        hint(f"note: no longer in the configuration, and kept without --prune: {', '.join(plan.left)}")
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
    # Only its declarer has changed: the nodes have another name, or code declared it.
    more = ", and is declared by this configuration from now on" if is_same_rule and not plan.options else ""
    say(f"{_SIGNS[plan.kind]} {head}{more}")
    if plan.kind == "add":
        rest = [_fires_of_new(plan), *plan.notes]
    has_no_fires = plan.kind == "remove" and plan.is_empty
    for line in plan.notes if is_same_rule or has_no_fires else rest:
        say(f"    {line.removeprefix(f'{plan.key}: ')}")


def _fires_of_new(plan: ChangePlan) -> str:
    """One line per new schedule, since an imported crontab may bring many."""
    if not plan.adds:
        return "no fires"
    fires = "1 fire" if plan.fires_new == 1 else f"{plan.fires_new:,} fires"
    return f"{fires}, the first at {stamp(plan.adds[0].at, is_local=False, is_exact=True)}"
