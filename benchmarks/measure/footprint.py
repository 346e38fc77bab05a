"""How long the import takes in an interpreter that has just started, and how much larger it makes it."""

from __future__ import annotations

import os
import statistics
import subprocess

from benchmarks.figure import Figure, Measured
from benchmarks.stage import Stage

__all__ = ["FIGURES", "measure"]

FIGURES = (
    Figure("import", "import", "ms"),
    Figure("memory", "memory it adds", "MB"),
)
_PROGRAM = """
import time
def resident():
    return int(open("/proc/self/statm").read().split()[1])
before, began = resident(), time.perf_counter()
import {module}
print(time.perf_counter() - began, resident() - before)
"""
_PAGE_MEGABYTES = 4096 / 1e6


def measure(stage: Stage) -> Measured:
    _one(stage)  # after the first time it is compiled, as by pip, and in the system's cache
    took, grown = zip(*(_one(stage) for _ in range(stage.number)), strict=True)
    return {"import": statistics.median(took) * 1e3, "memory": statistics.median(grown) * _PAGE_MEGABYTES}


def _one(stage: Stage) -> tuple[float, float]:
    assert stage.contender.module is not None
    program = _PROGRAM.format(module=stage.contender.module)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [*stage.environment.command, "-c", program]
    done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
    seconds, pages = done.stdout.split()
    return float(seconds), float(pages)
