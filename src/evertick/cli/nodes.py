"""The command about nodes: who is alive, who has ended lately and how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Protocol

import click
import msgspec

from evertick.cli.database import on_store
from evertick.cli.output import Column, as_json_option, hint, print_json, print_table
from evertick.cli.words import distance, now, stamp
from evertick.model import Node
from evertick.scheduler import Scheduler

__all__ = ["node_names", "node_state", "nodes"]

# The end of an id: its beginning is the time of the start, which two nodes may share.
_SHORT = 6


class Named(Protocol):
    """A node, or what is shown of one."""

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...


@click.command()
@as_json_option
@on_store
async def nodes(scheduler: Scheduler, as_json: bool) -> None:
    """List the nodes, living and lately ended.

    One that is silent has let its lease run out; when that is noticed, it is dead. One that has signed off is stopped.

    \b
    Example:
      evertick nodes
    """
    found, moment = await scheduler.nodes(), now()
    found.sort(key=lambda node: (node.died_at is not None, -node.started_at.timestamp()))
    if as_json:
        print_json([{**msgspec.structs.asdict(node), "state": node_state(node, moment)} for node in found])
    elif not found:
        hint(f"no node has run in app {scheduler.app!r}; start one with `evertick run module:attribute`")
    else:
        columns = [
            Column(title="NAME", is_cut=True),
            Column(title="STATE", is_coloured=True),
            Column(title="STARTED"),
            Column(title="LAST BEAT"),
            Column(title="ENDED"),
            Column(title="RUNNING", is_right=True),
            Column(title="QUEUES", is_cut=True, width_least=100),
            Column(title="TASKS", is_cut=True, width_least=100),
            Column(title="VERSION", width_least=100),
            Column(title="NODE", width_least=150),
        ]
        names = node_names(found)
        print_table(columns, [_row(node, names[node.id], moment) for node in found])


def node_names(found: Iterable[Named]) -> dict[str, str]:
    """Names of nodes by id, each with the end of its id where others have the same."""
    pairs = [(node.id, node.name) for node in found]
    counts = Counter(name for _, name in pairs)
    return {node: name if counts[name] == 1 else f"{name} ({node[-_SHORT:]})" for node, name in pairs}


def _row(node: Node, name: str, moment: datetime) -> list[str]:
    return [
        name,
        node_state(node, moment),
        stamp(node.started_at),
        distance(node.beat_at, moment, is_short=True),
        distance(node.died_at, moment, is_short=True),
        str(node.running),
        ", ".join(node.queues),
        ", ".join(node.tasks),
        node.version,
        node.id,
    ]


def node_state(node: Node, moment: datetime) -> str:
    """alive, silent, stopped or dead."""
    if node.died_at is not None:
        # Others write a node off only after its lease; within it, only the node itself can have said so.
        return "stopped" if node.died_at <= node.lease_until else "dead"
    return "alive" if node.lease_until >= moment else "silent"
