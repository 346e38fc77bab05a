"""Handing messages of the outbox to the outside: claim, deliver, settle.

A message is delivered at least once and is settled by the claim that delivered it. Between the two a node may die, or
the answer of the store may be lost; then it is delivered again under the same key. Nothing is delivered before its
claim was answered.

What did not come back in time is settled without waiting for it, and goes on taking its place among the deliveries of
its channel until it does come back: a receiver that hangs must not be called once more for every timeout.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import Callable

import msgspec

from evertick.driver.error_text import error_text
from evertick.driver.sender import Sender
from evertick.engine.node import LocalNode
from evertick.errors import InvalidDuration, Retry
from evertick.model import ClaimedMessage, Message, MessageFate, MessageOutcome, MessageState
from evertick.raised import what_was_raised
from evertick.store.base import FinishAnswer, MessageClaim
from evertick.when.duration import duration_rounded, duration_us
from evertick.when.moment import from_us

__all__ = ["Relay", "judge_delivery"]

log = logging.getLogger("evertick.relay")

# Outcomes that one write takes at most.
BATCH = 1_000
# Others may be claiming what we have seen to be due: look again soon, but do not spin.
_SOON_SECONDS = 0.01


class Delivery:
    """A claimed message in the hands of this node, until its outcome is answered."""

    __slots__ = ("message", "node", "outcome", "sender", "task", "timer")

    def __init__(self, message: ClaimedMessage, sender: Sender, node: str) -> None:
        self.message = message
        self.sender = sender
        # The incarnation that claimed it: only that one may settle it.
        self.node = node
        self.outcome: MessageOutcome | None = None
        self.task: asyncio.Task[BaseException | None] | None = None
        self.timer: asyncio.TimerHandle | None = None


class Relay:
    """The deliveries of this node."""

    def __init__(self, node: LocalNode, *, poll: float, keep_dead: int) -> None:
        self._node = node
        self._poll = poll
        # How long a message that was given up is kept.
        self._keep_dead = keep_dead
        self._held: dict[tuple[str, int], Delivery] = {}
        # Calls that have not come back, by channel; also of those whose time was over.
        self._busy: Counter[str] = Counter()
        # Channels whose last claim has left no room: there may be more of theirs.
        self._has_more: set[str] = set()
        # By `clock.elapsed`: before that the others have nothing to claim, unless somebody says so.
        self._look_at = 0.0
        # A delivery has ended, or there may be more to deliver.
        self.on_change: Callable[[], None] = lambda: None

    @property
    def unsettled(self) -> int:
        return sum(delivery.outcome is not None for delivery in self._held.values())

    @property
    def under_way(self) -> set[asyncio.Task[BaseException | None]]:
        return {each.task for each in self._held.values() if each.outcome is None and each.task is not None}

    @property
    def channels_under_way(self) -> list[str]:
        """Also of calls whose time was over, and that have not come back."""
        return sorted(channel for channel, calls in self._busy.items() if calls)

    def look_again(self) -> None:
        """Messages may have been put into the outbox, or may have lost their owner."""
        if self._node.senders:
            self._look_at = 0.0
            self.on_change()

    async def step(self) -> float | None:
        await self._settle()
        if self._node.is_draining or not self._node.senders:
            return None
        room = self._room()
        if not room:
            return None  # whatever ends next makes room, and wakes us
        rest = self._look_at - self._node.clock.elapsed()
        return rest if rest > 0 and self._has_more.isdisjoint(room) else await self._claim(room)

    def cut_off(self) -> None:
        """Give back what is under way: somebody else delivers it, perhaps once more."""
        for delivery in self._held.values():
            if delivery.outcome is None:
                self._give(delivery, _outcome(delivery.message, "release", is_tried=False))

    # --- claiming

    def _room(self) -> dict[str, int]:
        rooms = {name: sender.concurrency - self._busy[name] for name, sender in self._node.senders.items()}
        return {name: room for name, room in rooms.items() if room > 0}

    async def _claim(self, room: dict[str, int]) -> float | None:
        node, incarnation = self._node, self._node.id
        # Whoever says that there is more while we ask is not to be overheard.
        self._look_at = node.clock.elapsed() + self._poll
        held = [delivery.message.id for delivery in self._held.values() if delivery.node == incarnation]
        try:
            claim = await node.store.claim_messages(node.app, incarnation, room, held)
        except Exception:
            self._look_at = 0.0  # nobody has looked
            raise
        for message in claim.messages:
            self._begin(Delivery(message, node.senders[message.channel], incarnation))
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

    # --- delivering

    def _begin(self, delivery: Delivery) -> None:
        message, sender = delivery.message, delivery.sender
        self._held[message.id, message.fence] = delivery
        if message.attempts >= sender.retry.attempts:
            # The nodes that tried have died of it, or beside it: enough is enough.
            error = message.error or "every try was lost"
            self._give(delivery, _outcome(message, "dead", error=error, remember=self._keep_dead, is_tried=False))
            return
        self._busy[message.channel] += 1
        loop = asyncio.get_running_loop()
        delivery.task = loop.create_task(self._deliver(delivery), name=f"evertick {message.channel}")
        delivery.task.add_done_callback(functools.partial(self._came_back, delivery))
        delivery.timer = loop.call_later(sender.timeout / 1e6, self._time_is_over, delivery)

    async def _deliver(self, delivery: Delivery) -> BaseException | None:
        """What it raised. Handed over, not raised: a `sys.exit()` that leaves its task ends the whole event loop."""
        try:
            await delivery.sender.deliver(_shown(delivery.message, self._node.app, delivery.node))
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            return error
        return None

    def _came_back(self, delivery: Delivery, task: asyncio.Task[BaseException | None]) -> None:
        self._busy[delivery.message.channel] -= 1
        if task.cancelled():
            error: BaseException | None = asyncio.CancelledError("the delivery was cancelled")
        else:
            error = task.exception() or task.result()
        if delivery.outcome is None:
            self._judge(delivery, error)
        else:
            self.on_change()  # its place is free

    def _time_is_over(self, delivery: Delivery) -> None:
        seconds = delivery.sender.timeout / 1e6
        self._judge(delivery, TimeoutError(f"the delivery took longer than its timeout of {seconds:g} s"))

    def _judge(self, delivery: Delivery, error: BaseException | None) -> None:
        uniform = self._node.clock.uniform()
        self._give(delivery, judge_delivery(delivery.message, delivery.sender, error, uniform, self._keep_dead))

    def _give(self, delivery: Delivery, outcome: MessageOutcome) -> None:
        """What came of it, to be written. If it is still under way it is told to stop, where that is possible."""
        delivery.outcome = outcome
        if delivery.timer is not None:
            delivery.timer.cancel()
        if delivery.task is not None and not delivery.task.done() and delivery.sender.can_be_cancelled:
            delivery.task.cancel()
        self.on_change()

    # --- settling

    async def _settle(self) -> None:
        """Write what has gathered. What cannot be written stays where it is, and is written again."""
        while batch := self._next_batch():
            outcomes = [outcome for _, outcome in batch]
            answers = await self._node.store.settle_messages(self._node.app, batch[0][0].node, outcomes)
            for (delivery, outcome), answer in zip(batch, answers, strict=True):
                self._let_go(delivery, outcome, answer)

    def _next_batch(self) -> list[tuple[Delivery, MessageOutcome]]:
        """Outcomes of one incarnation."""
        given = [(delivery, delivery.outcome) for delivery in self._held.values() if delivery.outcome is not None]
        return [(delivery, outcome) for delivery, outcome in given if delivery.node == given[0][0].node][:BATCH]

    def _let_go(self, delivery: Delivery, outcome: MessageOutcome, answer: FinishAnswer) -> None:
        del self._held[outcome.id, outcome.fence]
        if outcome.kind == "retry":
            due = self._node.clock.elapsed() + outcome.delay / 1e6
            self._look_at = min(self._look_at, due)
        _log(delivery, outcome, answer)


def judge_delivery(
    message: ClaimedMessage, sender: Sender, error: BaseException | None, uniform: float, keep_dead: int
) -> MessageOutcome:
    """What a delivery that has ended means for its message."""
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


def _log(delivery: Delivery, outcome: MessageOutcome, answer: FinishAnswer) -> None:
    """A delivery that fails must not do so in silence; its error is in the outbox, and here."""
    channel, key = delivery.message.channel, delivery.message.key
    if answer == "lost":
        log.warning("%s: what came of message %s was not taken: its claim is lost", channel, key)
    elif outcome.kind == "retry":
        what, later = what_was_raised(outcome.error), duration_rounded(outcome.delay)
        log.warning("%s: try %d of message %s failed (%s); again in %s", channel, outcome.attempts, key, what, later)
    elif outcome.kind == "dead":
        tries = "1 try" if outcome.attempts == 1 else f"{outcome.attempts} tries"
        log.error("%s: message %s was given up after %s: %s", channel, key, tries, outcome.error)
