"""Nodes by the names that people gave them. Rows keep ids: a name may be that of many starts, and two may share it.

The names are asked for once per listing, whatever its length. Nodes are known until they are pruned, a day after
their end; what is left of one then is the end of its id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from evertick.explain.words import SHORT, known_names, node_names
from evertick.model import Gap, Run
from evertick.model.every_node import is_own_queue, node_of_queue
from evertick.scheduler.scheduler import Scheduler

__all__ = ["known_names", "names_for", "node_names", "node_of", "node_words", "shown_node", "shown_place"]


async def names_for(scheduler: Scheduler, rows: Iterable[Run | Gap]) -> dict[str, str]:
    """Names for the nodes of these rows; nobody is asked where none has one."""
    is_any = any(isinstance(row, Run) and node_of(row) is not None for row in rows)
    return known_names(await scheduler.nodes()) if is_any else {}


def node_of(run: Run) -> str | None:
    """The node that has it or had it last, or that it is for."""
    if run.node is None and is_own_queue(run.queue):
        return node_of_queue(run.queue)
    return run.node


def node_words(node: str | None, names: Mapping[str, str]) -> str:
    """The name and the whole id, where one node is told of."""
    if node is None:
        return ""
    return f"{names[node]}, id {node}" if node in names else node


def shown_place(run: Run, names: Mapping[str, str]) -> str:
    """Where it is or was done, for a listing: on a node, or by whom it was dispatched to."""
    to = run.dispatched_to
    if to is None:
        return shown_node(node_of(run), names)
    queue = to.to if to.queue is None else f"{to.to}/{to.queue}"
    return queue if to.worker is None else f"{queue} {to.worker}"


def shown_node(node: str | None, names: Mapping[str, str]) -> str:
    """The name, else the end of the id; nothing for no node."""
    return "" if node is None else names.get(node, f"…{node[-SHORT:]}")
