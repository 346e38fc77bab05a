"""The command top: a live view of one app in the terminal; one frame of it in a pipe."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click
import msgspec

from evertick.cli.command.health import Grade, grade_of, problem_data
from evertick.cli.command.nodes import duty_columns, duty_row, hint_other_apps
from evertick.cli.command.runs import row_data
from evertick.cli.database import daemons_of, killed_daemons_of, ledger_of, on_store
from evertick.cli.parameters import DurationParameter
from evertick.cli.show.output import (
    Column,
    as_json_option,
    clean,
    console,
    print_json,
    print_table,
    say,
    table_for_terminal,
)
from evertick.cli.show.words import (
    ahead,
    called,
    counted,
    distance,
    node_names,
    outcome,
    remark,
    stamp,
    times_of,
    took,
    zone_name,
)
from evertick.cli.time_zone import moments_tz_option, zone_of_rule
from evertick.daemon.pending_reload import daemon_findings
from evertick.doctor.snapshot import Frame, NodeLine
from evertick.engine.loops import OWN_DUTIES
from evertick.errors import StoreUnavailable
from evertick.model import Gap, Run, Schedule
from evertick.operations.health import snapshot
from evertick.scheduler.operation import call
from evertick.scheduler.scheduler import Scheduler
from evertick.store.base import ChannelPulse
from evertick.text.time_span import span
from evertick.when import from_us

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["top"]

_BAR_WIDTH = 10
# A working node claims sooner: it sleeps until the next run is due or a wake-up arrives.
_LAG_USUAL_SECONDS = 2.0


class _Section(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    columns: list[Column]
    rows: list[list[str]]
    # Its share of the lines of the terminal.
    share: float


@click.command()
@click.option(
    "--interval", type=DurationParameter(least="200ms"), default="2s", show_default=True, help="Refresh interval."
)
@click.option("--once", is_flag=True, help="Print one frame and end.")
@moments_tz_option
@as_json_option
@on_store
async def top(scheduler: Scheduler, interval: timedelta, once: bool, as_json: bool) -> None:
    """Watch running jobs, next fires and last results.

    Shows also your duties, built-in duties that fail, and channels of the outbox with unsent or failed messages.

    AT of the next fires is in the zone of each schedule, or in that of --tz; ZONE is its name.

    q or Ctrl-C ends it. In a pipe and with --json it prints one frame.

    \b
    Example:
      evertick top
      evertick top --interval 500ms
      evertick top --once
    """
    take = _frames(scheduler)
    # A store that cannot be opened ends the command; a later failure is shown until the store is back.
    frame = await take()
    if as_json:
        print_json(_data(frame))
    elif once or not sys.stdout.isatty():
        _print_once(frame)
        if not (frame.schedules or frame.nodes or frame.recent):
            await hint_other_apps(scheduler)
    else:
        await _watch(frame, take, interval.total_seconds())


def _frames(scheduler: Scheduler) -> Callable[[], Awaitable[Frame]]:
    """A function that takes a frame of the ledger that the command line names."""
    given = click.get_current_context().params
    ledger = ledger_of(given["database"], given["app"], given["config"])

    async def take() -> Frame:
        killed = {each.node_id: each.pid for each in killed_daemons_of(ledger)}
        frame = await call(scheduler, snapshot, killed=killed)
        return msgspec.structs.replace(frame, problems=[*frame.problems, *daemon_findings(daemons_of(ledger))])

    return take


def _print_once(frame: Frame) -> None:
    if sys.stdout.isatty():
        screen = console()
        screen.print(_view(frame, screen.width, None))
    else:
        _print_plain(frame)


def _data(frame: Frame) -> dict[str, Any]:
    shown = msgspec.structs.asdict(frame)
    names = shown.pop("names")
    for part in ("runs", "recent"):
        shown[part] = [row_data(row, names) for row in shown[part]]
    shown["problems"] = [problem_data(each) for each in frame.problems]
    return {**shown, "status": grade_of(frame.problems).name.lower()}


# --- the live view ---------------------------------------------------------------------------------------------------


async def _watch(first: Frame, take: Callable[[], Awaitable[Frame]], seconds: float) -> None:
    from rich.live import Live
    from rich.text import Text

    ended, screen = asyncio.Event(), console()
    with _set_at_end(ended), Live(console=screen, screen=True, auto_refresh=False) as live:
        live.update(_view(first, screen.width, screen.height), refresh=True)
        while not await _is_set_within(ended, seconds):
            try:
                live.update(_view(await take(), screen.width, screen.height), refresh=True)
            except StoreUnavailable as error:
                live.update(Text(clean(str(error)), "bold red"), refresh=True)


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        return await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False


@contextmanager
def _set_at_end(ended: asyncio.Event) -> Iterator[None]:
    """Set the event at q, Ctrl-C or TERM, and restore the terminal afterwards."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    try:
        with _keys(ended) if sys.stdin.isatty() else _no_keys():
            yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


