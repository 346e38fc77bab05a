"""Commands that read the ledger: history, runs, why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click
import msgspec

from evertick.cli.candidates import complete_keys, complete_tasks
from evertick.cli.database import on_store, store_of
from evertick.cli.disabled import disabled_jobs, disabled_words
from evertick.cli.named import schedule_or_run, task_word
from evertick.cli.node_names import names_for, node_of, shown_place
from evertick.cli.output import Column, as_json_option, hint, print_facts, print_json, print_table
from evertick.cli.parameters import check_stretch, labels_option, since_option, until_option
from evertick.cli.wall import moments_tz_option
from evertick.cli.words import called, outcome, remark, stamp, took, tries
from evertick.errors import NotFound
from evertick.explain.run import Facts, explain_run, explain_task
from evertick.explain.schedule import Why
from evertick.ledger.fan_out import overlap_on
from evertick.model import Gap, Run, Schedule, State, Verdict
from evertick.scheduler.scheduler import Scheduler

__all__ = ["history", "print_ledger", "print_why", "row_data", "row_of", "rows_data", "runs", "why"]

_LIMIT_MAX = 100_000
# How the reason of a gap begins that is the gap of one node.
_OVERLAP_ON = overlap_on("")
_STATES, _VERDICTS = [each.value for each in State], [each.value for each in Verdict]


_task = click.option("--task", metavar="NAME", shell_complete=complete_tasks, help="Only of this task.")
_limit = click.option(
    "--limit", type=click.IntRange(1, _LIMIT_MAX), default=20, show_default=True, help="So many rows."
)


@click.command()
@click.argument("key", required=False, shell_complete=complete_keys)
@_task
@_limit
@since_option
@until_option
@moments_tz_option
@as_json_option
@on_store
async def history(
    scheduler: Scheduler,
    key: str | None,
    task: str | None,
    limit: int,
    since: datetime | None,
    until: datetime | None,
    as_json: bool,
) -> None:
    """Show what became of every moment, newest first.

    A moment has a run, or lies in a gap: a stretch of moments that got none, with the reason. A run that no moment
    has made is marked with its cause, like "by trigger". TRIES has those that were lost with their node, too; TOOK of
    a lost run is "up to" when it was given up.

    \b
    Example:
      evertick history
      evertick history report --since 24h
      evertick history --json | jq '.[] | select(.verdict == "failed")'
    """
    check_stretch(since, until)
    if task is None:
        rows = await scheduler.history(key, since=since, until=until, limit=limit)
    else:
        rows = await _history_of_task(scheduler, key, task, since, until, limit)
    if key is not None and not rows:
        await scheduler.schedule(key)  # nothing came of it, or there is no such schedule
    if as_json:
        print_json(await rows_data(scheduler, rows))
    elif rows:
        print_ledger(rows, await names_for(scheduler, rows))
    else:
        hint(f"nothing is recorded in app {scheduler.app!r} for this question")


async def _history_of_task(
    scheduler: Scheduler, key: str | None, task: str, since: datetime | None, until: datetime | None, limit: int
) -> list[Run | Gap]:
    """The runs of the task, also those enqueued by hand, and the gaps of the schedules that have it."""
    rows: list[Run | Gap] = [*await scheduler.runs(key, task=task, since=since, until=until, limit=limit)]
    for schedule in await scheduler.schedules():
        if schedule.task == task and key in (None, schedule.key):
            rows += await scheduler.gaps(schedule.key, since=since, until=until, limit=limit)
    rows.sort(key=lambda row: row.fire_at if isinstance(row, Run) else row.last_at, reverse=True)
    return rows[:limit]


@click.command()
@click.argument("key", required=False, shell_complete=complete_keys)
@_task
@click.option("--state", "states", type=click.Choice(_STATES), multiple=True, help="May be repeated.")
@click.option("--verdict", "verdicts", type=click.Choice(_VERDICTS), multiple=True, help="May be repeated.")
@labels_option
@_limit
@since_option
@until_option
@moments_tz_option
@as_json_option
@on_store
async def runs(
    scheduler: Scheduler,
    key: str | None,
    task: str | None,
    states: tuple[str, ...],
    verdicts: tuple[str, ...],
    labels: tuple[tuple[str, str], ...],
    limit: int,
    since: datetime | None,
    until: datetime | None,
    as_json: bool,
) -> None:
    """List runs: what waits, what runs, what has ended.

    Of all schedules or one, and what was enqueued by hand, newest moment first. `evertick show RUN` tells everything
    about one of them, `evertick why RUN` what it waits for. TRIES has those that were lost with their node, and the
    one that is under way.

    \b
    Example:
      evertick runs --state blocked --state parked
      evertick runs --task send_mail --since 1h
      evertick runs report --verdict failed --json
    """
    check_stretch(since, until)
    found = await scheduler.runs(
        key,
        task=task,
        states=states or None,
        verdicts=verdicts or None,
        labels=dict(labels),
        since=since,
        until=until,
        limit=limit,
    )
    if key is not None and not found:
        await scheduler.schedule(key)  # nothing came of it, or there is no such schedule
    if as_json:
        print_json(await rows_data(scheduler, found))
    elif found:
        names = await names_for(scheduler, found)
        print_table(_RUN_COLUMNS, [_run_line(run, names) for run in found])
    else:
        hint(f"no run in app {scheduler.app!r} is like that")


_RUN_COLUMNS = [
    Column(title="MOMENT", is_moment=True),
    # What `show`, `why`, `logs` and `cancel` want: it is there to be copied, on the narrowest terminal.
    Column(title="RUN"),
    Column(title="TASK", is_cut=True),
    Column(title="KEY", is_cut=True, gives_way=6),
    Column(title="STATE", is_coloured=True),
    Column(title="REASON", is_cut=True, gives_way=2),
    Column(title="TRIES", is_right=True, gives_way=5),
    Column(title="TOOK", is_right=True, gives_way=4),
    Column(title="NODE", is_cut=True, is_cut_in_front=True, gives_way=3),
    Column(title="DETAIL", is_cut=True, gives_way=1),
]


def _run_line(run: Run, names: Mapping[str, str]) -> list[str]:
    return [
        stamp(run.fire_at, is_exact=True),
        run.id,
        run.task,
        run.schedule_key or "-",
        outcome(run),
        run.reason or "-",
        tries(run),
        took(run),
        shown_place(run, names),
        remark(run),
    ]


def row_data(row: Run | Gap, names: Mapping[str, str]) -> dict[str, Any]:
    """A row of the ledger as JSON: its kind, then its fields, and for a run the name of its node where it is known."""
    if isinstance(row, Gap):
        return {"kind": "gap", **msgspec.structs.asdict(row)}
    return {"kind": "run", **msgspec.structs.asdict(row), "node_name": names.get(node_of(row) or "")}


async def rows_data(scheduler: Scheduler, rows: Sequence[Run | Gap]) -> list[dict[str, Any]]:
    names = await names_for(scheduler, rows)
    return [row_data(row, names) for row in rows]


async def row_of(scheduler: Scheduler, row: Run | Gap) -> dict[str, Any]:
    [data] = await rows_data(scheduler, [row])
    return data


def print_ledger(rows: Sequence[Run | Gap], names: Mapping[str, str], *, is_one_schedule: bool = False) -> None:
    places = {(row.handed_to or node_of(row)) if isinstance(row, Run) else _node_of_gap(row) for row in rows}
    is_many = len(places - {None, ""}) > 1
    columns = [
        Column(title="MOMENT", is_moment=True),
        Column(title="KEY", is_cut=True, cut_least=16),
        Column(title="VERDICT", is_coloured=True),
        # Whole, as far as the words of the ledger go.
        Column(title="REASON", is_cut=True, cut_least=10),
        Column(title="TRIES", is_right=True, gives_way=2),
        Column(title="TOOK", is_right=True, gives_way=1),
        # What tells the runs of a fire for every node apart; where all are of one node it is the first to go.
        Column(title="NODE", is_cut=True, is_cut_in_front=True, gives_way=0 if is_many else 4),
        Column(title="DETAIL", is_cut=True),
        Column(title="RUN", width_least=150, gives_way=3),
    ]
    lines = [_line(row, names) for row in rows]
    if is_one_schedule:
        del columns[1]
        for line in lines:
            del line[1]
    print_table(columns, lines)


def _line(row: Run | Gap, names: Mapping[str, str]) -> list[str]:
    if isinstance(row, Gap):
        moment, key, of_run, run_id = row.last_at, row.schedule_key, ["-", "-", _node_of_gap(row)], "-"
    else:
        moment, key, run_id = row.fire_at, called(row), row.id
        of_run = [tries(row), took(row), shown_place(row, names)]
    return [stamp(moment, is_exact=True), key, outcome(row), _reason(row), *of_run, remark(row), run_id]


def _reason(row: Run | Gap) -> str:
    """In a word. That of one node's gap has the node in it, which has a column of its own here."""
    return "overlap" if isinstance(row, Gap) and _node_of_gap(row) else row.reason or "-"


