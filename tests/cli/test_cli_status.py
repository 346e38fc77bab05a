"""`evertick status`: one line and an exit code for monitors, and its rules."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from click.testing import Result

from evertick import Redis, Scheduler
from evertick.cli.command.health import Grade, grade_of
from evertick.daemon.pending_reload import daemon_findings
from evertick.daemon.report import DaemonReport, write_report
from evertick.doctor.health import Evidence, health_of, problems_of
from evertick.doctor.thresholds import Thresholds
from evertick.model import Cause, Dispatched, Duty, Node, Run, Schedule, State
from evertick.store.base import ChannelPulse, Pulse
from evertick.when import to_us
from servers.broker import redis_server

NOW = datetime(2026, 1, 31, 9, tzinfo=UTC)
LIMITS = Thresholds(failed_critical=5)
PULSE = Pulse(now=to_us(NOW), waiting=0, running=1, parked=0, blocked=0, oldest_due_at=None, schedules=3)
BOX = Node(
    id="a",
    name="box",
    app="default",
    version="1",
    started_at=NOW - timedelta(hours=1),
    beat_at=NOW - timedelta(seconds=1),
    lease_until=NOW + timedelta(seconds=14),
    died_at=None,
    queues=("default",),
    tasks=("make_report",),
    declares={},
    running=1,
    channels=("redis",),
)
HELD = Duty(name="evertick.prune", node="a", node_name="box", term=1, since=NOW, ticked_at=NOW, next_at=NOW, error=None)
WELL = Evidence(app="default", pulse=PULSE, nodes=[BOX], duties=[HELD])
REPORT = DaemonReport(pid=1, version="1", node="box", config="/etc/evertick.toml", jobs=3, started_at=NOW)

Call = Callable[..., Result]
T = TypeVar("T")


def until(look: Callable[[], T], is_so: Callable[[T], object]) -> T:
    """Repeat the call: a broker has no event to wait for."""
    for _ in range(1_200):
        if is_so(found := look()):
            return found
        threading.Event().wait(0.05)
    raise AssertionError(f"it never came to that: {found}")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scheduler]:
    """A live node with a schedule, on the database that commands find."""
    url = f"sqlite:///{tmp_path}/live.db"
    monkeypatch.setenv("EVERTICK_DATABASE", url)
    scheduler = Scheduler(url, node_name="box")

    @scheduler.every("1h")
    def report(fail: bool = False) -> None:
        if fail:
            raise ValueError("no paper")

    with scheduler:
        yield scheduler


def test_ok_is_one_line_with_figures_and_exit_code_0(node: Scheduler, evertick: Call) -> None:
    result = evertick("status")
    assert (result.exit_code, result.stderr) == (0, "")
    first, *rest = result.stdout.splitlines()
    assert first == (
        "OK: 1 node alive, 1 schedule, lag 0 s, 0 running, 0 waiting | nodes=1 lag=0.000s;60;600 running=0 waiting=0 "
        "blocked=0 parked=0 dispatched=0 failed=0;1; lost=0"
    )
    assert re.search(r"^box +alive +\S+ m?s ago", "\n".join(rest), re.MULTILINE)


def test_an_incomplete_count_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evertick: Call) -> None:
    url = f"sqlite:///{tmp_path}/full.db"
    monkeypatch.setenv("EVERTICK_DATABASE", url)
    scheduler = Scheduler(url, concurrency=0)

    @scheduler.task
    def count(number: int) -> None: ...

    with scheduler:
        for first in (0, 5_001):
            count.sync.enqueue_many({"number": number} for number in range(first, first + 5_001))
        assert "0 running, 10000+ waiting, 0 blocked" in evertick("status").stdout


def test_recent_failures_are_a_warning_unless_it_is_turned_off(node: Scheduler, evertick: Call) -> None:
    ended = threading.Semaphore(0)
    node.on("failed", lambda event: ended.release())
    node.sync.trigger("report", args={"fail": True})
    assert ended.acquire(timeout=20)
    result = evertick("status")
    assert result.exit_code == 1
    assert result.stdout.startswith("WARNING: 1 run failed in the last hour: report | nodes=1 ")
    assert "fix: `evertick failed` has their errors" in result.stdout
    assert "`evertick rerun --failed --verdict failed` runs them again" in result.stdout
    assert evertick("status", "--failed-warning", "2").exit_code == 0
    assert evertick("status", "--failed-warning", "0").exit_code == 0
    assert evertick("status", "--failed-critical", "1").exit_code == 2


def test_rerun_runs_are_no_longer_reported(node: Scheduler, evertick: Call) -> None:
    ended = threading.Semaphore(0)
    for kind in ("failed", "succeeded"):
        node.on(kind, lambda event: ended.release())
    for _ in range(2):
        node.sync.trigger("report", args={"fail": True})
        assert ended.acquire(timeout=20)
    shown = json.loads(evertick("status", "--json").stdout)
    command = re.search(r"`evertick (rerun [^`]*)`", shown["problems"][0]["fix"])
    assert command is not None
    again = evertick(*command[1].split(), "--args", '{"fail": false}', "--yes")
    assert (again.exit_code, len(again.stdout.splitlines())) == (0, 2)
    assert evertick("status").exit_code == 0
    assert ended.acquire(timeout=20)
    assert ended.acquire(timeout=20)
    assert evertick("status").stdout.startswith("OK: ")


def test_an_unreachable_broker_and_a_queue_without_workers_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evertick: Call
) -> None:
    url = f"sqlite:///{tmp_path}/dispatched.db"
    monkeypatch.setenv("EVERTICK_DATABASE", url)
    scheduler = Scheduler(url, drivers=["function", "redis"])
    job = scheduler.job("build", Redis("docker"))
    flags = ("--lag-warning", "1s", "--failed-warning", "0")
    with redis_server() as server:
        scheduler.connect("redis", server.url)
        with scheduler:
            assert evertick("status", *flags).exit_code == 0
            server.kill()
            job.sync.enqueue()
            away = until(lambda: evertick("status", *flags), lambda result: "redis" in result.stdout)
            assert away.exit_code == 1
            assert away.stdout.startswith("WARNING: channel redis: the oldest message has failed for ")
            # Also right after a try, when the next one is yet to come.
            [message] = scheduler.sync.messages(channel="redis")
            again = until(
                lambda: scheduler.sync.messages(channel="redis")[0], lambda found: found.attempts > message.attempts
            )
            assert again.due_at > again.created_at
            assert evertick("status", *flags).exit_code == 1
            assert evertick("status", *flags, "--lag-critical", "1s").exit_code == 2
            server.start()
            late = until(lambda: evertick("status", *flags), lambda result: "worker" in result.stdout)
            assert late.exit_code == 1
            words = "1 dispatched run waits for a worker of the queue 'docker' of 'redis', the oldest for "
            assert late.stdout.startswith(f"WARNING: {words}")


def test_status_without_a_node_is_critical(database: str, evertick: Call) -> None:
    result = evertick("status")
    assert result.exit_code == 2
    assert result.stdout.startswith("CRITICAL: no node is alive: nothing fires and nothing runs")


def test_an_empty_app_is_only_a_warning(database: str, evertick: Call) -> None:
    result = evertick("status", "--app", "nothing")
    assert (result.exit_code, result.stdout[:57]) == (1, "WARNING: no node is alive, and nothing is scheduled | nod")


def test_status_as_json_has_every_field(node: Scheduler, evertick: Call) -> None:
    result = evertick("status", "--json")
    shown = json.loads(result.stdout)
    assert (result.exit_code, shown["status"], shown["exit_code"], shown["problems"]) == (0, "ok", 0, [])
    assert shown["summary"].startswith("1 node alive")
    assert shown["nodes"][0]["name"] == "box"
    assert 0 <= shown["nodes"][0]["beat_age_seconds"] < 15
    counts = {name: shown[name] for name in ("running", "waiting", "blocked", "parked", "dispatched", "failed")}
    assert counts == dict.fromkeys(counts, 0)
    assert (shown["lag_seconds"], shown["oldest_due_at"], shown["daemons"]) == (0, None, [])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--database", "sqlite:////no/such/file.db"), "UNKNOWN: there is no database at /no/such/file.db"),
        (("--database", "nonsense"), "UNKNOWN: url: "),
        (("--database", "sqlite://"), "UNKNOWN: "),
    ],
)
def test_an_unreadable_store_is_unknown(evertick: Call, flags: tuple[str, ...], words: str) -> None:
    result = evertick("status", *flags)
    assert result.exit_code == 3
    assert result.stdout.startswith(words)
    shown = json.loads(evertick("status", "--json", *flags).stdout)
    assert (shown["status"], shown["exit_code"]) == ("unknown", 3)


@pytest.mark.parametrize(
    "flags", [("--lag-warning", "soon"), ("--nonsense",), ("surplus",), ("--failed-warning", "-1")]
)
def test_a_usage_error_is_unknown_and_not_critical(evertick: Call, flags: tuple[str, ...]) -> None:
    result = evertick("status", *flags)
    assert result.exit_code == 3
    assert result.stderr.startswith("error: ")


def test_an_unreachable_database_is_critical(evertick: Call, monkeypatch: pytest.MonkeyPatch, database: str) -> None:
    away = evertick("status", "--database", "postgresql://ann:hunter2@127.0.0.1:1/none")
    assert away.exit_code == 2
    assert away.stdout.startswith("CRITICAL: ")
    assert "hunter2" not in away.output

    async def hangs(*args: Any, **options: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr("evertick.operations.health.look", hangs)
    silent = evertick("status", "--timeout", "200ms")
    assert (silent.exit_code, silent.stdout) == (2, "CRITICAL: the database did not answer within 200 ms\n")


def test_status_changes_nothing(database: str, evertick: Call) -> None:
    with closing(sqlite3.connect(database.removeprefix("sqlite:///"))) as watching:
        # Counts commits of other connections while this one is open.
        (before,) = watching.execute("PRAGMA data_version").fetchall()
        evertick("status")
        assert watching.execute("PRAGMA data_version").fetchall() == [before]
        evertick("pause", "report")
        assert watching.execute("PRAGMA data_version").fetchall() != [before]


def test_the_daemon_of_a_configuration_is_shown(tmp_path: Path, node: Scheduler, evertick: Call) -> None:
    config = tmp_path / "evertick.toml"
    config.write_text(f'[directories]\nstate = "{tmp_path}/state"\n')
    (tmp_path / "state").mkdir()
    report = msgspec.structs.replace(REPORT, database=f"sqlite:///{tmp_path}/live.db")
    write_report(tmp_path / "state", msgspec.structs.replace(report, reloaded_at=NOW, problems=("evertick.toml:3: x",)))
    result = evertick("status", "--config", str(config))
    assert result.exit_code == 1
    assert "the daemon rejected its new configuration: evertick.toml:3: x" in result.stdout
    words = r"^Daemon +process 1 of /etc/evertick.toml, reloaded .* ago, new configuration rejected$"
    assert re.search(words, result.stdout, re.MULTILINE)
    # Not a daemon with another ledger in the same directory.
    write_report(tmp_path / "state", msgspec.structs.replace(report, app="other", problems=("theirs",)))
    assert evertick("status", "--config", str(config)).exit_code == 0
    # The entry of a stopped process is ignored, and the next write deletes it.
    write_report(tmp_path / "state", msgspec.structs.replace(report, pid=4194304, problems=("old",)))
    assert evertick("status", "--config", str(config)).exit_code == 0
    # An entry whose process id belongs to another process is ignored, too.
    write_report(tmp_path / "state", msgspec.structs.replace(report, start_tick=1, problems=("old",)))
    assert evertick("status", "--config", str(config)).exit_code == 0
    write_report(tmp_path / "state", report)
    assert [each.name for each in (tmp_path / "state").iterdir()] == ["daemon.1.json"]


# --- the grades ---


def graded(pulse: dict[str, Any] | None = None, **changes: Any) -> tuple[Grade, list[str]]:
    counts = msgspec.structs.replace(PULSE, **(pulse or {}))
    problems = problems_of(msgspec.structs.replace(WELL, pulse=counts, **changes), LIMITS)
    return grade_of(problems), [problem.what for problem in problems]


def a_run(**fields: Any) -> Run:
    given = dict.fromkeys(Run.__struct_fields__) | {
        "id": "r1",
        "app": "default",
        "task": "make_report",
        "fire_at": NOW,
        "due_at": NOW,
        "state": State.WAITING,
        "cause": Cause.ENQUEUE,
        "queue": "default",
        "attempts": 0,
        "losses": 0,
        "created_at": NOW,
    }
    return Run(**{**given, **fields})


def test_nothing_wrong_is_ok() -> None:
    assert graded() == (Grade.OK, [])


@pytest.mark.parametrize(
    ("lag", "grade"),
    [(59, Grade.OK), (60, Grade.WARNING), (599, Grade.WARNING), (600, Grade.CRITICAL), (86_400, Grade.CRITICAL)],
)
def test_the_lag_of_a_run_and_of_a_schedule_is_graded_by_its_limits(lag: float, grade: Grade) -> None:
    due = NOW - timedelta(seconds=lag)
    waiting = [a_run(due_at=due)]
    assert graded(waiting=waiting)[0] == grade
    schedule = Schedule(
        **(dict.fromkeys(Schedule.__struct_fields__) | {"key": "k", "is_paused": False, "next_due_at": due})
    )
    assert graded(due=[schedule])[0] == grade
    assert health_of(msgspec.structs.replace(WELL, due=[schedule])).lag_seconds == lag


def test_without_a_live_node_raising_concurrency_is_not_suggested() -> None:
    waiting = [a_run(due_at=NOW - timedelta(hours=1))]
    problems = problems_of(msgspec.structs.replace(WELL, nodes=[], waiting=waiting), LIMITS)
    assert [problem.check for problem in problems] == ["no_node"]
    assert "concurrency" not in problems[0].fix


@pytest.mark.parametrize(
    ("failed", "grade"), [(0, Grade.OK), (1, Grade.WARNING), (4, Grade.WARNING), (5, Grade.CRITICAL)]
)
def test_failed_runs_are_graded_by_their_limits(failed: int, grade: Grade) -> None:
    assert graded({"failed": {"report": failed}})[0] == grade


def test_lost_runs_are_reported_separately_with_their_own_fix() -> None:
    pulse = msgspec.structs.replace(PULSE, failed={"report": 2}, lost={"backup": 1})
    failed, lost = problems_of(msgspec.structs.replace(WELL, pulse=pulse), LIMITS)
    assert failed.what == "2 runs failed in the last hour: report"
    assert lost.what == "1 run was lost in the last hour: backup"
    assert "the outcome of a lost run is unknown" in lost.fix
    assert "rerun --failed" not in lost.fix
    _, words = graded({"lost": {"backup": 2}})
    assert words == ["2 runs were lost in the last hour: backup"]
    assert graded({"failed": {"report": 2}, "lost": {"backup": 3}})[0] == Grade.CRITICAL


def test_workers_on_an_unread_channel_are_graded_by_their_overdue_time() -> None:
    for seconds, grade in ((59, Grade.OK), (60, Grade.WARNING), (600, Grade.CRITICAL)):
        since = NOW - timedelta(seconds=seconds)
        with_worker = Dispatched(to="redis", mode="finish", at=since, pushed_at=since, taken_at=since, until=since)
        assert graded(dispatched=[a_run(state=State.DISPATCHED, dispatched=with_worker)])[0] == grade


def test_many_failed_runs_name_a_few_of_their_schedules() -> None:
    _, [words] = graded({"failed": dict.fromkeys("abcde", 200)})
    assert words == "1000+ runs failed in the last hour: a, b, c and 2 more"


def test_a_silent_node_is_a_warning_and_the_last_one_critical() -> None:
    beat = {"beat_at": NOW - timedelta(seconds=90), "lease_until": NOW - timedelta(seconds=75)}
    silent = msgspec.structs.replace(BOX, id="b", name="quiet", **beat)
    grade, words = graded(nodes=[BOX, silent])
    assert (grade, words) == (Grade.WARNING, ["node quiet is silent for 1 min 30 s, and its lease has expired"])
    assert graded(nodes=[silent])[0] == Grade.CRITICAL


def test_parked_runs_failing_duties_and_stuck_channels_are_warnings() -> None:
    parked = [a_run(id=each, task="gone", state=State.PARKED, reason="unknown_task") for each in "ab"]
    assert graded(parked=parked) == (Grade.WARNING, ["2 runs parked: no live node knows task gone"])
    duty = msgspec.structs.replace(HELD, name="index", error="ValueError: x")
    assert graded(duties=[HELD, duty]) == (Grade.WARNING, ["duty index fails on node box: ValueError: x"])
    due = to_us(NOW - timedelta(minutes=5))
    channel = ChannelPulse(channel="redis", waiting=7, sending=0, dead=2, oldest_due_at=due)
    grade, words = graded(channels=[channel])
    assert grade == Grade.WARNING
    assert words == ["channel redis: the oldest message waits for 5 min", "channel redis: 2 dead messages"]
    # As a message stands that is tried again and again: its next try is yet to come.
    soon = to_us(NOW + timedelta(seconds=20))
    channel = ChannelPulse(channel="redis", waiting=7, sending=0, dead=0, oldest_due_at=soon, oldest_failing_at=due)
    words = ["channel redis: the oldest message has failed for 5 min"]
    assert graded(channels=[channel]) == (Grade.WARNING, words)
    since = NOW - timedelta(minutes=20)
    untaken = Dispatched(to="nats", mode="ack", at=since, pushed_at=since, taken_at=None, until=None)
    words = ["1 dispatched run waits for a worker of 'nats', the oldest for 20 min"]
    run = a_run(state=State.DISPATCHED, dispatched=untaken)
    assert graded(dispatched=[run]) == (Grade.CRITICAL, words)


def test_a_configuration_that_waits_for_a_restart_is_a_warning() -> None:
    (found,) = daemon_findings([msgspec.structs.replace(REPORT, wants_restart=("node.lease",))])
    assert (grade_of([found]), found.what) == (
        Grade.WARNING,
        "changes to node.lease take effect after a restart",
    )


def test_the_most_severe_finding_comes_first() -> None:
    parked = a_run(task="gone", state=State.PARKED, reason="unknown_task")
    problems = problems_of(msgspec.structs.replace(WELL, parked=[parked], nodes=[]), LIMITS)
    assert [problem.check for problem in problems] == ["no_node", "parked_runs"]
