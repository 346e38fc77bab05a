"""Unique keys: what becomes of a plan whose fires find their key taken. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from evertick.model import Cause, NewGap, NewRun, Reason, Verdict

__all__ = ["gaps_with_duplicates"]

_GAPS_BEFORE_A_FIRE = frozenset({Reason.COALESCED, Reason.DOWNTIME})


def gaps_with_duplicates(gaps: Iterable[NewGap], duplicates: Iterable[NewRun]) -> list[NewGap]:
    """The gaps of a plan and of those of its runs that are not to be. Only fires have moments to account for.

    Moments that the fire would have run for, or after, have the same reason as the fire: nothing ran for them.
    """
    moments = [run.fire_at for run in duplicates if run.cause is Cause.FIRE and run.fire_at is not None]
    if not moments:
        return list(gaps)
    skipped = [
        NewGap(first_at=at, last_at=at, count=1, verdict=Verdict.SKIPPED, reason=Reason.DUPLICATE) for at in moments
    ]
    return [*map(_skipped_with_it, gaps), *skipped]


def _skipped_with_it(gap: NewGap) -> NewGap:
    if gap.reason not in _GAPS_BEFORE_A_FIRE:
        return gap
    return msgspec.structs.replace(gap, verdict=Verdict.SKIPPED, reason=Reason.DUPLICATE)
