"""A trial: one contender on one empty store. A measurement gets a trial and knows nothing else of either."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from benchmarks.backend.protocol import Backend, LedgerBackend
from benchmarks.contender import tally
from benchmarks.contender.contenders import Contender
from benchmarks.contender.environment import Environment
from benchmarks.processes import Workers, start
from benchmarks.size import Size

__all__ = ["Trial"]

_ROOT = Path(__file__).parents[1]
_CALL_SECONDS = 3_600
_LOOK_SECONDS = 0.01
_STALL_SECONDS = 60


@dataclass(frozen=True)
class Trial:
    """`number` counts runs, schedules or fires, depending on the measurement."""

    backend: Backend
    contender: Contender
    environment: Environment
    store: str
    processes: int
    number: int
    size: Size
    another_backend: Callable[[], AbstractContextManager[Backend]]
    variant: str = ""
    # A short preview decides whether the case needs rounds.
    is_preview: bool = False
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def ledger(self) -> LedgerBackend:
        """The backend of a contender whose ledger can be read back."""
        assert self.contender.has_ledger
        return cast("LedgerBackend", self.backend)

    def call(self, verb: str, *values: object) -> Any:
        """Call a verb of the program in a new process."""
        return self.call_all(verb, [values])[0]

    def call_all(self, verb: str, values: Sequence[Sequence[object]]) -> list[Any]:
        """Call it once for each of the values, all at the same time, each in a new process."""
        outs = [self.backend.folder / f"{verb}{number}.out" for number in range(len(values))]
        for out in outs:
            out.unlink(missing_ok=True)
        started = [
            start(self._command(verb, *own), self._variables(), out) for own, out in zip(values, outs, strict=True)
        ]
        codes = [each.wait(_CALL_SECONDS) for each in started]
        printed = [out.read_text(errors="replace") for out in outs]
        for code, text in zip(codes, printed, strict=True):
            assert code == 0, f"{self.contender.title}, {verb}, exit code {code}: {text[-2_000:]}"
        return [json.loads(text.splitlines()[-1]) for text in printed]

    @contextmanager
    def workers(self, verb: str, *values: object, count: int | None = None) -> Iterator[Workers]:
        """The worker processes, which wait for `go`."""
        count = self.processes if count is None else count
        workers = Workers(self._command(verb, *values), self._variables(), self.backend.folder, count)
        try:
            yield workers
        finally:
            workers.stop()

    def executed(self) -> int:
        return tally.total(self.backend.folder)

    def wait_for(
        self, executed: int, workers: Workers, seconds: float, poll: Callable[[], None] = lambda: None
    ) -> None:
        """Wait for that many executions, and fail if there is none for a minute. `poll` is called meanwhile."""
        now = time.monotonic()
        until, stalled, before = now + seconds, now + _STALL_SECONDS, 0
        while (seen := self.executed()) < executed:
            workers.check_alive()
            poll()
            now = time.monotonic()
            assert now < until, f"{seen} of {executed} were executed in {seconds:g} s:\n{workers.output()}"
            if seen > before:
                stalled, before = now + _STALL_SECONDS, seen
            assert now < stalled, f"{seen} of {executed} were executed, then none for a minute:\n{workers.output()}"
            time.sleep(_LOOK_SECONDS)

    def executions(self) -> tally.Executions:
        return tally.executions(self.backend.folder)

    def clear_executions(self) -> None:
        tally.clear(self.backend.folder)

    def check(self, count: int, existing: int = 0) -> None:
        """Check that no run was lost or executed twice, and that the store agrees; it had `existing` runs before."""
        self.executions().check_each_once(count)
        self.check_store(existing + count)

    def check_store(self, count: int) -> None:
        """Check that all runs have ended, by the ledger or as far as a peer reports it."""
        if self.contender.has_ledger:
            self.ledger.check(count)
        else:
            remaining = self.call("remaining")
            assert remaining == 0, f"{self.contender.title} has {remaining} runs left"

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
            "BENCH_URL": self.backend.url,
            "BENCH_FOLDER": str(self.backend.folder.resolve()),
            "BENCH_OPTIONS": json.dumps(options),
        }
