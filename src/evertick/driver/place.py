"""Where a function is found by another process: its module and its name in there.

The program itself (`__main__`) is loaded in a child under another name, so that what it keeps under its main guard does
not run there. That name is the one that `multiprocessing` uses: pools that a job makes for itself then work as well.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import msgspec

from evertick.errors import InvalidSetting, NotFound

__all__ = ["Place", "find", "place_of", "type_name", "type_names"]

_MAIN, _MAIN_IN_CHILD = "__main__", "__mp_main__"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A function's whereabouts."""

    # What to import; for a script, what its file is loaded as.
    module: str
    qualname: str
    script: str | None = None
    # Whether it is the program itself: classes of it are called `__main__` on the node.
    is_main: bool = False


def place_of(function: Callable[..., Any], task: str) -> Place:
    """Where the function of a task is. Refused where no other process could find it."""
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
    return _place_in_main(qualname, task) if module == _MAIN else Place(module=module, qualname=qualname)


def _place_in_main(qualname: str, task: str) -> Place:
    main = sys.modules[_MAIN]
    spec: importlib.machinery.ModuleSpec | None = getattr(main, "__spec__", None)
    if spec is not None:  # python -m
        return Place(module=spec.name, qualname=qualname, is_main=True)
    file = getattr(main, "__file__", None)
    if file is None or not os.path.isfile(file):
        raise InvalidSetting(
            f"task {task!r}: process: {qualname!r} was typed in and is in no file, so another process cannot find it; "
            "put it into a module and import it"
        )
    return Place(module=_MAIN_IN_CHILD, qualname=qualname, script=os.path.abspath(file), is_main=True)


def find(place: Place) -> Any:
    """What is at the place, in a child: the function, or the task that was made of it."""
    found: Any = _load(place)
    for name in place.qualname.split("."):
        if not hasattr(found, name):
            raise NotFound(
                f"{place.script or place.module} has no {place.qualname!r} when it is imported; define it at the top "
                "of the module, not under a main guard, and leave its name to it"
            )
        found = getattr(found, name)
    return found


def _load(place: Place) -> ModuleType:
    if place.script is None:
        return importlib.import_module(place.module)
    loader = importlib.machinery.SourceFileLoader(place.module, place.script)
    spec = importlib.util.spec_from_file_location(place.module, place.script, loader=loader)
    assert spec is not None, "a loader is given"
    module = importlib.util.module_from_spec(spec)
    sys.modules[place.module] = sys.modules[_MAIN] = module
    loader.exec_module(module)
    return module


def type_name(kind: type, place: Place | None = None) -> str:
    """A class by name, as the node knows it."""
    is_mains = place is not None and place.is_main and kind.__module__ == place.module
    return f"{_MAIN if is_mains else kind.__module__}:{kind.__qualname__}"


def type_names(kind: type, place: Place) -> frozenset[str]:
    """The class and all above it."""
    return frozenset(type_name(each, place) for each in kind.__mro__)
