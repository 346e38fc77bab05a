"""Commands that change something: trigger, pause, resume."""

from __future__ import annotations

import re
from datetime import datetime

import pytest


def test_trigger_makes_a_run_and_says_that_nobody_is_there_to_run_it(database, evertick, ask):
    result = evertick("trigger", "report", "--args", '{"day": "friday"}')
    assert result.exit_code == 0
    run_id = re.fullmatch(r"triggered report: run (\S+)\n", result.stdout)[1]
    assert "no live node knows the task 'make_report'" in result.stderr
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
    assert "is no JSON object" in result.stderr
    assert len(ask("history", "report")) == 1


def test_pause_and_resume_say_what_they_did(database, evertick, ask):
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


def test_pause_until_a_moment_that_has_passed_is_refused(database, evertick):
    result = evertick("pause", "report", "--until", "2001-01-01T00:00:00Z")
    assert result.exit_code == 1
    assert "a moment that has passed" in result.stderr


@pytest.mark.parametrize("until", ["tomorrow", "2090-01-31T09:00:00", "-5s", ""])
def test_an_end_that_is_no_moment_is_refused_where_it_is_written(database, evertick, until):
    result = evertick("pause", "report", "--until", until)
    assert result.exit_code == 2
    assert "neither a moment with its offset" in result.stderr
