"""Unique keys: what becomes of a plan whose fires find their key taken. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable

import msgspec

from evertick.model import Cause, NewGap, NewRun, Reason, Verdict

__all__ = ["fires_counted", "gaps_with_duplicates"]

_GAPS_BEFORE_A_FIRE = frozenset({Reason.COALESCED, Reason.DOWNTIME})


def gaps_with_duplicates(gaps: Iterable[NewGap], runs: Iterable[NewRun], taken: Container[str]) -> list[NewGap]:
    """The gaps of a plan and of those of its runs that are not to be, for their key is taken. Only fires have moments
    to account for.

    Moments that the fire would have run for, or after, have the same reason as the fire: nothing ran for them. Where it
    is for all nodes, that is so only if all of them skip it.
    """
    fires = [run for run in runs if run.cause in (Cause.FIRE, Cause.EVERY_NODE)]
    skipped = [run for run in fires if run.id in taken]
    own = [_gap(run, run.fire_at) for run in skipped if run.fire_at is not None]
    if any(run.cause is Cause.FIRE for run in skipped):
        return [*(_skipped_with_it(gap, Reason.DUPLICATE) for gap in gaps), *own]
    if skipped and len(skipped) == len(fires):
        return [*(_skipped_with_it(gap, Reason.OVERLAP) for gap in gaps), *own]
    return [*gaps, *own]


def fires_counted(runs: Iterable[NewRun], without: Container[str] = ()) -> int:
    """How many fires these runs are, those with the given ids left out: a moment that all nodes run is one."""
    count = 0
    on_all_nodes: set[int | None] = set()
    for run in runs:
        if run.id in without:
            continue
        if run.cause is Cause.FIRE:
            count += 1
        elif run.cause is Cause.EVERY_NODE:
            on_all_nodes.add(run.fire_at)
    return count + len(on_all_nodes)


def _gap(run: NewRun, at: int) -> NewGap:
    return NewGap(first_at=at, last_at=at, count=1, verdict=Verdict.SKIPPED, reason=run.if_taken)


def _skipped_with_it(gap: NewGap, reason: Reason) -> NewGap:
    if gap.reason not in _GAPS_BEFORE_A_FIRE:
        return gap
    return msgspec.structs.replace(gap, verdict=Verdict.SKIPPED, reason=reason)
