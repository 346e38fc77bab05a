"""Replay a seed, or run many: `python -m evertick.testing.simulation 42`, `... --seeds 0-100000 --workers 2`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from evertick.testing.simulation.clock import START_US
from evertick.testing.simulation.journal import Deed, DutyAct, Errand, Handing, Happening, Job, RowChange
from evertick.testing.simulation.mutants import MUTANTS
from evertick.testing.simulation.run import Simulated, simulate

_EVERY = 1_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m evertick.testing.simulation", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", help="replay this seed: its story, its happenings, its violations")
    parser.add_argument("--seeds", metavar="A-B", help="run all seeds from A up to B, and name those that fail")
    parser.add_argument("--workers", type=int, default=None, help="processes for --seeds (default: one per core)")
    parser.add_argument("--mutant", choices=[mutant.name for mutant in MUTANTS], help="replay with this planted bug")
    parser.add_argument(
        "--about", default="", help="show only happenings that mention this text (a run, a node, a key)"
    )
    parser.add_argument("--log", action="store_true", help="show what the engines log")
    chosen = parser.parse_args()
    if chosen.seeds is not None:
        first, _, last = chosen.seeds.partition("-")
        return _run_many(range(int(first), int(last or first) + 1), chosen.workers)
    if chosen.seed is None:
        parser.error("give a seed to replay, or --seeds")
    if chosen.log:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stdout)
        logging.getLogger("evertick").setLevel(logging.INFO)
    planted = next((mutant for mutant in MUTANTS if mutant.name == chosen.mutant), None)
    return _replay(
        simulate(chosen.seed, with_trace=True) if planted is None else planted.simulate(chosen.seed), chosen.about
    )


def _replay(simulated: Simulated, about: str) -> int:
    lines = [*simulated.story.lines(), ""]
    lines += [line for happening in simulated.happenings if about in (line := _line(happening))]
    lines += ["", f"{len(simulated.happenings)} happenings in {simulated.seconds:.0f} s, trace {simulated.trace}"]
    lines += [f"VIOLATION {each}" for each in simulated.violations] or ["all promises were kept"]
    print("\n".join(lines))
    return 1 if simulated.violations else 0


def _line(happening: Happening) -> str:
    at = f"{(happening.at - START_US) / 1_000_000:10.3f}"
    match happening:
        case RowChange():
            row = " ".join(f"{name}={value}" for name, value in happening.row.items() if value is not None)
            return (
                f"{at} {happening.who:10} {happening.intent} #{happening.call}: {happening.how} {happening.table} {row}"
            )
        case Job():
            told = f"{happening.task} {happening.what} {happening.cause}".rstrip()
            return f"{at} {happening.who:10} job {told}: run {happening.run} fence {happening.fence}"
        case Handing():
            told = f"{happening.what}: message {happening.message} after {happening.attempts} tries"
            return f"{at} {happening.who:10} sender {told} by {happening.node}"
        case Errand():
            told = f"{happening.task} {happening.what}, attempt {happening.attempt}"
            return f"{at} outside    {told}: run {happening.run} fence {happening.fence}"
        case DutyAct():
            return (
                f"{at} {happening.who:10} duty {happening.duty} acted under term {happening.term} of {happening.node}"
            )
        case Deed():
            detail = "" if happening.detail is None else f" {happening.detail}"
            return f"{at} {happening.who:10} {happening.what} {happening.about}{detail}"


def _run_many(seeds: range, workers: int | None) -> int:
    red = 0
    with ProcessPoolExecutor(workers) as pool:
        results: Iterable[tuple[int, list[str]]] = pool.map(_violations, seeds, chunksize=20)
        for number, (seed, violations) in enumerate(results, 1):
            if violations:
                red += 1
                print(f"seed {seed}: {violations[0]} ({len(violations)} in all)", flush=True)
            if number % _EVERY == 0:
                print(f"{number} seeds, {red} red", flush=True)
    print(f"{len(seeds)} seeds, {red} red")
    return 1 if red else 0


def _violations(seed: int) -> tuple[int, list[str]]:
    return seed, simulate(seed).violations


if __name__ == "__main__":
    sys.exit(main())
