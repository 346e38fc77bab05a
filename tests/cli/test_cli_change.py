"""Commands that make and change schedules: add, update, and pause and resume of many."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta

import pytest

from evertick import Scheduler
from evertick.cli.command.schedules import _counted


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
        (["update", "report"], 2, "no change is given"),
        (["update", "report", "--overlap", "sometimes"], 2, "--overlap"),
        (["update", "report", "--queue", "none"], 2, "--queue cannot be 'none', since it always has a value"),
        (["update", "report", "--pace", "none"], 2, "its default is '1s'"),
        (["update", "report", "--label", "team=stock", "--no-labels"], 2, "--label excludes --no-labels"),
        (["update", "report", "--grace", "1m", "--days", "30"], 2, "--days needs --dry-run"),
        (["update", "report", "--grace", "1m", "--dry-run", "--days", "367"], 2, "--days"),
        (["pause", "report", "--days", "30"], 2, "--days needs --dry-run"),
        (["pause", "nope", "--dry-run"], 1, "there is no schedule 'nope'"),
        (["remove", "report", "--days", "30"], 2, "--days needs --dry-run"),
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


@pytest.mark.parametrize(
    ("flag", "value", "field"),
    [
        ("--grace", "90s", "grace_seconds"),
        ("--unique", "till", "unique"),
        ("--pause-after", "3", "pause_after"),
        ("--blackout", "nights", "blackout"),
    ],
)
def test_none_takes_away_what_a_schedule_can_be_without(database, evertick, ask, flag, value, field):
    evertick("calendar", "set", "nights", "--exclude", "22:00-06:00")
    assert ask("update", "report", flag, value)[field] is not None
    assert ask("update", "report", flag, "none")[field] is None


def test_none_takes_the_calendar_out_of_the_rule_and_leaves_the_rest_of_it(database, evertick, ask):
    evertick("calendar", "set", "business", "--include", "mon-fri")
    evertick("update", "print", "--calendar", "business")
    before = ask("show", "print")["when"]
    assert before.endswith("; calendar=business")
    assert ask("update", "print", "--calendar", "none")["when"] == before.removesuffix("; calendar=business")
    added = ask("add", "free", "--task", "make_report", "--when", "0 9 * * *", "--calendar", "none")
    assert added["when"] == "cron 0 9 * * *; tz=UTC"


def test_labels_are_emptied(database, ask):
    assert ask("show", "report")["labels"] != {}
    assert ask("update", "report", "--no-labels")["labels"] == {}


def test_a_dry_run_looks_as_many_days_ahead_as_one_says(database, evertick, ask):
    change = ("update", "print", "--when", "weekdays at 10:00", "--dry-run", "--days", "366")
    plan = ask(*change)
    since, until = (datetime.fromisoformat(plan[name]) for name in ("since", "until"))
    assert (until - since).days == 366
    # A year of Berlin has two days on which the clock is turned, and both are Sundays.
    daily = evertick(*(each.replace("weekdays", "daily") for each in change)).stdout
    assert len(re.findall(r"^  [+~-] Sun .* \(the clock goes (?:forward|back) 1 hour", daily, re.MULTILINE)) == 2
    assert re.search(r"2 of them on days with a clock change: Sun \S+, Sun \S+$", daily, re.MULTILINE)


def test_a_pause_and_a_removal_can_be_looked_at_before_they_are_made(database, evertick, ask):
    evertick("add", "daily", "--task", "make_report", "--when", "0 9 * * *")
    result = evertick("pause", "daily", "--dry-run", "--days", "30")
    assert re.search(r"^daily: .* -> paused$", result.stdout, re.MULTILINE)
    assert "daily: 30 fires before, 0 after; 30 are removed" in result.stdout
    assert result.stderr == "note: nothing was changed\n"
    assert len(ask("pause", "daily", "--until", "48h", "--dry-run")["removes"]) == 2
    assert not ask("show", "daily")["is_paused"]
    result = evertick("remove", "daily", "--dry-run")
    assert "daily: 14 fires before, 0 after; 14 are removed" in result.stdout
    assert ask("remove", "daily", "--dry-run", "--days", "3")["fires_old"] == 3
    assert ask("show", "daily")["key"] == "daily"


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
    assert result.stderr == "app 'default' has no schedule with team=sales that was paused by hand\n"


def test_a_pause_of_many_can_be_looked_at_in_a_sentence_each(teams, evertick, ask):
    result = evertick("pause", "--label", "team=sales", "--dry-run", "--days", "2")
    assert result.stdout.splitlines() == [
        f"{key}: 48 fires before, 0 after; 48 are removed" for key in ("a", "b", "report")
    ]
    assert result.stderr == "note: nothing was changed\n"
    assert [plan["key"] for plan in ask("pause", "--label", "team=sales", "--dry-run")] == ["a", "b", "report"]
    assert [each["key"] for each in ask("list") if each["is_paused"]] == ["quick"]


def _pause_two_and_break_off() -> None:
    with _counted("paused", as_json=False) as on_change:
        on_change("a", 1)
        on_change("b", 2)
        raise asyncio.CancelledError


def test_a_pause_of_many_that_is_broken_off_says_how_many_are_paused(capsys):
    with pytest.raises(asyncio.CancelledError):
        _pause_two_and_break_off()
    assert capsys.readouterr().err == "paused 2; call it again to continue\n"


@pytest.mark.parametrize("command", ["pause", "resume"])
@pytest.mark.parametrize("args", [[], ["report", "--label", "team=sales"]])
def test_one_schedule_or_a_label_is_named_and_not_both(database, evertick, command, args):
    result = evertick(command, *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "name one schedule by its key, or several with --label" in result.stderr


# --- single moments


def _upcoming(ask, key: str) -> list[datetime]:
    return [datetime.fromisoformat(moment) for moment in ask("show", key)["upcoming"]]


def test_the_next_moment_is_skipped_and_the_skip_is_taken_back(database, evertick, ask):
    first, second, *_ = _upcoming(ask, "print")
    result = evertick("skip-next", "print", "--note", "no paper")
    assert result.exit_code == 0, result.stderr
    assert re.search(r"^Overrides +.* is skipped: no paper$", result.stdout, re.MULTILINE)
    assert _upcoming(ask, "print")[0] == second
    assert re.search(r"^Overrides +.* is skipped: no paper$", evertick("show", "print").stdout, re.MULTILINE)
    assert re.search(r"^Overrides +none$", evertick("undo", "print").stdout, re.MULTILINE)
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
    assert head.split() == ["MOMENT", "ZONE", "IN", "KEY", "TASK", "NOTE"]
    assert lines[0].endswith("will be skipped")
    assert "moved to " in lines[1]
    assert lines[2].endswith("-")
    assert [each["prospect"] for each in ask("preview", "print", "--count", "2")] == ["skipped", "moved", None]
