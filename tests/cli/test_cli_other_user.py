"""Commands of a user without access to the directory of the ledger, like many monitors."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

from evertick.config.files import find_file
from other_user import closed_to_us

# Imported before the process changes its user.
_US = pwd.getpwuid(os.getuid()).pw_name

Call = Callable[..., Result]


@pytest.fixture
def closed(database: str, tmp_path: Path, evertick: Call) -> Iterator[Path]:
    # Lazy imports must be loaded while files can still be read.
    for command in ("status", "list", "doctor", "history"):
        evertick(command)
    with closed_to_us(tmp_path):
        yield tmp_path


def test_status_without_permission_is_unknown_and_names_the_user_to_run_as(closed: Path, evertick: Call) -> None:
    result = evertick("status")
    assert (result.exit_code, result.stderr) == (3, "")
    assert result.stdout.startswith("UNKNOWN: this user may not enter ")
    assert f"; run it as {_US}, the owner of that directory" in result.stdout
    assert json.loads(evertick("status", "--json").stdout)["exit_code"] == 3


@pytest.mark.parametrize("command", ["list", "history", "runs", "nodes"])
def test_commands_without_permission_name_the_user_to_run_as(closed: Path, evertick: Call, command: str) -> None:
    result = evertick(command)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: this user may not enter ")
    assert "unexpected" not in result.stderr


def test_the_doctor_without_permission_names_the_user_to_run_as(closed: Path, evertick: Call) -> None:
    result = evertick("doctor")
    assert result.exit_code == 1
    assert "this user may not enter" in result.output
    assert "unexpected" not in result.output


def test_an_unreadable_home_has_no_configuration_and_an_unreadable_system_directory_may_have_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evertick.config.files._SYSTEM", Path("/nothing/evertick"))
    home, work, system = tmp_path / "home", tmp_path / "work", tmp_path / "etc/evertick"
    for folder in (home, work, system):
        folder.mkdir(parents=True)
    monkeypatch.chdir(work)
    environ = {"HOME": str(home)}
    with closed_to_us(home):
        assert find_file(None, environ) is None
    monkeypatch.setattr("evertick.config.files._SYSTEM", system)
    with closed_to_us(system):
        assert find_file(None, environ) == system / "evertick.toml"
