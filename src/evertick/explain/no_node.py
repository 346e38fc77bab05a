"""Why no live node runs a task: none of them knows it, those that do leave it to others for want of its driver, or none
is alive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evertick.model import Node

__all__ = ["driver_wanted", "living_of", "nobody_runs", "somebody_wanted"]


def living_of(nodes: Iterable[Node]) -> list[Node]:
    return [node for node in nodes if node.died_at is None]


def driver_wanted(task: str, nodes: Iterable[Node]) -> str | None:
    """The driver of a task that nodes know and leave to others. None: none of them knows it so.

    The living know best, and of the dead the one that was started last.
    """
    knowing = [node for node in nodes if task in node.leaves]
    best = max(knowing, key=lambda node: (node.died_at is None, node.started_at), default=None)
    return None if best is None else best.leaves[task]


def nobody_runs(task: str, nodes: Sequence[Node]) -> tuple[str, str]:
    """In words, of a task that none of these runs; and what helps. The dead among them tell what they knew."""
    living = living_of(nodes)
    if not living:
        return "no node is alive", f"start one {somebody_wanted(task, nodes)}"
    driver = driver_wanted(task, living)
    if driver is None:
        return f"no live node knows task {task!r}", "start one that does"
    known = f"no live node has the driver {driver!r} of task {task!r} enabled, though some know the task"
    return known, f"start a node with {driver!r} among its drivers, or enable it on one of them"


def somebody_wanted(task: str, nodes: Iterable[Node]) -> str:
    """Of the node that a task needs, behind "one", where none is alive."""
    driver = driver_wanted(task, nodes)
    return f"that knows task {task!r}" if driver is None else f"with the driver {driver!r}"
