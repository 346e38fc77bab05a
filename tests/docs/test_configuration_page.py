"""The page about the configuration has the tables of the code, and every configuration in the docs is right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from configuration_page import PAGE, written_anew
from pages import Block, blocks, pages

from evertick.config.build import scheduler_from
from evertick.config.load import load_configuration


def test_the_tables_of_the_page_are_those_of_the_code() -> None:
    page = PAGE.read_text()
    assert page == written_anew(page), "write them anew with: python tests/docs/configuration_page.py"


def configurations() -> list[Block]:
    """Those that say that they are one; others are files of packages."""
    found = [block for page in pages() for block in blocks(page) if block.language == "toml"]
    return [block for block in found if block.text.startswith("# evertick.toml")]


@pytest.mark.parametrize("block", configurations(), ids=lambda block: block.place)
def test_every_configuration_in_the_documentation_is_right(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "evertick.toml"
    file.write_text(block.text)
    for path in re.findall(r'password_file = "(.*)"', block.text):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("hush")
    environ = {"HOME": str(tmp_path), **dict.fromkeys(re.findall(r"\$\{(\w+)\}", block.text), "x")}
    assert scheduler_from(load_configuration(file, environ)).settings.node_name


def test_there_are_configurations_to_be_read() -> None:
    assert len(configurations()) >= 2
