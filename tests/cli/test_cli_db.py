"""The group db: backup, check, migrate, repair-clock, status, vacuum."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from evertick import Every, Scheduler
from evertick.clock import Clock
from evertick.scheduler.scheduler import Parts
from evertick.store.sqlite import SqliteStore
from evertick.when.moment import DAY


def _execute(url: str, *statements: str) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


def test_the_status_tells_version_sizes_and_rows(database, evertick, ask):
    text = evertick("db", "status").stdout
    for name in ("Database", "Kept by", "Store", "Version", "Size", "Log", "Free", "Vacuum", "Disk", "History", "Rows"):
        assert f"\n{name}" in f"\n{text}"
    assert "schedules: 3" in text
    status = ask("db", "status")
    assert status["missing"] == []
    assert status["oldest_at"].startswith("20")
    assert {"name": "evertick_schedules", "rows": 3, "is_exact": True} in status["tables"]


def test_the_status_counts_what_people_know_and_json_has_every_table(database, evertick, ask):
    text = evertick("db", "status").stdout
    assert re.search(r"^Rows +schedules: 3$", text, re.MULTILINE)
    assert "fence" not in text
    assert "and 11 internal tables, which --json lists" in text
    assert "evertick_fence" in {table["name"] for table in ask("db", "status")["tables"]}


def test_the_status_of_an_empty_database_names_what_makes_its_tables(tmp_path, evertick):
    (tmp_path / "empty.db").write_bytes(b"")
    text = evertick("db", "status", "--database", f"sqlite:///{tmp_path}/empty.db").stdout
    assert "no tables yet: `evertick db migrate --database URL` creates them" in text
    assert "missing: 0001_ledger, which `evertick db migrate --database URL` applies" in text


def test_a_good_database_passes_its_check(database, evertick, ask):
    result = evertick("db", "check")
    assert result.exit_code == 0
    assert "no problems found" in result.stdout
    assert ask("db", "check", "--quick")["problems"] == []


def test_a_bad_one_fails_with_exit_code_1_and_says_what_is_wrong(database, evertick):
    _execute(database, "DROP INDEX evertick_gaps_time", "DELETE FROM evertick_due")
    result = evertick("db", "check")
    assert result.exit_code == 1
    assert "the index evertick_gaps_time is missing" in result.stdout
    assert evertick("db", "check", "--json").exit_code == 1


def test_a_backup_is_a_new_file_that_holds_the_ledger_as_it_is(database, evertick, ask, tmp_path):
    copy = tmp_path / "copy.db"
    result = evertick("db", "backup", str(copy))
    assert result.exit_code == 0
    assert result.stdout.startswith(f"copied to {copy}, ")
    assert copy.stat().st_mode & 0o007 == 0
    assert ask("db", "check", "--database", f"sqlite:///{copy}")["problems"] == []
    tables = [ask("db", "status", "--database", url)["tables"] for url in (database, f"sqlite:///{copy}")]
    assert tables[0] == tables[1]
    told = ask("db", "backup", str(tmp_path / "other.db"))
    assert told == {"file": str(tmp_path / "other.db"), "bytes": (tmp_path / "other.db").stat().st_size}


def test_a_backup_overwrites_nothing_and_says_where_it_cannot_be_written(database, evertick, tmp_path):
    own = database.removeprefix("sqlite:///")
    refused = evertick("db", "backup", own)
    assert (refused.exit_code, f"there is a file {own} already" in refused.stderr) == (1, True)
    refused = evertick("db", "backup", f"{tmp_path}/nowhere/copy.db")
    assert (refused.exit_code, "cannot be made: No such file or directory" in refused.stderr) == (1, True)


def test_migrate_tells_what_it_has_applied_and_that_nothing_was_missing(tmp_path, evertick, ask):
    path: Path = tmp_path / "new.db"
    url = f"sqlite:///{path}"
    result = evertick("db", "migrate", "--database", url)
    assert result.exit_code == 1
    assert "there is no database at" in result.stderr
    assert not path.exists()
    first = evertick("db", "migrate", "--create", "--database", url)
    assert first.stdout.splitlines()[0] == "applied 0001_ledger"
    again = evertick("db", "migrate", "--database", url)
    assert again.stdout == f"the SQLite file {path} is at version 1; nothing was missing\n"
    assert ask("db", "migrate", "--database", url) == {"applied": [], "version": 1}


def test_vacuum_makes_the_file_smaller_while_the_rows_stay(database, evertick, ask):
    _execute(
        database,
        "CREATE TABLE theirs AS WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 3000) "
        "SELECT zeroblob(2000) AS x FROM n",
        "DROP TABLE theirs",
    )
    before = ask("db", "status")
    assert before["free_pages"] > 1_000
    result = evertick("db", "vacuum")
    assert result.exit_code == 0
    assert "less than before" in result.stdout
    after = ask("db", "status")
    assert after["free_pages"] == 0
    assert after["bytes"] < before["bytes"] / 4
    assert {"name": "evertick_schedules", "rows": 3, "is_exact": True} in after["tables"]
    assert evertick("db", "check").exit_code == 0


@pytest.fixture
def old_file(tmp_path, evertick) -> str:
    """One that was made by another program, without auto_vacuum."""
    url = f"sqlite:///{tmp_path}/old.db"
    _execute(url, "CREATE TABLE theirs (x)")
    assert evertick("db", "migrate", "--database", url).exit_code == 0
    return url


def test_vacuum_is_refused_where_the_file_was_not_made_for_it_and_offers_the_other_way(old_file, evertick, ask):
    result = evertick("db", "vacuum", "--database", old_file)
    assert result.exit_code == 1
    assert "evertick db vacuum --full" in result.stderr
    done = ask("db", "vacuum", "--full", "--yes", "--database", old_file)
    assert done["free_pages"] == 0
    assert evertick("db", "vacuum", "--database", old_file).exit_code == 0


def test_writing_anew_wants_a_yes_where_nobody_can_answer(old_file, evertick):
    result = evertick("db", "vacuum", "--full", "--database", old_file)
    assert result.exit_code == 2
    assert "--yes" in result.stderr


def test_a_store_in_memory_cannot_be_looked_after(evertick):
    result = evertick("db", "status", "--database", "sqlite://")
    assert result.exit_code == 1
    assert "in the memory of another process" in result.stderr


def test_long_work_tells_how_far_it_is_without_touching_the_answer(database, start, terminal):
    process = start("db", "check", env={"EVERTICK_DATABASE": database, "TERM": "xterm"}, stderr=terminal.theirs)
    answer = process.stdout.read()
    assert process.wait() == 0
    assert answer.splitlines()[-1].startswith("Result")
    assert "\x1b" not in answer
    assert b"checking the database" in os.read(terminal.ours, 65536)


def test_a_store_of_another_kind_that_has_no_care_says_so_and_the_doctor_goes_on_without(
    database, monkeypatch, evertick
):
    monkeypatch.setattr("evertick.cli.command.db.open_store", lambda url, clock: object())
    result = evertick("db", "status")
    assert result.exit_code == 1
    assert result.stderr == "error: `evertick db` does not support sqlite:// stores; use the tools of the store\n"
    assert "no node is alive" in evertick("doctor").stdout


# --- a wrong clock


class _Ahead(Clock):
    """A clock that is years ahead."""

    def now_us(self):
        return super().now_us() + 76 * 365 * DAY


@pytest.fixture
def from_the_future(tmp_path):
    """A database in which a schedule was added, and a run enqueued, by a machine whose clock was years ahead."""
    url, clock = f"sqlite:///{tmp_path}/ahead.db", _Ahead()
    scheduler = Scheduler(url, concurrency=0)
    scheduler.runtime.parts = Parts(clock=clock, open_store=lambda url: SqliteStore(url, clock=clock))
    job = scheduler.task(lambda: None, name="job")
    scheduler.sync.add(key="report", when="0 9 * * *", task="job")
    scheduler.sync.add(key="quick", when=Every("20m"), task="job")
    job.sync.enqueue()
    scheduler.sync.close()
    return url


def test_repair_clock_shows_what_it_would_repair_asks_and_repairs(from_the_future, evertick, monkeypatch):
    monkeypatch.setenv("EVERTICK_DATABASE", from_the_future)
    looked = evertick("db", "repair-clock", "--dry-run")
    assert looked.exit_code == 0
    assert "quick: it would fire again at 21" in looked.stdout
    assert "1 live run" in looked.stdout
    assert "nothing was changed" in looked.stderr
    unasked = evertick("db", "repair-clock")
    assert unasked.exit_code == 2
    assert "write --yes" in unasked.stderr
    ill = evertick("status")
    assert ill.exit_code == 2
    assert "2 schedules are stuck because the clock was wrong (quick, report)" in ill.stdout
    assert "evertick db repair-clock" in evertick("doctor").stdout
    assert "evertick db repair-clock" in evertick("why", "report").stdout
    (done,) = json.loads(evertick("db", "repair-clock", "--yes", "--json").stdout)
    assert done["is_repaired"]
    assert [each["key"] for each in done["schedules"]] == ["quick", "report"]
    assert done["rows"]["runs"] == 1
    again = evertick("db", "repair-clock", "--yes")
    assert (again.exit_code, again.stdout) == (0, "nothing to repair: no schedule and no row has a wrong time\n")
    assert "clock" not in evertick("doctor").stdout


def test_repair_clock_is_refused_while_the_clock_is_wrong(from_the_future, evertick, monkeypatch):
    monkeypatch.setenv("EVERTICK_DATABASE", from_the_future)
    monkeypatch.setattr("evertick.cli.command.db.now", lambda: datetime(1999, 1, 1, tzinfo=UTC))
    refused = evertick("db", "repair-clock", "--yes")
    assert refused.exit_code == 1
    assert "correct both first" in refused.stderr
