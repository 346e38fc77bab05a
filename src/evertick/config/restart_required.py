"""Jobs that need what a running node does not have before its next start.

Its drivers, its queues and where its brokers are stay as they were at its start. A job that is new or changed and needs
them otherwise would fail in every run, or wait for ever, until somebody restarts the node: so it is refused for now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from evertick.config.brokers import BROKERS
from evertick.config.build import connections_of
from evertick.config.configuration import Configuration
from evertick.config.job import Job
from evertick.config.problem import Problems
from evertick.scheduler.scheduler import Scheduler

__all__ = ["check_not_premature"]

_FIX = "restart the node to take all of it up, or take the job away until then"


def check_not_premature(scheduler: Scheduler, now: Configuration, loaded: Configuration, problems: Problems) -> None:
    """Refuse what can only be after a restart. `now` is what the node has, as far as jobs go."""
    # Once, not for each of thousands of jobs.
    wanted, connections = loaded.settings, connections_of(loaded)
    known = {job.name: (job.spec, job.definition.queue) for job in now.jobs}
    for job in loaded.jobs:
        if known.get(job.name) != (job.spec, job.definition.queue):
            for key, said in _needs(scheduler, wanted, connections, job):
                problems.add(job.places.get(key, job.place), f"jobs.{job.name}.{key}", f"{said}; {_FIX}")


def _needs(
    scheduler: Scheduler, wanted: Mapping[str, Any], connections: Mapping[str, object], job: Job
) -> Iterator[tuple[str, str]]:
    """By the keys of the job that ask for it. `wanted`: the settings of the next start, and its connections."""
    driver, in_force = "" if job.spec is None else job.spec.driver, scheduler.settings
    if driver in wanted["drivers"] and driver not in in_force.drivers:
        yield driver, f"node.drivers enables the driver {driver!r} from the next start on"
    queue = job.definition.queue
    if queue in wanted["queues"] and queue not in in_force.queues:
        yield "queue", f"node.queues has the queue {queue!r} from the next start on"
    if driver in BROKERS and driver in in_force.drivers:
        has, gets = scheduler.runtime.connections.get(driver), connections.get(driver)
        if has is None and gets is None:
            yield driver, f"it is not said where the server is under [{driver}], and node.drivers leaves the driver"
        elif has is not None and gets is not None and has != gets:
            yield driver, f"this node goes by what [{driver}] has changed to from the next start on"
