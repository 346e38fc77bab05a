"""The background loops and duties of a node: what each does, and what happens when several nodes run it.

The engine builds its loops from these declarations, and `evertick ha` and the reference page print them. Each has a
test with three nodes.
"""

from __future__ import annotations

from typing import Final

import msgspec

from evertick.model import Mode

__all__ = ["DUTIES", "LOOPS", "OWN_DUTIES", "LoopKind"]


class LoopKind(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of one background loop or built-in duty."""

    name: str
    mode: Mode
    # The work of one step, as a verb phrase.
    does: str
    # How N nodes share it, in one sentence.
    replicas: str


FIRE: Final = LoopKind(
    name="fire",
    mode="claimed",
    does="records due moments",
    replicas="All look for due schedules; one node records each moment, because its cursor moves once.",
)
WORK: Final = LoopKind(
    name="work",
    mode="claimed",
    does="claims due runs into free slots",
    replicas="All claim; one node gets each run.",
)
FINISH: Final = LoopKind(
    name="finish",
    mode="claimed",
    does="writes outcomes",
    replicas="Each writes the outcomes of its own runs; the fence rejects outcomes of a lost claim.",
)
PROGRESS: Final = LoopKind(
    name="progress",
    mode="claimed",
    does="writes progress and log lines",
    replicas="Each writes the progress and log lines of its own runs; the fence rejects those of a lost claim.",
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
    does="declares dead nodes, recovers their runs, reconciles its own runs, dispatches unclaimed or silent runs again",
    replicas="Any node may declare a death; each run is recovered once, because recovery ends the old claim.",
)
AUTO_PAUSE: Final = LoopKind(
    name="auto_pause",
    mode="idempotent",
    does="pauses schedules that failed too often in a row",
    replicas="Several may see the same failures; the version guard pauses a schedule once.",
)
SWEEP: Final = LoopKind(
    name="sweep",
    mode="idempotent",
    does="parks runs of unknown tasks, pauses undeclared schedules, resumes those that are declared again",
    replicas="Several may sweep; a run or schedule that one has parked or paused is not found again.",
)
DUTY: Final = LoopKind(
    name="duty",
    mode="claimed",
    does="takes free duties and performs them",
    replicas="All ask; one node holds each duty at a time.",
)
OUTBOX: Final = LoopKind(
    name="outbox",
    mode="claimed",
    does="delivers messages of the outbox",
    replicas="All claim; one node holds each message at a time, and it is delivered again only if that node is lost.",
)
REPORT: Final = LoopKind(
    name="report",
    mode="claimed",
    does="applies the reports of workers on dispatched runs",
    replicas="All read; one node gets each report, and another one gets it only if that node is lost. "
    "The fence rejects reports of an earlier dispatch.",
)
WATCH: Final = LoopKind(
    name="watch",
    mode="every-node",
    does="notices writes of other processes",
    replicas="Each listens for itself and checks for work when another process wrote.",
)

# A built-in duty, beside those that users declare.
PRUNE: Final = LoopKind(
    name="evertick.prune",
    mode="duty",
    does="deletes history that is older than the retention",
    replicas="One node holds it, under a term; when that node dies or stops, another takes it.",
)

# In the order in which a fire goes through them.
LOOPS: Final = (FIRE, WORK, FINISH, PROGRESS, BEAT, RECOVERY, AUTO_PAUSE, SWEEP, DUTY, OUTBOX, REPORT, WATCH)
# Built-in duties.
DUTIES: Final = (PRUNE,)
OWN_DUTIES: Final = {kind.name: kind for kind in DUTIES}
