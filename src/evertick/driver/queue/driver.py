"""The driver of all queues: it dispatches runs to the workers of a broker, Redis or NATS.

`QueueDriver` makes the message that dispatches a claimed run, and sends nothing: the engine writes the message into the
outbox in the transaction that makes the run a dispatched one. `BrokerChannel` has the senders that bring messages to
the broker, and the source of the workers' reports. All jobs of one broker share one channel, and with it one set of
connections; the `Broker` itself is made when it is first needed, for a job may be declared before its connection.

The database is the truth; a broker carries. The ledger notices by its own times what a broker loses, doubles or delays:
so a broker needs no copy on a disk, and an outage of it delays runs and does nothing else.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import shlex
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from evertick.clock import Clock, system_clock
from evertick.driver.base import DeliverMany, Dispatch, Received, ReportSource, Sender
from evertick.driver.queue.contract import DispatchMessage, Kill, WorkerReport, decode_report
from evertick.driver.queue.spec import QueueSpec
from evertick.driver.spec import DriverParts
from evertick.errors import BrokerUnavailable, InvalidInput
from evertick.job.arguments import FreeArguments
from evertick.job.context import RESULT_MAX_BYTES, Context, record_of
from evertick.model import ClaimedMessage, Report
from evertick.model.retry import Exponential
from evertick.text.log_level import LogSummary, such_as
from evertick.when.duration import duration_us
from evertick.when.moment import MINUTE, moment_of, moment_text

__all__ = [
    "BATCH",
    "Broker",
    "BrokerChannel",
    "Envelope",
    "IncomingReport",
    "Queue",
    "QueueDriver",
    "broker_channel",
    "envelope_of",
    "push_in_batches",
    "stamped",
    "worker_command",
]

log = logging.getLogger("evertick.broker")

# Messages of one round trip to the broker.
BATCH = 1_000
# Of such a round trip to a broker that is slow, or far.
_TIMEOUT = MINUTE
# Two at once: while one is under way the next is read from the outbox.
_BATCHES_AT_ONCE = 2
# How often a worker reports within the progress timeout: one report may be lost, and the next be late.
_REPORTS_IN_TIMEOUT = 3
# A worker has this share of the time to take a run; the rest is for its report to reach the ledger.
_TAKE_SHARE = 0.9


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """Where the runs of a task go, and where their reports arrive."""

    channel: str
    # Its key or subject, and whether that is a list, a stream or a subject.
    to: str
    kind: str
    # Where reports arrive, and the command that starts a worker; known once the connection is.
    reply: Callable[[], str]
    served_by: Callable[[], str]


def worker_command(broker: str, queue: str, *flags: str) -> str:
    """The command line that starts a worker of a queue, but for its COMMAND."""
    return shlex.join(["evertick", "worker", "--broker", broker, "--driver", queue, *flags, "--", "COMMAND"])


class QueueDriver:
    """Dispatches the runs of one task to one queue."""

    can_be_cancelled = True
    kill_after = 0
    # Its queue is on a network: there is no virtual time.
    is_far = True

    def __init__(
        self, spec: QueueSpec, task: str, parts: DriverParts, queue: Queue, broker_channel: BrokerChannel
    ) -> None:
        self.name = spec.driver
        self._spec, self._queue, self._broker_channel = spec, queue, broker_channel
        self._arguments = FreeArguments(task)
        self._app = parts.app
        self._ack_timeout = duration_us(spec.ack_timeout, what="ack_timeout")
        self._progress_timeout = duration_us(spec.progress_timeout, what="progress_timeout")

    def senders(self) -> Sequence[Sender]:
        return self._broker_channel.senders

    def sources(self) -> Sequence[ReportSource]:
        # Nothing is reported of a run that is forgotten.
        return self._broker_channel.sources if self._spec.mode != "forget" else ()

    def prepare(self, args: bytes) -> dict[str, Any]:
        return self._arguments.decode(args)

    async def execute(self, context: Context, arguments: dict[str, Any]) -> Dispatch | None:
        queue = self._queue
        if record_of(context).clock is not system_clock:
            context.log(f"not dispatched in virtual time: to {queue.to} by {queue.channel}")
            return None
        envelope = Envelope(
            to=queue.to,
            kind=queue.kind,
            take_within=self._ack_timeout / 1e6 * _TAKE_SHARE,
            message=msgspec.structs.asdict(self._message(context, arguments)),
        )
        return Dispatch(
            channel=queue.channel,
            queue=self._spec.queue,
            served_by=queue.served_by(),
            payload=envelope,
            mode=self._spec.mode,
            ack_timeout=self._ack_timeout,
            progress_timeout=self._progress_timeout,
            kill_channel=_kill_channel_of(queue.channel),
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
            progress_every=self._progress_timeout / 1e6 / _REPORTS_IN_TIMEOUT if mode == "finish" else None,
        )


# --- the broker


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an outbox message that dispatches a run: the message, and where it goes."""

    # The key or subject of the queue.
    to: str
    kind: str
    # Seconds from its sending within which a worker may take it.
    take_within: float
    message: dict[str, Any]


