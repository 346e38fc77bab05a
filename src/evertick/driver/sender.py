"""What the engine knows about handing messages of one channel to the outside, whatever does it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from evertick.model import Message
from evertick.policy import Exponential, RetryPolicy
from evertick.when.moment import DAY, SECOND

__all__ = ["REMEMBER", "RETRY", "TIMEOUT", "Deliver", "Sender"]

Deliver = Callable[[Message], Awaitable[object]]

# About nine hours until a message is given up, so that an evening's outage of the other side costs none.
RETRY = Exponential("5s", factor=2, limit="1h", attempts=18, jitter=0.1)
TIMEOUT = 30 * SECOND
REMEMBER = DAY


class Sender(msgspec.Struct, frozen=True, kw_only=True):
    """How messages of a channel are delivered. Durations in microseconds."""

    channel: str
    # It has delivered the message when it returns; what it raises is why it could not.
    deliver: Deliver
    # True: cancelling the task that awaits `deliver` ends the delivery. False: it can only be waited for.
    can_be_cancelled: bool = True
    retry: RetryPolicy = RETRY
    give_up_on: tuple[type[BaseException], ...] = ()
    timeout: int = TIMEOUT
    # Deliveries at once on one node.
    concurrency: int = 10
    # How long the key of a delivered message is known.
    remember: int = REMEMBER
