"""Writes imported jobs that call functions of a program as a Python module.

Values from the table are written only as literals and checked names, so none can become code.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any

from evertick.imports.imported import ImportResult, Job, header
from evertick.text.printable import printable

__all__ = ["to_python"]

_NAMED = '''
def named(function: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Arguments by name, as Evertick stores them."""
    return dict(inspect.signature(function).bind(*args, **kwargs).arguments)
'''
_METHODS = ("cron", "every", "once")
_WIDE = 110


def to_python(imported: ImportResult, head: Sequence[str]) -> str:
    """The whole module."""
    lines = header(imported, head)
    tasks = _tasks(imported.jobs)
    modules = sorted({function.partition(":")[0] for function, _ in tasks})
    has_positional = any(job.spec["args"] for job in imported.jobs)
    lines += [
        "",
        *_imports(imported.jobs, modules, has_positional),
        "",
        'scheduler = Scheduler("sqlite:///evertick.db")',
    ]
    if has_positional:
        lines += ["", *_NAMED.splitlines()]
        lines += [""]
    lines += ["", *(_task(task, name, imported.jobs) for task, name in tasks.items())]
    for job in imported.jobs:
        lines += ["", *_schedule(job, tasks[_task_of(job)])]
    return "\n".join(lines) + "\n"


def _imports(jobs: Sequence[Job], modules: Sequence[str], has_positional: bool) -> list[str]:
    lines = ["import inspect", "from collections.abc import Callable"] if has_positional else []
    lines += ["import datetime", *(["from typing import Any"] if has_positional else []), ""]
    return [*lines, *(f"import {module}" for module in modules), "from evertick import Scheduler"]


def _task_of(job: Job) -> tuple[str, str]:
    """The key of a job's task: its function. A job with a limit has its own task, because limits belong to tasks."""
    return job.spec["function"], job.where if "concurrency" in job.options else ""


def _tasks(jobs: Sequence[Job]) -> dict[tuple[str, str], str]:
    """A variable name for each task."""
    names: dict[tuple[str, str], str] = {}
    for task in dict.fromkeys(map(_task_of, jobs)):
        used = {*names.values(), "scheduler", "named", "inspect", "datetime", "Any", "Callable", "Scheduler"}
        used |= {each.partition(".")[0] for each in (job.spec["function"] for job in jobs)}
        first = next((name for (function, _), name in names.items() if function == task[0]), None)
        names[task] = next(each for each in _candidates(task[0], first) if each not in used)
    return names


def _candidates(function: str, first: str | None) -> Iterator[str]:
    """The name of the function, with more and more of its path; for further tasks of it, with a number."""
    if first is None:
        parts = re.split("[.:]", function)
        yield from ("_".join(parts[-count:]) for count in range(1, len(parts) + 1))
        first = "_".join(parts) + "_task"
        yield first
    yield from (f"{first}_{number}" for number in itertools.count(2))


def _task(task: tuple[str, str], name: str, jobs: Sequence[Job]) -> str:
    limit = next((job.options["concurrency"] for job in jobs if task[1] and _task_of(job) == task), None)
    concurrency = "" if limit is None else f", concurrency={limit}"
    return f"{name} = scheduler.task(name={name!r}{concurrency})({task[0].replace(':', '.')})"


def _schedule(job: Job, task: str) -> list[str]:
    method = next(name for name in _METHODS if name in job.rule)
    options: dict[str, str] = {name: _literal(value) for name, value in job.rule.items() if name != method}
    options |= {name: _literal(value) for name, value in job.options.items() if name != "concurrency"}
    arguments = _arguments(job)
    first = _literal(job.rule[method])
    parts = [first, f"key={job.name!r}", *(f"{name}={value}" for name, value in options.items())]
    parts += [f"args={arguments}"] if arguments else []
    comment = [f"# {printable(job.description or job.source)}"]
    line = f"scheduler.{method}({', '.join(parts)})({task})"
    if len(line) <= _WIDE:
        return [*comment, line]
    return [*comment, f"scheduler.{method}(", *(f"    {part}," for part in parts), f")({task})"]


def _arguments(job: Job) -> str:
    args, kwargs = job.spec["args"], job.spec["kwargs"]
    if not args:
        return _literal(kwargs) if kwargs else ""
    call = [job.spec["function"].replace(":", "."), *map(_literal, args)]
    call += [f"**{_literal(kwargs)}"] if kwargs else []
    return f"named({', '.join(call)})"


def _literal(value: Any) -> str:
    match value:
        case datetime():
            return f"datetime.datetime.fromisoformat({value.isoformat()!r})"
        case date() | time():
            return f"datetime.{type(value).__name__}.fromisoformat({value.isoformat()!r})"
        case timedelta():
            return f"datetime.timedelta(days={value.days}, seconds={value.seconds}, microseconds={value.microseconds})"
        case Mapping():
            return "{" + ", ".join(f"{_literal(name)}: {_literal(each)}" for name, each in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_literal, value)) + "]"
        case set() | frozenset():
            return f"[{', '.join(sorted(map(_literal, value)))}]"
        case float():
            return f'float("{value}")' if value != value or value in (float("inf"), float("-inf")) else repr(value)
        case None | bool() | int() | str() | bytes():
            return repr(value)
        case _:
            raise TypeError(f"{value!r} has no literal form")
