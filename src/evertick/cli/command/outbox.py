"""The group outbox: messages on their way to the outside, and deciding about those that were given up."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click
import msgspec

from evertick.cli.database import on_store
from evertick.cli.named import message_named
from evertick.cli.show.output import (
    Column,
    as_json_option,
    ask,
    hint,
    print_facts,
    print_json,
    print_section,
    print_table,
    say,
)
from evertick.cli.show.words import data_text, distance, known_names, node_words, now, stamp
from evertick.errors import NotFound
from evertick.model import Message, MessageState
from evertick.operations.outbox import channels, channels_without_sender
from evertick.scheduler.operation import call
from evertick.scheduler.scheduler import Scheduler
from evertick.text.error_line import error_summary

__all__ = ["outbox"]

# Dead messages that one command puts back.
_RETRIED_MOST = 10_000

_channel_option = click.option("--channel", metavar="NAME", help="Only messages of this channel.")


@click.group(no_args_is_help=True)
def outbox() -> None:
    """Look after messages to the outside: list, show, retry, drop.

    \b
    Example:
      evertick outbox list --state dead
      evertick outbox retry --dead --channel webhook
    """


@outbox.command("list")
@_channel_option
@click.option(
    "--state",
    "states",
    type=click.Choice([state.value for state in MessageState]),
    multiple=True,
    help="Only messages in this state; may be repeated.",
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many at most.")
@as_json_option
@on_store
async def list_messages(
    scheduler: Scheduler, channel: str | None, states: tuple[str, ...], limit: int, as_json: bool
) -> None:
    """List messages, newest first.

    Those that were sent are listed while their key is remembered.

    \b
    Example:
      evertick outbox list
      evertick outbox list --channel webhook --state dead --state waiting
    """
    found = await scheduler.messages(channel=channel, states=states or None, limit=limit)
    if as_json:
        print_json(await _data(scheduler, found))
    elif not found:
        hint(f"there are no such messages in the outbox of app {scheduler.app!r}")
    else:
        columns = [
            # `show`, `retry` and `drop` take it.
            Column(title="MESSAGE"),
            Column(title="CHANNEL", is_cut=True, is_whole_below=True),
            Column(title="STATE", is_coloured=True),
            Column(title="TRIES", is_right=True, gives_way=3),
            Column(title="DUE", gives_way=2),
            # Keys of one kind begin alike: what tells them apart is their end.
            Column(title="KEY", is_cut=True, cut_least=24, is_whole_below=True),
            Column(title="ERROR", is_cut=True, cut_least=12, gives_way=1, is_whole_below=True),
        ]
        moment = now()
        print_table(columns, [_row(message, moment) for message in found])
        if sys.stdout.isatty() and any(message.error for message in found):
            hint("the whole of an error: evertick outbox show MESSAGE")


def _row(message: Message, moment: datetime) -> list[str]:
    is_open = message.state in (MessageState.WAITING, MessageState.SENDING)
    return [
        message.id,
        message.channel,
        message.state.value,
        str(message.attempts),
        distance(message.due_at, moment, is_short=True) if is_open else "-",
        "-" if message.key == message.id else message.key,
        error_summary(message.error),
    ]


@outbox.command()
@click.argument("message")
@as_json_option
@on_store
async def show(scheduler: Scheduler, message: str, as_json: bool) -> None:
    """Show one message: its body, its tries, why it failed.

    MESSAGE is its id, the beginning of it, or its key. The body of one that was sent is not kept.

    \b
    Example:
      evertick outbox show 01a1e06c
    """
    found = await message_named(scheduler, message)
    if as_json:
        print_json((await _data(scheduler, [found]))[0])
        return
    print_facts(
        [
            ("Message", found.id),
            ("App", found.app),
            ("Channel", found.channel),
            ("Key", found.key),
            ("State", found.state.value),
            ("Tries", str(found.attempts)),
            ("Written", stamp(found.created_at)),
            ("Due", stamp(found.due_at)),
            ("Settled", "" if found.settled_at is None else stamp(found.settled_at)),
            ("Node", await _node(scheduler, found)),
            ("Sent by", "" if found.caused_by is None else f"run {found.caused_by}"),
            ("Headers", [f"{name}: {value}" for name, value in found.headers.items()]),
            ("Body", "" if found.state is MessageState.SENT else data_text(found.body)),
        ]
    )
    if found.error:
        print_section("Error", found.error.rstrip().splitlines())


async def _node(scheduler: Scheduler, message: Message) -> str:
    return "" if message.node is None else node_words(message.node, known_names(await scheduler.nodes()))


async def _data(scheduler: Scheduler, found: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as JSON, with the names of the nodes that have them."""
    is_any = any(message.node is not None for message in found)
    names = known_names(await scheduler.nodes()) if is_any else {}
    return [{**msgspec.structs.asdict(message), "node_name": names.get(message.node or "")} for message in found]


