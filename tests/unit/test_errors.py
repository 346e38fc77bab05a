"""Errors have fields, with which each front end words them."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import evertick.errors
from evertick import Every, Scheduler
from evertick.config.rule import RULE_OPTIONS, make_rule
from evertick.definition.options import PolicyOptions, make_definition
from evertick.definition.settings import make_settings
from evertick.definition.task import TaskOptions, make_work
from evertick.driver.spec import AbsentDriver
from evertick.errors import (
    CursorGone,
    EvertickError,
    InvalidConfiguration,
    InvalidDuration,
    InvalidSetting,
    InvalidSpec,
    SpecProblem,
)
from evertick.job.arguments import FreeArguments

COPIES = (copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error)))
KINDS = [
    kind
    for kind in vars(evertick.errors).values()
    if inspect.isclass(kind) and issubclass(kind, EvertickError) and "__init__" not in vars(kind)
]
OTHERS = [
    InvalidSpec((SpecProblem("cwd: it is missing", ("cwd",), "it is missing", "add it", ("cwd",)),)),
    InvalidConfiguration(("a.toml:1: x: wrong", "a.toml:2: y: wrong"), ("a warning",)),
    CursorGone("it is gone", oldest="42"),
]


def test_an_error_is_its_problem_and_its_fix() -> None:
    error = InvalidSetting("tz: 'Mars' is no zone", setting="tz", value="'Mars'", fix="pass 'UTC'")

    assert str(error) == "tz: 'Mars' is no zone; pass 'UTC'"
    assert (error.problem, error.setting, error.value, error.fix) == (
        "tz: 'Mars' is no zone",
        "tz",
        "'Mars'",
        "pass 'UTC'",
    )


def test_an_error_without_fields_is_its_message() -> None:
    error = InvalidSetting("it is wrong; mend it")

    assert str(error) == error.problem == "it is wrong; mend it"
    assert (error.setting, error.value, error.fix) == (None, None, None)


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("kind", [EvertickError, *KINDS])
def test_a_copy_keeps_the_fields(kind: type[EvertickError], copied: Callable[[Any], Any]) -> None:
    error = copied(kind("it is wrong", setting="tz", value="'Mars'", fix="mend it"))

    assert type(error) is kind
    assert str(error) == "it is wrong; mend it"
    assert (error.setting, error.value, error.fix) == ("tz", "'Mars'", "mend it")


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("error", OTHERS, ids=lambda error: type(error).__name__)
def test_a_copy_keeps_the_attributes_of_its_class(error: EvertickError, copied: Callable[[Any], Any]) -> None:
    same = copied(error)

    assert (str(same), same.args, vars(same)) == (str(error), error.args, vars(error))


def test_a_wrong_duration_names_its_setting_and_value() -> None:
    with pytest.raises(InvalidDuration) as wrong:
        Every(None)  # type: ignore[arg-type]

    assert (wrong.value.setting, wrong.value.value) == ("interval", "None")
    assert wrong.value.fix == "pass a timedelta, a number of seconds, or text like '90s' or '1h30m'"


# --- an error of an option names the option

WRONG = [object(), True, -1, -1.5, float("nan"), 10**30, "no such thing!", "a;b", "x" * 500, "\ud800", [1], {1: 2}]
SETTINGS = {
    name: each.default
    for name, each in inspect.signature(Scheduler).parameters.items()
    if each.kind is each.KEYWORD_ONLY and name != "node_name"
}
# Rules of a file, which are checked together with their options.
RIGHT = {"cron": "0 0 * * *", "every": "1h", "once": "2030-01-31T09:00:00Z"}
# Each alone, with its required options.
OPTIONS = [
    *((name, lambda given: make_settings(None, **{**SETTINGS, "node_name": "n", **given})) for name in SETTINGS),
    *((name, lambda given: make_definition("job", given)) for name in PolicyOptions.__annotations__),
    *((name, lambda given: _make_work(given)) for name in TaskOptions.__annotations__ if name != "process"),
    *(
        (name, lambda given, kind=kind: make_rule(kind, RIGHT[kind], given, {}, {}, "UTC"))
        for kind in RIGHT
        for name in RULE_OPTIONS
    ),
]


def _make_work(given: dict[str, Any]) -> object:
    beside = {"concurrency_key": {"concurrency": 1}, "rate_key": {"rate": "1/s"}}.get(next(iter(given)), {})
    return make_work("job", AbsentDriver("", "job"), FreeArguments("job"), beside | given)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "make"), OPTIONS)
def test_an_error_of_an_option_names_it(name: str, make: Callable[[dict[str, Any]], object]) -> None:
    for value in WRONG:
        try:
            make({name: value})
        except EvertickError as error:
            assert error.setting == name, error  # noqa: PT017 - some of the values fit
