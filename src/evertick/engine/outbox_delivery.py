"""Handing messages of the outbox to the outside: claim, deliver, settle.

A message is delivered at least once and is settled by the claim that delivered it. Between the two a node may die, or
the answer of the store may be lost; then it is delivered again under the same key. Nothing is delivered before its
claim was answered.

A call that did not come back in time is settled without waiting for it, and goes on taking its place among the
deliveries of its channel until it does: a receiver that hangs must not be called once more for every timeout.

A message that dispatches a run is told to that run before it is settled: a node that dies in between delivers it once
more, under the same key; the other way round, a run would wait for ever for what was sent long ago.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import assert_never

import msgspec

from evertick.driver.base import Sender
from evertick.engine.finish import about
from evertick.engine.node import LocalNode, runs_told_of
from evertick.errors import InvalidDuration, Retry
from evertick.model import (
    ClaimedMessage,
    Message,
    MessageFate,
    MessageOutcome,
    MessageState,
    Report,
    ReportKind,
)
from evertick.store.base import FinishAnswer, MessageClaim
from evertick.text.error_line import what_was_raised
from evertick.text.error_text import error_text
from evertick.text.log_level import TRACE, such_as, tally, trace
from evertick.when.duration import duration_rounded, duration_us
from evertick.when.moment import from_us

__all__ = ["OutboxDelivery", "judge_delivery"]

log = logging.getLogger("evertick.relay")

# Of many messages that fail alike: the runs of so many are looked up, and so many of their jobs named.
_LOOKED_UP_MOST = 100
_NAMED_MOST = 3

# Outcomes that one write takes at most.
BATCH = 1_000
# Others may be claiming what we have seen to be due: look again soon, but do not spin.
_SOON_SECONDS = 0.01


# What each message of a call came to: None, or what was raised.
Came = Sequence[BaseException | None]


class Delivery:
    """A claimed message in the hands of this node, until its outcome is answered."""

    __slots__ = ("message", "node", "outcome", "sender")

    def __init__(self, message: ClaimedMessage, sender: Sender, node: str) -> None:
        self.message = message
        self.sender = sender
        # The incarnation that claimed it: only that one may settle it.
        self.node = node
        self.outcome: MessageOutcome | None = None


class DeliveryBatch:
    """A call that brings messages of one channel to the other side: one of them, or many where the sender can."""

    __slots__ = ("begun_at", "deliveries", "sender", "task", "timer")

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        self.deliveries = deliveries
        self.sender = deliveries[0].sender
        self.task: asyncio.Task[Came] | None = None
        self.timer: asyncio.TimerHandle | None = None
        # By `clock.elapsed`.
        self.begun_at = 0.0

    @property
    def is_settled(self) -> bool:
        """Whether it is known what came of each of them, though the call may not have come back."""
        return all(delivery.outcome is not None for delivery in self.deliveries)


class OutboxDelivery:
    """The deliveries of this node."""

    def __init__(self, node: LocalNode, *, poll: float, keep_dead: int) -> None:
        self._node = node
        self._poll = poll
        # How long a message that was given up is kept.
        self._keep_dead = keep_dead
        self._held: dict[tuple[str, int], Delivery] = {}
        self._batches: set[DeliveryBatch] = set()
        # Calls that have not come back, by channel; also of those whose time was over.
        self._busy: Counter[str] = Counter()
        # Channels whose last claim has left no room: there may be more of theirs.
        self._has_more: set[str] = set()
        # When a line was last heard to be back, by `clock.elapsed`; and channels that wait for it without need.
        self._back_at: dict[str, float] = {}
        self._to_hasten: set[str] = set()
        # By `clock.elapsed`: before that the others have nothing to claim, unless woken.
        self._look_at = 0.0
        # A delivery has ended, or there may be more to deliver.
        self.on_change: Callable[[], None] = lambda: None
        # Writes what is to be said of dispatched runs.
        self.apply: Callable[[Sequence[Report]], Awaitable[object]] = functools.partial(
            node.store.apply_reports, node.app
        )

    @property
    def unsettled(self) -> int:
        return sum(delivery.outcome is not None for delivery in self._held.values())

    @property
    def under_way(self) -> set[asyncio.Task[Came]]:
        return {each.task for each in self._batches if not each.is_settled and each.task is not None}

    @property
    def channels_under_way(self) -> list[str]:
        """Also of calls whose time was over, and that have not come back."""
        return sorted(channel for channel, calls in self._busy.items() if calls)

    def look_again(self) -> None:
        """Messages may have been put into the outbox, or may have lost their owner."""
        if self._node.senders:
            self._look_at = 0.0
            self.on_change()

    def is_back(self, line: str) -> None:
        """What was away for these channels is there again: their messages need not wait for their next try."""
        self._back_at[line] = self._node.clock.elapsed()
        self._to_hasten |= {name for name, sender in self._node.senders.items() if _line_of(sender) == line}
        self.on_change()

    async def step(self) -> float | None:
        """Write what has come of the last ones while the next are claimed."""
        # Of what is given from now on it is not known whether this step writes it.
        back, self._to_hasten = self._to_hasten, set()
        settling = asyncio.get_running_loop().create_task(self._settle(), name="evertick settle")
        try:
            rest = await self._claim_more()
        except (Exception, asyncio.CancelledError):
            await asyncio.gather(settling, return_exceptions=True)  # nothing goes on after the step
            self._to_hasten |= back
            raise
        try:
            await settling
            if await self._hasten(back):
                return 0.0
        except (Exception, asyncio.CancelledError):
            self._to_hasten |= back
            raise
        # What is tried again may be due before what the claim knew of.
        return None if rest is None else min(rest, max(self._look_at - self._node.clock.elapsed(), 0.0))

    async def _claim_more(self) -> float | None:
        if self._node.is_draining or not self._node.senders:
            return None
        room = self._room()
        if not room:
            return None  # whatever ends next makes room, and wakes us
        rest = self._look_at - self._node.clock.elapsed()
        return rest if rest > 0 and self._has_more.isdisjoint(room) else await self._claim(room)

    def cut_off(self) -> None:
        """Give back the messages under way: another node delivers them, perhaps once more."""
        for batch in list(self._batches):
            for delivery in batch.deliveries:
                if delivery.outcome is None:
                    self._give(delivery, _outcome(delivery.message, "release", is_tried=False))
            self._stop(batch)

    # --- claiming

    def _room(self) -> dict[str, int]:
        rooms = {
            name: (sender.concurrency - self._busy[name]) * _most_of(sender)
            for name, sender in self._node.senders.items()
        }
        return {name: room for name, room in rooms.items() if room > 0}

    async def _claim(self, room: dict[str, int]) -> float | None:
        node, incarnation = self._node, self._node.id
        # A wake-up while we ask must not be lost.
        since = node.clock.elapsed()
        self._look_at = since + self._poll
        held = [delivery.message.id for delivery in self._held.values() if delivery.node == incarnation]
        try:
            claim = await node.store.claim_messages(node.app, incarnation, room, held)
        except Exception:
            self._look_at = 0.0  # not looked at
            raise
        if log.isEnabledFor(TRACE):
            found = tally(message.channel for message in claim.messages)
            trace(log, node.clock.elapsed() - since, "claimed %d messages (%s)", len(claim.messages), found)
        self._begin_all([Delivery(message, node.senders[message.channel], incarnation) for message in claim.messages])
        if node.is_draining:
            self.cut_off()  # a stop has begun meanwhile
        return self._rest_after(claim, room)

    def _rest_after(self, claim: MessageClaim, room: dict[str, int]) -> float | None:
        taken = Counter(message.channel for message in claim.messages)
        full = {channel for channel, most in room.items() if taken[channel] == most}
        self._has_more = self._has_more.difference(room) | full
        if full:
            self._look_at = 0.0  # the next due one was perhaps one of theirs; the next look is at the others
            return 0.0
        if claim.next_due_at is not None:
            seconds = max((claim.next_due_at - claim.now) / 1e6, _SOON_SECONDS)
            self._look_at = min(self._look_at, self._node.clock.elapsed() + seconds)
        return max(self._look_at - self._node.clock.elapsed(), 0.0)

    async def _hasten(self, channels: set[str]) -> bool:
        """Whether some of their messages are due now."""
        is_any = False
        for channel in sorted(channels):
            hastened = some = await self._node.store.hasten_messages(self._node.app, channel, BATCH)
            while some == BATCH:
                some = await self._node.store.hasten_messages(self._node.app, channel, BATCH)
                hastened += some
            if hastened:
                is_any, self._look_at = True, 0.0
                what = "1 message goes" if hastened == 1 else f"{hastened} messages go"
                log.info("%s is back: %s at once", channel, what)
        return is_any

    # --- delivering

    def _begin_all(self, deliveries: Sequence[Delivery]) -> None:
        by_channel: dict[str, list[Delivery]] = {}
        for delivery in deliveries:
            message = delivery.message
            self._held[message.id, message.fence] = delivery
            if message.attempts >= delivery.sender.retry.attempts:
                # The nodes that tried have died of it, or beside it: enough is enough.
                error = message.error or "every try was lost"
                dead = _outcome(message, "dead", error=error, remember=self._keep_dead, is_tried=False)
                self._give(delivery, dead)
            else:
                by_channel.setdefault(message.channel, []).append(delivery)
        for those in by_channel.values():
            most = _most_of(those[0].sender)
            for first in range(0, len(those), most):
                self._begin(DeliveryBatch(those[first : first + most]))

    def _begin(self, batch: DeliveryBatch) -> None:
        channel, loop = batch.sender.channel, asyncio.get_running_loop()
        self._busy[channel] += 1
        self._batches.add(batch)
        batch.task = loop.create_task(self._deliver(batch), name=f"evertick {channel}")
        batch.task.add_done_callback(functools.partial(self._came_back, batch))
        batch.timer = loop.call_later(batch.sender.timeout / 1e6, self._time_is_over, batch)
        batch.begun_at = self._node.clock.elapsed()

    async def _deliver(self, batch: DeliveryBatch) -> Came:
        """Answers errors instead of raising them: a `sys.exit()` that leaves its task ends the whole event loop."""
        sender, deliveries = batch.sender, batch.deliveries
        try:
            if sender.deliver_many is not None:
                came = await sender.deliver_many([each.message for each in deliveries])
                return _one_each(came, len(deliveries))
            assert sender.deliver is not None, "a sender delivers one, or many"
            await sender.deliver(_shown(deliveries[0].message, self._node.app, deliveries[0].node))
            return (None,)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            return [error] * len(deliveries)

    def _came_back(self, batch: DeliveryBatch, task: asyncio.Task[Came]) -> None:
        self._busy[batch.sender.channel] -= 1
        self._batches.discard(batch)
        if task.cancelled():
            self._judge(batch, [asyncio.CancelledError("the delivery was cancelled")] * len(batch.deliveries))
        elif (raised := task.exception()) is not None:
            self._judge(batch, [raised] * len(batch.deliveries))
        else:
            self._judge(batch, task.result())
        self.on_change()  # its place is free

    def _time_is_over(self, batch: DeliveryBatch) -> None:
        seconds = batch.sender.timeout / 1e6
        error = TimeoutError(f"the delivery took longer than its timeout of {seconds:g} s")
        self._judge(batch, [error] * len(batch.deliveries))

    def _judge(self, batch: DeliveryBatch, came: Came) -> None:
        """Of those of which it is not known yet what came of them."""
        if log.isEnabledFor(TRACE) and not batch.is_settled:
            words, arrived = "%s: %d messages of %d arrived,", sum(error is None for error in came)
            trace(log, self._node.clock.elapsed() - batch.begun_at, words, batch.sender.channel, arrived, len(came))
        # Drawn once: what failed together is tried again together.
        uniform = self._node.clock.uniform()
        for delivery, error in zip(batch.deliveries, came, strict=True):
            if delivery.outcome is None:
                outcome = judge_delivery(delivery.message, delivery.sender, error, uniform, self._keep_dead)
                self._give(delivery, outcome)
                if outcome.kind == "retry" and batch.begun_at <= self._back_at.get(_line_of(batch.sender), -1.0):
                    self._to_hasten.add(batch.sender.channel)  # it set out while the other side was still away
        self._stop(batch)

    def _give(self, delivery: Delivery, outcome: MessageOutcome) -> None:
        """Keep the outcome, to be written."""
        delivery.outcome = outcome
        self.on_change()

    def _stop(self, batch: DeliveryBatch) -> None:
        """If it is still under way it is told to stop, where that is possible."""
        if batch.timer is not None:
            batch.timer.cancel()
        if batch.task is not None and not batch.task.done() and batch.sender.can_be_cancelled:
            batch.task.cancel()

    # --- settling

    async def _settle(self) -> None:
        """Write what has gathered. What cannot be written stays where it is, and is written again."""
        while batch := self._next_batch():
            await self._report(batch)
            outcomes = [outcome for _, outcome in batch]
            since = self._node.clock.elapsed()
            answers = await self._node.store.settle_messages(self._node.app, batch[0][0].node, outcomes)
            if log.isEnabledFor(TRACE):
                kinds = tally(outcome.kind for outcome in outcomes)
                trace(
                    log, self._node.clock.elapsed() - since, "wrote what came of %d messages (%s)", len(outcomes), kinds
                )
            for (delivery, outcome), answer in zip(batch, answers, strict=True):
                self._let_go(delivery, outcome, answer)
            await _log_failures(
                self._node, [told for told, answer in zip(batch, answers, strict=True) if answer != "lost"]
            )

    async def _report(self, batch: Sequence[tuple[Delivery, MessageOutcome]]) -> None:
        """Tell the runs that these messages dispatch what became of that."""
        reports = [
            report
            for delivery, outcome in batch
            if delivery.message.dispatches is not None and (report := _report_of(delivery.message, outcome)) is not None
        ]
        if reports:
            await self.apply(reports)

    def _next_batch(self) -> list[tuple[Delivery, MessageOutcome]]:
        """Outcomes of one incarnation."""
        given = [(delivery, delivery.outcome) for delivery in self._held.values() if delivery.outcome is not None]
        return [(delivery, outcome) for delivery, outcome in given if delivery.node == given[0][0].node][:BATCH]

    def _let_go(self, delivery: Delivery, outcome: MessageOutcome, answer: FinishAnswer) -> None:
        del self._held[outcome.id, outcome.fence]
        if outcome.kind == "retry":
            due = self._node.clock.elapsed() + outcome.delay / 1e6
            self._look_at = min(self._look_at, due)
        if answer == "lost":
            what = "%s: what came of message %s was not taken: its claim is lost"
            say = functools.partial(log.warning, what, delivery.message.channel, delivery.message.key)
            about = delivery.message.channel
            self._node.summary.tell("messages", "lost", log, logging.WARNING, say, _lost_words, about=about)


def judge_delivery(
    message: ClaimedMessage, sender: Sender, error: BaseException | None, uniform: float, keep_dead: int
) -> MessageOutcome:
    """The outcome of a message by the end of its delivery."""
    if error is None:
        return _outcome(message, "sent", remember=sender.remember)
    attempt, text = message.attempts + 1, error_text(error)
    if not sender.retry.allows_another(attempt) or isinstance(error, sender.give_up_on):
        return _outcome(message, "dead", error=text, remember=keep_dead)
    delay = sender.retry.delay_with_jitter(attempt, uniform)
    if isinstance(error, Retry) and error.after is not None:
        try:
            delay = duration_us(error.after, what="Retry(after=…)")
        except InvalidDuration as invalid:  # the message must end up somewhere: the policy's delay holds
            text = f"{text}\n{invalid}"
    return _outcome(message, "retry", error=text, delay=delay)


def _outcome(
    message: ClaimedMessage,
    kind: MessageFate,
    *,
    error: str | None = None,
    delay: int = 0,
    remember: int = 0,
    is_tried: bool = True,
) -> MessageOutcome:
    return MessageOutcome(
        id=message.id,
        fence=message.fence,
        kind=kind,
        attempts=message.attempts + is_tried,
        delay=delay,
        remember=remember,
        error=error,
    )


def _shown(message: ClaimedMessage, app: str, node: str) -> Message:
    return Message(
        id=message.id,
        app=app,
        channel=message.channel,
        key=message.key,
        body=msgspec.json.decode(message.body),
        headers=message.headers,
        state=MessageState.SENDING,
        attempts=message.attempts,
        due_at=from_us(message.due_at),
        created_at=from_us(message.created_at),
        node=node,
        error=message.error,
        caused_by=message.caused_by,
    )


def _most_of(sender: Sender) -> int:
    """Messages of one call."""
    return 1 if sender.deliver_many is None else sender.batch


def _line_of(sender: Sender) -> str:
    return sender.line or sender.channel


def _one_each(came: Came, count: int) -> Came:
    if len(came) != count:
        return [RuntimeError(f"deliver_many answered {len(came)} times for {count} messages; answer for each")] * count
    return came


def _report_of(message: ClaimedMessage, outcome: MessageOutcome) -> Report | None:
    """The report for the run that a message dispatches; None: nothing yet."""
    kind: ReportKind
    match outcome.kind:
        case "sent":
            kind = "pushed"
        case "dead":
            kind = "undelivered"
        case "retry" | "release":
            return None
        case _:
            assert_never(outcome.kind)
    if message.caused_by is None or message.dispatches is None:
        return None
    return Report(id=message.caused_by, fence=message.dispatches, kind=kind, error=outcome.error)


async def _log_failures(node: LocalNode, settled: Sequence[tuple[Delivery, MessageOutcome]]) -> None:
    """A delivery that fails must not do so in silence; its error is in the outbox, and here. What failed together is
    told together: a queue that is away is one trouble, not a thousand."""
    alike: dict[tuple[str, str, str, int], list[tuple[Delivery, MessageOutcome]]] = {}
    for delivery, outcome in settled:
        if outcome.kind in ("retry", "dead"):
            place = (delivery.message.channel, outcome.kind, what_was_raised(outcome.error), outcome.attempts)
            alike.setdefault(place, []).append((delivery, outcome))
    for (channel, kind, what, tries), those in alike.items():
        delivery, outcome = those[0]
        key = f"message {delivery.message.key}" if len(those) == 1 else f"{len(those)} messages"
        jobs, extra = await _told_of_runs(node, [delivery.message for delivery, _ in those])
        key += jobs
        if kind == "retry":
            later = duration_rounded(outcome.delay)
            log.warning("%s: %s failed at try %d (%s); again in %s", channel, key, tries, what, later, extra=extra)
        else:
            after, was = "1 try" if tries == 1 else f"{tries} tries", "was" if len(those) == 1 else "were"
            log.error("%s: %s %s given up after %s: %s", channel, key, was, after, outcome.error, extra=extra)


async def _told_of_runs(node: LocalNode, messages: Sequence[ClaimedMessage]) -> tuple[str, dict[str, str | None]]:
    """Of messages that dispatch runs: whose these are, in words; and of a single one what its line is about."""
    ids = [each.caused_by for each in messages if each.dispatches is not None and each.caused_by is not None]
    runs = (await runs_told_of(node, ids[:_LOOKED_UP_MOST])).values()
    names = sorted({run.schedule_key or run.task for run in runs})
    if not names:
        return "", {}
    more = " and more" if len(names) > _NAMED_MOST or len(ids) > _LOOKED_UP_MOST else ""
    return f" (of {', '.join(names[:_NAMED_MOST])}{more})", about(*runs) if len(messages) == 1 else {}


def _lost_words(count: int, names: list[str], seconds: float | None) -> str:
    return f"what came of {count} more messages{such_as(names, seconds)} was not taken: their claims are lost"
