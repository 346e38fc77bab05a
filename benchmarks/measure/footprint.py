"""How long the import takes in an interpreter that has just started, and how much larger it makes it.

The import of Evertick loads no store: that is loaded when it is opened. So it is measured with each of them, too.
"""

from __future__ import annotations

import os
import statistics
import subprocess

from benchmarks.figure import Figure, Measured
from benchmarks.stage import Stage

__all__ = ["FIGURES", "WITH_STORE", "measure"]

FIGURES = (
    Figure("import", "import", "ms", better="less"),
    Figure("memory", "memory it adds", "MB", better="less"),
)
_PROGRAM = """
import time
def resident():
    return int(open("/proc/self/statm").read().split()[1])
before, began = resident(), time.perf_counter()
import {module}
print(time.perf_counter() - began, resident() - before)
"""
# Variants: what is imported besides.
WITH_STORE = {"with SQLite": "evertick.store.sqlite", "with PostgreSQL": "evertick.store.postgres"}
_PAGE_MEGABYTES = 4096 / 1e6


def measure(stage: Stage) -> Measured:
    _one(stage)  # after the first time it is compiled, as by pip, and in the system's cache
    took, grown = zip(*(_one(stage) for _ in range(stage.number)), strict=True)
    return {"import": statistics.median(took) * 1e3, "memory": statistics.median(grown) * _PAGE_MEGABYTES}


def _one(stage: Stage) -> tuple[float, float]:
    assert stage.contender.module is not None
    modules = [stage.contender.module, *([WITH_STORE[stage.variant]] if stage.variant else [])]
    program = _PROGRAM.format(module=", ".join(modules))
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [*stage.environment.command, "-c", program]
    done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
    seconds, pages = done.stdout.split()
    return float(seconds), float(pages)
