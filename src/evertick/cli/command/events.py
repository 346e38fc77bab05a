"""The command events: the events of an app from its feed, and new ones with --follow."""

from __future__ import annotations

import shutil
import sys
from datetime import datetime, timedelta

import click
import msgspec

from evertick.cli.command.completion import complete_keys
from evertick.cli.database import on_store
from evertick.cli.parameters import MomentParameter
from evertick.cli.show.output import as_json_option, hint, json_text, say, say_below, style_of
from evertick.cli.show.words import brief, known_names, node_of, now, shown_node, stamp
from evertick.doctor.database import held_words
from evertick.errors import EvertickError, InvalidInput, NotFound
from evertick.model import Cause
from evertick.model.feed import FEED_KINDS, FeedEvent
from evertick.operations.feed import feed_state
from evertick.scheduler.operation import call
from evertick.scheduler.scheduler import Scheduler
from evertick.when import duration_us
from evertick.when.moment import SECOND

__all__ = ["events"]

_LIMIT_MAX = 100_000
# The period without --after and --since.
_DEFAULT_PERIOD = timedelta(hours=1)
_OFF = "off"
_DAYS_LETTERS = 4
_PAGE = 500
# The causes of runs that may be for one node only.
_FOR_ONE_NODE = (Cause.EVERY_NODE, Cause.TRIGGER)
# An open transaction that holds back the feed for longer gets a note.
_HELD_LONG = 2 * SECOND


@click.command()
@click.option("--after", metavar="CURSOR", help="Events after this one; an error if some of them were deleted.")
@click.option("--since", type=MomentParameter(is_past=True), help="Events since this moment; default: one hour ago.")
@click.option(
    "--kind",
    "kinds",
    metavar="KIND",
    type=click.Choice(FEED_KINDS),
    multiple=True,
    help="Only this kind, like run.finished; may be repeated.",
)
@click.option("--schedule", metavar="KEY", shell_complete=complete_keys, help="Only events of this schedule.")
@click.option("--limit", type=click.IntRange(1, _LIMIT_MAX), help="End after N events; default: all.")
@click.option("-f", "--follow", is_flag=True, help="Wait for new events, until Ctrl-C.")
@click.option("--keep", metavar="DURATION", help="Turn the feed on, with this retention; 'off' turns it off.")
@as_json_option
@on_store
async def events(
    scheduler: Scheduler,
    after: str | None,
    since: datetime | None,
    kinds: tuple[str, ...],
    schedule: str | None,
    limit: int | None,
    follow: bool,
    keep: str | None,
    as_json: bool,
) -> None:
    """Show the events of an app, in the order of its feed.

    The feed must be turned on, for all nodes of the app: with --keep, or Scheduler(feed="7d"). With --json each event
    is an object on its own line. Pass its cursor to --after to continue without missing an event.

    \b
    Example:
      evertick events --keep 7d
      evertick events --since 10m --kind run.finished
      evertick events --follow --json
    """
    if keep is not None:
        await _keep(scheduler, keep, is_alone=not (after or since or kinds or schedule or limit or follow))
        return
    if after is None and since is None:
        if follow:
            after = await scheduler.feed_cursor()
        else:
            since = now() - _DEFAULT_PERIOD
    named, printer = list(kinds) or None, _EventPrinter(scheduler, as_json=as_json)
    if follow:
        async for event in scheduler.feed(after, since=since, kinds=named, schedule=schedule):
            await printer.print(event)
            if printer.count == limit:
                return
        return
    is_end = False
    while not is_end and (limit is None or printer.count < limit):
        most = _PAGE if limit is None else min(_PAGE, limit - printer.count)
        page = await scheduler.feed_page(after, since=since, kinds=named, schedule=schedule, limit=most)
        for event in page.events:
            await printer.print(event)
        after, is_end = page.cursor, page.is_end
    if not as_json:
        await _hint_if_delayed(scheduler)
        none = "no matching events; " if kinds or schedule else "no events; "
        hint(("" if printer.count else none) + f"continue with --after {after}")


