"""The benchmarks work: tiny numbers, every check in them, every figure in the end. How fast it is, is not tested."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@contextmanager
def _root_on_path() -> Iterator[None]:
    sys.path.insert(0, str(ROOT))
    try:
        yield
    finally:
        sys.path.remove(str(ROOT))


def test_a_quick_benchmark_gives_every_figure_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with _root_on_path():
        from benchmarks.figure import FIGURES
    written, folder = tmp_path / "figures.json", tmp_path / "bench"
    command = [sys.executable, "-m", "benchmarks", "sqlite", "--quick", "--json", written, "--folder", folder]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stderr
    report = json.loads(written.read_text())
    assert set(report["figures"]) == {figure.name for figure in FIGURES}
    assert all(figure["median"] >= 0 for figure in report["figures"].values())
    assert report["machine"]["sqlite"]
    for figure in FIGURES:
        assert figure.text in done.stdout
    assert not folder.exists()


# A server of its own, some thirty interpreters one after the other, and up to five nodes at once.
@pytest.mark.timeout(600)
def test_a_quick_benchmark_of_postgresql_gives_every_figure(tmp_path: Path) -> None:
    with _root_on_path():
        from benchmarks.postgres.figure import FIGURES
    written = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks", "postgres", "--quick", "--json", written]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=570)

    assert done.returncode == 0, done.stderr
    report = json.loads(written.read_text())
    assert set(report["figures"]) == {figure.name for figure in FIGURES}
    assert report["machine"]["postgresql"]
    for figure in FIGURES:
        assert figure.text in done.stdout


def test_a_group_of_figures_that_there_is_not_is_refused_with_those_there_are() -> None:
    command = [sys.executable, "-m", "benchmarks", "postgres", "--quick", "--only", "nothing"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no group 'nothing'; there are fires, queue" in done.stderr
