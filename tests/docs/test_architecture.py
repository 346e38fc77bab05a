"""The page of the architecture and those of the decisions name real rooms and files."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest
from pages import ROOT, text_of

PACKAGE = ROOT / "src/evertick"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
DECISIONS = sorted((ROOT / "docs/decisions").glob("*.md"))
# `engine/fire.py` in the package, `tests/unit/` in the project.
_PATH = re.compile(r"`(\.?[\w-]+(?:/[\w.-]*)+|[\w-]+\.(?:py|sql))`")
_ROOM = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)


def test_the_architecture_lists_every_room_in_the_order_of_the_import_contract() -> None:
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    layers = contracts["importlinter:contract:layers"]["layers"]
    # Rooms in parentheses are to come.
    in_order = re.findall(r"(?<!\()evertick\.(\w+)", layers)
    assert _ROOM.findall(text_of(ARCHITECTURE)) == in_order
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert folders | modules == set(in_order)


@pytest.mark.parametrize("page", [ARCHITECTURE, *DECISIONS], ids=lambda page: page.name)
def test_every_path_on_the_page_exists(page: Path) -> None:
    missing = [
        path for path in _PATH.findall(text_of(page)) if not any((root / path).exists() for root in (ROOT, PACKAGE))
    ]
    assert not missing


def test_the_architecture_names_a_file_and_a_test_for_each_behaviour() -> None:
    rows = re.findall(r"^\| [^`|]+ \| ([^|]+) \| ([^|]+) \|$", text_of(ARCHITECTURE), re.MULTILINE)
    rows = [row for row in rows if "`" in row[0]]
    assert len(rows) >= 20
    assert all(_PATH.findall(file) and re.search("tests/|conformance/", test) for file, test in rows)


def test_every_page_of_decisions_is_in_their_index_and_names_its_rooms() -> None:
    rooms = set(_ROOM.findall(text_of(ARCHITECTURE)))
    assert len(DECISIONS) > 5
    for page in DECISIONS:
        text = text_of(page)
        if page.name == "index.md":
            assert set(re.findall(r"^- \[[^\]]+\]\(([\w-]+\.md)\)", text, re.MULTILINE)) == {
                each.name for each in DECISIONS if each != page
            }
        else:
            [named] = re.findall(r"^(?:Rooms?|Folder): (`[^.]+`)\.", text, re.MULTILINE)
            assert all(name in rooms or (ROOT / name).exists() for name in re.findall(r"`([^`]+)`", named))
