"""Commands that make and change schedules: add, update, and pause and resume of many."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from evertick import Scheduler


def test_add_tells_the_rule_back_in_words_with_its_next_fires(database, evertick, ask):
    result = evertick(
        "add", "digest", "--task", "make_report", "--when", "weekdays at 18:30", "--tz", "Europe/Berlin",
        "--args", '{"day": "monday"}', "--overlap", "queue", "--catch-up", "all", "--catch-up-limit", "5",
        "--grace", "5m", "--label", "team=sales", "--label", "kind=mail", "--priority", "3", "--pause-after", "4",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "added digest"
    assert "In words    At 18:30, Monday to Friday, in Europe/Berlin" in lines
    assert len([line for line in lines if re.search(r" 18:30:00\+0[12]:00  in ", line)]) == 5
    assert result.stderr.startswith("note: no live node knows the task 'make_report'")
    shown = ask("show", "digest")
    assert (shown["args"], shown["overlap"], shown["catch_up"], shown["catch_up_limit"]) == (
        {"day": "monday"},
        "queue",
        "all",
        5,
    )
    assert (shown["grace_seconds"], shown["priority"], shown["pause_after"]) == (300.0, 3, 4)
    assert shown["labels"] == {"team": "sales", "kind": "mail"}


def test_add_as_json_is_what_show_tells_about_it(database, ask):
    added = ask("add", "poll", "--task", "make_report", "--when", "every 5m")
    assert added["words"].startswith("every 5 minutes")
    assert len(added["upcoming"]) == 5
    assert {**added, "recent": []} == {**ask("show", "poll"), "upcoming": added["upcoming"]}


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["add", "report", "--task", "t", "--when", "every 5m"], 2, "exists already"),
        (["add", "x", "--task", "t", "--when", "every now and then"], 2, "error: "),
        (["add", "x", "--task", "t", "--when", "every 5m", "--grace", "soon"], 2, "grace"),
        (["add", "x", "--task", "t", "--when", "every 5m", "--pause-after", "few"], 2, "--pause-after: 'few'"),
        (["add", "x", "--task", "t", "--when", "0 9 * * *", "--calendar", "no-such"], 2, "no-such"),
        (["add", "x", "--when", "every 5m"], 2, "--task"),
        (["update", "nope", "--when", "every 5m"], 1, "there is no schedule 'nope'"),
        (["update", "report"], 2, "nothing is given that could change"),
        (["update", "report", "--overlap", "sometimes"], 2, "--overlap"),
    ],
)
def test_what_is_written_wrongly_changes_nothing_and_says_why(database, evertick, ask, args, code, words):
    before = ask("list")
    result = evertick(*args)
    assert (result.exit_code, result.stdout) == (code, "")
    assert words in result.stderr
    assert [each["version"] for each in ask("list")] == [each["version"] for each in before]


def test_a_dry_run_shows_which_fires_would_move_and_changes_nothing(database, evertick, ask):
    # Far from now, so that the old and the new time of a day are both past or both to come.
    hour = (datetime.now(UTC) + timedelta(hours=6)).hour
    evertick("add", "daily", "--task", "make_report", "--when", f"0 {hour} * * *")
    change = ("update", "daily", "--when", f"30 {hour} * * *", "--dry-run")
    result = evertick(*change)
    assert result.exit_code == 0
    assert "14 move" in result.stdout
    assert re.search(
        rf"^  ~ \w{{3}} \S+ {hour:02}:00 UTC -> \w{{3}} \S+ {hour:02}:30 UTC$", result.stdout, re.MULTILINE
    )
    assert result.stderr == "note: nothing was changed\n"
    plan = ask(*change)
    assert (len(plan["moves"]), plan["adds"], plan["removes"]) == (14, [], [])
    assert "14 move" in plan["words"]
    assert ask("show", "daily")["when"] == f"cron 0 {hour} * * *; tz=UTC"


def test_a_new_rule_keeps_the_zone_of_the_old_one_unless_it_names_its_own(database, evertick, ask):
    evertick("update", "print", "--when", "weekdays at 10:00")
    assert ask("show", "print")["when"] == "cron 0 10 * * 1-5; tz=Europe/Berlin"
    evertick("update", "print", "--when", "weekdays at 11:00 in Asia/Tokyo")
    assert ask("show", "print")["when"] == "cron 0 11 * * 1-5; tz=Asia/Tokyo"
    evertick("update", "print", "--tz", "America/New_York")
    assert ask("show", "print")["when"] == "cron 0 11 * * 1-5; tz=America/New_York"


def test_update_changes_what_is_given_and_none_takes_an_option_away(database, evertick, ask):
    evertick("update", "report", "--grace", "90s", "--label", "team=stock")
    assert (ask("show", "report")["grace_seconds"], ask("show", "report")["labels"]) == (90.0, {"team": "stock"})
    result = evertick("update", "report", "--grace", "none")
    assert "grace: 90s -> none" in result.stdout
    after = ask("show", "report")
    assert (after["grace_seconds"], after["labels"], after["when"]) == (None, {"team": "stock"}, "every 1h; tz=UTC")


@pytest.fixture
def teams(database) -> None:
    scheduler = Scheduler(concurrency=0)
    for key, team in (("a", "sales"), ("b", "sales"), ("c", "stock")):
        scheduler.sync.add(key=key, when="every 1h", task="make_report", labels={"team": team})
    scheduler.sync.close()


def test_all_schedules_with_a_label_are_paused_and_resumed_together(teams, evertick, ask):
    result = evertick("pause", "--label", "team=sales", "--note", "inventory", "--until", "2h")
    assert [line.split()[:2] for line in result.stdout.splitlines()] == [
        ["paused", "a"],
        ["paused", "b"],
        ["paused", "report"],
    ]
    paused = {each["key"]: each["pause_note"] for each in ask("list") if each["is_paused"]}
    assert paused == {"a": "inventory", "b": "inventory", "report": "inventory", "quick": "too quick for anybody"}
    assert ask("pause", "--label", "team=sales") == []
    assert ask("resume", "--label", "team=sales") == ["a", "b", "report"]
    result = evertick("resume", "--label", "team=sales")
    assert result.stderr == "no schedule that somebody paused has team=sales in app 'default'\n"


@pytest.mark.parametrize("command", ["pause", "resume"])
@pytest.mark.parametrize("args", [[], ["report", "--label", "team=sales"]])
def test_one_schedule_or_a_label_is_named_and_not_both(database, evertick, command, args):
    result = evertick(command, *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "name one schedule by its key, or several by --label" in result.stderr


# --- single moments


def _upcoming(ask, key: str) -> list[datetime]:
    return [datetime.fromisoformat(moment) for moment in ask("show", key)["upcoming"]]


def test_the_next_moment_is_skipped_and_the_skip_is_taken_back(database, evertick, ask):
    first, second, *_ = _upcoming(ask, "print")
    result = evertick("skip-next", "print", "--note", "no paper")
    assert result.exit_code == 0, result.stderr
    assert re.search(r"^Decided +.* is skipped: no paper$", result.stdout, re.MULTILINE)
    assert _upcoming(ask, "print")[0] == second
    assert re.search(r"^Decided +.* is skipped: no paper$", evertick("show", "print").stdout, re.MULTILINE)
    assert "nothing" in evertick("undo", "print").stdout
    assert _upcoming(ask, "print")[0] == first
    assert evertick("undo", "print").exit_code == 1


def test_a_moment_is_moved_and_others_stay(database, evertick, ask):
    first, second, *_ = _upcoming(ask, "print")
    to = first.replace(hour=11)
    moved = ask("move", "print", first.isoformat(), "--to", to.isoformat())
    assert [datetime.fromisoformat(each["to"]) for each in moved["occurrences"]] == [to]
    assert _upcoming(ask, "print")[:2] == [to, second]
    undone = ask("undo", "print", first.isoformat())
    assert undone["occurrences"] == []
    assert evertick("move", "print", "2020-01-01T00:00:00Z", "--to", to.isoformat()).exit_code != 0


def test_the_next_moment_runs_early_and_does_not_come_again(database, evertick, ask):
    first, second, *_ = _upcoming(ask, "print")
    result = evertick("run-early", "print")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("print runs early: run ")
    assert _upcoming(ask, "print")[0] == second
    (run,) = (row for row in ask("history", "print") if row.get("cause") == "fire")
    assert datetime.fromisoformat(run["fire_at"]) == first


def test_preview_marks_what_somebody_has_decided(database, evertick, ask):
    second = _upcoming(ask, "print")[1]
    evertick("skip-next", "print")
    evertick("move", "print", second.isoformat(), "--to", second.replace(hour=11).isoformat())
    head, *lines = evertick("preview", "print", "--count", "3").stdout.splitlines()
    assert head.split() == ["MOMENT", "IN", "KEY", "TASK", "NOTE"]
    assert lines[0].endswith("to be skipped")
    assert "moved to " in lines[1]
    assert lines[2].endswith("-")
    assert [each["prospect"] for each in ask("preview", "print", "--count", "3")] == ["skipped", "moved", None]
