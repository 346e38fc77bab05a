"""The page about the configuration has every key, and every configuration in the docs is right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import Block, blocks, built, pages

from evertick.config.build import scheduler_from
from evertick.config.job import DEFAULT_KEYS, POLICY_KEYS, TASK_KEYS
from evertick.config.load import load_configuration
from evertick.config.rule import RULE_OPTIONS
from evertick.config.section import SECTIONS, keys_of

PAGE = "reference/configuration.md"


@pytest.mark.parametrize("name", SECTIONS)
def test_every_section_has_a_table_of_its_keys_with_their_defaults(name: str) -> None:
    [section] = re.findall(rf"^### {name}\n(.*?)(?=^##|\Z)", built(PAGE), re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| `([\w.]+)` \| [^|]+ \| [^|]+ \| [^|]+ \|$", section, re.MULTILINE)
    assert rows == [f"{name}.{key}" for key, _, _ in keys_of(SECTIONS[name])]


def test_every_option_of_a_job_is_documented() -> None:
    options = {*RULE_OPTIONS, *POLICY_KEYS, *TASK_KEYS, *DEFAULT_KEYS}
    assert [each for each in options if f"`{each}`" not in built(PAGE)] == []


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
