"""Tasks in child processes: real children, real signals. After every test no process that it started may be left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import process_jobs
import pytest
from process_watch import MARK, marked, seconds_until_gone

from evertick import Constant, Process, ProcessDied, Run, Scheduler, Task
from evertick.driver.python.process import ProcessDriver
from evertick.engine.judge import Stop
from evertick.testing import virtual_time

SECONDS_MAX = 30.0


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The mark of every process that the test starts; none may outlive the test."""
    token = uuid4().hex
    monkeypatch.setenv(MARK, token)
    yield token
    seconds_until_gone(token, 5)


class Bench:
    """A scheduler on a file, its tasks in processes, and their ended runs."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/jobs.db"
        self.scheduler = Scheduler(self.url, stop_timeout="100ms")
        self.folder = folder
        self._ended = asyncio.Condition()
        for kind in ("succeeded", "failed", "cancelled", "skipped"):
            self.scheduler.on(kind, self._note)

    def task(self, function: Callable[..., Any], *, process: bool | Process = True, **options: Any) -> Task[Any, Any]:
        made: Task[Any, Any] = self.scheduler.task(process=process, **options)(function)
        return made

    async def ended(self, run: Run) -> Run:
        """The run with its verdict."""
        async with asyncio.timeout(SECONDS_MAX), self._ended:
            while (found := await self.scheduler.get_run(run.id)).verdict is None:
                await self._ended.wait()
        return found

    async def result(self, task: Task[Any, Any], **arguments: Any) -> Any:
        run = await self.ended(await task.enqueue(**arguments))
        assert run.verdict == "succeeded", run.error
        return run.result

    async def lines(self, run: Run) -> list[tuple[str, str]]:
        return [(line.level, line.text) for line in await self.scheduler.log(run)]

    async def _note(self, event: object) -> None:
        async with self._ended:
            self._ended.notify_all()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    await bench.scheduler.close()


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not is_so():
            await asyncio.sleep(0.01)


async def pid_in(file: Path) -> int:
    await until(lambda: file.exists() and file.read_text())
    return int(file.read_text())


# --- jobs in a child


async def test_a_job_in_a_child_has_its_context_and_its_log_and_progress_arrive(bench: Bench) -> None:
    task = bench.task(process_jobs.tell_everything, timeout="1m")
    async with bench.scheduler:
        asked = await task.options(labels={"shop": "7"}).enqueue(rows=3)
        run = await bench.ended(asked)
        lines = await bench.lines(run)
    assert run.verdict == "succeeded", run.error
    assert isinstance(run.result, dict)
    told = run.result
    assert told["pid"] != os.getpid()
    assert (told["run_id"], told["attempt"], told["rows"]) == (run.id, 1, 3)
    assert (told["labels"], told["schedule_key"], told["cancelled"]) == ({"shop": "7"}, None, False)
    assert datetime.fromisoformat(told["fire_at"]) == run.fire_at
    assert told["fence"] > 0
    assert run.started_at is not None
    assert abs(datetime.fromisoformat(told["deadline"]) - run.started_at - timedelta(minutes=1)) < timedelta(seconds=1)
    assert (run.progress, run.progress_text) == (0.999, "row 999")
    assert [phase.name for phase in run.phases] == ["read"]
    # A record of logging is one line, though without any setup logging itself writes it to stderr.
    assert sorted(lines) == sorted(
        [
            ("info", "reading 3 rows"),
            ("warning", "only 3 rows"),
            ("stdout", "to stdout"),
            ("stdout", "without an end of line"),
            ("stderr", "to stderr"),
        ]
    )


async def test_the_last_word_about_progress_arrives_while_the_job_goes_on(bench: Bench, tmp_path: Path) -> None:
    task = bench.task(process_jobs.say_and_wait)
    async with bench.scheduler:
        run = await task.enqueue(word=str(tmp_path / "word"))
        async with asyncio.timeout(SECONDS_MAX):
            while (said := await bench.scheduler.get_run(run.id)).progress != 0.9:
                await asyncio.sleep(0.05)
        assert (said.verdict, said.progress_text) == (None, "the last word for long")
        assert await bench.lines(run) == [("info", "before a long wait")]
        (tmp_path / "word").touch()
        assert (await bench.ended(run)).verdict == "succeeded"


async def test_a_coroutine_function_runs_in_a_child(bench: Bench) -> None:
    task = bench.task(process_jobs.add_later)
    async with bench.scheduler:
        run = await bench.ended(await task.enqueue(a=1, b=2))
        assert (run.verdict, run.result) == ("succeeded", 3)
        assert await bench.lines(run) == [("error", "added in add_later")]


async def test_the_largest_arguments_travel_and_a_result_that_is_too_large_is_left_out(bench: Bench) -> None:
    measure, make, odd = (
        bench.task(each) for each in (process_jobs.measure, process_jobs.make, process_jobs.return_a_socket)
    )
    most = 256 * 1024 - len('{"data":""}')
    async with bench.scheduler:
        assert await bench.result(measure, data="x" * most) == most
        assert await bench.result(make, size=60_000) == "x" * 60_000
        large = await bench.ended(await make.enqueue(size=5_000_000))
        assert (large.verdict, large.result) == ("succeeded", None)
        [(level, text)] = await bench.lines(large)
        assert (level, "more than 65536" in text) == ("warning", True)
        no_json = await bench.ended(await odd.enqueue())
        assert (no_json.verdict, no_json.result) == ("succeeded", None)


async def test_a_job_in_a_child_enqueues_in_the_database_of_its_node(tmp_path: Path) -> None:
    scheduler, task = process_jobs.scheduler, process_jobs.enqueue_another
    before = scheduler.settings
    scheduler.use_database(f"sqlite:///{tmp_path}/node.db")
    try:
        async with scheduler:
            await task.enqueue(rest=1)
            async with asyncio.timeout(SECONDS_MAX):
                while len(done := await scheduler.runs(verdicts=["succeeded"])) < 2:
                    await asyncio.sleep(0.05)
        assert {run.result for run in done} == {"the last", *(run.id for run in done if run.args == {"rest": 0})}
    finally:
        scheduler.runtime.settings = before
    assert not Path("elsewhere.db").exists()


# --- ends of a run


async def test_a_run_ends_with_any_output_and_leftovers_of_its_job(bench: Bench, mark: str) -> None:
    task = bench.task(process_jobs.speak_in_tongues, process=Process(kill_after="200ms"))
    async with bench.scheduler:
        run = await bench.ended(await task.enqueue())
        assert marked(mark) == {}
        assert (run.verdict, run.progress, [phase.name for phase in run.phases]) == ("failed", 0.5, ["?"])
        assert (run.error or "").endswith("OutOfPaper: ?")
        assert ("info", "half of a ? character") in await bench.lines(run)


async def test_a_job_in_a_child_gets_an_error_if_it_finishes_in_a_transaction(bench: Bench) -> None:
    task = bench.task(process_jobs.finish_in_a_transaction)
    async with bench.scheduler:
        run = await bench.ended(await task.enqueue())
    assert run.verdict == "failed"
    assert "Refused" in (run.error or "")


@pytest.mark.parametrize("function", [process_jobs.print_invoices, process_jobs.print_invoices_later])
async def test_the_error_of_a_job_has_the_traceback_of_the_child_and_no_frame_of_ours(
    bench: Bench, function: Callable[..., Any]
) -> None:
    task = bench.task(function)
    async with bench.scheduler:
        run = await bench.ended(await task.enqueue())
    assert run.error is not None
    assert run.error.splitlines()[0] == "Traceback (most recent call last):"
    assert run.error.splitlines()[-1] == "process_jobs.OutOfPaper: tray 2"
    assert f'in {function.__name__}\n    raise OutOfPaper("tray 2")' in run.error
    assert "evertick" not in run.error.replace(str(Path(__file__).parent), "")
    assert "asyncio" not in run.error


@pytest.mark.parametrize(
    ("options", "attempts"),
    [
        ({}, 2),
        ({"retry_on": process_jobs.OutOfPaper}, 2),
        ({"retry_on": RuntimeError}, 2),
        ({"retry_on": (ConnectionError, OSError)}, 1),
        ({"give_up_on": process_jobs.OutOfPaper}, 1),
        ({"retry_on": RuntimeError, "give_up_on": LookupError}, 2),
    ],
)
async def test_errors_of_a_child_are_retried_by_their_type(
    bench: Bench, options: dict[str, Any], attempts: int
) -> None:
    task = bench.task(process_jobs.print_invoices, retry=Constant("1ms", attempts=2), **options)
    async with bench.scheduler:
        run = await bench.ended(await task.enqueue())
    assert (run.verdict, run.attempts) == ("failed", attempts)


async def test_a_job_in_a_child_can_say_itself_how_it_ends(bench: Bench) -> None:
    retried, skipped = bench.task(process_jobs.extend_start), bench.task(process_jobs.nothing_to_do)
    async with bench.scheduler:
        run = await bench.ended(await retried.enqueue())
        assert (run.verdict, run.result, run.attempts) == ("succeeded", "complete", 2)
        [first] = await bench.scheduler.attempts(run)
        assert first.error is not None
        assert first.error.endswith("Retry: the file is not complete")
        run = await bench.ended(await skipped.enqueue())
        assert (run.verdict, run.reason) == ("skipped", "no file today")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("exit", "exit code 3"),
        ("segfault", "killed by signal SIGSEGV"),
        ("kill", "killed by signal SIGKILL (possibly out of memory: check the kernel log)"),
    ],
)
async def test_a_child_that_dies_by_itself_fails_the_attempt_with_how_it_died(
    bench: Bench, how: str, words: str
) -> None:
    task = bench.task(process_jobs.crash, retry=Constant("1ms", attempts=2), retry_on=ProcessDied)
    async with bench.scheduler:
        run = await bench.ended(await task.enqueue(how=how))
        assert (run.verdict, run.reason, run.attempts) == ("failed", "error", 2)
        assert run.error is not None
        assert run.error.endswith(words)
        assert "Traceback" not in run.error
        assert ("stdout", "last words") in await bench.lines(run)
        [earlier] = await bench.scheduler.attempts(run)
    for phases in (earlier.phases, run.phases):
        read, crashed = phases
        assert (read.name, read.seconds is None) == ("read", False)
        assert (crashed.name, crashed.seconds, crashed.metadata) == ("crash", None, {"how": how})


async def test_a_child_that_sends_no_sense_is_ended_and_its_attempt_has_failed(bench: Bench) -> None:
    task = bench.task(process_jobs.garble)
    async with bench.scheduler:
        run = await bench.ended(await task.enqueue())
    assert run.verdict == "failed"
    assert "the child sent a frame of 4294967295 bytes, more than 1048576" in (run.error or "")


async def test_processes_that_a_job_leaves_running_end_with_its_run(bench: Bench, mark: str, tmp_path: Path) -> None:
    task = bench.task(process_jobs.leave_something_behind)
    async with bench.scheduler:
        assert await bench.result(task, began=str(tmp_path / "began")) == "done"
        assert marked(mark) == {}, "the run has its verdict, and something of it is alive"


async def test_a_child_whose_keeper_is_killed_ends_as_well(bench: Bench, mark: str, tmp_path: Path) -> None:
    task = bench.task(process_jobs.be_parent)
    async with bench.scheduler:
        run = await task.enqueue(began=str(tmp_path / "began"))
        child = await pid_in(tmp_path / "began")
        [keeper] = [pid for pid, command in marked(mark).items() if "keeper.py" in command]
        os.kill(keeper, signal.SIGKILL)
        ended = await bench.ended(run)
    assert "the keeper process was killed" in (ended.error or "")
    assert child not in marked(mark)
    # Without a keeper, processes in their own session are not found.
    for pid in marked(mark):
        os.kill(pid, signal.SIGKILL)


# --- stopping


@pytest.mark.parametrize("how", ["timeout", "cancel", "stop"])
async def test_a_run_that_is_stopped_leaves_no_process_alive(bench: Bench, mark: str, tmp_path: Path, how: str) -> None:
    task = bench.task(
        process_jobs.be_parent, process=Process(kill_after="300ms"), timeout="5s" if how == "timeout" else None
    )
    async with bench.scheduler:
        run = await task.enqueue(began=str(tmp_path / "began"))
        await pid_in(tmp_path / "began")
        await until(lambda: len(marked(mark)) >= 7)  # a keeper, a child, and the five that the child has started
        if how == "cancel":
            await bench.scheduler.cancel(run)
        if how != "stop":
            ended = await bench.ended(run)
            assert marked(mark) == {}, "the run has its verdict, and something of it is alive"
            assert ended.verdict == ("cancelled" if how == "cancel" else "failed")
    if how == "stop":
        assert marked(mark) == {}, "the node has stopped, and something of its run is alive"
        released = await bench.scheduler.get_run(run.id)
        assert (released.state, released.attempts) == ("waiting", 0)


async def test_a_stop_gives_a_child_less_time_than_the_engine_gives_its_last_runs(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = bench.task(process_jobs.be_parent, process=Process(kill_after="1m"))
    async with bench.scheduler:
        await task.enqueue(began=str(tmp_path / "began"))
        await pid_in(tmp_path / "began")
        began = time.monotonic()
    assert time.monotonic() - began < 30, "it was left its minute"
    assert "given up" not in caplog.text


async def test_a_child_that_is_stopping_at_leisure_is_ended_at_once_when_its_claim_is_lost(
    bench: Bench, mark: str, tmp_path: Path
) -> None:
    task = bench.task(process_jobs.be_parent, process=Process(kill_after="1m"))
    async with bench.scheduler:
        run = await task.enqueue(began=str(tmp_path / "began"))
        await pid_in(tmp_path / "began")
        assert bench.scheduler.runtime.engine is not None
        [attempt] = bench.scheduler.runtime.engine._node.hold.with_ids({run.id})
        bench.scheduler.runtime.engine._worker.stop(attempt, Stop.REQUESTED)
        await asyncio.sleep(0)
        bench.scheduler.runtime.engine._worker.stop(attempt, Stop.LOST)
        assert attempt.task is not None
        await asyncio.wait_for(attempt.task, 10)
        assert marked(mark) == {}


async def test_a_child_that_is_stopping_at_leisure_does_not_outlive_the_node(
    bench: Bench, mark: str, tmp_path: Path
) -> None:
    task = bench.task(process_jobs.be_parent, process=Process(kill_after="1m"))
    async with bench.scheduler:
        run = await task.enqueue(began=str(tmp_path / "began"))
        await pid_in(tmp_path / "began")
        await bench.scheduler.cancel(run)
    assert marked(mark) == {}


async def test_a_job_that_sees_that_it_is_to_stop_and_returns_counts_as_stopped(bench: Bench, tmp_path: Path) -> None:
    task = bench.task(process_jobs.look_now_and_then, process=Process(kill_after="1m"))
    async with bench.scheduler:
        run = await task.enqueue(began=str(tmp_path / "began"))
        await pid_in(tmp_path / "began")
        began = time.monotonic()
        await bench.scheduler.cancel(run)
        ended = await bench.ended(run)
    assert (ended.verdict, ended.reason, ended.result) == ("cancelled", "requested", None)
    assert time.monotonic() - began < 30, "it had to be killed"


async def test_a_job_that_checks_gets_the_reason_of_the_stop(bench: Bench, tmp_path: Path) -> None:
    task = bench.task(process_jobs.check_now_and_then)
    async with bench.scheduler:
        run = await task.enqueue(began=str(tmp_path / "began"), told=str(tmp_path / "told"))
        await pid_in(tmp_path / "began")
        await bench.scheduler.cancel(run)
        ended = await bench.ended(run)
    assert (ended.verdict, ended.reason) == ("cancelled", "requested")
    assert (tmp_path / "told").read_text().endswith("was asked to stop: requested")


async def test_a_coroutine_in_a_child_is_cancelled_and_may_tidy_up(bench: Bench, tmp_path: Path) -> None:
    task = bench.task(process_jobs.wait_for_ever)
    async with bench.scheduler:
        run = await task.enqueue(began=str(tmp_path / "began"), tidied=str(tmp_path / "tidied"))
        await pid_in(tmp_path / "began")
        await bench.scheduler.cancel(run)
        ended = await bench.ended(run)
    assert ended.verdict == "cancelled"
    assert (tmp_path / "tidied").read_text() == "tidied up"


async def test_a_job_that_returns_after_its_processes_were_ended_has_not_succeeded(bench: Bench) -> None:
    task = bench.task(process_jobs.lean_on_a_program, process=True, timeout="1s")
    async with bench.scheduler:
        ended = await bench.ended(await task.enqueue())
    assert (ended.verdict, ended.reason, ended.result) == ("failed", "timeout", None)


async def test_a_job_that_returns_after_a_stop_request_counts_as_stopped(bench: Bench, tmp_path: Path) -> None:
    task = bench.task(process_jobs.finish_all_the_same, process=Process(kill_after="10s"))
    async with bench.scheduler:
        run = await task.enqueue(began=str(tmp_path / "began"))
        await pid_in(tmp_path / "began")
        await bench.scheduler.cancel(run)
        ended = await bench.ended(run)
    assert (ended.verdict, ended.result) == ("cancelled", None)


async def test_a_term_from_another_process_stops_nothing(bench: Bench, mark: str, tmp_path: Path) -> None:
    began, word = tmp_path / "began", tmp_path / "word"
    task = bench.task(process_jobs.look_at_the_end)
    async with bench.scheduler:
        run = await task.enqueue(began=str(began), word=str(word))
        await pid_in(began)
        for pid in marked(mark):  # as a supervisor does that stops a service
            os.kill(pid, signal.SIGTERM)
        word.touch()
        ended = await bench.ended(run)
    assert (ended.verdict, ended.result) == ("succeeded", False)


# --- warm children


async def test_a_warm_child_is_used_again_until_it_has_had_its_number_of_runs(bench: Bench) -> None:
    task = bench.task(process_jobs.count_calls, process=Process(warm=1, recycle=3))
    async with bench.scheduler:
        answers = [await bench.result(task) for _ in range(7)]
    assert [calls for _, calls in answers] == [1, 2, 3, 1, 2, 3, 1]
    assert len({pid for pid, _ in answers}) == 3


async def test_without_warm_each_run_gets_a_child_of_its_own(bench: Bench) -> None:
    task = bench.task(process_jobs.count_calls)
    async with bench.scheduler:
        answers = [await bench.result(task) for _ in range(2)]
    assert [calls for _, calls in answers] == [1, 1]
    assert answers[0][0] != answers[1][0]


async def test_a_warm_child_that_dies_or_is_killed_never_takes_another_run(
    bench: Bench, mark: str, tmp_path: Path
) -> None:
    wait = bench.task(process_jobs.wait_for_word, process=Process(warm=1))
    async with bench.scheduler:
        run = await wait.enqueue(began=str(tmp_path / "1"), word=str(tmp_path / "word"))
        await pid_in(tmp_path / "1")
        await bench.scheduler.cancel(run)
        assert (await bench.ended(run)).verdict == "cancelled"
        (tmp_path / "word").write_text("go on")
        assert await bench.result(wait, began=str(tmp_path / "2"), word=str(tmp_path / "word")) == "go on"
        second = await pid_in(tmp_path / "2")
        assert second != await pid_in(tmp_path / "1")
        os.kill(second, signal.SIGKILL)  # while it is idle
        await until(lambda: second not in marked(mark))
        await until(lambda: any("boot.py" in command for command in marked(mark).values()))
        assert await bench.result(wait, began=str(tmp_path / "3"), word=str(tmp_path / "word")) == "go on"
        assert second != await pid_in(tmp_path / "3")


async def test_more_runs_at_once_than_warm_children_get_children_as_they_need_them(
    bench: Bench, mark: str, tmp_path: Path
) -> None:
    wait, word = bench.task(process_jobs.wait_for_word, process=Process(warm=1)), tmp_path / "word"
    async with bench.scheduler:
        runs = [await wait.enqueue(began=str(tmp_path / f"{n}"), word=str(word)) for n in range(3)]
        first = {await pid_in(tmp_path / f"{n}") for n in range(3)}
        assert len(first) == 3
        word.write_text("go on")
        assert {(await bench.ended(run)).result for run in runs} == {"go on"}
        await until(lambda: len(marked(mark)) == 2)  # one child is kept, with its keeper
        assert await bench.result(wait, began=str(tmp_path / "again"), word=str(word)) == "go on"
        assert await pid_in(tmp_path / "again") in first


async def test_output_of_a_warm_child_belongs_to_the_run_that_printed_it(bench: Bench) -> None:
    task = bench.task(process_jobs.tell_everything, process=Process(warm=1))
    async with bench.scheduler:
        for rows in (1, 2):
            run = await bench.ended(await task.enqueue(rows=rows))
            lines = await bench.lines(run)
            assert ("info", f"reading {rows} rows") in lines
            assert [text for level, text in lines if level == "stdout"] == ["to stdout", "without an end of line"]


async def test_warm_children_wait_without_using_a_processor_and_end_with_the_node(bench: Bench, mark: str) -> None:
    task = bench.task(process_jobs.count_calls, process=Process(warm=2))
    async with bench.scheduler:
        await bench.result(task)
        assert isinstance(task.work.driver, ProcessDriver)
        pool = task.work.driver._pool
        assert pool is not None
        await until(lambda: [child.is_ready for child in pool._idle] == [True, True])
        pids = marked(mark)
        assert len(pids) == 4, f"two children and their keepers: {pids}"
        await until(lambda: all(state_of(pid) == "S" for pid in pids))
        before = {pid: ticks_of(pid) for pid in pids}
        await asyncio.sleep(0.5)  # the time that is measured
        assert {pid: ticks_of(pid) for pid in pids} == before
    assert marked(mark) == {}


def state_of(pid: int) -> str:
    return stat_of(pid)[0]


def ticks_of(pid: int) -> tuple[str, ...]:
    return tuple(stat_of(pid)[11:13])


def stat_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


# --- locations of functions


SCRIPT = """
import asyncio, sys
from evertick import Constant, Scheduler

