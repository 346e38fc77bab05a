"""Dead letters: the commands failed, which lists them, and rerun, which runs one or many of them again.

What is asked about is what is rerun: the list is read once, before the question.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from evertick.cli.candidates import complete_keys, complete_runs
from evertick.cli.database import on_store
from evertick.cli.ledger import row_data
from evertick.cli.output import Column, as_json_option, ask, hint, print_json, print_table, say
from evertick.cli.parameters import ArgumentsParameter, MomentParameter
from evertick.cli.progress import progress
from evertick.cli.runs import hint_if_stuck
from evertick.cli.words import called, last_line, outcome, stamp
from evertick.errors import Refused
from evertick.model import Run, Verdict
from evertick.scheduler import Scheduler

__all__ = ["failed", "rerun"]

_DEAD = (Verdict.FAILED, Verdict.LOST)
_RERUN_MOST = 100
_LIMIT_MAX = 100_000


@click.command()
@click.argument("key", required=False, shell_complete=complete_keys)
@click.option("--limit", type=click.IntRange(1, _LIMIT_MAX), default=20, show_default=True, help="So many runs.")
@as_json_option
@on_store
async def failed(scheduler: Scheduler, key: str | None, limit: int, as_json: bool) -> None:
    """List the runs that failed or were lost.

    Newest first, each with what it raised and whether it was rerun since.

    \b
    Example:
      evertick failed
      evertick failed report --limit 5
      evertick failed --json | jq '.[] | select(.was_rerun | not) | .id'
    """
    rows = await _dead_letters(scheduler, key, limit)
    if key is not None and not rows:
        await scheduler.schedule(key)  # nothing of it failed, or there is no such schedule
    if as_json:
        print_json([{**row_data(run), "was_rerun": was_rerun} for run, was_rerun in rows])
    elif rows:
        _print_dead_letters(rows)
    else:
        hint(f"nothing that failed or was lost is recorded in app {scheduler.app!r} for this question")


async def _dead_letters(scheduler: Scheduler, key: str | None, limit: int) -> list[tuple[Run, bool]]:
    rows = [
        (run, was_rerun)
        for was_rerun in (False, True)
        for run in await scheduler.runs(key, verdicts=_DEAD, was_rerun=was_rerun, limit=limit)
    ]
    rows.sort(key=lambda row: (row[0].fire_at, row[0].id), reverse=True)
    return rows[:limit]


def _print_dead_letters(rows: Sequence[tuple[Run, bool]]) -> None:
    columns = [
        Column(title="MOMENT"),
        Column(title="KEY"),
        Column(title="VERDICT", is_coloured=True),
        Column(title="RERUN"),
        # Always there: it is what `rerun` wants.
        Column(title="RUN"),
        Column(title="ERROR", is_cut=True),
    ]
    print_table(columns, [_line(run, was_rerun) for run, was_rerun in rows])


def _line(run: Run, was_rerun: bool) -> list[str]:
    error = last_line(run.error) or run.reason or "-"
    return [stamp(run.fire_at, is_exact=True), called(run), outcome(run), "yes" if was_rerun else "-", run.id, error]


@click.command()
@click.argument("run", metavar="[RUN|KEY]", required=False, shell_complete=complete_runs)
@click.option("--args", type=ArgumentsParameter(), help="Arguments for the new run, instead of the old one's.")
@click.option("--failed", "is_failed", is_flag=True, help="All that failed or were lost, perhaps of one schedule KEY.")
@click.option("--since", type=MomentParameter(is_past=True), help="With --failed: not before; a duration counts back.")
@click.option(
    "--limit", type=click.IntRange(1, _LIMIT_MAX), help=f"With --failed: at most so many; default {_RERUN_MOST}."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json_option
@on_store
async def rerun(
    scheduler: Scheduler,
    run: str | None,
    args: dict[str, Any] | None,
    is_failed: bool,
    since: datetime | None,
    limit: int | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Run again what has ended: one run, or all that failed.

    A rerun has the moment and the arguments of the old run, and obeys the overlap policy of its schedule. With --failed
    what was rerun before is left out; before more than one it asks.

    \b
    Example:
      evertick rerun 01a1e06c-c7bb-7e9b-8894-4297139cf510
      evertick rerun --failed report --since 24h --yes
    """
    if is_failed:
        if args is not None:
            raise click.UsageError("--args are for one run; with --failed each has its own")
        await _rerun_failed(scheduler, run, since, limit or _RERUN_MOST, is_sure=yes, as_json=as_json)
        return
    if run is None:
        raise click.UsageError("name a run by its id, or write --failed for all that failed or were lost")
    if since is not None or limit is not None:
        raise click.UsageError(f"{'--limit' if since is None else '--since'} is for many runs; write --failed, too")
    again = await scheduler.rerun(run, args=args)
    if as_json:
        print_json(row_data(again))
        return
    _say(again)
    await hint_if_stuck(scheduler, again)


async def _rerun_failed(
    scheduler: Scheduler, key: str | None, since: datetime | None, limit: int, *, is_sure: bool, as_json: bool
) -> None:
    dead = await scheduler.runs(key, verdicts=_DEAD, was_rerun=False, since=since, limit=limit)
    if key is not None and not dead:
        await scheduler.schedule(key)
    if len(dead) > 1 and not is_sure:
        what = ", ".join(f"{count} of {name}" for name, count in Counter(map(called, dead)).items())
        ask(f"rerun {len(dead)} runs of app {scheduler.app!r} ({what})?", "rerun them")
    again = await _rerun_each(scheduler, dead, as_json)
    if as_json:
        print_json([row_data(run) for run in again])
        return
    for run in again:
        _say(run)
    if again:
        await hint_if_stuck(scheduler, again[0])
    if not dead:
        hint(f"nothing is left to rerun in app {scheduler.app!r} for this question")


async def _rerun_each(scheduler: Scheduler, dead: Sequence[Run], as_json: bool) -> list[Run]:
    again, refusals = [], []
    with progress("runs looked at", is_quiet=as_json) as report:
        for count, run in enumerate(dead, 1):
            try:
                again.append(await scheduler.rerun(run))
            except Refused as refused:
                refusals.append(refused)
            report(count, len(dead))
    for refusal in refusals:
        hint(f"note: {refusal}")
    return again


def _say(again: Run) -> None:
    say(f"rerun {again.caused_by} of {called(again)}: run {again.id}")
