"""Jobs become tasks and declarations of a scheduler."""

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
    """Add them all; what is wrong with one of them does not hold up the others."""
    for job in jobs:
        add_job(scheduler, job, problems)


def add_job(scheduler: Scheduler, job: Job, problems: Problems) -> None:
    try:
        _add(scheduler, job)
    except EvertickError as wrong:
        problem = phrased(wrong, f"task {job.name!r}: ")
        own = wrong.setting if wrong.setting in job.places else None
        name, problem = _named(problem, job) if own is None else (own, problem.removeprefix(f"{own}: "))
        key = f"jobs.{job.name}.{name}" if name else f"jobs.{job.name}"
        problems.add(job.places.get(name, job.place), key, problem)


async def check_calendars(scheduler: Scheduler, jobs: Sequence[Job], problems: Problems) -> None:
    """Refuse calendars that neither the file nor the ledger has. Reads the ledger where a job names one of its own."""
    named = [
        (job, key, name)
        for job in jobs
        for key, name in (("calendar", job.rule.bounds.calendar), ("blackout", job.definition.blackout))
        if job.is_enabled and name is not None and (job.rule.calendar if key == "calendar" else job.blackout) is None
    ]
    kept = {each.name for each in await scheduler.calendars()} if named else set()
    # The rule of one job may bring what the blackout of another names.
    kept |= {each.name for job in jobs for each in (job.rule.calendar, job.blackout) if each is not None}
    for job, key, name in named:
        if name not in kept:
            what = f"there is no calendar {name!r}, neither in this configuration nor in the ledger; "
            known = nearest(name, sorted(kept), what="there are") if kept else f"write [calendars.{name}]"
            problems.add(job.places.get(key, job.place), f"jobs.{job.name}.{key}", f"{what}{known}")


def _named(problem: str, job: Job) -> tuple[str, str]:
    """The key of the job that an error is about, or a field in one, and the problem."""
    name, _, rest = problem.partition(": ")
    if name not in job.places:
        return "", problem
    field, _, more = rest.partition(": ")
    inner = f"{name}.{field}"
    return (inner, more) if inner in job.places else (name, rest)


def _add(scheduler: Scheduler, job: Job) -> None:
    check_rule(job.definition, job.rule)
    runtime = scheduler.runtime
    check_limits(runtime, job.name, job.rule)
    if job.spec is not None:
        # Whether this node runs its driver or leaves it to others: the schedule is written by any of them.
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