@contextmanager
def _no_keys() -> Iterator[None]:
    yield


@contextmanager
def _keys(ended: asyncio.Event) -> Iterator[None]:
    """Read single keys; by default a terminal passes on whole lines."""
    import termios
    import tty

    loop, keyboard = asyncio.get_running_loop(), sys.stdin.fileno()

    def read() -> None:
        if os.read(keyboard, 64)[:1] in (b"q", b"Q", b""):
            ended.set()

    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, read)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _view(frame: Frame, width: int, height: int | None) -> Group:
    """The frame, cut to fit: each section has its share of the lines, and counts the rows that are left out."""
    from rich.console import Group, RenderableType
    from rich.text import Text

    head = _lines(_head(frame), width)
    parts: list[RenderableType] = [Text.assemble(*_spaced(line)) for line in head]
    sections = _sections(frame)
    lines = None if height is None else height - len(head)
    # If not even one row of each section fits, there are no empty lines between sections.
    is_tight = lines is not None and sum(4 if section.rows else 2 for section in sections) > lines
    between = [] if is_tight else [Text("")]
    for section, most in zip(sections, _rows_shown(sections, lines, len(between)), strict=True):
        more = len(section.rows) - most
        parts += between
        if not section.rows:
            parts.append(Text.assemble((section.title, "bold"), ("  none", "dim")))
            continue
        parts.append(Text(section.title + (f" (and {more} more)" if more > 0 else ""), "bold"))
        parts.append(table_for_terminal(section.columns, section.rows[:most], width))
    return Group(*parts)


def _rows_shown(sections: list[_Section], lines: int | None, between: int) -> list[int]:
    """How many rows of each section fit. Lines that a section does not need go to the others, in their order."""
    wanted = [len(section.rows) for section in sections]
    if lines is None:
        return wanted
    # A section needs a line for its title, one for the heads of its rows, and the empty lines before it.
    left = lines - sum(between + (2 if count else 1) for count in wanted)
    shown = [min(count, max(1, int(each.share * left))) for each, count in zip(sections, wanted, strict=True)]
    for place, count in enumerate(wanted):
        shown[place] = min(count, shown[place] + max(0, left - sum(shown)))
    return shown


# --- sections --------------------------------------------------------------------------------------------------------


def _head(frame: Frame) -> list[tuple[str, str]]:
    lag = _whole(timedelta(seconds=frame.lag_seconds))
    return [
        (clean(frame.app), "bold cyan"),
        (stamp(frame.at), ""),
        (f"{frame.schedules} {'schedule' if frame.schedules == 1 else 'schedules'}", ""),
        (f"{counted(frame.running)} running", "cyan" if frame.running else ""),
        *([(f"{counted(frame.dispatched)} dispatched", "cyan")] if frame.dispatched else []),
        (f"{counted(frame.waiting)} waiting", "blue" if frame.waiting else ""),
        (f"{counted(frame.blocked)} blocked", ""),
        (f"{counted(frame.parked)} parked", "red" if frame.parked else ""),
        (f"lag {lag}", "bold red" if frame.lag_seconds > _LAG_USUAL_SECONDS else "green"),
        *((words, "bold red") for words in _alarms(frame)),
    ]


def _lines(parts: list[tuple[str, str]], width: int) -> list[list[tuple[str, str]]]:
    """The parts, wrapped into lines between two parts."""
    lines: list[list[tuple[str, str]]] = [[]]
    for part in parts:
        if lines[-1] and sum(len(text) + 2 for text, _ in (*lines[-1], part)) - 2 > width:
            lines.append([])
        lines[-1].append(part)
    return lines


