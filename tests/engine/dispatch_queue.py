"""An external queue with its workers, in memory, for tests of dispatched runs. It can be away, and lose its memory.

Nodes push to it and read reports from it as they would with a real one; the workers are the test itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from evertick import Context, Message
from evertick.driver.base import Dispatch, Driver, Received, Sender
from evertick.driver.spec import DriverParts, Spec
from evertick.job.arguments import FreeArguments
from evertick.model import ClaimedMessage, DispatchMode, Report
from evertick.model.retry import Constant
from evertick.when.moment import HOUR, SECOND

__all__ = ["KILLS", "QUEUE", "Dispatching", "Queue"]

QUEUE, KILLS = "queue", "kills"


class Queue:
    """The received messages, and the reports of its workers that are not confirmed."""

    def __init__(self) -> None:
        self.pushed: list[dict[str, Any]] = []
        self.kills: list[dict[str, Any]] = []
        self.journeys: list[int] = []
        self.is_away = self.is_away_for_readers = False
        # The next journey comes to nothing, and not before this is set.
        self.breaks_at: asyncio.Event | None = None
        # How many of the next confirmations are ignored.
        self.forgets_confirmed = 0
        self._said: deque[Report] = deque()
        self._has_news = asyncio.Event()
        self.confirmed: list[Report] = []
        self.name, self.channel = "a queue in memory", QUEUE
        # It rejects messages of runs with these values of the argument `n`.
        self.refuses: set[object] = set()

    # what nodes do

    async def push(self, messages: Sequence[ClaimedMessage]) -> list[BaseException | None]:
        breaks_at, self.breaks_at = self.breaks_at, None
        if breaks_at is not None:
            await breaks_at.wait()
            raise ConnectionError("the line broke")
        if self.is_away:
            raise ConnectionError("no answer")
        self.journeys.append(len(messages))
        answers: list[BaseException | None] = []
        for message in messages:
            body = msgspec.json.decode(message.body)
            if body["args"].get("n") in self.refuses:
                answers.append(ValueError("the queue does not take this"))
            else:
                self.pushed.append(body)
                answers.append(None)
        return answers

    async def kill(self, message: Message) -> None:
        if self.is_away:
            raise ConnectionError("no answer")
        self.kills.append(message.body)

    async def receive(self, most: int, seconds: float) -> Received:
        self._refuse_readers()
        if not self._said:
            self._has_news.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._has_news.wait()
            except TimeoutError:
                return Received(reports=())
            self._refuse_readers()
        reports = [self._said.popleft() for _ in range(min(most, len(self._said)))]
        return Received(reports=reports, has_more=len(reports) >= most)

    def _refuse_readers(self) -> None:
        if self.is_away or self.is_away_for_readers:
            raise ConnectionError("no answer")

    async def confirm(self, received: Received) -> None:
        if self.forgets_confirmed:
            self.forgets_confirmed -= 1
            self.say(*received.reports)
            raise ConnectionError("the line broke")
        self.confirmed += received.reports

    # what workers do

    def say(self, *reports: Report) -> None:
        self._said.extend(reports)
        self._has_news.set()

    def tell(self, job: dict[str, Any], kind: str, **fields: Any) -> None:
        self.say(Report(id=job["run"], fence=job["fence"], kind=kind, **fields))  # type: ignore[arg-type]


class Dispatching(Spec):
    """A job that is dispatched to the queue of the connection named "queueing"."""

    driver: ClassVar[str] = "queueing"
    mode: DispatchMode = "finish"
    ack_timeout: int = HOUR
    progress_timeout: int = HOUR
    tries: int = 1_000
    pause: float = 0.05

    def make_driver(self, task: str, parts: DriverParts) -> Driver:
        return HandingDriver(self, task, parts)


class HandingDriver:
    name = "queueing"
    can_be_cancelled = True
    kill_after = 0

    def __init__(self, spec: Dispatching, task: str, parts: DriverParts) -> None:
        self._spec, self._arguments, self._parts = spec, FreeArguments(task), parts

    @property
    def queue(self) -> Queue:
        queue = self._parts.connections["queueing"]
        assert isinstance(queue, Queue)
        return queue

    def prepare(self, args: bytes) -> dict[str, Any]:
        return self._arguments.decode(args)

    async def execute(self, context: Context, arguments: dict[str, Any]) -> Dispatch:
        spec = self._spec
        payload = {"v": 1, "run": context.run_id, "fence": context.fence, "args": arguments, "attempt": context.attempt}
        return Dispatch(
            channel=QUEUE,
            payload=object() if arguments.get("is_odd") else payload,
            mode=spec.mode,
            ack_timeout=spec.ack_timeout,
            progress_timeout=spec.progress_timeout,
            kill_channel=KILLS,
        )

    def senders(self) -> list[Sender]:
        retry = Constant(self._spec.pause, attempts=self._spec.tries)
        return [
            Sender(
                channel=QUEUE,
                deliver=self._deliver,
                deliver_many=self.queue.push,
                retry=retry,
                concurrency=1,
                timeout=5 * SECOND,
            ),
            Sender(channel=KILLS, line=QUEUE, deliver=self.queue.kill, retry=retry),
        ]

    async def _deliver(self, message: Message) -> None:
        raise AssertionError(f"many go by one journey, and not {message.key} alone")

    def sources(self) -> list[Queue]:
        return [self.queue]
