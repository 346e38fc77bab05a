"""The command events: what happens in an app, from its feed, and with --follow what happens from now on."""

from __future__ import annotations

from datetime import datetime, timedelta

import click
import msgspec

from evertick.cli.candidates import complete_keys
from evertick.cli.database import on_store
from evertick.cli.output import as_json_option, hint, say, style_of
from evertick.cli.parameters import MomentParameter
from evertick.cli.words import now, stamp
from evertick.errors import InvalidInput
from evertick.feed import FEED_KINDS, FeedEvent
from evertick.scheduler import Scheduler

__all__ = ["events"]

# What is shown to whoever names no beginning.
_LATELY = timedelta(hours=1)
_OFF = "off"


@click.command()
@click.option("--after", metavar="CURSOR", help="Go on behind this one; an error if something is missing there.")
@click.option("--since", type=MomentParameter(is_past=True), help="From this moment on; default: the last hour.")
@click.option("--kind", "kinds", type=click.Choice(FEED_KINDS), multiple=True, help="Only these; may be repeated.")
@click.option("--schedule", metavar="KEY", shell_complete=complete_keys, help="Only those of this schedule.")
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
        await _keep(scheduler, keep, is_alone=not (after or since or kinds or schedule or follow))
        return
    if after is None and since is None:
        if follow:
            after = await scheduler.feed_cursor()
        else:
            since = now() - _LATELY
    named = list(kinds) or None
    if follow:
        async for event in scheduler.feed(after, since=since, kinds=named, schedule=schedule):
            _tell(event, as_json=as_json)
        return
    await _tell_all(scheduler, after, since, named, schedule, as_json=as_json)


async def _keep(scheduler: Scheduler, keep: str, *, is_alone: bool) -> None:
    if not is_alone:
        raise InvalidInput("--keep changes what is kept and shows nothing; call it without other options")
    await scheduler.keep_feed(None if keep == _OFF else keep)
    hint(f"app {scheduler.app!r} keeps no feed any more" if keep == _OFF else f"events are kept for {keep} from now on")


async def _tell_all(
    scheduler: Scheduler,
    after: str | None,
    since: datetime | None,
    kinds: list[str] | None,
    schedule: str | None,
    *,
    as_json: bool,
) -> None:
    count, is_end = 0, False
    while not is_end:
        page = await scheduler.feed_page(after, since=since, kinds=kinds, schedule=schedule)
        for event in page.events:
            _tell(event, as_json=as_json)
        after, is_end = page.cursor, page.is_end
        count += len(page.events)
    if not as_json:
        hint(("" if count else "nothing of that kind; ") + f"go on with --after {after}")


def _tell(event: FeedEvent, *, as_json: bool) -> None:
    if as_json:
        shown = {name: value for name, value in msgspec.structs.asdict(event).items() if value is not None}
        click.echo(msgspec.json.encode(shown))
        return
    say(f"{stamp(event.at, is_exact=True)}  {event.kind:16}  ", *_said(event))


def _said(event: FeedEvent) -> list[str | tuple[str, str]]:
    """What it is about, and what of it."""
    subject = event.schedule_key or event.task or event.node_name or ""
    reason = f" ({event.reason})" if event.reason else ""
    words: list[str | tuple[str, str]] = [subject]
    if event.run_id is not None:
        words.append(f"  {event.run_id}")
    if event.count is not None:
        words.append(f"  {event.count} moments")
    if event.verdict is not None:
        words += ["  ", (event.verdict, style_of(event.verdict))]
    note = f"  {event.note}" if event.note else ""
    return [*words, f"{reason}{note}"]
