"""The wording of errors on the command line, and times without a zone."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from evertick import Cron, Scheduler
from evertick.cli.root import phrased
from evertick.cli.show.words import now
from evertick.errors import Refused


def test_an_error_names_commands_and_flags_instead_of_calls_and_arguments(database, evertick):
    (moment,) = (each["fire_at"] for each in _preview(evertick))
    assert (
        "use `evertick run-early` for now" in evertick("move", "print", moment, "--to", "2020-01-01T00:00:00Z").stderr
    )
    assert (
        "use `evertick update`, or another key" in evertick("add", "report", "--when", "@daily", "--task", "x").stderr
    )
    result = evertick("backfill", "report", "--from", "1000d", "--dry-run")
    assert result.stderr.startswith("error: --from: ")
    assert result.stderr.endswith("start later, or raise retention= on the nodes\n")
    refused = Refused("trigger() is no part of the fix", fix="call my_trigger() or trigger()")
    assert phrased(refused) == "trigger() is no part of the fix; call my_trigger() or `evertick trigger`"


def test_flags_and_fixes_of_one_command_are_not_those_of_another(database, evertick):
    rule = "every 10s; after=end"
    result = evertick("add", "poll", "--when", rule, "--task", "poll", "--mode", "every-node")
    assert result.stderr.startswith("error: after: 'end' ")
    assert "overlap='skip'" in result.stderr
    assert "cursor" not in result.stderr
    assert "error: --after: 'abc'" in evertick("events", "--after", "abc").stderr
    result = evertick("add", "poll", "--when", rule, "--task", "poll", "--mode", "every-node")
    assert result.stderr.startswith("error: after: 'end' ")


def _preview(evertick):
    return json.loads(evertick("preview", "print", "--count", "1", "--json").stdout)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["shwo"], "error: No such command 'shwo'. Did you mean 'show'? See 'evertick --help'\n"),
        (
            ["completion"],
            "error: Missing argument 'SHELL'. Choose from: bash, zsh, fish; see 'evertick completion --help'\n",
        ),
    ],
)
def test_a_typing_error_gets_one_readable_sentence(evertick, args, expected):
    assert evertick(*args).stderr == expected


def test_a_time_without_a_zone_uses_that_of_the_schedule_or_the_given_one(database, ask):
    (planned,) = ask("preview", "print", "--count", "1")
    berlin = datetime.fromisoformat(planned["fire_at"]).astimezone(ZoneInfo("Europe/Berlin"))
    later = berlin + timedelta(hours=1)
    decided = ask("move", "print", f"{berlin:%Y-%m-%d %H:%M}", "--to", f"{later:%Y-%m-%dT%H:%M:%S}")["occurrences"]
    assert [datetime.fromisoformat(each["to"]) for each in decided] == [later]
    tokyo = f"{berlin.astimezone(ZoneInfo('Asia/Tokyo')):%Y-%m-%d %H:%M}"
    assert ask("undo", "print", tokyo, "--tz", "Asia/Tokyo")["occurrences"] == []


def test_a_date_without_a_schedule_is_its_first_moment_in_the_local_zone(database, ask):
    tomorrow = now().date() + timedelta(days=1)
    assert len(ask("history", "--until", str(tomorrow))) == len(ask("history")) > 0
    assert ask("history", "--since", str(tomorrow)) == []
    assert ask("runs", "--since", f"{tomorrow + timedelta(days=1)} 00:00", "--tz", "Asia/Tokyo") == []


def test_an_invalid_time_is_refused_with_examples(database, evertick):
    for text in ("2026-13-01", "2026-01-31 9:00", "tomorrow", "20260131T0900000"):
        result = evertick("history", "--since", text)
        assert result.exit_code == 2
        assert "'2026-01-31 09:00' or '2026-01-31', nor a duration, like '2h'" in result.stderr


def test_backfill_and_pause_read_a_date_in_the_zone_of_the_schedule(database, ask):
    scheduler = Scheduler(concurrency=0)
    scheduler.sync.add(key="daily", when=Cron("0 0 * * *", tz="Asia/Tokyo"), task="make_report")
    scheduler.sync.close()
    day = (now() - timedelta(days=3)).astimezone(ZoneInfo("Asia/Tokyo")).date()
    found = ask("backfill", "daily", "--from", str(day), "--to", str(day), "--dry-run")
    assert found["moments"] == 1
    until = (now() + timedelta(days=2)).date()
    paused = ask("pause", "daily", "--until", str(until))
    opens = datetime.fromisoformat(paused["paused_until"])
    assert opens == datetime(until.year, until.month, until.day, tzinfo=ZoneInfo("Asia/Tokyo"))


def test_show_prints_all_times_in_the_zone_of_the_rule(database, ask, evertick):
    (planned,) = ask("preview", "print", "--count", "1")
    later = (datetime.fromisoformat(planned["fire_at"]) + timedelta(hours=1)).astimezone(ZoneInfo("Europe/Berlin"))
    ask("move", "print", planned["fire_at"], "--to", f"{later:%Y-%m-%d %H:%M}")
    text = evertick("show", "print").stdout
    assert f"to {later:%Y-%m-%d %H:%M}:00+0" in text
    times = re.findall(r"\d\d:\d\d:\d\d(?:\.\d+)?(Z|[+-]\d\d:\d\d)", text)
    assert len(times) > 6
    assert set(times) <= {"+01:00", "+02:00"}


@pytest.mark.parametrize("command", ["history", "runs", "failed"])
def test_a_list_of_one_schedule_uses_its_zone_and_a_list_of_many_the_local_one(database, ask, evertick, start, command):
    (failed,) = ask("failed", "print")
    moment = datetime.fromisoformat(failed["fire_at"])

    def by_clock_of(zone: str) -> re.Pattern[str]:
        there = moment.astimezone(ZoneInfo(zone))
        offset = re.escape(f"{there:%z}"[:3])
        return re.compile(rf"^{there:%Y-%m-%d %H:%M:%S}\S*{offset}:\d\d ", re.MULTILINE)

    def on_machine_in(zone: str, *args: str) -> str:
        return str(start(command, *args, env={"EVERTICK_DATABASE": database, "TZ": zone}).communicate(timeout=60)[0])

    assert by_clock_of("Asia/Tokyo").search(on_machine_in("Asia/Tokyo"))
    assert by_clock_of("Europe/Berlin").search(on_machine_in("Asia/Tokyo", "print"))
    for args in ([], ["print"]):
        assert by_clock_of("America/New_York").search(evertick(command, *args, "--tz", "America/New_York").stdout)


def test_times_of_a_run_are_in_the_zone_of_its_schedule(database, ask, evertick):
    (failed,) = ask("failed", "print")
    for word in (failed["id"], failed["id"][:18]):
        text = evertick("show", word).stdout
        assert set(re.findall(r"\d\d:\d\d:\d\d(?:\.\d+)?(Z|[+-]\d\d:\d\d)", text)) <= {"+01:00", "+02:00"}
        assert re.search(r"^Now +it ended at 20\S+ \S+ Europe/Berlin: ", evertick("why", word).stdout, re.MULTILINE)
    # A task may be that of many schedules.
    assert re.search(r"ended at 20\S+ \d\d:\d\d:\d\d( UTC|[+-]\d\d:\d\d): ", evertick("why", "print_it").stdout)


def test_nodes_of_one_name_are_shown_with_the_end_of_their_ids(tmp_path, evertick, ask):
    url = f"sqlite:///{tmp_path}/jobs.db"
    one, two, other = (Scheduler(url, node_name=name) for name in ("jobs@vm", "jobs@vm", "web@vm"))
    with one, two, other:
        ends = {node["id"][-6:] for node in ask("nodes", "--database", url) if node["name"] == "jobs@vm"}
        assert len(ends) == 2
        for command in ("nodes", "top"):
            text = evertick(command, "--database", url).stdout
            assert set(re.findall(r"^jobs@vm \((\w+)\)  ", text, re.MULTILINE)) == ends
            assert re.search(r"^web@vm  ", text, re.MULTILINE)
