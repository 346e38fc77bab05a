"""What a newcomer writes on the first day, and the sentence that answers it. Nothing is kept of what is refused."""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evertick import (
    Constant,
    InvalidArguments,
    InvalidInput,
    InvalidSetting,
    Refused,
    Scheduler,
    WouldBlock,
)
from evertick.model import Verdict
from evertick.scheduler.process import importing


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler("sqlite://", stop_timeout="1s")


@pytest.mark.parametrize(
    "options", [{"overlap": "never"}, {"args": {"x": 1}}, {"key": " k"}, {"catch_up": "some"}, {"tyop": 1}]
)
def test_a_refused_declaration_leaves_nothing_behind(scheduler: Scheduler, options: dict[str, Any]) -> None:
    async def job() -> None: ...

    with pytest.raises((InvalidInput, InvalidArguments)):
        scheduler.every("1h", **options)(job)
    scheduler.every("1h")(job)


def test_a_taken_key_leaves_no_task_behind(scheduler: Scheduler) -> None:
    @scheduler.every("1h", key="k")
    async def first() -> None: ...

    async def second() -> None: ...

    with pytest.raises(InvalidInput, match="schedule 'k' is declared twice"):
        scheduler.every("1h", key="k")(second)
    assert "second" not in scheduler.runtime.tasks


def test_options_of_another_rule_are_refused_with_those_that_are_known(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidSetting, match=r"every\('1s'\): dst: cron\(\) takes it; every\(\) takes after, .*since"):
        scheduler.every("1s", dst="skip")  # type: ignore[call-arg]
    with pytest.raises(InvalidSetting, match=r"since: every\(\) takes it; cron\(\) takes .*key.*name"):
        scheduler.cron("* * * * *", since="start")  # type: ignore[call-arg]


@pytest.mark.parametrize(("given", "meant"), [("dealy", "delay"), ("countdown", "delay"), ("unique_key", "unique")])
def test_an_option_of_a_call_under_another_name_is_refused_with_its_own(
    scheduler: Scheduler, given: str, meant: str
) -> None:
    task = scheduler.task(lambda: None, name="job")
    with pytest.raises(
        InvalidSetting, match=rf"{given}: no such option; it is called {meant}: options\({meant}='5m'\)"
    ):
        task.options(**{given: "5m"})  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match="zzz: no such option; there are delay, at, priority"):
        task.options(zzz=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("declare", "told"),
    [
        (
            lambda s: s.cron("* * * * *", retires=3),
            "cron('* * * * *'): retires: no such option; write retry=Constant('10s'",
        ),
        (
            lambda s: s.every("1h", max_retries=3),
            "every('1h'): max_retries: no such option; write retry=Constant('10s'",
        ),
        (lambda s: s.every("1h", timeot="5s"), "no such option; it is called timeout: every(timeout='5s')"),
        (
            lambda s: s.when("hourly", timezone="UTC"),
            "timezone: cron(), every() and once() take it as tz; when() takes",
        ),
        (lambda s: s.cron("* * * * *", timezone="UTC"), "it is called tz: cron(tz='UTC')"),
        (lambda s: s.cron("* * * * *", id="k"), "it is called key: cron(key='k')"),
        (lambda s: s.cron("* * * * *", nam="k"), "it is called name: cron(name='k')"),
        (lambda s: s.when("hourly", tz="UTC"), "when('hourly'): tz: cron(), every() and once() take it"),
        (
            lambda s: s.task(timeot="5s", name="x")(lambda: None),
            "no such option; it is called timeout: task(timeout='5s')",
        ),
        (lambda s: s.task(zzz=1, name="x")(lambda: None), "zzz: no such option; there are retry, .*, rate_key, name$"),
    ],
)
def test_an_option_of_a_declaration_under_another_name_is_refused_with_its_own(
    scheduler: Scheduler, declare: Callable[[Scheduler], object], told: str
) -> None:
    with pytest.raises(InvalidSetting) as refused:
        declare(scheduler)
    assert re.search(told if told.endswith("$") else re.escape(told), str(refused.value))


