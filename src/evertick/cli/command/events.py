"""The command events: what happens in an app, from its feed, and with --follow what happens from now on."""

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
# Shown where no beginning is named.
_LATELY = timedelta(hours=1)
_OFF = "off"
_DAYS_LETTERS = 4
_PAGE = 500
# Why there may be a run that is for one node alone.
_FOR_ONE_NODE = (Cause.EVERY_NODE, Cause.TRIGGER)
# A transaction that is committed by then delays no look.
_HELD_LONG = 2 * SECOND


@click.command()
@click.option("--after", metavar="CURSOR", help="Go on behind this one; an error if something is missing there.")
@click.option("--since", type=MomentParameter(is_past=True), help="From this moment on; default: the last hour.")
@click.option(
    "--kind",
    "kinds",
    metavar="KIND",
    type=click.Choice(FEED_KINDS),
    multiple=True,
    help="Only these, like run.finished; may be repeated.",
)
@click.option("--schedule", metavar="KEY", shell_complete=complete_keys, help="Only those of this schedule.")
@click.option("--limit", type=click.IntRange(1, _LIMIT_MAX), help="End after so many; default: all.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens, until Ctrl-C.")
@click.option("--keep", metavar="DURATION", help="Turn the feed on and keep events for so long; 'off' turns it off.")
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
    """Show what happened in an app, in the order of its feed.

    The feed is kept once it is turned on, for all nodes of the app: with --keep, or Scheduler(feed="7d").
    With --json each event is an object on a line of its own. Its cursor is what to pass to --after, to go on behind it
    without a loss.

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
            since = now() - _LATELY
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
        await _hint_if_held_up(scheduler)
        nothing = "nothing of that kind; " if kinds or schedule else "nothing to tell; "
        hint(("" if printer.count else nothing) + f"go on with --after {after}")


async def _hint_if_held_up(scheduler: Scheduler) -> None:
    state = await call(scheduler, feed_state)
    if state is not None and state.held_at is not None and state.now - state.held_at > _HELD_LONG:
        hint(f"note: {held_words(state, state.held_at)}")


async def _keep(scheduler: Scheduler, keep: str, *, is_alone: bool) -> None:
    if not is_alone:
        raise InvalidInput("--keep changes what is kept and shows nothing; call it without other options")
    if keep != _OFF:
        _check_kept(keep)
    await scheduler.keep_feed(None if keep == _OFF else keep)
    hint(f"app {scheduler.app!r} keeps no feed any more" if keep == _OFF else f"events are kept for {keep} from now on")


def _check_kept(keep: str) -> None:
    """Here and not where it is stored: there it has another name, and a number alone is taken for seconds."""
    try:
        duration_us(keep)
    except EvertickError:
        like = f"{keep}d" if keep.isascii() and keep.isdigit() and len(keep) <= _DAYS_LETTERS else "7d"
        raise click.BadParameter(
            f"{keep!r:.60} is no duration; write it like {like!r}, or 'off'", param_hint="'--keep'"
        ) from None


class _EventPrinter:
    """Prints events as they come, with the names of their nodes."""

    def __init__(self, scheduler: Scheduler, *, as_json: bool) -> None:
        self._scheduler = scheduler
        self._as_json = as_json
        # None: a node that is not known any more.
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
        at, words = stamp(event.at, is_exact=True), [f"  {event.kind:16}  ", *_said(event, node)]
        length = sum(len(part if isinstance(part, str) else part[0]) for part in words)
        run_id = "" if event.run_id is None else f"  {event.run_id}"
        # On a narrow terminal an event is to be one line: without the id, then without parts of seconds.
        if self._width is not None and len(at) + length + len(run_id) > self._width:
            run_id = ""
            at = brief(at) if len(at) + length > self._width else at
        if self._width is not None and len(at) + length > self._width:
            say(at, words[0])
            say_below("".join(part if isinstance(part, str) else part[0] for part in words[1:]))
        else:
            say(at, *words, run_id)

    async def _node(self, event: FeedEvent) -> str:
        """The name of its node. Asked for once per node: a feed tells of few nodes and of many runs."""
        if event.node is None:
            return await self._meant_for(event)
        return await self._name(event.node) or event.node_name or shown_node(event.node, {})

    async def _name(self, node: str) -> str | None:
        if node not in self._names:
            self._names = {**self._names, node: None, **known_names(await self._scheduler.nodes())}
        return self._names[node]

    async def _meant_for(self, event: FeedEvent) -> str:
        """The node of a run that is for one node alone, and that the node has not claimed yet."""
        if event.run_id is None or event.cause not in _FOR_ONE_NODE:
            return ""
        try:
            node = node_of(await self._scheduler.get_run(event.run_id))
        except NotFound:  # pruned since
            return ""
        return "" if node is None else await self._name(node) or shown_node(node, {})


def _said(event: FeedEvent, node: str) -> list[str | tuple[str, str]]:
    """Its subject, then the details."""
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
