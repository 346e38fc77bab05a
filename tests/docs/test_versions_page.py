"""The page about versions says what the code checks and what the package declares."""

from __future__ import annotations

import re
import tomllib

from pages import ROOT, doc

from evertick.store.postgres.connection import OLDEST as OLDEST_POSTGRES
from evertick.store.sqlite.connection import _OLDEST as OLDEST_SQLITE

PAGE = doc("reference/versions.md")


def test_the_supported_versions_are_those_of_the_code_and_of_the_package() -> None:
    rows = dict(re.findall(r"^\| (\w+) \| (.+) \|$", PAGE.partition("## Supported versions")[2], re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pythons = re.findall(r"Python :: (3\.\d+)$", "\n".join(project["classifiers"]), re.MULTILINE)
    assert rows["Python"] == ", ".join(pythons)
    assert project["requires-python"] == f">={pythons[0]}"
    assert rows["SQLite"] == f"{OLDEST_SQLITE[0]}.{OLDEST_SQLITE[1]} or later"
    assert rows["PostgreSQL"].startswith(f"{OLDEST_POSTGRES} or later, ")