scheduler = Scheduler(f"sqlite:///{sys.argv[1]}")
print("loaded as", __name__)


class Odd(Exception): ...


@scheduler.task(process=True, retry=Constant("1ms", attempts=2), retry_on=Odd)
def work(n: int) -> str:
    if n == 13:
        raise Odd(n)
    return f"{__name__} {n} {sys.argv[1]}"


async def main():
    async with scheduler:
        runs = [await work.enqueue(n=7), await work.enqueue(n=13)]
        while not all(run.verdict for run in runs):
            await asyncio.sleep(0.02)
            runs = [await scheduler.get_run(run.id) for run in runs]
    print(runs[0].result, runs[1].verdict, runs[1].attempts)


if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["script", "module"])
def test_a_program_is_imported_in_the_child_without_its_main_guard(tmp_path: Path, how: str) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack/program.py").write_text(SCRIPT)
    command = ["pack/program.py"] if how == "script" else ["-m", "pack.program"]
    done = run_program(tmp_path, *command, "jobs.db")
    name = "__mp_main__" if how == "script" else "pack.program"
    assert done.stdout.splitlines() == ["loaded as __main__", f"{name} 7 jobs.db failed 2"], done.stderr


def test_a_program_that_starts_its_scheduler_without_a_main_guard_is_refused_in_the_child(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "from evertick import Scheduler\n"
        "scheduler = Scheduler('sqlite:///jobs.db')\n"
        "@scheduler.on('failed')\n"
        "def show(event):\n"
        "    print(event.error)\n"
        "    import os, signal; os.kill(os.getpid(), signal.SIGTERM)\n"
        "@scheduler.every('1s', process=True)\n"
        "def work(): ...\n"
        "scheduler.run()\n"
    )
    done = run_program(tmp_path, "program.py")
    assert "this module starts a scheduler while a child process imports it" in done.stdout, done.stderr
    assert "start it under `if __name__ == '__main__':`" in done.stdout


