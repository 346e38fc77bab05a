"""Runs of shell jobs on the command line: logs, show, why and failed."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from evertick import Scheduler, Secret, Shell
from evertick.scheduler.declaring import keep_task, spec_task

Evertick = Callable[..., Result]

JOBS = {
    "good": Shell(
        "echo hello; printf 'a \\033[31mred\\033[0m word\\n' >&2; echo $TOKEN",
        env={"TOKEN": Secret("T")},
    ),
    "bad": Shell("echo begun; echo 'tar: /x: No such file' >&2; exit 2"),
    "idle": Shell("echo nothing to do; exit 3", skip_codes=[3]),
    "hangs": Shell("echo begun; sleep 1000"),
}


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A ledger in which each job ran once, by its schedule."""
    monkeypatch.setenv("EVERTICK_SECRET_T", "open sesame")
    url = f"sqlite:///{tmp_path}/jobs.db"
    scheduler, left = Scheduler(url, drivers=["shell"], node_name="ops@host"), threading.Semaphore(0)
    for name, spec in JOBS.items():
        scheduler.every("1h")(scheduler.job(name, spec, timeout="500ms" if name == "hangs" else None))
    for kind in ("succeeded", "failed", "skipped"):
        scheduler.on(kind, lambda event: left.release())
    with scheduler:
        for name in JOBS:
            scheduler.sync.trigger(name)
        for _ in JOBS:
            assert left.acquire(timeout=60)
    return url


def lines_of(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [re.sub(r"^ *\d{4}-\S+ \S+  ", "", line) for line in result.stdout.splitlines()]


def test_logs_has_the_output_by_stream_and_the_duration_of_the_command(url: str, evertick: Evertick) -> None:
    *written, last = lines_of(evertick("logs", "good", "--database", url))
    # In order within each stream; the order between streams is unknown. Control characters reach no terminal.
    assert sorted(written) == ["stderr   a  [31mred [0m word", "stdout   ***", "stdout   hello"]
    took = r"info     exit code 0; CPU time \d+\.\d\d s, peak memory \d+\.\d MiB in one process"
    assert re.fullmatch(took, last)


def test_show_has_the_error_and_the_result_of_a_failed_command(url: str, evertick: Evertick) -> None:
    manager = Scheduler(url, concurrency=0)
    [run] = manager.sync.runs(task="bad")
    manager.sync.close()
    text = evertick("show", run.id, "--database", url).stdout
    assert re.search(r'^Result +\{"exit_code": 2, "cpu_seconds": [\d.]+, "max_rss_bytes": \d+\}$', text, re.MULTILINE)
    assert "Error\n  exit code 2: tar: /x: No such file\n" in text
    assert re.search(r"stderr   tar: /x: No such file$", text, re.MULTILINE)
    expected = json.loads(evertick("show", run.id, "--json", "--database", url).stdout)
    assert expected["run"]["result"]["exit_code"] == 2


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("bad", r"ended as failed: .*\(exit code 2: tar: /x: No such file\)"),
        ("idle", r"ended as skipped: exit code 3: nothing to do"),
        ("hangs", r"ended as failed: it timed out"),
        ("good", r"succeeded"),
    ],
)
def test_why_shows_how_the_last_command_ended(url: str, evertick: Evertick, key: str, expected: str) -> None:
    assert re.search(rf"^Last +the run of .* {expected}", evertick("why", key, "--database", url).stdout, re.MULTILINE)


def test_the_log_shows_that_a_command_was_stopped(url: str, evertick: Evertick) -> None:
    first, last = lines_of(evertick("logs", "hangs", "--database", url))
    assert first == "stdout   begun"
    assert last.startswith("info     stopped (timeout) with all its processes; ")


def test_failed_shows_the_last_output_of_a_command(url: str, evertick: Evertick) -> None:
    text = evertick("failed", "--database", url).stdout
    assert re.search(r"bad .*exit code 2: tar: /x: No such file$", text, re.MULTILINE)


def test_why_of_a_run_shows_that_no_node_is_alive_and_what_is_needed(tmp_path: Path, evertick: Evertick) -> None:
    url = f"sqlite:///{tmp_path}/other.db"
    manager = Scheduler(url, concurrency=0, drivers=["shell"])
    run = manager.job("backup", Shell("true")).sync.enqueue()
    manager.sync.close()
    message = " ".join(evertick("why", run.id, "--database", url).stdout.split())
    assert ": no node is alive; it needs one that knows task 'backup'" in message
    assert "no node is alive; start one that knows task 'backup'" in message


def test_a_trigger_without_a_node_names_the_missing_driver(tmp_path: Path, evertick: Evertick) -> None:
    url = f"sqlite:///{tmp_path}/other.db"
    gone = Scheduler(url, drivers=["function"])
    keep_task(gone.runtime, spec_task(gone.runtime, "backup", Shell("true"), {}, "jobs.toml:1"), "jobs.toml:1")
    with gone:
        gone.sync.add(key="nightly", when="every 1d", task="backup")
    result = evertick("trigger", "nightly", "--database", url)
    assert "note: no live node has the driver 'shell' for the task 'backup'; the run waits until" in result.stderr
    message = " ".join(evertick("why", "nightly", "--database", url).stdout.split())
    assert ": no node is alive; it needs one with the driver 'shell'" in message
