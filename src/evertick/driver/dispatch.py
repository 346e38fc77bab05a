"""Drivers whose work is done elsewhere: a run is dispatched to an external queue, and its workers report back.

`execute` of such a driver returns a `Dispatch`. The engine writes it with the message that dispatches the run, in one
guarded transaction; from then on the run is dispatched, and belongs to no node. The outbox delivers the message by the
`Sender` of its channel; the report loop applies the reports from the driver's sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from evertick.driver.sender import Sender
from evertick.model import DispatchMode, Report

__all__ = ["Dispatch", "DispatchingDriver", "Received", "ReportSource"]


class Dispatch(msgspec.Struct, frozen=True, kw_only=True):
    """Returned by `execute` instead of a result: who is to do the work. Durations in microseconds; None: no bound."""

    # The channel of the outbox whose sender brings it to the queue.
    channel: str
    # JSON-like: the body of the message.
    payload: Any
    # For people: the name of the queue behind the channel, and the command that starts a worker of it.
    queue: str | None = None
    served_by: str | None = None
    # When it has succeeded: when the queue has it (forget), when a worker took it (ack), when that says so (finish).
    mode: DispatchMode = "finish"
    # From its delivery to the queue until a worker took it, and between two words of that: then it is dispatched again.
    ack_timeout: int | None = None
    progress_timeout: int | None = None
    # The channel of messages that tell a worker to stop; None: workers cannot be told.
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
        """By which channel the runs went that it tells of: they are judged by nodes that hear it, and by no other."""
        ...

    async def receive(self, most: int, seconds: float) -> Received:
        """Reports that nobody has confirmed, about so many at most. Waits so long for the first; then there are none.

        What is no report of ours is the source's to log and to confirm.
        """
        ...

    async def confirm(self, received: Received) -> None:
        """They are in the ledger, and need not come again. What is not confirmed comes again, to whichever node."""
        ...


@runtime_checkable
class DispatchingDriver(Protocol):
    """A driver that dispatches its runs. Drivers of several tasks may give the very same senders and sources."""

    def senders(self) -> Sequence[Sender]:
        """How its messages get to the queue, and those that tell workers to stop."""
        ...

    def sources(self) -> Sequence[ReportSource]: ...
