"""Commands that change the ledger: trigger, cancel, pause, resume, remove."""

from __future__ import annotations

import re
import threading
from datetime import datetime

import pytest

from evertick import Context, Scheduler


def test_trigger_records_a_run_and_warns_that_no_node_is_alive(database, evertick, ask):
    result = evertick("trigger", "report", "--args", '{"day": "friday"}')
    assert result.exit_code == 0
    run_id = re.fullmatch(r"triggered report: run (\S+)\n", result.stdout)[1]
    assert "no live node knows the task 'make_report'" in result.stderr
    assert f"`evertick cancel {run_id}` cancels it" in result.stderr
    newest = ask("history", "report")[0]
    assert (newest["id"], newest["cause"], newest["state"]) == (run_id, "trigger", "waiting")
    assert newest["args"] == {"day": "friday"}


def test_trigger_obeys_the_overlap_policy(database, evertick):
    assert evertick("trigger", "report").exit_code == 0
    result = evertick("trigger", "report")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: 'report' has a live run, and its overlap is 'skip'")


@pytest.mark.parametrize("args", ["{", "[1]", "7", "nonsense"])
def test_arguments_that_are_no_json_object_are_refused(database, evertick, ask, args):
    result = evertick("trigger", "report", "--args", args)
    assert result.exit_code == 2
    assert "is not a JSON object" in result.stderr
    assert len(ask("history", "report")) == 1


def test_pause_and_resume_print_their_effect(database, evertick, ask):
    assert evertick("pause", "report", "--note", "moving").stdout == "paused report, until `evertick resume report`\n"
    shown = ask("show", "report")
    assert (shown["is_paused"], shown["pause_note"]) == (True, "moving")
    assert re.match(r"resumed report after .*; next fire \d{4}-", evertick("resume", "report").stdout)
    assert evertick("resume", "report").stdout == "report was not paused\n"


def test_pause_takes_a_moment_or_a_duration_as_its_end(database, ask, evertick):
    until = datetime.fromisoformat(ask("pause", "report", "--until", "2h")["paused_until"])
    later = ask("pause", "report", "--until", "2090-01-31T09:00:00+01:00")["paused_until"]
    assert until.year < 2090
    assert datetime.fromisoformat(later).isoformat() == "2090-01-31T08:00:00+00:00"


def test_pause_until_a_past_moment_is_refused(database, evertick):
    result = evertick("pause", "report", "--until", "2001-01-01T00:00:00Z")
    assert result.exit_code == 1
    assert "a moment that has passed" in result.stderr


@pytest.mark.parametrize("until", ["tomorrow", "2090-01-31T9:00", "-5s", ""])
def test_an_invalid_end_of_a_pause_is_refused_with_its_option(database, evertick, until):
    result = evertick("pause", "report", "--until", until)
    assert result.exit_code == 2
    assert "neither a moment, like" in result.stderr


def test_cancel_ends_a_waiting_run_at_once(database, ask, evertick):
    run_id = ask("trigger", "report")["id"]
    assert evertick("cancel", run_id).stdout == f"run {run_id} has ended: cancelled (requested)\n"
    shown = ask("show", run_id)["run"]
    assert (shown["state"], shown["verdict"]) == ("done", "cancelled")


def test_cancel_asks_a_running_run_to_stop(tmp_path, ask, evertick):
    url = f"sqlite:///{tmp_path}/jobs.db"
    scheduler = Scheduler(url)
    has_begun, may_end = threading.Event(), threading.Event()

    @scheduler.task
    def stubborn(ctx: Context) -> None:
        has_begun.set()
        assert may_end.wait(20)

    with scheduler:
        run_id = stubborn.sync.enqueue().id
        assert has_begun.wait(20)
        try:
            assert evertick("cancel", run_id, "--database", url).stdout.startswith(f"asked run {run_id} to stop; ")
            assert ask("cancel", run_id, "--database", url)["is_cancel_requested"]
            assert "it was asked to stop" in evertick("show", run_id, "--database", url).stdout
        finally:
            may_end.set()


def test_a_finished_run_is_not_cancelled(database, ask, evertick):
    (run,) = ask("history", "report")
    result = evertick("cancel", run["id"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert re.match(rf"error: run '{run['id']}' had already ended as succeeded at .*Z; `evertick rerun", result.stderr)


def test_an_unknown_run_is_not_cancelled(database, evertick):
    result = evertick("cancel", "nope")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: there is no run 'nope' in app 'default'")


def test_a_schedule_is_removed_and_its_history_stays(database, evertick, ask):
    assert evertick("remove", "quick", "--yes").stdout.startswith("removed quick; ")
    assert "quick" not in {schedule["key"] for schedule in ask("list")}
    assert ask("history", "quick")


def test_a_declared_schedule_is_not_removed(database, evertick, ask):
    for options in ([], ["--yes"], ["--json"]):
        result = evertick("remove", "report", *options)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith("error: schedule 'report' is declared in code (shop) and would come back")
    assert len(ask("list")) == 3


def test_remove_without_a_terminal_needs_the_yes_option(database, evertick, ask):
    result = evertick("remove", "quick")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "write --yes" in result.stderr
    assert len(ask("list")) == 3


@pytest.mark.parametrize(("answer", "left"), [("y", 2), ("n", 3), ("", 3)])
def test_remove_on_a_terminal_asks_first(start, database, answer, left, ask, terminal):
    process = start("remove", "quick", env={"EVERTICK_DATABASE": database}, stdin=terminal.terminal_fd)
    terminal.write(f"{answer}\n")
    output, errors = process.communicate()
    assert "remove the schedule 'quick' (every 1ms; tz=UTC) of app 'default'? [y/N]" in errors
    assert process.returncode == (0 if left == 2 else 130)
    assert output.startswith("removed quick") is (left == 2)
    assert len(ask("list")) == left
