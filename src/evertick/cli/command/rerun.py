"""Dead letters: the commands failed, which lists them, and rerun, which runs one or many of them again.

The list is read once, before the question, so that exactly the listed runs are rerun.
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
from evertick.operations.runs import check_one_task, why_not_rerun
from evertick.scheduler.scheduler import Scheduler
from evertick.text.error_line import error_summary

__all__ = ["failed", "rerun"]

C = TypeVar("C", bound=Callable[..., Any])

_DEAD = (Verdict.FAILED, Verdict.LOST)
_LISTED = 20
_RERUN_MOST = 100
_LIMIT_MAX = 100_000


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters are meant."""

    task: str | None
    labels: tuple[tuple[str, str], ...]
    verdicts: tuple[str, ...]
    since: datetime | None
    until: datetime | None
    limit: int | None

    def given(self) -> str | None:
        """A flag of these that was written, if any was."""
        written = {
            "--task": self.task,
            "--label": self.labels or None,
            "--verdict": self.verdicts or None,
            "--since": self.since,
            "--until": self.until,
            "--limit": self.limit,
        }
        return next((flag for flag, value in written.items() if value is not None), None)

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


def _wanted_options(limit: int) -> Callable[[C], C]:
    """The flags of `_Wanted`."""
    options = [
        click.option("--task", metavar="NAME", help="Only runs of this task."),
        labels_option,
        click.option(
            "--verdict",
            "verdicts",
            type=click.Choice([verdict.value for verdict in Verdict]),
            multiple=True,
            help="How they ended; may be repeated. Without it: failed or lost.",
        ),
        since_option,
        until_option,
        moments_tz_option,
        click.option("--limit", type=click.IntRange(1, _LIMIT_MAX), help=f"At most so many; default {limit}."),
    ]

    def put(command: C) -> C:
        for option in reversed(options):
            command = option(command)
        return command

    return put


@click.command()
@click.argument("key", required=False, shell_complete=complete_keys)
@_wanted_options(_LISTED)
@as_json_option
@on_store
async def failed(scheduler: Scheduler, /, key: str | None, as_json: bool, **flags: Any) -> None:
    """List the runs that failed or were lost.

    Newest first, each with what it raised and whether it was rerun since.

    \b
    Example:
      evertick failed
      evertick failed report --limit 5
      evertick failed --task fetch --label team=sales --since 24h
      evertick failed --json | jq '.[] | select(.was_rerun | not) | .id'
    """
    wanted = msgspec.convert(flags, _Wanted)
    check_stretch(wanted.since, wanted.until)
    rows = await _dead_letters(scheduler, key, wanted)
    if key is not None and not rows:
        await scheduler.schedule(key)  # nothing of it failed, or there is no such schedule
    if as_json:
        data = await rows_data(scheduler, [run for run, _ in rows])
        print_json([{**row, "was_rerun": was_rerun} for row, (_, was_rerun) in zip(data, rows, strict=True)])
    elif rows:
        _print_dead_letters(rows)
    else:
        ended = " or ".join(wanted.verdicts) or "failed or was lost"
        hint(f"nothing that {ended} is recorded in app {scheduler.app!r} for this question")


async def _dead_letters(scheduler: Scheduler, key: str | None, wanted: _Wanted) -> list[tuple[Run, bool]]:
    limit = wanted.limit or _LISTED
    rows = [
        (run, was_rerun)
        for was_rerun in (False, True)
        for run in await wanted.find(scheduler, key, was_rerun=was_rerun, limit=limit)
    ]
    rows.sort(key=lambda row: (row[0].fire_at, row[0].id), reverse=True)
    return rows[:limit]


def _print_dead_letters(rows: Sequence[tuple[Run, bool]]) -> None:
    columns = [
        Column(title="MOMENT", is_moment=True, below="shared", gives_way=1),
        Column(title="KEY", below="shared", gives_way=4),
        Column(title="VERDICT", is_coloured=True, below="shared", gives_way=2),
        Column(title="RERUN", below="shared", gives_way=3),
        # Always there: it is what `rerun` wants.
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
@click.option("--args", type=ArgumentsParameter(), help="Arguments for what is rerun, instead of its own.")
@click.option("--overlap", type=click.Choice(RERUN_OVERLAPS), help="Behind what is live of the schedule, or beside it.")
@click.option("--failed", "is_failed", is_flag=True, help="All that failed or were lost, perhaps of one schedule KEY.")
@_wanted_options(_RERUN_MOST)
@click.option("--dry-run", is_flag=True, help="Only list what would be rerun.")
@click.option("--yes", is_flag=True, help="Do not ask.")
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
    """Run again what has ended: one run, or all that failed.

    A rerun has the moment and the arguments of the old run. One obeys the overlap policy of its schedule. With --failed
    they come oldest first, and those of one schedule run one after the other, unless its overlap is allow; what was
    rerun before is left out; before more than one it asks. --task, --label, --verdict, --since, --until and --limit
    choose among them. Exit code 1 if any was not rerun.

    \b
    Example:
      evertick rerun 01a1e06c-c7bb-7e9b-8894-4297139cf510
      evertick rerun --failed report --since 24h --yes
      evertick rerun --failed --task fetch --dry-run
    """
    wanted = msgspec.convert(flags, _Wanted)
    if is_failed:
        check_stretch(wanted.since, wanted.until)
        dead = await _chosen(scheduler, run, wanted)
        if args is not None:
            check_one_task(dead)
        if dry_run:
            await _list_only(scheduler, dead, as_json)
        else:
            _ask_about(scheduler, dead, is_sure=yes)
            await _rerun_all(scheduler, dead, args, overlap or "queue", as_json)
        return
    if run is None:
        raise click.UsageError("name a run by its id, or write --failed for all that failed or were lost")
    if flag := wanted.given() or ("--dry-run" if dry_run else None):
        raise click.UsageError(f"{flag} is for many runs; write --failed, too")
    again = await scheduler.rerun(await run_named(scheduler, run), args=args, overlap=overlap)
    if as_json:
        print_json(await row_of(scheduler, again))
        return
    _say(again)
    await hint_if_stuck(scheduler, again)


async def _chosen(scheduler: Scheduler, key: str | None, wanted: _Wanted) -> list[Run]:
    dead = await wanted.find(scheduler, key, was_rerun=False, limit=wanted.limit or _RERUN_MOST, oldest_first=True)
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
        what = ", ".join(f"{count} of {name}" for name, count in Counter(map(called, dead)).most_common())
        ask(f"rerun {len(dead)} runs of app {scheduler.app!r} ({what})?", "rerun them")


async def _rerun_all(
    scheduler: Scheduler, dead: Sequence[Run], args: dict[str, Any] | None, overlap: RerunOverlap, as_json: bool
) -> None:
    again, refused = list[Run](), Counter[str]()
    with progress("runs looked at", is_quiet=as_json) as report:
        for count, run in enumerate(dead, 1):
            try:
                again.append(await scheduler.rerun(run, args=args, overlap=overlap))
            except Refused as refusal:
                refused[why_not_rerun(run, refusal)] += 1
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
    hint(f"nothing is left to rerun in app {scheduler.app!r} for this question")


def _say(again: Run) -> None:
    say(f"rerun {again.caused_by} of {called(again)}: run {again.id}")