async def test_an_option_of_a_change_is_told_where_it_belongs(scheduler: Scheduler) -> None:
    await scheduler.add(key="k", when="hourly", task="job")
    with pytest.raises(
        InvalidSetting, match="priorty: no such option of a schedule; it is called priority: priority=5"
    ):
        await scheduler.update("k", priorty=5)  # type: ignore[call-arg]
    with pytest.raises(InvalidSetting, match="rate: set it where the task 'job' is made"):
        await scheduler.update("k", rate="5/m")  # type: ignore[call-arg]
    with pytest.raises(InvalidSetting, match=r"tz: it belongs to the rule; write it there, in when=Cron\("):
        await scheduler.update("k", tz="UTC")  # type: ignore[call-arg]
    await scheduler.close()


def test_a_schedule_without_an_argument_that_its_function_needs_is_told_where_to_write_it(scheduler: Scheduler) -> None:
    def pay(x, y=2, **more) -> None: ...  # type: ignore[no-untyped-def]

    told = "pay(x, y=2, **more): missing a required argument: 'x'; write args={'x': …}, or give it a default in the"
    with pytest.raises(InvalidArguments, match=re.escape(told)):
        scheduler.every("5s")(pay)
    with pytest.raises(InvalidArguments, match=r"pay\(x: int\): got an unexpected keyword argument 'z'"):

        @scheduler.every("5s", args={"z": 1}, name="pay")
        def typed(x: int) -> None: ...

    scheduler.every("5s", args={"x": 1})(pay)


def test_a_run_is_printed_in_a_line_and_represented_with_all_its_fields(scheduler: Scheduler) -> None:
    run = scheduler.task(lambda: None, name="pay").sync.enqueue()
    scheduler.sync.close()
    assert str(run) == f"run {run.id} of task 'pay': waiting"
    assert "fire_at=" in repr(run)
    ended = msgspec.structs.replace(run, schedule_key="k", verdict=Verdict.FAILED, reason="timeout")
    assert str(ended) == f"run {run.id} of task 'pay' of schedule 'k': failed (timeout)"


def test_a_context_without_annotation_is_told_how_to_get_it(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidArguments, match="write `ctx: Context` to get the context"):

        @scheduler.task
        async def job(ctx) -> None: ...  # type: ignore[no-untyped-def]


def test_a_method_without_its_object_is_refused(scheduler: Scheduler) -> None:
    class Mailer:
        def send(self) -> None: ...

    with pytest.raises(InvalidArguments, match="is a method without its object"):
        scheduler.task(Mailer.send)
    scheduler.task(Mailer().send)


def test_a_class_is_no_task(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidSetting, match="is no function"):
        scheduler.task(Path)


def test_a_generator_is_refused_as_it_would_never_do_anything(scheduler: Scheduler) -> None:
    def lines() -> Iterator[int]:
        yield 1

    async def more_lines() -> AsyncIterator[int]:
        yield 1

    for function in (lines, more_lines):
        with pytest.raises(InvalidSetting, match="a generator does nothing until it is iterated"):
            scheduler.task(function)


async def test_a_plain_function_around_an_async_one_does_the_work(scheduler: Scheduler) -> None:
    done = asyncio.Event()

    async def work() -> str:
        done.set()
        return "done"

    @scheduler.task
    @functools.wraps(work)
    def wrapped() -> Any:
        return work()

    finished = asyncio.Event()
    scheduler.on("succeeded", lambda event: loop.call_soon_threadsafe(finished.set))
    loop = asyncio.get_running_loop()
    async with scheduler:
        run = await wrapped.enqueue()
        await asyncio.wait_for(finished.wait(), 10)
        assert done.is_set()
        assert (await scheduler.get_run(run.id)).result == "done"


async def test_a_partial_and_a_callable_object_can_be_tasks(scheduler: Scheduler) -> None:
    def add(a: int, b: int) -> int:
        return a + b

    class Greeter:
        async def __call__(self, name: str) -> str:
            return f"hello {name}"

    plus_two = scheduler.task(name="plus_two")(functools.partial(add, b=2))
    greet = scheduler.task(name="greet")(Greeter())
    with pytest.raises(InvalidArguments, match="Expected `str`, got `int`"):
        await greet.enqueue(name=7)  # type: ignore[call-arg]
    ended = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()
    scheduler.on("succeeded", lambda event: loop.call_soon_threadsafe(ended.release))
    async with scheduler:
        runs = [await plus_two.enqueue(a=1), await greet.enqueue(name="you")]
        for _ in runs:
            await asyncio.wait_for(ended.acquire(), 10)
        assert [(await scheduler.get_run(run.id)).result for run in runs] == [3, "hello you"]
    await scheduler.close()


