"""The command doctor: its findings as people and programs read them, and its exit code."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from evertick import Cron, Every, Scheduler


def test_a_well_kept_app_has_nothing_wrong(tmp_path, evertick):
    url, is_up = f"sqlite:///{tmp_path}/jobs.db", threading.Event()
    scheduler = Scheduler(url)

    @scheduler.every("1h")
    def make_report() -> None: ...

    with scheduler:
        is_up.set()
        result = evertick("doctor", "--database", url)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "nothing is wrong\n", "")


def test_each_finding_has_a_severity_what_is_so_and_the_fix(database, evertick):
    scheduler = Scheduler(concurrency=0)
    for number in range(10):
        scheduler.sync.add(key=f"k{number}", when=Cron("0 9 * * *"), task="make_report")
    scheduler.sync.close()
    result = evertick("doctor")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0] == "warning  no node is alive: nothing fires and nothing runs"
    assert lines[1] == "         fix: start one with `evertick run module:attribute`"
    assert any("schedules fire at the same instant" in line for line in lines)
    assert any("'H 9 * * *; tz=UTC' instead of 'cron 0 9 * * *; tz=UTC'" in line for line in lines)
    assert lines[-1] == "2 warnings"


def test_as_json_a_finding_has_its_check_and_what_it_is_about(database, evertick):
    result = evertick("doctor", "--json")
    assert (result.exit_code, result.stderr) == (1, "")
    (found,) = json.loads(result.stdout)
    assert (found["severity"], found["check"], found["about"]) == ("warning", "no_node", [])


def test_notes_alone_leave_the_exit_code_at_zero(tmp_path, evertick):
    url = f"sqlite:///{tmp_path}/jobs.db"
    scheduler = Scheduler(url)

    @scheduler.task
    def make_report() -> None: ...

    with scheduler:
        scheduler.sync.add(key="past", when=Every("1h", max_fires=1), task="make_report")
        # Over, as far as the doctor can see: its end has passed.
        end = scheduler.sync.schedule("past").created_at
        scheduler.sync.add(key="over", when=Cron("0 9 * * *", end=end), task="make_report")
        result = evertick("doctor", "--database", url)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("note  over is over: its end has passed\n")
    assert result.stdout.endswith("1 note\n")


def test_a_database_that_cannot_be_opened_is_examined_all_the_same(tmp_path, evertick):
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
