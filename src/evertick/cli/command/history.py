"""Commands that read the ledger: history, runs, why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import click
import msgspec

from evertick.cli.candidates import complete_keys, complete_tasks
from evertick.cli.database import on_store
from evertick.cli.disabled import disabled_jobs, disabled_words
from evertick.cli.named import schedule_or_run, task_word
from evertick.cli.parameters import check_stretch, labels_option, since_option, until_option
from evertick.cli.show.node_names import names_for, node_of, shown_place
from evertick.cli.show.output import Column, as_json_option, hint, print_facts, print_json, print_table, say
from evertick.cli.show.timeline import COUNTED_MOST, Question, Timeline, timeline
from evertick.cli.show.words import called, distance, now, outcome, remark, stamp, took, tries
from evertick.cli.time_zone import moments_tz_option
from evertick.errors import NotFound
from evertick.explain.run import Facts, explain_run, explain_task
from evertick.explain.schedule import Why
from evertick.ledger.planning import overlap_on
from evertick.model import LIVE_STATES, Gap, Run, Schedule, State, Verdict
from evertick.scheduler.scheduler import Scheduler

__all__ = ["history", "print_ledger", "print_why", "row_data", "row_of", "rows_data", "runs", "timeline_data", "why"]

_LIMIT_MAX = 100_000
# How the reason of a gap begins that is the gap of one node.
_OVERLAP_ON = overlap_on("")
_STATES, _VERDICTS = [each.value for each in State], [each.value for each in Verdict]


_task = click.option("--task", metavar="NAME", shell_complete=complete_tasks, help="Only of this task.")
_limit = click.option(
    "--limit", type=click.IntRange(1, _LIMIT_MAX), default=20, show_default=True, help="So many rows."
)


_planned = click.option("--planned", is_flag=True, help="Only what is planned for later, soonest first.")


@click.command()
@click.argument("key", required=False, shell_complete=complete_keys)
@_task
@_limit
@since_option
@until_option
@_planned
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
    planned: bool,
    as_json: bool,
) -> None:
    """Show what became of every moment, newest first.

    A moment has a run, or lies in a gap: a stretch of moments that got none, with the reason. A run that no moment
    has made is marked with its cause, like "by trigger". TRIES has those that were lost with their node, too; TOOK of
    a lost run is "up to" when it was given up. Runs for later, like delayed tasks, are counted below; --planned shows
    them. With --json they come after the others, with `is_planned`.

    \b
    Example:
      evertick history
      evertick history report --since 24h
      evertick history --planned
      evertick history --json | jq '.[] | select(.verdict == "failed")'
    """
    check_stretch(since, until)
    question = Question(key=key, task=task, since=since, until=until, with_gaps=True)
    found = await _found(scheduler, question, limit)
    if as_json:
        print_json(await timeline_data(scheduler, found, limit, planned))
        return
    names = await names_for(scheduler, [*found.happened, *found.planned])

    def show(rows: Sequence[Run | Gap]) -> None:
        print_ledger(rows, names)

    if not _print_timeline(found, limit, show, is_planned=planned, is_all=False):
        hint(f"nothing is recorded in app {scheduler.app!r} for this question")


async def _found(scheduler: Scheduler, question: Question, limit: int) -> Timeline:
    found = await timeline(scheduler, question, limit)
    if question.key is not None and not found.happened and not found.planned:
        await scheduler.schedule(question.key)  # nothing came of it, or there is no such schedule
    return found


async def timeline_data(
    scheduler: Scheduler, found: Timeline, limit: int, is_planned: bool = False
) -> list[dict[str, Any]]:
    """What has happened, then what is planned, each up to the limit."""
    happened, planned = [] if is_planned else found.happened, found.planned[:limit]
    data = await rows_data(scheduler, [*happened, *planned])
    return [{**row, "is_planned": place >= len(happened)} for place, row in enumerate(data)]


def _print_timeline(
    found: Timeline, limit: int, show: Callable[[Sequence[Run | Gap]], None], *, is_planned: bool, is_all: bool
) -> bool:
    """Print what has happened, and what is planned if that is asked for or is all there is; False if there is nothing.

    `is_all`: whether both are asked for.
    """
    happened = [] if is_planned else found.happened
    if happened:
        show(happened)
    if not found.planned:
        return bool(happened)
    if happened and not is_all:
        hint(f"{_planned_words(found.planned)}; --planned shows {'it' if len(found.planned) == 1 else 'them'}")
        return True
    if happened:
        say("")
    if not is_planned:
        say(("Planned", "bold"))
    show(found.planned[:limit])
    if len(found.planned) > limit:
        hint(f"{limit} of {_count(found.planned)} planned runs are shown, soonest first; more with --limit")
    return True


def _count(planned: Sequence[Run]) -> str:
    return f"{len(planned)}" if len(planned) < COUNTED_MOST else f"{len(planned)} or more"


def _planned_words(planned: Sequence[Run]) -> str:
    many = "1 run is planned, for" if len(planned) == 1 else f"{_count(planned)} runs are planned, the first for"
    return f"{many} {stamp(planned[0].fire_at)} ({distance(planned[0].fire_at, now())})"


@click.command()
@click.argument("key", required=False, shell_complete=complete_keys)
@_task
@click.option("--state", "states", type=click.Choice(_STATES), multiple=True, help="May be repeated.")
@click.option("--live", is_flag=True, help="Only what has not ended: waiting, blocked, parked, running or dispatched.")
@click.option("--verdict", "verdicts", type=click.Choice(_VERDICTS), multiple=True, help="May be repeated.")
@labels_option
@_limit
@since_option
@until_option
@_planned
@moments_tz_option
@as_json_option
@on_store
async def runs(
    scheduler: Scheduler,
    key: str | None,
    task: str | None,
    states: tuple[str, ...],
    live: bool,
    verdicts: tuple[str, ...],
    labels: tuple[tuple[str, str], ...],
    limit: int,
    since: datetime | None,
    until: datetime | None,
    planned: bool,
    as_json: bool,
) -> None:
    """List runs: what waits, what runs, what has ended.

    Of all schedules or one, and what was enqueued by hand, newest moment first. `evertick show RUN` tells everything
    about one of them, `evertick why RUN` what it waits for. TRIES has those that were lost with their node, and the
    one that is under way.

    Runs for later, like delayed tasks, are counted below; --planned shows them, soonest first. With --live or a state
    of live runs they have a section of their own. With --json they come after the others, with `is_planned`.

    \b
    Example:
      evertick runs --live
      evertick runs --state blocked --state parked
      evertick runs --task send_mail --since 1h
      evertick runs report --verdict failed --json
    """
    check_stretch(since, until)
    _check_live(live, states, verdicts)
    wanted = tuple(State(each) for each in states) or (LIVE_STATES if live else None)
    question = Question(
        key=key,
        task=task,
        states=wanted,
        verdicts=tuple(Verdict(each) for each in verdicts) or None,
        labels=dict(labels),
        since=since,
        until=until,
    )
    found = await _found(scheduler, question, limit)
    if as_json:
        print_json(await timeline_data(scheduler, found, limit, planned))
        return
    names = await names_for(scheduler, [*found.happened, *found.planned])

    def show(rows: Sequence[Run | Gap]) -> None:
        print_table(_RUN_COLUMNS, [_run_line(run, names) for run in rows if isinstance(run, Run)])

    if not _print_timeline(found, limit, show, is_planned=planned, is_all=wanted is not None):
        hint(f"no run in app {scheduler.app!r} is like that")


def _check_live(live: bool, states: Sequence[str], verdicts: Sequence[str]) -> None:
    if live and State.DONE in states:
        raise click.UsageError("--live and --state done contradict each other: a live run has not ended; leave out one")
    if live and verdicts:
        raise click.UsageError("--live and --verdict contradict each other: a live run has no verdict; leave out one")


_RUN_COLUMNS = [
    Column(title="MOMENT", is_moment=True, below="shared", gives_way=1),
    # What `show`, `why`, `logs` and `cancel` want: it is there to be copied, on the narrowest terminal.
    Column(title="RUN"),
    Column(title="TASK", below="shared", gives_way=3),
    Column(title="KEY", below="shared", gives_way=4),
    Column(title="STATE", is_coloured=True, below="shared", gives_way=2),
    Column(title="REASON", below="shared", gives_way=5),
    Column(title="TRIES", is_right=True, gives_way=7),
    Column(title="TOOK", is_right=True, gives_way=6),
    Column(title="NODE", is_cut=True, is_cut_in_front=True, gives_way=9),
    Column(title="DETAIL", is_cut=True, cut_least=30, is_whole_below=True, gives_way=8),
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
    places = {shown_place(row, names) if isinstance(row, Run) else _node_of_gap(row) for row in rows}
    is_many = len(places - {"-", ""}) > 1
    below: Literal["", "shared"] = "shared" if is_many else ""
    columns = [
        Column(title="MOMENT", is_moment=True),
        Column(title="KEY", below="shared", gives_way=1),
        Column(title="VERDICT", is_coloured=True),
        Column(title="REASON", below="shared", gives_way=3),
        Column(title="TRIES", is_right=True, gives_way=6),
        Column(title="TOOK", is_right=True, gives_way=5),
        # What tells the runs of a fire for every node apart; where all are of one node it is the first to go.
        Column(title="NODE", is_cut=True, is_cut_in_front=True, gives_way=2 if is_many else 9, below=below),
        Column(title="DETAIL", is_cut=True, cut_least=30, is_whole_below=True, gives_way=7),
        Column(title="RUN", width_least=150, gives_way=8),
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
    store = await scheduler.runtime.store()
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