def _node_of_gap(gap: Gap) -> str:
    return gap.reason.removeprefix(_OVERLAP_ON) if gap.reason.startswith(_OVERLAP_ON) else ""


@click.command()
@click.argument("key", metavar="KEY|RUN|TASK", shell_complete=complete_keys)
@as_json_option
@on_store
async def why(scheduler: Scheduler, key: str, as_json: bool) -> None:
    """Say in words what a schedule, a run or a task does, and why.

    Of a schedule: when it fires next and why then, what became of its last moments, what it waits for now. Of a run:
    what it waits for, or what became of it. Of a task: its runs that are live, and what holds them up.

    \b
    Example:
      evertick why report
      evertick why 01a1e06c-c7bb-7e9b-8894-4297139cf510
      evertick why send_mail
    """
    found = await _schedule_run_or_task(scheduler, key)
    store = await store_of(scheduler)
    if isinstance(found, Run):
        told = await explain_run(store, found)
        _answer(told, told.facts(), as_json)
    elif isinstance(found, str):
        of_task = await explain_task(store, scheduler.app, found)
        _answer(of_task, of_task.facts(), as_json)
        if not as_json and (place := disabled_jobs().get(found)) is not None:
            hint(f"note: {disabled_words(found, place)}")
    else:
        await _why_schedule(scheduler, found.key, as_json)


async def _schedule_run_or_task(scheduler: Scheduler, word: str) -> Schedule | Run | str:
    try:
        return await schedule_or_run(scheduler, word)
    except NotFound:
        task = task_word(word)
        is_known = any(task in node.tasks for node in await scheduler.nodes())
        if is_known or await scheduler.runs(task=task, limit=1):
            return task
        if any(schedule.task == task for schedule in await scheduler.schedules()):
            return task
        raise


def _answer(answer: Any, facts: Facts, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        print_facts(facts)


async def _why_schedule(scheduler: Scheduler, key: str, as_json: bool) -> None:
    answer = await scheduler.why(key)
    if as_json:
        print_json(answer)
        return
    print_why(answer)
    for run in await scheduler.runs(key, states=[State.PARKED], limit=1):
        hint(f"note: to give the parked run up: evertick cancel {run.id}")


def print_why(answer: Why) -> None:
    print_facts([("Next", answer.next), ("Last", answer.last), ("Now", answer.now), ("Note", answer.notes)])
