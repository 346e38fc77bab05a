"""Why no live node runs a task: none of them knows it, or those that do leave it to others, for want of its driver."""

from __future__ import annotations

from collections.abc import Iterable

from evertick.model import Node

__all__ = ["driver_wanted", "nobody_runs"]


def driver_wanted(task: str, living: Iterable[Node]) -> str | None:
    """The driver of a task that nodes know and leave to others. None: none of them knows it so."""
    return next((node.leaves[task] for node in living if task in node.leaves), None)


def nobody_runs(task: str, living: Iterable[Node]) -> tuple[str, str]:
    """In words, of a task that none of these runs; and what helps."""
    driver = driver_wanted(task, living)
    if driver is None:
        return f"no live node knows task {task!r}", "start one that does"
    known = f"no live node has the driver {driver!r} of task {task!r} enabled, though some know the task"
    return known, f"start a node with {driver!r} among its drivers, or enable it on one of them"
