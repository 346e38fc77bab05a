"""The driver of all queues: makes of a claimed run the message that dispatches it.

It sends nothing. The message is written into the outbox in the transaction that makes the run a dispatched one, and the
relay brings it to the broker.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from evertick.clock import system_clock
from evertick.driver.dispatch import Dispatch, ReportSource
from evertick.driver.queue.broker import Envelope
from evertick.driver.queue.contract import DispatchMessage
from evertick.driver.queue.exchange import Exchange, kill_channel_of
from evertick.driver.queue.spec import QueueSpec
from evertick.driver.sender import Sender
from evertick.driver.spec import DriverParts
from evertick.job.arguments import FreeArguments
from evertick.job.context import Context, record_of
from evertick.when.duration import duration_us
from evertick.when.moment import moment_text

__all__ = ["Queue", "QueueDriver", "worker_command"]

# Of the time until the ledger misses its word, how often a worker gives it: one may be lost, and the next be late.
_WORDS_IN_TIMEOUT = 3
# A worker has this share of the time to take a run; the rest is for its word to reach the ledger.
_TAKE_SHARE = 0.9


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """Where the runs of a task go, and where the reports about them come."""

    channel: str
    # Its key or subject, and what it is there.
    to: str
    kind: str
    # Where reports come, and the command that starts a worker; known when it is known where the broker is.
    reply: Callable[[], str]
    served_by: Callable[[], str]


def worker_command(broker: str, queue: str, *flags: str) -> str:
    """What starts a worker of a queue, with a place for what that does for a run."""
    return shlex.join(["evertick", "worker", "--broker", broker, "--driver", queue, *flags, "--", "COMMAND"])


class QueueDriver:
    """Dispatches the runs of one task to one queue."""

    can_be_cancelled = True
    kill_after = 0
    # Its queue is on a network, where no virtual time is.
    is_far = True

    def __init__(self, spec: QueueSpec, task: str, parts: DriverParts, queue: Queue, exchange: Exchange) -> None:
        self.name = spec.driver
        self._spec, self._queue, self._exchange = spec, queue, exchange
        self._arguments = FreeArguments(task)
        self._app = parts.app
        self._ack_timeout = duration_us(spec.ack_timeout, what="ack_timeout")
        self._progress_timeout = duration_us(spec.progress_timeout, what="progress_timeout")

    def senders(self) -> Sequence[Sender]:
        return self._exchange.senders

    def sources(self) -> Sequence[ReportSource]:
        # Of what is only given away nobody reports.
        return self._exchange.sources if self._spec.mode != "forget" else ()

    def prepare(self, args: bytes) -> dict[str, Any]:
        return self._arguments.decode(args)

    async def execute(self, context: Context, arguments: dict[str, Any]) -> Dispatch | None:
        queue = self._queue
        if record_of(context).clock is not system_clock:
            context.log(f"not dispatched in virtual time: to {queue.to} by {queue.channel}")
            return None
        parcel = Envelope(
            to=queue.to,
            kind=queue.kind,
            take_within=self._ack_timeout / 1e6 * _TAKE_SHARE,
            message=msgspec.structs.asdict(self._message(context, arguments)),
        )
        return Dispatch(
            channel=queue.channel,
            queue=self._spec.queue,
            served_by=queue.served_by(),
            payload=parcel,
            mode=self._spec.mode,
            ack_timeout=self._ack_timeout,
            progress_timeout=self._progress_timeout,
            kill_channel=kill_channel_of(queue.channel),
        )

    def _message(self, context: Context, arguments: dict[str, Any]) -> DispatchMessage:
        record, mode = record_of(context), self._spec.mode
        run = record.run
        return DispatchMessage(
            run=run.id,
            fence=run.fence,
            task=run.task,
            driver=self._spec.queue,
            app=self._app,
            fire_at=moment_text(run.fire_at),
            attempt=context.attempt,
            args=arguments,
            schedule=run.schedule_key,
            timeout=None if record.deadline is None else (record.deadline - run.claimed_at) / 1e6,
            reply=None if mode == "forget" else self._queue.reply(),
            mode=mode,
            progress_every=self._progress_timeout / 1e6 / _WORDS_IN_TIMEOUT if mode == "finish" else None,
        )
