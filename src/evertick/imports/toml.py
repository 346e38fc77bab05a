"""Jobs as a configuration file: tables that people read and go on with."""

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
# The reader of the file leaves these to the shell.
_AS_THEY_ARE = (("shell", "command"), ("shell", "stdin"))


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
        is_read = (job.driver, name) not in _AS_THEY_ARE
        lines.append(f"{_key(name)} = {_value(value, is_read=is_read)}")
    return lines


def _value(value: Any, *, is_read: bool = True) -> str:
    """The value as the file has it. Read: the reader of the file looks for ${NAME} in it."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            # For the job to see ${NAME}, the file has $${NAME}.
            return _string(value.replace("${", "$${") if is_read else value)
        case datetime():
            return value.isoformat()
        case Mapping():
            inside = ", ".join(f"{_key(name)} = {_value(each)}" for name, each in value.items())
            return f"{{ {inside} }}" if inside else "{}"
        case list() | tuple():
            return f"[{', '.join(map(_value, value))}]"
        case _:
            raise TypeError(f"{value!r} has no form in TOML")


def _string(text: str) -> str:
    return escaped(json.dumps(text, ensure_ascii=False), is_toml=True)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)
