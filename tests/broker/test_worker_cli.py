"""`evertick worker` as a process of its own: commands and tasks, exit codes, signals, kills."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from bench import Bench, bench_on
from click.testing import CliRunner
from wire import all_reports

from evertick.cli.root import cli
from evertick.driver.contract import Kill, WorkerReport
from servers.broker import Broker, redis_server

APP = """
from evertick import Context, Scheduler

scheduler = Scheduler("sqlite:////nowhere/at/all.db")

@scheduler.task(name="work")
def work(ctx: Context, number: int) -> int:
    ctx.log("at work")
    return number * 2
"""


class Workers:
    def __init__(self, bench: Bench, folder: Path) -> None:
        self._bench, self._folder = bench, folder
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        where = "--nats" if self._bench.kind == "nats" else "--redis"
        kind = ["--stream"] if self._bench.kind == "stream" else []
        command = [sys.executable, "-m", "evertick", "worker", where, self._bench.server.url]
        with (self._folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [*command, "--driver", self._bench.own, *kind, *arguments],
                stderr=log,
                cwd=self._folder,
            )
        self._running.append(process)
        return process

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text()

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()


@pytest.fixture(params=["list", "stream", "nats"])
async def bench(own: str, request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    server = request.getfixturevalue("nats" if request.param == "nats" else "redis")
    async with bench_on(server, own, request.param) as made:
        yield made


@pytest.fixture
async def on_redis(own: str, redis: Broker) -> AsyncIterator[Bench]:
    async with bench_on(redis, own, "list") as made:
        yield made


@pytest.fixture
def workers(bench: Bench, tmp_path: Path) -> Iterator[Workers]:
    made = Workers(bench, tmp_path)
    yield made
    made.end()


@pytest.fixture
def redis_workers(on_redis: Bench, tmp_path: Path) -> Iterator[Workers]:
    made = Workers(on_redis, tmp_path)
    yield made
    made.end()


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def written(path: Path) -> str:
    while not path.exists() or not path.read_text().endswith("\n"):
        await asyncio.sleep(0.01)
    return path.read_text().strip()


async def test_a_command_gets_the_message_on_its_input_and_its_output_is_kept(bench: Bench, workers: Workers) -> None:
    program = "import json, os, sys; m = json.load(sys.stdin); print(m['args']['name'], os.environ['EVERTICK_ATTEMPT'])"
    workers.start("--name", "w7", "--", sys.executable, "-c", program)
    await bench.hand(args={"name": "evertick"})
    reports = await bench.ends()
    finish = reports[-1]
    assert finish.kind == "finish", workers.log
    assert finish.result["exit_code"] == 0
    assert finish.worker == "w7"
    assert "evertick 1" in [text for report in reports for _, _, text in report.log]


async def test_tasks_of_a_program_are_done_without_its_database(bench: Bench, workers: Workers, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    workers.start("--tasks", "app:scheduler", "--parallelism", "2")
    await bench.hand_all([{"args": {"number": number}} for number in range(3)])
    reports = await bench.ends(3)
    assert sorted(each.result for each in reports if each.kind == "finish") == [0, 2, 4], workers.log


async def test_exit_codes_are_judged_as_those_of_a_shell_job(on_redis: Bench, redis_workers: Workers) -> None:
    program = "import json, sys; print('so it is'); sys.exit(json.load(sys.stdin)['args']['code'])"
    codes = ("--success-code", "0", "--success-code", "3", "--skip-code", "4", "--retry-code", "75")
    redis_workers.start(*codes, "--", sys.executable, "-c", program)
    many = [0, 3, 4, 75, 1]
    await on_redis.hand_all([{"run": f"{on_redis.own}-{code}", "args": {"code": code}} for code in many])
    ends = {
        each.run.partition("-")[2]: each for each in await on_redis.ends(5) if each.kind not in ("taken", "progress")
    }
    assert {code: end.kind for code, end in ends.items()} == {
        "0": "finish",
        "3": "finish",
        "4": "skip",
        "75": "fail",
        "1": "fail",
    }
    assert (ends["75"].retry, ends["1"].retry) == (True, None)
    assert "exit code 1" in str(ends["1"].error)


async def test_a_killed_run_leaves_no_process(on_redis: Bench, redis_workers: Workers, tmp_path: Path) -> None:
    """Nor a child that ignores TERM."""
    path = tmp_path / "child"
    script = f"trap '' TERM; sh -c \"trap '' TERM; echo \\$\\$ > {path}; sleep 1000\" & wait; sleep 1000"
    redis_workers.start("--", "sh", "-c", script)
    await on_redis.hand(run=on_redis.run, fence=2)
    child = int(await written(path))
    assert is_alive(child)
    await on_redis.broker.kill([Kill(run=on_redis.run, fence=2)])
    end = (await on_redis.ends())[-1]
    assert (end.kind, end.reason) == ("fail", "killed")
    assert not is_alive(child)


async def test_kill_9_of_a_worker_ends_what_it_ran(on_redis: Bench, redis_workers: Workers, tmp_path: Path) -> None:
    path = tmp_path / "child"
    process = redis_workers.start("--", "sh", "-c", f"trap '' TERM; echo $$ > {path}; sleep 1000; sleep 1000")
    await on_redis.hand()
    child = int(await written(path))
    process.kill()
    async with asyncio.timeout(30):
        while is_alive(child):
            await asyncio.sleep(0.01)
    assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_and_ends_it_well(
    on_redis: Bench, redis_workers: Workers, tmp_path: Path, number: signal.Signals
) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "go_on"
    process = redis_workers.start(
        "--", "sh", "-c", f"echo x > {begun}; while [ ! -e {go_on} ]; do sleep 0.05; done; echo done"
    )
    await on_redis.hand()
    await written(begun)
    process.send_signal(number)
    go_on.touch()
    assert await asyncio.to_thread(process.wait, 30) == 0, redis_workers.log
    assert [each.kind for each in await all_reports(on_redis.broker) if each.kind != "progress"] == ["taken", "finish"]


async def test_what_a_second_signal_cuts_off_is_given_back(
    on_redis: Bench, redis_workers: Workers, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    process = redis_workers.start("--", "sh", "-c", f"echo $$ > {begun}; sleep 1000")
    await on_redis.hand()
    child = int(await written(begun))
    process.terminate()
    while "SIGTERM: draining" not in redis_workers.log:
        await asyncio.sleep(0.01)
    process.terminate()
    assert await asyncio.to_thread(process.wait, 30) == 0, redis_workers.log
    assert not is_alive(child)
    assert (await all_reports(on_redis.broker))[-1].kind == "release"


async def test_it_waits_for_a_broker_that_is_not_there_yet(own: str, tmp_path: Path) -> None:
    with redis_server(is_durable=False) as server:
        server.kill()
        async with bench_on(server, own, "list") as bench:
            workers = Workers(bench, tmp_path)
            try:
                workers.start("--", "true")
                while not (tmp_path / "log").exists() or "is away" not in workers.log:
                    await asyncio.sleep(0.01)
                server.start()
                await bench.hand()
                found: list[WorkerReport] = await bench.ends()
                assert found[-1].kind == "finish"
            finally:
                workers.end()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--driver", "q", "--", "true"], "say where the queue is"),
        (["--redis", "redis://h", "--nats", "nats://h", "--driver", "q", "--", "true"], "say where the queue is"),
        (["--redis", "redis://h", "--driver", "q"], "say what to do for a run"),
        (["--redis", "redis://h", "--driver", "q", "--tasks", "a:b", "--", "true"], "say what to do for a run"),
        (["--redis", "h:6379", "--driver", "q", "--", "true"], "--redis: url: 'h:6379' is no URL of a Redis"),
        (["--nats", "h:4222", "--driver", "q", "--", "true"], "--nats: url: 'h:4222' is no URL of a NATS"),
        (["--redis", "redis://h", "--driver", "q q", "--", "true"], "--driver: 'q q' is no name of a queue"),
        (["--nats", "nats://h", "--driver", "q", "--stream", "--", "true"], "--stream is about queues in Redis"),
        (["--nats", "nats://h", "--prefix", "A.B", "--driver", "q", "--", "true"], "--nats: prefix: 'A.B' must be"),
        (["--redis", "redis://h", "--driver", "q", "--parallelism", "-1", "--", "true"], "parallelism"),
        (["--redis", "redis://h", "--driver", "q", "--skip-code", "0", "--", "true"], "an exit code has one meaning"),
    ],
)
def test_what_is_written_wrongly_is_told(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(cli, ["worker", *arguments], env={"EVERTICK_REDIS": None, "EVERTICK_NATS": None})
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_a_password_in_the_environment_is_not_shown(tmp_path: Path) -> None:
    variables = {**os.environ, "EVERTICK_REDIS": "redis://:hunter2@127.0.0.1:1/0"}
    command = [sys.executable, "-m", "evertick", "worker", "--driver", "q", "-vv", "--", "true"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, env=variables)
    while "is away" not in (tmp_path / "log").read_text():
        assert process.poll() is None
    process.terminate()
    assert process.wait(30) == 0
    assert "hunter2" not in (tmp_path / "log").read_text()
