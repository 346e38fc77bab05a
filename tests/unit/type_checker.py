"""mypy over a program, in a process of its own: in this one it would leave a million objects to the collector."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

__all__ = ["assert_wrong_as_marked"]


def assert_wrong_as_marked(text: str, folder: Path) -> None:
    """The type checker complains about the lines that end with `# wrong`, and about no other."""
    program = folder / "program.py"
    program.write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert not done.stderr
    wrong = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# wrong")]
    found = sorted({int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line})
    assert found == wrong, done.stdout
