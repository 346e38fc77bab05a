"""One contender on one empty store: what a measurement gets, and all it knows of either."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from benchmarks import tally
from benchmarks.contender.contenders import Contender
from benchmarks.contender.environment import Environment
from benchmarks.processes import Workers
from benchmarks.program import start
from benchmarks.size import Size
from benchmarks.store.place import LedgerPlace, Place

__all__ = ["Stage"]

_ROOT = Path(__file__).parents[1]
_CALL_SECONDS = 3_600
_LOOK_SECONDS = 0.01
_STALL_SECONDS = 60


@dataclass(frozen=True)
class Stage:
    """`number` is how many runs, schedules or whatever the case is about."""

    place: Place
    contender: Contender
    environment: Environment
    store: str
    processes: int
    number: int
    size: Size
    another_place: Callable[[], AbstractContextManager[Place]]
    variant: str = ""
    # A brief look, to see whether it is worth a longer one.
    is_preview: bool = False
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def ledger(self) -> LedgerPlace:
        """The place of a contender whose ledger can be read back."""
        assert self.contender.has_ledger
        return cast("LedgerPlace", self.place)

    def call(self, verb: str, *values: object) -> Any:
        """Call a verb of the program, in a process of its own."""
        return self.call_all(verb, [values])[0]

    def call_all(self, verb: str, values: Sequence[Sequence[object]]) -> list[Any]:
        """The same with all of these at once, each in a process of its own."""
        outs = [self.place.folder / f"{verb}{place}.out" for place in range(len(values))]
        for out in outs:
            out.unlink(missing_ok=True)
        started = [
            start(self._command(verb, *own), self._variables(), out) for own, out in zip(values, outs, strict=True)
        ]
        codes = [each.wait(_CALL_SECONDS) for each in started]
        said = [out.read_text(errors="replace") for out in outs]
        for code, text in zip(codes, said, strict=True):
            assert code == 0, f"{self.contender.title}, {verb}, exit code {code}: {text[-2_000:]}"
        return [json.loads(text.splitlines()[-1]) for text in said]

    @contextmanager
    def workers(self, verb: str, *values: object, count: int | None = None) -> Iterator[Workers]:
        """The processes of the contender, which wait for `go`."""
        count = self.processes if count is None else count
        workers = Workers(self._command(verb, *values), self._variables(), self.place.folder, count)
        try:
            yield workers
        finally:
            workers.stop()

    def executed(self) -> int:
        return tally.total(self.place.folder)

    def wait_for(
        self, executed: int, workers: Workers, seconds: float, glance: Callable[[], None] = lambda: None
    ) -> None:
        """Until there have been as many executions. Who does nothing at all for a minute will not go on.

        `glance` is called again and again meanwhile.
        """
        now = time.monotonic()
        until, stalled, before = now + seconds, now + _STALL_SECONDS, 0
        while (seen := self.executed()) < executed:
            workers.check_alive()
            glance()
            now = time.monotonic()
            assert now < until, f"{seen} of {executed} were executed in {seconds:g} s:\n{workers.said()}"
            if seen > before:
                stalled, before = now + _STALL_SECONDS, seen
            assert now < stalled, f"{seen} of {executed} were executed, then none for a minute:\n{workers.said()}"
            time.sleep(_LOOK_SECONDS)

    def witnessed(self) -> tally.Witnessed:
        return tally.witnessed(self.place.folder)

    def forget(self) -> None:
        """What was executed so far is not of interest any more."""
        tally.forget(self.place.folder)

    def check(self, count: int, kept: int = 0) -> None:
        """Nothing was lost, nothing ran twice, and the store says the same; `kept` are runs of the ledger before."""
        self.witnessed().check_each_once(count)
        self.check_store(kept + count)

    def check_store(self, count: int) -> None:
        """All of them are over, by the ledger, or as far as another scheduler can tell."""
        if self.contender.has_ledger:
            self.ledger.check(count)
        else:
            left = self.call("left")
            assert left == 0, f"{self.contender.title} has {left} runs left"

    def _command(self, verb: str, *values: object) -> list[str]:
        program = self.contender.program.format(store=self.store)
        where = [str(_ROOT / "benchmarks" / "contender" / program)]
        if program.endswith(".py"):
            where = ["-m", f"benchmarks.contender.{program.removesuffix('.py')}"]
        return [*self.environment.command, *where, verb, *map(json.dumps, values)]

    def _variables(self) -> dict[str, str]:
        options = {**self.contender.options, **self.options}
        return {
            **os.environ,
            **self.environment.variables,
            "BENCH_ROOT": str(_ROOT),
            "BENCH_URL": self.place.url,
            "BENCH_FOLDER": str(self.place.folder.resolve()),
            "BENCH_OPTIONS": json.dumps(options),
        }
