"""The group calendar: list, show, set, remove, import-holidays."""

from __future__ import annotations

import json
import os
import sys

import pytest


@pytest.fixture
def business(database, evertick) -> None:
    result = evertick("calendar", "set", "business", "--include", "mon-fri", "--exclude", "2026-12-24", "--tz", "UTC")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "set calendar business: open on mon-fri, closed on 2026-12-24\n"


def test_calendars_are_listed_with_their_schedules(business, evertick, ask):
    evertick("update", "print", "--calendar", "business")
    (listed,) = ask("calendar", "list")
    assert listed == {
        "name": "business",
        "include": ["mon-fri"],
        "exclude": ["2026-12-24"],
        "tz": "UTC",
        "users": ["print"],
    }
    head, row = evertick("calendar", "list").stdout.splitlines()
    assert head.split() == ["NAME", "ZONE", "INCLUDE", "EXCLUDE", "USED", "BY"]
    assert row.split() == ["business", "UTC", "mon-fri", "2026-12-24", "print"]


def test_an_app_without_calendars_shows_how_to_add_one(database, evertick):
    assert "evertick calendar set" in evertick("calendar", "list").stderr


def test_one_calendar_shows_its_entries_and_whether_it_is_open(business, evertick, ask):
    text = evertick("calendar", "show", "business").stdout
    assert "Include   mon-fri" in text
    assert "Used by   no schedule" in text
    assert any(f"Now       {state} until " in text for state in ("open", "closed"))
    assert ask("calendar", "show", "business")["exclude"] == ["2026-12-24"]
    evertick("calendar", "set", "never", "--include", "2020-01-01")
    assert "Now       closed, and never opens again" in evertick("calendar", "show", "never").stdout
    evertick("calendar", "set", "always", "--exclude", "2020-01-01")
    text = evertick("calendar", "show", "always").stdout
    assert "Now       open in UTC; a rule that uses it sets its zone\n" in text
    assert evertick("calendar", "show", "nope").exit_code == 1


def test_a_dry_run_shows_the_effect_of_a_calendar_and_changes_nothing(business, evertick, ask):
    evertick("update", "print", "--calendar", "business")
    result = evertick("calendar", "set", "business", "--include", "mon-thu", "--dry-run")
    assert "2 are removed" in result.stdout
    assert result.stderr == "note: nothing was changed\n"
    far = ask("calendar", "set", "business", "--include", "mon-thu", "--dry-run", "--days", "364")
    assert [len(change["removes"]) for change in far["changes"]] == [52]
    refused = evertick("calendar", "set", "business", "--include", "mon-thu", "--days", "364")
    assert (refused.exit_code, "--days needs --dry-run" in refused.stderr) == (2, True)
    assert ask("calendar", "show", "business")["include"] == ["mon-fri"]
    changed = ask("calendar", "set", "business", "--include", "mon-thu")
    assert [len(change["removes"]) for change in changed["changes"]] == [2]
    assert ask("calendar", "show", "business")["include"] == ["mon-thu"]


def test_a_calendar_comes_from_a_file(database, evertick, ask, tmp_path):
    path = tmp_path / "days.json"
    path.write_text(json.dumps({"exclude": ["sat", "sun"], "tz": "Europe/Berlin"}))
    evertick("calendar", "set", "days", "--file", str(path))
    assert ask("calendar", "show", "days")["tz"] == "Europe/Berlin"
    path.write_text("[1]")
    assert evertick("calendar", "set", "days", "--file", str(path)).exit_code == 2
    assert "cannot be read" in evertick("calendar", "set", "days", "--file", str(tmp_path / "no")).stderr
    path.write_text(json.dumps({"exclude": ["someday"]}))
    result = evertick("calendar", "set", "days", "--file", str(path))
    assert result.exit_code == 2
    assert "someday" in result.stderr


@pytest.mark.parametrize("args", [[], ["--tz", "UTC"], ["--file", "x.json", "--include", "mon"]])
def test_a_calendar_without_entries_or_from_two_places_is_refused(database, evertick, args):
    result = evertick("calendar", "set", "days", *args)
    assert (result.exit_code, result.stdout) == (2, "")


def test_a_used_calendar_is_not_removed_and_an_unused_one_needs_confirmation(business, evertick, ask):
    evertick("update", "print", "--calendar", "business")
    result = evertick("calendar", "remove", "business", "--yes")
    assert result.exit_code == 1
    assert "is used by 'print'" in result.stderr
    evertick("update", "print", "--when", "0 9 * * *")
    assert "--yes" in evertick("calendar", "remove", "business").stderr
    assert ask("calendar", "remove", "business", "--yes")["name"] == "business"
    assert ask("calendar", "list") == []


def test_public_holidays_become_a_calendar_of_dates(database, ask):
    made = ask("calendar", "import-holidays", "bavaria", "--country", "DE", "--subdivision", "BY", "--year", "2027")
    assert "2027-01-06" in made["exclude"]
    assert made["include"] is None
    opened = ask("calendar", "import-holidays", "off", "--country", "DE", "--year", "2027", "--on-holidays", "open")
    assert "2027-01-01" in opened["include"]


def test_without_the_holidays_package_the_error_shows_how_to_install_it(database, evertick, monkeypatch):
    monkeypatch.setitem(sys.modules, "holidays", None)
    result = evertick("calendar", "import-holidays", "bavaria", "--country", "DE")
    assert result.exit_code == 2
    assert "pip install 'evertick[holidays]'" in result.stderr


def test_a_calendar_is_read_from_a_regular_file_of_a_bounded_size(evertick, database, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "long.json").write_bytes(b" " * (4 * 1024 * 1024 + 1))
    for name, message in (
        ("pipe", "it is a named pipe, not a regular file"),
        ("long.json", "has more than 4194304 bytes"),
    ):
        result = evertick("calendar", "set", "x", "--file", str(tmp_path / name))
        assert result.exit_code != 0
        assert message in result.stderr
