"""Operations: each is a method of the scheduler and of its plain form, with one signature and one description."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from type_checker import assert_wrong_as_marked

from evertick import InvalidInput, Scheduler, operations
from evertick.cli.database import Ledger
from evertick.operations.context import Actor, Context, ContextSource
from evertick.scheduler.sync import SyncScheduler
from evertick.store.base import Store

REFERENCE = Path(__file__).parents[2] / "docs/reference/scheduler.md"
# Of tasks (`task.enqueue`), of all declarations together (`evertick apply`, a reload), and of listings.
ELSEWHERE = {"enqueue", "plan_declared", "apply_declared", "timeline", "planned_fires", "first_fires", "expected_of"}


def of_modules(first: type) -> dict[str, Callable[..., Any]]:
    """The public functions of operations/ that take this first."""
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


def test_there_are_operations() -> None:
    assert len(OPERATIONS) > 40
    assert set(LAZY) == {"backfill", "feed"}


@pytest.mark.parametrize("name", sorted({*OPERATIONS} - ELSEWHERE))
def test_an_operation_is_async_and_has_both_forms_and_a_place_in_the_reference(name: str) -> None:
    if not inspect.iscoroutinefunction(OPERATIONS[name]):
        pytest.fail(f"{name} takes a context and is not async; begin its name with an underscore")
    for kind in (Scheduler, SyncScheduler):
        assert without_first(getattr(kind, name)) == without_first(OPERATIONS[name]), kind
        assert getattr(kind, name).__doc__ == OPERATIONS[name].__doc__
    assert f"`{name}" in REFERENCE.read_text() or f".{name}(" in REFERENCE.read_text()


def test_an_operation_takes_a_context_and_no_store() -> None:
    # Repairing a clock goes through all apps of a ledger, and has no scheduler of one.
    assert set(of_modules(Store)) == {"repair_clock"}


def test_a_backfill_has_the_same_arguments_in_both_forms() -> None:
    forms = [without_first(each).parameters for each in (Scheduler.backfill, SyncScheduler.backfill, LAZY["backfill"])]
    assert forms[0] == forms[1] == forms[2]
    assert without_first(Scheduler.feed) == without_first(LAZY["feed"])


def test_no_method_of_the_plain_form_is_missing_on_the_scheduler() -> None:
    names = {name for name in vars(SyncScheduler) if not name.startswith("_")}
    assert names - {"close", "backfill"} <= set(OPERATIONS)
    assert all(hasattr(Scheduler, name) for name in names)


async def test_a_key_is_given_by_position_or_by_name() -> None:
    scheduler = Scheduler("sqlite://", concurrency=0)
    assert (await scheduler.add("one", when="every 5m", task="job")).key == "one"
    assert (await scheduler.add(key="two", when="every 5m", task="job")).key == "two"
    assert (await scheduler.update(key="one", when="every 6m")).key == "one"
    assert {each.key for each in await scheduler.schedules()} == {"one", "two"}
    await scheduler.close()


def test_a_key_is_given_by_position_or_by_name_in_plain_code() -> None:
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


async def test_an_operation_takes_a_context_of_its_own() -> None:
    scheduler = Scheduler("sqlite://", concurrency=0)
    context = await scheduler.runtime.context()
    assert context.actor == Actor(kind="code")
    await operations.schedules.add(context, "one", when="every 5m", task="job")
    assert (await operations.schedules.pause(context, "one", note="by hand")).is_paused
    with pytest.raises(InvalidInput, match="note"):
        await operations.schedules.pause(context, "one", note=7)  # type: ignore[arg-type]
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
