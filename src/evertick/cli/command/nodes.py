"""The command about nodes: who is alive, who has ended lately and how."""

from __future__ import annotations

from datetime import datetime

import click
import msgspec

from evertick.cli.apps import hint_other_apps
from evertick.cli.database import on_store
from evertick.cli.show.node_names import node_names
from evertick.cli.show.output import Column, as_json_option, hint, print_json, print_table
from evertick.cli.show.words import distance, now, stamp
from evertick.doctor.nodes import node_state
from evertick.model import Node
from evertick.scheduler.scheduler import Scheduler

__all__ = ["nodes"]


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
        await hint_other_apps(scheduler)
    else:
        columns = [
            Column(title="NAME", is_cut=True, is_whole_below=True),
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
