"""The time and the memory of the import in a new interpreter.

`import evertick` loads no store, because a store is loaded when it is opened. So variants import a store as well.
"""

from __future__ import annotations

import os
import statistics
import subprocess

from benchmarks.measurement import Measured, Metric
from benchmarks.trial import Trial

__all__ = ["METRICS", "WITH_STORE", "measure"]

METRICS = (
    Metric("import", "time", "ms", better="less"),
    Metric("memory", "added memory", "MB", better="less"),
)
_PROGRAM = """
import time
def resident():
    return int(open("/proc/self/statm").read().split()[1])
before, began = resident(), time.perf_counter()
import {module}
print(time.perf_counter() - began, resident() - before)
"""
# Variants: the modules that they import as well.
WITH_STORE = {"with SQLite": "evertick.store.sqlite", "with PostgreSQL": "evertick.store.postgres"}
_PAGE_MEGABYTES = 4096 / 1e6


def measure(trial: Trial) -> Measured:
    _one(trial)  # compiles it, as pip does, and fills the page cache
    took, grown = zip(*(_one(trial) for _ in range(trial.number)), strict=True)
    return {"import": statistics.median(took) * 1e3, "memory": statistics.median(grown) * _PAGE_MEGABYTES}


def _one(trial: Trial) -> tuple[float, float]:
    assert trial.contender.module is not None
    modules = [trial.contender.module, *([WITH_STORE[trial.variant]] if trial.variant else [])]
    program = _PROGRAM.format(module=", ".join(modules))
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [*trial.environment.command, "-c", program]
    done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
    seconds, pages = done.stdout.split()
    return float(seconds), float(pages)
