"""The driver of external queues: dispatches runs to workers over a broker, Redis or NATS.

`QueueDriver` makes the message that dispatches a claimed run and sends nothing: the engine writes it to the outbox in
the transaction that makes the run a dispatched one. `BrokerChannel` has the senders that deliver messages to the broker
and the source of the workers' reports. All jobs of a broker share a channel and its connections. The `Broker` is made
at its first use, because a job may be declared before its connection.

The database is authoritative. Timeouts of the ledger detect messages that a broker loses, duplicates or delays, so a
broker needs no persistence, and its outage only delays runs.
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

# Messages in one round trip to the broker.
BATCH = 1_000
# The timeout of a round trip to a slow or distant broker.
_TIMEOUT = MINUTE
# While one batch is sent, the next is read from the outbox.
_BATCHES_AT_ONCE = 2
# Reports of a worker within the progress timeout: one may be lost, and the next late.
_REPORTS_IN_TIMEOUT = 3
# The share of the ack timeout in which a worker may take a run; the rest is for its report to reach the ledger.
_TAKE_SHARE = 0.9


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """The destination of a task's runs, and of their reports."""

    channel: str
    # The key or subject, and its kind: list, stream or subject.
    to: str
    kind: str
    # The destination of reports and the command of a worker, available when the connection is configured.
    reply: Callable[[], str]
    served_by: Callable[[], str]


def worker_command(broker: str, queue: str, *flags: str) -> str:
    """The command line that starts a worker of a queue; COMMAND is a placeholder."""
    return shlex.join(["evertick", "worker", "--broker", broker, "--driver", queue, *flags, "--", "COMMAND"])


class QueueDriver:
    """Dispatches the runs of one task to one queue."""

    can_be_cancelled = True
    kill_after = 0
    # The queue is on a network, so virtual time does not apply.
    is_remote = True

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
        # Workers do not report runs in the mode `forget`.
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
    """The body of an outbox message that dispatches a run: the message and its destination."""

    # The key or subject of the queue.
    to: str
    kind: str
    # Seconds after the delivery within which a worker may take the run.
    take_within: float
    message: dict[str, Any]


class IncomingReport(msgspec.Struct, frozen=True):
    """An undecoded report. The broker delivers it again until it is acknowledged with its token."""

    token: Any
    data: bytes


class Broker(Protocol):
    """The connection of one node to a broker. The first use opens it, also after `close`.

    A failed operation raises `BrokerUnavailable`; the caller retries.
    """

    # The outbox channel whose messages it delivers.
    channel: str

    @property
    def shown(self) -> str:
        """Its kind and address for display, without a password."""
        ...

    async def push(self, messages: Sequence[ClaimedMessage]) -> list[Exception | None]:
        """Dispatch runs. Returns None or the error of each message, which may have arrived despite an error."""
        ...

    async def read(self, most: int, seconds: float) -> list[IncomingReport]:
        """Return up to `most` unacknowledged reports; wait up to `seconds` for the first."""
        ...

    async def acknowledge(self, reports: Sequence[IncomingReport]) -> None: ...

    async def kill(self, kills: Sequence[Kill]) -> None:
        """Ask the workers that have these runs, or take them later, to stop."""
        ...

    async def close(self) -> None: ...


_envelopes = msgspec.json.Decoder(Envelope)


def envelope_of(message: ClaimedMessage) -> Envelope:
    return _envelopes.decode(message.body)


def stamped(envelope: Envelope, now: int) -> bytes:
    """The message for the broker, with `take_by` counted from now and not from the claim, so that an outage of the
    broker does not shorten it."""
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
    """The answers of all batches. After a failure the rest is not sent: each batch would wait for a timeout."""
    answers: list[Exception | None] = []
    for first in range(0, len(messages), most):
        try:
            answers += await push(messages[first : first + most])
        except BrokerUnavailable as error:
            return answers + [error] * (len(messages) - len(answers))
    return answers


class _EndlessRetry(Exponential):
    """Messages are retried without end, about every 30 s."""

    def __init__(self) -> None:
        super().__init__("1s", factor=2, limit="30s", attempts=1, jitter=0.2)
        self.attempts = 1_000_000_000


def _kill_channel_of(channel: str) -> str:
    return f"{channel}.kill"


def broker_channel(parts: DriverParts, channel: str, make_broker: Callable[[], Broker]) -> BrokerChannel:
    """The channel of this scheduler, made at the first call."""
    shared = parts.shared.get(channel)
    if not isinstance(shared, BrokerChannel):
        shared = parts.shared[channel] = BrokerChannel(channel, make_broker, parts.clock)
    return shared


class BrokerChannel:
    """The senders and the report source of one broker."""

    def __init__(self, channel: str, make_broker: Callable[[], Broker], clock: Clock) -> None:
        self.channel = channel
        self._make_broker = make_broker
        self._opened: Broker | None = None
        self._summary = LogSummary(clock.elapsed)
        self.senders: Sequence[Sender] = (
            _sender(channel, channel, self._push),
            _sender(_kill_channel_of(channel), channel, self._kill),
        )
        self.sources = (self,)

    @property
    def _broker(self) -> Broker:
        if self._opened is None:
            self._opened = self._make_broker()
        return self._opened

    @property
    def name(self) -> str:
        return self._broker.shown

    async def close(self) -> None:
        """Close the connection. The next use opens it again."""
        self._summary.flush()
        broker, self._opened = self._opened, None
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
                reports.append(self._report(decode_report(each.data)))
            except InvalidInput as error:
                say = functools.partial(log.warning, "%s: unreadable worker report dropped: %s", self.name, error)
                self._summarise("dropped", say, _dropped_reports, str(error))
                unreadable.append(each)
                await asyncio.sleep(0)  # decoding takes as long as its sender wants
        if unreadable:
            await self._broker.acknowledge(unreadable)
        dropped = {id(each) for each in unreadable}
        token = [each for each in incoming if id(each) not in dropped]
        return Received(reports=reports, token=token, has_more=len(incoming) >= most)

    async def confirm(self, received: Received) -> None:
        incoming: Sequence[IncomingReport] = received.token
        await self._broker.acknowledge(incoming)

    def _report(self, sent: WorkerReport) -> Report:
        """The report for the ledger. A result that is too large is dropped, because the work is done."""
        result = None if sent.result is None else msgspec.json.encode(sent.result)
        if result is not None and len(result) > RESULT_MAX_BYTES:
            words = "run %s: result dropped: it has %d bytes, more than %d"
            say = functools.partial(log.warning, words, sent.run, len(result), RESULT_MAX_BYTES)
            self._summarise("results", say, _dropped_results, sent.run)
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

    def _summarise(self, group: str, say: Callable[[], None], words: Callable[..., str], about: str) -> None:
        self._summary.tell(group, "", log, logging.WARNING, say, words, about=about, lines=1)


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


def _dropped_reports(count: int, names: list[str], seconds: float | None) -> str:
    return f"{count} more unreadable worker reports dropped{such_as(names, seconds)}"


def _dropped_results(count: int, names: list[str], seconds: float | None) -> str:
    return (
        f"results of {count} more runs dropped: they have more than {RESULT_MAX_BYTES} bytes{such_as(names, seconds)}"
    )
