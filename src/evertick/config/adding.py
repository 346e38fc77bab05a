"""Jobs become tasks and declarations of a scheduler."""

from __future__ import annotations

from collections.abc import Iterable

from evertick.config.job import Job
from evertick.config.problem import Problems
from evertick.declare import Declaration
from evertick.errors import EvertickError
from evertick.every_node import check_every_node_rule
from evertick.scheduler import Scheduler

__all__ = ["add_jobs"]


def add_jobs(scheduler: Scheduler, jobs: Iterable[Job], problems: Problems) -> None:
    """Add them all; what is wrong with one of them does not hold up the others."""
    for job in jobs:
        try:
            _add(scheduler, job)
        except EvertickError as wrong:
            said = str(wrong).removeprefix(f"task {job.name!r}: ")
            name, _, rest = said.partition(": ")
            is_named = name in job.places
            key = f"jobs.{job.name}.{name}" if is_named else f"jobs.{job.name}"
            problems.add(job.places.get(name, job.place), key, rest if is_named else said)


def _add(scheduler: Scheduler, job: Job) -> None:
    check_every_node_rule(job.definition, job.rule)
    scheduler._check_declared(job.name, job.rule)
    if job.spec is not None:
        # Whether this node runs its driver or leaves it to others: the schedule is written by any of them.
        task = scheduler._make_job(job.name, job.spec, job.task_options, job.place)  # type: ignore[arg-type]
        task._encode_call((), job.definition.args)
        scheduler._keep_task(task, job.place)
    if job.is_enabled:
        scheduler._declarations.add(
            Declaration(
                key=job.name,
                rule=job.rule,
                definition=job.definition,
                place=job.place,
                tz=scheduler.settings.tz,
                blackout=job.blackout,
                source="file",
            )
        )