async def _hint_if_delayed(scheduler: Scheduler) -> None:
    state = await call(scheduler, feed_state)
    if state is not None and state.held_at is not None and state.now - state.held_at > _HELD_LONG:
        hint(f"note: {held_words(state, state.held_at)}")


async def _keep(scheduler: Scheduler, keep: str, *, is_alone: bool) -> None:
    if not is_alone:
        raise InvalidInput("--keep shows no events", fix="call it without other options")
    if keep != _OFF:
        _check_keep(keep)
    await scheduler.keep_feed(None if keep == _OFF else keep)
    is_off = keep == _OFF
    hint(f"the feed of app {scheduler.app!r} is off" if is_off else f"events are kept for {keep} from now on")


def _check_keep(keep: str) -> None:
    """Checked here, because `keep_feed` has another name for it and reads a bare number as seconds."""
    try:
        duration_us(keep)
    except EvertickError:
        example = f"{keep}d" if keep.isascii() and keep.isdigit() and len(keep) <= _DAYS_LETTERS else "7d"
        raise click.BadParameter(
            f"{keep!r:.60} is not a duration; write it like {example!r}, or 'off'", param_hint="'--keep'"
        ) from None


class _EventPrinter:
    """Prints events with the names of their nodes."""

    def __init__(self, scheduler: Scheduler, *, as_json: bool) -> None:
        self._scheduler = scheduler
        self._as_json = as_json
        # None: a pruned node.
        self._names: dict[str, str | None] = {}
        self._width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        self.count = 0

    async def print(self, event: FeedEvent) -> None:
        self.count += 1
        node = await self._node(event)
        if self._as_json:
            shown = {**msgspec.structs.asdict(event), "node_name": event.node_name or self._names.get(event.node or "")}
            click.echo(json_text({name: value for name, value in shown.items() if value is not None}))
            return
        at, words = stamp(event.at, is_exact=True), [f"  {event.kind:16}  ", *_details(event, node)]
        length = sum(len(part if isinstance(part, str) else part[0]) for part in words)
        run_id = "" if event.run_id is None else f"  {event.run_id}"
        # To fit on one line of a narrow terminal, the id is left out, then the milliseconds.
        if self._width is not None and len(at) + length + len(run_id) > self._width:
            run_id = ""
            at = brief(at) if len(at) + length > self._width else at
        if self._width is not None and len(at) + length > self._width:
            say(at, words[0])
            say_below("".join(part if isinstance(part, str) else part[0] for part in words[1:]))
        else:
            say(at, *words, run_id)

    async def _node(self, event: FeedEvent) -> str:
        """The name of the node. It is read once per node: a feed has few nodes and many runs."""
        if event.node is None:
            return await self._target(event)
        return await self._name(event.node) or event.node_name or shown_node(event.node, {})

    async def _name(self, node: str) -> str | None:
        if node not in self._names:
            self._names = {**self._names, node: None, **known_names(await self._scheduler.nodes())}
        return self._names[node]

    async def _target(self, event: FeedEvent) -> str:
        """The node of an unclaimed run that is for one node only."""
        if event.run_id is None or event.cause not in _FOR_ONE_NODE:
            return ""
        try:
            node = node_of(await self._scheduler.get_run(event.run_id))
        except NotFound:  # pruned
            return ""
        return "" if node is None else await self._name(node) or shown_node(node, {})


def _details(event: FeedEvent, node: str) -> list[str | tuple[str, str]]:
    """The subject of an event, then its details."""
    subject = event.schedule_key or event.task or node
    words: list[str | tuple[str, str]] = [subject]
    if event.count is not None:
        words.append(f"  {event.count} {'moment' if event.count == 1 else 'moments'}")
    if event.verdict is not None:
        words += ["  ", (event.verdict, style_of(event.verdict))]
    if event.reason:
        words.append(f" ({event.reason})")
    if node and node != subject:
        words.append(f"  {'on' if event.node else 'for'} {node}")
    if event.note:
        words.append(f"  {event.note}")
    return words
