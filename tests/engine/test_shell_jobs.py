"""Shell jobs: real commands, real signals. After every test no process that it started may be left."""

from __future__ import annotations

import asyncio
import os
import pwd
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from process_watch import MARK, marked, seconds_until_gone

from evertick import Constant, Run, Scheduler, Secret, Shell, Task
from evertick.driver.shell import spec as shell_spec
from evertick.driver.shell import supervised
from evertick.driver.shell.output import HEAD_BYTES, TAIL_BYTES
from evertick.testing import virtual_time

SECONDS_MAX = 60.0
# Two that ignore TERM, one of them in a session of its own, and one that only sleeps.
STUBBORN = """
sleep 1000 &
setsid sh -c 'trap "" TERM; sleep 1000; sleep 1000' &
sh -c 'trap "" TERM; sleep 1000; sleep 1000' &
trap "" TERM
echo begun
wait
sleep 1000
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")


@pytest.fixture(autouse=True)
def mark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The mark of every process that the test starts; none may outlive the test."""
    if "url" in request.fixturenames:
        request.getfixturevalue("url")  # a server that is started for it is not the test's own
    token = uuid4().hex
    monkeypatch.setenv(MARK, token)
    yield token
    seconds_until_gone(token, 5)


class Bench:
    """A scheduler on a file that runs shell jobs, and their ended runs."""

    def __init__(self, url: str, **options: Any) -> None:
        self.scheduler = Scheduler(url, **{"drivers": ["shell"], "stop_timeout": "100ms", **options})
        self._count = 0

    def job(self, command: str | list[str], *, options: dict[str, Any] | None = None, **fields: Any) -> Task[..., Any]:
        self._count += 1
        return self.scheduler.job(f"job-{self._count}", Shell(command, **fields), **(options or {}))

    async def ended(self, run: Run) -> Run:
        async with asyncio.timeout(SECONDS_MAX):
            while (found := await self.scheduler.get_run(run.id)).verdict is None:
                await asyncio.sleep(0.01)
        return found

    async def run(self, command: str | list[str], **fields: Any) -> tuple[Run, list[tuple[str, str]]]:
        """The run of a job, and its lines without the last one, which has its usage."""
        job = self.job(command, **fields)
        async with self.scheduler:
            run = await self.ended(await job.enqueue())
            lines = await self.lines(run)
        return run, lines

    async def lines(self, run: Run) -> list[tuple[str, str]]:
        """The lines that it has written."""
        found = [(line.level, line.text) for line in await self.scheduler.log(run, limit=10_000)]
        return [line for line in found if "; CPU time " not in line[1]]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(f"sqlite:///{tmp_path}/jobs.db")
    yield bench
    await bench.scheduler.close()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/both.db"
    return str(request.getfixturevalue("postgres_url"))


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not is_so():
            await asyncio.sleep(0.01)


def kill_keeper(mark: str) -> None:
    [keeper] = [pid for pid, command in marked(mark).items() if "keeper.py" in command]
    os.kill(keeper, signal.SIGKILL)


async def until_line(bench: Bench, run: Run, text: str) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while text not in [line for _, line in await bench.lines(run)]:
            await asyncio.sleep(0.01)


# --- how it is started


async def test_a_command_runs_and_its_output_and_usage_are_kept(url: str) -> None:
    bench = Bench(url)
    run, lines = await bench.run(
        "echo out; echo err >&2; printf 'no end'; head -c 3000000 /dev/urandom | gzip | wc -c >&2"
    )
    assert run.verdict == "succeeded", run.error
    assert run.result is not None
    result = msgspec.convert(run.result, dict[str, float])
    assert result.keys() == {"exit_code", "cpu_seconds", "max_rss_bytes"}
    assert result["exit_code"] == 0
    assert 0.001 < result["cpu_seconds"] < 30
    assert 1_000_000 < result["max_rss_bytes"] < 100_000_000
    assert sorted(lines[:3]) == sorted([("stdout", "out"), ("stderr", "err"), lines[2]])
    assert ("stdout", "no end") in lines
    async with bench.scheduler:
        last = (await bench.scheduler.log(run))[-1]
    assert last.text.startswith("exit code 0; ")
    assert last.text.endswith(" MiB in one process")


