"""The commands nodes, duties and ha."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from datetime import datetime
from difflib import get_close_matches

import click
import msgspec

from evertick.cli.database import killed_daemons_of, ledger_of, on_store
from evertick.cli.show.output import (
    Column,
    as_json_option,
    console,
    hint,
    print_facts,
    print_json,
    print_section,
    print_table,
)
from evertick.cli.show.words import ahead, distance, node_names, now, stamp
from evertick.doctor.database import apps_words
from evertick.doctor.nodes import node_state
from evertick.explain.availability import HA_KINDS, HaKind, HaLine, HaTable
from evertick.model import Duty, Node
from evertick.operations.health import store_time
from evertick.scheduler.operation import call
from evertick.scheduler.scheduler import Scheduler
from evertick.text.error_line import error_summary

__all__ = [
    "duties",
    "duty_columns",
    "duty_row",
    "ha",
    "hint_other_apps",
    "next_words",
    "nodes",
]

_NO_HOLDER = "no node"


@click.command()
@as_json_option
@on_store
async def nodes(scheduler: Scheduler, as_json: bool) -> None:
    """List the nodes that are alive or ended in the last day.

    The lease of a silent node has expired; another node will declare it dead. The process of a killed node is gone from
    this machine, but its lease has not expired yet. A stopped node was shut down.

    \b
    Example:
      evertick nodes
    """
    found, moment = await scheduler.nodes(), await call(scheduler, store_time)
    given = click.get_current_context().params
    killed = {each.node_id for each in killed_daemons_of(ledger_of(given["database"], given["app"], given["config"]))}
    found.sort(key=lambda node: (node.died_at is not None, -node.started_at.timestamp()))
    if as_json:
        print_json([{**msgspec.structs.asdict(node), "state": node_state(node, moment, killed)} for node in found])
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
        print_table(columns, [_row(node, names[node.id], moment, killed) for node in found])


def _row(node: Node, name: str, moment: datetime, killed: Container[str]) -> list[str]:
    return [
        name,
        node_state(node, moment, killed),
        stamp(node.started_at),
        distance(node.beat_at, moment, is_short=True),
        distance(node.died_at, moment, is_short=True),
        str(node.running),
        ", ".join(node.queues),
        ", ".join(node.tasks),
        node.version,
        node.id,
    ]


@click.command()
@click.argument("name", required=False)
@as_json_option
@on_store
async def duties(scheduler: Scheduler, name: str | None, as_json: bool) -> None:
    """List the duties, and the node that holds each.

    One node at a time holds a duty; the term grows with every new holder. Duties that begin with "evertick." are
    built in. NAME: details of one duty, with the full traceback of its last failure.

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
            hint("the full traceback of an error: evertick duties NAME")


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
    similar = get_close_matches(name, [duty.name for duty in found], n=1)
    advice = f"did you mean {similar[0]!r}?" if similar else "`evertick duties` lists the duties"
    raise click.ClickException(f"there is no duty {name!r} in app {app!r}; {advice}")


def _show(duty: Duty, moment: datetime, as_json: bool) -> None:
    if as_json:
        print_json(duty)
        return
    print_facts(
        [
            ("Duty", duty.name),
            ("Held by", _NO_HOLDER if duty.node is None else f"{duty.node_name}, id {duty.node}"),
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
        duty.node_name or _NO_HOLDER,
        str(duty.term),
        distance(duty.since, moment, is_short=True),
        distance(duty.ticked_at, moment, is_short=True),
        ahead(duty.next_at, moment, is_short=True) if duty.node else "",
        error_summary(duty.error),
        duty.node or "",
    ]


# More nodes are counted.
_NAMES_MOST = 2
# Columns of a terminal that shows sentences.
_WIDE = 110


@click.command()
@click.option("--kind", type=click.Choice(HA_KINDS), help="Only these lines; default: all.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="At most N schedules.")
@as_json_option
@on_store
async def ha(scheduler: Scheduler, kind: HaKind | None, limit: int, as_json: bool) -> None:
    """Show how loops, duties and schedules run on several nodes.

    Every background loop, duty and schedule has a mode. claimed: one node takes each piece of work. duty: one node at a
    time does all of it. idempotent: several nodes may do it, with the effect of one. every-node: each node does it for
    itself. LAST and NEXT are the latest and the soonest time over all nodes; of loops, as of the last heartbeat.

    \b
    Example:
      evertick ha
      evertick ha --kind duty
      evertick ha --json --limit 1000
    """
    table = await scheduler.ha(kind=kind, limit=limit)
    if as_json:
        print_json(table)
        return
    columns = [
        Column(title="KIND"),
        Column(title="NAME", is_cut=True, is_whole_below=True),
        Column(title="MODE"),
        Column(title="HELD BY", is_cut=True, is_whole_below=True),
        Column(title="LAST"),
        Column(title="NEXT"),
        Column(title="WITH N NODES", is_cut=True, width_least=_WIDE),
    ]
    print_table(columns, [_ha_row(line, table) for line in table.lines])
    hint("; ".join(_remarks(table, kind)))
    if not table.nodes and not table.schedules:
        await hint_other_apps(scheduler)


def _ha_row(line: HaLine, table: HaTable) -> list[str]:
    return [
        line.kind,
        line.name,
        line.mode,
        _holders(line, table),
        distance(line.last_at, table.at, is_short=True),
        next_words(line, table.at),
        line.replicas,
    ]


def next_words(line: HaLine, now: datetime) -> str:
    if line.is_paused:
        return "paused"
    if line.kind == "loop" and line.holders and line.next_at is None:
        return "when needed"
    if line.kind == "duty" and not line.holders:
        return "-"
    # The times of a loop are as old as the last heartbeat, so a passed one is no delay.
    moment = max(line.next_at, now) if line.kind == "loop" and line.next_at is not None else line.next_at
    return ahead(moment, now, is_short=True)


def _holders(line: HaLine, table: HaTable) -> str:
    names = node_names(table.nodes)
    holders = [names.get(node.id, node.name) for node in line.holders]
    if not holders:
        return _NO_HOLDER
    if line.kind == "duty":
        return f"{holders[0]}, term {line.term}"
    if len(holders) <= _NAMES_MOST:
        return ", ".join(holders)
    return f"all {len(holders)}" if len(holders) == len(table.nodes) else f"{len(holders)} nodes"


def _remarks(table: HaTable, kind: HaKind | None) -> Iterator[str]:
    yield f"live nodes of app {table.app}: {len(table.nodes)}"
    modes = Counter(line.mode for line in table.lines)
    if modes:
        yield "lines by mode: " + ", ".join(f"{number} {mode}" for mode, number in modes.items())
    if sys.stdout.isatty() and console().width < _WIDE:
        yield f"WITH N NODES is left out below {_WIDE} columns, --json has it"
    listed = sum(line.kind == "schedule" for line in table.lines)
    if kind in (None, "schedule") and table.schedules > listed:
        yield f"{listed} of {table.schedules} schedules are listed, more with --limit"


async def hint_other_apps(scheduler: Scheduler) -> None:
    others = [app for app in await scheduler.apps() if app != scheduler.app]
    if others:
        hint(f"this database has {apps_words(others)}; name another with --app")
