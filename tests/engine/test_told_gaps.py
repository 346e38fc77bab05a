"""Moments that get no run are told: each where there are few, by their number where a long downtime left many."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from evertick import Event, Scheduler
from evertick.testing import virtual_time

SCHEDULES = 25


async def gaps_after_downtime(
    count: int, caplog: pytest.LogCaptureFixture, *, batch_size: int = 1_000
) -> tuple[list[str], Counter[str]]:
    """What log and hooks have said of schedules that were owed several moments each."""
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
    assert sorted(line.partition(":")[0] for line in lines) == ["s0", "s1", "s2"]
    assert sum(heard.values()) == 3


@pytest.mark.parametrize("batch_size", [1_000, 4])
async def test_many_gaps_are_told_together_and_hooks_hear_of_each(
    caplog: pytest.LogCaptureFixture, batch_size: int
) -> None:
    with caplog.at_level(logging.INFO, "evertick.fire"):
        lines, heard = await gaps_after_downtime(SCHEDULES, caplog, batch_size=batch_size)
    assert len(lines) == 11
    assert lines[-1] == "moments of 15 more schedules: skipped (coalesced); the ledger has each of them"
    assert heard == Counter({f"s{number}": 1 for number in range(SCHEDULES)})
