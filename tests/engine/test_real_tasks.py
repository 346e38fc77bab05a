"""Every coroutine of a job runs in a real task of its own, with any event loop and for any cause of its run.

From Python 3.12 on, a task takes its first step at once, inside its creator: a job must not notice that.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from evertick import Run, Scheduler, Verdict
from evertick.engine.work import _task_maker

PATIENCE = 20.0

Go = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
whose: contextvars.ContextVar[str] = contextvars.ContextVar("whose")


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def go(request: pytest.FixtureRequest) -> Go:
    """Runs a test on that kind of event loop."""

    def going(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(test(), PATIENCE))

    return going


async def ended(scheduler: Scheduler, run: Run) -> Run:
    while (found := await scheduler.get_run(run.id)).is_live:
        await asyncio.sleep(0.005)
    return found


def test_a_job_is_in_a_task_of_its_own_even_if_it_never_waits(go: Go) -> None:
    scheduler, seen = Scheduler("sqlite://"), list[asyncio.Task[Any] | None]()

    @scheduler.task
    async def quick() -> None:
        seen.append(asyncio.current_task())

    @scheduler.task
    async def waiting() -> None:
        before = asyncio.current_task()
        await asyncio.sleep(0)
        assert asyncio.current_task() is before
        seen.append(before)

    async def test() -> None:
        async with scheduler:
            others = asyncio.all_tasks()
            for run in [*await quick.enqueue_many([{}] * 5), *await waiting.enqueue_many([{}] * 5)]:
                assert (await ended(scheduler, run)).verdict is Verdict.SUCCEEDED
            assert all(isinstance(task, asyncio.Task) for task in seen)
            assert len(set(seen)) == 10
            assert not others & set(seen)

    go(test)
    assert {task.get_name() for task in seen if task} == {"evertick quick", "evertick waiting"}


def test_what_needs_a_task_works_in_the_first_step_of_a_job(go: Go) -> None:
    scheduler, seen = Scheduler("sqlite://"), list[str]()

    @scheduler.task
    async def structured() -> None:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            seen.append("timeout")
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
        seen.append("group")

    async def test() -> None:
        async with scheduler:
            assert (await ended(scheduler, await structured.enqueue())).verdict is Verdict.SUCCEEDED

    go(test)
    assert seen == ["timeout", "group"]


def test_cancelling_a_job_cancels_no_other(go: Go) -> None:
    scheduler, told = Scheduler("sqlite://"), list[str]()
    has_begun = dict[str, asyncio.Event]()

    @scheduler.task
    async def stays(name: str) -> None:
        has_begun[name].set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append(name)
            raise

    async def test() -> None:
        has_begun.update(one=asyncio.Event(), two=asyncio.Event())
        async with scheduler:
            one, two = await stays.enqueue_many([{"name": "one"}, {"name": "two"}])
            for event in has_begun.values():
                await event.wait()
            await scheduler.cancel(one)
            assert (await ended(scheduler, one)).verdict is Verdict.CANCELLED
            assert told == ["one"]
            assert (await scheduler.get_run(two.id)).is_live
            await scheduler.cancel(two)
            assert (await ended(scheduler, two)).verdict is Verdict.CANCELLED

    go(test)
    assert told == ["one", "two"]


def test_a_job_that_cancels_its_own_task_in_its_first_step_cancels_no_other(go: Go) -> None:
    scheduler, seen = Scheduler("sqlite://"), list[str]()

    @scheduler.task
    async def swallows() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            task.uncancel()
            seen.append("cancelled")

    @scheduler.task
    async def after() -> None:
        seen.append("after")

    async def test() -> None:
        async with scheduler:
            assert (await ended(scheduler, await swallows.enqueue())).verdict is Verdict.SUCCEEDED
            assert (await ended(scheduler, await after.enqueue())).verdict is Verdict.SUCCEEDED

    go(test)
    assert seen == ["cancelled", "after"]


def test_what_a_job_puts_into_its_context_is_seen_by_itself_alone(go: Go) -> None:
    scheduler, seen = Scheduler("sqlite://"), list[tuple[str, str]]()

    @scheduler.task
    async def marks(name: str) -> None:
        found = whose.get()
        whose.set(name)
        await asyncio.sleep(0.01)
        seen.append((found, whose.get()))

    async def test() -> None:
        whose.set("program")
        async with scheduler:
            names = [f"job {number}" for number in range(5)]
            for run in await marks.enqueue_many([{"name": name} for name in names]):
                assert (await ended(scheduler, run)).verdict is Verdict.SUCCEEDED
            assert whose.get() == "program"
            # And of what ran before, nothing is left to those that come after.
            assert (await ended(scheduler, await marks.enqueue(name="late"))).verdict is Verdict.SUCCEEDED
        assert sorted(seen) == [("program", name) for name in [*names, "late"]]

    go(test)


def test_a_task_takes_its_first_step_at_once_where_python_can(go: Go) -> None:
    """Before Python 3.12 it takes it when its event loop comes to it."""
    steps = list[str]()

    async def life() -> None:
        steps.append("first step")
        await asyncio.sleep(0)
        steps.append("second step")

    async def test() -> None:
        task = _task_maker(asyncio.get_running_loop())(life(), name="life")
        assert steps == (["first step"] if sys.version_info >= (3, 12) else [])
        await task

    go(test)
    assert steps == ["first step", "second step"]


def test_a_program_that_makes_its_own_tasks_is_asked_for_them(go: Go) -> None:
    scheduler, made = Scheduler("sqlite://"), list[asyncio.Task[Any]]()

    def make(loop: asyncio.AbstractEventLoop, coro: Any, **how: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=loop, **how)
        made.append(task)
        return task

    seen = list[asyncio.Task[Any] | None]()

    @scheduler.task
    async def quick() -> None:
        seen.append(asyncio.current_task())

    async def test() -> None:
        asyncio.get_running_loop().set_task_factory(make)
        async with scheduler:
            assert (await ended(scheduler, await quick.enqueue())).verdict is Verdict.SUCCEEDED

    go(test)
    assert len(seen) == 1
    assert seen[0] in made
