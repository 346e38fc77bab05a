"""Each loop logs an unavailable server once, and its recovery once."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from evertick import DutyContext, Message, Scheduler
from evertick.scheduler.scheduler import Health

PATIENCE = 30.0
# Attempts to connect that are turned away before the server is back: some seconds of an outage.
TURNED_AWAY = 60


class Door:
    """A proxy of the server that can be shut: it closes connections, and rejects and counts new ones."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._is_open = True
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._changed = asyncio.Condition()
        self._turned_away = 0

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        return self._target._replace(netloc=f"{self._target.username}@127.0.0.1:{port}").geturl()

    def shut(self) -> None:
        self._is_open = False
        for writer in self._writers:
            writer.transport.abort()

    def reopen(self) -> None:
        self._is_open = True

    async def until_turned_away(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: self._turned_away >= count)

    async def close(self) -> None:
        self._server.close()
        self.shut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._is_open:
            writer.transport.abort()
            async with self._changed:
                self._turned_away += 1
                self._changed.notify_all()
            return
        ahead, behind = await asyncio.open_connection(self._target.hostname, self._target.port)
        self._writers |= {writer, behind}
        for pump in (self._pump(reader, behind), self._pump(ahead, writer)):
            self._tasks.add(asyncio.create_task(pump))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()


@pytest.fixture
async def door(postgres_url: str) -> AsyncIterator[Door]:
    door = Door(postgres_url)
    yield door
    await door.close()


def told(records: list[logging.LogRecord]) -> Counter[str]:
    """The messages without durations and reasons."""
    messages = (record.getMessage() for record in records if record.name.startswith("evertick"))
    return Counter(
        re.sub(r"( after |, retrying: |(?<=not received): ).*", "", message, flags=re.DOTALL) for message in messages
    )


async def test_every_loop_logs_an_outage_once_and_its_end_once(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    scheduler = Scheduler(await door.start(), lease="6s", poll_interval="200ms", node_name="n")

    @scheduler.every("200ms")
    async def tick() -> None: ...

    @scheduler.sender("bell")
    async def ring(message: Message) -> None: ...

    @scheduler.duty("watch")
    async def watch(duty: DutyContext) -> None:
        await asyncio.Event().wait()

    async with scheduler:
        caplog.set_level(logging.INFO, logger="evertick")
        async with asyncio.timeout(PATIENCE):
            while "duty 'watch': taken" not in caplog.text:
                await asyncio.sleep(0.05)
        door.shut()
        await door.until_turned_away(TURNED_AWAY)
        during = told(caplog.records)
        door.reopen()
        async with asyncio.timeout(PATIENCE):
            while not (health := await scheduler.health()).is_healthy or _still_failing(health):
                await asyncio.sleep(0.05)
            while "wake-ups are received again" not in caplog.text or "heartbeat recovered" not in caplog.text:
                await asyncio.sleep(0.05)
        after = told(caplog.records)
    waiting = {name for name in during if name.startswith("loop ")}
    assert {f"loop {name}: store unavailable" for name in ("fire", "work", "outbox")} <= waiting
    assert not [name for name in during if "again" in name or "recovered" in name]
    for name in ("node n: heartbeat failed", "wake-ups are not received", *waiting):
        assert after[name] == 1, (name, after)
    for name in waiting:
        assert after[name.replace("store unavailable", "recovered")] == 1, (name, after)
    assert after["node n: heartbeat recovered"] == after["wake-ups are received again"] == 1


def _still_failing(health: Health) -> bool:
    return health.engine is None or any(loop.error for loop in health.engine.loops)
