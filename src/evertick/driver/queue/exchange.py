"""A broker as the engine of one scheduler uses it: the senders of its channels, and the source of its reports.

All jobs of one broker share one exchange, and with it one set of connections. The broker itself is made when it is
first needed: a job may be declared before it is said where the broker is.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence

import msgspec

from evertick.clock import Clock
from evertick.driver.dispatch import Received
from evertick.driver.queue.broker import BATCH, Broker, Incoming
from evertick.driver.queue.contract import Kill, WorkerReport, decode_report
from evertick.driver.sender import DeliverMany, Sender
from evertick.driver.spec import DriverParts
from evertick.errors import InvalidInput
from evertick.job.context import RESULT_MAX_BYTES
from evertick.model import ClaimedMessage, Report
from evertick.model.retry import Exponential
from evertick.text.log_level import LogSummary, such_as
from evertick.when.moment import MINUTE, moment_of

__all__ = ["Exchange", "exchange_of", "kill_channel_of", "report_of"]

log = logging.getLogger("evertick.broker")

# A journey of a thousand messages to a broker that is slow, or far.
_TIMEOUT = MINUTE
# Two at once: while one is under way the next is read from the outbox.
_JOURNEYS = 2


class _Patience(Exponential):
    """A broker that is away delays, for however long; when it is back, and nobody hears so by its
    reports, a message waits for no more than half a minute."""

    def __init__(self) -> None:
        super().__init__("1s", factor=2, limit="30s", attempts=1, jitter=0.2)
        self.attempts = 1_000_000_000


def kill_channel_of(channel: str) -> str:
    return f"{channel}.kill"


def exchange_of(parts: DriverParts, channel: str, make_broker: Callable[[], Broker]) -> Exchange:
    """The exchange of this scheduler for a channel."""
    found = parts.shared.get(channel)
    if not isinstance(found, Exchange):
        found = parts.shared[channel] = Exchange(channel, make_broker, parts.clock)
    return found


class Exchange:
    """Senders and source of one broker."""

    def __init__(self, channel: str, make_broker: Callable[[], Broker], clock: Clock) -> None:
        self.channel = channel
        self._make_broker = make_broker
        self._made: Broker | None = None
        self._dropped = LogSummary(clock.elapsed)
        self.senders: Sequence[Sender] = (
            _sender(channel, channel, self._push),
            _sender(kill_channel_of(channel), channel, self._kill),
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
                reports.append(report_of(decode_report(each.data)))
            except InvalidInput as error:
                self._warn_of_dropped(f"{self.name}: {error}")
                unreadable.append(each)
                await asyncio.sleep(0)  # to find out took as long as its sender wanted
        if unreadable:
            await self._broker.acknowledge(unreadable)
        dropped = {id(each) for each in unreadable}
        token = [each for each in incoming if id(each) not in dropped]
        return Received(reports=reports, token=token, has_more=len(incoming) >= most)

    def _warn_of_dropped(self, why: str) -> None:
        say = functools.partial(log.warning, "a report of a worker cannot be read, and is dropped: %s", why)
        self._dropped.tell("dropped", "", log, logging.WARNING, say, _dropped_words, about=why, lines=1)

    async def confirm(self, received: Received) -> None:
        incoming: Sequence[Incoming] = received.token
        await self._broker.acknowledge(incoming)


def _dropped_words(count: int, names: list[str], seconds: float | None) -> str:
    return f"{count} more reports of workers could not be read, and were dropped{such_as(names, seconds)}"


def _sender(channel: str, line: str, deliver_many: DeliverMany) -> Sender:
    return Sender(
        channel=channel,
        line=line,
        deliver_many=deliver_many,
        batch=BATCH,
        concurrency=_JOURNEYS,
        retry=_Patience(),
        timeout=_TIMEOUT,
    )


def report_of(said: WorkerReport) -> Report:
    """What a worker said, as the ledger takes it. A result that is too large does not undo the work: it is left out."""
    result = None if said.result is None else msgspec.json.encode(said.result)
    if result is not None and len(result) > RESULT_MAX_BYTES:
        log.warning("the result of run %s is not kept: it takes more than %d bytes", said.run, RESULT_MAX_BYTES)
        result = None
    return Report(
        id=said.run,
        fence=said.fence,
        kind=said.kind,
        progress=said.fraction,
        progress_text=said.text,
        result=result,
        error=said.error,
        reason=said.reason,
        retry=said.retry,
        retry_after=None if said.after is None else round(said.after * 1e6),
        worker=said.worker,
        took=None if said.took is None else round(said.took * 1e6),
        lines=tuple((moment_of(at, what="report: log"), level, text) for at, level, text in said.log),
        seq=said.seq if said.log else None,
    )
