"""The command logs: the log of a run, and following it to its end."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import pytest

from evertick import Constant, Context, Scheduler


class Program:
    """A node whose job waits for the test between its lines."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.may_go_on, self.has_begun = threading.Semaphore(0), threading.Event()
        self.scheduler = Scheduler(url, node_name="shop@host")

        @self.scheduler.task(retry=Constant("10ms", attempts=2))
        def work(ctx: Context, fails: int = 1) -> str:
            ctx.log(f"attempt {ctx.attempt} begins")
            self.has_begun.set()
            assert self.may_go_on.acquire(timeout=20)
            ctx.log("half\ndone", level="warning")
            if ctx.attempt <= fails:
                raise ConnectionError("asleep")
            return "well done"

        self.work = work


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(f"sqlite:///{tmp_path}/jobs.db")


def _ended(program: Program, fails: int) -> str:
    over = threading.Event()
    for kind in ("succeeded", "failed"):
        program.scheduler.on(kind, lambda event: over.set())
    for _ in range(2):
        program.may_go_on.release()
    with program.scheduler:
        run = program.work.sync.enqueue(fails=fails)
        assert over.wait(20)
    return run.id


def test_the_log_of_a_run_is_printed_line_by_line_with_a_mark_for_each_attempt(program, evertick):
    run_id = _ended(program, fails=1)
    result = evertick("logs", run_id, "--database", program.url)
    assert result.exit_code == 0
    lines = [re.sub(r"^\d{4}\S+ \S+  ", "", line) for line in result.stdout.splitlines()]
    assert lines == [
        "info     attempt 1 begins",
        "warning  half",
        "  done",
        "--- another attempt",
        "info     attempt 2 begins",
        "warning  half",
        "  done",
    ]


def test_show_marks_attempts_in_the_log_like_logs(program, evertick):
    run_id = _ended(program, fails=1)
    message = evertick("logs", run_id, "--database", program.url).stdout.splitlines()
    _, _, shown = evertick("show", run_id, "--database", program.url).stdout.partition("\nLog\n")
    assert shown.splitlines() == [f"  {line}" for line in message]
    assert "--- another attempt" in message


def test_as_json_every_log_line_is_an_object(program, evertick):
    run_id = _ended(program, fails=1)
    lines = [
        json.loads(line) for line in evertick("logs", run_id, "--json", "--database", program.url).stdout.splitlines()
    ]
    assert [(line["kind"], line["level"], line["text"]) for line in lines[:2]] == [
        ("line", "info", "attempt 1 begins"),
        ("line", "warning", "half\ndone"),
    ]
    assert len({line["fence"] for line in lines}) == 2
    assert "end" not in {line["kind"] for line in lines}


@pytest.mark.parametrize(("fails", "code", "verdict"), [(0, 0, "succeeded"), (9, 1, "failed (error), at attempt 2")])
def test_following_a_finished_run_prints_its_log_and_exits_with_its_verdict(program, evertick, fails, code, verdict):
    run_id = _ended(program, fails=fails)
    result = evertick("logs", "--follow", run_id, "--database", program.url)
    assert result.exit_code == code
    assert result.stdout.splitlines()[-1].startswith(f"--- {verdict}, took ")


def test_following_continues_over_retries_until_the_run_has_ended(program, start):
    with program.scheduler:
        run = program.work.sync.enqueue(fails=1)
        assert program.has_begun.wait(20)
        follower = start("logs", "-f", run.id, "--json", env={"EVERTICK_DATABASE": program.url})
        assert json.loads(follower.stdout.readline())["text"] == "attempt 1 begins"
        assert follower.poll() is None
        program.may_go_on.release()
        assert json.loads(follower.stdout.readline())["text"] == "half\ndone"
        assert json.loads(follower.stdout.readline())["text"] == "attempt 2 begins"
        program.may_go_on.release()
        rest = [json.loads(line) for line in follower.communicate()[0].splitlines()]
    assert [line["kind"] for line in rest] == ["line", "end"]
    assert (rest[-1]["verdict"], rest[-1]["attempts"], rest[-1]["result"]) == ("succeeded", 2, "well done")
    assert follower.returncode == 0


def test_a_run_without_a_log_is_reported_and_an_unknown_run_is_an_error(database, ask, evertick):
    (run,) = (row for row in ask("history", "report") if row["kind"] == "run")
    result = evertick("logs", run["id"])
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"run {run['id']} has no log lines\n"
    result = evertick("logs", "nope")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: there is no schedule or run 'nope'")
