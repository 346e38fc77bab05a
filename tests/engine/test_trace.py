"""At TRACE a node logs each batch with counts and times; at other levels it does not."""

from __future__ import annotations

import asyncio
import logging
import re
from datetime import UTC, datetime

import pytest

from evertick import Constant, Every, Message, Scheduler
from evertick.testing import virtual_time
from evertick.text.log_level import TRACE

START = datetime(2026, 3, 2, tzinfo=UTC)


def told(caplog: pytest.LogCaptureFixture, logger: str) -> list[str]:
    """Without the times, of which it is checked that they are there."""
    said = [each.getMessage() for each in caplog.records if each.name == logger and each.levelno == TRACE]
    assert all(re.search(r" in \d+\.\d ms$", each) for each in said), said
    return [each.rpartition(" in ")[0] for each in said]


async def some_work() -> None:
    scheduler = Scheduler("sqlite://", poll_interval="1s")
    arrived = asyncio.Event()

    @scheduler.task(retry=Constant("1s", attempts=2))
    async def fails() -> None:
        raise RuntimeError("no")

    @scheduler.every("1h")
    async def hourly() -> None: ...

    @scheduler.sender("mail")
    async def mail(message: Message) -> None:
        arrived.set()

    async with virtual_time(scheduler, start=START) as kit:
        await fails.enqueue()
        await scheduler.add(key="other", when=Every("1h"), task="hourly")
        await scheduler.send("mail", {"to": "Ada"})
        await arrived.wait()
        await kit.advance("1h1s")


async def test_each_batch_of_a_node_is_a_line_with_its_counts_and_its_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(TRACE, "evertick")
    await some_work()
    fired, worked, finished = (told(caplog, f"evertick.{name}") for name in ("fire", "work", "finish"))
    assert any(re.match(r"due schedules: read 2 \(limit \d+\)", each) for each in fired)
    assert "recorded 2 of 2 schedules: 2 runs, 2 by fused claims," in fired
    assert any(re.match(r"claimed 1 runs \(limit \d+\), fence \d+, 0 expired,", each) for each in worked)
    assert "wrote 1 outcomes (1 retry; answers: 1 done)" in finished
    assert "wrote 2 outcomes (2 succeeded; answers: 2 done)" in finished
    relayed = told(caplog, "evertick.relay")
    assert [each for each in relayed if not each.startswith("claimed 0")] == [
        "claimed 1 messages (1 mail)",
        "channel mail: delivered 1 of 1 messages",
        "wrote 1 outcomes (1 sent)",
    ]
    assert "heartbeat answered (0 runs to cancel)" in told(caplog, "evertick.beat")


async def test_at_debug_no_batch_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "evertick")
    await some_work()
    assert [each for each in caplog.records if each.levelno < logging.DEBUG] == []
    assert [each for each in caplog.messages if "claimed" in each] == []
