"""The results of one or more runs in a JSON file: every sample of every metric of every case, and the machines."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.errors import UsageError
from benchmarks.measurement import Case, Measured

__all__ = ["Results", "Run", "Samples", "present"]

# A round without a sample is NaN (`null` in the file), so that a position is the same round in all cases.
Samples = dict[str, list[float]]
# Between values of machines that differ.
_BETWEEN = "; "


@dataclass
class Run:
    """One run of the benchmarks.

    `flush_ms` is the time until a page reached the disk, `loads` are load averages before and after each round,
    `stolen` is the percentage of processor time in each round that the host gave to other machines.
    """

    measured: str = ""
    commit: str = ""
    flush_ms: float | None = None
    loads: list[float] = field(default_factory=list)
    # The round in which the run was interrupted, and the reason; empty if it was complete.
    interrupted: str = ""
    cpu: str = ""
    # With its build options.
    python: str = ""
    stolen: list[float] = field(default_factory=list)


def _one_run() -> list[Run]:
    return [Run()]


@dataclass
class Results:
    """`skipped` has the reason why a contender could not be installed, `failed` the errors of peers, `server` the
    settings of PostgreSQL.
    """

    machine: dict[str, str]
    settings: dict[str, str]
    server: dict[str, str] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=_one_run)
    quick: bool = False
    skipped: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    cases: dict[Case, Samples] = field(default_factory=dict)
    # Text about the runs, shown before their list.
    note: str = ""
    # The index in `runs` of the run that measured a case; 0 if it is not there.
    ran_in: dict[Case, int] = field(default_factory=dict)

    def are_of_one_run(self, one: Case, other: Case) -> bool:
        """Only samples of the same run are compared: between two runs the code or the machine may have changed."""
        return self.run_of(one) == self.run_of(other)

    def run_of(self, case: Case) -> int:
        """The number of its run, from 1."""
        return self.ran_in.get(case, 0) + 1

    def cpu_of(self, case: Case) -> str:
        return self.runs[self.run_of(case) - 1].cpu

    def add(self, case: Case, measured: Measured) -> None:
        samples = self.cases.setdefault(case, {})
        for name, value in measured.items():
            samples.setdefault(name, []).extend([value] if isinstance(value, int | float) else value)

    def add_missing(self, case: Case, metrics: Iterable[str]) -> None:
        """Add a round without samples."""
        self.add(case, dict.fromkeys(metrics, math.nan))

    def as_interrupted(self, remaining: Iterable[Case]) -> Results:
        """The results if the round ended now: the remaining cases that have earlier rounds miss this one."""
        cases = {case: {name: [*each] for name, each in samples.items()} for case, samples in self.cases.items()}
        copy = dataclasses.replace(self, cases=cases)
        for case in remaining:
            if case in cases:
                copy.add_missing(case, [*cases[case]])
        return copy

    def write(self, path: Path) -> None:
        """Replace the file atomically: a reader, or a kill, never leaves a partial file."""
        lines = [
            {
                **dataclasses.asdict(case),
                "run": self.ran_in.get(case, 0),
                "metrics": {name: _summary(each) for name, each in samples.items()},
            }
            for case, samples in self.cases.items()
        ]
        data = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name != "ran_in"}
        data["runs"] = [dataclasses.asdict(run) for run in self.runs]
        new = path.with_name(f"{path.name}.new")
        new.write_text(json.dumps({**data, "cases": lines}, indent=1) + "\n", encoding="utf-8")
        os.replace(new, path)

    @classmethod
    def read(cls, paths: Sequence[Path]) -> Results:
        """Read and combine files. If several have a case, the last file counts; a run without cases is dropped."""
        read = [_read_file(path) for path in paths]
        for each in read:
            for run in each.runs:
                run.cpu = run.cpu or _common(each.machine, "cpu")
                run.python = run.python or _common(each.machine, "python")
        results = read[0]
        for more in read[1:]:
            results.ran_in |= {case: len(results.runs) + more.ran_in[case] for case in more.cases}
            results.machine = _joined(results.machine, more.machine)
            results.settings |= more.settings
            results.server = _joined(results.server, more.server)
            results.runs += more.runs
            results.quick |= more.quick
            results.note = more.note or results.note
            results.skipped |= more.skipped
            measured_again = tuple(f"{case.title}, round " for case in more.cases)
            results.failed = [each for each in results.failed if not each.startswith(measured_again)] + more.failed
            results.cases |= more.cases
        results._drop_unused_runs()
        return results

    def _drop_unused_runs(self) -> None:
        used = sorted({self.ran_in[case] for case in self.cases})
        self.runs = [self.runs[each] for each in used]
        self.ran_in = {case: used.index(self.ran_in[case]) for case in self.cases}

    def of(self, measurement: str) -> dict[Case, Samples]:
        return {case: samples for case, samples in self.cases.items() if case.measurement == measurement}


def _common(machine: Mapping[str, str], name: str) -> str:
    """The value that all runs of a file share; empty if they differ, because it is unknown which run had which."""
    text = machine.get(name, "")
    return "" if _BETWEEN in text else text


def _joined(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, str]:
    joined = {**second, **first}
    for name in first.keys() & second.keys():
        joined[name] = _BETWEEN.join(dict.fromkeys([*first[name].split(_BETWEEN), *second[name].split(_BETWEEN)]))
    return joined


def present(samples: Iterable[float]) -> list[float]:
    """Without missing rounds."""
    return [each for each in samples if not math.isnan(each)]


def _read_file(path: Path) -> Results:
    try:
        return _read(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        reason = error.strerror
    except ValueError:
        reason = "it is not JSON"
    except (AttributeError, KeyError, TypeError):
        reason = "it has another format"
    raise UsageError(f"{path} cannot be read: {reason}; name a file that `run --json` has written")


def _read(data: Mapping[str, Any]) -> Results:
    cases: dict[Case, Samples] = {}
    ran_in: dict[Case, int] = {}
    for line in data["cases"]:
        case = Case(**{each.name: line[each.name] for each in dataclasses.fields(Case)})
        ran_in[case] = line["run"]
        cases[case] = {
            name: [math.nan if sample is None else sample for sample in each["samples"]]
            for name, each in line["metrics"].items()
        }
    runs = [Run(**run) for run in data["runs"]]
    return Results(**{**data, "runs": runs, "cases": cases, "ran_in": ran_in})


def _summary(samples: Sequence[float]) -> dict[str, object]:
    found = present(samples)
    return {
        "median": statistics.median(found) if found else None,
        "min": min(found, default=None),
        "max": max(found, default=None),
        "samples": [None if math.isnan(sample) else sample for sample in samples],
    }
