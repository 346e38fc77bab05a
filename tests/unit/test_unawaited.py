"""A call without await is reported with its line and the fix, and counts as a coroutine for asyncio."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import preloaded
from evertick import Calendar, Context, InvalidArguments, Run, Scheduler
from evertick.job.context import JobRecord
from evertick.model import Claimed
from evertick.scheduler.sync import SyncScheduler

NOW = datetime.now(UTC)


@pytest.fixture
def scheduler() -> Scheduler:
    scheduler = Scheduler("sqlite://")

    @scheduler.task
    def send_mail(to: str = "ada") -> None: ...

    return scheduler


def here(offset: int = 0) -> str:
    """File and line of the caller."""
    frame = sys._getframe(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno + offset}"


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    gc.collect()
    return [
        record.getMessage() for record in caplog.records if (record.name, record.levelno) == ("evertick", logging.ERROR)
    ]


async def test_a_call_without_await_names_its_line_and_the_fix(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    send_mail = scheduler.runtime.tasks["send_mail"]
    line = here(+1)
    send_mail.enqueue(to="ada")
    fix = "send_mail.enqueue(...) was not awaited and did nothing; write `await send_mail.enqueue(...)`"
    assert errors(caplog) == [f"{line}: {fix}"]
    assert await scheduler.runs() == []
    await scheduler.close()


def test_in_sync_code_the_fix_is_the_sync_form(scheduler: Scheduler, caplog: pytest.LogCaptureFixture) -> None:
    send_mail = scheduler.runtime.tasks["send_mail"]
    line = here(+1)
    send_mail.options(delay="1m").enqueue(to="ada")
    assert errors(caplog) == [
        f"{line}: send_mail.options(...).enqueue(...) was not awaited and did nothing; write "
        "`send_mail.options(...).sync.enqueue(...)`, or `await send_mail.options(...).enqueue(...)` in async code"
    ]
    assert scheduler.sync.runs() == []
    scheduler.sync.close()


# Values that are checked at the call; "x" is enough for the others.
VALUES = {"when": "every 5m", "kept": "7d", "calendar": Calendar("x"), "fire_at": NOW, "to": NOW}
PUBLIC = [name for name, _ in inspect.getmembers(Scheduler, asyncio.iscoroutinefunction) if not name.startswith("_")]


def test_every_async_call_of_a_scheduler_has_a_sync_form_that_the_error_can_name() -> None:
    assert {name for name in PUBLIC if not hasattr(SyncScheduler, name)} == set()
    assert len(PUBLIC) > 40


@pytest.mark.parametrize("name", PUBLIC)
def test_every_async_call_without_await_raises_an_error(
    name: str, scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    taken = inspect.signature(getattr(scheduler, name)).parameters.values()
    needed = [each for each in taken if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
    keywords = {each.name: VALUES.get(each.name, "x") for each in needed if each.kind is each.KEYWORD_ONLY}
    positional = [VALUES.get(each.name, "x") for each in needed if each.kind is not each.KEYWORD_ONLY]
    line = here(+1)
    getattr(scheduler, name)(*positional, **keywords)
    assert errors(caplog) == [
        f"{line}: scheduler.{name}(...) was not awaited and did nothing; write `scheduler.sync.{name}(...)`, or `await "
        f"scheduler.{name}(...)` in async code"
    ]


async def test_a_backfill_without_await_raises_an_error(scheduler: Scheduler, caplog: pytest.LogCaptureFixture) -> None:
    line = here(+1)
    scheduler.backfill("k", NOW - timedelta(days=1), NOW)
    assert errors(caplog) == [
        f"{line}: scheduler.backfill(...) was not awaited and did nothing; write `await scheduler.backfill(...)`"
    ]


async def test_an_awaited_closed_or_cancelled_call_raises_nothing(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    send_mail = scheduler.runtime.tasks["send_mail"]
    await send_mail.enqueue()
    await send_mail.options(priority=1).enqueue()
    send_mail.enqueue().close()
    cancelled = asyncio.create_task(scheduler.runs())
    cancelled.cancel()
    await asyncio.wait({cancelled})
    with pytest.raises(InvalidArguments):
        await send_mail.enqueue(to=7)
    assert errors(caplog) == []
    assert len(await scheduler.runs()) == 2
    await scheduler.close()


def test_wrong_arguments_of_a_call_are_refused_at_the_call(scheduler: Scheduler) -> None:
    with pytest.raises(TypeError, match="pause"):
        scheduler.pause()  # type: ignore[call-arg]


def test_a_call_can_be_run_alone(scheduler: Scheduler, caplog: pytest.LogCaptureFixture) -> None:
    run = asyncio.run(scheduler.runtime.tasks["send_mail"].enqueue(to="ada"))
    assert isinstance(run, Run)
    asyncio.run(scheduler.close())
    assert errors(caplog) == []


async def test_a_call_is_accepted_as_a_coroutine(scheduler: Scheduler, caplog: pytest.LogCaptureFixture) -> None:
    send_mail, loop = scheduler.runtime.tasks["send_mail"], asyncio.get_running_loop()
    call = send_mail.enqueue()
    assert asyncio.iscoroutine(call)
    assert inspect.isawaitable(call)
    assert asyncio.iscoroutinefunction(send_mail.enqueue), "a web framework asks so whether to await it"
    assert "Task.enqueue" in repr(call)
    task = asyncio.create_task(call, name="mine")
    assert "Task.enqueue" in repr(task)
    assert task.get_stack()
    found: list[Any] = [await task]
    found += await asyncio.gather(send_mail.enqueue(), send_mail.enqueue())
    found += [await asyncio.wait_for(send_mail.enqueue(), 5), await asyncio.shield(send_mail.enqueue())]
    async with asyncio.TaskGroup() as group:
        member = group.create_task(send_mail.enqueue())
    found.append(member.result())
    from_thread = list[Run]()

    def in_thread() -> None:
        from_thread.append(asyncio.run_coroutine_threadsafe(send_mail.enqueue(), loop).result(10))

    thread = threading.Thread(target=in_thread)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert len({run.id for run in [*found, *from_thread]}) == 7
    await scheduler.close()
    assert errors(caplog) == []


async def test_a_call_is_awaited_once(scheduler: Scheduler) -> None:
    call = scheduler.runs()
    await call
    with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
        await call
    await scheduler.close()


FORGOTTEN = {
    "in a function": """
        def view():
            job.enqueue()
        view()
    """,
    "in async code": """
        async def main():
            job.enqueue()
        asyncio.run(main())
    """,
    "kept until the interpreter ends": """
        kept = job.enqueue()
    """,
    "in a cycle until the interpreter ends": """
        class Node: ...
        node = Node()
        node.self, node.call = node, job.enqueue()
        import gc
        gc.disable()
        del node
    """,
    "in a thread": """
        import threading
        thread = threading.Thread(target=lambda: job.enqueue())
        thread.start()
        thread.join()
    """,
    "with logging set up": """
        logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
        job.enqueue()
    """,
    "with warnings as errors": """
        import warnings
        warnings.simplefilter("error")
        job.enqueue()
    """,
}


@pytest.mark.parametrize("program", FORGOTTEN)
def test_a_forgotten_await_is_reported_once_without_any_setup(program: str, tmp_path: Path) -> None:
    lines = [line.removeprefix(" " * 8) for line in FORGOTTEN[program].strip("\n").splitlines()]
    script = tmp_path / "program.py"
    head = ["import asyncio, logging", "from evertick import Scheduler", "scheduler = Scheduler('sqlite://')"]
    head += ["@scheduler.task", "def job(): ..."]
    script.write_text("\n".join([*head, *lines, ""]))
    answer = preloaded.run([sys.executable, str(script)], check=True, cwd=tmp_path, timeout=60)
    number = next(number for number, line in enumerate([*head, *lines], 1) if "job.enqueue()" in line)
    # Python finalises objects in a cycle in any order, and may warn before the call can prevent it.
    warned = "never awaited" if "cycle" in program else None
    [message] = [line for line in answer.stderr.splitlines() if warned is None or warned not in line]
    assert f"{script}:{number}: job.enqueue(...) was not awaited and did nothing; write `" in message
    assert "await job.enqueue(...)`" in message


async def test_a_finish_without_await_on_an_async_connection_raises_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """The write happens only when the call is awaited."""
    from evertick.job.transaction import Holder

    class Within:
        is_async = True

    class Store:
        def within(self, connection: object) -> Within:
            return Within()

    run = Claimed(id="r", fence=1, task="t", args=b"{}", fire_at=0, due_at=0, claimed_at=0)
    context = Context(JobRecord(run, Scheduler("sqlite://").runtime.clock, None, Holder(Store(), "app", "node", 1)))  # type: ignore[arg-type]
    line = here(+1)
    context.finish(connection=object())
    assert errors(caplog) == [f"{line}: ctx.finish(...) was not awaited and did nothing; write `await ctx.finish(...)`"]


async def test_an_operation_used_as_a_decorator_is_refused_with_the_decorators(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TypeError, match=r"scheduler\.schedule\(\.\.\.\) is not a decorator.*@scheduler\.every, \.cron"):

        @scheduler.schedule("every 5m")
        def job() -> None: ...

    assert errors(caplog) == []
