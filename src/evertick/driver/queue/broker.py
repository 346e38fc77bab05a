"""What a node wants of a broker, whatever its kind: dispatch runs, bring reports back, tell workers to stop.

The database is the truth; a broker carries. Whatever it loses, doubles or delays, the ledger notices by its own times:
so a broker needs no copy on a disk, and one that is away delays and does nothing else. What cannot be done raises
`BrokerUnavailable`, and is tried again by whoever asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from evertick.driver.queue.contract import Kill
from evertick.model import ClaimedMessage
from evertick.when.moment import moment_text

__all__ = ["BATCH", "Broker", "Envelope", "Incoming", "envelope_of", "stamped"]

# Messages of one journey to the broker.
BATCH = 1_000


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an outbox message that dispatches a run: what is sent, and where to."""

    # The key or subject of the queue.
    to: str
    kind: str
    # How long a worker may take to take it, from when it is sent; in seconds.
    take_within: float
    message: dict[str, Any]


class Incoming(msgspec.Struct, frozen=True):
    """A report as it came. It is acknowledged by its token when the ledger has it, and comes again if it is not."""

    token: Any
    data: bytes


class Broker(Protocol):
    """One broker as one node uses it. Opened by the first use; may be used again after `close`."""

    # The channel of the outbox whose messages it takes.
    channel: str

    @property
    def shown(self) -> str:
        """Where it is, for people: without a password."""
        ...

    async def push(self, messages: Sequence[ClaimedMessage]) -> list[Exception | None]:
        """Dispatch runs; per message None, or why not. A message may have arrived although an error is told."""
        ...

    async def read(self, most: int, seconds: float) -> list[Incoming]:
        """Reports that nobody has acknowledged: so many, or all there are. Waits so long for the first."""
        ...

    async def acknowledge(self, reports: Sequence[Incoming]) -> None: ...

    async def kill(self, kills: Sequence[Kill]) -> None:
        """Tell the workers that have these, and those that will, to leave them alone."""
        ...

    async def close(self) -> None: ...


_parcels = msgspec.json.Decoder(Envelope)


def envelope_of(message: ClaimedMessage) -> Envelope:
    return _parcels.decode(message.body)


def stamped(parcel: Envelope, now: int) -> bytes:
    """The message as it goes over the wire. It says until when it may be taken: counted from now, not from its claim,
    for a broker that was away has used up nobody's time."""
    message = parcel.message
    take_by = now + round(parcel.take_within * 1e6)
    message["take_by"] = moment_text(take_by)
    if message["timeout"] is not None:
        message["deadline"] = moment_text(take_by + round(message["timeout"] * 1e6))
    return msgspec.json.encode(message)
