"""What can be wrong with messages: given up, or of a channel that nobody sends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evertick.doctor.finding import Finding, Severity
from evertick.model import Node
from evertick.store.base import ChannelPulse
from evertick.when.moment import MINUTE

__all__ = ["about_outbox"]

_WAITED_LONG = 5 * MINUTE


def about_outbox(channels: Sequence[ChannelPulse], living: Sequence[Node], now: int) -> Iterator[Finding]:
    """`now` in microseconds, by the store."""
    sent = {channel for node in living for channel in node.channels}
    for pulse in channels:
        if pulse.dead:
            yield _given_up(pulse)
        is_late = pulse.oldest_due_at is not None and pulse.oldest_due_at < now
        if pulse.channel not in sent and is_late:
            yield _sent_by_nobody(pulse)
        elif pulse.oldest_due_at is not None and now - pulse.oldest_due_at > _WAITED_LONG:
            yield _late(pulse, now - pulse.oldest_due_at)
        # Its next try is always yet to come, so it is never late; it does not arrive all the same.
        if pulse.oldest_failing_at is not None and now - pulse.oldest_failing_at > _WAITED_LONG:
            yield _failing(pulse, now - pulse.oldest_failing_at)


def _given_up(pulse: ChannelPulse) -> Finding:
    count = "1 message" if pulse.dead == 1 else f"{pulse.dead} messages"
    return Finding(
        severity=Severity.WARNING,
        check="dead_messages",
        what=f"{count} of channel {pulse.channel!r} could not be delivered and {_was(pulse.dead)} given up",
        fix=f"find them with `evertick outbox list --state dead --channel {pulse.channel}`, see why with "
        "`evertick outbox show MESSAGE`, then deliver them anew with "
        f"`evertick outbox retry --dead --channel {pulse.channel}`",
        about=(pulse.channel,),
    )


def _sent_by_nobody(pulse: ChannelPulse) -> Finding:
    count = "1 message waits" if pulse.waiting == 1 else f"{pulse.waiting} messages wait"
    return Finding(
        severity=Severity.WARNING,
        check="unsent_channel",
        what=f"{count} in channel {pulse.channel!r}, and no live node has a sender for it",
        fix=f"start a node that declares @scheduler.sender({pulse.channel!r}), or drop what nobody wants with "
        "`evertick outbox drop`",
        about=(pulse.channel,),
    )


def _late(pulse: ChannelPulse, late: int) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        check="messages_late",
        what=f"messages of channel {pulse.channel!r} are due for {late // MINUTE} min and were not sent",
        fix="its senders are busy: raise concurrency= of the sender, give it a shorter timeout=, or start more nodes",
        about=(pulse.channel,),
    )


def _failing(pulse: ChannelPulse, since: int) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        check="messages_failing",
        what=f"messages of channel {pulse.channel!r} are tried in vain, the oldest for {since // MINUTE} min",
        fix=f"`evertick outbox list --channel {pulse.channel}` has what the other side says; they are sent when it is "
        "back, and nothing is lost meanwhile",
        about=(pulse.channel,),
    )


def _was(number: int) -> str:
    return "was" if number == 1 else "were"
