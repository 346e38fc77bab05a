"""The command doctor: findings as text and JSON, and exit codes."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from evertick import Cron, Every, Scheduler


def test_a_healthy_app_has_no_findings(tmp_path, evertick):
    url, is_up = f"sqlite:///{tmp_path}/jobs.db", threading.Event()
    scheduler = Scheduler(url)

    @scheduler.every("1h")
    def make_report() -> None: ...

    with scheduler:
        is_up.set()
        result = evertick("doctor", "--database", url)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "no problems found\n", "")


def test_each_finding_has_a_severity_a_text_and_the_fix(database, evertick):
    scheduler = Scheduler(concurrency=0)
    for number in range(10):
        scheduler.sync.add(key=f"k{number}", when=Cron("0 9 * * *"), task="make_report")
    scheduler.sync.close()
    result = evertick("doctor")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0] == "error    no node is alive: nothing fires and nothing runs"
    assert lines[1] == "         fix: start one with `evertick daemon` or `evertick run module:attribute`"
    assert any("schedules fire at the same instant" in line for line in lines)
    assert any("'H 9 * * *; tz=UTC' instead of 'cron 0 9 * * *; tz=UTC'" in line for line in lines)
    assert lines[-1] == "1 error, 2 warnings"


def test_as_json_a_finding_has_its_check_and_its_subject(database, evertick):
    result = evertick("doctor", "--json")
    assert (result.exit_code, result.stderr) == (1, "")
    found, failed = json.loads(result.stdout)
    assert (found["severity"], found["check"], found["about"]) == ("error", "no_node", [])
    assert (failed["severity"], failed["check"], failed["about"]) == ("warning", "failed_runs", ["print"])


def test_notes_alone_leave_the_exit_code_at_zero(tmp_path, evertick):
    url = f"sqlite:///{tmp_path}/jobs.db"
    scheduler = Scheduler(url)

    @scheduler.task
    def make_report() -> None: ...

    with scheduler:
        scheduler.sync.add(key="past", when=Every("1h", max_fires=1), task="make_report")
        # Ended, as far as the doctor can see.
        end = scheduler.sync.schedule("past").created_at
        scheduler.sync.add(key="over", when=Cron("0 9 * * *", end=end), task="make_report")
        result = evertick("doctor", "--database", url)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("note  over is over: its end has passed\n")
    assert result.stdout.endswith("1 note\n")


def test_a_schedule_paused_for_its_failures_is_a_warning(tmp_path, evertick):
    url, is_paused = f"sqlite:///{tmp_path}/jobs.db", threading.Event()
    scheduler = Scheduler(url)

    @scheduler.every("1h", key="report", pause_after=1)
    def make_report() -> None:
        raise ValueError("no paper")

    scheduler.on("paused", lambda event: is_paused.set())
    with scheduler:
        scheduler.sync.run_early("report")
        assert is_paused.wait(20)
        result = evertick("doctor", "--database", url)
    assert result.exit_code == 1
    assert "report was paused because it fails: its last run has failed, the last error: ValueError: no paper" in (
        result.stdout
    )
    assert "then `evertick resume report`" in result.stdout


def test_a_missing_database_is_a_finding(tmp_path, evertick):
    result = evertick("doctor", "--json", "--database", f"sqlite:///{tmp_path}/nope.db")
    assert (result.exit_code, result.stderr) == (1, "")
    (found,) = json.loads(result.stdout)
    assert (found["severity"], found["check"]) == ("error", "store")
    assert found["what"] == f"there is no database at {tmp_path}/nope.db"
    assert "--database sqlite:///path/to/file.db" in found["fix"]


def test_a_database_that_cannot_be_opened_is_examined(tmp_path, evertick):
    path: Path = tmp_path / "jobs.db"
    path.write_bytes(b"")
    result = evertick("doctor", "--database", f"sqlite:///{path}")
    assert result.exit_code == 1
    assert "the migrations 0001_ledger are missing" in result.stdout
    assert "evertick db migrate" in result.stdout
    path.write_bytes(b"no database at all" * 100)
    result = evertick("doctor", "--database", f"sqlite:///{path}")
    assert result.exit_code == 1
    assert "is not a SQLite database" in result.stdout


def test_differing_declarations_of_a_stopped_node_are_shown_until_a_live_node_restarts(tmp_path, evertick):
    url = f"sqlite:///{tmp_path}/jobs.db"

    def a_node(every: str) -> Scheduler:
        scheduler = Scheduler(url)
        scheduler.every(every, key="report")(make_report)
        return scheduler

    def make_report() -> None: ...

    with a_node("2h"):
        with a_node("3h"):
            during = evertick("doctor", "--json", "--database", url)
        after = evertick("doctor", "--json", "--database", url)
        why, show = evertick("why", "report", "--database", url), evertick("show", "report", "--database", url)
        with a_node("2h"):
            mended = evertick("doctor", "--database", url)
    assert [found["check"] for found in json.loads(during.stdout)] == ["declared_differently"]
    (found,) = json.loads(after.stdout)
    assert (found["check"], found["about"]) == ("left_behind", ["report"])
    assert "every 3h" in found["what"]
    assert "a node that has ended" in found["what"]
    assert found["fix"].startswith("restart one of the live nodes")
    assert "live nodes declare it differently" in why.stdout
    assert "live nodes declare it differently" in show.stdout
    assert mended.stdout == "no problems found\n"


def nothing() -> None: ...


def test_nodes_of_one_name_with_different_declarations_are_a_warning(tmp_path, evertick):
    url = f"sqlite:///{tmp_path}/jobs.db"
    one, other, third = (Scheduler(url, node_name=name) for name in ("evertick@a", "evertick@b", "shop@a"))
    for scheduler, key in ((one, "both"), (other, "both"), (other, "backup"), (third, "elsewhere")):
        scheduler.every("1h", key=key, name=key)(nothing)
    with one, other, third:
        result = evertick("doctor", "--database", url, "--json")
    (found,) = [each for each in json.loads(result.stdout) if each["check"] == "one_name"]
    assert (result.exit_code, found["severity"], found["about"]) == (1, "warning", ["backup"])
    assert "(evertick@a, evertick@b): not all have backup" in found["what"]
    assert "node.name in a configuration" in found["fix"]


def test_an_empty_app_is_a_warning_with_the_existing_apps(database, evertick):
    result = evertick("doctor", "--app", "shop", "--json")
    assert result.exit_code == 1
    no_node, found = json.loads(result.stdout)
    assert (no_node["severity"], no_node["check"]) == ("warning", "no_node")
    assert (found["severity"], found["check"], found["about"]) == ("warning", "empty_app", ["shop"])
    assert found["what"].endswith("this database has app default")


def test_an_empty_app_in_an_empty_database_is_a_note(tmp_path, evertick):
    url = f"sqlite:///{tmp_path}/jobs.db"
    scheduler = Scheduler(url, concurrency=0)
    assert scheduler.sync.schedules() == []
    scheduler.sync.close()
    result = evertick("doctor", "--database", url, "--json")
    assert result.exit_code == 1
    found = [(each["severity"], each["check"]) for each in json.loads(result.stdout)]
    assert found == [("warning", "no_node"), ("note", "empty_app")]


@pytest.mark.parametrize("command", [["list"], ["ha"], ["nodes"], ["top", "--once"]])
def test_an_empty_list_names_the_existing_apps(database, evertick, command):
    result = evertick(*command, "--app", "shop")
    assert result.exit_code == 0
    assert result.stderr.splitlines()[-1] == "this database has app default; name another with --app"
    assert "this database" not in evertick(*command).stderr
