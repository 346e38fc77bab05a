"""The rounds of a benchmark, and what is told of them: on what machine, how busy it was, and the figures."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence

from benchmarks.figure import Figure, summary, table
from benchmarks.machine import load

__all__ = ["run_rounds"]


def run_rounds(
    asked: argparse.Namespace,
    machine: Mapping[str, str],
    sizes: Mapping[str, float],
    figures: Sequence[Figure],
    measure: Callable[[], Mapping[str, float]],
) -> None:
    """Measure as many rounds as were asked for; print the table, and write all of it where that was asked for."""
    for name, text in machine.items():
        print(f"{name:<11} {text}", flush=True)
    samples: dict[str, list[float]] = {}
    loads = [load()]
    for number in range(asked.rounds):
        for name, value in measure().items():
            samples.setdefault(name, []).append(value)
        loads.append(load())
        print(f"round {number + 1} of {asked.rounds} done", flush=True)
    told = " ".join("?" if each is None else f"{each:.2f}" for each in loads)
    print(f"load        {told} (before, after each round)\n")
    print(table(samples, figures))
    if asked.json is not None:
        summaries = {name: summary(each) for name, each in samples.items()}
        report = {"machine": machine, "load": loads, "size": sizes, "figures": summaries}
        asked.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
