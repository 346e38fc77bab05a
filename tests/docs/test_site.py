"""The site that MkDocs builds from the pages: whole, linked, and sufficient to itself."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from pages import ROOT
from programs import clean_environment
from test_reference import every_command

from evertick.cli import cli

_PROSE = re.compile(r"<(p|li|td)>(.*?)</\1>", re.DOTALL)
_CODE = re.compile(r"<code.*?</code>", re.DOTALL)
# A list, a table, a heading, emphasis, a link, code: what MkDocs reads a little more strictly than others do.
_RAW_MARKDOWN = re.compile(r"^\s*(?:[-*] |\d+\. |\||#)|\*\*|\]\(|`", re.MULTILINE)
_ELSEWHERE = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)


class Page(HTMLParser):
    """What the test asks of a built page: its anchors, its references, the code that runs in it."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.references: list[str] = []
        self.navigation: list[str] = []
        self.code: list[str] = []
        self._open: list[str] = []
        self._navigation_depth = 0
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attributes}
        self.anchors |= {named[name] for name in ("id", "name") if name in named}
        self.references += [named[name] for name in ("href", "src", "srcset", "action", "poster") if name in named]
        self._open.append(tag)
        if tag == "nav" and (self._navigation_depth or "md-nav--primary" in named.get("class", "")):
            self._navigation_depth += 1
        if tag == "a" and self._navigation_depth and "href" in named:
            self.navigation.append(named["href"])

    def handle_endtag(self, tag: str) -> None:
        if tag == "nav" and self._navigation_depth:
            self._navigation_depth -= 1
        # Elements without an end tag stay open until one around them is closed.
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in ("script", "style"):
            self.code.append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        # The theme's own announcement about its successor is no warning about these pages.
        env=clean_environment(NO_MKDOCS_2_WARNING="1"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


@cache
def read(file: Path) -> Page:
    return Page(file)


def built_pages(site: Path) -> Iterator[tuple[Path, Page]]:
    files = sorted(site.rglob("*.html"))
    assert len(files) > 20, "the site has hardly any page"
    for file in files:
        yield file, read(file)


def target_of(reference: str, file: Path, site: Path) -> Path:
    """The file that a reference on this page leads to."""
    path = unquote(urlsplit(reference).path)
    if not path:
        return file
    target = site / path.lstrip("/") if path.startswith("/") else file.parent / path
    return (target / "index.html" if target.is_dir() else target).resolve()


def test_every_page_is_in_the_navigation_of_the_built_site(site: Path) -> None:
    index = site / "index.html"
    reached = {target_of(reference, index, site) for reference in read(index).navigation}
    sources = [page.relative_to(ROOT / "docs").with_suffix("") for page in (ROOT / "docs").rglob("*.md")]
    wanted = {site / (page.parent if page.name == "index" else page) / index.name for page in sources}
    assert {page.resolve() for page in wanted} - reached == set()


def test_every_internal_link_and_anchor_resolves_in_the_built_site(site: Path) -> None:
    wrong = []
    for file, page in built_pages(site):
        for reference in page.references:
            if _ELSEWHERE.match(reference) or reference.startswith(("mailto:", "data:", "javascript:")):
                continue
            target, anchor = target_of(reference, file, site), unquote(urlsplit(reference).fragment)
            if not target.exists():
                wrong.append(f"{file.relative_to(site)}: {reference}: no such file")
            elif anchor and target.suffix == ".html" and anchor not in read(target).anchors:
                wrong.append(f"{file.relative_to(site)}: {reference}: no such anchor")
    assert not wrong, "\n".join(wrong)


def test_the_site_has_every_command_and_every_flag(site: Path) -> None:
    page = (site / "reference/command-line/index.html").read_text(encoding="utf-8")
    sections = dict(re.findall(r'<h2 id="([^"]+)">(.*?)(?=<h2 |</article>)', page, re.DOTALL))
    wrong = []
    for name, command in every_command(cli):
        section = sections.get(name.replace(" ", "-"), "")
        flags = ["Usage:", *(flag for each in command.params for flag in each.opts if flag.startswith("-"))]
        wrong += [f"{name}: {flag}" for flag in flags if not re.search(rf"(?<![\w-]){flag}(?![\w-])", section)]
    assert not wrong


def test_the_site_has_pages_and_nothing_of_their_making(site: Path) -> None:
    assert [file for file in site.rglob("*") if file.suffix in (".py", ".pyc", ".md")] == []
    assert "<!-- command -->" not in (site / "reference/command-line/index.html").read_text(encoding="utf-8")


def test_no_page_of_the_site_names_another_host(site: Path) -> None:
    """Neither fonts nor scripts nor a counter: reading the documentation tells nobody, and works without a network."""
    for file, page in built_pages(site):
        outside = [reference for reference in page.references if _ELSEWHERE.match(reference)]
        assert not outside, f"{file.relative_to(site)} refers to {outside}"
        assert not re.findall(r"https?://\S+", " ".join(page.code)), f"code in {file.relative_to(site)} names a host"
    styles = [file.read_text(encoding="utf-8") for file in site.rglob("*.css")]
    assert styles, "the site has no style"
    assert not re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//[^)\"']+", " ".join(styles))


def test_no_page_shows_markdown_that_was_not_understood(site: Path) -> None:
    raw = [
        f"{file.relative_to(site)}: {text[:100]!r}"
        for file in sorted(site.rglob("*.html"))
        for _, text in _PROSE.findall(file.read_text(encoding="utf-8"))
        if _RAW_MARKDOWN.search(_CODE.sub("code", text))
    ]
    assert not raw, "\n".join(raw)
