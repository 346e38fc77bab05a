"""Schedules that run on every node: which of the other policies go with that, and the queues that are a node's own.

A moment of such a schedule is recorded once, by one node, and becomes a run for each live node that knows the task. A
run is bound to its node by its queue, which no other works on. So claims, retries and limits need not know of it;
only what becomes of a dead node's runs does: they are never given to another.
"""

from __future__ import annotations

from evertick.errors import InvalidSetting
from evertick.model import Definition
from evertick.when.base import When
from evertick.when.every import Every

__all__ = ["check_every_node", "check_every_node_rule", "is_own_queue", "node_of_queue", "own_queue"]

# Sorts before all letters, and names that people choose for queues never begin with it.
_MARK = "@"


def own_queue(node: str) -> str:
    """The queue of one node alone, by the id of the node."""
    return f"{_MARK}{node}"


def is_own_queue(queue: str) -> bool:
    return queue.startswith(_MARK)


def node_of_queue(queue: str) -> str:
    assert is_own_queue(queue), "asked of queues that are a node's own"
    return queue.removeprefix(_MARK)


def check_every_node(definition: Definition) -> None:
    """Refuse what makes no sense for a schedule that runs on every node."""
    if definition.mode != "every-node":
        return
    if definition.overlap not in ("skip", "allow"):
        raise InvalidSetting(
            f"overlap: {definition.overlap!r} does not go with mode='every-node', where each node minds its own runs; "
            "choose 'skip' (a node that is still at it skips the moment) or 'allow'",
            setting="overlap",
        )
    if definition.catch_up == "all":
        raise InvalidSetting(
            "catch_up: 'all' does not go with mode='every-node', since nodes that were not there cannot make up for "
            "it; choose 'latest' or 'skip'",
            setting="catch_up",
        )
    if definition.blackout is not None and definition.blackout_fate == "all":
        problem = "blackout_fate: 'all' does not go with mode='every-node'; choose 'latest' or 'drop'"
        raise InvalidSetting(problem, setting="blackout_fate")
    if definition.unique is not None:
        raise InvalidSetting(
            f"unique: {definition.unique!r} does not go with mode='every-node': one node would run, and the others "
            "skip; leave one of them out",
            setting="unique",
        )
    if definition.pause_after is not None:
        raise InvalidSetting(
            f"pause_after: {definition.pause_after} does not go with mode='every-node', where one broken node must not "
            "stop the others; listen to failed runs with @scheduler.on('failed') instead",
            setting="pause_after",
        )
    if definition.queue != "default":
        raise InvalidSetting(
            f"queue: {definition.queue!r} does not go with mode='every-node', since each node has the run in a queue "
            "of its own; leave it out",
            setting="queue",
        )


def check_every_node_rule(definition: Definition, rule: When) -> None:
    """The same for its rule."""
    if definition.mode == "every-node" and isinstance(rule, Every) and rule.is_after_end:
        raise InvalidSetting(
            "after: 'end' does not go with mode='every-node', since the runs of the nodes do not end together",
            setting="after",
            value="'end'",
            fix="use Every without it, and overlap='skip'",
        )
