"""What can be wrong with runs: parked ones, and ones that wait though there are nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from evertick.doctor.finding import Finding, Severity, named
from evertick.model import Node, Reason, Run

__all__ = ["about_parked", "about_waiting"]

_WAITED_LONG = timedelta(minutes=1)


def about_parked(parked: Sequence[Run]) -> Iterator[Finding]:
    """One finding per task and reason: a thousand runs are parked for the same one."""
    groups: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in parked:
        groups[run.task, run.reason or ""].append(run)
    for (task, reason), runs in sorted(groups.items()):
        count = f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}"
        is_unknown = reason == Reason.UNKNOWN_TASK
        error = (runs[0].error or "").strip().splitlines()[-1:]
        misfit = f"their arguments do not fit task {task}" + (f" ({error[0]})" if error else "")
        yield Finding(
            severity=Severity.WARNING,
            check="parked_runs",
            what=f"{count} parked: {f'no live node knows task {task}' if is_unknown else misfit}",
            fix=f"{'start a node that knows it' if is_unknown else 'mend the task'}, or give them up with "
            f"`evertick cancel {runs[0].id}`",
            about=tuple(run.id for run in runs),
        )


def about_waiting(waiting: Sequence[Run], living: Sequence[Node], now: datetime) -> Iterator[Finding]:
    """Runs that are due for long: no node works on their queue, or all are busy."""
    long_due = [run for run in waiting if now - run.due_at > _WAITED_LONG]
    if not living or not long_due:
        return
    queues = {queue for node in living for queue in node.queues}
    unserved = sorted({run.queue for run in long_due} - queues)
    for queue in unserved:
        runs = [run for run in long_due if run.queue == queue]
        yield Finding(
            severity=Severity.WARNING,
            check="unserved_queue",
            what=f"{_words(runs, now)}, and no live node works on their queue {queue!r}",
            fix=f"start a node with queues=[{queue!r}], or put the runs into another queue",
            about=tuple(run.id for run in runs),
        )
    able = [run for run in long_due if _is_able(run, living)]
    if able:
        tasks = named(sorted({run.task for run in able}))
        yield Finding(
            severity=Severity.WARNING,
            check="waiting_long",
            what=f"{_words(able, now)}, though live nodes know their tasks ({tasks})",
            fix="all slots are taken (see `evertick top`): raise concurrency=, or start more nodes",
            about=tuple(run.id for run in able),
        )


def _is_able(run: Run, living: Sequence[Node]) -> bool:
    return any(run.task in node.tasks and run.queue in node.queues for node in living)


def _words(runs: Sequence[Run], now: datetime) -> str:
    longest = max((now - run.due_at).total_seconds() for run in runs)
    count = "1 run is" if len(runs) == 1 else f"{len(runs)} runs are"
    return f"{count} due and waiting, the oldest for {longest / 60:.0f} min"
