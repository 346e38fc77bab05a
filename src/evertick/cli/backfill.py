"""The command backfill: runs for moments of the past that got none, told as they are made."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click
import msgspec

from evertick.cli.candidates import complete_keys
from evertick.cli.database import on_store
from evertick.cli.output import as_json_option, print_json, say
from evertick.cli.parameters import ArgumentsParameter, MomentParameter
from evertick.cli.progress import progress
from evertick.cli.words import now
from evertick.manage.backfill import BACKFILL_MOST, BackfillStep
from evertick.scheduler import Scheduler

__all__ = ["backfill"]


@click.command()
@click.argument("key", shell_complete=complete_keys)
@click.option("--from", "start", type=MomentParameter(is_past=True), required=True, help="The first; a duration: ago.")
@click.option("--to", "end", type=MomentParameter(is_past=True), help="The last; a duration: ago; default: now.")
@click.option("--overlap", type=click.Choice(["allow"]), help="Side by side instead of one after the other.")
@click.option("--pace", metavar="DURATION", help="At least so far apart.")
@click.option("--args", type=ArgumentsParameter(), help="Arguments for these runs, as a JSON object.")
@click.option("--limit", type=click.IntRange(1), default=BACKFILL_MOST, show_default=True, help="So many moments.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@as_json_option
@on_store
async def backfill(
    scheduler: Scheduler,
    key: str,
    start: datetime,
    end: datetime | None,
    overlap: Any,
    pace: str | None,
    args: dict[str, Any] | None,
    limit: int,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make up for moments of the past that got no run.

    One after the other and in order, each when the one before has ended; nodes carry them out. It may be broken off,
    and asked for again: what has a run is left out. Exit code 1 if any of them failed.

    \b
    Example:
      evertick backfill report --from 2026-01-01T00:00:00Z --to 2026-01-31T00:00:00Z --dry-run
      evertick backfill report --from 7d --overlap allow
    """
    work = scheduler.backfill(
        key, start, end or now(), overlap=overlap, pace=pace, args=args, dry_run=dry_run, limit=limit
    )
    with progress(f"backfilling {key}", is_quiet=as_json) as report:
        last = await work.to_the_end(lambda step: report(step.done, step.moments - step.left_out))
    if as_json:
        print_json({**msgspec.structs.asdict(last), "to_make": last.to_make})
    else:
        say(_words(last))
    if last.failed:
        raise click.exceptions.Exit(1)


def _words(last: BackfillStep) -> str:
    had = f"{last.left_out} of {last.moments} moments of {last.key} have a run already"
    if last.is_dry_run:
        return f"{had}; {last.to_make} would be made"
    failed = f", {last.failed} of them failed" if last.failed else ""
    return f"{had}; {last.made} were made{failed}"
