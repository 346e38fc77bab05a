"""Runs that the store ends by its own hand, and which: those that were lost, those that were to be cancelled. The same
for every store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from evertick.model import LOSSES_MAX, Outcome, Reason, Verdict
from evertick.store.base import TaskTerms
from evertick.store.rows import Row
from evertick.when.moment import MINUTE

__all__ = [
    "DEADLINE_MARGIN",
    "REHOMED_MOST",
    "Ending",
    "bare_instead",
    "cancelled_instead",
    "ending_of_lost",
    "may_be_taken",
]

# A run this long past its deadline is taken from its owner, though it beats: it should have stopped by itself.
DEADLINE_MARGIN = MINUTE
# Runs that one call settles at most: bounds its transaction. The rest is there for the next beat.
REHOMED_MOST = 2_000


class Ending(msgspec.Struct, frozen=True):
    """A run that the store itself ends. Without a reason the one it has stays."""

    id: str
    verdict: Verdict
    reason: str | None


def ending_of_lost(row: Row) -> Ending | None:
    """How a run ends whose claim is lost; None: it may run again."""
    if row["is_cancel_requested"]:
        return Ending(row["id"], Verdict.CANCELLED, row["cancel_reason"] or Reason.REQUESTED)
    if row["is_left_alone"]:
        return Ending(row["id"], Verdict.LOST, Reason.NODE_GONE)
    if row["at_most_once"] or row["losses"] >= LOSSES_MAX:
        return Ending(row["id"], Verdict.LOST, Reason.NODE_DIED)
    return None


def may_be_taken(row: Row, tasks: Mapping[str, TaskTerms]) -> bool:
    """Whether the node that re-homes a lost run can run it at once, and no limit has a say in that."""
    terms = tasks.get(row["task"])
    return terms is not None and not terms.is_limited and row["limit_key"] is None and bool(row["is_readable"])


def cancelled_instead(outcome: Outcome, held: Row) -> Outcome:
    """The end of a run that was to go back, but for a cancel that was asked for meanwhile. It sends nothing."""
    return msgspec.structs.replace(
        outcome,
        kind="done",
        verdict=Verdict.CANCELLED,
        reason=held["cancel_reason"] or Reason.REQUESTED,
        attempts=outcome.attempts if outcome.kind == "retry" else held["attempts"],
        messages=(),
        dispatch=None,
    )


def bare_instead(outcome: Outcome, error: Exception) -> Outcome:
    """What is written of an outcome that the store cannot take: how the run ended stays, its result and phases go.

    A run whose messages go with them has failed: whoever waits for these must not read that all is well. So has one
    that was to be dispatched by such a message.
    """
    said = f"the outcome of this run cannot be written as it is: {error}"
    bare: dict[str, Any] = {"result": None, "phases": (), "messages": (), "dispatch": None}
    if outcome.messages:
        said = f"{said}; its messages are not sent"
        bare |= {"verdict": Verdict.FAILED} if outcome.verdict is Verdict.SUCCEEDED else {}
    if outcome.kind == "dispatch":
        bare |= {"kind": "done", "verdict": Verdict.FAILED, "reason": Reason.UNDELIVERED}
        bare |= {"attempts": outcome.attempts + 1}
    bare["error"] = said if outcome.error is None else f"{said}\n{outcome.error}"
    return msgspec.structs.replace(outcome, **bare)
