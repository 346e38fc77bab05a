"""The unreliable queue of a simulation, and its workers.

The queue may lose, duplicate or delay a message or a report, and is unavailable at times. A worker takes a message by
its (run, fence), as the contract says, works, reports progress, and ends by its task; some become silent. What happens
to a message depends only on its key, and not on other messages.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from evertick.driver.base import Received, Sender
from evertick.model import ClaimedMessage, Message, Report
from evertick.model.retry import Constant
from simulation.dispatched import KILLS, MODES, QUEUE
from simulation.jobs import token
from simulation.journal import QueueEvent
from simulation.loop import Machine, VirtualLoop

__all__ = ["TRIES", "OutsideQueue"]

# Attempts until a message is dead: a long outage of the queue loses some.
TRIES = 12
_LOST, _DOUBLED, _LATE, _SILENT, _ERRED, _LATE_ANSWER = 0.08, 0.15, 0.12, 0.1, 0.08, 0.3
# A report that is not confirmed is delivered again after this.
_HELD_SECONDS = 6.0
_LOOK_SECONDS = 1.0


class _QueuedReport:
    """A report in the queue."""

    __slots__ = ("held_until", "report")

    def __init__(self, report: Report) -> None:
        self.report = report
        self.held_until = 0.0


class OutsideQueue:
    """Shared by all nodes. `record` records its events."""

    def __init__(
        self, loop: VirtualLoop, seed: str, record: Callable[[QueueEvent], None], now: Callable[[], int]
    ) -> None:
        self._loop = loop
        self._seed = seed
        self._record = record
        self._now = now
        self._machine = Machine("workers")
        self._reports: list[_QueuedReport] = []
        # Calls that wait for the next report.
        self._waiting: list[asyncio.Future[None]] = []
        self._taken: set[tuple[str, int]] = set()
        self._kills: set[tuple[str, int]] = set()
        self._tries: dict[str, int] = {}
        self._outages_now = 0
        # The number of outages: each breaks the open connections.
        self._outages = 0
        self._is_healed = False
        self.name, self.channel = "the queue", QUEUE

    # --- faults

    def go_away(self) -> None:
        self._outages_now += 1
        self._outages += 1
        self._record(QueueEvent(self._now(), "went away", "", 0, "", 0))

    def come_back(self) -> None:
        was_away, self._outages_now = self._outages_now, max(self._outages_now - 1, 0)
        if was_away and not self._outages_now:
            self._record(QueueEvent(self._now(), "came back", "", 0, "", 0))

    def heal(self) -> None:
        self._is_healed = True
        while self._outages_now:
            self.come_back()

    def _chance(self, what: str) -> random.Random:
        """Random numbers for one subject, independent of all others."""
        return random.Random(f"{self._seed} {what}")

    def _happens(self, share: float, chance: random.Random) -> bool:
        return chance.random() < share and not self._is_healed

    # --- the interface for nodes

    def senders(self) -> dict[str, Sender]:
        retry = Constant("1s", attempts=TRIES)
        many = {"deliver_many": self.push, "batch": 5}
        return {
            QUEUE: Sender(channel=QUEUE, deliver=self.kill, retry=retry, timeout=3_000_000, concurrency=2, **many),  # type: ignore[arg-type]
            KILLS: Sender(channel=KILLS, deliver=self.kill, retry=retry, timeout=3_000_000, concurrency=2),
        }

    async def push(self, messages: Sequence[ClaimedMessage]) -> list[BaseException | None]:
        await asyncio.sleep(0.01)
        if self._outages_now:
            raise ConnectionError("the queue is unavailable")
        answers = [self._push(message) for message in messages]
        chance = self._chance(f"answer {messages[0].key} {self._tries[messages[0].key]}")
        if self._happens(_LATE_ANSWER, chance):
            await asyncio.sleep(chance.uniform(0, 2))  # so that workers report first
        return answers

    def _push(self, message: ClaimedMessage) -> BaseException | None:
        number = self._tries[message.key] = self._tries.get(message.key, 0) + 1
        body, chance = msgspec.json.decode(message.body), self._chance(f"push {message.key} {number}")
        self._record_event("pushed", body)
        if not self._happens(_LOST, chance):
            late = chance.uniform(0, 2) * body["args"]["ack"] if self._happens(_LATE, chance) else 0.0
            for copy in range(1 + self._happens(_DOUBLED, chance)):
                work = self._work(body, late + copy * chance.uniform(0, 3))
                self._loop.start(self._machine, work)
        return ConnectionError("the connection was lost after the push") if self._happens(_ERRED, chance) else None

    async def kill(self, message: Message) -> None:
        if self._outages_now:
            raise ConnectionError("the queue is unavailable")
        self._kills.add((message.body["run"], message.body["fence"]))

    async def receive(self, most: int, seconds: float) -> Received:
        until, outages = self._loop.time() + seconds, self._outages
        while True:
            if self._outages_now or outages != self._outages:
                raise ConnectionError("the queue is unavailable")
            free = [queued for queued in self._reports if queued.held_until <= self._loop.time()][:most]
            if free or self._loop.time() >= until:
                break
            news = self._loop.create_future()
            self._waiting.append(news)
            await asyncio.wait([news], timeout=_LOOK_SECONDS)
        for queued in free:
            queued.held_until = self._loop.time() + _HELD_SECONDS
        return Received(reports=[queued.report for queued in free], token=free, has_more=len(free) >= most)

    async def confirm(self, received: Received) -> None:
        await asyncio.sleep(0.01)
        if self._outages_now:
            raise ConnectionError("the queue is unavailable")
        confirmed = {id(queued) for queued in received.token}
        self._reports = [queued for queued in self._reports if id(queued) not in confirmed]

    # --- workers

    async def _work(self, body: dict[str, Any], late: float) -> None:
        await asyncio.sleep(late + 0.05)
        claim = (body["run"], body["fence"])
        if claim in self._taken or claim in self._kills:
            return
        self._taken.add(claim)
        self._record_event("started", body)
        chance = self._chance(f"work {claim}")
        if MODES.get(body["task"]) == "forget":
            return
        await self._report(body, "taken")
        if self._happens(_SILENT, chance):
            self._record_event("fell silent", body)
            return
        left, every = body["args"]["seconds"], body["args"]["progress"] / 3
        while left > 0:
            await asyncio.sleep(min(left, every))
            left -= every
            if claim in self._kills:
                self._record_event("killed", body)
                await self._report(body, "fail", error="killed", reason="killed")
                return
            if left > 0:
                await self._report(body, "progress", progress=0.5)
        await self._end(body)

    async def _end(self, body: dict[str, Any]) -> None:
        task, attempt = body["task"], body["attempt"]
        if task == "built_failing" or (task == "built_flaky" and attempt < 3):
            self._record_event("failed", body)
            await self._report(body, "fail", error=f"fails at attempt {attempt}")
        elif task == "built_skipping":
            self._record_event("skipped", body)
            await self._report(body, "skip", reason="nothing to do")
        else:
            self._record_event("finished", body)
            result = f'"{token(body["run"], body["fence"])}"'.encode()
            await self._report(body, "finish", result=result)

    async def _report(self, body: dict[str, Any], kind: Any, **fields: Any) -> None:
        """Send a report without waiting for an answer."""
        report = Report(id=body["run"], fence=body["fence"], kind=kind, **fields)
        chance = self._chance(f"report {report.id} {report.fence} {kind} {self._loop.time():.3f}")
        if self._happens(_LOST, chance):
            return
        for copy in range(1 + self._happens(_DOUBLED, chance)):
            late = chance.uniform(0, 1) * body["args"]["progress"] if self._happens(_LATE, chance) else 0.02
            self._loop.call_later(late + copy * chance.uniform(0, 2), self._arrive, report)

    def _arrive(self, report: Report) -> None:
        self._reports.append(_QueuedReport(report))
        waiting, self._waiting = self._waiting, []
        for news in waiting:
            if not news.done():
                news.set_result(None)

    def _record_event(self, what: str, body: dict[str, Any]) -> None:
        self._record(QueueEvent(self._now(), what, body["run"], body["fence"], body["task"], body["attempt"]))
