"""The command events: what happens in an app, from its feed, and with --follow what happens from now on."""

from __future__ import annotations

import shutil
import sys
from datetime import datetime, timedelta

import click
import msgspec

from evertick.cli.candidates import complete_keys
from evertick.cli.database import on_store
from evertick.cli.node_names import known_names, shown_node
from evertick.cli.output import as_json_option, hint, say, style_of
from evertick.cli.parameters import MomentParameter
from evertick.cli.words import brief, now, stamp
from evertick.errors import InvalidInput
from evertick.feed import FEED_KINDS, FeedEvent
from evertick.scheduler import Scheduler

__all__ = ["events"]

_LIMIT_MAX = 100_000
# What is shown to whoever names no beginning.
_LATELY = timedelta(hours=1)
_OFF = "off"
_PAGE = 500


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

    The feed is kept once somebody has turned it on, for all nodes of the app: with --keep, or Scheduler(feed="7d").
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
    named, teller = list(kinds) or None, _Teller(scheduler, as_json=as_json)
    if follow:
        async for event in scheduler.feed(after, since=since, kinds=named, schedule=schedule):
            await teller.tell(event)
            if teller.count == limit:
                return
        return
    is_end = False
    while not is_end and (limit is None or teller.count < limit):
        most = _PAGE if limit is None else min(_PAGE, limit - teller.count)
        page = await scheduler.feed_page(after, since=since, kinds=named, schedule=schedule, limit=most)
        for event in page.events:
            await teller.tell(event)
        after, is_end = page.cursor, page.is_end
    if not as_json:
        hint(("" if teller.count else "nothing of that kind; ") + f"go on with --after {after}")


async def _keep(scheduler: Scheduler, keep: str, *, is_alone: bool) -> None:
    if not is_alone:
        raise InvalidInput("--keep changes what is kept and shows nothing; call it without other options")
    await scheduler.keep_feed(None if keep == _OFF else keep)
    hint(f"app {scheduler.app!r} keeps no feed any more" if keep == _OFF else f"events are kept for {keep} from now on")


class _Teller:
    """Tells events as they come, with the names of their nodes."""

    def __init__(self, scheduler: Scheduler, *, as_json: bool) -> None:
        self._scheduler = scheduler
        self._as_json = as_json
        # None: a node that is not known any more.
        self._names: dict[str, str | None] = {}
        self._width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        self.count = 0

    async def tell(self, event: FeedEvent) -> None:
        self.count += 1
        node = await self._node(event)
        if self._as_json:
            shown = {**msgspec.structs.asdict(event), "node_name": event.node_name or self._names.get(event.node or "")}
            click.echo(msgspec.json.encode({name: value for name, value in shown.items() if value is not None}))
            return
        at, words = stamp(event.at, is_exact=True), [f"  {event.kind:16}  ", *_said(event, node)]
        length = sum(len(part if isinstance(part, str) else part[0]) for part in words)
        run_id = "" if event.run_id is None else f"  {event.run_id}"
        # On a narrow terminal an event is to be one line: without the id, then without what all lines have in common.
        if self._width is not None and len(at) + length + len(run_id) > self._width:
            run_id = ""
            at = brief(at) if len(at) + length > self._width else at
        say(at, *words, run_id)

    async def _node(self, event: FeedEvent) -> str:
        """The name of its node. Asked for once per node: a feed tells of few nodes and of many runs."""
        if event.node is None or event.node_name is not None:
            return event.node_name or ""
        if event.node not in self._names:
            self._names = {**self._names, event.node: None, **known_names(await self._scheduler.nodes())}
        return shown_node(event.node, {id_: name for id_, name in self._names.items() if name is not None})


def _said(event: FeedEvent, node: str) -> list[str | tuple[str, str]]:
    """What it is about, and what of it."""
    subject = event.schedule_key or event.task or node
    words: list[str | tuple[str, str]] = [subject]
    if event.count is not None:
        words.append(f"  {event.count} {'moment' if event.count == 1 else 'moments'}")
    if event.verdict is not None:
        words += ["  ", (event.verdict, style_of(event.verdict))]
    if event.reason:
        words.append(f" ({event.reason})")
    if node and node != subject:
        words.append(f"  on {node}")
    if event.note:
        words.append(f"  {event.note}")
    return words
