"""Names that jobs have already in the files beside the one that an import writes.

A directory of jobs is read as a whole, and two jobs of one name in it are refused: so an import into it looks which
names there are. Files that cannot be read have none; `evertick config check` tells of those.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from evertick.text.regular_file import read_regular

__all__ = ["taken_beside"]

_FILES_MAX = 1_000
_READ_MAX = 4 * 1024 * 1024
# That of a directory of jobs stands above it.
_ABOVE = "evertick.toml"


def taken_beside(output: Path) -> dict[str, Path]:
    """By name, the file that has the job: configurations, and modules that earlier imports have written."""
    taken: dict[str, Path] = {}
    for path in _files_beside(output):
        for name in _names_in(path):
            taken.setdefault(name, path)
    return taken


def _files_beside(output: Path) -> Iterator[Path]:
    folder = output.parent
    found = (each for pattern in ("*.toml", "*.py") for each in sorted(folder.glob(pattern)))
    own = output.resolve()
    yield from islice((each for each in found if each.resolve() != own), _FILES_MAX)
    above = folder / ".." / _ABOVE
    if above.is_file() and above.resolve() != own:
        yield above.resolve()


def _names_in(path: Path) -> list[str]:
    try:
        text = read_regular(path, _READ_MAX)[:_READ_MAX].decode()
        return list(_jobs_of(text) if path.suffix == ".toml" else _keys_of(text))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, SyntaxError, ValueError, RecursionError):
        return []


def _jobs_of(text: str) -> Iterator[str]:
    jobs = tomllib.loads(text).get("jobs")
    yield from jobs if isinstance(jobs, dict) else ()


def _keys_of(text: str) -> Iterator[str]:
    """Of schedules that a module declares, as imports write it: `scheduler.cron(…, key="backup")`."""
    if "from evertick import" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            values = (each.value for each in node.keywords if each.arg == "key")
            yield from (each.value for each in values if isinstance(each, ast.Constant) and isinstance(each.value, str))
