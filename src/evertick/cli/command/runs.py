"""One run: everything that is known about it (for `show`), what keeps it from starting, and the command cancel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
import msgspec

from evertick.cli.candidates import complete_runs
from evertick.cli.command.history import row_data, row_of
from evertick.cli.command.logs import log_page, whole_log
from evertick.cli.database import on_store
from evertick.cli.named import run_named
from evertick.cli.show.node_names import known_names, node_of, node_words, shown_node
from evertick.cli.show.output import (
    Column,
    as_json_option,
    hint,
    print_facts,
    print_json,
    print_section,
    print_table,
    say,
)
from evertick.cli.show.words import (
    data_text,
    dispatched_remark,
    dispatched_to_words,
    losses_words,
    outcome,
    span,
    stamp,
    took,
    tries,
)
from evertick.errors import Refused
from evertick.explain.dispatched_run import is_heard
from evertick.explain.run import phase_words
from evertick.explain.words import driver_wanted, living_of
from evertick.model import Attempt, Node, Phase, Reason, Run, State
from evertick.scheduler.scheduler import Scheduler
from evertick.text.error_line import what_was_raised
from evertick.when import from_us

__all__ = ["cancel", "hint_if_stuck", "print_run", "run_data"]


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
    """Tell whoever has just made a run by hand if nobody can carry it out."""
    take_back = f"`evertick cancel {run.id}` takes it back"
    nodes = await scheduler.nodes()
    if not any(run.task in node.tasks for node in living_of(nodes)):
        driver = driver_wanted(run.task, nodes)
        what = "knows" if driver is None else f"has the driver {driver!r} for"
        hint(f"note: no live node {what} the task {run.task!r}; the run waits until one is started, {take_back}")
    elif run.state is State.PARKED:
        hint(f"note: the run is parked: {what_was_raised(run.error) or run.reason}; {take_back}")


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
        what_was_raised(attempt.error),
        shown_node(attempt.node, names),
    ]
