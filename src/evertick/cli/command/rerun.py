"""The commands failed, which lists dead letters, and rerun, which runs one or many of them again.

The list is read once, before the confirmation, so that exactly the listed runs are rerun.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import click
import msgspec

from evertick.cli.command.completion import complete_keys, complete_runs
from evertick.cli.command.runs import hint_if_stuck, row_of, rows_data
from evertick.cli.database import on_store
from evertick.cli.named import run_named
from evertick.cli.parameters import ArgumentsParameter, check_stretch, labels_option, since_option, until_option
from evertick.cli.show.output import Column, as_json_option, ask, hint, print_json, print_table, say
from evertick.cli.show.progress import progress
from evertick.cli.show.words import called, outcome, stamp
from evertick.cli.time_zone import moments_tz_option
from evertick.errors import Refused
from evertick.explain.words import reason_words
from evertick.model import RERUN_OVERLAPS, RerunOverlap, Run, Verdict
from evertick.operations.runs import check_one_task
from evertick.scheduler.scheduler import Scheduler
from evertick.text.error_line import error_summary

__all__ = ["failed", "rerun"]

C = TypeVar("C", bound=Callable[..., Any])

_DEAD = (Verdict.FAILED, Verdict.LOST)
_LISTED = 20
_RERUN_MOST = 100
_LIMIT_MAX = 100_000


class _Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The filters of dead letters."""

    task: str | None
    labels: tuple[tuple[str, str], ...]
    verdicts: tuple[str, ...]
    since: datetime | None
    until: datetime | None
    limit: int | None

    def given(self) -> str | None:
        """One of the given flags; None without any."""
        flags = {
            "--task": self.task,
            "--label": self.labels or None,
            "--verdict": self.verdicts or None,
            "--since": self.since,
            "--until": self.until,
            "--limit": self.limit,
        }
        return next((flag for flag, value in flags.items() if value is not None), None)

    async def find(
        self, scheduler: Scheduler, key: str | None, *, was_rerun: bool, limit: int, oldest_first: bool = False
    ) -> list[Run]:
        return await scheduler.runs(
            key,
            task=self.task,
            labels=dict(self.labels),
            verdicts=self.verdicts or _DEAD,
            since=self.since,
            until=self.until,
            was_rerun=was_rerun,
            oldest_first=oldest_first,
            limit=limit,
        )


def _selection_options(limit: int) -> Callable[[C], C]:
    """The flags of `_Selection`."""
    options = [
        click.option("--task", metavar="NAME", help="Only runs of this task."),
        labels_option,
        click.option(
            "--verdict",
            "verdicts",
            type=click.Choice([verdict.value for verdict in Verdict]),
            multiple=True,
            help="Only with this verdict; may be repeated; default: failed and lost.",
        ),
        since_option,
        until_option,
        moments_tz_option,
        click.option("--limit", type=click.IntRange(1, _LIMIT_MAX), help=f"At most N runs; default: {limit}."),
    ]

    def decorate(command: C) -> C:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.command()
@click.argument("key", required=False, shell_complete=complete_keys)
@_selection_options(_LISTED)
@as_json_option
@on_store
async def failed(scheduler: Scheduler, /, key: str | None, as_json: bool, **flags: Any) -> None:
    """List the runs that failed or were lost.

    Newest first, each with its error and whether it was rerun since.

    \b
    Example:
      evertick failed
      evertick failed report --limit 5
      evertick failed --task fetch --label team=sales --since 24h
      evertick failed --json | jq '.[] | select(.was_rerun | not) | .id'
    """
    selection = msgspec.convert(flags, _Selection)
    check_stretch(selection.since, selection.until)
    rows = await _dead_letters(scheduler, key, selection)
    if key is not None and not rows:
        await scheduler.schedule(key)  # raises NotFound for an unknown key
    if as_json:
        data = await rows_data(scheduler, [run for run, _ in rows])
        print_json([{**row, "was_rerun": was_rerun} for row, (_, was_rerun) in zip(data, rows, strict=True)])
    elif rows:
        _print_dead_letters(rows)
    else:
        verdicts = " or ".join(selection.verdicts) or "failed or lost"
        hint(f"app {scheduler.app!r} has no matching {verdicts} runs")


async def _dead_letters(scheduler: Scheduler, key: str | None, selection: _Selection) -> list[tuple[Run, bool]]:
    limit = selection.limit or _LISTED
    rows = [
        (run, was_rerun)
        for was_rerun in (False, True)
        for run in await selection.find(scheduler, key, was_rerun=was_rerun, limit=limit)
    ]
    rows.sort(key=lambda row: (row[0].fire_at, row[0].id), reverse=True)
    return rows[:limit]


def _print_dead_letters(rows: Sequence[tuple[Run, bool]]) -> None:
    columns = [
        Column(title="MOMENT", is_moment=True, below="shared", gives_way=1),
        Column(title="KEY", below="shared", gives_way=4),
        Column(title="VERDICT", is_coloured=True, below="shared", gives_way=2),
        Column(title="RERUN", below="shared", gives_way=3),
        # Never left out: `rerun` takes it.
        Column(title="RUN"),
        Column(title="ERROR", is_cut=True, cut_least=40, is_whole_below=True, gives_way=5),
    ]
    print_table(columns, [_line(run, was_rerun) for run, was_rerun in rows])


