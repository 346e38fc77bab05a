"""Schedules with mode "every-node": the policies that this mode allows, and the queues of single nodes.

One node records a moment of such a schedule and adds a run for each live node that knows the task. A queue that only
this node reads binds the run to it, so claims, retries and limits need no special case. Runs of a dead node are not
reassigned.
"""

from __future__ import annotations

from evertick.errors import InvalidSetting
from evertick.model import Definition
from evertick.when.base import When
from evertick.when.every import Every

__all__ = ["check_every_node", "check_every_node_rule", "is_own_queue", "node_of_queue", "own_queue"]

# Sorts before all letters; a queue name of a user never begins with it.
_MARK = "@"


def own_queue(node: str) -> str:
    """The queue that only this node reads."""
    return f"{_MARK}{node}"


def is_own_queue(queue: str) -> bool:
    return queue.startswith(_MARK)


def node_of_queue(queue: str) -> str:
    assert is_own_queue(queue), "not the queue of a single node"
    return queue.removeprefix(_MARK)


def check_every_node(definition: Definition) -> None:
    """Reject policies that mode "every-node" does not allow."""
    if definition.mode != "every-node":
        return
    if definition.overlap not in ("skip", "allow"):
        raise InvalidSetting(
            f"overlap: {definition.overlap!r} is not possible with mode='every-node', where each node checks only its "
            "own runs",
            setting="overlap",
            value=repr(definition.overlap),
            fix="choose 'skip' (a node that is still running the last one skips the moment) or 'allow'",
        )
    if definition.catch_up == "all":
        raise InvalidSetting(
            "catch_up: 'all' is not possible with mode='every-node', since a node that was down cannot catch up",
            setting="catch_up",
            value="'all'",
            fix="choose 'latest' or 'skip'",
        )
    if definition.blackout is not None and definition.blackout_fate == "all":
        raise InvalidSetting(
            "blackout_fate: 'all' is not possible with mode='every-node'; choose 'latest' or 'drop'",
            setting="blackout_fate",
        )
    if definition.unique is not None:
        raise InvalidSetting(
            f"unique: {definition.unique!r} is not possible with mode='every-node': one node would run, and the others "
            "skip; leave one of them out",
            setting="unique",
        )
    if definition.pause_after is not None:
        raise InvalidSetting(
            f"pause_after: {definition.pause_after} is not possible with mode='every-node', where one broken node must "
            "not stop the others",
            setting="pause_after",
            value=str(definition.pause_after),
            fix="handle failed runs with @scheduler.on('failed')",
        )
    if definition.queue != "default":
        raise InvalidSetting(
            f"queue: {definition.queue!r} is not possible with mode='every-node', since each node has its own queue",
            setting="queue",
            value=repr(definition.queue),
            fix="leave it out",
        )


def check_every_node_rule(definition: Definition, rule: When) -> None:
    """Reject rules that mode "every-node" does not allow."""
    if definition.mode == "every-node" and isinstance(rule, Every) and rule.is_after_end:
        raise InvalidSetting(
            "after: 'end' is not possible with mode='every-node', since the runs of the nodes end at different times",
            setting="after",
            value="'end'",
            fix="use Every without it, and overlap='skip'",
        )
