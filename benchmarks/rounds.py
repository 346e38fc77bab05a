"""The rounds: every case once, then all of them again that need it, each on an empty store.

Where most cases need no round at all, all are looked at briefly before. Of those that have rounds, what that look has
found is no sample.

What was measured is kept after every case, because all rounds take hours and may be broken off.

What goes wrong with Evertick or the raw loop ends the benchmark: a figure of lost or doubled runs is none. What goes
wrong with a peer costs that peer its figure, and is told.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.contender.contenders import BROKER, CONTENDERS
from benchmarks.contender.environment import Environment
from benchmarks.figure import Case
from benchmarks.machine import load, processor_ticks, stolen_percent
from benchmarks.order import in_turn
from benchmarks.plan import MEASUREMENTS
from benchmarks.results import Results
from benchmarks.size import Size
from benchmarks.stage import Stage
from benchmarks.store.broker import BrokerPlace
from benchmarks.store.place import Place
from benchmarks.store.postgres import PostgresPlace
from benchmarks.store.sqlite import SqlitePlace

__all__ = ["Ground", "run_rounds"]

# Cases side by side when nothing is really measured.
_QUICK_AT_ONCE = 5
# Of a round, what is told of the look before them all.
_PREVIEW = "0"
_CONTENDERS = {each.name: each for each in CONTENDERS}


class Ground:
    """Where places are made: a folder on the disk to measure, and a server if PostgreSQL is measured."""

    def __init__(self, folder: Path, dsn: str | None, environments: Mapping[str, Environment], size: Size) -> None:
        self._folder, self._dsn, self.environments, self.size = folder, dsn, environments, size

    @contextmanager
    def place(self, store: str, contender: str) -> Iterator[Place]:
        """An empty one, gone with the block. What was measured there counts if it has reached the disk."""
        place = self._make(store, Path(tempfile.mkdtemp(dir=self._folder)), self.environments[contender])
        try:
            yield place
            place.check_durable()
        finally:
            place.close()

    def _make(self, store: str, folder: Path, environment: Environment) -> Place:
        if store == "postgres":
            assert self._dsn is not None
            return PostgresPlace.make(folder, self._dsn)
        if store == BROKER:
            assert environment.folder is not None
            return BrokerPlace(folder, environment.folder)
        return SqlitePlace(folder)


def run_rounds(
    ground: Ground, cases: list[Case], rounds: int, results: Results, keep: Callable[[Results, str], None]
) -> None:
    """`keep` is given what there is so far, and in which round it would be broken off, again and again."""
    run = results.runs[-1]
    run.loads.append(load())
    previewed = set() if results.quick else _preview(ground, cases, results, keep)
    for number in range(rounds):
        before = processor_ticks()
        needed = [case for case in cases if MEASUREMENTS[case.measurement].has_round(case, results)]
        wanted = in_turn(number, needed)
        said = f"{number + 1}/{rounds}"
        measure = partial(_measure, ground, results=results, said=said)
        if results.quick:
            _side_by_side(measure, wanted)
            keep(results, said)
        else:
            for done, case in enumerate(wanted, 1):
                if case in previewed:
                    previewed.discard(case)
                    del results.cases[case]
                # What the one before has thrown away or not written yet is not to be a burden of this one.
                os.sync()
                measure(case)
                keep(results.broken_off([each for each in wanted[done:] if each not in previewed]), said)
        run.loads.append(load())
        run.stolen.append(stolen_percent(before, processor_ticks()))


def _preview(ground: Ground, cases: list[Case], results: Results, keep: Callable[[Results, str], None]) -> set[Case]:
    """Those that were looked at."""
    wanted = [case for case in cases if MEASUREMENTS[case.measurement].has_preview]
    for case in wanted:
        _measure(ground, case, results=results, said=_PREVIEW, is_preview=True)
        keep(results, _PREVIEW)
    return set(wanted)


def _side_by_side(measure: Callable[[Case], None], cases: list[Case]) -> None:
    """What measures nothing need not be alone. After the first that fails no other begins."""
    pool = ThreadPoolExecutor(_QUICK_AT_ONCE)
    try:
        for done in as_completed([pool.submit(measure, case) for case in cases]):
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _measure(ground: Ground, case: Case, results: Results, said: str, *, is_preview: bool = False) -> None:
    began = time.monotonic()
    try:
        with ground.place(case.store, case.contender) as place:
            stage = Stage(
                place=place,
                contender=_CONTENDERS[case.contender],
                environment=ground.environments[case.contender],
                store=case.store,
                processes=case.processes,
                number=case.number,
                size=ground.size,
                another_place=lambda: ground.place(case.store, case.contender),
                variant=case.variant,
                is_preview=is_preview,
            )
            measured = MEASUREMENTS[case.measurement].measure(stage)
        results.add(case, measured)
    except Exception as error:
        if not _CONTENDERS[case.contender].is_peer:
            error.add_note(case.title)
            raise
        # Of a traceback the last line tells.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        why = " ".join(dict.fromkeys((lines[0], lines[-1])))
        results.failed.append(f"{case.title}, round {said}: {why}"[:300])
        results.add_hole(case, [figure.name for figure in MEASUREMENTS[case.measurement].figures])
        print(f"failed  {results.failed[-1]}", flush=True)
        return
    print(f"round {said}  {case.title}  {time.monotonic() - began:.1f} s", flush=True)
