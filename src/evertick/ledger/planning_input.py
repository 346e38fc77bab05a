"""What a plan is made from, and the run that a planned fire becomes."""

from __future__ import annotations

from evertick.model import Cause, Definition, NewRun, Reason, State
from evertick.plan.inputs import Fire, PlanInputs, guards_live
from evertick.store.base import DueSchedule, StoredSchedule, TaskTerms
from evertick.when import Calendar, When

__all__ = ["plan_inputs_of", "run_of"]


def run_of(
    run_id: str,
    schedule: DueSchedule | StoredSchedule,
    definition: Definition,
    fire: Fire,
    claim: TaskTerms | None = None,
) -> NewRun:
    """The row of a moment that becomes a run; with `claim` as one that the recording node runs at once, under these."""
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


def plan_inputs_of(
    schedule: DueSchedule | StoredSchedule, definition: Definition, rule: When, *, blackout: Calendar | None = None
) -> PlanInputs:
    """What a plan is made from."""
    return PlanInputs(
        key=schedule.key,
        definition=definition,
        rule=rule,
        fire_at=schedule.fire_at,
        at=schedule.at,
        fires=schedule.fires,
        live=schedule.live if guards_live(definition) else 0,
        pause=schedule.pause,
        occurrences=schedule.occurrences,
        blackout=blackout,
    )