def _line(run: Run, was_rerun: bool) -> list[str]:
    rerun = "yes" if was_rerun else "-"
    return [stamp(run.fire_at, is_exact=True), called(run), outcome(run), rerun, run.id, _error(run)]


def _error(run: Run) -> str:
    return error_summary(run.error) or (reason_words(run.reason) if run.reason else "-")


@click.command()
@click.argument("run", metavar="[RUN|KEY]", required=False, shell_complete=complete_runs)
@click.option("--args", type=ArgumentsParameter(), help="Other arguments for the rerun, as a JSON object.")
@click.option("--overlap", type=click.Choice(RERUN_OVERLAPS), help="After live runs of the schedule, or beside them.")
@click.option("--failed", "is_failed", is_flag=True, help="All failed and lost runs, or those of schedule KEY.")
@_selection_options(_RERUN_MOST)
@click.option("--dry-run", is_flag=True, help="Change nothing; list the runs that would be rerun.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@as_json_option
@on_store
async def rerun(
    scheduler: Scheduler,
    /,
    run: str | None,
    args: dict[str, Any] | None,
    overlap: RerunOverlap | None,
    is_failed: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Run an ended run again, or all failed ones.

    A rerun has the moment and the arguments of the old run, and obeys the overlap policy of its schedule. With --failed
    the runs are rerun oldest first, and those of one schedule run one after the other, unless its overlap is allow.
    Runs that were rerun before are left out. More than one need a confirmation. --task, --label, --verdict, --since,
    --until and --limit select among them. Exit code 1 if a run was not rerun.

    \b
    Example:
      evertick rerun 01a1e06c-c7bb-7e9b-8894-4297139cf510
      evertick rerun --failed report --since 24h --yes
      evertick rerun --failed --task fetch --dry-run
    """
    selection = msgspec.convert(flags, _Selection)
    if is_failed:
        check_stretch(selection.since, selection.until)
        dead = await _chosen(scheduler, run, selection)
        if args is not None:
            check_one_task(dead)
        if dry_run:
            await _list_only(scheduler, dead, as_json)
        else:
            _ask_about(scheduler, dead, is_sure=yes)
            await _rerun_all(scheduler, dead, args, overlap or "queue", as_json)
        return
    if run is None:
        raise click.UsageError("name a run by its id, or write --failed for all failed and lost runs")
    if flag := selection.given() or ("--dry-run" if dry_run else None):
        raise click.UsageError(f"{flag} needs --failed; add it, or leave out {flag}")
    again = await scheduler.rerun(await run_named(scheduler, run), args=args, overlap=overlap)
    if as_json:
        print_json(await row_of(scheduler, again))
        return
    _say(again)
    await hint_if_stuck(scheduler, again)


async def _chosen(scheduler: Scheduler, key: str | None, selection: _Selection) -> list[Run]:
    dead = await selection.find(
        scheduler, key, was_rerun=False, limit=selection.limit or _RERUN_MOST, oldest_first=True
    )
    if key is not None and not dead:
        await scheduler.schedule(key)
    return dead


async def _list_only(scheduler: Scheduler, dead: Sequence[Run], as_json: bool) -> None:
    if as_json:
        print_json(await rows_data(scheduler, dead))
    elif dead:
        _print_dead_letters([(run, False) for run in dead])
    else:
        _hint_nothing_left(scheduler)


def _ask_about(scheduler: Scheduler, dead: Sequence[Run], *, is_sure: bool) -> None:
    if len(dead) > 1 and not is_sure:
        counts = ", ".join(f"{count} of {name}" for name, count in Counter(map(called, dead)).most_common())
        ask(f"rerun {len(dead)} runs of app {scheduler.app!r} ({counts})?", "rerun them")


async def _rerun_all(
    scheduler: Scheduler, dead: Sequence[Run], args: dict[str, Any] | None, overlap: RerunOverlap, as_json: bool
) -> None:
    again, refused = list[Run](), Counter[str]()
    with progress("rerunning", is_quiet=as_json) as report:
        for count, run in enumerate(dead, 1):
            try:
                again.append(await scheduler.rerun(run, args=args, overlap=overlap))
            except Refused as refusal:
                refused[refusal.problem] += 1
            report(count, len(dead))
    if as_json:
        print_json(await rows_data(scheduler, again))
    else:
        for run in again:
            _say(run)
        if again:
            await hint_if_stuck(scheduler, again[0])
        if not dead:
            _hint_nothing_left(scheduler)
    for why, count in refused.items():
        hint(f"{count} of {len(dead)} not rerun: {why}")
    if refused:
        raise click.exceptions.Exit(1)


def _hint_nothing_left(scheduler: Scheduler) -> None:
    hint(f"app {scheduler.app!r} has no matching run to rerun")


def _say(again: Run) -> None:
    say(f"rerun {again.caused_by} of {called(again)}: run {again.id}")