async def test_run_inside_a_loop_says_what_to_write(scheduler: Scheduler) -> None:
    with pytest.raises(WouldBlock, match="use `async with scheduler` here"):
        scheduler.run()


def test_run_while_its_module_is_imported_is_refused(scheduler: Scheduler) -> None:
    with importing("another"), pytest.raises(Refused, match="put it under `if __name__ == '__main__':`"):
        scheduler.run()


def test_entering_twice_is_refused_and_harms_nothing(scheduler: Scheduler) -> None:
    with scheduler:
        with pytest.raises(Refused, match="has started already"), scheduler:
            pass
        assert scheduler.is_healthy
        assert scheduler.sync.schedules() == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.runs(verdicts="failed"), "verdicts: 'failed' is one text; pass a list"),
        (lambda s: s.runs(limit=0), "limit: 0 must be a whole number from 1"),
        (lambda s: s.pause("k", note=5), "note: 5 is not text"),
        (lambda s: s.set_calendar("x"), "calendar: 'x' is not a Calendar"),
        (lambda s: s.add(key="k", when="now and then", task="t"), "now and then"),
        (lambda s: s.add(key="k", when=None, task="t"), "when: None is not a rule"),
    ],
)
async def test_a_slip_is_answered_in_a_sentence(scheduler: Scheduler, call: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await call(scheduler)
    assert message in str(refused.value)
    await scheduler.close()


async def test_a_list_of_calls_that_are_no_dicts_is_refused(scheduler: Scheduler) -> None:
    @scheduler.task
    async def job(n: int) -> None: ...

    with pytest.raises(InvalidArguments, match="1 must be a dict of arguments by name"):
        await job.enqueue_many([1])  # type: ignore[list-item]


def test_a_node_without_queues_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="queues: a node that works on no queue"):
        Scheduler("sqlite://", queues=[])


def test_a_zone_that_is_none_is_named_once() -> None:
    with pytest.raises(InvalidSetting) as refused:
        Scheduler("sqlite://", tz="Berlin")
    assert str(refused.value).count("tz:") == 1


def test_a_failing_job_does_not_fail_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = Scheduler("sqlite://")

    @scheduler.task(retry=Constant("1ms", attempts=2))
    def job() -> None:
        raise RuntimeError("no paper")

    async def until_failed() -> None:
        failed = asyncio.Event()
        loop = asyncio.get_running_loop()
        scheduler.on("failed", lambda event: loop.call_soon_threadsafe(failed.set))
        async with scheduler:
            await job.enqueue()
            await asyncio.wait_for(failed.wait(), 10)

    asyncio.run(until_failed())
    told = [(record.levelno, record.getMessage()) for record in caplog.records if record.name == "evertick.finish"]
    assert [level for level, _ in told] == [logging.WARNING, logging.ERROR]
    assert "attempt 1" in told[0][1]
    assert "RuntimeError: no paper" in told[0][1]
    assert "Traceback" in told[1][1]


LOGGING_PROGRAM = """
import logging
import re
from evertick import Scheduler
with Scheduler("sqlite://") as scheduler:
    logging.getLogger("app").error("seen without any set-up")
    logging.basicConfig(format="SET UP %(message)s")
    logging.getLogger("app").error("seen with it")
"""


