"""The command apply: the jobs of a configuration into the ledger, after a look at what that changes."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from evertick.change import ChangePlan
from evertick.cli.config import tell_warnings
from evertick.cli.database import config_option, is_there
from evertick.cli.output import as_json_option, ask, hint, print_json, say
from evertick.cli.plan import DAYS, plan_data, say_nothing_changed
from evertick.config.adding import check_calendars
from evertick.config.build import scheduler_from
from evertick.config.directory import make_private
from evertick.config.find import find_file, searched_files
from evertick.config.load import Configuration, load_configuration
from evertick.config.problem import Problems
from evertick.manage.change import DAYS_MAX
from evertick.manage.declared import DeclaredPlan
from evertick.masked import masked

__all__ = ["apply"]

# Lines of one schedule: a look, not a list.
_LINES_OF_PLAN = 5
# Whoever has changed a command, and reads "unchanged", must not think that it was overlooked.
_WITH_THE_NODES = (
    "note: the ledger has when a job runs, not what it does: a command, request or queue that has changed is taken up "
    "by each node from its own configuration, when it reloads that or starts"
)
_SIGNS = {"add": "+", "update": "~", "calendar": "~", "pause": "-", "remove": "-"}


@click.command()
@config_option
@click.option("--yes", is_flag=True, help="Apply without a question.")
@click.option("--prune", is_flag=True, help="Remove schedules that an earlier configuration had and this one has not.")
@click.option("--dry-run", is_flag=True, help="Show the plan, and change nothing.")
@click.option(
    "--days", type=click.IntRange(1, DAYS_MAX), default=DAYS, show_default=True, help="Show the fires of so many days."
)
@as_json_option
def apply(config: str | None, yes: bool, prune: bool, dry_run: bool, days: int, as_json: bool) -> None:
    """Bring the ledger in line with the configuration.

    Shows first which schedules are added, changed and removed, and which fires of the next days come, go and move; then
    asks, and writes all of it or nothing. Schedules that code declares or somebody has added by hand are never removed.
    Makes the database if there is none. What the jobs do is with the nodes: they read the same file.

    Exit codes: 0 applied, or nothing to do; 1 something has changed meanwhile, or the database is away; 2 the
    configuration is wrong, or nobody can be asked; 130 not applied after the question.

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
    asyncio.run(_apply(loaded, yes=yes, prune=prune, is_dry=dry_run, days=days, as_json=as_json))


async def _apply(loaded: Configuration, *, yes: bool, prune: bool, is_dry: bool, days: int, as_json: bool) -> None:
    plan = await _planned(loaded, prune=prune, days=days)
    if not as_json:
        _print(loaded, plan, days)
    is_to_do = not is_dry and not plan.is_empty
    if is_to_do and not yes:
        _ask(as_json)
    if is_to_do:
        await _write(loaded, plan)
    if as_json:
        print_json({**_data(plan), "is_applied": is_to_do})
    elif is_to_do:
        say("applied")
    else:
        say_nothing_changed()
    if not as_json and any(job.spec is not None and job.name in plan.unchanged for job in loaded.jobs):
        hint(_WITH_THE_NODES)


async def _planned(loaded: Configuration, *, prune: bool, days: int) -> DeclaredPlan:
    """A look makes no database: one that is not there yet is as good as an empty one."""
    scheduler = scheduler_from(loaded)
    if not is_there(loaded.database_url):
        scheduler.use_database("sqlite://")
    disabled, problems = [job.name for job in loaded.jobs if not job.is_enabled], Problems()
    try:
        await check_calendars(scheduler, loaded.jobs, problems)
        problems.raise_any()
        return await scheduler._plan_declared(disabled=disabled, calendars=loaded.calendars, prune=prune, days=days)
    finally:
        await scheduler.close()


async def _write(loaded: Configuration, plan: DeclaredPlan) -> None:
    if not loaded.values["database.url"].is_set and (told := make_private(loaded.state_directory)):
        hint(f"warning: {told}")
    scheduler = scheduler_from(loaded)
    try:
        await scheduler._apply_declared(plan)
    finally:
        await scheduler.close()


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
        "calendars": plan.calendars,
        "words": plan.words(),
    }


def _print(loaded: Configuration, plan: DeclaredPlan, days: int) -> None:
    say(f"{loaded.file} -> {masked(loaded.database_url)}, app {loaded.node.app}")
    for each in plan.plans:
        _print_one(each)
    for name in plan.calendars:
        say(f"~ calendar {name}")
    if plan.left:
        hint(f"note: not in the configuration any more, and left as they are without --prune: {', '.join(plan.left)}")
    span = "the next day" if days == 1 else f"the next {days} days"
    say(f"{plan.words()} ({span})")


def _print_one(plan: ChangePlan) -> None:
    head, _, *rest = plan.lines(_LINES_OF_PLAN)
    say(f"{_SIGNS[plan.kind]} {head}")
    for line in rest:
        say(f"    {line.removeprefix(f'{plan.key}: ')}")
