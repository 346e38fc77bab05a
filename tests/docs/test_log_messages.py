"""The page of log messages has every warning and error that the code can log, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from pages import ROOT, text_of

PAGE = ROOT / "docs/reference/log-messages.md"
SOURCE = ROOT / "src/evertick"
LEVELS = {"warning", "error", "exception", "critical"}
QUIET = {"INFO", "DEBUG", "TRACE"}
_PLACE = re.compile(r"%(?:\.\d+)?[srdf]|%%")
_ROW = re.compile(r"^\| (?:WARNING|ERROR|CRITICAL)[^|]* \| `([^`]+)` \|", re.MULTILINE)


def normal(message: str) -> str:
    """The message with `…` for every value."""
    return re.sub(r"…[…\s]*…", "…", _PLACE.sub("…", message.replace("`", "'").replace("\n", " "))).strip()


def literal(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "%s" for part in node.values)
    return None


def is_quiet(level: ast.expr) -> bool:
    return (isinstance(level, ast.Attribute) and level.attr in QUIET) or (
        isinstance(level, ast.Name) and level.id in QUIET
    )


def logged(call: ast.Call) -> Iterator[str]:
    """The formats of a call of a logger, and of a logger's method that is passed on with its arguments."""
    for method, arguments in ((call.func, call.args), *((each, call.args[1:]) for each in call.args[:1])):
        if not isinstance(method, ast.Attribute) or not re.search(r"\blog\b", ast.unparse(method.value)):
            continue
        if method.attr == "log" and arguments and not is_quiet(arguments[0]):
            arguments = arguments[1:]
        elif method.attr not in LEVELS:
            continue
        if arguments and (text := literal(arguments[0])) is not None:
            yield text


@cache
def expressions() -> list[tuple[str, ast.expr]]:
    """Every expression of the source, with its file."""
    paths = sorted(SOURCE.rglob("*.py"))
    trees = [(path.name, ast.parse(path.read_text(encoding="utf-8"))) for path in paths]
    return [(name, node) for name, tree in trees for node in ast.walk(tree) if isinstance(node, ast.expr)]


@cache
def of_source() -> dict[str, str]:
    """Each warning and error, normalised, with the file that logs it."""
    calls = [(name, node) for name, node in expressions() if isinstance(node, ast.Call)]
    found = {normal(text): name for name, node in calls for text in logged(node)}
    return {text: file for text, file in found.items() if re.search(r"\w", text)}


@cache
def texts() -> frozenset[str]:
    """All texts of the source: some formats are chosen before the call of the logger."""
    found = [literal(node) for _, node in expressions()]
    return frozenset(normal(text) for text in found if text is not None)


def of_page() -> set[str]:
    return {normal(message) for message in _ROW.findall(text_of(PAGE))}


def test_the_page_has_every_warning_and_error_of_the_source() -> None:
    missing = {text: file for text, file in of_source().items() if text not in of_page()}
    assert missing == {}


def test_every_message_of_the_page_is_in_the_source() -> None:
    assert of_page() - texts() == set()


def test_the_messages_are_found_where_they_are_logged() -> None:
    """A change to how they are found must not leave them all out."""
    assert len(of_source()) > 80


def test_every_message_names_its_subject_and_none_uses_the_first_person() -> None:
    assert [text for text in of_source() if re.search(r"\b(I|we|our|us)\b", text)] == []
