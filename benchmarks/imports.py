"""How long `import evertick` takes in an interpreter that has just started, with the files in the system's cache."""

from __future__ import annotations

import statistics
import subprocess
import sys

from benchmarks.ledger import Ledger
from benchmarks.size import Size

__all__ = ["measure"]

_PROGRAM = "import time; t = time.perf_counter(); import evertick; print(time.perf_counter() - t)"


def measure(ledger: Ledger, size: Size) -> dict[str, float]:
    took = [_one() for _ in range(size.imports)]
    return {"import": statistics.median(took) * 1e3}


def _one() -> float:
    return float(subprocess.run([sys.executable, "-c", _PROGRAM], check=True, capture_output=True, text=True).stdout)
