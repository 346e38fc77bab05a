"""Commands that look at the ledger."""

from __future__ import annotations

import re
from datetime import datetime

import pytest

READING = ["list", "history", "preview", "nodes"]


def test_list_names_every_schedule_with_its_rule_its_next_fire_and_its_last_verdict(database, evertick):
    lines = evertick("list").stdout.splitlines()
    assert lines[0].split() == ["KEY", "TASK", "RULE", "NEXT", "AT", "LAST", "NOTE"]
    printing, quick, report = (re.split(r"  +", line) for line in lines[1:])
    assert printing[:3] == ["print", "print_it", "cron 0 9 * * 1-5; tz=Europe/Berlin"]
    assert printing[3].startswith("in ")
    assert printing[4].endswith("00Z")
    assert printing[5].startswith("failed")
    assert quick[3:5] == ["paused", "-"]
    assert quick[-1] == "too quick for anybody"
    assert report[5] == "succeeded"


def test_the_columns_of_a_listing_in_a_pipe_are_aligned_and_without_colour(database, evertick):
    lines = evertick("history").stdout.splitlines()
    assert all("\x1b" not in line for line in lines)
    place = lines[0].index("VERDICT")
    assert all(line[place - 1] == " " and line[place] != " " for line in lines[1:])


def test_list_as_json_has_the_fields_of_a_schedule(database, ask):
    schedules = {schedule["key"]: schedule for schedule in ask("list")}
    assert sorted(schedules) == ["print", "quick", "report"]
    assert schedules["quick"]["is_paused"]
    assert schedules["report"]["labels"] == {"team": "sales"}
    assert datetime.fromisoformat(schedules["report"]["next_fire_at"]).utcoffset() is not None


def test_show_tells_everything_about_one_schedule(database, evertick):
    text = evertick("show", "print").stdout
    assert "At 09:00, Monday to Friday, in Europe/Berlin" in text
    assert re.search(r"^Next fires +\d{4}-\d\d-\d\d 09:00:00\+0[12]:00  in ", text, re.MULTILINE)
    assert re.search(r"^Finished +1 failed$", text, re.MULTILINE)
    assert "ValueError: no paper" in text


def test_show_as_json_has_the_words_the_next_five_and_the_recent_rows(database, ask):
    shown = ask("show", "report")
    assert shown["words"].startswith("every hour")
    assert len(shown["upcoming"]) == 5
    assert [row["kind"] for row in shown["recent"]] == ["run"]


def test_history_as_json_tells_runs_and_gaps_apart(database, ask):
    rows = ask("history", "--limit", "100")
    assert {row["kind"] for row in rows} == {"run", "gap"}
    runs = [row for row in rows if row["kind"] == "run" and row["schedule_key"] != "quick"]
    gaps = [row for row in rows if row["kind"] == "gap"]
    fields = "id schedule_key task fire_at due_at state verdict reason cause attempts losses started_at finished_at"
    for run in runs:
        assert set(f"{fields} node fence result error".split()) <= set(run)
        assert datetime.fromisoformat(run["fire_at"]).utcoffset() is not None
    for gap in gaps:
        assert {"schedule_key", "first_at", "last_at", "count", "verdict", "reason"} <= set(gap)
        assert "fire_at" not in gap
    assert {gap["reason"] for gap in gaps} == {"paused"}
    assert {run["verdict"]: run["result"] for run in runs} == {"succeeded": {"day": "monday"}, "failed": None}


def test_history_is_newest_first_and_bounded(database, ask):
    rows = ask("history")
    moments = [datetime.fromisoformat(row.get("fire_at") or row["last_at"]) for row in rows]
    assert moments == sorted(moments, reverse=True)
    assert ask("history", "--limit", "2") == rows[:2]
    assert ask("history", "--since", "1m", "--until", "1970-01-01T00:00:00Z") == []
    assert ask("history", "report", "--since", "1h") == [row for row in rows if row["schedule_key"] == "report"]


def test_a_control_character_in_an_error_never_reaches_the_terminal(database, evertick):
    for command in (["history"], ["why", "print"], ["show", "print"]):
        text = evertick(*command).stdout
        assert "no paper" in text
        assert "\x1b" not in text


def test_why_answers_in_words(database, evertick, ask):
    lines = evertick("why", "print").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["Next", "Last", "Now"]
    assert "because of its rule: At 09:00" in lines[0]
    assert set(ask("why", "print")) == {"key", "next", "last", "now", "notes"}


def test_preview_merges_the_schedules_that_are_not_paused(database, ask):
    planned = ask("preview", "--count", "30")
    assert {each["key"] for each in planned} == {"report", "print"}
    assert len(planned) == 30
    assert len(ask("preview", "report", "--until", "1d")) == 24


def test_preview_of_a_paused_schedule_says_that_it_is_paused(database, evertick):
    result = evertick("preview", "quick", "--count", "1")
    assert result.exit_code == 0
    assert "'quick' is paused" in result.stderr


def test_nodes_shows_who_has_gone(database, evertick, ask):
    (node,) = ask("nodes")
    assert (node["name"], node["state"], node["running"]) == ("shop@host", "dead", 0)
    assert "shop@host  dead" in evertick("nodes").stdout


@pytest.mark.parametrize("command", READING)
def test_an_app_without_anything_is_an_empty_list_and_a_hint(database, evertick, ask, command):
    assert ask(command, "--app", "other") == []
    result = evertick(command, "--app", "other")
    assert (result.exit_code, result.stdout) == (0, "")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", [*READING, "show x", "why x", "trigger x", "pause x", "resume x"])
def test_a_missing_database_is_named_and_not_made(tmp_path, monkeypatch, evertick, command):
    monkeypatch.delenv("EVERTICK_DATABASE", raising=False)
    monkeypatch.chdir(tmp_path)
    result = evertick(*command.split())
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(
        f"error: there is no database at {tmp_path}/evertick.db; point to one with --database"
    )
    assert list(tmp_path.iterdir()) == []


def test_the_option_wins_over_the_environment(database, monkeypatch, ask):
    monkeypatch.setenv("EVERTICK_DATABASE", "sqlite:////nowhere/at/all.db")
    assert len(ask("list", "--database", database)) == 3


def test_a_database_in_memory_has_nothing_to_show(evertick):
    result = evertick("list", "--database", "sqlite://")
    assert result.exit_code == 1
    assert "memory of one process" in result.stderr


def test_a_file_that_is_no_database_is_refused_in_one_sentence(tmp_path, evertick):
    (tmp_path / "notes.txt").write_text("nothing but words " * 100)
    result = evertick("list", "--database", f"sqlite:///{tmp_path}/notes.txt")
    assert result.exit_code == 1
    assert "is not a SQLite database" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["show", "why", "history", "preview", "trigger", "pause", "resume"])
def test_an_unknown_schedule_is_an_error_that_says_where_to_look(database, evertick, command):
    result = evertick(command, "nope")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "error: there is no schedule 'nope' in app 'default'; `evertick list` shows those there are\n"
    )
