"""Commands use the ledger only through operations, so authorisation and audit of operations cover every command."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

CLI = Path(__file__).parents[2] / "src/evertick/cli"
FILES = sorted(CLI.rglob("*.py"))

# By file, the attributes of `scheduler.runtime` that it may use, and why.
RUNTIME = {
    "command/run.py": {"run_process(scheduler.runtime)"},  # the process of a node
    "database.py": {"scheduler.runtime.configure"},  # names the user who asks, before the first operation
}
# By file, its allowed imports from evertick.store, and why.
STORE = {
    # Checks that the file of a database exists and is writable before a store opens it.
    "database.py": {"read_only_if_needed", "file_exists", "location_of", "why_read_only"},
    "command/apply.py": {"location_of"},
    "command/completion.py": {"location_of"},
    # Maintenance also of a database that cannot be opened, and of all its apps.
    "command/db.py": {"Maintainable", "Maintenance", "StoreStatus", "TableOptions", "TableRows", "open_store"},
    "command/health.py": {"Maintenance"},
    "command/top.py": {"ChannelPulse"},  # a row that operations return
}


def findings(file: str, source: str) -> Iterator[str]:
    """The places in the file that go around operations."""
    tree = ast.parse(source)
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr="runtime") | ast.Name(id="runtime"):
                used = ast.unparse(parents[node])
                if used not in RUNTIME.get(file, ()):
                    yield f"{file}:{node.lineno}: {used}"
            case ast.Call(func=ast.Attribute(attr="store" | "context" | "in_context" | "call_sync")):
                yield f"{file}:{node.lineno}: {ast.unparse(node)}"
            case ast.Import(names=names) if any(each.name.startswith("evertick.store") for each in names):
                yield f"{file}:{node.lineno}: {ast.unparse(node)}"
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("evertick"):
                for each in names:
                    is_store = module.startswith("evertick.store") and each.name not in STORE.get(file, ())
                    if is_store or takes_store(module, each.name):
                        yield f"{file}:{node.lineno}: from {module} import {each.name}"
            case _:
                pass


def takes_store(module: str, name: str) -> bool:
    """Whether it is a function that reads or changes a store passed to it."""
    found = getattr(importlib.import_module(module), name, None)
    return inspect.isfunction(found) and next(iter(found.__annotations__.values()), "") == "Store"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CLI)))
def test_a_file_of_the_command_line_reaches_the_ledger_by_operations_alone(path: Path) -> None:
    assert list(findings(str(path.relative_to(CLI)), path.read_text())) == []


@pytest.mark.parametrize("allowed", [RUNTIME, STORE])
def test_everything_that_is_allowed_is_used(allowed: dict[str, set[str]]) -> None:
    for file, uses in allowed.items():
        code = ast.unparse(ast.parse((CLI / file).read_text()))
        assert [use for use in uses if use not in code] == [], file


@pytest.mark.parametrize(
    "line",
    [
        "store = await scheduler.runtime.store()",
        "context = await scheduler.runtime.context()",
        "runtime = scheduler.runtime",
        "await runtime.in_context(work)",
        "from evertick.store.base import RunFilter",
        "from evertick.store.url import open_store",
        "import evertick.store.base",
        "from evertick.explain.run import explain_run",
        "from evertick.doctor.snapshot import frame_of",
        "from evertick.ledger.parsed_rules import load_calendars",
    ],
)
def test_a_bypass_of_operations_is_detected(line: str) -> None:
    assert list(findings("named.py", line))
