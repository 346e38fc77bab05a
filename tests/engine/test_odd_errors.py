"""Any error that users' code raises is a failure of that code: the node and the program continue."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from evertick import Constant, Duty, DutyContext, Event, Message, MessageState, Scheduler, Verdict
from evertick.store.base import DutyTick
from evertick.testing import virtual_time
from evertick.text.error_line import error_summary


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words for it")


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler("sqlite://", node_name="here")


def raising(act: Callable[[], None], *, is_plain: bool) -> Callable[[Any], Awaitable[None] | None]:
    """As a plain function, which gets a thread, or as a coroutine on the event loop itself."""

    def plain(given: Any) -> None:
        act()

    async def coroutine(given: Any) -> None:
        act()

    return plain if is_plain else coroutine


async def duty_of(scheduler: Scheduler, name: str) -> Duty:
    [found] = [duty for duty in await scheduler.duties() if duty.name == name]
    return found


# --- exits


@pytest.mark.parametrize("is_plain", [True, False])
async def test_an_exit_in_a_sender_is_a_failed_delivery(scheduler: Scheduler, is_plain: bool) -> None:
    deliver = raising(lambda: sys.exit("the sender wants out"), is_plain=is_plain)
    scheduler.sender("mail", retry=Constant("1m", attempts=2))(deliver)
    async with virtual_time(scheduler) as kit:
        await scheduler.send("mail", 1)
        await kit.advance("1s")
        [message] = await scheduler.messages()
        assert (message.state, message.attempts) == (MessageState.WAITING, 1)
        await kit.advance("2m")
        [message] = await scheduler.messages()
    assert (message.state, message.attempts) == (MessageState.DEAD, 2)
    assert "SystemExit: the sender wants out" in str(message.error)


async def test_a_sender_may_give_up_on_an_exit(scheduler: Scheduler) -> None:
    @scheduler.sender("mail", give_up_on=(SystemExit,))
    async def mail(message: Message) -> None:
        sys.exit(1)

    async with virtual_time(scheduler) as kit:
        await scheduler.send("mail", 1)
        await kit.advance("1s")
        [message] = await scheduler.messages()
    assert (message.state, message.attempts) == (MessageState.DEAD, 1)


@pytest.mark.parametrize("is_plain", [True, False])
async def test_an_exit_in_a_duty_is_a_failed_act_and_the_rhythm_goes_on(scheduler: Scheduler, is_plain: bool) -> None:
    acts: list[int] = []

    def act() -> None:
        acts.append(1)
        sys.exit("the duty wants out")

    async def act_async(ctx: DutyContext) -> None:
        act()

    def act_plain(ctx: DutyContext) -> None:
        act()

    scheduler.duty("tidy", every="5m")(act_plain if is_plain else act_async)
    async with virtual_time(scheduler) as kit:
        await kit.advance("12m")
        duty = await duty_of(scheduler, "tidy")
    assert (len(acts), duty.term, error_summary(duty.error)) == (3, 1, "SystemExit: the duty wants out")


@pytest.mark.parametrize("is_plain", [True, False])
async def test_an_exit_in_a_hook_harms_neither_the_node_nor_the_other_hooks(
    scheduler: Scheduler, is_plain: bool
) -> None:
    heard: list[str | None] = []
    scheduler.on("succeeded")(raising(lambda: sys.exit("the hook wants out"), is_plain=is_plain))

    @scheduler.on("succeeded")
    def hear(event: Event) -> None:
        heard.append(event.task)

    @scheduler.task
    async def work() -> None: ...

    async with virtual_time(scheduler) as kit:
        for _ in range(2):
            await work.enqueue()
            await kit.advance("1s")
    assert heard == ["work", "work"]


# --- what looks like the end of a task, and is none


async def test_a_cancelled_error_that_a_hook_raises_harms_no_other_hook(scheduler: Scheduler) -> None:
    heard: list[str | None] = []

    @scheduler.on("succeeded")
    async def stumble(event: Event) -> None:
        raise asyncio.CancelledError("something it awaited")

    @scheduler.on("succeeded")
    async def hear(event: Event) -> None:
        heard.append(event.task)

    @scheduler.task
    async def work() -> None: ...

    async with virtual_time(scheduler) as kit:
        await work.enqueue()
        await kit.advance("1s")
    assert heard == ["work"]


async def test_a_cancelled_error_that_a_duty_raises_is_a_failed_act(scheduler: Scheduler) -> None:
    acts: list[int] = []

    @scheduler.duty("tidy", every="1h")
    async def tidy() -> None:
        acts.append(1)
        raise asyncio.CancelledError("something it awaited")

    async with virtual_time(scheduler) as kit:
        await kit.advance("10m")
        duty = await duty_of(scheduler, "tidy")
    assert len(acts) == 1
    assert error_summary(duty.error).endswith("CancelledError: something it awaited")


@pytest.mark.parametrize("is_plain", [True, False])
async def test_a_job_that_raises_generator_exit_has_failed(scheduler: Scheduler, is_plain: bool) -> None:
    calls: list[int] = []

    def end() -> None:
        calls.append(1)
        if len(calls) < 20:  # should it go on and on
            raise GeneratorExit

    async def end_async() -> None:
        end()

    task = scheduler.task(end if is_plain else end_async, name="end")
    async with virtual_time(scheduler) as kit:
        await task.enqueue()
        await kit.advance("5m")
        [run] = await scheduler.runs()
    assert (len(calls), run.verdict, run.attempts, run.reason) == (1, Verdict.FAILED, 1, "error")
    assert "GeneratorExit" in str(run.error)


# --- duties


@pytest.mark.parametrize("error", [ValueError("a\0b"), ValueError(os.fsdecode(b"caf\xe9")), Unspeakable()])
async def test_no_error_of_a_duty_costs_it_its_rhythm(
    scheduler: Scheduler, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    # The log is kept with the test; xdist could not send an unpaired surrogate between processes.
    caplog.set_level(logging.CRITICAL, "evertick")
    acts: list[int] = []

    @scheduler.duty("tidy", every="1h")
    async def tidy() -> None:
        acts.append(1)
        raise error

    async with virtual_time(scheduler) as kit:
        await kit.advance("10m")
        duty = await duty_of(scheduler, "tidy")
    assert (len(acts), duty.term) == (1, 1)
    assert type(error).__name__ in error_summary(duty.error)


async def test_a_duty_whose_act_cannot_be_written_down_keeps_its_rhythm(scheduler: Scheduler) -> None:
    acts: list[int] = []

    @scheduler.duty("tidy", every="1h")
    async def tidy() -> None:
        acts.append(1)

    async def refuse(app: str, node: str, tick: DutyTick) -> bool:
        raise UnicodeEncodeError("utf-8", "\udce9", 0, 1, "surrogates not allowed")

    async with virtual_time(scheduler) as kit:
        (await scheduler.runtime.store()).tick_duty = refuse  # type: ignore[method-assign]
        await kit.advance("150m")
    assert len(acts) == 3


async def test_a_duty_that_fell_over_begins_again_after_a_while(scheduler: Scheduler) -> None:
    acts: list[int] = []

    @scheduler.duty("tidy", every="1h")
    async def tidy() -> None:
        acts.append(1)
        raise GeneratorExit

    async with virtual_time(scheduler) as kit:
        await kit.advance("50s")
        assert len(acts) == 1
        await kit.advance("20s")
        assert len(acts) == 2
