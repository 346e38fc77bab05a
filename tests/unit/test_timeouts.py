"""One timer for the timeouts of all attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from evertick.clock import system_clock
from evertick.driver.base import Work
from evertick.engine.node import Attempt
from evertick.engine.work import Timeouts
from evertick.job.context import JobRecord
from evertick.model import Claimed
from simulation.loop import VirtualLoop

SECOND = 1_000_000


def attempt(name: str) -> Attempt:
    run = Claimed(id=name, fence=1, task="job", args=b"{}", fire_at=0, due_at=0, claimed_at=0)
    return Attempt(run, Work(task="job", driver=None, hash=""), JobRecord(run, system_clock), "node")  # type: ignore[arg-type]


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop("timeouts")
    yield loop
    loop.end()


def test_each_attempt_is_reported_at_its_own_timeout(loop: VirtualLoop) -> None:
    async def main() -> list[tuple[str, float]]:
        began = loop.time()
        reported: list[tuple[str, float]] = []
        timeouts = Timeouts(lambda attempt: reported.append((attempt.run.id, loop.time() - began)))
        timeouts.watch(attempt("long"), 10 * SECOND)
        timeouts.watch(attempt("short"), 2 * SECOND)
        await asyncio.sleep(1)
        timeouts.watch(attempt("late and short"), 2 * SECOND)
        timeouts.watch(attempt("shortest"), SECOND // 2)
        await asyncio.sleep(60)
        return reported

    assert loop.run_until_complete(main()) == [
        ("shortest", 1.5),
        ("short", 2.0),
        ("late and short", 3.0),
        ("long", 10.0),
    ]


def test_an_attempt_that_ends_in_time_is_not_reported(loop: VirtualLoop) -> None:
    async def main() -> list[str]:
        reported: list[str] = []
        timeouts = Timeouts(lambda attempt: reported.append(attempt.run.id))
        attempts = [attempt(str(number)) for number in range(5)]
        for each in attempts:
            timeouts.watch(each, SECOND)
        for each in attempts[:4]:
            timeouts.forget(each, SECOND)
        await asyncio.sleep(60)
        timeouts.watch(attempts[0], SECOND)
        await asyncio.sleep(60)
        return reported

    assert loop.run_until_complete(main()) == ["4", "0"]


def test_a_report_can_remove_an_attempt_and_add_another(loop: VirtualLoop) -> None:
    async def main() -> list[str]:
        reported: list[str] = []

        def over(attempt: Attempt) -> None:
            reported.append(attempt.run.id)
            timeouts.forget(attempt, SECOND)
            if attempt is not again:
                timeouts.watch(again, 2 * SECOND)

        timeouts, again = Timeouts(over), attempt("again")
        timeouts.watch(attempt("first"), SECOND)
        await asyncio.sleep(60)
        return reported

    assert loop.run_until_complete(main()) == ["first", "again"]


def test_a_timer_that_fires_slightly_early_is_not_set_again() -> None:
    async def main() -> list[str]:
        reported: list[str] = []
        timeouts = Timeouts(lambda attempt: reported.append(attempt.run.id))
        # An event loop runs timers that are due within the resolution of its clock.
        asyncio.get_running_loop()._clock_resolution = 60.0  # type: ignore[attr-defined]
        timeouts.watch(attempt("first"), 30 * SECOND)
        timeouts.watch(attempt("much later"), 3600 * SECOND)
        for _ in range(10):
            await asyncio.sleep(0)
        return reported

    assert asyncio.run(main()) == ["first"]
