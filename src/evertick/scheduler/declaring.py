"""Adds tasks and declarations to a scheduler, after all checks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

from evertick.definition.declarations import Declaration
from evertick.definition.options import TaskDecorator, blackout_given, make_definition, refuse_task_options
from evertick.definition.settings import check_key
from evertick.definition.task import Task, TaskOptions, check_kept_arguments, task_of_function, task_of_spec
from evertick.driver.spec import Spec
from evertick.errors import AlreadyDeclared, InvalidSetting, Refused
from evertick.plan.allowed_rules import check_rule
from evertick.scheduler.runtime import Runtime
from evertick.text.values import shown
from evertick.when import When

__all__ = ["check_enabled", "check_limits", "declaring", "function_task", "keep_task", "spec_task"]


def declaring(
    runtime: Runtime,
    rule: When,
    key: str | None,
    name: str | None,
    policies: dict[str, Any],
    tasks: dict[str, Any],
    place: str,
) -> TaskDecorator:
    """The decorator that declares a schedule of a function, or of a task."""

    def declare(function: Any) -> Any:
        # All checks come before the task is added, so that a rejected declaration adds none.
        if isinstance(function, Task):
            task = function
            refuse_task_options(tasks, task.name)
        else:
            task = function_task(runtime, function, name, cast("TaskOptions", tasks), place)
        definition = make_definition(task.name, policies)
        check_rule(definition, rule)
        check_kept_arguments(task, definition.args)
        chosen = check_key(key if key is not None else task.name)
        check_limits(runtime, chosen, rule)
        runtime.declarations.add(
            Declaration(
                key=chosen,
                rule=rule,
                definition=definition,
                place=place,
                tz=runtime.settings.tz,
                blackout=blackout_given(policies),
            )
        )
        keep_task(runtime, task, place)
        return task

    return cast("TaskDecorator", declare)


def function_task(
    runtime: Runtime, function: Callable[..., Any], name: str | None, options: TaskOptions, place: str
) -> Task[Any, Any]:
    if isinstance(function, Task):
        raise InvalidSetting(f"{function.name!r} is a task already")
    if isinstance(function, str):
        text = shown(function)
        raise InvalidSetting(f"{text} is not a function", value=text, fix=f"write @scheduler.task(name={text})")
    if inspect.iscoroutine(function):
        function.close()
        raise InvalidSetting(f"{function.__name__}() was called", fix=f"pass the function itself, {function.__name__}")
    if not callable(function) or isinstance(function, type):
        fix = "pass the function itself, without calling it"
        raise InvalidSetting(f"{shown(function)} is not a function", value=shown(function), fix=fix)
    chosen = name if name is not None else getattr(function, "__name__", None)
    if chosen is None or chosen == "<lambda>":
        raise InvalidSetting(f"{shown(function)} has no name", value=shown(function), fix="give it one with name=")
    _check_new(runtime, check_key(chosen, what="task"), place)
    task = task_of_function(runtime, chosen, function, options)
    check_enabled(runtime, task)
    return task


def spec_task(runtime: Runtime, name: str, spec: Spec, options: TaskOptions, place: str) -> Task[..., Any]:
    """A task of a specification, also if this node leaves it to others."""
    _check_new(runtime, check_key(name, what="task"), place)
    return task_of_spec(runtime, name, spec, options)


def keep_task(runtime: Runtime, task: Task[Any, Any], place: str) -> Task[Any, Any]:
    runtime.tasks[task.name] = task
    runtime.task_places.setdefault(task.name, place)
    return task


def _check_new(runtime: Runtime, name: str, place: str) -> None:
    if name in runtime.tasks:
        raise AlreadyDeclared(
            f"task {name!r} is defined twice: at {runtime.task_places[name]} and at {place}",
            value=repr(name),
            fix="give one of them another name=",
        )
    if runtime.is_started and not runtime.exchange.is_adding:
        raise Refused(f"task {name!r} is defined after the scheduler has started", fix="define it before")


def check_enabled(runtime: Runtime, task: Task[..., Any]) -> None:
    driver, drivers = task.work.driver.name, runtime.settings.drivers
    if driver not in drivers:
        raise InvalidSetting(
            f"task {task.name!r}: this scheduler does not run the driver {driver!r}",
            value=repr(driver),
            fix=f"enable it with Scheduler(drivers={[*drivers, driver]})",
        )


def check_limits(runtime: Runtime, key: str, rule: When) -> None:
    """Reject a rule that the limits forbid. If only the store has its calendar, the start checks it."""
    limits, now = runtime.settings.schedule_limits, runtime.clock.now_us()
    if not limits.are_none and (rule.calendar is not None or rule.bounds.calendar is None):
        limits.check(key, rule.bind(key=key, created=now, tz=runtime.settings.tz), now)
