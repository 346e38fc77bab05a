"""The background loops and the duties of a node, declared: what each does, and what becomes of it on several nodes.

This is the one place that says it. The engine builds its loops from these lines, `evertick ha` and the reference page
print them, and a test with three nodes exists for each. A loop cannot be made without one.
"""

from __future__ import annotations

from typing import Final

import msgspec

from evertick.model import Mode

__all__ = ["DUTIES", "LOOPS", "OWN_DUTIES", "LoopKind"]


class LoopKind(msgspec.Struct, frozen=True, kw_only=True):
    """One background loop, as declared."""

    name: str
    mode: Mode
    # What one step does.
    does: str
    # What N nodes running it at once do, in one sentence.
    replicas: str


FIRE: Final = LoopKind(
    name="fire",
    mode="claimed",
    does="records what is due",
    replicas="All look for what is due; each moment is recorded by one of them, as its cursor moves once.",
)
WORK: Final = LoopKind(
    name="work",
    mode="claimed",
    does="claims due runs into free slots",
    replicas="All claim; each run is claimed by one of them, and a second claim finds it taken.",
)
FINISH: Final = LoopKind(
    name="finish",
    mode="claimed",
    does="writes outcomes",
    replicas="Each writes the outcomes of the runs it holds; the fence refuses those of a claim that was lost.",
)
PROGRESS: Final = LoopKind(
    name="progress",
    mode="claimed",
    does="carries progress and log lines",
    replicas="Each writes the progress and the log of the runs it holds; the fence refuses those of a lost claim.",
)
BEAT: Final = LoopKind(
    name="beat",
    mode="every-node",
    does="extends the lease (in its own thread)",
    replicas="Each extends its own lease.",
)
RECOVERY: Final = LoopKind(
    name="recovery",
    mode="idempotent",
    does="judges the dead, re-homes their runs, reconciles its own, takes back what nobody took or got on with",
    replicas="Any node may judge a dead one; its runs are re-homed once, for re-homing ends the dead claim.",
)
AUTO_PAUSE: Final = LoopKind(
    name="auto_pause",
    mode="idempotent",
    does="pauses schedules that have failed too often in a row",
    replicas="Several may see the same failures; a schedule is paused once, by its version.",
)
SWEEP: Final = LoopKind(
    name="sweep",
    mode="idempotent",
    does="parks, pauses what is no longer declared, resumes what it declares itself",
    replicas="Several may sweep; what one has parked or paused the next does not find.",
)
DUTY: Final = LoopKind(
    name="duty",
    mode="claimed",
    does="takes duties that nobody holds, and does them",
    replicas="All ask; each duty is held by one of them, and whoever asks later finds it taken.",
)
OUTBOX: Final = LoopKind(
    name="outbox",
    mode="claimed",
    does="delivers messages of the outbox",
    replicas="All claim; each message is held by one of them at a time, and delivered again only if its node is lost.",
)
REPORT: Final = LoopKind(
    name="report",
    mode="claimed",
    does="applies what workers report of runs that were dispatched to them",
    replicas="All read; each report is for one of them at a time, and comes again only if that one is lost. "
    "The fence refuses those of a dispatch that is over.",
)
WATCH: Final = LoopKind(
    name="watch",
    mode="every-node",
    does="notices what other processes wrote",
    replicas="Each listens for itself and looks again when another process wrote.",
)

# What one node does for all: a duty of Evertick's own, beside those that users declare.
PRUNE: Final = LoopKind(
    name="evertick.prune",
    mode="duty",
    does="deletes history that is older than it is kept",
    replicas="One of them holds it, under a term; when that one dies or leaves, another goes on with it.",
)

# In the order in which a fire passes them.
LOOPS: Final = (FIRE, WORK, FINISH, PROGRESS, BEAT, RECOVERY, AUTO_PAUSE, SWEEP, DUTY, OUTBOX, REPORT, WATCH)
# Duties that every app has.
DUTIES: Final = (PRUNE,)
OWN_DUTIES: Final = {kind.name: kind for kind in DUTIES}
