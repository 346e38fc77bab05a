"""What was measured, as it is kept in a file: every sample of every figure of every case, and on what machine."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figure import Case, Measured

__all__ = ["Results", "Samples"]

Samples = dict[str, list[float]]


@dataclass
class Results:
    """`skipped` is why a contender took no part, `failed` what it did wrong in a round that was thrown away."""

    machine: dict[str, str]
    settings: dict[str, str]
    quick: bool = False
    loads: list[float] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    cases: dict[Case, Samples] = field(default_factory=dict)

    def add(self, case: Case, measured: Measured) -> None:
        samples = self.cases.setdefault(case, {})
        for name, value in measured.items():
            samples.setdefault(name, []).extend([value] if isinstance(value, int | float) else value)

    def write(self, path: Path) -> None:
        lines = [
            {**dataclasses.asdict(case), "figures": {name: _summary(each) for name, each in samples.items()}}
            for case, samples in self.cases.items()
        ]
        kept = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        path.write_text(json.dumps({**kept, "cases": lines}, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, paths: Sequence[Path]) -> Results:
        """Of one run, or of several, each of which measured something else; the first tells the machine."""
        read = [_read(json.loads(path.read_text(encoding="utf-8"))) for path in paths]
        whole = read[0]
        for more in read[1:]:
            whole.machine = {**more.machine, **whole.machine}
            whole.settings |= more.settings
            whole.quick |= more.quick
            whole.loads += more.loads
            whole.skipped |= more.skipped
            whole.failed += more.failed
            whole.cases |= more.cases
        return whole

    def of(self, measurement: str) -> dict[Case, Samples]:
        return {case: samples for case, samples in self.cases.items() if case.measurement == measurement}


def _read(data: Mapping[str, Any]) -> Results:
    cases: dict[Case, Samples] = {}
    for line in data["cases"]:
        case = Case(**{each.name: line[each.name] for each in dataclasses.fields(Case)})
        cases[case] = {name: each["samples"] for name, each in line["figures"].items()}
    return Results(**{**data, "cases": cases})


def _summary(samples: Sequence[float]) -> dict[str, object]:
    return {
        "median": statistics.median(samples),
        "min": min(samples),
        "max": max(samples),
        "samples": list(samples),
    }