async def test_each_attempt_of_a_command_has_its_phases(url: str) -> None:
    bench = Bench(url)
    command = 'echo out; echo err >&2; test "$EVERTICK_ATTEMPT" = 2'
    job = bench.job(command, options={"retry": Constant("1ms", attempts=2)})
    async with bench.scheduler:
        run = await bench.ended(await job.enqueue())
        [earlier] = await bench.scheduler.attempts(run)
    assert run.verdict == "succeeded", run.error
    for phases, code in ((earlier.phases, 1), (run.phases, 0)):
        start, ran = phases
        assert (start.name, start.is_failed, ran.name, ran.is_failed) == ("start", False, "run", code == 1)
        pid = ran.metadata["pid"]
        assert isinstance(pid, int)
        assert ran.metadata == {"pid": pid, "exit_code": code, "stdout_bytes": 4, "stderr_bytes": 4}
        assert start.seconds is not None
        assert ran.seconds is not None
        assert ran.at >= start.at


async def test_the_phases_of_a_command_that_cannot_start_is_stopped_or_runs(bench: Bench) -> None:
    absent, endless = bench.job(["/no/such/command"]), bench.job("echo begun; exec sleep 1000")
    async with bench.scheduler:
        failed = await bench.ended(await absent.enqueue())
        run = await endless.enqueue()
        async with asyncio.timeout(SECONDS_MAX):
            while not (phases := (await bench.scheduler.get_run(run.id)).phases) or phases[-1].name != "run":
                await asyncio.sleep(0.01)
        await until_line(bench, run, "begun")
        await bench.scheduler.cancel(run.id)
        stopped = await bench.ended(run)
    assert [(phase.name, phase.is_failed, phase.metadata) for phase in failed.phases] == [("start", True, {})]
    assert [(phase.name, phase.seconds is None) for phase in phases] == [("start", False), ("run", True)]
    [_, ended] = stopped.phases
    assert (ended.is_failed, ended.metadata["signal"], ended.metadata["stdout_bytes"]) == (True, signal.SIGTERM, 6)


async def test_the_memory_and_time_of_all_processes_of_a_command_are_counted(bench: Bench, tmp_path: Path) -> None:
    spend = f"{sys.executable} {tmp_path}/spend.py"
    (tmp_path / "spend.py").write_text("import time; x = bytearray(60_000_000)\nwhile time.process_time() < 0.2: pass")
    # In the background, orphaned by its parent.
    run, _ = await bench.run(f'sh -c "{spend} & {spend} & wait"; true')
    assert run.verdict == "succeeded", run.error
    result = msgspec.convert(run.result, dict[str, float])
    assert result["cpu_seconds"] >= 0.4
    assert 60_000_000 < result["max_rss_bytes"] < 200_000_000


async def test_a_list_of_words_passes_no_shell(bench: Bench) -> None:
    _, lines = await bench.run(["printf", "%s\n", "a b", "$HOME", "*"])
    assert lines == [("stdout", "a b"), ("stdout", "$HOME"), ("stdout", "*")]


async def test_another_shell_runs_the_text(bench: Bench) -> None:
    run, lines = await bench.run(
        'echo "${BASH_VERSION:+bash}"; false | true', shell=["/bin/bash", "-o", "pipefail", "-c"]
    )
    assert lines == [("stdout", "bash")]
    assert run.error == "exit code 1: bash"


async def test_a_command_has_its_folder_and_its_text_to_read(bench: Bench, tmp_path: Path) -> None:
    _, lines = await bench.run("pwd; cat; cat /dev/stdin", cwd=str(tmp_path), stdin="grün\nis the text\n" * 2)
    assert [text for _, text in lines[:3]] == [str(tmp_path), "grün", "is the text"]


@pytest.mark.parametrize(("cwd", "folder"), [("~/work", "work"), ("~", "")])
async def test_a_folder_may_be_relative_to_the_home_of_its_user(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cwd: str, folder: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "work").mkdir()
    _, lines = await bench.run("pwd", cwd=cwd)
    assert lines == [("stdout", str(tmp_path / folder))]


