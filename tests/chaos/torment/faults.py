"""What goes wrong, when, and for how long. Pure: the same seed gives the same plan."""

from __future__ import annotations

import random
from typing import Literal, NamedTuple, get_args

__all__ = ["FLEET_WIDE", "KINDS", "Fault", "FaultKind", "Happened", "plan_of"]

FaultKind = Literal[
    "kill",  # kill -9, and another process in its place
    "freeze",  # SIGSTOP until others have taken over, then SIGCONT
    "cut",  # all connections of a node end
    "black hole",  # nothing comes through for a while, in either direction; old connections never recover
    "delay",  # every message takes longer
    "lost answers",  # commits come through, their answers do not
    "terminate",  # pg_terminate_backend of every connection of the fleet
    "restart",  # the server ends in immediate mode, and comes back
    "no connection left",  # somebody takes all that the server has
    "lock",  # ACCESS EXCLUSIVE on the runs
    "clock jump",  # the wall clock of a node is off by hours
]
KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
# They hit all nodes at once, and only one of them is under way at a time.
FLEET_WIDE: frozenset[FaultKind] = frozenset({"terminate", "restart", "no connection left", "lock"})

# How long each takes, from and to.
_SECONDS: dict[FaultKind, tuple[float, float]] = {
    "kill": (0.0, 1.0),
    "freeze": (5.0, 7.0),
    "cut": (0.0, 0.0),
    "black hole": (1.0, 6.0),
    "delay": (1.0, 4.0),
    "lost answers": (1.0, 3.0),
    "terminate": (0.0, 0.0),
    "restart": (0.2, 1.5),
    "no connection left": (1.0, 2.5),
    "lock": (0.5, 2.5),
    "clock jump": (3.0, 8.0),
}
_SHARES: dict[FaultKind, int] = {**dict.fromkeys(KINDS, 2), "kill": 6, "lost answers": 4, "cut": 3, "freeze": 3}
# A node is left alone for so long after one fault before the next comes to it, and so is the server.
_BREATH_SECONDS = 2.0
_SERVER = -1


class Fault(NamedTuple):
    at: float
    kind: FaultKind
    # Which node; -1: the server.
    slot: int
    seconds: float
    # Of a delay in seconds, of a clock jump in hours, of lost answers how many.
    size: float


class Happened(NamedTuple):
    """A fault as it came: when it began and ended, by the clock of the witnesses."""

    kind: FaultKind
    slot: int
    began: float
    ended: float


def plan_of(seed: int, seconds: float, *, nodes: int, every: float) -> list[Fault]:
    """Faults for so many seconds, one in about `every`; each kind comes, as far as there is time for all."""
    chance = random.Random(seed)
    kinds = _kinds(chance, round(seconds / every))
    busy_until = dict.fromkeys(range(_SERVER, nodes), 0.0)
    plan: list[Fault] = []
    for number, kind in enumerate(kinds):
        at = (number + chance.uniform(0.1, 0.9)) * seconds / len(kinds)
        targets = [_SERVER] if kind in FLEET_WIDE else list(range(nodes))
        # Whoever has been left alone for longest among those that are free; else the fault comes a little later.
        chance.shuffle(targets)
        slot = min(targets, key=lambda each: max(busy_until[each], at))
        at = max(at, busy_until[slot])
        fault = Fault(at, kind, slot, chance.uniform(*_SECONDS[kind]), _size(chance, kind))
        busy_until[slot] = at + fault.seconds + _BREATH_SECONDS
        if at + fault.seconds < seconds:
            plan.append(fault)
    return sorted(plan)


def _kinds(chance: random.Random, count: int) -> list[FaultKind]:
    """Every kind in turn, and the rest by their shares."""
    by_share = [kind for kind in KINDS for _ in range(_SHARES[kind])]
    kinds = [*KINDS, *(chance.choice(by_share) for _ in range(count - len(KINDS)))][:count]
    chance.shuffle(kinds)
    return kinds


def _size(chance: random.Random, kind: FaultKind) -> float:
    match kind:
        case "delay":
            return chance.uniform(0.02, 0.4)
        case "clock jump":
            return chance.choice((-1, 1)) * chance.uniform(0.1, 50.0)
        case "lost answers":
            return chance.randint(5, 25)
        case _:
            return 0.0
