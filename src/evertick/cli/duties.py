"""The command about duties: who holds what, under which term, and how it goes."""

from __future__ import annotations

from datetime import datetime

import click

from evertick.cli.database import on_store
from evertick.cli.output import Column, as_json_option, hint, print_json, print_table
from evertick.cli.words import distance, now
from evertick.model import Duty
from evertick.scheduler import Scheduler

__all__ = ["duties"]


@click.command()
@as_json_option
@on_store
async def duties(scheduler: Scheduler, as_json: bool) -> None:
    """List the duties: what one node does at a time, and which.

    The term grows with every node that takes a duty over. Those that begin with "evertick." are Evertick's own.

    \b
    Example:
      evertick duties
    """
    found, moment = await scheduler.duties(), now()
    if as_json:
        print_json(found)
    elif not found:
        hint(f"no node has held a duty in app {scheduler.app!r}; declare one with `@scheduler.duty(...)`")
    else:
        columns = [
            Column(title="DUTY", is_cut=True),
            Column(title="HELD BY", is_cut=True),
            Column(title="TERM", is_right=True),
            Column(title="SINCE"),
            Column(title="LAST TICK"),
            Column(title="NEXT TICK"),
            Column(title="ERROR", is_cut=True),
            Column(title="NODE", width_least=150),
        ]
        print_table(columns, [_row(duty, moment) for duty in found])


def _row(duty: Duty, moment: datetime) -> list[str]:
    return [
        duty.name,
        duty.node_name or "nobody",
        str(duty.term),
        distance(duty.since, moment, is_short=True),
        distance(duty.ticked_at, moment, is_short=True),
        distance(duty.next_at, moment, is_short=True),
        duty.error or "",
        duty.node or "",
    ]
