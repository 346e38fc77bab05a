"""Jobs without a function: declared, enqueued, scheduled, run by nodes that have their driver and by no others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from evertick import (
    AlreadyDeclared,
    Constant,
    Context,
    Every,
    InvalidArguments,
    InvalidKey,
    InvalidSetting,
    JobFailed,
    Refused,
    Retry,
    Run,
    Scheduler,
    Secret,
    Skip,
)
from evertick.driver import registry
from evertick.driver.base import Driver
from evertick.driver.secret import Secrets
from evertick.driver.spec import DriverParts, Spec
from evertick.explain.run import explain_run, explain_task
from evertick.job.arguments import FreeArguments
from evertick.scheduler.declaring import keep_task, spec_task
from evertick.testing import virtual_time

SECONDS_MAX = 30.0


class Echo(Spec, frozen=True):
    """Returns its word and its arguments, or another given answer."""

    driver: ClassVar[str] = "echo"
    short: ClassVar[str | None] = "word"
    word: str
    password: Secret | None = None

    def make_driver(self, task: str, parts: DriverParts) -> Driver:
        return EchoDriver(self, task, parts)


class EchoDriver:
    name = "echo"
    can_be_cancelled = True
    kill_after = 0

    def __init__(self, spec: Echo, task: str, parts: DriverParts) -> None:
        self._spec, self._arguments, self._parts = spec, FreeArguments(task), parts
        self.is_closed = False
        parts.at_close(self.close)

    def prepare(self, args: bytes) -> dict[str, Any]:
        return self._arguments.decode(args)

    async def execute(self, context: Context, arguments: dict[str, Any]) -> Any:
        match arguments.get("do"):
            case "skip":
                raise Skip("nothing to echo")
            case "retry" if context.attempt == 1:
                raise Retry("not yet", after="10ms")
            case "fail":
                raise JobFailed("the echo is broken")
        context.log(f"echoing {self._spec.word}")
        said = {"word": self._spec.word, "arguments": arguments, "app": self._parts.app}
        if self._spec.password is not None:
            said["password"] = self._parts.resolve_secret(self._spec.password.name)
        if "line" in self._parts.connections:
            said["line"] = self._parts.connections["line"]
        return said

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._BUILT_IN, "echo", f"{__name__}:Echo")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    return str(request.getfixturevalue("postgres_url"))


def made(url: str = "sqlite://", **options: Any) -> Scheduler:
    return Scheduler(url, **{"drivers": ["function", "echo"], "stop_timeout": "1s", **options})


async def ended(scheduler: Scheduler, run: Run) -> Run:
    async with asyncio.timeout(SECONDS_MAX):
        while (found := await scheduler.get_run(run.id)).verdict is None:
            await asyncio.sleep(0.01)
    return found


# --- running


async def test_a_job_runs_with_any_arguments_and_keeps_its_result_and_its_lines(url: str) -> None:
    scheduler = made(url, app="post")
    job = scheduler.job("shout", Echo(word="hello"))
    async with scheduler:
        run = await ended(scheduler, await job.enqueue(to="Ada", copies=[1, 2]))
        lines = [line.text for line in await scheduler.log(run)]
    assert run.verdict == "succeeded", run.error
    assert run.result == {"word": "hello", "arguments": {"to": "Ada", "copies": [1, 2]}, "app": "post"}
    assert lines == ["echoing hello"]


async def test_a_job_skips_retries_and_fails_by_what_its_driver_raises(url: str) -> None:
    scheduler = made(url)
    job = scheduler.job("shout", Echo(word="hello"), retry=Constant("10ms", attempts=2))
    async with scheduler:
        skipped = await ended(scheduler, await job.enqueue(do="skip"))
        retried = await ended(scheduler, await job.enqueue(do="retry"))
        failed = await ended(scheduler, await job.enqueue(do="fail"))
    assert (skipped.verdict, skipped.reason) == ("skipped", "nothing to echo")
    assert (retried.verdict, retried.attempts) == ("succeeded", 2)
    # The failure of the job itself: the place in the driver that raises it is irrelevant.
    assert (failed.verdict, failed.attempts, failed.error) == ("failed", 2, "the echo is broken")


async def test_a_job_has_schedules_as_any_task(url: str) -> None:
    scheduler = made(url)
    job = scheduler.job("shout", Echo(word="hello"))
    assert scheduler.every("1h", args={"to": "Ada"}, key="hourly")(job) is job
    async with scheduler:
        await scheduler.add(key="another", task=job, when=Every("1h"), args={"to": "Bob"})
        runs = [await ended(scheduler, await scheduler.trigger(key)) for key in ("hourly", "another")]
    assert [run.result["arguments"] for run in runs] == [{"to": "Ada"}, {"to": "Bob"}]  # type: ignore[index]


async def test_runs_of_a_driver_that_a_node_does_not_have_stay_for_one_that_has_it(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its task is in the configuration of both nodes, but one of them must not run such jobs."""
    caplog.set_level("INFO", "evertick.engine")
    without, having = made(url, drivers=["function"], node_name="without"), made(url, node_name="having")
    place = "jobs.toml:1"
    job = keep_task(without.runtime, spec_task(without.runtime, "shout", Echo(word="hello"), {}, place), place)

    @without.task
    async def other() -> str:
        return "done"

    having.job("shout", Echo(word="hello"))
    async with without:
        waiting = await job.enqueue()
        assert (await ended(without, await other.enqueue())).verdict == "succeeded"
        # Claimed in order of their time, had it been one of ours.
        assert (await without.get_run(waiting.id)).state != "running"
        left = "job shout: driver 'echo' is not enabled here; left to other nodes"
        assert caplog.messages.count(left) == 1
        [node] = await without.nodes()
        assert (node.tasks, node.leaves) == (("other",), {"shout": "echo"})
        told = await explain_run(await without.runtime.store(), await without.get_run(waiting.id))
        missing = "no live node has the driver 'echo' of task 'shout' enabled, though some know the task"
        assert told.nodes == f"{missing}; start a node with 'echo' among its drivers, or enable it on one of them"
        wanted = "a node that has the driver 'echo' of task 'shout' enabled"
        assert missing in told.now or f"waits for {wanted}" in told.now
        await without.add(key="odd", when="every 1d", task="nobody")
        told = await explain_run(await without.runtime.store(), await without.trigger("odd"))
        assert told.nodes == "no live node knows task 'nobody'; start one that does"
        async with having:
            run = await ended(having, waiting)
            names = {node.id: node.name for node in await having.nodes()}
            told = await explain_task(await without.runtime.store(), without.app, "shout")
            assert told.nodes == "having can run it"
    assert run.verdict == "succeeded"
    assert run.node is not None
    assert names[run.node] == "having"