class IncomingReport(msgspec.Struct, frozen=True):
    """A report as it came. It comes again until it is acknowledged by its token."""

    token: Any
    data: bytes


class Broker(Protocol):
    """One broker as one node uses it. Opened by the first use; may be used again after `close`.

    An operation that fails raises `BrokerUnavailable`; its caller tries again.
    """

    # The channel of the outbox whose messages it takes.
    channel: str

    @property
    def shown(self) -> str:
        """Its address for people, without a password."""
        ...

    async def push(self, messages: Sequence[ClaimedMessage]) -> list[Exception | None]:
        """Dispatch runs; per message None, or why not. A message may have arrived in spite of an error."""
        ...

    async def read(self, most: int, seconds: float) -> list[IncomingReport]:
        """Unacknowledged reports: so many, or all there are. Waits so long for the first."""
        ...

    async def acknowledge(self, reports: Sequence[IncomingReport]) -> None: ...

    async def kill(self, kills: Sequence[Kill]) -> None:
        """Tell the workers that have these runs, or will take them, to stop."""
        ...

    async def close(self) -> None: ...


_envelopes = msgspec.json.Decoder(Envelope)


def envelope_of(message: ClaimedMessage) -> Envelope:
    return _envelopes.decode(message.body)


def stamped(envelope: Envelope, now: int) -> bytes:
    """The message as it goes over the wire, with the time until which it may be taken: counted from now, not from its
    claim, so that an outage of the broker takes nothing of it."""
    message = envelope.message
    take_by = now + round(envelope.take_within * 1e6)
    message["take_by"] = moment_text(take_by)
    if message["timeout"] is not None:
        message["deadline"] = moment_text(take_by + round(message["timeout"] * 1e6))
    return msgspec.json.encode(message)


async def push_in_batches(
    messages: Sequence[ClaimedMessage],
    most: int,
    push: Callable[[Sequence[ClaimedMessage]], Awaitable[list[Exception | None]]],
) -> list[Exception | None]:
    """The answers of all batches. None is tried after the broker was found away: each would take its time."""
    answers: list[Exception | None] = []
    for first in range(0, len(messages), most):
        try:
            answers += await push(messages[first : first + most])
        except BrokerUnavailable as error:
            return answers + [error] * (len(messages) - len(answers))
    return answers


class _EndlessRetry(Exponential):
    """A message is never given up; half a minute after the broker is back at the latest it is tried again."""

    def __init__(self) -> None:
        super().__init__("1s", factor=2, limit="30s", attempts=1, jitter=0.2)
        self.attempts = 1_000_000_000


def _kill_channel_of(channel: str) -> str:
    return f"{channel}.kill"


