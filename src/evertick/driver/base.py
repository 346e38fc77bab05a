"""The interface between the engine and the drivers, which carry out tasks and deliver messages.

A `Driver` carries out one kind of task. A `DispatchingDriver` leaves the work to the workers of an external queue: its
`execute` returns a `Dispatch`, which the engine writes to the outbox in the transaction that makes the run a dispatched
one. After that no node owns the run: the `Sender` of the channel delivers the message, and the report loop applies the
reports of a `ReportSource`.
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
    # True: cancelling the asyncio task that awaits `execute` ends the work. False: the work is only asked to stop, as
    # with a thread.
    can_be_cancelled: bool
    # Microseconds that the driver needs to end work that does not stop when asked.
    kill_after: int

    def prepare(self, args: bytes) -> dict[str, Any]:
        """Decode the stored arguments. Raises InvalidArguments if they no longer fit."""
        ...

    def execute(self, context: Context, arguments: dict[str, Any]) -> Awaitable[Any]:
        """Do the work. The return value is the result of the run, an exception is its error."""
        ...


class RemoteError(Exception):
    """An error that a job raised in another process: its text with the traceback, and the names of its types."""

    def __init__(self, text: str, *, types: frozenset[str], retry: Retry | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.types = types
        # Set if the job raised `Retry`.
        self.retry = retry

    def is_a(self, kinds: tuple[type[BaseException], ...]) -> bool:
        return any(type_name(kind) in self.types for kind in kinds)


def type_name(kind: type) -> str:
    """The name of a class as processes send it to each other."""
    return f"{kind.__module__}:{kind.__qualname__}"


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """A task as a node knows it: its driver, and the rules that judge its attempts. Durations in microseconds."""

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
            # Other nodes may take over a run that is past its deadline. The time to kill it belongs to the run.
            timeout=None if self.timeout is None else self.timeout + self.kill_after,
            at_most_once=self.on_lost == "fail",
            concurrency=self.concurrency,
            rate=self.rate,
        )


# --- delivery of outbox messages

Deliver = Callable[[Message], Awaitable[object]]
# Returns one entry per message, in order: None, or the error. Bodies are not decoded, because senders of thousands of
# messages mostly forward them unchanged.
DeliverMany = Callable[[Sequence[ClaimedMessage]], Awaitable[Sequence[BaseException | None]]]

# Gives up after about nine hours, so that an outage of one evening loses no message.
RETRY = Exponential("5s", factor=2, limit="1h", attempts=18, jitter=0.1)
TIMEOUT = 30 * SECOND
REMEMBER = DAY


class Sender(msgspec.Struct, frozen=True, kw_only=True):
    """How messages of a channel are delivered. Durations in microseconds."""

    channel: str
    # The connection that channels share, if any: once one of them delivers again, all of them are retried.
    line: str | None = None
    # Returns when the message is delivered; raises the reason if it is not.
    deliver: Deliver | None = None
    # True: cancelling the task that awaits `deliver` ends the delivery. False: the node can only wait for its end.
    can_be_cancelled: bool = True
    retry: RetryPolicy = RETRY
    give_up_on: tuple[type[BaseException], ...] = ()
    timeout: int = TIMEOUT
    # Delivers a batch in one round trip, instead of `deliver`. Raises if no message of the batch was delivered.
    deliver_many: DeliverMany | None = None
    # The maximum of messages in a batch.
    batch: int = 1_000
    # Concurrent deliveries on one node; with `deliver_many`, concurrent batches.
    concurrency: int = 10
    # How long the key of a delivered message rejects duplicates.
    remember: int = REMEMBER


# --- dispatch to an external queue


class Dispatch(msgspec.Struct, frozen=True, kw_only=True):
    """Returned by `execute` instead of a result: the message for the queue. Durations in microseconds; None: no
    limit."""

    # The outbox channel whose sender delivers the message to the queue.
    channel: str
    # JSON-like: the body of the message.
    payload: Any
    # For display: the name of the queue behind the channel, and the command that starts a worker for it.
    queue: str | None = None
    served_by: str | None = None
    # The run has succeeded when the queue has the message (forget), when a worker took it (ack), or when the worker
    # reports its end (finish).
    mode: DispatchMode = "finish"
    # The run is dispatched again if no worker takes it within `ack_timeout` after the delivery, or if its worker sends
    # no report for `progress_timeout`.
    ack_timeout: int | None = None
    progress_timeout: int | None = None
    # The channel of messages that ask a worker to stop; None: there is no such channel.
    kill_channel: str | None = None
    headers: dict[str, str] = {}


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """Reports in the order of their source, and the token that confirms them."""

    reports: Sequence[Report]
    token: Any = None
    # The source may have more reports. Until they are read, the node declares no worker silent.
    has_more: bool = False


class ReportSource(Protocol):
    """A source of workers' reports. Several nodes may read it; each report goes to one of them at a time."""

    @property
    def name(self) -> str:
        """Kind and address for the log, without a password."""
        ...

    @property
    def channel(self) -> str:
        """The channel of the reported runs: only nodes that read this source may declare their workers silent."""
        ...

    async def receive(self, most: int, seconds: float) -> Received:
        """Return about `most` unconfirmed reports; wait up to `seconds` for the first. The source itself logs and
        confirms messages that are not reports."""
        ...

    async def confirm(self, received: Received) -> None:
        """Confirm reports that are in the ledger. Unconfirmed reports are delivered again, to any node."""
        ...


@runtime_checkable
class DispatchingDriver(Protocol):
    """A driver that dispatches its runs. Drivers of several tasks may share their senders and sources."""

    def senders(self) -> Sequence[Sender]:
        """The senders of its dispatches and of its kill messages."""
        ...

    def sources(self) -> Sequence[ReportSource]: ...