async def test_without_a_node_why_names_the_driver_that_a_run_needs(url: str) -> None:
    """The node that knew it has gone, and told before that it left such jobs to others."""
    gone, asking = made(url, drivers=["function"]), made(url, concurrency=0)
    place = "jobs.toml:1"
    keep_task(gone.runtime, spec_task(gone.runtime, "shout", Echo(word="hello"), {}, place), place)
    async with gone:
        await gone.add(key="loud", when="every 1d", task="shout")
    run = await asking.trigger("loud")
    told = await explain_run(await asking.runtime.store(), run)
    why = await asking.why("loud")
    await asking.close()
    needs = "no node is alive; it needs one with the driver 'echo'"
    assert told.now == f"run {run.id} waits since {run.due_at:%Y-%m-%d %H:%M:%S} UTC: {needs}"
    assert why.now == told.now
    assert told.nodes == "no node is alive; start one with the driver 'echo'"


async def test_a_secret_is_looked_up_when_the_run_needs_it() -> None:
    scheduler = made()
    job = scheduler.job("shout", Echo(word="hello", password=Secret("ECHO")))
    variables: dict[str, str] = {}
    scheduler.runtime.secrets = Secrets(None, variables)
    async with scheduler:
        failed = await ended(scheduler, await job.enqueue())
        variables["EVERTICK_SECRET_ECHO"] = "open sesame"
        run = await ended(scheduler, await job.enqueue())
    assert failed.error is not None
    assert "secret 'ECHO' is not set; set the environment variable EVERTICK_SECRET_ECHO" in failed.error
    assert run.result["password"] == "open sesame"  # type: ignore[index]


async def test_connections_that_are_set_after_the_job_was_made_are_seen() -> None:
    scheduler = made()
    job = scheduler.job("shout", Echo(word="hello"))
    scheduler.runtime.connections["line"] = "echo://there"
    async with scheduler:
        run = await ended(scheduler, await job.enqueue())
    assert run.result["line"] == "echo://there"  # type: ignore[index]


async def test_a_driver_is_closed_with_the_scheduler() -> None:
    scheduler = made()
    driver = scheduler.job("shout", Echo(word="hello")).work.driver
    assert isinstance(driver, EchoDriver)
    async with scheduler:
        assert not driver.is_closed
    assert driver.is_closed


