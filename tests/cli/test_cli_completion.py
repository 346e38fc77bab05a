"""Completion, as shells call it."""

from __future__ import annotations

import subprocess

import pytest


@pytest.fixture
def complete(start, database):
    def ask(line: str, **environment: str) -> list[str]:
        words = line.split(" ")
        variables = {
            "EVERTICK_DATABASE": database,
            "_EVERTICK_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
            **environment,
        }
        output, errors = start(env=variables).communicate()
        assert errors == ""
        return [row.partition(",")[2] for row in output.splitlines() if row]

    return ask


def test_commands_and_flags_are_completed(complete):
    assert complete("evertick his") == ["history"]
    assert complete("evertick db ") == ["backup", "check", "migrate", "repair-clock", "status", "vacuum"]
    assert "--follow" in complete("evertick logs --f")


def test_keys_of_schedules_are_completed(complete):
    assert complete("evertick show ") == ["print", "quick", "report"]
    assert complete("evertick why re") == ["report"]
    assert complete("evertick pause report") == ["report"]
    assert complete("evertick trigger nope") == []


def test_ids_of_runs_are_completed(complete, ask):
    ids = {row["id"] for row in ask("history", "--limit", "100") if row["kind"] == "run"}
    assert set(complete("evertick logs ")) == ids
    one = sorted(ids)[0]
    assert complete(f"evertick cancel {one[:20]}") == [
        each for each in complete("evertick logs ") if each[:20] == one[:20]
    ]


def test_completion_uses_the_database_and_app_of_the_command_line(complete, database):
    assert complete(f"evertick show --database {database} re", EVERTICK_DATABASE="sqlite:///nowhere.db") == ["report"]
    assert complete("evertick show --app other re") == []


def test_completion_without_a_usable_database_is_silently_empty(complete, tmp_path):
    assert complete("evertick show re", EVERTICK_DATABASE="sqlite:///nowhere.db") == []
    assert complete("evertick show re", EVERTICK_DATABASE="nonsense") == []
    (tmp_path / "bad.db").write_bytes(b"no database at all" * 100)
    assert complete("evertick show re", EVERTICK_DATABASE=f"sqlite:///{tmp_path}/bad.db") == []


@pytest.mark.parametrize(
    ("shell", "mark"),
    [("bash", "complete -o nosort -F"), ("zsh", "#compdef evertick"), ("fish", "complete --no-files")],
)
def test_the_script_of_every_shell_is_printed(evertick, ask, shell, mark):
    script = evertick("completion", shell).stdout
    assert mark in script
    assert "_EVERTICK_COMPLETE" in script
    assert ask("completion", shell) == {"shell": shell, "script": script.removesuffix("\n")}


def test_bash_can_read_its_script(evertick):
    script = evertick("completion", "bash").stdout
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
