"""Rounds: each measures every case that needs it once, on an empty store.

For measurements with a preview, all cases are looked at briefly first. If a case gets rounds, its preview is dropped.
The samples are saved after every case, because all rounds together take hours. An error of Evertick or of the raw loop
ends the benchmark. An error of a peer costs that peer the sample of the round and is reported.
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

from benchmarks.backend.broker import Broker
from benchmarks.backend.postgres import PostgresBackend
from benchmarks.backend.protocol import Backend
from benchmarks.backend.sqlite import SqliteBackend
from benchmarks.contender.contenders import BROKER, CONTENDERS
from benchmarks.contender.environment import Environment
from benchmarks.machine import load, processor_ticks, stolen_percent
from benchmarks.measurement import Case, alternate_contenders
from benchmarks.plan import MEASUREMENTS
from benchmarks.samples import Results
from benchmarks.size import Size
from benchmarks.trial import Trial

__all__ = ["Backends", "run_rounds"]

# Cases that a quick run takes at the same time.
_QUICK_AT_ONCE = 5
# The number of the preview in messages.
_PREVIEW = "0"
_CONTENDERS = {each.name: each for each in CONTENDERS}


class Backends:
    """Makes empty backends in a folder on the measured disk, and on a server if PostgreSQL is measured."""

    def __init__(self, folder: Path, dsn: str | None, environments: Mapping[str, Environment], size: Size) -> None:
        self._folder, self._dsn, self.environments, self.size = folder, dsn, environments, size

    @contextmanager
    def open(self, store: str, contender: str) -> Iterator[Backend]:
        """An empty backend for the block. At its end, commits must have reached the disk."""
        backend = self._make(store, Path(tempfile.mkdtemp(dir=self._folder)), self.environments[contender])
        try:
            yield backend
            backend.check_durable()
        finally:
            backend.close()

    def _make(self, store: str, folder: Path, environment: Environment) -> Backend:
        if store == "postgres":
            assert self._dsn is not None
            return PostgresBackend.make(folder, self._dsn)
        if store == BROKER:
            assert environment.folder is not None
            return Broker(folder, environment.folder)
        return SqliteBackend(folder)


def run_rounds(
    backends: Backends, cases: list[Case], rounds: int, results: Results, save: Callable[[Results, str], None]
) -> None:
    """`save` is called after every case, with the round in which an interruption would be reported."""
    run = results.runs[-1]
    run.loads.append(load())
    previewed = set() if results.quick else _preview(backends, cases, results, save)
    for number in range(rounds):
        before = processor_ticks()
        needed = [case for case in cases if MEASUREMENTS[case.measurement].has_round(case, results)]
        ordered = alternate_contenders(number, needed)
        name = f"{number + 1}/{rounds}"
        measure = partial(_measure, backends, results=results, round_name=name)
        if results.quick:
            _measure_in_parallel(measure, ordered)
            save(results, name)
        else:
            for done, case in enumerate(ordered, 1):
                if case in previewed:
                    previewed.discard(case)
                    del results.cases[case]
                # Unwritten data of the previous case must not slow this one down.
                os.sync()
                measure(case)
                save(results.as_interrupted([each for each in ordered[done:] if each not in previewed]), name)
        run.loads.append(load())
        run.stolen.append(stolen_percent(before, processor_ticks()))


def _preview(
    backends: Backends, cases: list[Case], results: Results, save: Callable[[Results, str], None]
) -> set[Case]:
    """The cases that had a preview."""
    wanted = [case for case in cases if MEASUREMENTS[case.measurement].has_preview]
    for case in wanted:
        _measure(backends, case, results=results, round_name=_PREVIEW, is_preview=True)
        save(results, _PREVIEW)
    return set(wanted)


def _measure_in_parallel(measure: Callable[[Case], None], cases: list[Case]) -> None:
    """For quick runs. After the first failure no other case begins."""
    pool = ThreadPoolExecutor(_QUICK_AT_ONCE)
    try:
        for done in as_completed([pool.submit(measure, case) for case in cases]):
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _measure(backends: Backends, case: Case, results: Results, round_name: str, *, is_preview: bool = False) -> None:
    began = time.monotonic()
    try:
        with backends.open(case.store, case.contender) as backend:
            trial = Trial(
                backend=backend,
                contender=_CONTENDERS[case.contender],
                environment=backends.environments[case.contender],
                store=case.store,
                processes=case.processes,
                number=case.number,
                size=backends.size,
                another_backend=lambda: backends.open(case.store, case.contender),
                variant=case.variant,
                is_preview=is_preview,
            )
            measured = MEASUREMENTS[case.measurement].measure(trial)
        results.add(case, measured)
    except Exception as error:
        if not _CONTENDERS[case.contender].is_peer:
            error.add_note(case.title)
            raise
        # The first and the last line: the last one of a traceback has the error.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = " ".join(dict.fromkeys((lines[0], lines[-1])))
        results.failed.append(f"{case.title}, round {round_name}: {reason}"[:300])
        results.add_missing(case, [metric.name for metric in MEASUREMENTS[case.measurement].metrics])
        print(f"failed  {results.failed[-1]}", flush=True)
        return
    print(f"round {round_name}  {case.title}  {time.monotonic() - began:.1f} s", flush=True)
