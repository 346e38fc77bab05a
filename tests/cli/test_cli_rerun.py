"""Dead letters on the command line: failed, rerun."""

from __future__ import annotations

import re
import sqlite3
import threading
from contextlib import closing

import pytest

from evertick import Scheduler


@pytest.fixture
def failed_run(database, ask):
    """The failed run of the example database."""
    (run,) = ask("failed")
    return run


@pytest.fixture
def several(database):
    """Three more failed runs, of a task without a schedule; returns their ids, newest first."""
    scheduler = Scheduler(database)
    ended = threading.Semaphore(0)
    scheduler.on("failed", lambda event: ended.release())

    @scheduler.task
    def fetch(page: int) -> None:
        raise LookupError(f"page {page} is missing")

    with scheduler:
        fetch.sync.enqueue_many([{"page": number} for number in range(3)])
        assert all(ended.acquire(timeout=20) for _ in range(3))
    found = scheduler.sync.runs(task="fetch")
    scheduler.sync.close()
    return [run.id for run in found]


def test_failed_lists_failed_runs_with_error_and_id(database, evertick, ask):
    header, line = evertick("failed").stdout.splitlines()
    assert header.split() == ["MOMENT", "KEY", "VERDICT", "RERUN", "RUN", "ERROR"]
    (run,) = ask("failed")
    assert re.split(r"  +", line)[1:] == ["print", "failed", "-", run["id"], "ValueError: no paper [2J left"]
    assert (run["kind"], run["verdict"], run["was_rerun"]) == ("run", "failed", False)


def test_failed_explains_why_a_run_was_lost(database, evertick):
    with closing(sqlite3.connect(database.removeprefix("sqlite:///"))) as db, db:
        db.execute(
            "UPDATE evertick_history SET verdict = 'lost', reason = 'node_died', error = NULL WHERE task = 'print_it'"
        )
    _, line = evertick("failed").stdout.splitlines()
    assert line.endswith("  its node died")


def test_failed_is_limited_to_a_given_schedule(database, evertick, ask):
    assert len(ask("failed", "print")) == 1
    assert ask("failed", "report") == []
    assert "has no matching failed or lost runs" in evertick("failed", "report").stderr
    result = evertick("failed", "nope")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: there is no schedule 'nope'")


def test_failed_is_bounded_and_newest_first(several, ask):
    assert [run["id"] for run in ask("failed", "--limit", "2")] == several[:2]
    ask("rerun", several[1])
    assert [(run["id"], run["was_rerun"]) for run in ask("failed", "--limit", "2")] == [
        (several[0], False),
        (several[1], True),
    ]


def test_a_run_is_rerun_by_its_id(failed_run, evertick, ask):
    result = evertick("rerun", failed_run["id"])
    again = re.fullmatch(rf"rerun {failed_run['id']} of print: run (\S+)\n", result.stdout)[1]
    assert "no live node knows the task 'print_it'" in result.stderr
    assert f"`evertick cancel {again}` cancels it" in result.stderr
    run = ask("show", again)["run"]
    assert (run["cause"], run["caused_by"], run["state"]) == ("rerun", failed_run["id"], "waiting")
    assert run["fire_at"] == failed_run["fire_at"]
    assert f"Cause     rerun, by run {failed_run['id']}" in evertick("show", again).stdout
    assert re.split(r"  +", evertick("failed").stdout.splitlines()[1])[3] == "yes"


def test_a_rerun_can_have_other_arguments(database, ask):
    (old,) = ask("history", "report")
    assert ask("rerun", old["id"], "--args", '{"day": "friday"}')["args"] == {"day": "friday"}


def test_a_rerun_has_the_arguments_of_the_old_run(database, ask):
    (old,) = ask("history", "report")
    assert ask("rerun", old["id"])["args"] == {"day": "monday"}


