"""Operations: each is a method of the scheduler and of its sync form, with one signature and one docstring."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from type_checker import assert_wrong_as_marked

from evertick import InvalidArguments, InvalidInput, InvalidKey, InvalidSetting, NotFound, Scheduler, operations
from evertick.cli.database import Ledger
from evertick.operations.context import Actor, Context, ContextSource
from evertick.operations.health import store_time
from evertick.operations.runs import runs_with_prefix
from evertick.scheduler.operation import call
from evertick.scheduler.sync import SyncScheduler
from evertick.store.base import Store

REFERENCE = Path(__file__).parents[2] / "docs/reference/scheduler.md"
# Operations of tasks (`task.enqueue`), of all declarations together (`evertick apply`, a reload), of all apps of a
# ledger (`evertick db repair-clock`), and of lists.
ELSEWHERE = {
    *("enqueue", "enqueue_many", "enqueue_encoded", "plan_declared", "apply_declared", "repair_clock"),
    *(
        "timeline",
        "planned_fires",
        "first_fires",
        "expected_of",
        "rule_zone",
        "calendar_zones",
        "is_declared_otherwise",
    ),
    *("runs_with_prefix", "messages_with_prefix", "schedules_with_prefix", "similar_keys", "namesake"),
    *("channels", "channels_without_sender", "feed_state", "store_time", "app_status", "snapshot", "findings"),
}


def of_modules(first: type) -> dict[str, Callable[..., Any]]:
    """The public functions of operations/ with this first parameter."""
    names = [each.name for each in pkgutil.iter_modules(operations.__path__)]
    modules = [importlib.import_module(f"evertick.operations.{name}") for name in names if name != "context"]
    found = [
        function
        for module in modules
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
    ]
    return {
        function.__name__: function
        for function in found
        if next(iter(function.__annotations__.values()), "") == first.__name__
    }


OPERATIONS = of_modules(Context)
LAZY = of_modules(ContextSource)


def without_first(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def test_operations_are_found() -> None:
    assert len(OPERATIONS) > 40
    assert set(LAZY) == {"backfill", "feed"}


@pytest.mark.parametrize("name", sorted({*OPERATIONS} - ELSEWHERE))
def test_an_operation_is_async_has_both_forms_and_is_in_the_reference(name: str) -> None:
    if not inspect.iscoroutinefunction(OPERATIONS[name]):
        pytest.fail(f"{name} takes a context and is not async; begin its name with an underscore")
    for kind in (Scheduler, SyncScheduler):
        assert without_first(getattr(kind, name)) == without_first(OPERATIONS[name]), kind
        assert getattr(kind, name).__doc__ == OPERATIONS[name].__doc__
    assert re.search(rf"[`.]{name}\b", REFERENCE.read_text())


def test_the_operations_without_a_method_exist_and_have_none() -> None:
    assert {name for name in ELSEWHERE if name not in OPERATIONS or hasattr(Scheduler, name)} == set()


def test_an_operation_takes_a_context_and_no_store() -> None:
    assert not of_modules(Store)


def test_a_backfill_has_the_same_arguments_in_both_forms() -> None:
    forms = [without_first(each).parameters for each in (Scheduler.backfill, SyncScheduler.backfill, LAZY["backfill"])]
    assert forms[0] == forms[1] == forms[2]
    assert without_first(Scheduler.feed) == without_first(LAZY["feed"])


def test_every_method_of_the_sync_form_exists_on_the_scheduler() -> None:
    names = {name for name in vars(SyncScheduler) if not name.startswith("_")}
    assert names - {"close", "backfill"} <= set(OPERATIONS)
    assert all(hasattr(Scheduler, name) for name in names)


def _parts(target: ast.AST) -> Iterator[ast.AST]:
    """The objects behind an assigned attribute or item: of `a.b["c"].d`, `a.b["c"]`, `a.b` and `a`."""
    while isinstance(target, ast.Attribute | ast.Subscript):
        target = target.value
        yield target


def _assigned(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            return [part for each in targets for part in (each.elts if isinstance(each, ast.Tuple) else [each])]
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            return [target]
        case _:
            return []


def test_only_the_scheduler_assigns_attributes_of_a_runtime() -> None:
    package = Path(operations.__path__[0]).parent
    assigns = [
        f"{file.relative_to(package)}:{node.lineno}: {ast.unparse(target)}"
        for file in sorted(package.rglob("*.py"))
        if "scheduler" not in file.relative_to(package).parts
        for node in ast.walk(ast.parse(file.read_text()))
        for target in _assigned(node)
        if any(getattr(part, "attr", getattr(part, "id", "")) in ("runtime", "_runtime") for part in _parts(target))
    ]
    assert not assigns


async def test_a_key_is_given_by_position_or_by_name() -> None:
    scheduler = Scheduler("sqlite://", concurrency=0)
    assert (await scheduler.add("one", when="every 5m", task="job")).key == "one"
    assert (await scheduler.add(key="two", when="every 5m", task="job")).key == "two"
    assert (await scheduler.update(key="one", when="every 6m")).key == "one"
    assert {each.key for each in await scheduler.schedules()} == {"one", "two"}
    await scheduler.close()


def test_a_key_is_given_by_position_or_by_name_in_the_sync_form() -> None:
    scheduler = Scheduler("sqlite://", concurrency=0)
    assert scheduler.sync.add("one", when="every 5m", task="job").key == "one"
    assert scheduler.sync.add(key="two", when="every 5m", task="job").key == "two"
    with pytest.raises(TypeError, match="add"):
        scheduler.sync.add("three", "every 5m", "job")  # type: ignore[misc]
    scheduler.sync.close()


def test_wrong_arguments_are_refused_before_the_store_is_opened(tmp_path: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path}/evertick.db")
    with pytest.raises(TypeError, match=r"pause.*key"):
        scheduler.sync.pause()  # type: ignore[call-arg]
    assert not list(tmp_path.iterdir())


WRONG_VALUES: list[tuple[str, tuple[object, ...], dict[str, object]]] = [
    ("add", ("k",), {"when": "nonsense", "task": "job"}),
    ("update", ("k",), {"when": "nonsense"}),
    ("pause", (7,), {}),
    ("pause", ("k",), {"note": 7}),
    ("pause", ("k",), {"until": "tomorrow"}),
    ("schedules", (), {"limit": 0}),
    ("skip_next", ("",), {}),
    ("move", ("k", "today"), {"to": "tomorrow"}),
    ("pause_many", (), {"labels": {"a": "b"}, "note": 7}),
    ("runs", (), {"limit": "five"}),
    ("runs", (), {"states": "done"}),
    ("history", (), {"schedule_key": 7}),
    ("rerun", ("x",), {"overlap": "sometimes"}),
    ("rerun_many", (), {"verdicts": ["nice"]}),
    ("get_run", (7,), {}),
    ("why_run", (7,), {}),
    ("messages", (), {"states": ["lost"]}),
    ("get_message", (7,), {}),
    ("set_calendar", ("business",), {}),
    ("calendar", ("a;b",), {}),
    ("preview", (), {"count": -1}),
    ("forecast", (), {"days": 0}),
    ("forecast", (), {"keys": "report"}),
    ("forecast", (), {"tz": "Nowhere/Atlantis"}),
    ("preview_change", ("k",), {"days": 0}),
    ("keep_feed", ("soon",), {}),
    ("ha", (), {"kind": "node"}),
    ("apps", (), {"limit": 0}),
]


@pytest.mark.parametrize(("name", "args", "options"), WRONG_VALUES, ids=str)
async def test_wrong_values_are_refused_before_the_store_is_opened(
    name: str, args: tuple[object, ...], options: dict[str, object], tmp_path: Path
) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path}/evertick.db")
    for form in (scheduler, scheduler.sync):
        with pytest.raises(InvalidInput):
            getattr(form, name)(*args, **options)
    assert not list(tmp_path.iterdir())
    in_memory = Scheduler("sqlite://", concurrency=0)
    with pytest.raises(InvalidInput):
        await OPERATIONS[name](await in_memory.runtime.context(), *args, **options)
    await in_memory.close()


async def test_an_operation_without_a_method_is_called_with_the_scheduler(tmp_path: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path}/evertick.db", concurrency=0)
    with pytest.raises(TypeError, match="runs_with_prefix"):
        call(scheduler, runs_with_prefix)  # type: ignore[call-arg]
    assert not list(tmp_path.iterdir())
    added = await scheduler.add("one", when="every 5m", task="job")
    assert await call(scheduler, store_time) >= added.created_at
    run = await scheduler.trigger("one")
    assert [each.id for each in await call(scheduler, runs_with_prefix, run.id[:8])] == [run.id]
    assert (await scheduler.why_run(run)).now == (await scheduler.why_run(run.id)).now
    assert (await scheduler.why_task("job")).live == {"waiting": 1}
    assert await scheduler.apps() == ["default"]
    await scheduler.close()


async def test_a_not_found_error_has_the_missing_name_in_its_fields() -> None:
    scheduler = Scheduler("sqlite://", concurrency=0)
    for ask, setting in [
        (scheduler.schedule, "key"),
        (scheduler.why, "key"),
        (scheduler.remove, "key"),
        (scheduler.get_run, "run"),
        (scheduler.cancel, "run"),
        (scheduler.get_message, "message"),
        (scheduler.calendar, "calendar"),
    ]:
        with pytest.raises(NotFound) as missing:
            await ask("nope")
        assert (missing.value.setting, missing.value.value) == (setting, "nope")
    await scheduler.close()


async def test_the_forecast_has_collisions_suggestions_and_omissions() -> None:
    scheduler, read = Scheduler("sqlite://", concurrency=0), list[int]()
    for key in ("one", "two"):
        await scheduler.add(key, when="0 9 * * *", task="job", labels={"team": "ops"})
    await scheduler.add("three", when="0 10 * * *", task="job")
    found = await scheduler.forecast(days=2, labels={"team": "ops"}, tz="Asia/Tokyo", on_read=read.append)
    assert (found.schedules, read, found.unreadable) == (2, [1, 2], {})
    assert found.collisions[0].keys == ("one", "two")
    assert [each.key for each in found.suggestions] == ["two"]
    assert str(found.since.tzinfo) == "Asia/Tokyo"
    assert (await scheduler.forecast(days=1, keys=["three"])).schedules == 1
    with pytest.raises(NotFound, match="nope"):
        await scheduler.forecast(keys=["nope"])
    await scheduler.close()


async def test_an_operation_can_be_called_with_its_own_context() -> None:
    scheduler = Scheduler("sqlite://", concurrency=0)
    context = await scheduler.runtime.context()
    assert context.actor == Actor(kind="code")
    await operations.schedules.add(context, "one", when="every 5m", task="job")
    assert (await operations.schedules.pause(context, "one", note="by hand")).is_paused
    with pytest.raises(InvalidInput, match="note"):
        await operations.schedules.pause(context, "one", note=7)  # type: ignore[arg-type]
    await scheduler.close()


@pytest.fixture
async def enqueueing() -> AsyncIterator[tuple[Scheduler, Context]]:
    """A scheduler with the task `send_mail`, and its context."""
    scheduler = Scheduler("sqlite://", concurrency=0)

    @scheduler.task
    def send_mail(to: str, copies: int = 1) -> None: ...

    yield scheduler, await scheduler.runtime.context()
    await scheduler.close()


async def test_a_task_is_enqueued_by_its_name_as_by_its_method(enqueueing: tuple[Scheduler, Context]) -> None:
    scheduler, context = enqueueing
    labels = {"team": "shop"}
    by_name = await operations.tasks.enqueue(
        context, "send_mail", {"to": "ada"}, delay="1h", priority=3, unique="a", unique_for="1d", labels=labels
    )
    task = scheduler.runtime.tasks["send_mail"]
    options = {"delay": "1h", "priority": 3, "unique": "b", "unique_for": "1d", "labels": labels}
    by_method = await task.options(**options).enqueue(to="ada")
    for name in ("task", "args", "priority", "queue", "labels", "cause", "state", "verdict"):
        assert getattr(by_name, name) == getattr(by_method, name), name
    again = await operations.tasks.enqueue(context, "send_mail", {"to": "eve"}, unique="a")
    assert (again.id, again.is_new) == (by_name.id, False)


async def test_arguments_must_fit_a_locally_known_task(enqueueing: tuple[Scheduler, Context]) -> None:
    _, context = enqueueing
    with pytest.raises(InvalidArguments, match=r"send_mail\(to: str, copies: int = 1\).*'to'"):
        await operations.tasks.enqueue(context, "send_mail")
    with pytest.raises(InvalidArguments, match="copies"):
        await operations.tasks.enqueue_many(context, "send_mail", [{"to": "a"}, {"to": "a", "copies": "two"}])
    assert await operations.runs.runs(context) == []


async def test_a_task_of_other_nodes_takes_any_json_like_arguments(enqueueing: tuple[Scheduler, Context]) -> None:
    _, context = enqueueing
    at = datetime(2030, 1, 31, tzinfo=UTC)
    runs = await operations.tasks.enqueue_many(context, "elsewhere", [{"a": [1]}, {}], at=at, queue="slow")
    assert [(run.task, run.args, run.due_at, run.queue) for run in runs] == [
        ("elsewhere", {"a": [1]}, at, "slow"),
        ("elsewhere", {}, at, "slow"),
    ]
    with pytest.raises(InvalidArguments, match=r"elsewhere.*JSON-like"):
        await operations.tasks.enqueue(context, "elsewhere", {"a": object()})
    with pytest.raises(InvalidKey, match="task: 'a;b'"):
        await operations.tasks.enqueue(context, "a;b")


async def test_options_of_an_enqueue_are_checked(enqueueing: tuple[Scheduler, Context]) -> None:
    _, context = enqueueing
    with pytest.raises(InvalidSetting, match="priority: 5000"):
        await operations.tasks.enqueue(context, "elsewhere", priority=5000)
    with pytest.raises(InvalidSetting, match="delay and at"):
        await operations.tasks.enqueue(context, "elsewhere", delay="1m", at=datetime.now(UTC))
    with pytest.raises(TypeError, match="prio"):
        await operations.tasks.enqueue(context, "elsewhere", prio=5)  # type: ignore[call-arg]


async def test_a_task_refuses_arguments_before_the_store_is_opened(tmp_path: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path}/evertick.db")
    task = scheduler.task(lambda to: None, name="send_mail")
    for refused in (task.enqueue(too="ada"), task.enqueue_many([{"too": "ada"}]), task.options().enqueue()):
        with pytest.raises(InvalidArguments, match="send_mail"):
            await refused
    assert not list(tmp_path.iterdir())


async def test_a_task_is_enqueued_by_its_name_in_a_transaction_of_the_caller(tmp_path: Path) -> None:
    path = tmp_path / "evertick.db"
    scheduler = Scheduler(f"sqlite:///{path}", concurrency=0)
    context = await scheduler.runtime.context()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        await operations.tasks.enqueue(context, "elsewhere", connection=connection)
        connection.rollback()
        connection.execute("BEGIN IMMEDIATE")
        kept = await operations.tasks.enqueue(context, "elsewhere", connection=connection)
        connection.commit()
    assert [run.id for run in await scheduler.runs()] == [kept.id]
    await scheduler.close()


async def test_an_operation_of_the_command_line_is_asked_for_by_a_user() -> None:
    scheduler = Ledger(url="sqlite://", app="shop").scheduler()
    actor = scheduler.runtime.actor
    assert (actor.kind, actor.origin) == ("user", "cli")
    assert actor.name


PROGRAM = """
from datetime import datetime
from evertick import Run, Schedule, Scheduler

