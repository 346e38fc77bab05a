"""What can be wrong with runs in the hands of an outside queue: the queue is away, nobody takes what it has, or nobody
hears what its workers say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from evertick.doctor.finding import Finding, Severity
from evertick.explain.dispatched_run import is_away, is_heard, queue_words
from evertick.model import Dispatched, Message, Node, Run
from evertick.text.error_line import what_was_raised

__all__ = ["about_dispatched"]

_AWAY_LONG = timedelta(minutes=1)
_UNTAKEN_LONG = timedelta(minutes=10)


def about_dispatched(
    dispatched: Sequence[Run], unsent: Mapping[str, Message], living: Sequence[Node], now: datetime
) -> Iterator[Finding]:
    """One finding per queue and trouble. `unsent`: messages that are still to dispatch some of the runs."""
    away: dict[str, list[tuple[Run, Dispatched]]] = defaultdict(list)
    untaken: dict[str, list[tuple[Run, Dispatched]]] = defaultdict(list)
    unheard: dict[str, list[tuple[Run, Dispatched]]] = defaultdict(list)
    for run in dispatched:
        hands = run.dispatched
        if hands is None:
            continue
        if hands.until is not None and hands.until < now and living and not is_heard(hands.to, living):
            unheard[hands.to].append((run, hands))
            continue
        if hands.taken_at is not None:
            continue
        message = unsent.get(run.id)
        if message is not None and message.attempts and now - hands.at > _AWAY_LONG:
            away[hands.to].append((run, hands))
        elif hands.pushed_at is not None and now - hands.pushed_at > _long_for(hands, hands.pushed_at):
            untaken[queue_words(hands)].append((run, hands))
    yield from (_away(queue, runs, unsent, living) for queue, runs in sorted(away.items()))
    yield from (_untaken(queue, runs, now) for queue, runs in sorted(untaken.items()))
    yield from (_unheard(queue, runs) for queue, runs in sorted(unheard.items()))


def _long_for(hands: Dispatched, pushed_at: datetime) -> timedelta:
    """Before it is pushed again, from when on it counts anew."""
    return _UNTAKEN_LONG if hands.until is None else min(_UNTAKEN_LONG, (hands.until - pushed_at) / 2)


def _away(
    queue: str, runs: Sequence[tuple[Run, Dispatched]], unsent: Mapping[str, Message], living: Sequence[Node]
) -> Finding:
    message = unsent[runs[0][0].id]
    why = what_was_raised(message.error) or "no error is known"
    tries = "1 try" if message.attempts == 1 else f"{message.attempts} tries"
    what = "which is away" if is_away(runs[0][1], living) else "which has not taken what was sent"
    return Finding(
        severity=Severity.WARNING,
        check="queue_away",
        what=f"{_count(runs)} {queue!r}, {what}: {tries} so far ({why})",
        fix="see to it; what waits is sent when it is back, and nothing is lost meanwhile",
        about=tuple(run.id for run, _ in runs),
    )


def _untaken(queue: str, runs: Sequence[tuple[Run, Dispatched]], now: datetime) -> Finding:
    served_by = next((hands.served_by for _, hands in runs if hands.served_by is not None), None)
    worker = "a worker that takes them" if served_by is None else f"a worker that takes them, `{served_by}`"
    longest = max(now - hands.pushed_at for _, hands in runs if hands.pushed_at is not None)
    return Finding(
        severity=Severity.WARNING,
        check="untaken_runs",
        what=f"{_count(runs)} a worker of {queue}, the oldest for {longest.total_seconds() / 60:.0f} min",
        fix=f"start {worker}, or more of them; `evertick why RUN` says when one is pushed again",
        about=tuple(run.id for run, _ in runs),
    )


def _unheard(queue: str, runs: Sequence[tuple[Run, Dispatched]]) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        check="reports_unheard",
        what=f"{_count(runs)} a word of the workers of {queue!r}, which no live node hears: nobody calls them silent",
        fix="see to it that a node reaches the queue (its log says why it does not), or start one that has such jobs",
        about=tuple(run.id for run, _ in runs),
    )


def _count(runs: Sequence[tuple[Run, Dispatched]]) -> str:
    return "1 dispatched run waits for" if len(runs) == 1 else f"{len(runs)} dispatched runs wait for"
