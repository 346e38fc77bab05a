"""The inputs of a plan, and the plan that is made from them."""

from __future__ import annotations

import msgspec

from evertick.model import Definition, NewGap, Occurrence, Pause
from evertick.when.base import When
from evertick.when.calendar import Calendar
from evertick.when.moment import SECOND

__all__ = ["FRESH", "LATE", "Fire", "Plan", "PlanInputs"]

# With catch_up "skip", and at an edit, a moment that is planned within this time still becomes a run.
FRESH = 60 * SECOND
# A run that is recorded later than this after its due time is marked as late.
LATE = 5 * SECOND


class PlanInputs(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The state of a schedule that a plan is made from."""

    key: str
    definition: Definition
    rule: When
    fire_at: int | None
    at: int | None
    fires: int = 0
    live: int = 0
    pause: Pause | None = None
    # Overrides of single moments, in order of the moments.
    occurrences: tuple[Occurrence, ...] = ()
    # The schedule does not fire while it is closed.
    blackout: Calendar | None = None

    @property
    def counts_from_end(self) -> bool:
        return self.rule.is_after_end

    @property
    def is_spent(self) -> bool:
        most = self.rule.bounds.max_fires
        return most is not None and self.fires >= most


class Fire(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A moment that becomes a run."""

    fire_at: int
    due_at: int
    is_late: bool = False
    # Whether the run must wait for the verdict of the schedule's live run.
    is_blocked: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The rows to write and the new cursor. `next_at`: the time of the next plan; None: only after another change."""

    fires: tuple[Fire, ...] = ()
    gaps: tuple[NewGap, ...] = ()
    next_fire_at: int | None = None
    next_at: int | None = None
    after_end: int | None = None
    replaces_live: bool = False
    ends_pause: bool = False
    # The remaining overrides; None: unchanged.
    occurrences: tuple[Occurrence, ...] | None = None
