"""Operations: each is a method of the scheduler and of its plain form, with one signature and one description."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mypy.api as mypy_api
import pytest

from evertick import InvalidInput, NotFound, Scheduler, operations
from evertick.cli.database import Ledger
from evertick.operations.context import Actor, Context, ContextSource
from evertick.operations.health import store_time
from evertick.operations.runs import runs_with_prefix
from evertick.scheduler.operation import call
from evertick.scheduler.sync import SyncScheduler
from evertick.store.base import Store

REFERENCE = Path(__file__).parents[2] / "docs/reference/scheduler.md"
# Of tasks (`task.enqueue`), of all declarations together (`evertick apply`, a reload), and what only front ends show.
ELSEWHERE = {
    *("enqueue", "plan_declared", "apply_declared"),
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


async def test_a_thing_that_is_not_found_is_named_by_fields() -> None:
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


async def test_the_forecast_tells_what_collides_what_would_spread_it_and_what_it_leaves_out() -> None:
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
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    out, err, _ = mypy_api.run(["--strict", "--cache-dir", str(tmp_path / "cache"), str(program)])
    assert not err
    wrong = [number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")]
    found = sorted({int(line.split(":")[1]) for line in out.splitlines() if ": error:" in line})
    assert found == wrong, out
