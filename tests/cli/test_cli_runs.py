"""Commands about runs of any cause: runs, history --task, why; and ids of runs."""

from __future__ import annotations

import logging
import re
import threading
from datetime import timedelta

import pytest

from evertick import Scheduler
from evertick.cli.show.words import now


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """A node and a task with a limit of one: of three enqueued runs one is running, two are blocked."""
    monkeypatch.setenv("EVERTICK_DATABASE", f"sqlite:///{tmp_path}/jobs.db")
    monkeypatch.setenv("TZ", "UTC")
    scheduler, begun, may_end = Scheduler(), threading.Event(), threading.Event()

    @scheduler.task(concurrency=1)
    def send_mail(to: str) -> None:
        begun.set()
        may_end.wait(30)

    with scheduler:
        first = send_mail.options(labels={"team": "sales"}).sync.enqueue("ann")
        assert begun.wait(20)
        more = [send_mail.sync.enqueue(name) for name in ("bob", "cid")]
        deadline = now() + timedelta(seconds=20)
        while len(scheduler.sync.runs(states=["blocked"])) < 2:
            assert now() < deadline
        yield first, more
        may_end.set()


def test_runs_lists_enqueued_runs_by_task_state_and_label(queue, ask, evertick):
    first, more = queue
    assert {each["id"] for each in ask("runs", "--task", "send_mail")} == {first.id, *(each.id for each in more)}
    assert {each["id"] for each in ask("runs", "--state", "blocked")} == {each.id for each in more}
    assert [each["id"] for each in ask("runs", "--label", "team=sales")] == [first.id]
    assert ask("runs", "--verdict", "failed") == []
    assert len(ask("runs", "--limit", "1", "--since", "1h")) == 1
    lines = evertick("runs", "--state", "running").stdout.splitlines()
    assert lines[0].split()[:4] == ["MOMENT", "RUN", "TASK", "KEY"]
    assert re.split(r"  +", lines[1])[1:5] == [first.id, "send_mail", "-", "running"]
    result = evertick("runs", "--task", "nothing")
    assert (result.exit_code, result.stderr) == (0, "app 'default' has no matching runs\n")
    assert {each["id"] for each in ask("history", "--task", "send_mail")} == {first.id, *(each.id for each in more)}


def test_why_of_a_run_shows_what_blocks_it_and_its_place_in_the_queue(queue, ask, evertick):
    first, more = queue
    text = evertick("why", more[0].id).stdout
    assert re.search(rf"^Run +{more[0].id}, task send_mail$", text, re.MULTILINE)
    assert re.search(r"^Now +run .* is blocked: the concurrency limit of 'send_mail'", text, re.MULTILINE)
    assert re.search(rf"^Behind +run {first.id} .* runs since", text, re.MULTILINE)
    assert re.search(r"^Nodes +.* can run it$", text, re.MULTILINE)
    assert ask("why", more[0].id)["behind"][0].startswith(f"run {first.id}")


def test_why_of_a_task_counts_its_live_runs_and_shows_what_blocks_them(queue, ask, evertick):
    answer = ask("why", "send_mail")
    assert answer["live"] == {"blocked": 2, "running": 1}
    assert any("is blocked: the concurrency limit of 'send_mail' is reached" in words for words in answer["now"])
    assert re.search(r"^Live +2 blocked, 1 running$", evertick("why", "send_mail").stdout, re.MULTILINE)


def test_why_of_a_finished_run_shows_its_verdict(database, ask, evertick):
    (run,) = ask("history", "print")
    assert re.match("it ended at .*: ended as failed: ", ask("why", run["id"])["now"])
    assert "ValueError: no paper" in evertick("why", run["id"]).stdout


def test_history_of_a_task_has_the_gaps_of_its_schedules(database, ask):
    rows = ask("history", "--task", "make_report")
    assert {row["kind"] for row in rows} == {"run", "gap"}
    assert {row["schedule_key"] for row in rows} == {"report", "quick"}


def test_a_run_can_be_given_by_a_prefix_of_its_id(database, ask, evertick):
    (run,) = ask("history", "print")
    begins = run["id"][:23]
    assert ask("show", begins)["run"]["id"] == run["id"]
    assert evertick("logs", begins).exit_code == 0
    assert f"run '{run['id']}' had already ended" in evertick("cancel", begins).stderr
    assert ask("rerun", begins)["caused_by"] == run["id"]
    assert "there is no schedule or run" in evertick("show", run["id"][:7]).stderr
    # Two runs now: the id of the rerun has the same first characters.
    result = evertick("cancel", run["id"][:8])
    assert (result.exit_code, "several runs have an id that begins with" in result.stderr) == (2, True)


def test_logs_of_a_key_are_those_of_its_last_run(tmp_path, evertick):
    url, ended = f"sqlite:///{tmp_path}/jobs.db", threading.Event()
    scheduler = Scheduler(url)

    @scheduler.every("1h", key="report")
    def make_report() -> None:
        logging.getLogger("jobs").warning("sorted")

    scheduler.on("succeeded", lambda event: ended.set())
    with scheduler:
        scheduler.sync.add(key="never", when="every 1h", task="make_report")
        scheduler.sync.trigger("report")
        assert ended.wait(20)
    assert "sorted" in evertick("logs", "report", "--database", url).stdout
    assert "'never' has no run yet" in evertick("logs", "never", "--database", url).stderr


@pytest.mark.parametrize("command", ["show", "why", "history", "trigger", "logs", "pause", "remove", "failed"])
def test_a_misspelled_key_gets_a_suggestion(database, evertick, command):
    result = evertick(command, "reprot")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith(" 'reprot' in app 'default'; did you mean 'report'?\n")


def test_a_misspelled_key_of_forecast_gets_a_suggestion(database, evertick):
    assert evertick("forecast", "--key", "reprot").stderr.endswith("did you mean 'report'?\n")
