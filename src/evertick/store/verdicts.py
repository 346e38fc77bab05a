"""Verdicts that the store itself gives: lost, cancelled and unreadable runs, fires whose unique key is taken. Also the
feed events of changes and outcomes. Pure, the same for every store.

A claim ignores rows in a newer format. An unreadable row in a known format is damaged (a manual change, or a release
that did not raise the format); it is parked or dead, so that operators find it and other rows are not delayed.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from evertick.model import LOSSES_MAX, Cause, MessageOutcome, NewGap, NewRun, Outcome, Reason, Verdict
from evertick.model.feed import FeedKind
from evertick.store.base import Change, TaskTerms
from evertick.store.rows import Row, storable_text
from evertick.when.moment import DAY, MINUTE

__all__ = [
    "CHANGE_KINDS",
    "DEADLINE_MARGIN",
    "REHOMED_MOST",
    "RETURN_KINDS",
    "Ending",
    "can_be_claimed",
    "cancelled_outcome",
    "change_event",
    "ending_of_lost",
    "gaps_with_duplicates",
    "minimal_outcome",
    "unreadable_messages",
    "unreadable_runs",
]

# A run this long past its deadline is taken from its living owner, which should have stopped it.
DEADLINE_MARGIN = MINUTE
# Runs that one call recovers at most: bounds its transaction. The rest follows with the next heartbeat.
REHOMED_MOST = 2_000


class Ending(msgspec.Struct, frozen=True):
    """A run that the store ends. `reason` None keeps the run's reason."""

    id: str
    verdict: Verdict
    reason: str | None


def ending_of_lost(row: Row) -> Ending | None:
    """The end of a run whose claim is lost; None: it may run again."""
    if row["is_cancel_requested"]:
        return Ending(row["id"], Verdict.CANCELLED, row["cancel_reason"] or Reason.REQUESTED)
    if row["is_left_alone"]:
        return Ending(row["id"], Verdict.LOST, Reason.NODE_GONE)
    if row["at_most_once"] or row["losses"] >= LOSSES_MAX:
        return Ending(row["id"], Verdict.LOST, Reason.NODE_DIED)
    return None


def can_be_claimed(row: Row, tasks: Mapping[str, TaskTerms]) -> bool:
    """Whether the recovering node can claim the run itself: it knows the task, and no limit applies."""
    terms = tasks.get(row["task"])
    return terms is not None and not terms.is_limited and row["limit_key"] is None and bool(row["is_readable"])


def cancelled_outcome(outcome: Outcome, held: Row) -> Outcome:
    """The end of a run that would return to waiting but for a cancel request. It sends no messages."""
    return msgspec.structs.replace(
        outcome,
        kind="done",
        verdict=Verdict.CANCELLED,
        reason=held["cancel_reason"] or Reason.REQUESTED,
        attempts=outcome.attempts if outcome.kind == "retry" else held["attempts"],
        messages=(),
        dispatch=None,
    )


def minimal_outcome(outcome: Outcome, error: Exception) -> Outcome:
    """An outcome that the store can write: without result, phases and messages.

    A success whose messages are dropped becomes a failure, because their readers must not see a success. So does a run
    that a dropped message was to dispatch.
    """
    problem = f"the outcome of this run cannot be stored as it is: {error}"
    bare: dict[str, Any] = {"result": None, "phases": (), "messages": (), "dispatch": None}
    if outcome.messages:
        problem = f"{problem}; its messages are not sent"
        bare |= {"verdict": Verdict.FAILED} if outcome.verdict is Verdict.SUCCEEDED else {}
    if outcome.kind == "dispatch":
        bare |= {"kind": "done", "verdict": Verdict.FAILED, "reason": Reason.UNDELIVERED}
        bare |= {"attempts": outcome.attempts + 1}
    bare["error"] = problem if outcome.error is None else f"{problem}\n{outcome.error}"
    return msgspec.structs.replace(outcome, **bare)


# --- claimed rows that cannot be read ---------------------------------------------------------------------------------


log = logging.getLogger("evertick.store")

# How long an unreadable message is kept for inspection.
_UNREADABLE_KEPT = 30 * DAY


def unreadable_runs(bad: Sequence[tuple[Row, str]], fence: int) -> list[Outcome]:
    """Parked, until they are cancelled."""
    for row, error in bad:
        log.error("run %s: task %r: the row is unreadable; parked: %s", row["id"], row["task"], error)
    return [
        Outcome(id=str(row["id"]), fence=fence, kind="park", reason=Reason.UNREADABLE, error=f"unreadable row: {error}")
        for row, error in bad
    ]


def unreadable_messages(bad: Sequence[tuple[Row, str]]) -> list[MessageOutcome]:
    """Dead, until they are dropped, or repaired and retried."""
    for row, error in bad:
        log.error("message %s: channel %r: the row is unreadable; marked dead: %s", row["id"], row["channel"], error)
    return [
        MessageOutcome(
            id=str(row["id"]),
            fence=row["fence"],
            kind="dead",
            attempts=row["attempts"],
            remember=_UNREADABLE_KEPT,
            error=f"unreadable row: {error}",
        )
        for row, error in bad
    ]


# --- fires whose unique key is taken ----------------------------------------------------------------------------------


_GAPS_BEFORE_A_FIRE = frozenset({Reason.COALESCED, Reason.DOWNTIME})


def gaps_with_duplicates(gaps: Iterable[NewGap], runs: Iterable[NewRun], taken: Container[str]) -> list[NewGap]:
    """The gaps of a plan, and gaps in place of its runs whose key is taken. Only fires have moments to account for.

    Moments that were coalesced into such a fire get the reason of that fire, because nothing ran for them. A fire for
    every node counts only if all nodes skip it.
    """
    fires = [run for run in runs if run.cause in (Cause.FIRE, Cause.EVERY_NODE)]
    skipped = [run for run in fires if run.id in taken]
    own = [_gap(run, run.fire_at) for run in skipped if run.fire_at is not None]
    if any(run.cause is Cause.FIRE for run in skipped):
        return [*(_skipped_with_it(gap, Reason.DUPLICATE) for gap in gaps), *own]
    if skipped and len(skipped) == len(fires):
        return [*(_skipped_with_it(gap, Reason.OVERLAP) for gap in gaps), *own]
    return [*gaps, *own]


def _gap(run: NewRun, at: int) -> NewGap:
    return NewGap(first_at=at, last_at=at, count=1, verdict=Verdict.SKIPPED, reason=run.if_taken)


def _skipped_with_it(gap: NewGap, reason: Reason) -> NewGap:
    if gap.reason not in _GAPS_BEFORE_A_FIRE:
        return gap
    return msgspec.structs.replace(gap, verdict=Verdict.SKIPPED, reason=reason)


# --- events of the feed -----------------------------------------------------------------------------------------------


# Feed kinds by kind of change, and by kind of outcome that does not end its run.
CHANGE_KINDS: Mapping[str, FeedKind] = {
    "add": "schedule.added",
    "edit": "schedule.edited",
    "pause": "schedule.paused",
    "resume": "schedule.resumed",
    "remove": "schedule.removed",
}
RETURN_KINDS: Mapping[str, FeedKind] = {
    "retry": "run.retrying",
    "release": "run.released",
    "park": "run.parked",
    "dispatch": "run.dispatched",
}


def change_event(change: Change) -> tuple[object, ...]:
    """A change in the form that `evertick.feed` reads."""
    if change.pause is None:
        return (change.key,)
    return (change.key, storable_text(change.pause.note), change.pause.until)
