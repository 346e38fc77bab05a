"""Makes the inputs of a plan from the rows of the ledger, and runs from the fires of a plan. Pure.

With mode "every-node" a fire becomes a run on each node. Ids are derived from the moment and the node, so a plan that
is written twice adds each run once. With overlap "skip" a live run has a unique key of its schedule and node, so the
store skips nodes that are still running an earlier moment, and records a gap.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from evertick.clock import derived_id
from evertick.model import Cause, Definition, NewGap, NewRun, Node, Reason, State, Verdict
from evertick.model.every_node import own_queue
from evertick.plan.inputs import Fire, PlanInputs
from evertick.plan.overlap import guards_live
from evertick.store.base import Advance, DueSchedule, StoredSchedule, TaskTerms
from evertick.when import Calendar, When

__all__ = ["able_nodes", "fan_out", "overlap_on", "plan_inputs_of", "run_of", "unique_key_on"]


def plan_inputs_of(
    schedule: DueSchedule | StoredSchedule,
    definition: Definition,
    rule: When,
    *,
    blackout: Calendar | None = None,
    live: int | None = None,
) -> PlanInputs:
    """`live`: the live runs for overlap, if they are known already."""
    if live is None:
        live = schedule.live if guards_live(definition) else 0
    return PlanInputs(
        key=schedule.key,
        definition=definition,
        rule=rule,
        fire_at=schedule.fire_at,
        at=schedule.at,
        fires=schedule.fires,
        live=live,
        pause=schedule.pause,
        occurrences=schedule.occurrences,
        blackout=blackout,
    )


def run_of(
    run_id: str,
    schedule: DueSchedule | StoredSchedule,
    definition: Definition,
    fire: Fire,
    claim: TaskTerms | None = None,
) -> NewRun:
    """The row of a fire; with `claim` it is claimed by the recording node under these terms."""
    return NewRun(
        id=run_id,
        task=definition.task,
        cause=Cause.FIRE,
        fire_at=fire.fire_at,
        due_at=fire.due_at,
        schedule_id=schedule.id,
        schedule_key=schedule.key,
        version=schedule.version,
        queue=definition.queue,
        priority=definition.priority,
        state=State.BLOCKED if fire.is_blocked else State.WAITING,
        reason=Reason.LATE if fire.is_late else None,
        expires=definition.expires,
        labels=definition.labels,
        unique_key=definition.unique,
        unique_until=definition.unique_until,
        unique_for=definition.unique_for,
        is_claimed=claim is not None,
        timeout=None if claim is None else claim.timeout,
        at_most_once=claim is not None and claim.at_most_once,
    )


def able_nodes(nodes: Sequence[Node], task: str) -> list[Node]:
    """The nodes for a run with mode "every-node": not recorded as dead, and they know the task."""
    return [node for node in nodes if node.died_at is None and task in node.tasks]


def fan_out(advance: Advance, definition: Definition, nodes: Sequence[Node]) -> Advance:
    """With mode "every-node", the plan with a run per node instead of each run."""
    if definition.mode != "every-node" or not advance.runs:
        return advance
    able = able_nodes(nodes, definition.task)
    fires = [run for run in advance.runs if run.cause is Cause.FIRE]
    if not able:
        gaps = tuple(_gap(run, Verdict.MISSED, Reason.NO_NODE) for run in fires)
        return msgspec.structs.replace(advance, runs=(), gaps=tuple(map(_without_node, advance.gaps)) + gaps)
    # Of several moments at once (an edit settles a moved one and the newest) a node runs only the newest; otherwise
    # overlap would skip it.
    newest = max((run.fire_at or 0 for run in fires), default=0)
    passed = [run for run in fires if definition.overlap == "skip" and run.fire_at != newest]
    gaps = tuple(_gap(run, Verdict.SKIPPED, Reason.COALESCED) for run in passed)
    runs = tuple(_on(node, run, definition) for run in advance.runs if run not in passed for node in able)
    return msgspec.structs.replace(advance, runs=runs, gaps=advance.gaps + gaps)


def unique_key_on(node: str, schedule_id: int | None, definition: Definition) -> str | None:
    """The unique key that prevents two live runs of the schedule on a node. Keys of users have no semicolon."""
    return None if definition.overlap == "allow" else f";{schedule_id};{node}"


def overlap_on(name: str) -> str:
    """The reason of the gap of a moment that overlap skips on this node."""
    return f"{Reason.OVERLAP} on {name}"


def _on(node: Node, run: NewRun, definition: Definition) -> NewRun:
    if run.cause is Cause.FIRE:
        assert run.fire_at is not None, "a fire has its moment"
        cause, run_id = Cause.EVERY_NODE, derived_id(run.fire_at, run.schedule_id, run.fire_at, node.id)
    else:
        # A manual run: its time-ordered id stands for the moment.
        cause, run_id = run.cause, derived_id(int(run.id.replace("-", "")[:12], 16) * 1000, run.id, node.id)
    return msgspec.structs.replace(
        run,
        id=run_id,
        cause=cause,
        queue=own_queue(node.id),
        unique_key=unique_key_on(node.id, run.schedule_id, definition),
        if_taken=overlap_on(node.name),
    )


def _gap(run: NewRun, verdict: Verdict, reason: Reason) -> NewGap:
    assert run.fire_at is not None, "a fire has its moment"
    return NewGap(first_at=run.fire_at, last_at=run.fire_at, count=1, verdict=verdict, reason=reason)


def _without_node(gap: NewGap) -> NewGap:
    """The newest moment does not run either, so the others are not coalesced into it."""
    if gap.reason != Reason.COALESCED:
        return gap
    return msgspec.structs.replace(gap, verdict=Verdict.MISSED, reason=Reason.NO_NODE)
