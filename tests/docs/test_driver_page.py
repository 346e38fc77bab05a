"""The package of the page about drivers is built from its own description, and its own test passes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pages import ROOT, blocks
from programs import clean_environment

PAGE = ROOT / "docs/how-to/write-a-driver.md"


def test_the_package_of_the_page_brings_its_driver_and_passes_its_test(tmp_path: Path) -> None:
    package, installed, elsewhere = (tmp_path / name for name in ("package", "installed", "elsewhere"))
    for folder in (package, installed, elsewhere):
        folder.mkdir()
    for block in blocks(PAGE):
        name, _, text = block.text.partition("\n")
        (elsewhere if "test_" in name else package).joinpath(name.removeprefix("# ")).write_text(text)
    assert sorted(file.name for file in package.iterdir()) == [
        "evertick_port.py",
        "evertick_port_driver.py",
        "pyproject.toml",
    ]
    # What an installer does with it, without the archive in between, for which the machine may lack the tool.
    setup = ["-c", "import setuptools; setuptools.setup()", "-q"]
    run(*setup, "build_py", "--build-lib", installed, "egg_info", "--egg-base", installed, cwd=package)
    path = os.pathsep.join(filter(None, [str(installed), os.environ.get("PYTHONPATH")]))
    answer = run("-m", "pytest", "-q", "-p", "no:cacheprovider", elsewhere, cwd=elsewhere, PYTHONPATH=path)
    assert "6 passed" in answer


def run(*words: object, cwd: Path | None = None, **variables: str) -> str:
    ended = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env=clean_environment(**variables),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