async def test_without_a_text_there_is_nothing_to_read_and_no_terminal(bench: Bench) -> None:
    _, lines = await bench.run("cat; readlink /proc/self/fd/0; (: < /dev/tty) 2>/dev/null || echo no terminal")
    assert [text for _, text in lines] == ["/dev/null", "no terminal"]


async def test_a_command_knows_its_run(bench: Bench) -> None:
    job = bench.job(
        "env -0 | sort -z | tr '\\0' '\\n' | grep ^EVERTICK_; exit 1", options={"retry": Constant("1ms", attempts=2)}
    )
    bench.scheduler.every("1h", key="hourly", args={"table": "orders", "note": "a\nb 'c' $d"})(job)
    async with bench.scheduler:
        run = await bench.ended(await bench.scheduler.trigger("hourly"))
        lines = [text for level, text in await bench.lines(run) if level == "stdout"]
    second = dict(line.split("=", 1) for line in lines[len(lines) // 2 :] if not line.startswith("EVERTICK_TEST"))
    assert run.fence is not None
    assert second == {
        "EVERTICK_APP": "default",
        "EVERTICK_ARGS": '{"table":"orders","note":"a\\nb \'c\' $d"}',
        "EVERTICK_ATTEMPT": "2",
        "EVERTICK_FENCE": str(run.fence),
        "EVERTICK_FIRE_AT": run.fire_at.isoformat().replace("+00:00", "Z"),
        "EVERTICK_IDEMPOTENCY_KEY": run.id,
        "EVERTICK_KEPT": second["EVERTICK_KEPT"],
        "EVERTICK_RUN_ID": run.id,
        "EVERTICK_SCHEDULE": "hourly",
        "EVERTICK_TASK": job.name,
    }


async def test_the_environment_is_that_of_the_node_without_its_own_settings(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EVERTICK_SECRET_OTHER", "EVERTICK_DATABASE", "NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_FDS"):
        monkeypatch.setenv(name, "not for you")
    monkeypatch.setenv("OF_NODE", "for all")
    _, lines = await bench.run("env; echo end", env={"OF_JOB": "x=y z", "LANG": "C"})
    texts = [text for _, text in lines]
    assert {"OF_NODE=for all", "OF_JOB=x=y z", "LANG=C"} <= set(texts)
    assert not any("not for you" in text for text in texts)


async def test_a_clean_environment_has_nothing_of_the_node(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_NODE", "for all")
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.delenv("LC_ALL", raising=False)
    monkeypatch.delenv("TZ", raising=False)
    _, lines = await bench.run(["env"], clean_env=True, env={"A": "1"})
    ours = {text for _, text in lines if not text.startswith("EVERTICK_")}
    assert ours == {"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "A=1"}


async def test_a_command_is_born_with_the_signals_of_any_other(bench: Bench) -> None:
    # A program that ignores a broken pipe complains about it.
    run, lines = await bench.run("yes | head -1; grep -E 'SigIgn|SigBlk' /proc/self/status")
    assert run.verdict == "succeeded"
    assert lines[0] == ("stdout", "y")
    # posix_spawn ignores two signals that the C library reserves (32, 33).
    assert [int(text.split()[1], 16) & ~(0b11 << 31) for _, text in lines[1:]] == [0, 0]


async def test_a_command_has_no_files_of_the_node(bench: Bench, tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        _, lines = await bench.run(["ls", "-l", "/proc/self/fd"])
    held = [text.rpartition(" ")[2] for _, text in lines if "->" in text]
    assert sorted(each.partition(":")[0] for each in held if not each.startswith("/proc/")) == [
        "/dev/null",
        "pipe",
        "pipe",
    ]


async def test_nice_and_the_limit_of_memory_hold_for_the_command(bench: Bench) -> None:
    run, lines = await bench.run(
        f"nice; ulimit -v; exec {sys.executable} -c 'bytearray(500_000_000)'", nice=7, memory_limit="256MiB"
    )
    assert lines[:2] == [("stdout", str(min(19, os.nice(0) + 7))), ("stdout", str(256 * 1024))]
    assert run.verdict == "failed"
    assert run.error == "exit code 1: MemoryError"
    assert run.result["exit_code"] == 1  # type: ignore[index]


@pytest.mark.parametrize(
    ("command", "fields", "error"),
    [
        (["no-such-program"], {}, "the command could not be started: no-such-program: No such file or directory"),
        (["/etc/passwd"], {}, "the command could not be started: /etc/passwd: Permission denied"),
        ("true", {"shell": "/bin/nosh"}, "the command could not be started: /bin/nosh: No such file or directory"),
        ("true", {"cwd": "/no/where"}, "the command could not be started: cwd: /no/where: No such file or directory"),
        ("true", {"user": "no-such-user"}, "user: 'no-such-user' does not exist on this machine"),
    ],
)
async def test_a_command_that_cannot_be_started_fails_with_the_reason(
    bench: Bench, command: str | list[str], fields: dict[str, Any], error: str
) -> None:
    run, lines = await bench.run(command, **fields)
    assert run.verdict == "failed"
    assert run.error is not None
    assert run.error.startswith(error)
    assert (lines, run.result) == ([], None)


async def test_arguments_that_no_variable_holds_fail_with_the_fix(bench: Bench) -> None:
    job = bench.job("true")
    async with bench.scheduler:
        run = await bench.ended(await job.enqueue(data="x" * 150_000))
        fits = await bench.ended(await job.enqueue(data="x" * 90_000))
    assert (
        run.error == "the arguments have 150011 bytes, more than the 102400 of a variable; pass a reference to the data"
    )
    assert fits.verdict == "succeeded"


# --- as another user


@as_root
async def test_root_runs_a_command_as_another_user_with_nothing_of_its_own(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_ROOT", "x")
    account = pwd.getpwnam("nobody")
    # It has the groups of the user, cannot become root again, and gets a signal when its keeper dies.
    run, lines = await bench.run(
        "id -u; id -g; id -G; pwd; env; (kill -0 $PPID) 2>&1; cat /etc/shadow 2>&1", user="nobody"
    )
    assert run.verdict == "failed"
    texts = [text for _, text in lines]
    folder = account.pw_dir if os.path.isdir(account.pw_dir) else "/"
    assert texts[:4] == [str(account.pw_uid), str(account.pw_gid), str(account.pw_gid), folder]
    assert {f"HOME={account.pw_dir}", "USER=nobody", "LOGNAME=nobody", "SHELL=/bin/sh"} <= set(texts)
    assert not any("OF_ROOT" in text for text in texts)
    assert "Permission denied" in texts[-1]
    assert any("not permitted" in text.lower() for text in texts)


@as_root
async def test_a_user_may_be_a_number_and_reads_the_text_it_is_given(bench: Bench, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    run, lines = await bench.run("id -u; cat", user=65534, cwd="/", stdin="for you")
    assert [text for _, text in lines] == ["65534", "for you"]
    run, _ = await Bench(f"sqlite:///{tmp_path}/other.db").run("true", user=65534, cwd=str(tmp_path))
    assert run.error == f"the command could not be started: cwd: {tmp_path}: Permission denied"


@as_root
async def test_a_folder_in_the_home_is_in_that_of_the_other_user(bench: Bench) -> None:
    run, _ = await bench.run("true", user="nobody", cwd="~/no-such-folder")
    home = pwd.getpwnam("nobody").pw_dir
    assert run.error == f"the command could not be started: cwd: {home}/no-such-folder: No such file or directory"


@as_root
async def test_another_users_stubborn_command_is_gone_after_its_timeout(bench: Bench) -> None:
    token = uuid4().hex
    job = bench.job(STUBBORN, user="nobody", cwd="/", kill_after="200ms", env={MARK: token}, options={"timeout": "1s"})
    async with bench.scheduler:
        run = await job.enqueue()
        await until(lambda: len(marked(token)) >= 6)
        ended = await bench.ended(run)
        assert marked(token) == {}
    assert (ended.verdict, ended.reason) == ("failed", "timeout")


async def test_a_node_that_is_not_root_refuses_another_user_and_takes_its_own(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = pwd.getpwuid(os.geteuid()).pw_name
    own, other = bench.job("id -un", user=me), bench.job("id -un", user="nobody")
    async with bench.scheduler:
        taken = await bench.ended(await own.enqueue())
        assert await bench.lines(taken) == [("stdout", me)]
        monkeypatch.setattr(shell_spec.os, "geteuid", lambda: 4711)
        run = await bench.ended(await other.enqueue())
    assert run.error == (
        "user: only root can run commands as 'nobody', and this node runs as user 4711; run the node as root, or "
        "remove user"
    )


# --- exit codes


async def test_exit_codes_have_the_meaning_that_the_job_sets(url: str) -> None:
    bench = Bench(url)
    job = bench.job(
        'echo "code for $EVERTICK_ATTEMPT"; exit $(echo "$EVERTICK_ARGS" | tr -dc 0-9)',
        success_codes=[0, 2],
        skip_codes=[3],
        retry_codes=[75],
        options={"retry": Constant("1ms", attempts=3)},
    )
    async with bench.scheduler:
        runs = {code: await bench.ended(await job.enqueue(code=code)) for code in (0, 2, 3, 75, 4)}
        attempts = await bench.scheduler.attempts(runs[75])
    assert [runs[code].verdict for code in (0, 2)] == ["succeeded"] * 2
    assert runs[2].result["exit_code"] == 2  # type: ignore[index]
    assert (runs[3].verdict, runs[3].reason) == ("skipped", "exit code 3: code for 1")
    assert (runs[75].verdict, runs[75].attempts) == ("failed", 3)
    # The usage is kept, however the command ends.
    for code in (3, 75):
        assert runs[code].result["exit_code"] == code  # type: ignore[index]
        assert runs[code].result["max_rss_bytes"] > 1_000_000  # type: ignore[index]
    assert attempts[0].error == "exit code 75, which is in retry_codes: code for 1"
    assert (runs[4].verdict, runs[4].attempts, runs[4].error) == ("failed", 3, "exit code 4: code for 3")
    assert runs[4].result["exit_code"] == 4  # type: ignore[index]


async def test_a_code_that_asks_for_a_retry_gets_some_without_a_policy(bench: Bench) -> None:
    job = bench.job("exit 75", retry_codes=[75])
    async with bench.scheduler:
        run = await job.enqueue()
        async with asyncio.timeout(SECONDS_MAX):
            while not (found := await bench.scheduler.get_run(run.id)).attempts:
                await asyncio.sleep(0.01)
    assert (found.state, found.attempts) == ("waiting", 1)
    assert found.due_at - found.created_at > timedelta(seconds=50)


async def test_a_command_that_dies_by_a_signal_has_failed_by_it(bench: Bench) -> None:
    run, _ = await bench.run("echo last words; kill -SEGV $$")
    assert run.error == "killed by signal SIGSEGV: last words"
    assert run.result["exit_code"] is None  # type: ignore[index]


async def test_processes_that_a_command_leaves_running_end_with_its_run(bench: Bench, mark: str) -> None:
    job = bench.job("sleep 1000 & setsid sleep 1000 & nohup sleep 1000 & echo done")
    async with bench.scheduler:
        run = await bench.ended(await job.enqueue())
        assert marked(mark) == {}, "the run has its verdict, and something of it is alive"
    assert run.verdict == "succeeded"


# --- how it is stopped


@pytest.mark.parametrize("how", ["timeout", "cancel", "stop"])
async def test_a_stubborn_command_that_is_stopped_leaves_no_process(bench: Bench, mark: str, how: str) -> None:
    job = bench.job(STUBBORN, kill_after="300ms", options={"timeout": "2s" if how == "timeout" else None})
    async with bench.scheduler:
        run = await job.enqueue()
        await until_line(bench, run, "begun")
        await until(lambda: len(marked(mark)) >= 7)
        if how == "cancel":
            await bench.scheduler.cancel(run)
        if how != "stop":
            ended = await bench.ended(run)
            assert marked(mark) == {}, "the run has its verdict, and something of it is alive"
            assert ended.verdict == ("cancelled" if how == "cancel" else "failed")
            last = (await bench.scheduler.log(run))[-1].text
            why = "requested" if how == "cancel" else "timeout"
            assert last.startswith(f"stopped ({why}) with all its processes; ")
    if how == "stop":
        assert marked(mark) == {}, "the node has stopped, and something of its run is alive"
        released = await bench.scheduler.get_run(run.id)
        assert (released.state, released.attempts) == ("waiting", 0)


async def test_a_command_may_tidy_up_after_term(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "tidied"
    job = bench.job(
        f"trap 'echo tidying; echo yes > {file}; exit 0' TERM; echo begun; while :; do sleep 0.05; done",
        kill_after="30s",
        options={"timeout": "1s"},
    )
    async with bench.scheduler:
        run = await bench.ended(await job.enqueue())
        lines = await bench.lines(run)
    # However it ends: after TERM the work may be incomplete.
    assert (run.verdict, run.reason) == ("failed", "timeout")
    assert ("stdout", "tidying") in lines
    assert file.read_text() == "yes\n"


@pytest.mark.parametrize("how", ["timeout", "cancel", "lost"])
async def test_the_usage_of_a_stopped_command_is_its_result(url: str, how: str) -> None:
    bench = Bench(url)
    options = {"timeout": "1s" if how == "timeout" else None, "on_lost": "fail" if how == "lost" else "rerun"}
    works = "n=0; while [ $n -lt 5000 ]; do n=$((n + 1)); done"
    job = bench.job(f"{works}; echo worked; sleep 1000", options=options)
    async with bench.scheduler:
        run = await job.enqueue()
        await until_line(bench, run, "worked")
        if how == "cancel":
            await bench.scheduler.cancel(run)
        if how != "lost":
            await bench.ended(run)
    ended = await bench.scheduler.get_run(run.id)
    await bench.scheduler.close()
    assert ended.verdict == {"timeout": "failed", "cancel": "cancelled", "lost": "lost"}[how]
    result = msgspec.convert(ended.result, dict[str, float | None])
    assert result["exit_code"] is None  # by a signal
    assert 0.001 < (result["cpu_seconds"] or 0) < 30
    assert (result["max_rss_bytes"] or 0) > 1_000_000


# --- output


async def test_output_is_there_while_the_command_runs(bench: Bench, tmp_path: Path) -> None:
    job = bench.job(f"echo first; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; echo second")
    async with bench.scheduler:
        run = await job.enqueue()
        await until_line(bench, run, "first")
        assert (await bench.scheduler.get_run(run.id)).state == "running"
        (tmp_path / "go").touch()
        await bench.ended(run)
        assert await bench.lines(run) == [("stdout", "first"), ("stdout", "second")]


async def test_a_hundred_megabytes_of_output_stay_bounded_in_ledger_and_memory(
    bench: Bench, record_property: Callable[[str, object], None]
) -> None:
    job = bench.job(
        "echo the head; yes 'a line of some words of no interest at all' | head -c 100000000; echo; echo the tail"
    )
    async with bench.scheduler:
        await bench.ended(await job.enqueue(warm=True))
        before, worked = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        run = await bench.ended(await job.enqueue())
        worked = time.process_time() - worked
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        lines = await bench.lines(run)
    record_property("flood_cpu_seconds", round(worked, 2))
    print(f"100 MB of output: {worked:.2f} s of the node's processor time, {grown} KiB more memory")
    assert run.verdict == "succeeded"
    assert lines[0] == ("stdout", "the head")
    assert lines[-1] == ("stdout", "the tail")
    [cut] = [text for level, text in lines if level == "info" and "omitted" in text]
    assert int(cut.split()[1]) > 99_000_000
    assert sum(len(text) + 1 for level, text in lines if level == "stdout") <= HEAD_BYTES + TAIL_BYTES
    assert grown < 8_000, "the node has grown with the output of a job"


async def test_a_flood_does_not_keep_the_node_from_its_other_work(bench: Bench) -> None:
    flood, other = bench.job("yes"), bench.job("echo here")
    async with bench.scheduler:
        flooding = await flood.enqueue()
        await until_line(bench, flooding, "… output limit reached; the last lines follow when the command ends …")
        run = await bench.ended(await other.enqueue())
        await bench.scheduler.cancel(flooding)
        await bench.ended(flooding)
    assert run.verdict == "succeeded"


async def test_output_that_is_no_text_is_kept_as_far_as_it_is(url: str) -> None:
    bench = Bench(url)
    run, lines = await bench.run(
        r"printf 'a\377b\nzero\000zero\n\033[31mred\n\360\237\230\200\n'; head -c 5000 /dev/urandom"
    )
    assert run.verdict == "succeeded"
    assert lines[0] == ("stdout", "a\ufffdb")
    assert lines[1][1] in ("zero\x00zero", "zero\ufffdzero")
    assert lines[2:4] == [("stdout", "\x1b[31mred"), ("stdout", "\U0001f600")]


# --- secrets


async def test_a_secret_reaches_only_the_command(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("EVERTICK_SECRET_DB", "open sesame")
    monkeypatch.setenv("EVERTICK_SECRET_KEY", "swordfish")
    monkeypatch.setenv("EVERTICK_SECRET_OTHER", "not for it")
    command = f"""
        echo "$PW" > {tmp_path}/got; cat >> {tmp_path}/got; env > {tmp_path}/env
        printf 'it is open'; sleep 0.05; echo ' sesame!'; echo "$PW" >&2
        ps -eo args | grep -c '[o]pen sesame'
        exit 3
    """
    run, lines = await bench.run(command, env={"PW": Secret("DB")}, stdin=Secret("KEY"))
    assert (tmp_path / "got").read_text() == "open sesame\nswordfish"
    assert "not for it" not in (tmp_path / "env").read_text()
    assert sorted(lines) == sorted([("stdout", "it is ***!"), ("stderr", "***"), ("stdout", "0")])
    assert run.error == "exit code 3: ***"
    shown = repr(run) + repr(lines) + caplog.text
    assert not any(secret in shown for secret in ("open sesame", "swordfish"))
    for file in (tmp_path / "jobs.db", tmp_path / "jobs.db-wal"):
        assert not file.exists() or b"open sesame" not in file.read_bytes()


@pytest.mark.parametrize(
    ("end", "options"),
    [("kill -KILL $$", {}), ("sleep 1000", {"timeout": "1s"})],
    ids=["by a signal", "by its timeout"],
)
async def test_a_command_that_is_ended_amid_a_secret_shows_no_part_of_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, end: str, options: dict[str, Any]
) -> None:
    monkeypatch.setenv("EVERTICK_SECRET_DB", "open sesame")
    run, lines = await bench.run(f"printf 'it is: open ses'; {end}", env={"PW": Secret("DB")}, options=options)
    assert run.verdict == "failed"
    assert ("stdout", "it is: ") in lines
    assert "open" not in f"{lines} {run.error}"


async def test_a_flood_of_a_secret_does_not_keep_the_event_loop(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTICK_SECRET_DB", "open sesame")
    flood = bench.job('yes "$PW" | head -c 300000000', env={"PW": Secret("DB")})
    async with bench.scheduler:
        run, began, longest = await flood.enqueue(), time.thread_time(), 0.0
        async with asyncio.timeout(SECONDS_MAX):
            while (found := await bench.scheduler.get_run(run.id)).verdict is None:
                for _ in range(20):
                    before = time.thread_time()
                    await asyncio.sleep(0.005)
                    longest = max(longest, time.thread_time() - before)
        lines = await bench.lines(run)
    assert found.verdict == "succeeded"
    # CPU time of this thread, which does not depend on the load of the machine.
    assert time.thread_time() - began < 5
    assert longest < 0.1
    assert {text for level, text in lines if level == "stdout"} <= {"***", "**", "*"}
    assert any("24996000 lines of output omitted" in text for _, text in lines)


async def test_a_secret_that_is_missing_fails_the_run_and_starts_nothing(bench: Bench, tmp_path: Path) -> None:
    run, _ = await bench.run(f"touch {tmp_path}/ran", env={"PW": Secret("NOWHERE")})
    assert run.verdict == "failed"
    assert "secret 'NOWHERE' is not set; set the environment variable EVERTICK_SECRET_NOWHERE" in (run.error or "")
    assert not (tmp_path / "ran").exists()


# --- virtual time, and the death of the keeper


async def test_in_virtual_time_no_command_is_run(bench: Bench, tmp_path: Path) -> None:
    bench.scheduler.cron("0 3 * * *")(bench.job(f"touch {tmp_path}/ran"))
    async with virtual_time(bench.scheduler) as kit:
        await kit.advance(timedelta(days=2))
        runs = await bench.scheduler.runs()
        assert [run.verdict for run in runs] == ["succeeded"] * 2
        assert [line.text for line in await bench.scheduler.log(runs[0])] == [
            f"not run in virtual time: /bin/sh -c touch {tmp_path}/ran"
        ]
    assert not (tmp_path / "ran").exists()


def but_for_the_hidden() -> str:
    return "" if supervised.sees_all_processes() else f", {supervised._EXCEPT_HIDDEN}"


@pytest.mark.parametrize("user", [None, pytest.param("nobody", marks=as_root)])
async def test_a_command_whose_keeper_is_killed_fails_and_ends_as_well(
    bench: Bench, mark: str, user: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the node had died with the keeper.
    monkeypatch.setattr(supervised.os, "killpg", lambda *_: None)
    monkeypatch.setattr(supervised, "kill_marked", lambda _: [])
    token = uuid4().hex
    job = bench.job("echo begun; exec sleep 1000", user=user, env={"OWN_MARK": token})
    async with bench.scheduler:
        run = await job.enqueue()
        await until_line(bench, run, "begun")
        kill_keeper(mark)
        ended = await bench.ended(run)
    assert ended.error == f"the keeper process was killed, so the command was killed, too{but_for_the_hidden()}: begun"
    await until(lambda: not marked(token, "OWN_MARK"))


@pytest.mark.parametrize("user", [None, pytest.param("nobody", marks=as_root)])
async def test_nothing_of_a_command_outlives_its_keeper_that_was_killed(
    bench: Bench, mark: str, user: str | None
) -> None:
    """Also processes that left the group, ignore signals, or fork without end."""
    token = uuid4().hex
    deaf = "setsid sh -c 'trap \"\" TERM HUP INT; echo deaf; sleep 1000'"
    forking = "setsid sh -c 'while :; do sh -c \"sleep 0.01\" & sleep 0.005; done'"
    job = bench.job(f"{deaf} & {forking} & sleep 1000", user=user, env={"OWN_MARK": token})
    async with bench.scheduler:
        run = await job.enqueue()
        await until_line(bench, run, "deaf")
        kill_keeper(mark)
        ended = await bench.ended(run)
        assert marked(token, "OWN_MARK") == {}
    # A shell that sees the end of its child before its own prints "Killed".
    told = [
        f"the keeper process was killed, so the command was killed, too{but_for_the_hidden()}: {last}"
        for last in ("deaf", "Killed")
    ]
    assert ended.error in told


async def test_a_node_that_cannot_read_every_process_reports_possible_leftovers_of_a_killed_keeper(
    bench: Bench, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised, "sees_all_processes", lambda: False)
    job = bench.job("echo begun; exec sleep 1000")
    async with bench.scheduler:
        run = await job.enqueue()
        await until_line(bench, run, "begun")
        kill_keeper(mark)
        ended = await bench.ended(run)
    assert ended.error == (
        "the keeper process was killed, so the command was killed, too, except processes that hide their environment "
        "(ssh-agent, sudo, processes of other users): begun"
    )


async def test_leftovers_of_a_killed_keeper_that_survive_are_named(
    bench: Bench, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised, "kill_marked", lambda _: [4711])
    monkeypatch.setattr(supervised, "_SCANS_MAX", 2)
    job = bench.job("echo begun; exec sleep 1000")
    async with bench.scheduler:
        run = await job.enqueue()
        await until_line(bench, run, "begun")
        kill_keeper(mark)
        ended = await bench.ended(run)
    assert ended.error == "the keeper process was killed, and these processes are still running: 4711: begun"
