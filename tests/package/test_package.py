"""The sdist and the wheel: built from a copy of the checkout, installed into fresh environments, used there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from evertick.version import VERSION

pytestmark = [pytest.mark.long("package"), pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
NAME = f"evertick-{VERSION}"


def call(*command: object, cwd: Path | None = None, **environment: str) -> str:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("EVERTICK", "GIT_", "PYTEST", "PYTHON"))
    }
    done = subprocess.run(
        [str(each) for each in command], cwd=cwd, env=clean | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
    return done.stdout


def build(source: Path, kind: str, folder: Path) -> Path:
    """With the setuptools of the tests: a build must not need an index."""
    code = f"from setuptools import build_meta; build_meta.build_{kind}({str(folder)!r})"
    call(sys.executable, "-c", code, cwd=source)
    [built] = folder.glob("*.tar.gz" if kind == "sdist" else "*.whl")
    return built


class Built(NamedTuple):
    commit: str
    sdist: Path
    # The sdist, unpacked.
    source: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("package")
    copy = folder / "checkout"
    for name in call("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).split("\0"):
        if name and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    git = ["git", "-C", copy, "-c", "user.name=test", "-c", "user.email=test@example.com"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "All"]):
        call(*git, *command)
    commit = call(*git, "rev-parse", "--short=7", "HEAD").strip()
    sdist = build(copy, "sdist", folder / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    source = folder / "unpacked" / NAME
    # As a package index has it: the wheel comes from the sdist.
    return Built(commit, sdist, source, build(source, "wheel", folder / "wheel"))


def environment_with(package: Path, folder: Path) -> Path:
    """A fresh environment with this package; the dependencies are those of the tests."""
    call(sys.executable, "-m", "venv", "--without-pip", folder)
    [libraries] = folder.glob("lib/python*/site-packages")
    # The hooks of the tests' own editable install are not read from there.
    (libraries / "tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    python = folder / "bin/python"
    install = ["install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", package]
    call(sys.executable, "-m", "pip", "--python", python, *install)
    where = call(python, "-c", "import evertick; print(evertick.__file__)", cwd=folder)
    assert where.startswith(str(libraries))
    return python


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an environment with the wheel."""
    return environment_with(built.wheel, tmp_path_factory.mktemp("wheel") / "venv").parents[1]


def test_the_sdist_has_every_file_of_the_checkout(built: Built) -> None:
    names = set(call("git", "ls-files", cwd=built.source.parents[1] / "checkout").splitlines())
    there = {str(path.relative_to(built.source)) for path in built.source.rglob("*") if path.is_file()}
    assert names - there == {".gitignore"}


def test_the_wheel_has_the_package_and_nothing_beside_it(built: Built) -> None:
    names = zipfile.ZipFile(built.wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {"evertick", "evertick_pytest.py", f"{NAME}.dist-info"}
    source = ROOT / "src/evertick"
    kept = [path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    wanted = {f"evertick/{path.relative_to(source)}" for path in kept} | {"evertick/commit.txt"}
    assert {name for name in names if name.startswith("evertick/")} == wanted


def test_an_installed_wheel_knows_its_version_and_commit(built: Built, installed: Path) -> None:
    first = call(installed / "bin/evertick", "--version").splitlines()[0]
    assert first == f"evertick {VERSION} (commit {built.commit})"


def test_an_installed_wheel_writes_files_that_start_it(installed: Path, tmp_path: Path) -> None:
    answer = json.loads(call(installed / "bin/evertick", "dist", "--to", tmp_path, "--json"))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(each["file"] for each in answer["files"])
    [started] = re.findall(r"^ExecStart=(\S+) daemon", (tmp_path / "evertick.service").read_text(), re.MULTILINE)
    [daemon] = re.findall(r"^DAEMON=(\S+)$", (tmp_path / "evertick.init").read_text(), re.MULTILINE)
    assert started == daemon == answer["program"] == str(installed / "bin/evertick")
    assert call(started, "--version").startswith(f"evertick {VERSION}")
    call("sh", "-n", tmp_path / "evertick.init")
    example = {"EVERTICK_DIRECTORIES_STATE": str(tmp_path / "state")}
    assert ": valid, 2 jobs" in call(started, "daemon", "--check", "--config", tmp_path / "evertick.toml", **example)


def test_the_command_of_the_container_file_installs_the_wheel_beside_it(
    built: Built, installed: Path, tmp_path: Path
) -> None:
    call(installed / "bin/evertick", "dist", "--to", tmp_path)
    shutil.copy(built.wheel, tmp_path)
    text = (tmp_path / "Containerfile").read_text().replace("\\\n", "")
    [install] = re.findall(r"^RUN (/opt/evertick/bin/pip install .*)$", text, re.MULTILINE)
    # Without an index: what the extras need is left out.
    pip = f"{sys.executable} -m pip --python {environment_with(built.wheel, tmp_path / 'venv')}"
    options = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_FORCE_REINSTALL": "1"}
    told = call("sh", "-c", install.replace("/opt/evertick/bin/pip", pip), cwd=tmp_path, **options)
    assert f"Successfully installed {NAME}" in told


def test_the_unit_tests_pass_in_an_unpacked_sdist(built: Built, tmp_path: Path) -> None:
    python = environment_with(built.sdist, tmp_path / "venv")
    told = call(python, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "tests/unit", cwd=built.source)
    assert re.search(r"\d{3,} passed", told)
