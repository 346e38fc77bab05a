"""The command about duties: who holds what, under which term, and how it goes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from difflib import get_close_matches

import click

from evertick.cli.database import on_store
from evertick.cli.show.output import Column, as_json_option, hint, print_facts, print_json, print_section, print_table
from evertick.cli.show.words import ahead, distance, now, stamp
from evertick.model import Duty
from evertick.scheduler.scheduler import Scheduler
from evertick.text.error_line import what_was_raised

__all__ = ["duties", "duty_columns", "duty_row"]


@click.command()
@click.argument("name", required=False)
@as_json_option
@on_store
async def duties(scheduler: Scheduler, name: str | None, as_json: bool) -> None:
    """List the duties: what one node does at a time, and which.

    The term grows with every node that takes a duty over. Those that begin with "evertick." are Evertick's own. NAME:
    everything about that one, with the whole of what its last act has raised.

    \b
    Example:
      evertick duties
      evertick duties rebuild-index
    """
    found, moment = await scheduler.duties(), now()
    if name is not None:
        _show(_named(found, name, scheduler.app), moment, as_json)
    elif as_json:
        print_json(found)
    elif not found:
        hint(f"no node has held a duty in app {scheduler.app!r}; declare one with `@scheduler.duty(...)`")
    else:
        print_table(duty_columns(), [duty_row(duty, moment) for duty in found])
        if sys.stdout.isatty() and any(duty.error for duty in found):
            hint("the whole of an error: evertick duties NAME")


def duty_columns() -> list[Column]:
    return [
        Column(title="DUTY", is_cut=True, cut_least=14, is_whole_below=True),
        Column(title="HELD BY", is_cut=True, is_whole_below=True),
        Column(title="TERM", is_right=True),
        Column(title="SINCE", gives_way=2),
        Column(title="LAST TICK"),
        Column(title="NEXT TICK", gives_way=1),
        Column(title="ERROR", is_cut=True, cut_least=32, is_whole_below=True),
        Column(title="NODE", width_least=150, gives_way=3),
    ]


def _named(found: Sequence[Duty], name: str, app: str) -> Duty:
    for duty in found:
        if duty.name == name:
            return duty
    meant = get_close_matches(name, [duty.name for duty in found], n=1)
    advice = f"did you mean {meant[0]!r}?" if meant else "`evertick duties` lists those that a node has held"
    raise click.ClickException(f"there is no duty {name!r} in app {app!r}; {advice}")


def _show(duty: Duty, moment: datetime, as_json: bool) -> None:
    if as_json:
        print_json(duty)
        return
    print_facts(
        [
            ("Duty", duty.name),
            ("Held by", "nobody" if duty.node is None else f"{duty.node_name}, id {duty.node}"),
            ("Term", f"{duty.term}, since {_at(duty.since, moment)}"),
            ("Last tick", "" if duty.ticked_at is None else _at(duty.ticked_at, moment)),
            ("Next tick", "" if duty.next_at is None else f"{stamp(duty.next_at)} ({ahead(duty.next_at, moment)})"),
        ]
    )
    if duty.error:
        print_section("Error", duty.error.rstrip().splitlines())


def _at(at: datetime, moment: datetime) -> str:
    return f"{stamp(at)} ({distance(at, moment)})"


def duty_row(duty: Duty, moment: datetime) -> list[str]:
    return [
        duty.name,
        duty.node_name or "nobody",
        str(duty.term),
        distance(duty.since, moment, is_short=True),
        distance(duty.ticked_at, moment, is_short=True),
        ahead(duty.next_at, moment, is_short=True) if duty.node else "",
        what_was_raised(duty.error),
        duty.node or "",
    ]
