"""The commands of `run`: their checks, what they install, and the line about skipped tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import long_tests

ROOT = Path(__file__).parents[2]
# A stand-in for a tool of the virtual environment that records its calls.
TOOL = """#!/bin/sh
echo "$(basename "$0") $*" >> "$LOG"
case "$*" in "-m pytest "*) exit "${PYTEST_STATUS:-0}" ;; esac
"""
APT = """#!/bin/sh
echo "apt-get RUNLEVEL=${RUNLEVEL:-} $*" >> "$LOG"
[ "$1" = install ] || exit 0
[ -z "${APT_FAILS:-}" ] || exit 100
cp "$0" "$(dirname "$0")/absent"
"""


class Copy:
    """The script in its own folder, on a machine where only `absent` is missing."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.path = folder, folder / "log", folder / "path"
        script = (ROOT / "run").read_text()
        listed = re.search(r'^programs="\n.*?^"$', script, re.MULTILINE | re.DOTALL)
        assert listed is not None
        own = 'programs="\nsh      dash            any shell\nabsent  absent-package  the tests of the absent\n"'
        (folder / "run").write_text(script.replace(listed[0], own))
        (folder / "tests").mkdir()
        shutil.copy(ROOT / "tests/long_tests.py", folder / "tests")
        for name in ("python", "ruff", "mypy", "lint-imports", "mkdocs"):
            self.put(folder / "venv/bin" / name, TOOL)
        self.put(self.path / "apt-get", APT)

    def put(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def run(self, *words: str, user: int = 1000, **variables: str) -> subprocess.CompletedProcess[str]:
        self.put(self.path / "id", f"#!/bin/sh\necho {user}\n")
        environment = {
            "PATH": f"{self.path}:/usr/bin:/bin",
            "PYTHON": sys.executable,
            "VENV": "venv",
            "LOG": str(self.log),
        }
        return subprocess.run(
            ["sh", "run", *words], cwd=self.folder, env=environment | variables, capture_output=True, text=True
        )

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def test_without_a_command_the_script_prints_all_commands() -> None:
    done = subprocess.run(["sh", "run"], cwd=ROOT, capture_output=True, text=True)
    commands = re.findall(r"^([a-z]+)\)$", (ROOT / "run").read_text(), re.MULTILINE)
    assert done.returncode == 2
    assert re.findall(r"^  sh run ([a-z]+)", done.stderr, re.MULTILINE) == commands
    assert done.stderr.splitlines()[-1].startswith("PYTHON chooses the interpreter")


def test_check_starts_lint_types_contracts_and_unit_tests(copy: Copy) -> None:
    done = copy.run("check")
    assert done.returncode == 0, done.stderr
    [pip, *calls] = copy.calls()
    assert pip.startswith("python -m pip install")
    assert sorted(call.strip() for call in calls) == [
        "lint-imports --no-logo",
        "mypy",
        "python -m pytest -n 2 --dist worksteal tests/unit",
        "ruff check",
        "ruff format --check",
    ]


@pytest.mark.parametrize("tool", ["ruff", "lint-imports", "mkdocs"])
def test_no_test_starts_after_a_failed_check(copy: Copy, tool: str) -> None:
    copy.put(copy.folder / "venv/bin" / tool, "#!/bin/sh\nexit 4\n")
    assert copy.run("test").returncode == 4
    assert not any("pytest" in call for call in copy.calls())


@pytest.mark.parametrize("command", ["check", "test"])
def test_a_type_error_fails_the_command_at_its_end(copy: Copy, command: str) -> None:
    copy.put(copy.folder / "venv/bin/mypy", "#!/bin/sh\nexit 4\n")
    assert copy.run(command).returncode == 4
    assert any("pytest" in call for call in copy.calls())


def test_without_root_the_last_line_names_the_skipped_tests_and_the_command(copy: Copy) -> None:
    done = copy.run("test")
    assert done.returncode == 0, done.stderr
    assert not any(call.startswith("apt-get") for call in copy.calls())
    [line] = [line for line in done.stdout.splitlines() if "skipped" in line]
    assert line == done.stdout.splitlines()[-1]
    assert line == (
        "run: skipped: the tests of the absent. To run them: "
        "sudo apt-get install -y --no-install-recommends absent-package"
    )


def test_the_line_about_skipped_tests_also_follows_failed_tests_and_keeps_their_exit_code(copy: Copy) -> None:
    done = copy.run("test", PYTEST_STATUS="3")
    assert done.returncode == 3
    assert done.stdout.splitlines()[-1].startswith("run: skipped: ")


def test_root_gets_the_missing_programs_installed_without_starting_services(copy: Copy) -> None:
    done = copy.run("test", user=0)
    assert done.returncode == 0, done.stderr
    installed = [call for call in copy.calls() if call.startswith("apt-get") and " install " in call]
    assert installed == ["apt-get RUNLEVEL=1 install -y -qq --no-install-recommends absent-package"]
    assert "skipped" not in done.stdout


def test_programs_that_root_cannot_install_are_skipped_too(copy: Copy) -> None:
    done = copy.run("test", user=0, APT_FAILS="1")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "run: absent-package could not be installed\n"
    assert done.stdout.splitlines()[-1].startswith("run: skipped: the tests of the absent.")


def test_the_ci_runs_the_test_command_and_nothing_else(copy: Copy) -> None:
    shutil.copytree(ROOT / ".ci", copy.folder / ".ci")
    copy.put(copy.folder / "run", 'echo "run $*" > "$LOG"\n')
    environment = {**os.environ, "LOG": str(copy.log)}
    subprocess.run(["sh", copy.folder / ".ci/run"], cwd="/", env=environment, check=True)
    assert copy.calls() == ["run test"]


def test_the_groups_of_long_tests_are_listed_without_installing_anything() -> None:
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "VENV": "/nowhere"}
    done = subprocess.run(["sh", "run", "long", "--list"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(long_tests.GROUPS)


def test_every_group_of_long_tests_has_a_test_and_every_long_test_a_group() -> None:
    texts = [path.read_text() for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    marks = [mark for text in texts for mark in re.findall(r"pytest\.mark\.long\b(?:\(\"(\w*)\"\))?", text)]
    assert {*marks} == {*long_tests.GROUPS}


def test_long_tests_run_by_group_and_extra_arguments_go_to_pytest(copy: Copy) -> None:
    copy.put(
        copy.folder / "venv/bin/python", f'#!/bin/sh\ncase "$1" in -m) exit 0 ;; esac\nexec {sys.executable} "$@"\n'
    )
    copy.put(copy.folder / "pytest.py", "import sys; print(' '.join(sys.argv[1:]))")
    done = copy.run("long", "storm", "size", "--", "-k", "one", PYTHONPATH=str(copy.folder))
    assert done.returncode == 0, done.stderr
    begun = [line for line in done.stdout.splitlines() if "-m long" in line]
    assert begun == [f"-n 2 --dist worksteal -m long --group {group} -k one" for group in ("storm", "size")]


def test_an_unknown_group_is_refused_with_the_known_groups(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        long_tests.main(["strom"])
    assert f"no group 'strom'; there are {', '.join(long_tests.GROUPS)}" in capsys.readouterr().err


def test_groups_share_the_time_and_none_starts_after_its_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now, ends = 1_000.0, []

    def run(command: list[str], *, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        nonlocal now
        ends.append(float(env[long_tests.UNTIL_VARIABLE]) - now)
        now += 50.0
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(long_tests.time, "time", lambda: now)
    monkeypatch.setattr(long_tests.subprocess, "run", run)
    monkeypatch.setattr(long_tests, "GROUPS", dict.fromkeys("abc", ""))
    assert long_tests.main(["--minutes", "1.5"]) == 1
    assert ends == [30.0, 20.0]
    assert "not begun: c" in capsys.readouterr().out


def test_a_storm_lasts_until_the_time_of_its_group_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (long_tests.seconds_for(90.0), long_tests.is_time_over()) == (90.0, False)
    monkeypatch.setattr(long_tests.time, "time", lambda: 1_000.0)
    monkeypatch.setenv(long_tests.UNTIL_VARIABLE, "1600")
    assert (long_tests.seconds_for(90.0), long_tests.is_time_over()) == (600.0, False)
    monkeypatch.setenv(long_tests.UNTIL_VARIABLE, "1000")
    assert (long_tests.seconds_for(90.0), long_tests.is_time_over()) == (30.0, True)
