"""Adds jobs to a scheduler, as tasks and declarations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evertick.config.job import Job
from evertick.config.problem import Problems, phrased
from evertick.definition.declarations import Declaration
from evertick.errors import EvertickError
from evertick.plan.allowed_rules import check_rule
from evertick.scheduler.declaring import check_limits, keep_task, spec_task
from evertick.scheduler.scheduler import Scheduler
from evertick.text.did_you_mean import nearest

__all__ = ["add_job", "add_jobs", "check_calendars"]


def add_jobs(scheduler: Scheduler, jobs: Iterable[Job], problems: Problems) -> None:
    """Add all jobs. A job with an error is reported, and the others are added."""
    for job in jobs:
        add_job(scheduler, job, problems)


def add_job(scheduler: Scheduler, job: Job, problems: Problems) -> None:
    try:
        _add(scheduler, job)
    except EvertickError as wrong:
        driver = "" if job.spec is None else job.spec.driver
        # A key of the job, or a field of its driver.
        name = next((each for each in (wrong.setting, f"{driver}.{wrong.setting}") if each in job.places), None)
        key = f"jobs.{job.name}" if name is None else f"jobs.{job.name}.{name}"
        problem = phrased(wrong, f"task {job.name!r}: ", *([] if name is None else [f"{driver}: "]))
        problems.add(job.places.get(name or "", job.place), key, problem)


async def check_calendars(scheduler: Scheduler, jobs: Sequence[Job], problems: Problems) -> None:
    """Report calendars that are neither in the file nor in the ledger. Reads the ledger only if a job needs it."""
    named = [
        (job, key, name)
        for job in jobs
        for key, name in (("calendar", job.rule.bounds.calendar), ("blackout", job.definition.blackout))
        if job.is_enabled and name is not None and (job.rule.calendar if key == "calendar" else job.blackout) is None
    ]
    kept = {each.name for each in await scheduler.calendars()} if named else set()
    # The blackout of one job may name the calendar of another job's rule.
    kept |= {each.name for job in jobs for each in (job.rule.calendar, job.blackout) if each is not None}
    for job, key, name in named:
        if name not in kept:
            what = f"there is no calendar {name!r}, neither in this configuration nor in the ledger; "
            known = nearest(name, sorted(kept), what="there are") if kept else f"write [calendars.{name}]"
            problems.add(job.places.get(key, job.place), f"jobs.{job.name}.{key}", f"{what}{known}")


def _add(scheduler: Scheduler, job: Job) -> None:
    check_rule(job.definition, job.rule)
    runtime = scheduler.runtime
    check_limits(runtime, job.name, job.rule)
    if job.spec is not None:
        # Also if this node does not run the driver: any node may write the schedule.
        task = spec_task(runtime, job.name, job.spec, job.task_options, job.place)  # type: ignore[arg-type]
        task.arguments.encode((), job.definition.args)
        keep_task(runtime, task, job.place)
    if job.is_enabled:
        runtime.declarations.add(
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
