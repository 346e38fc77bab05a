"""The interface between the engine and the drivers, which carry out tasks and deliver messages.

`Driver` carries out one kind of task. A `DispatchingDriver` leaves the work to the workers of an external queue: its
`execute` returns a `Dispatch`, which the engine writes in one guarded transaction with the message that dispatches the
run. From then on the run belongs to no node; the `Sender` of the channel delivers the message from the outbox, and the
report loop applies the reports of a `ReportSource`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from evertick.errors import Retry
from evertick.job.context import Context
from evertick.model import ClaimedMessage, DispatchMode, Message, Report
from evertick.model.limits import Concurrency, Rate
from evertick.model.retry import Exponential, RetryPolicy, never_again
from evertick.store.base import TaskTerms
from evertick.when.moment import DAY, SECOND

__all__ = [
    "REMEMBER",
    "RETRY",
    "TIMEOUT",
    "Deliver",
    "DeliverMany",
    "Dispatch",
    "DispatchingDriver",
    "Driver",
    "OnLost",
    "OnUnreachable",
    "Received",
    "RemoteError",
    "ReportSource",
    "Sender",
    "Work",
    "type_name",
]

OnLost = Literal["rerun", "fail"]
OnUnreachable = Literal["continue", "stop"]


class Driver(Protocol):
    """Carries out one kind of task."""

    name: str
    # True: cancelling the asyncio task that awaits `execute` ends the work. False: it can only be asked, like a thread.
    can_be_cancelled: bool
    # How long it takes itself, in microseconds, to end work that does not stop when asked to.
    kill_after: int

    def prepare(self, args: bytes) -> dict[str, Any]:
        """Arguments as the work wants them. Raises InvalidArguments when the stored ones no longer fit."""
        ...

    def execute(self, context: Context, arguments: dict[str, Any]) -> Awaitable[Any]:
        """Do the work; what it returns is the result, what it raises the error."""
        ...


class RemoteError(Exception):
    """The error of a job in another process: its text with the traceback, and its types by name."""

    def __init__(self, text: str, *, types: frozenset[str], retry: Retry | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.types = types
        # The `Retry` that the job raised, if it did.
        self.retry = retry

    def is_a(self, kinds: tuple[type[BaseException], ...]) -> bool:
        return any(type_name(kind) in self.types for kind in kinds)


def type_name(kind: type) -> str:
    """A class by name, as it travels between processes."""
    return f"{kind.__module__}:{kind.__qualname__}"


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """A task as a node knows it: how to carry it out and how to judge it. Durations in microseconds."""

    task: str
    driver: Driver
    hash: str
    retry: RetryPolicy = never_again
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    give_up_on: tuple[type[BaseException], ...] = ()
    timeout: int | None = None
    on_lost: OnLost = "rerun"
    on_unreachable: OnUnreachable = "continue"
    concurrency: Concurrency | None = None
    rate: Rate | None = None

    @property
    def kill_after(self) -> int:
        return self.driver.kill_after

    @property
    def terms(self) -> TaskTerms:
        return TaskTerms(
            hash=self.hash,
            # Others may take a run that is long past its deadline. While it is being killed it is not past it yet.
            timeout=None if self.timeout is None else self.timeout + self.kill_after,
            at_most_once=self.on_lost == "fail",
            concurrency=self.concurrency,
            rate=self.rate,
        )


# --- delivering messages of the outbox

Deliver = Callable[[Message], Awaitable[object]]
# One answer per message, in their order: None, or why it could not be delivered. Bodies are not decoded: messages sent
# by the thousand are mostly forwarded as they are.
DeliverMany = Callable[[Sequence[ClaimedMessage]], Awaitable[Sequence[BaseException | None]]]

# About nine hours until a message is given up, so that an evening's outage of the other side costs none.
RETRY = Exponential("5s", factor=2, limit="1h", attempts=18, jitter=0.1)
TIMEOUT = 30 * SECOND
REMEMBER = DAY


class Sender(msgspec.Struct, frozen=True, kw_only=True):
    """How messages of a channel are delivered. Durations in microseconds."""

    channel: str
    # The connection that it shares with other channels, if any: where one of them gets through again, all do.
    line: str | None = None
    # Returns when the message is delivered; raises why it could not be.
    deliver: Deliver | None = None
    # True: cancelling the task that awaits `deliver` ends the delivery. False: it can only be waited for.
    can_be_cancelled: bool = True
    retry: RetryPolicy = RETRY
    give_up_on: tuple[type[BaseException], ...] = ()
    timeout: int = TIMEOUT
    # Delivers a batch in one round trip, in place of `deliver`. Raises where none of it could be delivered.
    deliver_many: DeliverMany | None = None
    # The most messages of a batch.
    batch: int = 1_000
    # Deliveries at once on one node; batches, where there are such.
    concurrency: int = 10
    # How long the key of a delivered message is known.
    remember: int = REMEMBER


# --- dispatching runs to an external queue


class Dispatch(msgspec.Struct, frozen=True, kw_only=True):
    """Returned by `execute` instead of a result: where the work goes. Durations in microseconds; None: no bound."""

    # The channel of the outbox whose sender brings it to the queue.
    channel: str
    # JSON-like: the body of the message.
    payload: Any
    # For people: the name of the queue behind the channel, and the command that starts a worker of it.
    queue: str | None = None
    served_by: str | None = None
    # When it has succeeded: when the queue has it (forget), when a worker took it (ack), when that says so (finish).
    mode: DispatchMode = "finish"
    # From its delivery to the queue until a worker took it, and between two reports of that: then it is dispatched
    # again.
    ack_timeout: int | None = None
    progress_timeout: int | None = None
    # The channel of messages that tell a worker to stop; None: there is no such channel.
    kill_channel: str | None = None
    headers: dict[str, str] = {}


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """Reports as they came from a source, in order, and what the source needs to confirm them."""

    reports: Sequence[Report]
    token: Any = None
    # Whether there may have been more than this read could bring: until that has come, no worker is called silent.
    has_more: bool = False


class ReportSource(Protocol):
    """Where reports of workers come from. Several nodes may read one; each report is for one of them at a time."""

    @property
    def name(self) -> str:
        """For the log: what and where it is, without a password."""
        ...

    @property
    def channel(self) -> str:
        """The channel of the runs that it reports on: only nodes that read it may call their workers silent."""
        ...

    async def receive(self, most: int, seconds: float) -> Received:
        """About so many unconfirmed reports at most; waits so long for the first. The source itself logs and confirms
        messages that are no reports."""
        ...

    async def confirm(self, received: Received) -> None:
        """They are in the ledger, and need not come again. Unconfirmed reports come again, to any node."""
        ...


@runtime_checkable
class DispatchingDriver(Protocol):
    """A driver that dispatches its runs. Drivers of several tasks may give the very same senders and sources."""

    def senders(self) -> Sequence[Sender]:
        """How its messages get to the queue, and those that tell workers to stop."""
        ...

    def sources(self) -> Sequence[ReportSource]: ...
