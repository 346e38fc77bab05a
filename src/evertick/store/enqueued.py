"""A run as it stands right after it was enqueued: as it was written, without reading it back. For every store."""

from __future__ import annotations

from evertick.model import NewRun, Reason, Run, State
from evertick.store.rows import FORMAT, plain_text, shown
from evertick.when.moment import from_us

__all__ = ["is_all_there", "run_as_enqueued"]


def is_all_there(run: NewRun) -> bool:
    """Whether nothing of its row comes from elsewhere: the key and arguments of a schedule, a run it is blocked on."""
    return run.schedule_id is None and run.state is State.WAITING and not run.is_claimed


def run_as_enqueued(app: str, now: int, run: NewRun) -> Run:
    fire_at = run.fire_at if run.fire_at is not None else now + run.delay
    due_at = run.due_at if run.due_at is not None else fire_at
    shown_fire_at = from_us(fire_at)
    shown_due_at = shown_fire_at if due_at == fire_at else from_us(due_at)
    return Run(
        id=run.id,
        app=app,
        schedule_key=None,
        task=run.task,
        args={} if run.args is None else shown(run.args.decode()),
        fire_at=shown_fire_at,
        due_at=shown_due_at,
        state=run.state,
        verdict=None,
        reason=Reason.NEWER_FORMAT if run.format > FORMAT else plain_text(run.reason),
        cause=run.cause,
        attempts=0,
        losses=0,
        queue=run.queue,
        priority=run.priority,
        labels=dict(run.labels),
        created_at=shown_fire_at if now == fire_at else from_us(now),
        started_at=None,
        finished_at=None,
        expires_at=None if run.expires is None else from_us(due_at + run.expires),
        node=None,
        fence=None,
        result=None,
        error=None,
        caused_by=run.caused_by,
    )