def _spaced(parts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [each for part in parts for each in (("  ", ""), part)][1:]


def _alarms(frame: Frame) -> Iterator[str]:
    if frame.overdue_seconds > _LAG_USUAL_SECONDS:
        yield f"schedules overdue by {span(timedelta(seconds=frame.overdue_seconds))}"
    failing = sum(duty.error is not None for duty in frame.duties)
    if failing:
        yield f"{failing} {'duty fails' if failing == 1 else 'duties fail'}"
    dead = sum(channel.dead for channel in frame.channels)
    if dead:
        yield f"{counted(dead)} {'message' if dead == 1 else 'messages'} dead"
    if (grade := grade_of(frame.problems)) is not Grade.OK:
        yield f"status {grade.name}: {frame.problems[0].check.replace('_', ' ')}" + (
            ", …" if len(frame.problems) > 1 else ""
        )


def _sections(frame: Frame) -> list[_Section]:
    names = node_names(frame.nodes)
    return [
        _running(frame, names),
        _Section(
            title="Next",
            columns=[
                Column(title="IN"),
                Column(title="AT", is_moment=True),
                Column(title="ZONE", gives_way=1),
                Column(title="KEY", is_cut=True, cut_least=16),
                Column(title="TASK", is_cut=True, gives_way=2),
            ],
            rows=[_next_row(each, frame.at) for each in frame.next],
            share=0.2,
        ),
        _recent(frame),
        _nodes(frame, names),
        *_more_sections(frame),
    ]


def _running(frame: Frame, names: dict[str, str]) -> _Section:
    return _Section(
        title="Running",
        columns=[
            Column(title="TASK"),
            Column(title="KEY", width_least=100),
            Column(title="NODE", is_cut=True, is_cut_in_front=True),
            Column(title="FOR", is_right=True),
            Column(title="TRY", is_right=True),
            Column(title="PROGRESS", is_cut=True),
            Column(title="RUN", width_least=150),
        ],
        rows=[_running_row(run, names, frame.at) for run in frame.runs],
        share=0.35,
    )


def _recent(frame: Frame) -> _Section:
    return _Section(
        title="Recent",
        columns=[
            Column(title="ENDED"),
            Column(title="KEY", is_cut=True, cut_least=16),
            Column(title="VERDICT", is_coloured=True),
            Column(title="TOOK", is_right=True, gives_way=1),
            Column(title="DETAIL", is_cut=True, cut_least=16),
        ],
        rows=[_recent_row(row, frame.at) for row in frame.recent],
        share=0.3,
    )


def _nodes(frame: Frame, names: dict[str, str]) -> _Section:
    return _Section(
        title="Nodes",
        columns=[
            Column(title="NAME", is_cut=True),
            Column(title="STATE", is_coloured=True),
            Column(title="RUNNING", is_right=True),
            Column(title="LAST BEAT"),
            Column(title="SINCE"),
            Column(title="QUEUES", is_cut=True, width_least=100),
        ],
        rows=[_node_row(node, names[node.id], frame.at) for node in frame.nodes],
        share=0.15,
    )


def _more_sections(frame: Frame) -> Iterator[_Section]:
    """Sections that are left out if they are empty."""
    duties = [duty for duty in frame.duties if duty.error is not None or duty.name not in OWN_DUTIES]
    if duties:
        yield _Section(
            title="Duties",
            columns=duty_columns(),
            rows=[duty_row(duty, frame.at) for duty in duties],
            share=0.1,
        )
    if frame.channels:
        yield _Section(
            title="Outbox",
            columns=[
                Column(title="CHANNEL", is_cut=True),
                Column(title="WAITING", is_right=True),
                Column(title="SENDING", is_right=True),
                Column(title="DEAD", is_right=True),
                Column(title="OLDEST DUE"),
            ],
            rows=[_channel_row(channel, frame.at) for channel in frame.channels],
            share=0.1,
        )


def _channel_row(channel: ChannelPulse, now: datetime) -> list[str]:
    oldest = None if channel.oldest_due_at is None else from_us(channel.oldest_due_at)
    counts = [counted(count) for count in (channel.waiting, channel.sending, channel.dead)]
    return [channel.channel, *counts, distance(oldest, now)]


def _running_row(run: Run, names: dict[str, str], now: datetime) -> list[str]:
    length = "" if run.started_at is None else _whole(now - run.started_at)
    node = names.get(run.node or "", run.node or "")
    return [run.task, run.schedule_key or "", node, length, str(run.attempts + 1), _progress(run), run.id]


def _whole(duration: timedelta) -> str:
    """The duration in whole seconds."""
    seconds = int(duration.total_seconds())
    return span(timedelta(seconds=seconds)) if seconds >= 1 else "0 s"


def _progress(run: Run) -> str:
    if run.is_cancel_requested:
        return "stopping"
    if run.progress is None:
        return run.progress_text or ""
    full = round(min(max(run.progress, 0.0), 1.0) * _BAR_WIDTH)
    bar = "█" * full + "░" * (_BAR_WIDTH - full)
    return f"{bar} {run.progress:.0%} {run.progress_text or ''}".rstrip()


def _next_row(schedule: Schedule, now: datetime) -> list[str]:
    due = schedule.next_due_at
    with times_of(zone_of_rule(schedule.when)) as zone:
        return [ahead(due, now), stamp(due), zone_name(zone), schedule.key, schedule.task]


def _recent_row(row: Run | Gap, now: datetime) -> list[str]:
    if isinstance(row, Gap):
        return [distance(row.recorded_at, now), row.schedule_key, outcome(row), "", f"{row.reason}: {remark(row)}"]
    detail = ": ".join(part for part in (row.reason or "", remark(row)) if part)
    return [distance(row.finished_at, now), called(row), outcome(row), took(row), detail]


def _node_row(node: NodeLine, name: str, now: datetime) -> list[str]:
    return [
        name,
        node.state,
        str(node.running),
        distance(node.beat_at, now),
        stamp(node.started_at),
        ", ".join(node.queues),
    ]


def _print_plain(frame: Frame) -> None:
    say(*_spaced(_head(frame)))
    for section in _sections(frame):
        say("")
        say(section.title)
        if section.rows:
            print_table(section.columns, section.rows)
        else:
            say("none")
