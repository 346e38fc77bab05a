"""What the engine knows about handing messages of one channel to the outside, whatever does it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from evertick.model import ClaimedMessage, Message
from evertick.model.retry import Exponential, RetryPolicy
from evertick.when.moment import DAY, SECOND

__all__ = ["REMEMBER", "RETRY", "TIMEOUT", "Deliver", "DeliverMany", "Sender"]

Deliver = Callable[[Message], Awaitable[object]]
# One answer per message, in their order: None, or why it could not be delivered. Their bodies are not decoded: much of
# what is sent by the thousand is sent on as it is.
DeliverMany = Callable[[Sequence[ClaimedMessage]], Awaitable[Sequence[BaseException | None]]]

# About nine hours until a message is given up, so that an evening's outage of the other side costs none.
RETRY = Exponential("5s", factor=2, limit="1h", attempts=18, jitter=0.1)
TIMEOUT = 30 * SECOND
REMEMBER = DAY


class Sender(msgspec.Struct, frozen=True, kw_only=True):
    """How messages of a channel are delivered. Durations in microseconds."""

    channel: str
    # What it delivers by, if it shares that with other channels: where one of them gets through again, all do.
    line: str | None = None
    # It has delivered the message when it returns; what it raises is why it could not.
    deliver: Deliver | None = None
    # True: cancelling the task that awaits `deliver` ends the delivery. False: it can only be waited for.
    can_be_cancelled: bool = True
    retry: RetryPolicy = RETRY
    give_up_on: tuple[type[BaseException], ...] = ()
    timeout: int = TIMEOUT
    # Delivers many messages by one journey to the other side, in place of `deliver`. What it raises is why it could
    # deliver none of them.
    deliver_many: DeliverMany | None = None
    # How many of them at most.
    batch: int = 1_000
    # Deliveries at once on one node; journeys, where many are delivered by one.
    concurrency: int = 10
    # How long the key of a delivered message is known.
    remember: int = REMEMBER
