"""The overlap policy: whether a schedule with live runs may have another one. Pure."""

from __future__ import annotations

from typing import Literal

from evertick.model import Definition, Overlap

__all__ = ["BLOCKED", "LIVE", "STUCK", "admit", "guards_live", "takes_place"]

# The live runs of a schedule, for overlap: any; one that is blocked by another; only parked runs and runs blocked by
# them.
LIVE, BLOCKED, STUCK = 1, 2, 4


def guards_live(definition: Definition) -> bool:
    """Whether the live runs matter for a new one. With mode "every-node" each node checks its own."""
    return definition.overlap != "allow" and definition.mode == "claimed"


def admit(overlap: Overlap, live: int) -> Literal["free", "blocked"] | None:
    """Whether overlap admits another run: "free", "blocked" by the live one, or None: not admitted.

    A parked run may never run, so the next one replaces it; otherwise it would block its schedule forever.
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
    """Whether an admitted run replaces the live ones: by overlap "replace", or because they are parked."""
    return (is_blocked and overlap == "replace") or (overlap != "allow" and bool(live & STUCK))
