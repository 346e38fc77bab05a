"""The runner of all background loops."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable

import pytest

from evertick.engine import loop as loop_module
from evertick.engine.loop import Idle, Loop
from evertick.engine.loops import LoopKind
from evertick.errors import StoreUnavailable
from evertick.testing.clock import SettableClock
from evertick.when.moment import SECOND

SAFETY_SECONDS = 10.0
KIND = LoopKind(name="test", mode="every-node", does="steps", replicas="Each steps for itself.")


class Steps:
    """A step that counts its calls, returns the given answers, and can be waited for."""

    def __init__(self, *answers: float | Exception | None) -> None:
        self._answers = list(answers)
        self.taken = 0
        self._changed = asyncio.Condition()

    async def __call__(self) -> float | None:
        async with self._changed:
            self.taken += 1
            self._changed.notify_all()
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def reach(self, count: int) -> None:
        async with asyncio.timeout(SAFETY_SECONDS), self._changed:
            await self._changed.wait_for(lambda: self.taken >= count)


def looping(step: Callable[[], Awaitable[float | None]], clock: SettableClock | None = None, rest: float = 60) -> Loop:
    return Loop(KIND, step, clock or SettableClock(), rest_most=rest)


async def ended(loop: Loop, task: asyncio.Task[None]) -> None:
    loop.end()
    await asyncio.wait_for(task, SAFETY_SECONDS)


async def test_a_step_that_returns_zero_is_repeated_at_once() -> None:
    steps = Steps(0, 0, -1)
    loop = looping(steps)
    task = asyncio.create_task(loop.run())
    await steps.reach(4)
    await ended(loop, task)
    assert steps.taken == 4


async def test_a_step_that_returns_none_sleeps_until_a_wake_up() -> None:
    steps = Steps()
    loop = looping(steps)
    task = asyncio.create_task(loop.run())
    await steps.reach(1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert steps.taken == 1
    loop.wake()
    await steps.reach(2)
    await ended(loop, task)


async def test_a_loop_never_sleeps_longer_than_its_maximum() -> None:
    steps = Steps(3600.0, 3600.0)
    loop = looping(steps, rest=0.001)
    task = asyncio.create_task(loop.run())
    await steps.reach(3)
    await ended(loop, task)


async def test_a_wake_during_a_step_is_not_lost() -> None:
    began, go_on = asyncio.Event(), asyncio.Event()
    taken = 0
    second = asyncio.Event()

    async def step() -> float | None:
        nonlocal taken
        taken += 1
        if taken == 1:
            began.set()
            await go_on.wait()
        else:
            second.set()
        return None

    loop = looping(step)
    task = asyncio.create_task(loop.run())
    await asyncio.wait_for(began.wait(), SAFETY_SECONDS)
    loop.wake()
    go_on.set()
    await asyncio.wait_for(second.wait(), SAFETY_SECONDS)
    await ended(loop, task)


async def test_a_stop_before_the_first_step_runs_no_step() -> None:
    steps = Steps()
    loop = looping(steps)
    loop.end()
    await asyncio.wait_for(loop.run(), SAFETY_SECONDS)
    assert steps.taken == 0


async def test_no_error_of_a_step_ends_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "_BACKOFF_FIRST", 0.0001)
    steps = Steps(ValueError("a"), StoreUnavailable("away"), KeyError("b"), None)
    loop = looping(steps)
    task = asyncio.create_task(loop.run())
    await steps.reach(4)
    await ended(loop, task)
    assert loop.health().error is None


async def test_a_failing_loop_waits_longer_each_time_up_to_a_bound() -> None:
    loop = looping(Steps())
    delays = [loop._failed(ValueError("x"), "a step failed") for _ in range(40)]
    bases = [min(0.1 * 2**number, 5.0) for number in range(40)]
    assert all(base * 0.5 <= delay <= base * 1.5 for delay, base in zip(delays, bases, strict=True))


async def test_a_failure_and_its_recovery_are_each_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "_BACKOFF_FIRST", 0.0001)
    away = StoreUnavailable("locked")
    steps = Steps(away, away, away, None)
    loop = looping(steps)
    with caplog.at_level(logging.WARNING):
        task = asyncio.create_task(loop.run())
        await steps.reach(4)
        await ended(loop, task)
    message = [record.getMessage() for record in caplog.records]
    assert message == [
        "the test loop waits: the store cannot be used: locked",
        "the test loop works again after 0.0 s",
    ]


async def test_a_step_without_a_store_call_does_not_log_the_recovery_of_the_store(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "_BACKOFF_FIRST", 0.0001)
    away = StoreUnavailable("locked")
    steps = Steps(away, Idle(0.0001), away, Idle(math.inf), None)
    loop = looping(steps)
    with caplog.at_level(logging.WARNING):
        task = asyncio.create_task(loop.run())
        await steps.reach(4)
        await asyncio.sleep(0)
        assert "works again" not in caplog.text
        assert loop.health().error == "locked"
        # It does not wait for the store now, so every wake-up leads to a step.
        loop.wake()
        await steps.reach(5)
        await ended(loop, task)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "the test loop waits",
        "the test loop works again after 0.0 s",
    ]


async def test_a_loop_that_keeps_failing_becomes_unhealthy_with_the_reason() -> None:
    clock = SettableClock()
    loop = looping(Steps(ValueError("broken")), clock)
    await loop._try()
    assert loop.health().is_healthy
    clock.move(11 * SECOND)
    health = loop.health()
    assert not health.is_healthy
    assert health.error == "ValueError: broken"
    assert health.last_success_seconds_ago is None


async def test_an_unreachable_store_makes_the_loop_unhealthy_later() -> None:
    clock = SettableClock()
    loop = looping(Steps(StoreUnavailable("restarts")), clock)
    await loop._try()
    clock.move(29 * SECOND)
    assert loop.health().is_healthy
    clock.move(2 * SECOND)
    assert not loop.health().is_healthy


async def test_a_step_that_hangs_makes_the_loop_unhealthy() -> None:
    clock, forever = SettableClock(), asyncio.Event()

    async def step() -> float | None:
        await forever.wait()
        return None

    loop = looping(step, clock)
    task = asyncio.create_task(loop.run())
    await asyncio.sleep(0)
    assert loop.health().is_healthy
    clock.move(61 * SECOND)
    assert not loop.health().is_healthy
    forever.set()
    await ended(loop, task)
    assert loop.health().is_healthy


async def test_health_shows_the_time_since_the_last_successful_step() -> None:
    clock = SettableClock()
    loop = looping(Steps(), clock)
    await loop._try()
    clock.move(5 * SECOND)
    assert loop.health().last_success_seconds_ago == 5.0


async def test_a_cancelled_loop_ends() -> None:
    steps = Steps()
    task = asyncio.create_task(looping(steps).run())
    await steps.reach(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_loop_with_repeated_short_failures_logs_them_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = SettableClock()
    away = StoreUnavailable("no connection left")
    loop = looping(Steps(*[answer for _ in range(40) for answer in (away, None)]), clock)
    with caplog.at_level(logging.INFO, "evertick.engine"):
        for _ in range(30):  # a failure every three seconds for a minute and a half
            for _ in range(2):
                await loop._try()
            clock.move(3 * SECOND)
    waits = [record.getMessage() for record in caplog.records if "waits" in record.getMessage()]
    again = [record for record in caplog.records if "works again" in record.getMessage()]
    assert waits == [
        "the test loop waits: the store cannot be used: no connection left",
        "the test loop waits: the store cannot be used: no connection left (and 19 times since it last said so)",
    ]
    assert len(again) == 2


async def test_a_lasting_failure_is_logged_although_another_was_logged_just_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = SettableClock()
    away = StoreUnavailable("gone")
    loop = looping(Steps(away, None, away, away, None), clock)
    with caplog.at_level(logging.INFO, "evertick.engine"):
        for seconds in (1, 1, 6, 1, 1):
            await loop._try()
            clock.move(seconds * SECOND)
    message = [record.getMessage().partition(":")[0].partition(" after")[0] for record in caplog.records]
    assert message == ["the test loop waits", "the test loop works again"] * 2
