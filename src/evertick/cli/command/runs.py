"""Commands about runs: history, runs, why, cancel, logs; and everything about one run, for `show`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import click
import msgspec

from evertick.cli.command.completion import complete_keys, complete_runs, complete_tasks
from evertick.cli.database import on_store
from evertick.cli.named import disabled_jobs, disabled_words, last_run_named, run_named, schedule_or_run, task_word
from evertick.cli.parameters import check_stretch, labels_option, since_option, until_option
from evertick.cli.show.output import (
    Column,
    as_json_option,
    hint,
    json_text,
    print_facts,
    print_json,
    print_section,
    print_table,
    say,
    style_of,
)
from evertick.cli.show.words import (
    called,
    data_text,
    dispatched_remark,
    dispatched_to_words,
    distance,
    known_names,
    losses_words,
    names_for,
    node_of,
    node_words,
    now,
    outcome,
    remark,
    shown_node,
    shown_place,
    stamp,
    took,
    tries,
)
from evertick.cli.time_zone import moments_tz_option
from evertick.errors import NotFound, Refused
from evertick.explain.dispatched_run import is_heard
from evertick.explain.run import WhyRun, WhyTask, phase_words
from evertick.explain.schedule import Why
from evertick.explain.words import driver_wanted, living_of
from evertick.ledger.planning import overlap_on
from evertick.model import LIVE_STATES, Attempt, Gap, LogLine, Node, Phase, Reason, Run, Schedule, State, Verdict
from evertick.operations.timeline import COUNTED_MOST, Question, Timeline, timeline
from evertick.scheduler.operation import call
from evertick.scheduler.scheduler import Scheduler
from evertick.text.error_line import error_summary
from evertick.text.time_span import span
from evertick.when import from_us

__all__ = [
    "cancel",
    "hint_if_stuck",
    "history",
    "log_page",
    "logs",
    "print_ledger",
    "print_run",
    "print_why",
    "row_data",
    "row_of",
    "rows_data",
    "run_data",
    "runs",
    "timeline_data",
    "whole_log",
    "why",
]

Facts = list[tuple[str, str | list[str]]]

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
    found = await call(scheduler, timeline, question, limit)
    if question.key is not None and not found.happened and not found.planned:
        await scheduler.schedule(question.key)  # it has no rows, or there is no such schedule
    return found


async def timeline_data(
    scheduler: Scheduler, found: Timeline, limit: int, is_planned: bool = False
) -> list[dict[str, Any]]:
    """The runs and gaps that have happened, then the planned runs, each up to the limit."""
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
    # `show`, `why`, `logs` and `cancel` take it: it is copied, also from the narrowest terminal.
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
        # It tells the runs of a fire for every node apart; where all are of one node it is the first to go.
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
    if isinstance(found, Run):
        of_run = await scheduler.why_run(found)
        _answer(of_run, _facts_of_run(of_run), as_json)
    elif isinstance(found, str):
        of_task = await scheduler.why_task(found)
        _answer(of_task, _facts_of_task(of_task), as_json)
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


def _facts_of_run(why: WhyRun) -> Facts:
    of = f" of {why.schedule_key}" if why.schedule_key else ""
    return [
        ("Run", f"{why.id}, task {why.task}{of}"),
        ("Now", why.now),
        ("Behind", why.behind),
        ("Phases", why.phases),
        ("Nodes", why.nodes),
    ]


def _facts_of_task(why: WhyTask) -> Facts:
    counts = ", ".join(f"{count} {state}" for state, count in why.live.items())
    return [
        ("Task", why.task),
        ("Live", counts or "none of its runs"),
        ("Now", why.now),
        ("Last", why.last),
        ("Nodes", why.nodes),
    ]


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


@click.command()
@click.argument("run", shell_complete=complete_runs)
@as_json_option
@on_store
async def cancel(scheduler: Scheduler, run: str, as_json: bool) -> None:
    """Cancel a run, at once or by asking it to stop.

    A waiting run ends at once. A running one is asked to stop, and ends when its job obeys. A run that was dispatched
    to a queue ends when its worker obeys; if no worker has taken it, a node ends it within seconds, and a worker that
    takes it from the queue later ignores it. RUN is its id, or the beginning of it.

    \b
    Example:
      evertick cancel 01a1e06c-c7bb-7e9b-8894-4297139cf510
    """
    run = (await run_named(scheduler, run)).id
    is_in_time = await scheduler.cancel(run)
    after = await scheduler.get_run(run)
    if not is_in_time:
        raise Refused(f"run {run!r} had ended already, as {outcome(after)} {_at(after)}; nothing was cancelled".strip())
    if as_json:
        print_json(await row_of(scheduler, after))
    elif after.is_live:
        nodes = living_of(await scheduler.nodes())
        say(f"asked run {run} to stop; {_until_when(after, nodes)}, `evertick show {run}` tells when it has ended")
    else:
        say(f"run {run} has ended: {_verdict(after)}")


def _until_when(run: Run, living: Sequence[Node]) -> str:
    """How long one that was asked to stop is still live."""
    if run.dispatched is None:
        return "it runs until its job obeys"
    if run.dispatched.taken_at is not None:
        return "it runs until its worker obeys"
    if not living:
        return "no worker has taken it, and it ends when there is a node to see to it"
    if not is_heard(run.dispatched.to, living):
        return "no node hears now whether a worker has it, and one that has is given its time to stop"
    return "no worker has taken it, and a node ends it within seconds"


def _at(run: Run) -> str:
    return "" if run.finished_at is None else f"at {stamp(run.finished_at)}"


def _verdict(run: Run) -> str:
    return outcome(run) + (f" ({run.reason})" if run.reason else "")


async def hint_if_stuck(scheduler: Scheduler, run: Run) -> None:
    """Warn after a run by hand that no node can carry out."""
    take_back = f"`evertick cancel {run.id}` takes it back"
    nodes = await scheduler.nodes()
    if not any(run.task in node.tasks for node in living_of(nodes)):
        driver = driver_wanted(run.task, nodes)
        what = "knows" if driver is None else f"has the driver {driver!r} for"
        hint(f"note: no live node {what} the task {run.task!r}; the run waits until one is started, {take_back}")
    elif run.state is State.PARKED:
        hint(f"note: the run is parked: {error_summary(run.error) or run.reason}; {take_back}")


async def run_data(scheduler: Scheduler, run: Run) -> dict[str, Any]:
    """The run as JSON, with what is kept beside it."""
    names = known_names(await scheduler.nodes())
    attempts = [
        {**msgspec.structs.asdict(attempt), "node_name": names.get(attempt.node or "")}
        for attempt in await scheduler.attempts(run)
    ]
    return {"run": row_data(run, names), "attempts": attempts, "log": await whole_log(scheduler, run.id)}


async def print_run(scheduler: Scheduler, run: Run) -> None:
    names = known_names(await scheduler.nodes())
    print_facts(_facts(run, names))
    if run.error:
        print_section("Error", run.error.rstrip().splitlines())
    if attempts := await scheduler.attempts(run):
        say("")
        say(("Earlier attempts", "bold"))
        _print_attempts(attempts, names)
        if phases := [f"{each.number}  {_phase_words(phase)}" for each in attempts for phase in each.phases]:
            print_section("Phases of earlier attempts", phases)
    if lines := await whole_log(scheduler, run.id):
        print_section("Log", log_page(lines))


def _facts(run: Run, names: Mapping[str, str]) -> Iterator[tuple[str, str | list[str]]]:
    yield "Run", run.id
    yield "App", run.app
    yield "Schedule", run.schedule_key or ""
    yield "Task", run.task
    yield "Arguments", data_text(run.args) if run.args else ""
    yield "Cause", run.cause.value + (f", by run {run.caused_by}" if run.caused_by else "")
    yield "Moment", stamp(run.fire_at, is_exact=True)
    yield "State", list(_state(run))
    yield "Due", stamp(run.due_at, is_exact=True) if run.due_at != run.fire_at else ""
    yield "Expires", "" if run.expires_at is None else stamp(run.expires_at, is_exact=True)
    yield "Created", stamp(run.created_at, is_exact=True)
    yield "Started", "" if run.started_at is None else stamp(run.started_at, is_exact=True)
    yield "Ended", "" if run.finished_at is None else f"{stamp(run.finished_at, is_exact=True)}, took {took(run)}"
    yield "Tries", tries(run)
    yield "Losses", f"{run.losses}: {losses_words(run)}" if run.losses else ""
    yield "Node", node_words(node_of(run), names)
    yield "Dispatched to", "" if run.dispatched_to is None else dispatched_to_words(run.dispatched_to)
    yield "Fence", "" if run.fence is None else str(run.fence)
    yield "Queue", f"{run.queue}, priority {run.priority}"
    yield "Labels", ", ".join(f"{name}={value}" for name, value in run.labels.items())
    yield "Progress", "" if run.progress is None else f"{run.progress:.0%} {run.progress_text or ''}".rstrip()
    yield "Phases", [_phase_words(phase) for phase in run.phases]
    yield "Result", "" if run.result is None else data_text(run.result)


def _state(run: Run) -> Iterator[str]:
    yield _verdict(run)
    if run.dispatched is not None:
        yield dispatched_remark(run.dispatched)
        if run.dispatched.taken_at is None and run.dispatched.served_by is not None:
            yield f"a worker that takes it is started by: {run.dispatched.served_by}"
    if run.is_cancel_requested and run.is_live:
        yield "it was asked to stop"
    if run.state is State.BLOCKED and run.reason == Reason.CONCURRENCY:
        yield f"as many runs of {run.blocked_on!r} are at work as may be at once"
    elif run.state is State.BLOCKED and run.reason == Reason.RATE:
        yield f"as many runs of {run.blocked_on!r} have started as its rate allows"
    elif run.blocked_on is not None:
        yield f"it waits for the end of run {run.blocked_on}"
    if run.state is State.PARKED:
        is_unknown = run.reason == Reason.UNKNOWN_TASK
        wanted = "no live node knows its task" if is_unknown else "its arguments do not fit its task"
        yield f"{wanted}; start a node that can run it, or give it up: evertick cancel {run.id}"


def _phase_words(phase: Phase) -> str:
    return f"{phase_words(phase)}, since {stamp(from_us(phase.at), is_exact=True)}"


def _print_attempts(attempts: Sequence[Attempt], names: Mapping[str, str]) -> None:
    columns = [
        Column(title="NUMBER", is_right=True),
        Column(title="STARTED", is_moment=True),
        Column(title="TOOK", is_right=True),
        Column(title="REASON"),
        Column(title="ERROR", is_cut=True, cut_least=20, is_whole_below=True),
        Column(title="NODE", is_cut=True, is_cut_in_front=True, gives_way=1),
    ]
    print_table(columns, [_attempt_row(attempt, names) for attempt in attempts])


def _attempt_row(attempt: Attempt, names: Mapping[str, str]) -> list[str]:
    started = attempt.started_at
    return [
        str(attempt.number),
        stamp(started, is_exact=True),
        "-" if started is None else span(attempt.finished_at - started),
        attempt.reason or "-",
        error_summary(attempt.error),
        shown_node(attempt.node, names),
    ]


_PAGE = 1_000
# Nodes carry the lines of their runs to the store about once a second.
_LOOK_SECONDS = 0.5
_ANOTHER = "--- another attempt"
_STYLES = {"warning": "yellow", "error": "bold red", "critical": "bold red", "debug": "dim"}


@click.command()
@click.argument("run", metavar="RUN|KEY", shell_complete=complete_runs)
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended, over all its attempts.")
@as_json_option
@on_store
async def logs(scheduler: Scheduler, run: str, follow: bool, as_json: bool) -> None:
    """Show what a run has logged, and follow it.

    With --follow it goes on until the run has ended, also over its retries, and ends with the verdict: exit code 0 if
    it succeeded, 1 if not. With --json each line is an object of its own.

    RUN is its id, or the beginning of it; KEY means the last run of that schedule.

    \b
    Example:
      evertick logs 01a1e06c-c7bb-7e9b-8894-4297139cf510
      evertick logs report
      evertick logs --follow 01a1e06c-c7bb-7e9b-8894-4297139cf510
    """
    printer = _LogPrinter(as_json=as_json)
    found = await last_run_named(scheduler, run)
    if not follow:
        printer.print_lines(await whole_log(scheduler, found.id))
        if not printer.count and not as_json:
            hint(f"run {found.id} has logged nothing" + (" yet; follow it with --follow" if found.is_live else ""))
        return
    ended = await _follow(scheduler, found, printer)
    printer.print_end(ended)
    if ended.verdict is not Verdict.SUCCEEDED:
        raise click.exceptions.Exit(1)


async def whole_log(scheduler: Scheduler, run: str, after: int = 0) -> list[LogLine]:
    """All that a run has logged, from a line on."""
    lines: list[LogLine] = []
    while True:
        page = await scheduler.log(run, after=after + len(lines), limit=_PAGE)
        lines += page
        if len(page) < _PAGE:
            return lines


async def _follow(scheduler: Scheduler, run: Run, printer: _LogPrinter) -> Run:
    while True:
        # The run first: what is done by then has written all its lines before.
        printer.print_lines(await whole_log(scheduler, run.id, printer.count))
        if not run.is_live:
            return run
        printer.print_state(run)
        await asyncio.sleep(_LOOK_SECONDS)
        run = await scheduler.get_run(run.id)


class _LogPrinter:
    """Prints lines as they come, and why none come: a pause, another attempt."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self.count = 0
        self._fence: int | None = None
        self._printed: tuple[State, int] | None = None

    def print_lines(self, lines: list[LogLine]) -> None:
        for line in lines:
            if not self._as_json and self._fence not in (None, line.fence):
                say((_ANOTHER, "dim"))
            self._fence = line.fence
            self._print_line(line)
        self.count += len(lines)

    def _print_line(self, line: LogLine) -> None:
        if self._as_json:
            _print_json_line({"kind": "line", **msgspec.structs.asdict(line)})
            return
        for text in _texts(line):
            say((text, _STYLES.get(line.level, "")))

    def print_state(self, run: Run) -> None:
        """Once per change, on stderr: what the run does while it says nothing."""
        now = run.state, run.attempts
        if self._as_json or now == self._printed:
            return
        self._printed = now
        if run.state is State.WAITING:
            why = "waits for its retry" if run.attempts else "waits"
            hint(f"--- run {run.id} {why}, due {stamp(run.due_at, is_exact=True)}")
        elif run.state is not State.RUNNING:
            hint(f"--- run {run.id} is {run.state.value}" + (f" ({run.reason})" if run.reason else ""))

    def print_end(self, run: Run) -> None:
        if self._as_json:
            names = ("id", "verdict", "reason", "attempts", "started_at", "finished_at", "error", "result")
            _print_json_line({"kind": "end", **{name: getattr(run, name) for name in names}})
            return
        reason = f" ({run.reason})" if run.reason else ""
        tries = f", at attempt {run.attempts}" if run.attempts > 1 else ""
        length = f", took {took(run)}" if run.started_at is not None else ""
        say("--- ", (outcome(run), style_of(outcome(run))), f"{reason}{tries}{length}")


def _print_json_line(data: dict[str, Any]) -> None:
    click.echo(json_text(data))


def log_page(lines: Iterable[LogLine]) -> Iterator[str]:
    """The lines of a run for people, told apart by its attempts."""
    fence: int | None = None
    for line in lines:
        if fence not in (None, line.fence):
            yield _ANOTHER
        fence = line.fence
        yield from _texts(line)


def _texts(line: LogLine) -> list[str]:
    """A line for people: when, how loud, what; what goes over several lines is set in."""
    first, *more = line.text.splitlines() or [""]
    return [f"{stamp(line.at, is_exact=True)}  {line.level:7}  {first}", *(f"  {text}" for text in more)]