def test_the_logging_of_the_program_stays_its_own(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", LOGGING_PROGRAM], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert answer.stderr.splitlines() == ["seen without any set-up", "SET UP seen with it"]


HURRY_PROGRAM = """
import asyncio, time, logging
from evertick import Scheduler
logging.basicConfig(level="INFO")
scheduler = Scheduler("sqlite://", stop_timeout="10m")

@scheduler.every("100ms")
async def slow() -> None:
    print("started", flush=True)
    await asyncio.sleep(600)

scheduler.run()
"""


def test_a_second_signal_ends_the_waiting(tmp_path: Path) -> None:
    import signal

    node = subprocess.Popen([sys.executable, "-c", HURRY_PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert node.stdout is not None
    assert node.stderr is not None
    try:
        assert node.stdout.readline() == b"started\n"
        node.send_signal(signal.SIGINT)
        while b"waiting up to" not in node.stderr.readline():
            pass
        node.send_signal(signal.SIGINT)
        assert node.wait(timeout=20) == 0
    finally:
        node.kill()
        node.wait()
        node.stdout.close()
        node.stderr.close()


def test_an_option_that_a_duty_does_not_have_is_answered_with_those_it_has() -> None:
    scheduler = Scheduler("sqlite://")
    with pytest.raises(InvalidSetting, match="retry: no such option; a duty has every= or when="):
        scheduler.duty("x", every="1s", retry=3)  # type: ignore[call-arg]


def report() -> None: ...


async def report_async() -> None: ...


@pytest.mark.parametrize(
    ("declare", "told"),
    [
        (
            lambda s: s.every(report),
            "@scheduler.every needs an interval before the function report; write @scheduler.every('30s')",
        ),
        (
            lambda s: s.cron(report),
            "@scheduler.cron needs an expression before the function report; write @scheduler.cron('0 9 ",
        ),
        (lambda s: s.once(report), "write @scheduler.once(after='10m')"),
        (lambda s: s.when(report), "write @scheduler.when('weekdays at 18:30')"),
        (lambda s: s.duty(report), "write @scheduler.duty('rebuild-index')"),
        (lambda s: s.sender(report), "write @scheduler.sender('webhook')"),
        (lambda s: s.on(report), "write @scheduler.on('failed')"),
        (lambda s: s.every(s.task(report)), "needs an interval before the function report"),
        (lambda s: s.task("report"), "'report' is no function; write @scheduler.task(name='report')"),
        (lambda s: s.task(report_async()), "report_async() was called; pass the function itself, report_async"),
        (lambda s: s.every("5s")(report_async()), "report_async() was called; pass the function itself, report_async"),
        (lambda s: s.every("5s")(report()), "None is no function; pass the function itself, without calling it"),
        (lambda s: s.on("failed")(report()), "hook: None is no function"),
        (lambda s: s.once("10m"), "once('10m'): a delay is after='10m'"),
        (lambda s: s.once("2027-01-31"), "as text it is for @scheduler.when('once 2026-01-31T09:00:00Z')"),
        (lambda s: s.every("daily at 9:00"), "sentences and cron expressions are for @scheduler.when(...)"),
        (lambda s: s.every("9:00"), "sentences and cron expressions are for @scheduler.when(...)"),
        (lambda s: Scheduler("jobs.db"), "url: 'jobs.db' is no database URL; write it like 'sqlite:///jobs.db'"),
        (lambda s: Scheduler("jobs.sqlite3"), "write it like 'sqlite:///jobs.sqlite3'"),
        (lambda s: Scheduler("x/sqlite/jobs.db"), "write it like 'sqlite:///x/sqlite/jobs.db'"),
        (lambda s: s.every("14d at 9:00"), "'every 14d; since=start; start=2026-01-05T09:00:00Z'"),
    ],
)
def test_a_declaration_that_lacks_its_argument_is_answered_with_the_correct_form(
    scheduler: Scheduler, declare: Callable[[Scheduler], object], told: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        declare(scheduler)
    assert told in str(refused.value)
    assert not scheduler.runtime.declarations.hashes()


def test_the_forms_that_errors_show_are_correct(scheduler: Scheduler) -> None:
    def make(name: str) -> Callable[[], None]:
        def job() -> None: ...

        job.__name__ = name
        return job

    scheduler.every("30s")(make("a"))
    scheduler.cron("0 9 * * mon-fri")(make("b"))
    scheduler.once(after="10m")(make("c"))
    scheduler.when("weekdays at 18:30")(make("d"))
    scheduler.when("once 2026-01-31T09:00:00Z")(make("e"))
    scheduler.duty("rebuild-index")(make("f"))
    scheduler.on("failed")(lambda event: None)
    scheduler.task(name="report")(make("g"))
    assert len(scheduler.runtime.declarations.hashes()) == 5
