"""The command events: past events, new events, and cursors."""

from __future__ import annotations

import json
import re
import signal
import threading

import pytest

from evertick import Scheduler


@pytest.fixture
def url(tmp_path, monkeypatch):
    """A database with a feed and some events."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    monkeypatch.setenv("EVERTICK_DATABASE", url)
    scheduler = Scheduler(url, concurrency=0)
    scheduler.sync.keep_feed("1d")
    scheduler.sync.add(key="report", when="every 1h", task="make_report")
    scheduler.sync.pause("report", note="no paper")
    scheduler.sync.close()
    return url


def lines(result):
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_events_are_printed_one_per_line_with_a_hint_how_to_continue(url, evertick):
    result = evertick("events")
    assert result.exit_code == 0
    told = [line.split("  ", 1)[1].split() for line in result.stdout.splitlines()]
    assert told == [["schedule.added", "report"], ["schedule.paused", "report", "no", "paper"]]
    assert result.stderr.startswith("continue with --after ")
    cursor = result.stderr.split()[-1]
    assert evertick("events", "--after", cursor).stdout == ""


def test_as_json_each_event_has_a_cursor_that_continues_after_it(url, evertick):
    added, paused = lines(evertick("events", "--json"))
    assert (added["kind"], added["schedule_key"], paused["note"]) == ("schedule.added", "report", "no paper")
    assert lines(evertick("events", "--after", added["cursor"], "--json")) == [paused]


def test_events_are_filtered_by_kind_schedule_and_time(url, evertick):
    assert [each["kind"] for each in lines(evertick("events", "--kind", "schedule.paused", "--json"))] == [
        "schedule.paused"
    ]
    assert lines(evertick("events", "--schedule", "other", "--json")) == []
    assert len(lines(evertick("events", "--since", "5m", "--json"))) == 2
    assert "no matching events" in evertick("events", "--schedule", "other").stderr


def test_events_stop_at_the_limit_and_can_be_continued(url, evertick):
    first = evertick("events", "--limit", "1")
    assert len(first.stdout.splitlines()) == 1
    cursor = first.stderr.split()[-1]
    assert [each["kind"] for each in lines(evertick("events", "--after", cursor, "--json"))] == ["schedule.paused"]
    assert "[--kind" not in evertick("events", "--help").stdout
    assert "--kind KIND" in evertick("events", "--help").stdout


def test_errors_of_events_name_the_flag(url, evertick):
    result = evertick("events", "--after", "abc")
    assert result.stderr.startswith(
        "error: --after: 'abc' is not a cursor; write the cursor that an earlier call ended"
    )


def test_following_prints_new_events(url, start):
    follower = start("events", "--follow", "--json", "--after", _end(url), env={"EVERTICK_DATABASE": url})
    scheduler = Scheduler(url, concurrency=0)
    scheduler.sync.resume("report")
    assert json.loads(follower.stdout.readline())["kind"] == "schedule.resumed"
    scheduler.sync.remove("report")
    assert json.loads(follower.stdout.readline())["kind"] == "schedule.removed"
    scheduler.sync.close()
    follower.send_signal(signal.SIGINT)
    assert follower.wait(20) == 130


def _end(url):
    scheduler = Scheduler(url, concurrency=0)
    end = scheduler.sync.feed_cursor()
    scheduler.sync.close()
    return end


def test_the_feed_is_turned_on_and_off(database, evertick):
    result = evertick("events")
    assert result.exit_code == 1
    assert "keeps no feed; turn it on with `evertick events --keep 7d`" in result.stderr
    assert evertick("events", "--keep", "7d").stderr == "events are kept for 7d from now on\n"
    assert evertick("pause", "report").exit_code == 0
    assert "schedule.paused" in evertick("events").stdout
    assert evertick("events", "--keep", "off").stderr == "the feed of app 'default' is off\n"
    assert evertick("events").exit_code == 1
    assert evertick("events", "--keep", "7d", "--follow").exit_code == 2


def test_an_expired_cursor_is_an_error_with_the_oldest_cursor(url, evertick):
    result = evertick("events", "--after", "abc.0.1.0")
    assert result.exit_code == 1
    assert "; start again from the oldest cursor, " in result.stderr
    assert evertick("events", "--after", "yesterday").exit_code == 2


def test_the_error_of_a_feed_that_is_off_names_the_command_with_the_app(url, evertick):
    result = evertick("events", "--app", "shop")
    assert "turn it on with `evertick events --app shop --keep 7d`" in result.stderr
    assert evertick("events", "--keep", "off").exit_code == 0
    assert "turn it on with `evertick events --keep 7d`" in evertick("events").stderr


def test_an_empty_feed_is_not_explained_by_a_filter_that_was_not_given(url, evertick):
    cursor = evertick("events").stderr.split()[-1]
    assert evertick("events", "--after", cursor).stderr.startswith("no events; continue with --after ")


@pytest.mark.parametrize(("given", "like"), [("7", "'7d'"), ("a week", "'7d'")])
def test_an_invalid_retention_of_events_is_refused_with_its_flag_and_days(url, evertick, given, like):
    result = evertick("events", "--keep", given)
    assert result.exit_code == 2
    assert f"'--keep': {given!r} is not a duration; write it like {like}, or 'off'" in result.stderr


def test_an_option_without_a_value_points_to_the_help_of_its_command(url, evertick):
    assert evertick("events", "--keep").stderr.endswith("requires an argument; see 'evertick events --help'\n")


def test_an_every_node_event_names_its_node(tmp_path, evertick):
    url, ended = f"sqlite:///{tmp_path}/nodes.db", threading.Semaphore(0)

    def program(name: str) -> Scheduler:
        scheduler = Scheduler(url, node_name=name, feed="1d")
        scheduler.every("1h", key="reload", mode="every-node")(reload)
        scheduler.on("succeeded", lambda event: ended.release())
        return scheduler

    def reload() -> None: ...

    with program("web-a") as first, program("web-b"):
        first.sync.trigger("reload")
        assert ended.acquire(timeout=20)
        assert ended.acquire(timeout=20)
    message = evertick("events", "--kind", "run.recorded", "--database", url).stdout.splitlines()
    assert {re.search(r" (?:on|for) (web-\w)", line)[1] for line in message} == {"web-a", "web-b"}
