"""Delivers messages of the outbox: claim, deliver, record the outcome.

A message is delivered at least once. If the node dies, or the answer of the store is lost, between the delivery and the
record, the message is delivered again under the same key. Nothing is delivered before its claim was answered.

A call that exceeds its timeout is recorded without it, but uses its place in the concurrency of the channel until it
returns: otherwise a receiver that hangs would get another call after each timeout.

For a message that dispatches a run, the run is updated before the outcome is recorded. If the node dies in between, the
message is delivered again; in the other order the run would wait for ever.
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
from evertick.engine.node import LocalNode, runs_for_log
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
from evertick.text.error_line import error_summary
from evertick.text.error_text import error_text
from evertick.text.log_level import TRACE, such_as, tally, trace
from evertick.when.duration import duration_rounded, duration_us
from evertick.when.moment import from_us

__all__ = ["OutboxDelivery", "judge_delivery"]

log = logging.getLogger("evertick.relay")

# One log line for messages that failed together: how many of their runs are looked up, and how many jobs named.
_LOOKED_UP_MOST = 100
_NAMED_MOST = 3

# Outcomes per write.
BATCH = 1_000
# Another node may be claiming the messages that are due: the least wait before the next claim.
_SOON_SECONDS = 0.01


# Per message of a call: None, or the error.
Results = Sequence[BaseException | None]


class Delivery:
    """A message that this node has claimed, until its outcome is recorded."""

    __slots__ = ("message", "node", "outcome", "sender")

    def __init__(self, message: ClaimedMessage, sender: Sender, node: str) -> None:
        self.message = message
        self.sender = sender
        # The incarnation that claimed it; only that one may record its outcome.
        self.node = node
        self.outcome: MessageOutcome | None = None


class DeliveryBatch:
    """One call of a sender, with one message, or several if the sender takes batches."""

    __slots__ = ("begun_at", "deliveries", "sender", "task", "timer")

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        self.deliveries = deliveries
        self.sender = deliveries[0].sender
        self.task: asyncio.Task[Results] | None = None
        self.timer: asyncio.TimerHandle | None = None
        # By `clock.elapsed`.
        self.begun_at = 0.0

    @property
    def is_settled(self) -> bool:
        """Whether each message has an outcome; after a timeout the call may still be running."""
        return all(delivery.outcome is not None for delivery in self.deliveries)


class OutboxDelivery:
    """The deliveries of this node."""

    def __init__(self, node: LocalNode, *, poll: float, keep_dead: int) -> None:
        self._node = node
        self._poll = poll
        # How long a dead message (no more tries) is kept.
        self._keep_dead = keep_dead
        self._held: dict[tuple[str, int], Delivery] = {}
        self._batches: set[DeliveryBatch] = set()
        # Running calls by channel, including those that exceeded their timeout.
        self._busy: Counter[str] = Counter()
        # Channels whose last claim filled the room, so that more may be due.
        self._has_more: set[str] = set()
        # When a line last recovered, by `clock.elapsed`, and channels whose messages need not wait for their retry.
        self._back_at: dict[str, float] = {}
        self._to_hasten: set[str] = set()
        # When the next claim is due, by `clock.elapsed`; a wake-up makes it earlier.
        self._claim_at = 0.0
        # A delivery ended, or there may be more to deliver.
        self.on_change: Callable[[], None] = lambda: None
        # Writes reports on dispatched runs.
        self.apply: Callable[[Sequence[Report]], Awaitable[object]] = functools.partial(
            node.store.apply_reports, node.app
        )

    @property
    def unsettled(self) -> int:
        return sum(delivery.outcome is not None for delivery in self._held.values())

    @property
    def under_way(self) -> set[asyncio.Task[Results]]:
        return {each.task for each in self._batches if not each.is_settled and each.task is not None}

    @property
    def busy_channels(self) -> list[str]:
        """Channels with running calls, including those that exceeded their timeout."""
        return sorted(channel for channel, calls in self._busy.items() if calls)

    def look_again(self) -> None:
        """Messages may be due: new ones, or those of a dead node."""
        if self._node.senders:
            self._claim_at = 0.0
            self.on_change()

    def is_back(self, line: str) -> None:
        """The line has recovered: messages of its channels need not wait for their retry."""
        self._back_at[line] = self._node.clock.elapsed()
        self._to_hasten |= {name for name, sender in self._node.senders.items() if _line_of(sender) == line}
        self.on_change()

    async def step(self) -> float | None:
        """Record outcomes while the next messages are claimed."""
        # Taken first: an outcome that arrives from now on may not be recorded in this step.
        recovered, self._to_hasten = self._to_hasten, set()
        settling = asyncio.get_running_loop().create_task(self._settle(), name="evertick settle")
        try:
            delay = await self._claim_more()
        except (Exception, asyncio.CancelledError):
            await asyncio.gather(settling, return_exceptions=True)  # must not outlive the step
            self._to_hasten |= recovered
            raise
        try:
            await settling
            if await self._hasten(recovered):
                return 0.0
        except (Exception, asyncio.CancelledError):
            self._to_hasten |= recovered
            raise
        # A retry may be due before the messages that the claim reported.
        return None if delay is None else min(delay, max(self._claim_at - self._node.clock.elapsed(), 0.0))

    async def _claim_more(self) -> float | None:
        if self._node.is_draining or not self._node.senders:
            return None
        room = self._room()
        if not room:
            return None  # the next delivery that ends makes room and wakes this loop
        delay = self._claim_at - self._node.clock.elapsed()
        return delay if delay > 0 and self._has_more.isdisjoint(room) else await self._claim(room)

    def cut_off(self) -> None:
        """Release the messages in delivery; another node delivers them, perhaps again."""
        for batch in list(self._batches):
            for delivery in batch.deliveries:
                if delivery.outcome is None:
                    self._set_outcome(delivery, _outcome(delivery.message, "release", is_tried=False))
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
        # Set before the claim, so that a wake-up during the claim is not lost.
        since = node.clock.elapsed()
        self._claim_at = since + self._poll
        held = [delivery.message.id for delivery in self._held.values() if delivery.node == incarnation]
        try:
            claim = await node.store.claim_messages(node.app, incarnation, room, held)
        except Exception:
            self._claim_at = 0.0
            raise
        if log.isEnabledFor(TRACE):
            found = tally(message.channel for message in claim.messages)
            trace(log, node.clock.elapsed() - since, "claimed %d messages (%s)", len(claim.messages), found)
        self._begin_all([Delivery(message, node.senders[message.channel], incarnation) for message in claim.messages])
        if node.is_draining:
            self.cut_off()  # a stop began during the claim
        return self._rest_after(claim, room)

    def _rest_after(self, claim: MessageClaim, room: dict[str, int]) -> float | None:
        taken = Counter(message.channel for message in claim.messages)
        full = {channel for channel, most in room.items() if taken[channel] == most}
        self._has_more = self._has_more.difference(room) | full
        if full:
            self._claim_at = 0.0  # the next due message may be of a full channel; claim for the others at once
            return 0.0
        if claim.next_due_at is not None:
            seconds = max((claim.next_due_at - claim.now) / 1e6, _SOON_SECONDS)
            self._claim_at = min(self._claim_at, self._node.clock.elapsed() + seconds)
        return max(self._claim_at - self._node.clock.elapsed(), 0.0)

    async def _hasten(self, channels: set[str]) -> bool:
        """Make waiting messages of these channels due now. Returns whether there were any."""
        has_hastened = False
        for channel in sorted(channels):
            total = count = await self._node.store.hasten_messages(self._node.app, channel, BATCH)
            while count == BATCH:
                count = await self._node.store.hasten_messages(self._node.app, channel, BATCH)
                total += count
            if total:
                has_hastened, self._claim_at = True, 0.0
                messages = "1 message" if total == 1 else f"{total} messages"
                log.info("channel %s: available again; retrying %s now", channel, messages)
        return has_hastened

    # --- delivering

    def _begin_all(self, deliveries: Sequence[Delivery]) -> None:
        by_channel: dict[str, list[Delivery]] = {}
        for delivery in deliveries:
            message = delivery.message
            self._held[message.id, message.fence] = delivery
            if message.attempts >= delivery.sender.retry.attempts:
                # Nodes that tried died during the delivery, perhaps because of it.
                error = message.error or "the node died at every try"
                dead = _outcome(message, "dead", error=error, remember=self._keep_dead, is_tried=False)
                self._set_outcome(delivery, dead)
            else:
                by_channel.setdefault(message.channel, []).append(delivery)
        for group in by_channel.values():
            most = _most_of(group[0].sender)
            for first in range(0, len(group), most):
                self._begin(DeliveryBatch(group[first : first + most]))

    def _begin(self, batch: DeliveryBatch) -> None:
        channel, loop = batch.sender.channel, asyncio.get_running_loop()
        self._busy[channel] += 1
        self._batches.add(batch)
        batch.task = loop.create_task(self._deliver(batch), name=f"evertick {channel}")
        batch.task.add_done_callback(functools.partial(self._call_ended, batch))
        batch.timer = loop.call_later(batch.sender.timeout / 1e6, self._timed_out, batch)
        batch.begun_at = self._node.clock.elapsed()

    async def _deliver(self, batch: DeliveryBatch) -> Results:
        """Returns errors instead of raising them: a SystemExit raised in a task ends the event loop."""
        sender, deliveries = batch.sender, batch.deliveries
        try:
            if sender.deliver_many is not None:
                results = await sender.deliver_many([each.message for each in deliveries])
                return _checked(results, len(deliveries))
            assert sender.deliver is not None, "a sender delivers one, or many"
            await sender.deliver(_shown(deliveries[0].message, self._node.app, deliveries[0].node))
            return (None,)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            return [error] * len(deliveries)

    def _call_ended(self, batch: DeliveryBatch, task: asyncio.Task[Results]) -> None:
        self._busy[batch.sender.channel] -= 1
        self._batches.discard(batch)
        if task.cancelled():
            self._judge(batch, [asyncio.CancelledError("the delivery was cancelled")] * len(batch.deliveries))
        elif (raised := task.exception()) is not None:
            self._judge(batch, [raised] * len(batch.deliveries))
        else:
            self._judge(batch, task.result())
        self.on_change()  # there is room for another call

    def _timed_out(self, batch: DeliveryBatch) -> None:
        error = TimeoutError(f"the delivery timed out after {batch.sender.timeout / 1e6:g} s")
        self._judge(batch, [error] * len(batch.deliveries))

    def _judge(self, batch: DeliveryBatch, results: Results) -> None:
        """Set the outcomes of messages that have none yet."""
        if log.isEnabledFor(TRACE) and not batch.is_settled:
            words, arrived = "channel %s: delivered %d of %d messages", sum(error is None for error in results)
            trace(log, self._node.clock.elapsed() - batch.begun_at, words, batch.sender.channel, arrived, len(results))
        # One draw per call: messages that failed together are retried together.
        uniform = self._node.clock.uniform()
        for delivery, error in zip(batch.deliveries, results, strict=True):
            if delivery.outcome is None:
                outcome = judge_delivery(delivery.message, delivery.sender, error, uniform, self._keep_dead)
                self._set_outcome(delivery, outcome)
                if outcome.kind == "retry" and batch.begun_at <= self._back_at.get(_line_of(batch.sender), -1.0):
                    self._to_hasten.add(batch.sender.channel)  # the call began before the line recovered
        self._stop(batch)

    def _set_outcome(self, delivery: Delivery, outcome: MessageOutcome) -> None:
        delivery.outcome = outcome
        self.on_change()

    def _stop(self, batch: DeliveryBatch) -> None:
        """Cancel the call if it is still running, where that is possible."""
        if batch.timer is not None:
            batch.timer.cancel()
        if batch.task is not None and not batch.task.done() and batch.sender.can_be_cancelled:
            batch.task.cancel()

    # --- settling

    async def _settle(self) -> None:
        """Record outcomes. Those that cannot be written stay, and the next step repeats them."""
        while batch := self._next_batch():
            await self._report(batch)
            outcomes = [outcome for _, outcome in batch]
            since = self._node.clock.elapsed()
            answers = await self._node.store.settle_messages(self._node.app, batch[0][0].node, outcomes)
            if log.isEnabledFor(TRACE):
                kinds = tally(outcome.kind for outcome in outcomes)
                trace(log, self._node.clock.elapsed() - since, "wrote %d outcomes (%s)", len(outcomes), kinds)
            for (delivery, outcome), answer in zip(batch, answers, strict=True):
                self._remove(delivery, outcome, answer)
            recorded = [each for each, answer in zip(batch, answers, strict=True) if answer != "lost"]
            await _log_failures(self._node, recorded)

    async def _report(self, batch: Sequence[tuple[Delivery, MessageOutcome]]) -> None:
        """Update the runs that these messages dispatch."""
        reports = [
            report
            for delivery, outcome in batch
            if delivery.message.dispatches is not None and (report := _report_of(delivery.message, outcome)) is not None
        ]
        if reports:
            await self.apply(reports)

    def _next_batch(self) -> list[tuple[Delivery, MessageOutcome]]:
        """Outcomes of one incarnation."""
        pairs = [(delivery, delivery.outcome) for delivery in self._held.values() if delivery.outcome is not None]
        return [(delivery, outcome) for delivery, outcome in pairs if delivery.node == pairs[0][0].node][:BATCH]

    def _remove(self, delivery: Delivery, outcome: MessageOutcome, answer: FinishAnswer) -> None:
        del self._held[outcome.id, outcome.fence]
        if outcome.kind == "retry":
            due = self._node.clock.elapsed() + outcome.delay / 1e6
            self._claim_at = min(self._claim_at, due)
        if answer == "lost":
            channel, what = delivery.message.channel, "message %s (channel %s): outcome %r rejected; its claim was lost"
            say = functools.partial(log.warning, what, delivery.message.key, channel, outcome.kind)
            self._node.summary.tell("messages", "lost", log, logging.WARNING, say, _lost_words, about=channel)


def judge_delivery(
    message: ClaimedMessage, sender: Sender, error: BaseException | None, uniform: float, keep_dead: int
) -> MessageOutcome:
    """The outcome of a message after its delivery."""
    if error is None:
        return _outcome(message, "sent", remember=sender.remember)
    attempt, text = message.attempts + 1, error_text(error)
    if not sender.retry.allows_another(attempt) or isinstance(error, sender.give_up_on):
        return _outcome(message, "dead", error=text, remember=keep_dead)
    delay = sender.retry.delay_with_jitter(attempt, uniform)
    if isinstance(error, Retry) and error.after is not None:
        try:
            delay = duration_us(error.after, what="Retry(after=…)")
        except InvalidDuration as invalid:  # the message still needs an outcome: the delay of the policy applies
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
    """The most messages per call."""
    return 1 if sender.deliver_many is None else sender.batch


def _line_of(sender: Sender) -> str:
    return sender.line or sender.channel


def _checked(results: Results, count: int) -> Results:
    if len(results) != count:
        what = f"deliver_many returned {len(results)} results for {count} messages; return one for each"
        return [RuntimeError(what)] * count
    return results


def _report_of(message: ClaimedMessage, outcome: MessageOutcome) -> Report | None:
    """The report for the run that a message dispatches; None if nothing is decided yet."""
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
    """One line for messages that failed together: an unavailable queue is one problem, not a thousand."""
    groups: dict[tuple[str, str, str, int], list[tuple[Delivery, MessageOutcome]]] = {}
    for delivery, outcome in settled:
        if outcome.kind in ("retry", "dead"):
            group = (delivery.message.channel, outcome.kind, error_summary(outcome.error), outcome.attempts)
            groups.setdefault(group, []).append((delivery, outcome))
    for (channel, kind, error, tries), failed in groups.items():
        delivery, outcome = failed[0]
        messages = f"message {delivery.message.key}" if len(failed) == 1 else f"{len(failed)} messages"
        jobs, extra = await _runs_of(node, [delivery.message for delivery, _ in failed])
        messages += jobs
        if kind == "retry":
            delay, what = duration_rounded(outcome.delay), "channel %s: try %d failed for %s (%s); retrying in %s"
            say = functools.partial(log.warning, what, channel, tries, messages, error, delay, extra=extra)
            level = logging.WARNING
        else:
            after, what = "1 try" if tries == 1 else f"{tries} tries", "channel %s: %s failed for good after %s: %s"
            say = functools.partial(log.error, what, channel, messages, after, outcome.error, extra=extra)
            level = logging.ERROR
        words = functools.partial(_failures_words, channel, kind)
        node.summary.tell(f"{kind} {channel}", "", log, level, say, words, count=len(failed))


def _failures_words(channel: str, kind: str, count: int, names: list[str], seconds: float | None) -> str:
    what = "messages failed for good" if kind == "dead" else "tries of messages failed; retrying"
    return f"channel {channel}: {count} more {what}{such_as(names, seconds)}"


async def _runs_of(node: LocalNode, messages: Sequence[ClaimedMessage]) -> tuple[str, dict[str, str | None]]:
    """The jobs of dispatched runs, in words, and the log fields if there is a single run."""
    ids = [each.caused_by for each in messages if each.dispatches is not None and each.caused_by is not None]
    runs = (await runs_for_log(node, ids[:_LOOKED_UP_MOST])).values()
    names = sorted({run.schedule_key or run.task for run in runs})
    if not names:
        return "", {}
    more = " and more" if len(names) > _NAMED_MOST or len(ids) > _LOOKED_UP_MOST else ""
    return f" (of {', '.join(names[:_NAMED_MOST])}{more})", about(*runs) if len(messages) == 1 else {}


def _lost_words(count: int, names: list[str], seconds: float | None) -> str:
    return f"{count} more outcomes of messages{such_as(names, seconds)} rejected; their claims were lost"
