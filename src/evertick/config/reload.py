"""The files of a running node, read again: when one of them changes, or when somebody asks.

They are checked first. If anything is wrong, the node goes on with what it has. If all is right its jobs are exchanged
without a stop: what runs, runs on as it was claimed. Other settings count from the next start on, which is told.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from evertick.config.adding import add_jobs
from evertick.config.load import Configuration, load_configuration
from evertick.config.problem import Problems
from evertick.config.toml import FILE_MAX_BYTES, digest_of
from evertick.errors import EvertickError, InvalidConfiguration
from evertick.scheduler import Scheduler

__all__ = ["Reloaded", "Reloader"]

# Of a file: when it was written, its size, and which file it is. None: it is not there.
_Look = dict[Path, tuple[int, int, int] | None]


class Reloaded(msgspec.Struct, frozen=True, kw_only=True):
    """What came of reading the files again."""

    # What is wrong with them; the older state holds then.
    problems: tuple[str, ...] = ()
    # How many jobs there are now.
    jobs: int = 0
    # Keys that have changed and count from the next start on.
    wants_restart: tuple[str, ...] = ()


class Reloader:
    """Keeps a scheduler in line with the files it was made from."""

    def __init__(
        self,
        scheduler: Scheduler,
        configuration: Configuration,
        *,
        environ: Mapping[str, str] = os.environ,
        flags: Mapping[str, tuple[str, Any]] | None = None,
    ) -> None:
        self._scheduler = scheduler
        # What the node was started with; what it has now; what was read last, right or wrong.
        self._first = self._now = configuration
        self._read = dict(configuration.digests)
        self._environ = environ
        self._flags = flags or {}
        self._look = self._seen = self._looked()
        # What could not be told to the ledger yet, because that was away.
        self._is_unpublished = False

    @property
    def configuration(self) -> Configuration:
        """What holds now."""
        return self._now

    def has_changed(self) -> bool:
        """Whether the files are others than those that were read last, and rest since the last look.

        Costs a look at each file. One that is still being written is left alone until the next time.
        """
        if self._is_unpublished:
            return True
        look, before = self._looked(), self._look
        self._look = look
        if look == self._seen or look != before:
            return False
        self._seen = look
        return self._digests(look) != self._read

    async def reload(self) -> Reloaded:
        """Read them, and let the node be as they say; if they are wrong, it stays as it is."""
        came = await self._reload()
        self._scheduler._configuration_problems = came.problems
        return came

    async def _reload(self) -> Reloaded:
        self._seen = self._look = look = self._looked()
        self._read = self._digests(look)
        try:
            loaded = load_configuration(self._now.file, self._environ, self._flags)
            self._exchange(loaded)
        except InvalidConfiguration as wrong:
            return Reloaded(problems=wrong.problems, jobs=len(self._now.jobs), wants_restart=self._wants_restart())
        self._now = loaded
        self._read = dict(loaded.digests)
        self._seen = self._look = self._looked()
        self._is_unpublished = True
        try:
            await self._scheduler._publish_jobs()
        except EvertickError as error:
            said = f"the new jobs are not in the ledger yet: {error}; it is tried again"
            return Reloaded(problems=(said,), jobs=len(loaded.jobs), wants_restart=self._wants_restart())
        self._is_unpublished = False
        return Reloaded(jobs=len(loaded.jobs), wants_restart=self._wants_restart())

    def _exchange(self, loaded: Configuration) -> None:
        problems = Problems()

        def add() -> None:
            add_jobs(self._scheduler, loaded.jobs, problems)
            problems.raise_any()

        gone = [job.name for job in self._now.jobs if job.spec is not None]
        self._scheduler._take_jobs(gone, add, tz=loaded.node.tz)
        self._scheduler._connections["http"] = loaded.http

    def _wants_restart(self) -> tuple[str, ...]:
        first, now = self._first.values, self._now.values
        changed = [key for key, value in now.items() if value.value != first[key].value and not value.about.is_live]
        return tuple(changed)

    # --- looking

    def _paths(self) -> set[Path]:
        """What was read, and what would be read now by its name."""
        return {*self._now.digests, *(path for each in self._now.patterns for path in each.matched())}

    def _looked(self) -> _Look:
        return {path: _look_at(path) for path in self._paths()}

    def _digests(self, look: _Look) -> dict[Path, str]:
        return {path: _digest(path) for path, found in look.items() if found is not None}


def _look_at(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _digest(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return digest_of(file.read(FILE_MAX_BYTES + 1))
    except OSError:
        return ""
