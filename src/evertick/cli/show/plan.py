"""The preview of a change: the flags `--dry-run` and `--days`, and the printed plan."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from evertick.cli.show.output import hint, print_json, say
from evertick.operations.change_preview import DAYS_MAX
from evertick.plan.change_preview import ChangePlan
from evertick.when import duration_text

__all__ = [
    "DAYS",
    "checked_days",
    "days_option",
    "dry_run_option",
    "plan_data",
    "print_plan",
    "readable",
    "say_nothing_changed",
]

# Days of a preview by default.
DAYS = 14
_DURATIONS = ("pace", "grace", "expires", "unique_for")

dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Change nothing; show which fires would be added, removed and moved."
)
days_option = click.option(
    "--days", type=click.IntRange(1, DAYS_MAX), help=f"With --dry-run: compare the fires of N days; default: {DAYS}."
)


def checked_days(days: int | None, is_dry_run: bool) -> int:
    """The days of the preview."""
    if days is not None and not is_dry_run:
        raise click.UsageError("--days needs --dry-run; add it, or leave out --days")
    return DAYS if days is None else days


def readable(plan: ChangePlan) -> ChangePlan:
    """The plan with durations as text; the ledger has microseconds."""
    options = tuple(
        msgspec.structs.replace(option, old=_duration(option.old), new=_duration(option.new))
        if option.name in _DURATIONS
        else option
        for option in plan.options
    )
    return msgspec.structs.replace(plan, options=options)


def _duration(text: str) -> str:
    return duration_text(int(text)) if text.isdigit() else "none"


def plan_data(plan: ChangePlan) -> dict[str, Any]:
    """The plan as JSON."""
    return {**msgspec.structs.asdict(plan), "words": plan.words()}


def print_plan(plan: ChangePlan, as_json: bool) -> None:
    if as_json:
        print_json(plan_data(plan))
        return
    for line in plan.lines():
        say(line)
    say_nothing_changed()


def say_nothing_changed() -> None:
    hint("note: nothing was changed")