async def test_a_driver_that_cannot_be_closed_does_not_keep_others_open(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = made()

    async def fail() -> None:
        raise OSError("the line is dead")

    scheduler.runtime.shared_parts.at_close(fail)
    driver = scheduler.job("shout", Echo(word="hello")).work.driver
    assert isinstance(driver, EchoDriver)
    await scheduler.close()
    assert driver.is_closed
    assert "driver: could not be closed" in caplog.text


async def test_a_job_runs_in_virtual_time() -> None:
    scheduler = made()
    scheduler.cron("0 3 * * *")(scheduler.job("shout", Echo(word="hello")))
    async with virtual_time(scheduler) as kit:
        await kit.advance(timedelta(days=3))
        assert [run.verdict for run in await scheduler.runs()] == ["succeeded"] * 3


# --- refusing


class Heavy(Spec, frozen=True):
    driver: ClassVar[str] = "echo"

    def make_driver(self, task: str, parts: DriverParts) -> Driver:
        import no_such_library_of_drivers  # type: ignore[import-not-found]

        return no_such_library_of_drivers.driver  # type: ignore[no-any-return]


def test_a_driver_whose_library_is_missing_is_refused_with_what_to_install() -> None:
    with pytest.raises(InvalidSetting) as refused:
        made().job("lift", Heavy())
    assert str(refused.value) == (
        "task 'lift': the driver 'echo' cannot be loaded (No module named 'no_such_library_of_drivers'); install what "
        "it needs, for a built-in one with `pip install 'evertick[echo]'`"
    )
    # Where it is not run, it is not loaded.
    spec_task(made(drivers=["function"]).runtime, "lift", Heavy(), {}, "here")


def test_a_job_of_a_driver_that_is_not_enabled_is_refused_with_the_fix() -> None:
    scheduler = Scheduler("sqlite://")
    with pytest.raises(InvalidSetting) as refused:
        scheduler.job("shout", Echo(word="hello"))
    assert str(refused.value) == (
        "task 'shout': this scheduler does not run the driver 'echo'; enable it with "
        "Scheduler(drivers=['function', 'process', 'echo'])"
    )
    assert "shout" not in scheduler.runtime.tasks


def test_a_function_is_refused_where_functions_are_not_run() -> None:
    scheduler = made(drivers=["echo"])
    with pytest.raises(InvalidSetting, match=r"does not run the driver 'function'; enable it with"):
        scheduler.task(name="f")(lambda: None)


@pytest.mark.parametrize(
    ("drivers", "told"),
    [
        ("echo", "drivers: 'echo' is text, not a list; pass a list of names, e.g. drivers=['echo']"),
        ([], r"drivers: [] is not a list of driver names; pass a list like ['function', 'process']"),
        (
            ["function", "ecco"],
            "drivers: driver 'ecco' is not installed; did you mean 'echo'? installed are function, process",
        ),
        ([7], "drivers: driver 7 is not installed; installed are function, process"),
    ],
)
def test_the_setting_names_drivers_that_are_known(drivers: Any, told: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        made(drivers=drivers)
    assert str(refused.value).startswith(told)


def test_a_job_cannot_be_called_nor_put_into_a_process() -> None:
    scheduler = made()
    job = scheduler.job("shout", Echo(word="hello"))
    with pytest.raises(Refused, match="task 'shout' is a job of the driver 'echo', not a function"):
        job()
    with pytest.raises(InvalidSetting, match="task 'loud': process: it is for functions"):
        scheduler.job("loud", Echo(word="hello"), process=True)
    assert repr(job) == "<Task shout(**arguments)>"


@pytest.mark.parametrize(
    ("declare", "error", "told"),
    [
        (
            lambda s: s.job("shout", Echo(word="b")),
            AlreadyDeclared,
            r"task 'shout' is defined twice: at .*test_jobs.py",
        ),
        (lambda s: s.job(" x", Echo(word="b")), InvalidKey, "task: ' x' must not begin or end with space"),
        (lambda s: s.job("x", Echo(word=1)), InvalidSetting, "task 'x': echo: word: 1 is not text; write it in quotes"),
        (lambda s: s.job("x", "echo hello"), InvalidSetting, "task 'x': 'echo hello' is not a specification"),
        (
            lambda s: s.job("x", Echo(word="b"), retires=3),
            InvalidSetting,
            "task 'x': retires: no such option; write retry=Constant\\('10s'",
        ),
    ],
)
def test_a_job_that_cannot_be_is_refused_where_it_is_written(
    declare: Callable[[Scheduler], object], error: type[Exception], told: str
) -> None:
    scheduler = made()
    scheduler.job("shout", Echo(word="a"))
    with pytest.raises(error, match=told):
        declare(scheduler)
    assert list(scheduler.runtime.tasks) == ["shout"]


async def test_arguments_without_a_name_or_that_are_no_data_are_refused() -> None:
    scheduler = made()
    job = scheduler.job("shout", Echo(word="hello"))
    for arguments, told in (
        ((("Ada",), {}), r"shout\(\*\*arguments\): 'Ada' has no name; pass arguments by name"),
        (((), {"to": object()}), "arguments must be JSON-like data"),
        (((), {"to": "x" * 300_000}), "arguments have 300009 bytes, more than 262144"),
    ):
        with pytest.raises(InvalidArguments, match=told):
            await job.enqueue(*arguments[0], **arguments[1])
    await scheduler.close()


async def test_limits_of_a_job_may_name_any_argument(url: str) -> None:
    scheduler = made(url)
    job = scheduler.job("shout", Echo(word="hello"), concurrency=1, concurrency_key="to-{to}")
    async with scheduler:
        runs = [await ended(scheduler, await job.enqueue(**given)) for given in ({"to": "Ada"}, {})]
    assert [run.verdict for run in runs] == ["succeeded"] * 2
    with pytest.raises(InvalidSetting, match=r"'\{\}' is not an argument"):
        made().job("x", Echo(word="hello"), concurrency=1, concurrency_key="to-{}")
