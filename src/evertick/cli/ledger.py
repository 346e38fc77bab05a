"""Commands that read the ledger: history, why."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click
import msgspec

from evertick.cli.candidates import complete_keys
from evertick.cli.database import on_store
from evertick.cli.output import Column, as_json_option, hint, print_facts, print_json, print_table
from evertick.cli.parameters import MomentParameter
from evertick.cli.words import called, outcome, remark, stamp, took
from evertick.model import Gap, Run, State
from evertick.scheduler import Scheduler
from evertick.why import Why

__all__ = ["history", "print_ledger", "print_why", "row_data", "why"]

_LIMIT_MAX = 100_000


@click.command()
@click.argument("key", required=False, shell_complete=complete_keys)
@click.option("--limit", type=click.IntRange(1, _LIMIT_MAX), default=20, show_default=True, help="So many rows.")
@click.option("--since", type=MomentParameter(is_past=True), help="Not before this; a duration counts back from now.")
@click.option("--until", type=MomentParameter(is_past=True), help="Not after this; a duration counts back from now.")
@as_json_option
@on_store
async def history(
    scheduler: Scheduler, key: str | None, limit: int, since: datetime | None, until: datetime | None, as_json: bool
) -> None:
    """Show what became of every moment, newest first.

    A moment has a run, or lies in a gap: a stretch of moments that got none, with the reason. A run that no moment
    has made is marked with its cause, like "by trigger".

    \b
    Example:
      evertick history
      evertick history report --since 24h
      evertick history --json | jq '.[] | select(.verdict == "failed")'
    """
    if since is not None and until is not None and since > until:
        raise click.UsageError(f"--since ({stamp(since)}) is later than --until ({stamp(until)})")
    rows = await scheduler.history(key, since=since, until=until, limit=limit)
    if key is not None and not rows:
        await scheduler.schedule(key)  # nothing came of it, or there is no such schedule
    if as_json:
        print_json([row_data(row) for row in rows])
    elif rows:
        print_ledger(rows)
    else:
        hint(f"nothing is recorded in app {scheduler.app!r} for this question")


def row_data(row: Run | Gap) -> dict[str, Any]:
    """A row of the ledger as JSON: its kind, then its fields."""
    return {"kind": "run" if isinstance(row, Run) else "gap", **msgspec.structs.asdict(row)}


def print_ledger(rows: Sequence[Run | Gap], *, is_one_schedule: bool = False) -> None:
    columns = [
        Column(title="MOMENT"),
        Column(title="KEY"),
        Column(title="VERDICT", is_coloured=True),
        Column(title="REASON", is_cut=True),
        Column(title="TRIES", is_right=True),
        Column(title="TOOK", is_right=True),
        Column(title="DETAIL", is_cut=True),
        Column(title="RUN", width_least=150),
    ]
    lines = [_line(row) for row in rows]
    if is_one_schedule:
        del columns[1]
        for line in lines:
            del line[1]
    print_table(columns, lines)


def _line(row: Run | Gap) -> list[str]:
    if isinstance(row, Gap):
        moment, key, tries, length, run_id = row.last_at, row.schedule_key, "-", "-", "-"
    else:
        moment, key, tries, length, run_id = row.fire_at, called(row), str(row.attempts), took(row), row.id
    return [stamp(moment, is_exact=True), key, outcome(row), row.reason or "-", tries, length, remark(row), run_id]


@click.command()
@click.argument("key", shell_complete=complete_keys)
@as_json_option
@on_store
async def why(scheduler: Scheduler, key: str, as_json: bool) -> None:
    """Say in words what a schedule does, and why.

    When it fires next and why then, what became of its last moments, what it waits for now.

    \b
    Example:
      evertick why report
    """
    answer = await scheduler.why(key)
    if as_json:
        print_json(answer)
        return
    print_why(answer)
    for run in await scheduler.runs(key, states=[State.PARKED], limit=1):
        hint(f"note: to give the parked run up: evertick cancel {run.id}")


def print_why(answer: Why) -> None:
    print_facts([("Next", answer.next), ("Last", answer.last), ("Now", answer.now), ("Note", answer.notes)])
