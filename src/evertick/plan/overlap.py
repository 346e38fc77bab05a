"""The overlap rule: whether the live runs of a schedule let one more run be. Pure."""

from __future__ import annotations

from typing import Literal

from evertick.model import Definition, Overlap

__all__ = ["BLOCKED", "LIVE", "STUCK", "admit", "guards_live", "takes_place"]

# The live runs of a schedule as overlap looks at them: any; one that waits for another; none but parked ones and what
# waits for those.
LIVE, BLOCKED, STUCK = 1, 2, 4


def guards_live(definition: Definition) -> bool:
    """Whether the live runs of the schedule decide about one more. On every node each minds its own."""
    return definition.overlap != "allow" and definition.mode == "claimed"


def admit(overlap: Overlap, live: int) -> Literal["free", "blocked"] | None:
    """The answer of overlap to one more run: "free", "blocked" behind the live one, or None: it must not be.

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
