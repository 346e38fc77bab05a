"""What can be written, called, raised or read is documented on the page where one would look for it."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import typing
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import cache
from types import ModuleType

import click
import msgspec
import pytest
from pages import ROOT, built, doc, text_of

import evertick
import evertick.testing
import evertick.when
import evertick.when.public_holidays
from evertick import (
    Calendar,
    Cause,
    Context,
    Cron,
    Every,
    Exponential,
    Http,
    HttpBasic,
    HttpExpect,
    Linear,
    Message,
    MessageState,
    Nats,
    NatsConnection,
    Once,
    Reason,
    Redis,
    RedisConnection,
    Run,
    Scheduler,
    Shell,
    State,
    Task,
    Verdict,
)
from evertick import errors as errors_module
from evertick.cli import cli
from evertick.clock import Clock
from evertick.definition.options import CronOptions, EveryOptions, OnceOptions, PolicyOptions, RuleOptions
from evertick.definition.senders import SenderOptions
from evertick.definition.settings import DATABASE_VARIABLE, Settings
from evertick.definition.task import Enqueuer, SyncEnqueuer, TaskOptions
from evertick.driver.base import RETRY, Dispatch, DispatchingDriver, Driver, Received, ReportSource, Sender
from evertick.driver.python.function import Threads
from evertick.driver.python.process import Children, Process
from evertick.driver.secret import Secret
from evertick.driver.spec import DriverParts, Spec
from evertick.engine.engine import EngineHealth
from evertick.engine.loop import LoopHealth
from evertick.explain.availability import HaLine, HaNode, HaTable
from evertick.explain.run import WhyRun, WhyTask
from evertick.explain.schedule import Why
from evertick.job.transaction import Transaction
from evertick.model import (
    Attempt,
    Dispatched,
    DispatchedTo,
    Duty,
    Gap,
    LogLine,
    Node,
    OccurrenceEdit,
    Phase,
    Report,
    Schedule,
    Tick,
)
from evertick.model.duty import DutyContext
from evertick.model.feed import FEED_KINDS, FeedEvent, FeedPage
from evertick.model.hooks import EVENTS, Event
from evertick.model.retry import Constant
from evertick.operations.backfills import Backfill, BackfillStep
from evertick.operations.preview import AppForecast, Planned
from evertick.plan.change_preview import ChangedFire, ChangePlan, MovedFire, OptionChange
from evertick.plan.forecast import Collision, Day, Minute
from evertick.plan.spread import Suggestion
from evertick.scheduler.process import EXIT_RESTART, EXIT_STALLED
from evertick.scheduler.scheduler import Health
from evertick.scheduler.sync import SyncScheduler
from evertick.store.base import Store
from evertick.testing import Kit, SettableClock, SyncKit, virtual_time, virtual_time_sync
from evertick.when import Bounds, When
from evertick.when.public_holidays import holiday_calendar, holiday_dates

# What users may import from.
PUBLIC_MODULES = (evertick, evertick.when, evertick.testing, evertick.when.public_holidays)
# The page of every class that they meet: one of these modules has it, or a method or field of such a class.
PAGES: dict[str, tuple[type, ...]] = {
    "reference/scheduler.md": (
        *(Scheduler, SyncScheduler, Health, EngineHealth, LoopHealth, Planned, Why, Backfill, BackfillStep),
        *(Duty, DutyContext),
        *(WhyRun, WhyTask, AppForecast, Day, Minute, Collision, Suggestion),
        *(ChangePlan, ChangedFire, MovedFire, OptionChange),
    ),
    "reference/schedules.md": (When, Cron, Every, Once, Bounds, Calendar),
    "reference/tasks.md": (
        *(Task, Enqueuer, SyncEnqueuer, Context, Transaction, Constant, Linear, Exponential, Process),
    ),
    "reference/drivers.md": (
        *(Spec, DriverParts, Driver, Secret, Shell),
        *(Dispatch, DispatchingDriver, Received, ReportSource, Report, Sender),
    ),
    "reference/queues.md": (Redis, RedisConnection, Nats, NatsConnection),
    "reference/http.md": (Http, HttpBasic, HttpExpect),
    "reference/ledger.md": (
        Run,
        Dispatched,
        DispatchedTo,
        Gap,
        Schedule,
        Node,
        Attempt,
        LogLine,
        Phase,
        OccurrenceEdit,
        Tick,
    ),
    "reference/ha.md": (HaTable, HaLine, HaNode),
    "reference/outbox.md": (Message,),
    "reference/events.md": (Event, FeedEvent, FeedPage),
    "reference/testing.md": (Kit, SyncKit, SettableClock),
}
# What drivers are lent, and the checked settings, which have the names of the arguments: the pages say what may be done
# with them, and the rest of them is Evertick's own.
LENT = (Clock, Threads, Children, Settings)

REFERENCE = sorted((ROOT / "docs/reference").glob("*.md"))


def missing(names: Iterable[str], page: str) -> list[str]:
    """Names that the page never mentions in code: between backticks or in an example."""
    text = doc(page)
    code = " ".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))
    return [name for name in names if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w])", code)]


def parameters(function: object) -> list[str]:
    found = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    # What is left over is refused, and has no name of its own.
    return [each.name for each in found if each.name not in ("self", "context", "source", "options", "unknown")]


def public(kind: type) -> list[str]:
    """What the class and its parts in Evertick define."""
    own = [base for base in kind.__mro__ if base.__module__.startswith("evertick")]
    return [name for base in own for name in vars(base) if not name.startswith("_")]


def members(kind: type) -> Iterator[object]:
    """The functions behind the public methods and properties of a class."""
    for name in public(kind):
        found = inspect.getattr_static(kind, name)
        found = found.__func__ if isinstance(found, classmethod | staticmethod) else found
        found = found.fget if isinstance(found, property) else found
        if inspect.isfunction(found):
            yield found


def mentioned(subject: object) -> Iterator[type]:
    """The classes in the annotations of a function, or of the fields of a struct."""
    for name, hint in typing.get_type_hints(subject, globalns=_names_for(subject)).items():
        if not name.startswith("_"):
            yield from _classes_of(hint)


def _names_for(subject: typing.Any) -> dict[str, object]:
    """Those of its module, and for a class those that the classes above it are written with."""
    above = [base for base in getattr(subject, "__mro__", ()) if base.__module__.startswith("evertick")]
    return {name: value for base in [*above[::-1], subject] for name, value in _names_in(base.__module__).items()}


@cache
def _names_in(name: str) -> dict[str, object]:
    """The names of a module, with what it imports for the type checker alone."""
    module = sys.modules[name]
    known = dict(vars(module))
    for block in ast.parse(inspect.getsource(module)).body:
        for line in block.body if isinstance(block, ast.If) else ():
            if isinstance(line, ast.ImportFrom) and line.module is not None:
                home = importlib.import_module(line.module)
                known |= {each.name: getattr(home, each.name) for each in line.names}
    return known


def _classes_of(hint: object) -> Iterator[type]:
    parts = hint if isinstance(hint, list | tuple) else (typing.get_origin(hint), *typing.get_args(hint))
    if inspect.isclass(hint):
        yield hint
    for part in parts:
        if part is not None:
            yield from _classes_of(part)


def met_by_users() -> set[type]:
    """Every class of Evertick that users can come across, going from the public modules on."""
    found = set[type]()
    todo: list[object] = [getattr(module, name) for module in PUBLIC_MODULES for name in module.__all__]
    while todo:
        subject = todo.pop()
        if inspect.isfunction(subject):
            todo += mentioned(subject)
        elif inspect.isclass(subject) and subject.__module__.startswith("evertick") and subject not in found:
            if subject in LENT:
                continue
            found.add(subject)
            todo += [each for member in members(subject) for each in mentioned(member)]
            todo += mentioned(subject) if issubclass(subject, msgspec.Struct) else ()
    return found


def test_every_class_that_users_meet_has_a_page() -> None:
    # Errors, words and options have tests of their own below; a protocol that a decorator answers has no members.
    elsewhere = [
        kind
        for kind in met_by_users()
        if issubclass(kind, Exception | Enum) or typing.is_typeddict(kind) or not public(kind)
    ]
    documented = {kind for kinds in PAGES.values() for kind in kinds}
    assert met_by_users() - set(elsewhere) - documented == set()
    assert {Backfill, Attempt, LogLine, MovedFire, Why, Health, Bounds} <= met_by_users()


@pytest.mark.parametrize(
    ("page", "kind"), [(page, kind) for page, kinds in PAGES.items() for kind in kinds], ids=lambda each: str(each)
)
def test_every_public_member_of_every_class_that_users_meet_is_documented(page: str, kind: type) -> None:
    fields = kind.__struct_fields__ if issubclass(kind, msgspec.Struct) else ()
    assert not missing([*public(kind), *(field for field in fields if not field.startswith("_"))], page)


@pytest.mark.parametrize("kind", [When, Cron, Every, Once, Calendar, Kit, SyncKit, SettableClock])
def test_every_parameter_of_a_public_method_is_documented(kind: type) -> None:
    [page] = [page for page, kinds in PAGES.items() if kind in kinds]
    # A kit is made by `virtual_time`, the others by their names.
    made = [] if kind in (Kit, SyncKit) else [kind]
    for member in [*made, *members(kind)]:
        assert not missing([each for each in parameters(member) if each not in ("self", "cls")], page), member


def test_a_member_that_no_page_names_would_be_noticed() -> None:
    assert missing(["next_after", "next_but_one_after"], "reference/schedules.md") == ["next_but_one_after"]
    assert "to_the_end" in public(Backfill)
    assert Backfill in set(mentioned(Scheduler.backfill))


@pytest.mark.parametrize(
    ("module", "page"),
    [
        (evertick.when, "reference/schedules.md"),
        (evertick.testing, "reference/testing.md"),
        (evertick.when.public_holidays, "reference/schedules.md"),
    ],
)
def test_every_name_of_a_public_module_is_documented_with_its_parameters(module: ModuleType, page: str) -> None:
    assert not missing(module.__all__, page)
    for name in module.__all__:
        if inspect.isfunction(found := getattr(module, name)):
            assert not missing(parameters(found), page), name


def test_every_default_of_virtual_time_is_what_the_page_says() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`|]+)` \|", doc("reference/testing.md"), re.MULTILINE))
    for function in (virtual_time, virtual_time_sync):
        options = [each for each in inspect.signature(function).parameters.values() if each.name != "scheduler"]
        assert {each.name: repr(each.default).replace("'", '"') for each in options} == rows


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
        if parameter.default is not None and parameter.kind is not inspect.Parameter.VAR_KEYWORD:
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
    assert not missing(wanted, "reference/tasks.md")


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


def test_every_option_of_a_sender_and_every_state_of_a_message_is_documented() -> None:
    assert not missing([*SenderOptions.__annotations__, *MessageState], "reference/outbox.md")
    assert f"`{RETRY!r}`".replace("'", '"') in doc("reference/outbox.md")


@pytest.mark.parametrize("row", [Run, Gap, Schedule, Node, Attempt, LogLine, Phase])
def test_every_field_of_the_ledger_is_documented(row: type) -> None:
    fields = [*row.__struct_fields__, *(name for name in public(row) if isinstance(vars(row)[name], property))]
    assert not missing(fields, "reference/ledger.md")


def test_every_event_and_its_fields_are_documented() -> None:
    assert not missing([*EVENTS, *Event.__struct_fields__], "reference/events.md")
    assert not missing([*FEED_KINDS, *FeedEvent.__struct_fields__], "reference/events.md")


def test_every_intent_of_the_store_protocol_is_documented() -> None:
    assert not missing(public(Store), "how-to/write-a-store.md")


def test_every_check_of_the_doctor_is_in_its_table_and_nothing_else() -> None:
    """Wherever the code says which check found something, also as one of two."""
    said: set[str] = set()
    for path in [*(ROOT / "src/evertick/doctor").glob("*.py"), ROOT / "src/evertick/daemon/pending_reload.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "check":
                branches = [node.value.body, node.value.orelse] if isinstance(node.value, ast.IfExp) else [node.value]
                said |= {str(each.value) for each in branches if isinstance(each, ast.Constant)}
    section = re.split(r"^## doctor$", doc("reference/command-line.md"), flags=re.MULTILINE)[1].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `") and "--" not in line]
    assert said >= {"empty_app", "left_behind", "overdue", "stalled_node"}
    assert said == {check for row in rows for check in re.findall(r"`(\w+)`", row)}


def every_command(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from every_command(below, (*path, name))
    else:
        yield " ".join(path), command


def section_of(command: str) -> str:
    sections = re.split(r"^## ", built("reference/command-line.md"), flags=re.MULTILINE)
    own = [section for section in sections if section.startswith(f"{command}\n")]
    assert own, f"reference/command-line.md has no section {command!r}"
    return own[0]


@pytest.mark.parametrize(("name", "command"), list(every_command(cli)), ids=lambda each: str(each))
def test_every_command_is_documented_with_its_arguments_and_flags(name: str, command: click.Command) -> None:
    section = section_of(name)
    flags = [flag for each in command.params if isinstance(each, click.Option) for flag in each.opts]
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    metavars = [each.make_metavar(click.Context(command)).strip("[].") for each in arguments]
    assert [each for each in [*flags, *metavars] if each not in section] == []
    assert re.search(rf"^(?:\$ |.* \| )?evertick {name}\b", section, re.MULTILINE), "it has no example"


def test_the_options_that_most_commands_take_are_described_at_the_head_of_the_page() -> None:
    head = doc("reference/command-line.md").partition("## Common options")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(--\w+)", head, re.MULTILINE) == ["--database", "--config", "--app", "--json"]


def test_the_flags_of_all_commands_and_the_exit_codes_are_documented() -> None:
    page = doc("reference/command-line.md")
    flags = [flag for each in cli.params for flag in each.opts]
    assert [flag for flag in flags if flag not in page] == []
    assert not missing([str(EXIT_RESTART), str(EXIT_STALLED), DATABASE_VARIABLE], "reference/command-line.md")


def test_the_command_line_page_has_no_command_that_is_not_there() -> None:
    known = {name for name, _ in every_command(cli)}
    sections = re.findall(r"^## (.+)$", doc("reference/command-line.md"), re.MULTILINE)
    assert {name for name in sections if name[0].islower()} <= known
