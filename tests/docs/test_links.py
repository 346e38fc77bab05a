"""Links between pages lead somewhere, and tests that pages name as proof exist."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from pages import ROOT, pages, prose, text_of

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_TEST = re.compile(r"`(test_\w+)`")
_TEST_DEFINITION = re.compile(r"def (test_\w+)")


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub and MkDocs make of headings."""
    found = set()
    for heading in _HEADING.findall(prose(page)):
        plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", lambda m: m[1] or "", heading).strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_and_anchor_resolves(page: Path) -> None:
    wrong = []
    for target in _LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if not linked.exists():
            wrong.append(f"{target}: no such file")
        elif anchor and anchor not in anchors(linked):
            wrong.append(f"{target}: no such heading; there are {sorted(anchors(linked))}")
    assert not wrong, "\n".join(wrong)


@cache
def known_tests() -> frozenset[str]:
    folders = [ROOT / "tests", ROOT / "src/evertick/testing"]
    files = [file for folder in folders for file in folder.rglob("*.py")]
    return frozenset(name for file in files for name in _TEST_DEFINITION.findall(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    named = set(_TEST.findall(prose(page)))
    assert not named - known_tests()


def linked_from(page: Path) -> set[Path]:
    return {(page.parent / target.partition("#")[0]).resolve() for target in _LINK.findall(prose(page))}


def test_every_page_is_linked_from_the_start_page() -> None:
    # The index of the decisions links to their pages, which test_architecture.py checks.
    decisions = set((ROOT / "docs/decisions").glob("*.md")) - {ROOT / "docs/decisions/index.md"}
    there = {page for page in pages() if page.is_relative_to(ROOT / "docs")} - {ROOT / "docs/index.md"} - decisions
    assert sorted(page.name for page in there - linked_from(ROOT / "docs/index.md")) == []


def test_the_readme_and_the_pages_stay_short() -> None:
    def words(page: Path) -> int:
        return len(text_of(page).split())

    assert words(ROOT / "README.md") <= 700
    assert words(ROOT / "ARCHITECTURE.md") <= 1_500
    assert sum(map(words, pages())) <= 75_000


def test_the_page_of_promises_names_tests() -> None:
    assert len(_TEST.findall(text_of(ROOT / "docs/explanation/promises.md"))) > 15


def test_the_navigation_names_every_page_once() -> None:
    named = re.findall(r":\s+(\S+\.md)\s*$", text_of(ROOT / "mkdocs.yml"), re.MULTILINE)
    there = {str(page.relative_to(ROOT / "docs")) for page in pages() if page.is_relative_to(ROOT / "docs")}
    assert sorted(named) == sorted(there)


# --- files that are named in texts

_ROOMS = ("src", "tests", "docs", "benchmarks")
_PATH = re.compile(rf"(?<![\w./{{$:~-])(?:{'|'.join(_ROOMS)})/[\w./-]*\w")
# In the package: `moments.py` is in the folder of the text that names it, `plan/moments.py` in that room.
_MODULE = re.compile(r"(?<![\w./{$*<-])(?:\w+/)*\w+\.py(?![\w/(])")
_DOTTED = re.compile(r"(?<![\w.])evertick(?:\.[a-z]\w*)+")
_PACKAGE = ROOT / "src/evertick"
# What pages and help texts call the files of a user.
_OF_USERS = {"app.py", "jobs.py", "hello.py", "office.py", "test_office.py"}


def comments_and_docstrings(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def texts() -> Iterator[Path]:
    for pattern in (
        "docs/**/*.md",
        "*.md",
        "benchmarks/**/*.md",
        "src/evertick/daemon/dist/*",
        "src/**/*.py",
        "tests/**/*.py",
    ):
        yield from (path for path in sorted(ROOT.glob(pattern)) if path.is_file())


def test_every_path_that_a_text_names_exists() -> None:
    found = [(path, name) for path in texts() for name in _PATH.findall(path.read_text(encoding="utf-8"))]
    wrong = [f"{path.relative_to(ROOT)}: {name}" for path, name in found if not (ROOT / name).exists()]
    assert len(found) > 100
    assert not wrong, "\n".join(wrong)


def test_every_module_that_a_comment_of_the_package_names_exists() -> None:
    wrong, count = [], 0
    for path in _PACKAGE.rglob("*.py"):
        for text in comments_and_docstrings(path.read_text(encoding="utf-8")):
            for name in _MODULE.findall(text):
                count += 1
                if name not in _OF_USERS and not any((near / name).exists() for near in (path.parent, _PACKAGE, ROOT)):
                    wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert count > 20
    assert not wrong, "\n".join(wrong)


def test_every_module_that_a_page_names_exists() -> None:
    wrong = []
    for page in pages():
        text = text_of(page)
        names = {name for name in re.findall(r"`([^`\s]+\.(?:py|sql))`", text) if "/" not in name} - _OF_USERS
        wrong += [
            f"{page.relative_to(ROOT)}: {name}"
            for name in names
            if f"# {name}\n" not in text and not any(_PACKAGE.rglob(name))
        ]
        # The last part may be a name in the module, or the child of a logger.
        parents = {dotted.rpartition(".")[0].replace(".", "/") for dotted in _DOTTED.findall(text)}
        wrong += [
            f"{page.relative_to(ROOT)}: {name}"
            for name in parents
            if not (ROOT / "src" / name).is_dir() and not (ROOT / f"src/{name}.py").exists()
        ]
    assert not wrong, "\n".join(wrong)
