"""Moments without a run are logged: each of a few, and a count after a long downtime."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from evertick import Event, Scheduler
from evertick.testing import virtual_time
from evertick.testing.clock import SettableClock
from evertick.text.log_level import LogSummary, such_as
from simulation.loop import VirtualLoop

SCHEDULES = 25


async def gaps_after_downtime(
    count: int, caplog: pytest.LogCaptureFixture, *, batch_size: int = 1_000
) -> tuple[list[str], Counter[str]]:
    """The log lines and hook calls for schedules that owed several moments each."""
    scheduler = Scheduler("sqlite://", batch_size=batch_size)
    heard: Counter[str] = Counter()

    @scheduler.task
    async def job() -> None: ...

    @scheduler.on("skipped")
    def skipped(event: Event) -> None:
        heard[event.schedule_key or ""] += 1

    async with virtual_time(scheduler) as kit:
        for number in range(count):
            await scheduler.add(key=f"s{number}", when="every 1m", task=job)
        await kit.advance("1m")
        caplog.clear()
        await kit.downtime("10m")
        await kit.advance("1s")
    lines = [record.getMessage() for record in caplog.records if record.name == "evertick.fire"]
    return [line for line in lines if "coalesced" in line], heard


async def test_each_of_a_few_gaps_has_its_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "evertick.fire"):
        lines, heard = await gaps_after_downtime(3, caplog)
    assert sorted(line.partition(":")[0] for line in lines) == ["schedule 's0'", "schedule 's1'", "schedule 's2'"]
    assert sum(heard.values()) == 3


@pytest.mark.parametrize("batch_size", [1_000, 4])
async def test_many_gaps_are_logged_together_and_hooks_are_called_for_each(
    caplog: pytest.LogCaptureFixture, batch_size: int
) -> None:
    with caplog.at_level(logging.INFO, "evertick.fire"):
        lines, heard = await gaps_after_downtime(SCHEDULES, caplog, batch_size=batch_size)
    assert len(lines) == 11
    assert lines[-1] == "moments of 15 more schedules: skipped (coalesced); the ledger has each gap"
    assert heard == Counter({f"s{number}": 1 for number in range(SCHEDULES)})


async def test_a_node_that_stays_behind_has_a_line_for_each_kind_and_interval_and_not_for_each_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scheduler = Scheduler("sqlite://")
    ticks = 0

    @scheduler.task
    async def job() -> None: ...

    with caplog.at_level(logging.INFO, "evertick.fire"):
        async with scheduler:
            await scheduler.add_many({"key": f"s{n}", "when": "every 20ms", "task": job} for n in range(SCHEDULES))
            while ticks < 10:
                time.sleep(0.1)  # the loop is behind, again and again
                ticks += 1
                await asyncio.sleep(0.1)
        lines = [record.getMessage() for record in caplog.records if "coalesced" in record.getMessage()]
    assert len(lines) <= 12
    assert "more schedules: skipped (coalesced)" in lines[10]
    assert "more gaps of schedules in the last" in lines[-1]
    assert "such as s" in lines[-1]


async def test_after_an_interval_without_more_the_lines_come_one_by_one_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, log = SettableClock(), logging.getLogger("evertick.fire")
    told = LogSummary(clock.elapsed)

    def tell(count: int) -> None:
        for number in range(count):
            told.tell("a", "a", log, logging.WARNING, lambda: log.warning("one"), words, about=f"r{number}")
        told.batch_over("a")

    def words(count: int, names: list[str], seconds: float | None) -> str:
        return f"{count} more{such_as(names, seconds)}"

    tell(12)
    assert [record.getMessage() for record in caplog.records] == ["one"] * 10 + ["2 more"]
    tell(5)
    clock.move(61_000_000)
    told.flush()
    assert caplog.records[-1].getMessage() == "5 more in the last 61 s, such as r0, r1, r2"
    caplog.clear()
    tell(3)
    assert [record.getMessage() for record in caplog.records] == ["one"] * 3


def test_a_warning_that_repeats_is_a_line_a_minute(loop: VirtualLoop, caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("odd")
    summary = LogSummary(loop.time)

    def tell(about: str, count: int = 1) -> None:
        say = functools.partial(log.warning, "odd: %s", about)
        summary.tell("odd", "", log, logging.WARNING, say, words, about=about, count=count, lines=1)

    def words(count: int, names: list[str], seconds: float | None) -> str:
        return f"{count} more{such_as(names, seconds)}"

    async def main() -> None:
        for number in range(100):
            tell(f"number {number} {{}} %s")
        assert caplog.messages == ["odd: number 0 {} %s"]
        await asyncio.sleep(61)
        names = ", ".join(f"number {number} {{}} %s" for number in (1, 2, 3))
        assert caplog.messages[1:] == [f"99 more in the last 60 s, such as {names}"]
        tell("again")
        assert len(caplog.messages) == 2
        await asyncio.sleep(61)
        assert caplog.messages[2:] == ["1 more in the last 60 s, such as again"]
        await asyncio.sleep(61)
        tell("later", count=3)
        assert caplog.messages[3:] == ["odd: later"]
        await asyncio.sleep(7)
        tell("last")
        summary.flush()
        summary.flush()
        assert caplog.messages[4:] == ["1 more in the last 7 s, such as last"]

    loop.run_until_complete(main())


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop("summaries")
    yield loop
    loop.end()
