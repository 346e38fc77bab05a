"""What a plan is made from, what it says, and whether overlap lets one more run be."""

from __future__ import annotations

import msgspec

from evertick.model import Definition, NewGap, Occurrence, Overlap, Pause
from evertick.when.base import When
from evertick.when.calendar import Calendar
from evertick.when.moment import SECOND

__all__ = ["FRESH", "LATE", "STUCK", "Fire", "Plan", "PlanInputs", "admit", "guards_live", "takes_place"]

# With catch-up "skip" a moment that is noticed this soon is on time; on an edit such a moment still becomes a run.
FRESH = 60 * SECOND
# A run that is recorded later than this after it was due is marked as late.
LATE = 5 * SECOND

# The live runs of a schedule as overlap looks at them: any; one that waits for another; none but parked ones and what
# waits for those.
LIVE, BLOCKED, STUCK = 1, 2, 4


class PlanInputs(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a plan is made from."""

    key: str
    definition: Definition
    rule: When
    fire_at: int | None
    at: int | None
    fires: int = 0
    live: int = 0
    pause: Pause | None = None
    # What people decided about single moments, by the moment.
    occurrences: tuple[Occurrence, ...] = ()
    # While it is closed nothing fires.
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
    # Must wait for the verdict of the schedule's live run.
    is_blocked: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The rows owed and the new cursor. `next_at` None: not before something else happens."""

    fires: tuple[Fire, ...] = ()
    gaps: tuple[NewGap, ...] = ()
    next_fire_at: int | None = None
    next_at: int | None = None
    after_end: int | None = None
    replaces_live: bool = False
    ends_pause: bool = False
    # The decisions that remain; None: as they were.
    occurrences: tuple[Occurrence, ...] | None = None


def guards_live(definition: Definition) -> bool:
    """Whether what is live of the schedule decides about one more run. On every node each minds its own."""
    return definition.overlap != "allow" and definition.mode == "claimed"


def admit(overlap: Overlap, live: int) -> str | None:
    """What overlap makes of one more run: "free", "blocked" behind the live one, or None: it must not be.

    A parked run may never run, and must not stop its schedule for good: the next one takes its place.
    """
    match overlap:
        case "allow":
            return "free"
        case "skip":
            return None if live & LIVE and not live & STUCK else "free"
        case "queue":
            if live & STUCK:
                return "free"
            if live & BLOCKED:
                return None
            return "blocked" if live & LIVE else "free"
        case "replace":
            return "blocked" if live & LIVE else "free"


def takes_place(overlap: Overlap, live: int, *, is_blocked: bool) -> bool:
    """Whether a run that was admitted ends the live ones: asked to by overlap, or because they are stuck."""
    return (is_blocked and overlap == "replace") or (overlap != "allow" and bool(live & STUCK))
