"""Messages and reports as tests make and read them, without a ledger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from evertick.clock import system_clock
from evertick.driver.queue.contract import DispatchMessage, WorkerReport, decode_report
from evertick.driver.queue.driver import Broker, Envelope
from evertick.model import ClaimedMessage

__all__ = ["all_reports", "envelope", "envelope_for", "no_secret", "reports_until"]


def no_secret(name: str) -> str:
    raise AssertionError(f"nobody needs the secret {name}")


def envelope(
    to: str, *, reply: str | None, run: str | None = None, fence: int = 1, kind: str = "list", **fields: Any
) -> ClaimedMessage:
    """The message of the outbox that dispatches a run."""
    within = fields.pop("take_within", 60.0)
    dispatched = DispatchMessage(
        run=run or system_clock.new_id(),
        fence=fence,
        task=fields.pop("task", "work"),
        driver="docker",
        app="default",
        fire_at="2026-01-31T09:00:00Z",
        attempt=1,
        args=fields.pop("args", {}),
        reply=reply,
        progress_every=fields.pop("progress_every", 5.0),
        **fields,
    )
    parcel = Envelope(to=to, kind=kind, take_within=within, message=msgspec.structs.asdict(dispatched))
    return envelope_for(parcel)


def envelope_for(parcel: Envelope) -> ClaimedMessage:
    now = system_clock.now_us()
    id_ = system_clock.new_id()
    return ClaimedMessage(
        id=id_,
        fence=1,
        channel="redis",
        key=id_,
        body=msgspec.json.encode(parcel),
        headers={},
        attempts=0,
        due_at=now,
        created_at=now,
    )


async def all_reports(broker: Broker) -> list[WorkerReport]:
    """The reports so far; acknowledged."""
    found = []
    while incoming := await broker.read(100, 0.01):
        found += [decode_report(each.data) for each in incoming]
        await broker.acknowledge(incoming)
    return found


async def reports_until(broker: Broker, enough: Callable[[list[WorkerReport]], bool]) -> list[WorkerReport]:
    """All reports until there are enough. The time limit of the test ends an endless wait."""
    found: list[WorkerReport] = []
    while not enough(found):
        incoming = await broker.read(100, 1.0)
        found += [decode_report(each.data) for each in incoming]
        await broker.acknowledge(incoming)
    return found
