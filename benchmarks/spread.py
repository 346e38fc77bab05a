"""The arithmetic of samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["percentile"]


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that at least so many percent do not exceed: one that was measured, never one between two."""
    assert samples, "there is no percentile of nothing"
    ordered = sorted(samples)
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1]