@outbox.command()
@click.argument("message", required=False)
@click.option("--dead", is_flag=True, help="All messages that were given up.")
@_channel_option
@as_json_option
@on_store
async def retry(scheduler: Scheduler, message: str | None, dead: bool, channel: str | None, as_json: bool) -> None:
    """Deliver a message now that was given up, or that waits for its next try.

    MESSAGE is its id, the beginning of it, or its key; --dead means all that were given up. They begin anew, with all
    their tries.

    \b
    Example:
      evertick outbox retry 01a1e06c
      evertick outbox retry --dead --channel webhook
    """
    if dead == (message is not None):
        raise click.UsageError("name a message, or write --dead for all that were given up")
    if message is not None:
        if channel is not None:
            raise click.UsageError("--channel goes with --dead; a message is named by its id alone")
        ids = [(await scheduler.retry_message((await message_named(scheduler, message)).id)).id]
    else:
        ids = await scheduler.retry_dead(channel=channel, limit=_RETRIED_MOST)
        if not ids and channel is not None:
            await _check_channel(scheduler, channel)
    if as_json:
        print_json({"retried": ids})
        return
    say(f"{_count(len(ids))} due now" + ("" if ids else ": none was given up"))
    await _hint_if_no_sender(scheduler, ids)


@outbox.command()
@click.argument("message")
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json_option
@on_store
async def drop(scheduler: Scheduler, message: str, yes: bool, as_json: bool) -> None:
    """Forget a message that waits or was given up.

    It is never delivered, and its key may be used again. MESSAGE is its id, the beginning of it, or its key.

    \b
    Example:
      evertick outbox drop 01a1e06c --yes
    """
    found = await message_named(scheduler, message)
    # A message that is sent or under way is refused anyway.
    if not yes and found.state in (MessageState.WAITING, MessageState.DEAD):
        ask(f"drop message {found.id} of channel {found.channel!r}, which is {found.state}?", "drop it")
    await scheduler.drop_message(found)
    if as_json:
        print_json(found)
    else:
        say(f"dropped message {found.id}")


async def _check_channel(scheduler: Scheduler, channel: str) -> None:
    """Refuse one that no message and no sender has: it is mistyped."""
    known = {pulse.channel for pulse in await call(scheduler, channels)}
    known |= {each for node in await scheduler.nodes() for each in node.channels}
    if channel not in known and not await scheduler.messages(channel=channel, limit=1):
        there = f"there are {', '.join(sorted(known))}" if known else "no node has a sender"
        problem = f"there is no channel {channel!r} in app {scheduler.app!r}"
        raise NotFound(problem, setting="channel", value=channel, fix=there)


async def _hint_if_no_sender(scheduler: Scheduler, ids: list[str]) -> None:
    for channel in await call(scheduler, channels_without_sender, ids):
        hint(f"note: no live node has a sender for channel {channel!r}; what is due waits until one is started")


def _count(number: int) -> str:
    return "1 message is" if number == 1 else f"{number} messages are"