def broker_channel(parts: DriverParts, channel: str, make_broker: Callable[[], Broker]) -> BrokerChannel:
    """That of this scheduler; made when there is none."""
    found = parts.shared.get(channel)
    if not isinstance(found, BrokerChannel):
        found = parts.shared[channel] = BrokerChannel(channel, make_broker, parts.clock)
    return found


class BrokerChannel:
    """Senders and source of one broker."""

    def __init__(self, channel: str, make_broker: Callable[[], Broker], clock: Clock) -> None:
        self.channel = channel
        self._make_broker = make_broker
        self._made: Broker | None = None
        self._dropped = LogSummary(clock.elapsed)
        self.senders: Sequence[Sender] = (
            _sender(channel, channel, self._push),
            _sender(_kill_channel_of(channel), channel, self._kill),
        )
        self.sources = (self,)

    @property
    def _broker(self) -> Broker:
        if self._made is None:
            self._made = self._make_broker()
        return self._made

    @property
    def name(self) -> str:
        return self._broker.shown

    async def close(self) -> None:
        """It may be used again."""
        self._dropped.flush()
        broker, self._made = self._made, None
        if broker is not None:
            await broker.close()

    # --- to the workers

    async def _push(self, messages: Sequence[ClaimedMessage]) -> Sequence[BaseException | None]:
        return await self._broker.push(messages)

    async def _kill(self, messages: Sequence[ClaimedMessage]) -> Sequence[BaseException | None]:
        await self._broker.kill([msgspec.json.decode(message.body, type=Kill) for message in messages])
        return [None] * len(messages)

    # --- from the workers

    async def receive(self, most: int, seconds: float) -> Received:
        incoming = await self._broker.read(most, seconds)
        reports, unreadable = [], []
        for each in incoming:
            try:
                reports.append(_report_of(decode_report(each.data)))
            except InvalidInput as error:
                why = f"{self.name}: {error}"
                say = functools.partial(log.warning, "a report of a worker cannot be read, and is dropped: %s", why)
                self._dropped.tell("dropped", "", log, logging.WARNING, say, _dropped_words, about=why, lines=1)
                unreadable.append(each)
                await asyncio.sleep(0)  # its sender chose how long that took to find out
        if unreadable:
            await self._broker.acknowledge(unreadable)
        dropped = {id(each) for each in unreadable}
        token = [each for each in incoming if id(each) not in dropped]
        return Received(reports=reports, token=token, has_more=len(incoming) >= most)

    async def confirm(self, received: Received) -> None:
        incoming: Sequence[IncomingReport] = received.token
        await self._broker.acknowledge(incoming)


def _sender(channel: str, line: str, deliver_many: DeliverMany) -> Sender:
    return Sender(
        channel=channel,
        line=line,
        deliver_many=deliver_many,
        batch=BATCH,
        concurrency=_BATCHES_AT_ONCE,
        retry=_EndlessRetry(),
        timeout=_TIMEOUT,
    )


def _report_of(sent: WorkerReport) -> Report:
    """A report of a worker, as the ledger takes it. A result that is too large is left out: the work is done."""
    result = None if sent.result is None else msgspec.json.encode(sent.result)
    if result is not None and len(result) > RESULT_MAX_BYTES:
        log.warning("the result of run %s is not kept: it takes more than %d bytes", sent.run, RESULT_MAX_BYTES)
        result = None
    return Report(
        id=sent.run,
        fence=sent.fence,
        kind=sent.kind,
        progress=sent.fraction,
        progress_text=sent.text,
        result=result,
        error=sent.error,
        reason=sent.reason,
        retry=sent.retry,
        retry_after=None if sent.after is None else round(sent.after * 1e6),
        worker=sent.worker,
        took=None if sent.took is None else round(sent.took * 1e6),
        lines=tuple((moment_of(at, what="report: log"), level, text) for at, level, text in sent.log),
        seq=sent.seq if sent.log else None,
    )


def _dropped_words(count: int, names: list[str], seconds: float | None) -> str:
    return f"{count} more reports of workers could not be read, and were dropped{such_as(names, seconds)}"
