"""`evertick worker` as a process of its own: commands and tasks, exit codes, signals, kills."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench import Bench, Kind, bench_on
from click.testing import CliRunner
from wire import all_reports

import preloaded
from evertick.cli.root import cli
from evertick.driver.queue.contract import Kill, WorkerReport
from servers.broker import Broker, nats_server, redis_server

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
            process = preloaded.popen(
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
    await bench.dispatch(args={"name": "evertick"})
    reports = await bench.ends()
    finish = reports[-1]
    assert finish.kind == "finish", workers.log
    assert finish.result["exit_code"] == 0
    assert finish.worker == "w7"
    assert "evertick 1" in [text for report in reports for _, _, text in report.log]


async def test_tasks_of_a_program_are_done_without_its_database(bench: Bench, workers: Workers, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    workers.start("--tasks", "app:scheduler", "--parallelism", "2")
    await bench.push_all([{"args": {"number": number}} for number in range(3)])
    reports = await bench.ends(3)
    assert sorted(each.result for each in reports if each.kind == "finish") == [0, 2, 4], workers.log


@contextmanager
def on_processors(allowed: set[int]) -> Iterator[None]:
    """Processes started meanwhile may use only these processors."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, allowed)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


async def test_without_a_number_there_is_a_slot_for_each_processor_that_the_worker_may_use(
    on_redis: Bench, redis_workers: Workers
) -> None:
    every = os.sched_getaffinity(0)
    for allowed, arguments in ((every, []), ({min(every)}, ["--parallelism", "0"])):
        name = f"w{len(allowed)}-{len(arguments)}"
        with on_processors(allowed):
            redis_workers.start("--name", name, *arguments, "--", "true")
        async with asyncio.timeout(30):
            while f"worker {name}: started" not in redis_workers.log:
                await asyncio.sleep(0.01)
        [begun] = [line for line in redis_workers.log.splitlines() if f"worker {name}: started" in line]
        assert begun.endswith(f", parallelism {len(allowed)}")


async def test_exit_codes_are_judged_as_those_of_a_shell_job(on_redis: Bench, redis_workers: Workers) -> None:
    program = "import json, sys; print('so it is'); sys.exit(json.load(sys.stdin)['args']['code'])"
    codes = ("--success-code", "0", "--success-code", "3", "--skip-code", "4", "--retry-code", "75")
    redis_workers.start(*codes, "--", sys.executable, "-c", program)
    many = [0, 3, 4, 75, 1]
    await on_redis.push_all([{"run": f"{on_redis.own}-{code}", "args": {"code": code}} for code in many])
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
    await on_redis.dispatch(run=on_redis.run, fence=2)
    child = int(await written(path))
    assert is_alive(child)
    await on_redis.broker.kill([Kill(run=on_redis.run, fence=2)])
    end = (await on_redis.ends())[-1]
    assert (end.kind, end.reason) == ("fail", "killed")
    assert not is_alive(child)


async def test_kill_9_of_a_worker_ends_its_commands(on_redis: Bench, redis_workers: Workers, tmp_path: Path) -> None:
    path = tmp_path / "child"
    process = redis_workers.start("--", "sh", "-c", f"trap '' TERM; echo $$ > {path}; sleep 1000; sleep 1000")
    await on_redis.dispatch()
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
    await on_redis.dispatch()
    await written(begun)
    process.send_signal(number)
    go_on.touch()
    assert await asyncio.to_thread(process.wait, 30) == 0, redis_workers.log
    assert [each.kind for each in await all_reports(on_redis.broker) if each.kind != "progress"] == ["taken", "finish"]