scheduler = Scheduler("sqlite://")

async def use(run: Run) -> None:
    paused: Schedule = await scheduler.pause("k", note="why", until=datetime.now())
    await scheduler.add("k", when="every 5m", task="job", overlap="queue", labels={"team": "shop"})
    again: list[Run] = await scheduler.rerun_many(task="job", limit=5)
    first: bool = await scheduler.cancel(run)
    step = await scheduler.backfill("k", datetime.now(), datetime.now(), overlap="allow")
    async for event in scheduler.feed(kinds=["fired"]):
        event.cursor.upper()
    await scheduler.pause("k", notes="why")  # wrong
    await scheduler.pause(7)  # wrong
    await scheduler.add("k", when="every 5m", task="job", overlap="sometimes")  # wrong
    number: int = await scheduler.pause("k")  # wrong

def plainly() -> None:
    paused: Schedule = scheduler.sync.pause("k", note="why")
    made: int = scheduler.sync.backfill("k", datetime.now(), datetime.now(), on_step=print).made
    scheduler.sync.pause("k", notes="why")  # wrong
    scheduler.sync.runs(limit="five")  # wrong
    number: int = scheduler.sync.pause("k")  # wrong
"""


def test_a_type_checker_knows_every_argument_of_an_operation(tmp_path: Path) -> None:
    assert_wrong_as_marked(PROGRAM, tmp_path)
