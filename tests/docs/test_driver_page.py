"""The page about writing a driver: its package is built, and passes its own test. The reference is complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from pages import ROOT, blocks, doc
from programs import clean_environment

from evertick import Context, Shell
from evertick.clock import system_clock
from evertick.driver.shell.spec import RUN_VARIABLES, run_variables
from evertick.job.context import JobRecord
from evertick.model import Claimed

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
    assert "5 passed" in answer


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


def test_the_defaults_of_a_shell_job_are_those_of_the_reference() -> None:
    section = doc("reference/drivers.md").partition("\n## Shell\n")[2].partition("\n### ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*)\|", section, re.MULTILINE))
    spec = Shell("true")
    assert list(rows) == list(Shell.__struct_fields__)
    for name, told in rows.items():
        default = getattr(spec, name)
        is_nothing = name == "command" or default is None or default == {}
        shown = list(default) if isinstance(default, tuple) else default
        assert told.strip().strip("`") == ("" if is_nothing else repr(shown).replace("'", '"')), name


def test_every_variable_of_a_run_is_in_the_reference() -> None:
    run = Claimed(id="r", fence=7, task="t", args=b"{}", fire_at=0, due_at=0, claimed_at=0, schedule_key="k")
    page = doc("reference/drivers.md")
    assert [name for name in RUN_VARIABLES if f"`{name}`" not in page] == []
    assert tuple(run_variables(Context(JobRecord(run, system_clock)), "app")) == RUN_VARIABLES
