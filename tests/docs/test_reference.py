"""What can be written, called, raised or read is documented on the page where one would look for it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator

import click
import pytest
from pages import ROOT, doc, text_of

import evertick
from evertick import (
    Cause,
    Context,
    Cron,
    Every,
    Exponential,
    Linear,
    Once,
    Reason,
    Run,
    Scheduler,
    State,
    Task,
    Verdict,
)
from evertick import errors as errors_module
from evertick.change import ChangedFire, ChangePlan, MovedFire, OptionChange
from evertick.cli import cli
from evertick.engine.engine import EngineHealth
from evertick.events import EVENTS, Event
from evertick.holiday import holiday_calendar, holiday_dates
from evertick.manage.backfill import BackfillStep
from evertick.manage.foresight import Planned
from evertick.model import Attempt, Gap, LogLine, Node, Phase, Schedule
from evertick.options import CronOptions, EveryOptions, OnceOptions, PolicyOptions, RuleOptions
from evertick.policy import Constant
from evertick.scheduler import Health
from evertick.serve import EXIT_RESTART, EXIT_STALLED
from evertick.settings import DATABASE_VARIABLE
from evertick.store.base import Store
from evertick.sync_scheduler import SyncScheduler
from evertick.task import TaskOptions
from evertick.why import Why

REFERENCE = sorted((ROOT / "docs/reference").glob("*.md"))


def missing(names: Iterable[str], page: str) -> list[str]:
    """Names that the page never mentions in code: between backticks or in an example."""
    text = doc(page)
    code = " ".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))
    return [name for name in names if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w])", code)]


def parameters(function: object) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in ("self", "options")]  # type: ignore[arg-type]


def public(kind: type) -> list[str]:
    """What the class and its parts in Evertick define."""
    own = [base for base in kind.__mro__ if base.__module__.startswith("evertick")]
    return [name for base in own for name in vars(base) if not name.startswith("_")]


def test_every_exported_name_is_in_the_list_of_names() -> None:
    assert not missing(evertick.__all__, "reference/names.md")


def test_every_exported_name_is_explained_on_a_page_of_its_own_subject() -> None:
    others = " ".join(text_of(page) for page in REFERENCE if page.name != "names.md")
    assert [name for name in evertick.__all__ if not re.search(rf"\b{name}\b", others)] == []


def test_every_setting_of_the_scheduler_is_documented() -> None:
    assert not missing([*parameters(Scheduler), DATABASE_VARIABLE], "reference/scheduler.md")


def test_every_default_of_a_setting_is_what_the_page_says() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", doc("reference/scheduler.md"), re.MULTILINE))
    for name, parameter in inspect.signature(Scheduler).parameters.items():
        if parameter.default is not None:
            default = list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
            assert rows[name].strip().strip("`") == repr(default).replace("'", '"'), name


def test_every_public_method_of_the_scheduler_is_documented_with_its_parameters() -> None:
    names = public(Scheduler)
    assert not missing(names, "reference/scheduler.md")
    for name in names:
        member = getattr(Scheduler, name)
        if inspect.isfunction(member):
            wanted = [each for each in parameters(member) if each not in ("function", "hook")]
            assert not missing(wanted, "reference/scheduler.md"), name


def test_the_plain_forms_are_those_that_the_page_names() -> None:
    assert not missing(public(SyncScheduler), "reference/scheduler.md")


def test_what_the_scheduler_answers_is_documented_field_by_field() -> None:
    for kind in (Health, EngineHealth, Planned, Why, BackfillStep, ChangePlan, ChangedFire, MovedFire, OptionChange):
        assert not missing(kind.__struct_fields__, "reference/scheduler.md"), kind


def test_every_parameter_of_the_holidays_is_documented() -> None:
    for function in (holiday_calendar, holiday_dates):
        assert not missing([function.__name__, *parameters(function)], "reference/schedules.md")


@pytest.mark.parametrize("options", [RuleOptions, PolicyOptions, CronOptions, EveryOptions, OnceOptions])
def test_every_option_of_a_schedule_is_documented(options: type) -> None:
    names = set(options.__annotations__) - set(TaskOptions.__annotations__)
    assert not missing(sorted(names), "reference/schedules.md")


@pytest.mark.parametrize("rule", [Cron, Every, Once, Scheduler.cron, Scheduler.every, Scheduler.once, Scheduler.add])
def test_every_parameter_of_a_rule_is_documented(rule: object) -> None:
    assert not missing(parameters(rule), "reference/schedules.md")


def test_every_option_of_a_task_is_documented() -> None:
    wanted = [*TaskOptions.__annotations__, *parameters(Task.options), *public(Task)]
    hidden = {"work", "encode_call"}  # for the engine
    assert not missing([name for name in wanted if name not in hidden], "reference/tasks.md")


@pytest.mark.parametrize("policy", [Constant, Linear, Exponential])
def test_every_parameter_of_a_retry_policy_is_documented(policy: type) -> None:
    assert not missing([policy.__name__, *parameters(policy)], "reference/tasks.md")


def test_every_member_of_the_context_is_documented() -> None:
    assert not missing(public(Context), "reference/tasks.md")


def test_every_error_is_documented() -> None:
    assert not missing(errors_module.__all__, "reference/errors.md")


@pytest.mark.parametrize("words", [State, Verdict, Cause, Reason])
def test_every_word_of_the_ledger_is_documented(words: type[State]) -> None:
    assert not missing([each.value for each in words], "reference/ledger.md")


@pytest.mark.parametrize("row", [Run, Gap, Schedule, Node, Attempt, LogLine, Phase])
def test_every_field_of_the_ledger_is_documented(row: type) -> None:
    fields = [*row.__struct_fields__, *(name for name in public(row) if isinstance(vars(row)[name], property))]
    assert not missing(fields, "reference/ledger.md")


def test_every_event_and_its_fields_are_documented() -> None:
    assert not missing([*EVENTS, *Event.__struct_fields__], "reference/events.md")


def test_every_intent_of_the_store_protocol_is_documented() -> None:
    assert not missing(public(Store), "how-to/write-a-store.md")


def every_command(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from every_command(below, (*path, name))
    else:
        yield " ".join(path), command


@pytest.mark.parametrize(("name", "command"), list(every_command(cli)), ids=lambda each: str(each))
def test_every_command_is_documented_with_its_arguments_and_flags(name: str, command: click.Command) -> None:
    sections = re.split(r"^## ", doc("reference/command-line.md"), flags=re.MULTILINE)
    own = [section for section in sections if section.startswith(f"{name}\n")]
    assert own, f"reference/command-line.md has no section {name!r}"
    flags = [flag for each in command.params if isinstance(each, click.Option) for flag in each.opts]
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    metavars = [each.make_metavar(click.Context(command)).strip("[].") for each in arguments]
    assert [each for each in [*flags, *metavars] if each not in own[0]] == []


def test_the_flags_of_all_commands_and_the_exit_codes_are_documented() -> None:
    page = doc("reference/command-line.md")
    flags = [flag for each in cli.params for flag in each.opts]
    assert [flag for flag in flags if flag not in page] == []
    assert not missing([str(EXIT_RESTART), str(EXIT_STALLED), DATABASE_VARIABLE], "reference/command-line.md")


def test_the_command_line_page_has_no_command_that_is_not_there() -> None:
    known = {name for name, _ in every_command(cli)}
    sections = re.findall(r"^## (.+)$", doc("reference/command-line.md"), re.MULTILINE)
    assert {name for name in sections if name[0].islower()} <= known