def test_a_module_that_uses_its_store_while_it_is_imported_is_refused_in_the_child(tmp_path: Path) -> None:
    enqueues = "if __name__ != '__main__':\n    work.sync.enqueue(n=1)\n\n\nasync def main():"
    text = SCRIPT.replace("async def main():", enqueues).replace("runs[0].result,", "runs[0].error,")
    (tmp_path / "program.py").write_text(text)
    done = run_program(tmp_path, "program.py", "jobs.db")
    assert "this module uses the store while a child process imports it" in done.stdout, done.stderr


def run_program(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *command], cwd=folder, capture_output=True, text=True, timeout=60, check=True
    )


# --- without a process


async def test_virtual_time_calls_the_function_of_a_process_task_in_its_own_process(mark: str) -> None:
    scheduler = Scheduler("sqlite://")
    task = scheduler.cron("0 1 * * *", process=Process(warm=2))(process_jobs.count_calls)
    async with virtual_time(scheduler) as kit:
        await kit.advance("2h")
        [run] = kit.runs("count_calls")
        assert marked(mark) == {}
    assert isinstance(run.result, list)
    assert run.result[0] == os.getpid()
    assert task()[0] == os.getpid()


def test_calling_a_process_task_calls_its_function() -> None:
    assert process_jobs.enqueue_another(rest=0) == "the last"


# --- programs that end in other ways


def test_a_program_that_ends_its_loop_without_stopping_leaves_no_child(mark: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import asyncio, pathlib, time\n"
        "from evertick import Scheduler\n"
        "scheduler = Scheduler('sqlite:///jobs.db')\n"
        "@scheduler.task(process=True)\n"
        "def hang():\n"
        "    pathlib.Path('began').touch()\n"
        "    time.sleep(1000)\n"
        "async def main():\n"
        "    await scheduler.__aenter__()\n"
        "    await hang.enqueue()\n"
        "    while not pathlib.Path('began').exists():\n"
        "        await asyncio.sleep(0.01)\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, timeout=30, check=True)
    assert seconds_until_gone(mark, 2) < 2
