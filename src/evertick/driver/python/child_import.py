"""Importing a task's function in a child process, and what its module must not do meanwhile.

The program itself (`__main__`) is loaded in a child under the name that `multiprocessing` uses: code under its main
guard does not run there, and pools that a job makes for itself work.

A child imports the module of its function, with all that the module does at import. A scheduler started there would be
a node that starts children, which import the module; a task enqueued there would be enqueued again with every run.
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

    # Imported by this name; for a script, the name that its file is loaded under.
    module: str
    qualname: str
    script: str | None = None
    # Whether it is the program itself: classes of it are called `__main__` on the node.
    is_main: bool = False


def location_of(function: Callable[..., Any], task: str) -> FunctionLocation:
    """Raises InvalidSetting where no other process could find the function."""
    if os.name == "nt":
        raise InvalidSetting(f"task {task!r}: process: child processes need a POSIX system; leave it out on Windows")
    qualname, module = getattr(function, "__qualname__", None), getattr(function, "__module__", None)
    if inspect.ismethod(function) or isinstance(function, functools.partial) or not qualname or not module:
        raise InvalidSetting(
            f"task {task!r}: process: {function!r} cannot be found by another process; pass a function that is "
            "defined at the top of a module"
        )
    if "<" in qualname:
        raise InvalidSetting(
            f"task {task!r}: process: {qualname!r} exists only inside of a function, where another process cannot find "
            "it; define it at the top of a module (a decorator around it needs functools.wraps)"
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
            f"task {task!r}: process: {qualname!r} was typed in and is in no file, so another process cannot find it; "
            "put it into a module and import it"
        )
    return FunctionLocation(module=_MAIN_IN_CHILD, qualname=qualname, script=os.path.abspath(file), is_main=True)


def import_function(location: FunctionLocation) -> Any:
    """In a child: the function at the location, or the task that was made of it."""
    found: Any = _load(location)
    for name in location.qualname.split("."):
        if not hasattr(found, name):
            raise NotFound(
                f"{location.script or location.module} has no {location.qualname!r} when it is imported; define it at "
                "the top of the module, not under a main guard, and leave its name to it"
            )
        found = getattr(found, name)
    return found


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
    """The class and all above it, named as the node knows them."""
    names = (
        f"{_MAIN}:{each.__qualname__}" if location.is_main and each.__module__ == location.module else type_name(each)
        for each in kind.__mro__
    )
    return frozenset(names)


# The task that the module is being imported for, and the one that this process is there for.
_importing_for: str | None = None
_is_child = False


@contextmanager
def importing_for(task: str) -> Iterator[None]:
    """While the module of a task's function is imported in a child."""
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
            f"a child process imports this module to find the function of task {_importing_for!r}, and the module "
            "starts a scheduler while it is imported; put that under `if __name__ == '__main__':`"
        )


def check_may_open_store(url: str) -> None:
    """Refuse a store in a child whose writes would be lost, or would repeat without end."""
    if _importing_for is not None:
        raise Refused(
            f"a child process imports this module to find the function of task {_importing_for!r}, and the module "
            "uses the store while it is imported; put that under `if __name__ == '__main__':`, or into a function"
        )
    if _is_child and url.partition("?")[0] in ("sqlite://", "sqlite://:memory:"):
        raise Refused(
            "this job runs in a child process, and its scheduler keeps its ledger in the memory of another; "
            "keep it in a file to use it from here"
        )
