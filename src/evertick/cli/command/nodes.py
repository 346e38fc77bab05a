"""Commands about nodes: nodes, duties and ha, which tells how available the app is."""

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


@click.command()
@as_json_option
@on_store
async def nodes(scheduler: Scheduler, as_json: bool) -> None:
    """List the nodes, living and lately ended.

    A silent node has let its lease run out; when another node notices that, it is dead. A killed one has a lease that
    still holds, but its process on this machine is gone. One that has signed off is stopped.

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
    """List the duties: what one node does at a time, and which.

    The term grows with every node that takes a duty over. Those that begin with "evertick." are Evertick's own. NAME:
    details of one duty, with the full traceback of its last failure.

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
        error_summary(duty.error),
        duty.node or "",
    ]


# More names than these are a number.
_NAMES_MOST = 2
# Columns of a terminal that has room for sentences.
_WIDE = 110


@click.command()
@click.option("--kind", type=click.Choice(HA_KINDS), help="Only these lines; default: all.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="Most schedules.")
@as_json_option
@on_store
async def ha(scheduler: Scheduler, kind: HaKind | None, limit: int, as_json: bool) -> None:
    """Show who holds what, and what more nodes would do.

    Every background loop, duty and schedule has a mode. claimed: each piece of work is taken by one node. duty: one
    node at a time does it all. idempotent: several may do it, with the effect of one. every-node: each does it for
    itself. LAST and NEXT are of the node that was, or will be, first; of loops as of the last beat.

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
    # A loop is known by the last beat of its node: what has passed since then is no delay.
    moment = max(line.next_at, now) if line.kind == "loop" and line.next_at is not None else line.next_at
    return ahead(moment, now, is_short=True)


def _holders(line: HaLine, table: HaTable) -> str:
    names = node_names(table.nodes)
    shown = [names.get(node.id, node.name) for node in line.holders]
    if not shown:
        return "nobody"
    if line.kind == "duty":
        return f"{shown[0]}, term {line.term}"
    if len(shown) <= _NAMES_MOST:
        return ", ".join(shown)
    return f"all {len(shown)}" if len(shown) == len(table.nodes) else f"{len(shown)} nodes"


def _remarks(table: HaTable, kind: HaKind | None) -> Iterator[str]:
    yield f"live nodes of app {table.app}: {len(table.nodes)}"
    modes = Counter(line.mode for line in table.lines)
    if modes:
        yield "lines by mode: " + ", ".join(f"{number} {mode}" for mode, number in modes.items())
    if sys.stdout.isatty() and console().width < _WIDE:
        yield f"WITH N NODES is left out below {_WIDE} columns, --json has it"
    shown = sum(line.kind == "schedule" for line in table.lines)
    if kind in (None, "schedule") and table.schedules > shown:
        yield f"{shown} of {table.schedules} schedules are shown, more with --limit"


async def hint_other_apps(scheduler: Scheduler) -> None:
    others = [app for app in await scheduler.apps() if app != scheduler.app]
    if others:
        hint(f"this database has {apps_words(others)}; name another with --app")
