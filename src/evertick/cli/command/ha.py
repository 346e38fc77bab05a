"""The command about high availability: every loop, duty and schedule, who holds it, and what more nodes would do."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from datetime import datetime

import click

from evertick.cli.apps import hint_other_apps
from evertick.cli.database import on_store
from evertick.cli.show.node_names import node_names
from evertick.cli.show.output import Column, as_json_option, console, hint, print_json, print_table
from evertick.cli.show.words import ahead, distance
from evertick.explain.availability import HA_KINDS, HaKind, HaLine, HaTable
from evertick.scheduler.scheduler import Scheduler

__all__ = ["ha", "next_words"]

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
    print_table(columns, [_row(line, table) for line in table.lines])
    hint("; ".join(_remarks(table, kind)))
    if not table.nodes and not table.schedules:
        await hint_other_apps(scheduler)


def _row(line: HaLine, table: HaTable) -> list[str]:
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
