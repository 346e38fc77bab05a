"""Unknown variables with Evertick's prefix are reported; those of other programs or named in a file are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from evertick.config.load import Configuration

Load = Callable[..., Configuration]
NO_KEY = "no key of the configuration has this variable"


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("EVERTICK_DATABSE", "EVERTICK_DATABASE"),
        ("EVERTICK_DATABASES", "EVERTICK_DATABASE"),
        ("EVERTICK_LOGLEVEL", "EVERTICK_LOG_LEVEL"),
        ("EVERTICK_NODENAME", "EVERTICK_NODE_NAME"),
        ("EVERTICK_REDDIS", "EVERTICK_REDIS"),
        ("EVERTICK_NAT", "EVERTICK_NATS"),
        ("EVERTICK_NODE_LEAS", "EVERTICK_NODE_LEASE"),
    ],
)
def test_a_misspelled_variable_is_refused_with_a_suggestion(
    problems: Callable[..., list[str]], variable: str, meant: str
) -> None:
    assert problems("", {variable: "x"}) == [f"{variable}: {NO_KEY}; it is called '{meant}'"]


def test_an_unknown_variable_with_the_prefix_is_a_warning(load: Load) -> None:
    assert load("", {"EVERTICK_IMAGE": "x", "OTHER": "x"}).warnings == (
        f"EVERTICK_IMAGE: {NO_KEY}, and nothing reads it; give it another name, if it is yours",
    )
    assert load("", {"EVERTICK_TZ": "x"}).warnings == (
        f"EVERTICK_TZ: {NO_KEY}, and nothing reads it; is EVERTICK_NODE_TZ meant?",
    )


@pytest.mark.parametrize("variable", ["EVERTICK_DATABSE", "EVERTICK_NODE_PART", "EVERTICK_IMAGE"])
@pytest.mark.parametrize(
    "text",
    [
        "[node]\nname = '${%s}'\n",
        "[jobs.a]\nevery = '1h'\necho = { text = 'x', headers = { A = 'b ${%s:-c}' } }\n",
        "[jobs.a]\nevery = '1h'\nshell = 'echo ${%s}'\n",
        "[jobs.a]\nevery = '1h'\nshell = ['echo', '${%s}']\n",
    ],
)
def test_a_variable_that_a_file_refers_to_gets_no_warning(load: Load, text: str, variable: str) -> None:
    assert load(text % variable, {variable: "x"}).warnings == ()


def test_a_variable_that_a_file_of_jobs_refers_to_gets_no_warning(load: Load, write: Callable[..., object]) -> None:
    write("[jobs.a]\nevery = '1h'\necho = '${EVERTICK_DATABSE}'\n", "jobs.d/a.toml")
    assert load("", {"EVERTICK_DATABSE": "x"}).warnings == ()


def test_variables_of_other_parts_of_evertick_get_no_warning(load: Load) -> None:
    names = ("TRACEBACK", "SECRET_DB", "DEFAULTS", "KEPT", "RUN_ID", "SCHEDULE", "TASK", "APP", "ARGS", "FENCE")
    assert load("", {f"EVERTICK_{name}": "1" for name in names}).warnings == ()
