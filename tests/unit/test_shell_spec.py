"""Specifications of shell jobs, and refusals with field, value and fix."""

from __future__ import annotations

from typing import Any

import pytest

from evertick import InvalidSetting, Scheduler, Secret, Shell
from evertick.driver.registry import spec_from


def test_a_string_runs_in_a_shell_and_a_list_without_one() -> None:
    assert Shell("a | b").words == ["/bin/sh", "-c", "a | b"]
    assert Shell("a | b", shell="/bin/bash").words == ["/bin/bash", "-c", "a | b"]
    assert Shell("a | b", shell=["/bin/bash", "-eu", "-c"]).words == ["/bin/bash", "-eu", "-c", "a | b"]
    assert Shell(["a", "|", "b"]).words == ["a", "|", "b"]


def test_a_file_can_have_the_command_alone_or_all_fields() -> None:
    assert spec_from("shell", "backup.sh") == Shell("backup.sh")
    assert spec_from("shell", ["backup", "--all"]) == Shell(["backup", "--all"])
    made = spec_from(
        "shell",
        {
            "command": "backup.sh",
            "env": {"LEVEL": "3", "PASSWORD": {"secret": "DB"}},
            "stdin": {"secret": "KEY"},
            "success_codes": [0, 2],
            "kill_after": "1m",
            "memory_limit": "1GiB",
            "user": "backup",
        },
    )
    assert isinstance(made, Shell)
    assert (made.env["PASSWORD"], made.stdin, made.user) == (Secret("DB"), Secret("KEY"), "backup")
    assert (made.kill_after_us, made.memory_bytes) == (60_000_000, 2**30)
    assert list(made.success_codes) == [0, 2]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"command": ""}, "command: '' is empty; write a value, or remove it"),
        ({"command": []}, "command: a list of 0 words must have 1 to 1000"),
        ({"command": ["", "x"]}, "command: '' is empty"),
        ({"command": "a\0b"}, "command: it contains a zero character"),
        ({"command": "x" * 200_000}, "command: it has more than 102400 bytes; write it to a file"),
        ({"command": "x \ud800"}, "command: 'x \\ud800' contains an unpaired surrogate; replace the character"),
        ({"stdin": "\ud800"}, "stdin: '\\ud800' contains an unpaired surrogate"),
        ({"command": 7}, "command: 7 is neither text nor a list; write it in quotes, or in brackets, like ["),
        ({"command": ["ls", 7]}, "command.1: 7 is not text; write it in quotes"),
        (
            {"command": ["ls"], "shell": "/bin/bash"},
            "shell: '/bin/bash' is not used for a command that is a list",
        ),
        ({"shell": ""}, "shell: '' is empty"),
        ({"cwd": "data"}, "cwd: 'data' is not an absolute path; write the full path"),
        ({"cwd": "~ada/data"}, "cwd: '~ada/data' is not an absolute path; write the full path, or '~/…'"),
        ({"env": {"1A": "x"}}, "env: '1A' is not a valid variable name; use letters, digits and '_', and no digit"),
        ({"env": {"A": "x\0"}}, "env: A: it contains a zero character"),
        ({"env": {"A": Secret("../x")}}, "env: A: '../x' is not a valid name of a secret; use up to 100 letters"),
        ({"env": {"EVERTICK_TASK": "x"}}, "env: 'EVERTICK_TASK': the prefix 'EVERTICK_' is reserved for Evertick"),
        ({"env": {"A": 7}}, "env.A: 7 is neither text nor a secret; write it in quotes, or as the name of a secret"),
        ({"stdin": Secret("a b")}, "stdin: 'a b' is not a valid name of a secret"),
        ({"stdin": "x" * 1_100_000}, "stdin: it has more than 1048576 bytes; read it from a file"),
        ({"user": ""}, "user: '' is empty"),
        ({"user": -1}, "user: -1 is not a user id"),
        ({"success_codes": [0, 256]}, "success_codes: 256 is not an exit code; write numbers from 0 to 255"),
        ({"skip_codes": [0]}, "skip_codes: 0 is also in success_codes; keep it in one of them"),
        ({"retry_codes": [7], "skip_codes": [7]}, "retry_codes: 7 is also in skip_codes"),
        ({"kill_after": "soon"}, "kill_after: 'soon'"),
        ({"kill_after": "1h"}, "kill_after: '1h' is more than 5m"),
        ({"memory_limit": "1MiB"}, "memory_limit: '1MiB' is less than 16MiB, too little to start a program"),
        ({"memory_limit": "much"}, "memory_limit: 'much' is not a size"),
        ({"nice": 20}, "nice: 20 must be from -20 to 19; 19 is the lowest priority"),
    ],
)
def test_an_invalid_specification_is_refused_at_the_declaration(fields: dict[str, Any], expected: str) -> None:
    scheduler = Scheduler("sqlite://", drivers=["shell"])
    with pytest.raises(InvalidSetting) as refused:
        scheduler.job("backup", Shell(**{"command": "true", **fields}))
    assert str(refused.value).startswith(f"task 'backup': shell: {expected}")
    assert "backup" not in scheduler.runtime.tasks


def test_an_unknown_field_of_a_file_gets_a_suggestion() -> None:
    with pytest.raises(InvalidSetting, match="shell: no such field 'comand'; it is called 'command'"):
        spec_from("shell", {"comand": "x"})
    with pytest.raises(InvalidSetting, match="shell: command is missing; add it"):
        spec_from("shell", {"cwd": "/"})


def test_a_password_in_its_own_field_is_not_shown() -> None:
    assert repr(Shell("x", env={"A": Secret("DB")})).count("DB") == 1
