"""What was measured, as it is kept in a file: every sample of every figure of every case, and on what machine."""

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

from benchmarks.figure import Case, Measured
from benchmarks.refused import Refused

__all__ = ["Results", "Run", "Samples", "whole"]

# A round that gave no figure is a hole (NaN, in the file `null`), so that a place is the same round in all cases.
Samples = dict[str, list[float]]
# What the machines of several runs differ in.
_BETWEEN = "; "


@dataclass
class Run:
    """One run of the benchmarks: on which day, of which commit if that is known, and how calm the machine was.

    `flush_ms` is how long a page took to reach the disk, `loads` are load averages before and after each round,
    `stolen` is how much of the processors the host gave to others in each, in percent.
    """

    measured: str = ""
    commit: str = ""
    flush_ms: float | None = None
    loads: list[float] = field(default_factory=list)
    # The round, if there is one that it has not ended, and why.
    broken_off: str = ""
    cpu: str = ""
    # With how it was built.
    python: str = ""
    stolen: list[float] = field(default_factory=list)


def _one_run() -> list[Run]:
    return [Run()]


@dataclass
class Results:
    """Of one run, or of several that were read. `skipped` is why a contender took no part, `failed` what it did wrong
    in a round that was thrown away. `server` are the settings of the server, as it told them.
    """

    machine: dict[str, str]
    settings: dict[str, str]
    server: dict[str, str] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=_one_run)
    quick: bool = False
    skipped: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    cases: dict[Case, Samples] = field(default_factory=dict)
    # What the page says of its runs, before it lists them.
    note: str = ""
    # The place in `runs` of the run that a case was measured in; the first where there is none.
    ran_in: dict[Case, int] = field(default_factory=dict)

    def are_of_one_run(self, one: Case, other: Case) -> bool:
        """Whether there is a ratio between them: what another run has measured was another minute, or another code."""
        return self.run_of(one) == self.run_of(other)

    def run_of(self, case: Case) -> int:
        """As the page counts them, from 1."""
        return self.ran_in.get(case, 0) + 1

    def add(self, case: Case, measured: Measured) -> None:
        samples = self.cases.setdefault(case, {})
        for name, value in measured.items():
            samples.setdefault(name, []).extend([value] if isinstance(value, int | float) else value)

    def add_hole(self, case: Case, figures: Iterable[str]) -> None:
        """A round in which none of the figures was found."""
        self.add(case, dict.fromkeys(figures, math.nan))

    def broken_off(self, left: Iterable[Case]) -> Results:
        """As if the round had ended now: a case that it has not come to, and earlier ones have, has a hole there."""
        cases = {case: {name: [*each] for name, each in samples.items()} for case, samples in self.cases.items()}
        broken = dataclasses.replace(self, cases=cases)
        for case in left:
            if case in cases:
                broken.add_hole(case, [*cases[case]])
        return broken

    def write(self, path: Path) -> None:
        """As a whole or not at all: whoever reads it, or ends us meanwhile, finds what was there before."""
        lines = [
            {
                **dataclasses.asdict(case),
                "run": self.ran_in.get(case, 0),
                "figures": {name: _summary(each) for name, each in samples.items()},
            }
            for case, samples in self.cases.items()
        ]
        kept = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name != "ran_in"}
        kept["runs"] = [dataclasses.asdict(run) for run in self.runs]
        beside = path.with_name(f"{path.name}.new")
        beside.write_text(json.dumps({**kept, "cases": lines}, indent=1) + "\n", encoding="utf-8")
        os.replace(beside, path)

    @classmethod
    def read(cls, paths: Sequence[Path]) -> Results:
        """Of one run, or of several; what differs of their machines is joined. Of a case that is in several files, the
        last one counts: rounds of different runs are not rounds of one. A run of which nothing counts is forgotten.
        """
        read = [_read_file(path) for path in paths]
        for each in read:
            for run in each.runs:
                run.cpu = run.cpu or _only(each.machine, "cpu")
                run.python = run.python or _only(each.machine, "python")
        together = read[0]
        for more in read[1:]:
            together.ran_in |= {case: len(together.runs) + more.ran_in[case] for case in more.cases}
            together.machine = _joined(together.machine, more.machine)
            together.settings |= more.settings
            together.server = _joined(together.server, more.server)
            together.runs += more.runs
            together.quick |= more.quick
            together.note = more.note or together.note
            together.skipped |= more.skipped
            measured_anew = tuple(f"{case.title}, round " for case in more.cases)
            together.failed = [each for each in together.failed if not each.startswith(measured_anew)] + more.failed
            together.cases |= more.cases
        together._forget_unused_runs()
        return together

    def _forget_unused_runs(self) -> None:
        used = sorted({self.ran_in[case] for case in self.cases})
        self.runs = [self.runs[each] for each in used]
        self.ran_in = {case: used.index(self.ran_in[case]) for case in self.cases}

    def of(self, measurement: str) -> dict[Case, Samples]:
        return {case: samples for case, samples in self.cases.items() if case.measurement == measurement}


def _only(machine: Mapping[str, str], name: str) -> str:
    """What all runs of a file have in common; of several that differ, it is not known which run had which."""
    text = machine.get(name, "")
    return "" if _BETWEEN in text else text


def _joined(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, str]:
    joined = {**second, **first}
    for name in first.keys() & second.keys():
        joined[name] = _BETWEEN.join(dict.fromkeys([*first[name].split(_BETWEEN), *second[name].split(_BETWEEN)]))
    return joined


def whole(samples: Iterable[float]) -> list[float]:
    """Without the holes."""
    return [each for each in samples if not math.isnan(each)]


def _read_file(path: Path) -> Results:
    try:
        return _read(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        why = error.strerror
    except ValueError:
        why = "it is no JSON"
    except (AttributeError, KeyError, TypeError):
        why = "it is not as these benchmarks write it"
    raise Refused(f"{path} cannot be read: {why}; name what `run --json` has written")


def _read(data: Mapping[str, Any]) -> Results:
    cases: dict[Case, Samples] = {}
    ran_in: dict[Case, int] = {}
    for line in data["cases"]:
        case = Case(**{each.name: line[each.name] for each in dataclasses.fields(Case)})
        ran_in[case] = line["run"]
        cases[case] = {
            name: [math.nan if sample is None else sample for sample in each["samples"]]
            for name, each in line["figures"].items()
        }
    runs = [Run(**run) for run in data["runs"]]
    return Results(**{**data, "runs": runs, "cases": cases, "ran_in": ran_in})


def _summary(samples: Sequence[float]) -> dict[str, object]:
    found = whole(samples)
    return {
        "median": statistics.median(found) if found else None,
        "min": min(found, default=None),
        "max": max(found, default=None),
        "samples": [None if math.isnan(sample) else sample for sample in samples],
    }
