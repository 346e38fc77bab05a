"""The benchmarks work: tiny numbers, every check in them, every figure in the end. How fast it is, is not tested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_quick_benchmark_gives_every_figure_and_leaves_nothing_behind(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT))
    try:
        from benchmarks.figure import FIGURES
    finally:
        sys.path.remove(str(ROOT))
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
