"""`evertick --version`: one short line for programs, then the versions of all parts."""

from __future__ import annotations

import json
import platform
import re
import shutil
import sqlite3
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import evertick as package
from evertick import __version__
from evertick.cli.command import version as command
from evertick.cli.command.version import PACKAGES
from evertick.version import COMMIT_FILE


def test_the_first_line_is_the_version_and_the_commit(evertick):
    first = evertick("--version").stdout.splitlines()[0]
    assert re.fullmatch(rf"evertick {re.escape(__version__)}( \(commit [0-9a-f]{{7,}}(-dirty)?\))?", first)


def test_the_next_lines_are_the_versions_of_python_sqlite_and_the_packages(evertick, monkeypatch):
    monkeypatch.setattr(command, "PACKAGES", (*PACKAGES, "no-such-package"))
    lines = evertick("--version").stdout.splitlines()[1:]
    assert lines[:2] == [f"Python {platform.python_version()}", f"SQLite {sqlite3.sqlite_version}"]
    assert f"asyncpg {version('asyncpg')}" in lines
    assert lines[-1] == "no-such-package not installed"


@pytest.mark.parametrize("flags", [["--version", "--json"], ["--json", "--version"]])
def test_the_versions_as_json(evertick, flags, monkeypatch):
    monkeypatch.setattr(command, "commit", lambda: None)
    answer = json.loads(evertick(*flags).stdout)
    assert (answer["version"], answer["commit"]) == (__version__, None)
    assert list(answer) == ["version", "commit", "python", "sqlite", "packages"]
    assert list(answer["packages"]) == list(PACKAGES)


def test_an_unknown_commit_is_left_out(evertick, monkeypatch):
    monkeypatch.setattr(command, "commit", lambda: None)
    assert evertick("--version").stdout.splitlines()[0] == f"evertick {__version__}"


def test_json_without_version_belongs_to_a_command(evertick):
    for flags in (["--json"], ["--json", "list"]):
        result = evertick(*flags)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "write it after the command, like `evertick list --json …`" in result.stderr


# --- the commit ---


def commit_of(root: Path, **environment: str) -> str | None:
    """The answer of a copy of the module, in a process of its own."""
    code = f"import runpy; print(runpy.run_path({str(root / 'src/evertick/version.py')!r})['commit']())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stderr == ""
    return None if done.stdout == "None\n" else done.stdout.strip()


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
    done = subprocess.run(["git", "-C", root, *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    (root / "src/evertick").mkdir(parents=True)
    shutil.copy(Path(package.__file__).parent / "version.py", root / "src/evertick")
    return root


def test_a_checkout_answers_with_its_commit_and_says_when_it_was_changed(checkout):
    path = "/usr/bin:/bin"
    git(checkout, "init", "--quiet")
    assert commit_of(checkout, PATH=path) is None
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message", "First")
    head = git(checkout, "rev-parse", "--short=7", "HEAD")
    assert commit_of(checkout, PATH=path) == head
    # A hook of git calls programs with the repository in the environment.
    assert commit_of(checkout, PATH=path, GIT_DIR="/nowhere") == head
    git(checkout, "tag", "v1")
    assert commit_of(checkout, PATH=path) == head
    with (checkout / "src/evertick/version.py").open("a") as file:
        file.write("# changed\n")
    assert commit_of(checkout, PATH=path) == f"{head}-dirty"


def test_without_git_or_without_a_repository_the_commit_is_unknown(checkout):
    assert commit_of(checkout, PATH="/usr/bin:/bin") is None
    (checkout / ".git").mkdir()
    assert commit_of(checkout, PATH="/usr/bin:/bin") is None
    assert commit_of(checkout, PATH="/nowhere") is None


def test_a_built_package_answers_with_the_commit_that_was_written_into_it(checkout):
    for written, told in (("abc1234\n", "abc1234"), ("\n", None), ("\udcff", None)):
        (checkout / "src/evertick" / COMMIT_FILE).write_text(written, errors="surrogateescape")
        assert commit_of(checkout, PATH="/usr/bin:/bin") == told


def test_an_installed_package_does_not_answer_with_the_commit_of_the_project_around_it(checkout):
    git(checkout, "init", "--quiet")
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message", "First")
    (checkout / "src").rename(checkout / "site-packages")
    code = f"import runpy; print(runpy.run_path({str(checkout / 'site-packages/evertick/version.py')!r})['commit']())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "None\n"
