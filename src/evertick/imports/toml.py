"""Writes imported jobs as a configuration file that people can edit."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from evertick.imports.imported import ImportResult, Job, header
from evertick.text.printable import escaped, printable

__all__ = ["to_toml"]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
# The configuration does not expand ${NAME} in these; the shell does.
_NOT_EXPANDED = (("shell", "command"), ("shell", "stdin"))


def to_toml(imported: ImportResult, head: Sequence[str]) -> str:
    """The whole file."""
    lines = header(imported, head)
    for job in imported.jobs:
        lines += ["", *_table(job)]
    return "\n".join(lines) + "\n"


def _table(job: Job) -> list[str]:
    lines = [f"# {printable(f'{job.where}: {job.source}')}", f"[jobs.{_key(job.name)}]"]
    if job.description:
        lines.append(f"description = {_value(job.description)}")
    for name, value in [*job.rule.items(), *job.options.items()]:
        lines.append(f"{_key(name)} = {_value(value)}")
    lines += ["", f"[jobs.{_key(job.name)}.{_key(job.driver)}]"]
    for name, value in job.spec.items():
        is_expanded = (job.driver, name) not in _NOT_EXPANDED
        lines.append(f"{_key(name)} = {_value(value, is_expanded=is_expanded)}")
    return lines


def _value(value: Any, *, is_expanded: bool = True) -> str:
    """The value in TOML. `is_expanded`: whether the configuration expands ${NAME} in it."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            # $${NAME} is a literal ${NAME}.
            return _string(value.replace("${", "$${") if is_expanded else value)
        case datetime():
            return value.isoformat()
        case Mapping():
            inside = ", ".join(f"{_key(name)} = {_value(each)}" for name, each in value.items())
            return f"{{ {inside} }}" if inside else "{}"
        case list() | tuple():
            return f"[{', '.join(map(_value, value))}]"
        case _:
            raise TypeError(f"{value!r} cannot be written in TOML")


def _string(text: str) -> str:
    return escaped(json.dumps(text, ensure_ascii=False), is_toml=True)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)