async def test_work_that_a_second_signal_interrupts_is_released(
    on_redis: Bench, redis_workers: Workers, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    process = redis_workers.start("--", "sh", "-c", f"echo $$ > {begun}; sleep 1000")
    await on_redis.dispatch()
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
                while not (tmp_path / "log").exists() or "queue unavailable, retrying" not in workers.log:
                    await asyncio.sleep(0.01)
                server.start()
                await bench.dispatch()
                found: list[WorkerReport] = await bench.ends()
                assert found[-1].kind == "finish"
            finally:
                workers.end()


async def said_of(workers: Workers, words: str) -> str:
    """The first line of the log that has the words."""
    while True:
        found = [line for line in workers.log.splitlines() if words in line]
        if found:
            return found[0]
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(("kind", "fix"), [("list", "add --stream"), ("stream", "remove --stream")])
async def test_a_queue_of_the_other_kind_is_reported_with_the_fix(
    own: str, redis: Broker, tmp_path: Path, kind: Kind, fix: str
) -> None:
    async with bench_on(redis, own, kind) as reads, bench_on(redis, own, "stream" if kind == "list" else "list") as has:
        await has.dispatch()
        workers = Workers(reads, tmp_path)
        try:
            workers.start("--", "true")
            line = await said_of(workers, "queue unavailable, retrying")
        finally:
            workers.end()
    assert f"is not a {kind};" in line
    assert fix in line
    assert "WRONGTYPE" not in line
    # The address appears once.
    assert line.count(f":{redis.port}") == 1


async def test_a_server_that_is_not_redis_is_reported_in_a_short_text(own: str, nats: Broker, tmp_path: Path) -> None:
    nats_url = f"redis://127.0.0.1:{nats.port}/0"
    command = [sys.executable, "-m", "evertick", "worker", "--redis", nats_url, "--driver", own, "--", "true"]
    with (tmp_path / "log").open("wb") as log:
        process = preloaded.popen(command, stderr=log)
    try:
        while "queue unavailable, retrying" not in (text := (tmp_path / "log").read_text()) or not text.endswith("\n"):
            await asyncio.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    assert "this is a NATS server, whose URL begins with nats:// (" in text
    assert len(text) < 600
    assert ": started" not in text


async def test_the_log_has_the_error_of_a_failed_run(on_redis: Bench, redis_workers: Workers) -> None:
    redis_workers.start("--", "sh", "-c", "echo no space left >&2; exit 3")
    await on_redis.dispatch()
    line = await said_of(redis_workers, " failed: ")
    assert "WARNING" in line
    assert "exit code 3" in line
    assert "no space left" in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--driver", "q", "--", "true"], "no broker is named"),
        (["--redis", "redis://h", "--nats", "nats://h", "--driver", "q", "--", "true"], "name one broker"),
        (["--redis", "redis://h", "--driver", "q"], "name what does a run"),
        (["--redis", "redis://h", "--driver", "q", "--tasks", "a:b", "--", "true"], "name what does a run"),
        (["--redis", "redis://h", "--driver", "q", "--", "./buidl.sh"], "there is no executable program './buidl.sh'"),
        (["--redis", "h:6379", "--driver", "q", "--", "true"], "--redis: redis.url: 'h:6379' is no URL of a"),
        (["--nats", "h:4222", "--driver", "q", "--", "true"], "--nats: nats.url: 'h:4222' is no URL of a"),
        (["--redis", "redis://h", "--driver", "q q", "--", "true"], "--driver: 'q q' is not a valid queue name"),
        (["--nats", "nats://h", "--driver", "q", "--stream", "--", "true"], "--stream applies to Redis only"),
        (
            ["--nats", "nats://h", "--prefix", "A.B", "--driver", "q", "--", "true"],
            "--prefix: 'A.B' is not a valid prefix",
        ),
        (["--redis", "redis://h", "--driver", "q", "--parallelism", "-1", "--", "true"], "parallelism"),
        (["--redis", "redis://h", "--driver", "q", "--skip-code", "0", "--", "true"], "keep it in one of them"),
    ],
)
def test_usage_errors_are_reported(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(cli, ["worker", *arguments], env={"EVERTICK_REDIS": None, "EVERTICK_NATS": None})
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


@pytest.mark.parametrize("broker", ["redis", "nats"])
def test_without_the_package_of_its_broker_the_extra_is_named(broker: str, tmp_path: Path) -> None:
    without = f"import runpy, sys; sys.modules[{broker!r}] = None; runpy.run_module('evertick', run_name='__main__')"
    arguments = ["worker", f"--{broker}", f"{broker}://h", "--driver", "q", "--", "true"]
    done = subprocess.run(
        [sys.executable, "-c", without, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"error: the packages for a worker of {broker} are missing (")
    assert f"pip install 'evertick[{broker}]'" in done.stderr


@pytest.mark.parametrize(
    ("file", "arguments", "said"),
    [
        (
            '[redis]\nurl = "redis://h"\n[nats]\nurl = "nats://h"',
            [],
            "evertick.toml has a Redis and a NATS; name one",
        ),
        ('[database]\nurl = "sqlite:///x.db"', [], "url or address under [redis] or [nats]"),
        ('[redis]\nurl = "redis://h"', ["--broker", "nats"], "url or address under [nats] in a configuration"),
        ('[nats]\nurl = "nats://h"\npassword = "x"', [], "evertick.toml:3: nats.password: nats.url names no user"),
        ('[redis]\nadress = "h"', [], "evertick.toml:2: redis.adress: no such key"),
        ('[nats]\nurl = "nats://h"', ["--stream"], "--stream applies to Redis only"),
        ('[redis]\nurl = "redis://h"', ["--ca", "evertick.toml"], "name the broker of these files"),
        (
            '[redis]\nurl = "redis://h"',
            ["--broker", "redis", "--credentials", "evertick.toml"],
            "--credentials applies to",
        ),
    ],
)
def test_errors_of_its_configuration_are_reported(
    file: str, arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("evertick.toml").write_text(file)
    none = {"EVERTICK_REDIS": None, "EVERTICK_NATS": None}
    result = CliRunner().invoke(cli, ["worker", *arguments, "--driver", "q", "--", "true"], env=none)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


class Started:
    """A worker that gets the address of its broker in other ways than by a URL on its command line."""

    def __init__(self, folder: Path, own: str, *arguments: str, **variables: str) -> None:
        command = [sys.executable, "-m", "evertick", "worker", "--driver", own, *arguments, "--", "true"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("EVERTICK_")}
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = preloaded.popen(command, stderr=log, cwd=folder, env=environment | variables)

    def end(self) -> str:
        self._process.kill()
        self._process.wait()
        return self._log.read_text()


async def does_a_run(worker: Started, bench: Bench) -> bool:
    try:
        await bench.dispatch()
        async with asyncio.timeout(20):
            return (await bench.ends())[-1].kind == "finish"
    except TimeoutError:
        return False
    finally:
        log = worker.end()
        assert "hunter2" not in log
        print(log)


def secret_file(folder: Path, password: str = "hunter2") -> Path:
    file = folder / "password"
    file.write_text(f"{password}\n")
    file.chmod(0o600)
    return file


@pytest.mark.parametrize("way", ["found", "--config", "flags", "environment"])
async def test_a_redis_that_wants_a_password_is_reached_as_by_the_daemon(own: str, tmp_path: Path, way: str) -> None:
    with redis_server("--requirepass", "hunter2", is_durable=False) as server:
        where, secret = f"127.0.0.1:{server.port}", str(secret_file(tmp_path))
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        file = (tmp_path if way == "found" else elsewhere) / "evertick.toml"
        file.write_text(f'[redis]\naddress = "{where}"\npassword_file = "{secret}"\n[jobs.broken]\nno = "job"\n')
        async with bench_on(server, own, "list") as bench:
            match way:
                case "found":
                    worker = Started(tmp_path, own)
                case "--config":
                    worker = Started(tmp_path, own, "--config", str(file))
                case "flags":
                    worker = Started(tmp_path, own, "--redis", f"redis://default@{where}", "--password-file", secret)
                case _:
                    variables = {"EVERTICK_REDIS": f"redis://default@{where}", "EVERTICK_REDIS_PASSWORD_FILE": secret}
                    worker = Started(tmp_path, own, **variables)
            assert await does_a_run(worker, bench)


async def test_a_nats_that_wants_a_user_is_reached_as_by_the_daemon(own: str, tmp_path: Path) -> None:
    with nats_server("--user", "worker", "--pass", "hunter2") as server:
        where = f"127.0.0.1:{server.port}"
        (tmp_path / "evertick.toml").write_text(
            f'[redis]\naddress = "127.0.0.1:1"\n[nats]\naddress = "{where}"\nuser = "worker"\n'
            f'password_file = "{secret_file(tmp_path).name}"\n'
        )
        server.url = f"nats://worker:hunter2@{where}"
        async with bench_on(server, own, "nats") as bench:
            assert await does_a_run(Started(tmp_path, own, "--broker", "nats"), bench)


async def test_a_url_is_stronger_than_the_configuration(own: str, redis: Broker, tmp_path: Path) -> None:
    (tmp_path / "evertick.toml").write_text('[redis]\naddress = "127.0.0.1:1"\npassword_file = "/nowhere"\n')
    async with bench_on(redis, own, "list") as bench:
        worker = Started(tmp_path, own, "--config", "evertick.toml", "--redis", redis.url, EVERTICK_NATS="nats://h")
        assert await does_a_run(worker, bench)


def test_a_password_in_the_environment_is_not_shown(tmp_path: Path) -> None:
    variables = {**os.environ, "EVERTICK_REDIS": "redis://:hunter2@127.0.0.1:1/0"}
    command = [sys.executable, "-m", "evertick", "worker", "--driver", "q", "-vv", "--", "true"]
    with (tmp_path / "log").open("wb") as log:
        process = preloaded.popen(command, stderr=log, env=variables)
    while "queue unavailable, retrying" not in (tmp_path / "log").read_text():
        assert process.poll() is None
    process.terminate()
    assert process.wait(30) == 0
    assert "hunter2" not in (tmp_path / "log").read_text()
