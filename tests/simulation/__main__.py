"""Replay a seed, or run many: `42`, `--seeds 0-100000`, `--from 100000 --minutes 30`; on all cores, in order."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import count
from time import monotonic
from typing import NamedTuple

from simulation.clock import START_US
from simulation.journal import Action, DeliveryEvent, DutyEvent, Event, JobEvent, QueueEvent, RowChange
from simulation.mutants import MUTANTS
from simulation.run import SimulationResult, simulate

# Seconds between two lines of progress.
_PROGRESS_EVERY = 30.0
# Seeds that a process runs at a time, and how many such batches wait for one.
_BATCH, _AHEAD = 5, 2
# The faults that the last lines count; they also count rows of the ledger by verdict.
_FAULTS = ("killed", "frozen", "cut_off", "outage")


class Covered(NamedTuple):
    """Results of a batch of seeds."""

    violations: list[tuple[int, list[str]]]
    seconds: float
    faults: Counter[str]
    verdicts: Counter[str]


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", help="replay this seed: its story, its events, its violations")
    parser.add_argument("--seeds", metavar="A-B", help="run all seeds from A up to B, and name those that fail")
    parser.add_argument("--from", type=int, metavar="SEED", dest="first", help="run seeds from this one until Ctrl-C")
    parser.add_argument("--minutes", type=float, metavar="N", help="with --from: stop after N minutes")
    parser.add_argument("--workers", type=int, default=None, help="processes that run seeds (default: one per core)")
    parser.add_argument("--mutant", choices=[mutant.name for mutant in MUTANTS], help="replay with this planted bug")
    parser.add_argument("--about", default="", help="show only events that mention this text (a run, a node, a key)")
    parser.add_argument("--log", action="store_true", help="show what the engines log")
    chosen = parser.parse_args()
    if chosen.minutes is not None and chosen.first is None:
        parser.error("--minutes needs --from SEED")
    if chosen.first is not None:
        until = None if chosen.minutes is None else monotonic() + 60 * chosen.minutes
        return _run_many(count(chosen.first), chosen.workers, until)
    if chosen.seeds is not None:
        first, _, last = chosen.seeds.partition("-")
        return _run_many(range(int(first), int(last or first) + 1), chosen.workers)
    if chosen.seed is None:
        parser.error("give a seed to replay, --seeds A-B, or --from SEED")
    if chosen.log:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stdout)
        logging.getLogger("evertick").setLevel(logging.INFO)
    planted = next((mutant for mutant in MUTANTS if mutant.name == chosen.mutant), None)
    return _replay(
        simulate(chosen.seed, with_trace=True) if planted is None else planted.simulate(chosen.seed), chosen.about
    )


def _replay(simulated: SimulationResult, about: str) -> int:
    lines = [*simulated.story.lines(), ""]
    lines += [line for event in simulated.events if about in (line := _line(event))]
    lines += ["", f"{len(simulated.events)} events in {simulated.seconds:.0f} s, trace {simulated.trace}"]
    lines += [f"VIOLATION {each}" for each in simulated.violations] or ["all promises were kept"]
    print("\n".join(lines))
    return 1 if simulated.violations else 0


def _line(event: Event) -> str:
    at = f"{(event.at - START_US) / 1_000_000:10.3f}"
    match event:
        case RowChange():
            row = " ".join(f"{name}={value}" for name, value in event.row.items() if value is not None)
            return f"{at} {event.who:10} {event.intent} #{event.call}: {event.how} {event.table} {row}"
        case JobEvent():
            text = f"{event.task} {event.what} {event.cause}".rstrip()
            return f"{at} {event.who:10} job {text}: run {event.run} fence {event.fence}"
        case DeliveryEvent():
            text = f"{event.what}: message {event.message} after {event.attempts} tries"
            return f"{at} {event.who:10} sender {text} by {event.node}"
        case QueueEvent():
            text = f"{event.task} {event.what}, attempt {event.attempt}"
            return f"{at} queue      {text}: run {event.run} fence {event.fence}"
        case DutyEvent():
            return f"{at} {event.who:10} duty {event.duty} acted under term {event.term} of {event.node}"
        case Action():
            detail = "" if event.detail is None else f" {event.detail}"
            return f"{at} {event.who:10} {event.what} {event.about}{detail}"


def _run_many(seeds: Iterable[int], workers: int | None, until: float | None = None) -> int:
    """Run seeds in order, so that the finished ones are a range without gaps."""
    began, first, following, failed = monotonic(), 0, 0, 0
    seconds, faults, verdicts, printed_at = 0.0, Counter[str](), Counter[str](), monotonic()
    try:
        for batch, covered in _in_order(seeds, workers, until):
            first, following = (batch[0] if not following else first), batch[-1] + 1
            seconds, failed = seconds + covered.seconds, failed + len(covered.violations)
            faults += covered.faults
            verdicts += covered.verdicts
            for seed, violations in covered.violations:
                print(f"seed {seed} failed: {violations[0]} ({len(violations)} in all)", flush=True)
            if monotonic() - printed_at > _PROGRESS_EVERY:
                printed_at = monotonic()
                rate = (following - first) / (printed_at - began)
                print(f"seeds {first}-{following - 1}: {failed} failed ({rate:.1f} a second)", flush=True)
    except KeyboardInterrupt:
        print("interrupted")
    print(
        f"{following - first} seeds ({first}-{following - 1}), {failed} failed, in {(monotonic() - began) / 60:.1f} min"
    )
    print(f"simulated {seconds / 3600:.1f} h of fleets; faults: {_listed(faults)}")
    print(f"verdicts: {_listed(verdicts)}")
    print(f"continue with --from {following}")
    return 1 if failed else 0


def _in_order(seeds: Iterable[int], workers: int | None, until: float | None) -> Iterator[tuple[list[int], Covered]]:
    workers = workers or os.cpu_count() or 1
    with ProcessPoolExecutor(workers) as pool:
        pending = deque[tuple[list[int], Future[Covered]]]()
        try:
            for batch in _batches(seeds):
                if until is not None and monotonic() >= until:
                    break
                pending.append((batch, pool.submit(_cover, batch)))
                if len(pending) > _AHEAD * workers:
                    done, covered = pending.popleft()
                    yield done, covered.result()
            while pending:
                done, covered = pending.popleft()
                yield done, covered.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _batches(seeds: Iterable[int]) -> Iterator[list[int]]:
    batch: list[int] = []
    for seed in seeds:
        batch.append(seed)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _cover(seeds: list[int]) -> Covered:
    covered = Covered([], 0.0, Counter(), Counter())
    seconds = 0.0
    for seed in seeds:
        simulated = simulate(seed)
        seconds += simulated.seconds
        if simulated.violations:
            covered.violations.append((seed, simulated.violations))
        for event in simulated.events:
            if isinstance(event, Action) and event.what in _FAULTS:
                covered.faults[event.what] += 1
            elif isinstance(event, RowChange) and event.table in ("history", "gaps"):
                covered.verdicts[event.row["verdict"]] += event.row.get("count") or 1
    return covered._replace(seconds=seconds)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in counts.most_common()) or "none"


if __name__ == "__main__":
    sys.exit(main())
