"""The files of a running node, read again: when one of them changes, or when somebody asks.

They are checked first, also against the ledger. If anything is wrong, the node goes on with what it has. If all is
right the ledger takes them in one transaction, and then the node its jobs, without a stop: what runs, runs on as it was
claimed. A broker that it had not known is taken up with them. Other settings count from the next start on, which is
told; a job that needs one of them before that is refused, and with it all the rest.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from evertick.config.adding import add_job, check_calendars
from evertick.config.build import connections_of
from evertick.config.job_diff import JobNews, news_of
from evertick.config.load import Configuration, load_configuration
from evertick.config.ownership import distrusted_file, is_refused
from evertick.config.problem import Problems
from evertick.config.restart_required import check_not_premature
from evertick.config.toml import FILE_MAX_BYTES, digest_of
from evertick.errors import EvertickError, InvalidConfiguration, InvalidInput
from evertick.scheduler.scheduler import JobSet, Scheduler
from evertick.text.regular_file import read_regular

__all__ = ["Reloaded", "Reloader"]

log = logging.getLogger("evertick.config")

# Of a file: when it was written, its size, and which file it is. None: it is not there.
_Look = dict[Path, tuple[int, int, int] | None]


class Reloaded(msgspec.Struct, frozen=True, kw_only=True):
    """What came of reading the files again."""

    # What is wrong with them; the older state holds then.
    problems: tuple[str, ...] = ()
    # What is hardly meant in them, as `evertick config check` tells it.
    warnings: tuple[str, ...] = ()
    # How many jobs there are now; and of those that this reload has brought, changed and taken away, the names.
    jobs: int = 0
    news: JobNews = JobNews()
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
        on_loaded: Callable[[Configuration], None] = lambda _: None,
    ) -> None:
        """`on_loaded` hears of a configuration that was read before anything is done with it."""
        self._scheduler = scheduler
        self._on_loaded = on_loaded
        # What it has now; what was read last, right or wrong; and the values that are in force: those that the node was
        # started with, and of brokers that have come since, theirs.
        self._now = configuration
        self._in_force = dict(configuration.values)
        self._read = dict(configuration.digests)
        self._environ = environ
        self._flags = flags or {}
        self._look = self._seen = self._looked()
        # Whether the ledger was away, so that it is to be tried again though the files are the same.
        self._is_unfinished = False
        # What was taken up and is not told yet.
        self._news = JobNews()
        # Who else could change the files when they were read last; a `chmod` changes nothing else of them.
        self._distrusted: tuple[str, ...] = ()

    @property
    def configuration(self) -> Configuration:
        """What holds now."""
        return self._now

    def has_changed(self) -> bool:
        """Whether the files are others than those that were read last, and rest since the last look.

        Costs a look at each file. One that is still being written is left alone until the next time.
        """
        if self._is_unfinished or (self._distrusted and self._distrusted != self._refused_files()):
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
        self._scheduler.runtime.configuration_problems = came.problems
        return came

    async def _reload(self) -> Reloaded:
        self._seen = self._look = look = self._looked()
        self._read = self._digests(look)
        self._is_unfinished = False
        self._distrusted = self._refused_files()
        try:
            loaded = await self._loaded()
            self._on_loaded(loaded)
            untold = await self._take(loaded)
        except InvalidConfiguration as wrong:
            return self._came(*wrong.problems)
        except InvalidInput as wrong:
            return self._came(str(wrong))
        except EvertickError as error:
            # The ledger is away, or somebody else has changed it at the same moment.
            self._is_unfinished = True
            return self._came(f"it is not taken up yet: {error}; what was before holds, and it is tried again")
        self._read = dict(loaded.digests)
        self._seen = self._look = self._looked()
        if untold is not None:
            self._is_unfinished = True
            return self._came(
                f"it holds, but the ledger does not know so of this node yet: {untold}; it is tried again"
            )
        return self._came()

    async def _take(self, loaded: Configuration) -> EvertickError | None:
        """Check what is left to be checked, then have it. Whatever raises here has changed nothing."""
        scheduler, problems = self._scheduler, Problems()
        check_not_premature(scheduler, self._now, loaded, problems)
        problems.raise_any()
        jobs = await self._with_jobs(loaded)
        await check_calendars(scheduler, loaded.jobs, problems)
        problems.raise_any()
        connections, known = connections_of(loaded), scheduler.runtime.connections
        new = {name: each for name, each in connections.items() if name not in known}
        # Before the jobs that need it: nobody else asks for it, and nothing is opened by it.
        known |= new
        try:
            disabled = [job.name for job in loaded.jobs if not job.is_enabled]
            untold = await scheduler.runtime.exchange.take(jobs, disabled=disabled)
        except BaseException:
            for name in new:
                del known[name]
            raise
        known["http"] = loaded.http
        self._news = self._news or news_of(self._now.jobs, loaded.jobs)
        self._now = loaded
        self._in_force |= {key: each for key, each in loaded.values.items() if _is_taken_up(key, new)}
        return untold

    async def _loaded(self) -> Configuration:
        """Read and check, in a thread: with thousands of jobs it takes seconds, in which the node goes on."""
        file, environ, flags = self._now.file, self._environ, self._flags
        loaded = await self._scheduler.runtime.threads.call(lambda: load_configuration(file, environ, flags))
        assert isinstance(loaded, Configuration)
        return loaded

    async def _with_jobs(self, loaded: Configuration) -> JobSet:
        scheduler, problems = self._scheduler, Problems()
        gone = {job.name for job in self._now.jobs if job.spec is not None}
        adds = (partial(add_job, scheduler, job, problems) for job in loaded.jobs)
        jobs = await scheduler.runtime.exchange.prepare(gone, adds, tz=loaded.node.tz)
        problems.raise_any()
        return jobs

    def _came(self, *problems: str) -> Reloaded:
        news = JobNews() if problems else self._news
        self._news = JobNews() if not problems else self._news
        return Reloaded(
            problems=problems,
            # Of files that are wrong, these come after they are mended.
            warnings=() if problems else self._now.warnings,
            jobs=len(self._now.jobs),
            news=news,
            wants_restart=self._wants_restart(),
        )

    def _wants_restart(self) -> tuple[str, ...]:
        before, now = self._in_force, self._now.values
        changed = [key for key, value in now.items() if value.value != before[key].value and not value.about.is_live]
        return tuple(changed)

    # --- looking

    def _paths(self) -> set[Path]:
        """What was read, and what would be read now by its name."""
        return {*self._now.digests, *(path for each in self._now.patterns for path in each.matched())}

    def _looked(self) -> _Look:
        return {path: _look_at(path) for path in self._paths()}

    def _refused_files(self) -> tuple[str, ...]:
        """Why files are refused for their owners and modes, a line each."""
        if not is_refused():
            return ()
        found = (each for path in sorted(self._paths()) for each in distrusted_file(path, self._environ))
        return tuple(dict.fromkeys(map(str, found)))

    def _digests(self, look: _Look) -> dict[Path, str]:
        return {path: _digest(path) for path, found in look.items() if found is not None}


def _is_taken_up(key: str, new: Collection[str]) -> bool:
    """Whether a broker that has come since brings it. What publishes events is made at the start."""
    return key.partition(".")[0] in new and key != "nats.events"


def _look_at(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _digest(path: Path) -> str:
    try:
        return digest_of(read_regular(path, FILE_MAX_BYTES))
    except OSError:
        return ""