def test_a_live_run_is_not_rerun(database, evertick, ask):
    run = ask("trigger", "report")
    result = evertick("rerun", run["id"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: run '{run['id']}' has not ended, it is waiting")


def test_an_unknown_run_is_not_rerun(database, evertick):
    result = evertick("rerun", "nope")
    assert (result.exit_code, result.stderr) == (1, "error: there is no run 'nope' in app 'default'\n")


def test_one_rerun_obeys_the_overlap_policy_of_its_schedule_by_default(failed_run, evertick, ask):
    live = ask("trigger", "print")
    result = evertick("rerun", failed_run["id"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "'print' has a live run, and its overlap is 'skip'; --overlap queue runs it after that one" in result.stderr
    assert ask("rerun", failed_run["id"], "--overlap", "queue")["blocked_on"] == live["id"]
    assert ask("rerun", failed_run["id"], "--overlap", "allow")["state"] == "waiting"


@pytest.fixture
def three_failed_runs(database, evertick, ask):
    """Three failed runs of the schedule "print", two of them with a label; returns their ids, oldest first."""
    scheduler = Scheduler(database)
    ended = threading.Semaphore(0)
    scheduler.on("failed", lambda event: ended.release())

    @scheduler.task
    def print_it() -> None:
        raise ValueError("no ink")

    with scheduler:
        scheduler.sync.update("print", labels={"room": "two"})
        for _ in range(2):
            scheduler.sync.trigger("print")
            assert ended.acquire(timeout=20)
    scheduler.sync.close()
    return [run["id"] for run in reversed(ask("failed", "print"))]


def test_reruns_of_one_schedule_are_queued_behind_live_runs_oldest_first(three_failed_runs, evertick, ask):
    live = ask("trigger", "print")
    result = evertick("rerun", "--failed", "--yes")
    assert result.exit_code == 0
    again = [re.fullmatch(r"rerun (\S+) of print: run (\S+)", line) for line in result.stdout.splitlines()]
    assert [line[1] for line in again] == three_failed_runs
    ids = [line[2] for line in again]
    assert [ask("show", run)["run"]["blocked_on"] for run in ids] == [live["id"], *ids[:-1]]


def test_reruns_can_be_started_in_parallel(three_failed_runs, ask):
    assert {run["state"] for run in ask("rerun", "--failed", "--yes", "--overlap", "allow")} == {"waiting"}


def test_runs_that_cannot_be_rerun_are_reported_in_one_line_and_by_the_exit_code(database, three_failed_runs, evertick):
    scheduler = Scheduler(database)
    scheduler.sync.update("print", unique="paper")
    scheduler.sync.close()
    result = evertick("rerun", "--failed", "--yes")
    assert (result.exit_code, len(result.stdout.splitlines())) == (1, 1)
    assert result.stderr.splitlines()[-1] == "2 of 3 not rerun: another run has the unique key 'paper' of 'print'"


@pytest.mark.parametrize(
    ("flags", "places"),
    [
        (["--label", "room=two"], [1, 2]),
        (["--label", "room=one"], []),
        (["--task", "print_it"], [0, 1, 2]),
        (["--task", "other"], []),
        (["--verdict", "lost", "--verdict", "failed"], [0, 1, 2]),
        (["--verdict", "missed"], []),
        (["--until", "2020-01-01T00:00:00Z"], []),
        (["--since", "1h", "--until", "0s", "--limit", "2"], [0, 1]),
    ],
)
def test_reruns_are_selected_by_flags_and_only_listed_in_a_dry_run(three_failed_runs, evertick, ask, flags, places):
    chosen = [three_failed_runs[place] for place in places]
    assert [run["id"] for run in ask("rerun", "--failed", "--dry-run", *flags)] == chosen
    listed = evertick("rerun", "--failed", "--dry-run", *flags)
    assert [run in listed.stdout for run in three_failed_runs] == [run in chosen for run in three_failed_runs]
    if "--limit" not in flags:
        assert [run["id"] for run in ask("failed", *flags)] == chosen[::-1]
    assert not any(run["was_rerun"] for run in ask("failed"))
    assert [run["caused_by"] for run in ask("rerun", "--failed", "--yes", *flags)] == chosen


def test_selected_reruns_of_one_task_can_have_other_arguments(several, ask, evertick):
    result = evertick("rerun", "--failed", "--yes", "--args", '{"page": 7}')
    assert (result.exit_code, result.stdout) == (2, "")
    assert "these runs are of 2 tasks (fetch, print_it); select runs of one task" in result.stderr
    again = ask("rerun", "--failed", "--yes", "--task", "fetch", "--args", '{"page": 7}')
    assert [run["args"] for run in again] == [{"page": 7}] * 3


def test_one_failed_run_is_rerun_without_a_question_and_only_once(failed_run, evertick, ask):
    assert evertick("rerun", "--failed").stdout.startswith(f"rerun {failed_run['id']} of print: run ")
    result = evertick("rerun", "--failed", "print")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("app 'default' has no matching run to rerun")
    assert ask("rerun", "--failed") == []


def test_several_reruns_without_a_terminal_need_the_yes_option(several, evertick, ask):
    result = evertick("rerun", "--failed")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "cannot ask for confirmation without a terminal; write --yes to rerun them" in result.stderr
    assert [
        run["caused_by"] for run in ask("rerun", "--failed", "--yes", "--task", "fetch", "--limit", "2")
    ] == several[:0:-1]
    assert len(evertick("rerun", "--failed", "--yes").stdout.splitlines()) == 2


def test_failed_runs_of_one_schedule_or_since_a_moment_are_rerun(several, ask, evertick):
    assert ask("rerun", "--failed", "--since", "2090-01-01T00:00:00Z") == []
    assert [run["schedule_key"] for run in ask("rerun", "--failed", "print", "--since", "1h")] == ["print"]
    assert evertick("rerun", "--failed", "nope").stderr.startswith("error: there is no schedule 'nope'")


@pytest.mark.parametrize(("answer", "count"), [("y", 4), ("n", 0), ("", 0)])
def test_several_reruns_on_a_terminal_need_confirmation(start, database, several, answer, count, ask, terminal):
    process = start("rerun", "--failed", env={"EVERTICK_DATABASE": database}, stdin=terminal.terminal_fd)
    terminal.write(f"{answer}\n")
    output, errors = process.communicate()
    assert "rerun 4 runs of app 'default' (3 of fetch(), 1 of print)? [y/N]" in errors
    assert process.returncode == (0 if count else 130)
    assert len(output.splitlines()) == count
    assert sum(run["was_rerun"] for run in ask("failed")) == count


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "name a run by its id, or write --failed"),
        (["--failed", "--since", "1h", "--until", "2h"], "is later than --until"),
        (["x", "--dry-run"], "--dry-run needs --failed"),
        (["x", "--label", "a=b"], "--label needs --failed"),
        (["x", "--since", "1h"], "--since needs --failed"),
        (["x", "--limit", "3"], "--limit needs --failed"),
        (["--failed", "--limit", "0"], "--limit"),
        (["x", "--args", "[]"], "is not a JSON object"),
    ],
)
def test_conflicting_options_of_rerun_are_refused(database, evertick, args, words):
    result = evertick("rerun", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


def test_a_task_without_a_live_node_is_known_by_its_runs(several, database, evertick):
    with closing(sqlite3.connect(database.removeprefix("sqlite:///"))) as db, db:
        db.execute("DELETE FROM evertick_nodes")
    for command in ("history", "runs", "show"):
        for word in ("fetch", "fetch()"):
            result = evertick(command, word)
            assert result.exit_code == 1
            assert f"{word!r} is a task without a schedule, see `evertick why fetch` and" in result.stderr
    told = evertick("why", "fetch()")
    assert (told.exit_code, told.stdout) == (0, evertick("why", "fetch").stdout)
    assert "LookupError: page" in told.stdout
