"""Imports a task's function in a child process, and checks what its module does during the import.

A child loads the program itself (`__main__`) under the name that `multiprocessing` uses: code under its main guard does
not run, and process pools that a job creates work.

A scheduler started at import would be a node that starts children, which import the module again. A task enqueued at
import would be enqueued with every run. Both are refused.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import msgspec

from evertick.driver.base import type_name
from evertick.errors import InvalidSetting, NotFound, Refused
from evertick.text.values import shown

__all__ = [
    "FunctionLocation",
    "check_may_open_store",
    "check_may_start",
    "import_function",
    "importing_for",
    "location_of",
    "type_names",
]

_MAIN, _MAIN_IN_CHILD = "__main__", "__mp_main__"


class FunctionLocation(msgspec.Struct, frozen=True, kw_only=True):
    """The module of a function, and its name in there."""

    # The name to import, or the name under which a script is loaded.
    module: str
    qualname: str
    script: str | None = None
    # Whether it is the program itself, whose classes belong to the module `__main__` on the node.
    is_main: bool = False


def location_of(function: Callable[..., Any], task: str) -> FunctionLocation:
    """Raises InvalidSetting if another process cannot import the function."""
    if os.name == "nt":
        raise InvalidSetting(
            f"task {task!r}: process: child processes need a POSIX system",
            setting="process",
            fix="leave it out on Windows",
        )
    qualname, module = getattr(function, "__qualname__", None), getattr(function, "__module__", None)
    if inspect.ismethod(function) or isinstance(function, functools.partial) or not qualname or not module:
        raise InvalidSetting(
            f"task {task!r}: process: another process cannot import {shown(function)}",
            setting="process",
            value=shown(function),
            fix="pass a function that is defined at the top of a module",
        )
    if "<" in qualname:
        raise InvalidSetting(
            f"task {task!r}: process: another process cannot import {qualname!r}, which is defined inside a function",
            setting="process",
            value=repr(qualname),
            fix="define it at the top of a module (a decorator around it needs functools.wraps)",
        )
    return _location_in_main(qualname, task) if module == _MAIN else FunctionLocation(module=module, qualname=qualname)


def _location_in_main(qualname: str, task: str) -> FunctionLocation:
    main = sys.modules[_MAIN]
    spec: importlib.machinery.ModuleSpec | None = getattr(main, "__spec__", None)
    if spec is not None:  # python -m
        return FunctionLocation(module=spec.name, qualname=qualname, is_main=True)
    file = getattr(main, "__file__", None)
    if file is None or not os.path.isfile(file):
        raise InvalidSetting(
            f"task {task!r}: process: another process cannot import {qualname!r}, which is not in a file",
            setting="process",
            value=repr(qualname),
            fix="move it to a module and import it",
        )
    return FunctionLocation(module=_MAIN_IN_CHILD, qualname=qualname, script=os.path.abspath(file), is_main=True)


def import_function(location: FunctionLocation) -> Any:
    """In a child: the function at the location, or the task that a decorator made of it."""
    target: Any = _load(location)
    for name in location.qualname.split("."):
        if not hasattr(target, name):
            raise NotFound(
                f"{location.script or location.module} has no {location.qualname!r} when it is imported",
                fix="define it at the top of the module, not under a main guard, and do not rebind its name",
            )
        target = getattr(target, name)
    return target


def _load(location: FunctionLocation) -> ModuleType:
    if location.script is None:
        return importlib.import_module(location.module)
    loader = importlib.machinery.SourceFileLoader(location.module, location.script)
    spec = importlib.util.spec_from_file_location(location.module, location.script, loader=loader)
    assert spec is not None, "a loader is given"
    module = importlib.util.module_from_spec(spec)
    sys.modules[location.module] = sys.modules[_MAIN] = module
    loader.exec_module(module)
    return module


def type_names(kind: type, location: FunctionLocation) -> frozenset[str]:
    """The names of the class and its base classes, as the node knows them."""
    names = (
        f"{_MAIN}:{each.__qualname__}" if location.is_main and each.__module__ == location.module else type_name(each)
        for each in kind.__mro__
    )
    return frozenset(names)


# The task whose module is being imported.
_importing_for: str | None = None
_is_child = False


@contextmanager
def importing_for(task: str) -> Iterator[None]:
    """Marks the import of a task's module in a child."""
    global _importing_for, _is_child
    _importing_for, _is_child = task, True
    try:
        yield
    finally:
        _importing_for = None


def check_may_start() -> None:
    """Refuse to start a scheduler while a module is imported in a child."""
    if _importing_for is not None:
        raise Refused(
            f"this module starts a scheduler while a child process imports it for task {_importing_for!r}",
            fix="start it under `if __name__ == '__main__':`",
        )


def check_may_open_store(url: str) -> None:
    """Refuse a store in a child if its writes would be lost, or repeated with every run."""
    if _importing_for is not None:
        raise Refused(
            f"this module uses the store while a child process imports it for task {_importing_for!r}",
            fix="do that under `if __name__ == '__main__':`, or in a function",
        )
    if _is_child and url.partition("?")[0] in ("sqlite://", "sqlite://:memory:"):
        raise Refused(
            "this job runs in a child process, and the ledger is in the memory of its node",
            setting="url",
            value=url,
            fix="use a SQLite file",
        )
