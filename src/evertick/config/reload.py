"""The files of a running node, read again: when one of them changes, or on a signal.

They are checked first, also against the ledger. If anything is wrong, the node goes on with what it has. If all is
right the ledger takes them in one transaction, and then the node its jobs, without a stop: what runs, runs on as it was
claimed. A broker that it had not known is taken up with them. Other settings count from the next start on, which is
told; a job that needs one of them before that is refused, and with it all the rest.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from evertick.config.adding import add_job, check_calendars
from evertick.config.brokers import BROKERS
from evertick.config.build import connections_of
from evertick.config.configuration import Configuration
from evertick.config.files import FILE_MAX_BYTES, digest_of
from evertick.config.job import Job
from evertick.config.load import load_configuration
from evertick.config.ownership import distrusted_file, is_refused
from evertick.config.problem import Problems
from evertick.errors import EvertickError, InvalidConfiguration, InvalidInput
from evertick.scheduler.scheduler import JobSet, Scheduler
from evertick.text.regular_file import read_regular

__all__ = ["JobDiff", "Reloaded", "Reloader"]

# Of each kind.
_NAMED_MOST = 10


class JobDiff(msgspec.Struct, frozen=True, kw_only=True):
    """Names of jobs."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.gone)

    def words(self) -> str:
        """Like "added: a; changed: b, c; gone: d (`evertick apply --prune` removes it)"."""
        return "; ".join(self._parts())

    def _parts(self) -> Iterator[str]:
        if self.added:
            yield f"added: {_named(self.added)}"
        if self.changed:
            yield f"changed: {_named(self.changed)}"
        if self.gone:
            those = "it" if len(self.gone) == 1 else "them"
            yield f"gone: {_named(self.gone)} (`evertick apply --prune` removes {those})"


def job_diff(before: Iterable[Job], now: Iterable[Job]) -> JobDiff:
    old, new = ({job.name: job for job in jobs} for jobs in (before, now))
    both = [(old[name], job) for name, job in new.items() if name in old]
    return JobDiff(
        # After an import it shows that they do not run yet.
        added=tuple(f"{name}{'' if job.is_enabled else ' (disabled)'}" for name, job in new.items() if name not in old),
        changed=tuple(job.name for was, job in both if _content(was) != _content(job)),
        gone=tuple(name for name in old if name not in new),
    )


def _content(job: Job) -> tuple[object, ...]:
    """All but its place: a job that has moved to another line is the same."""
    calendars = tuple(None if each is None else each.version for each in (job.rule.calendar, job.blackout))
    return job.rule.text, calendars, job.definition, job.spec, job.task_options, job.description, job.is_enabled


def _named(names: tuple[str, ...]) -> str:
    more = len(names) - _NAMED_MOST
    return ", ".join(names[:_NAMED_MOST]) + (f" and {more} more" if more > 0 else "")


_FIX = "restart the node to take all of it up, or take the job away until then"


def check_restart_required(scheduler: Scheduler, now: Configuration, loaded: Configuration, problems: Problems) -> None:
    """Refuse what can only be after a restart. `now` is what the node has, as far as jobs go."""
    # Once, not for each of thousands of jobs.
    wanted, connections = loaded.settings, connections_of(loaded)
    known = {job.name: (job.spec, job.definition.queue) for job in now.jobs}
    for job in loaded.jobs:
        if known.get(job.name) != (job.spec, job.definition.queue):
            for key, said in _needs(scheduler, wanted, connections, job):
                problems.add(job.places.get(key, job.place), f"jobs.{job.name}.{key}", f"{said}; {_FIX}")


def _needs(
    scheduler: Scheduler, wanted: Mapping[str, Any], connections: Mapping[str, object], job: Job
) -> Iterator[tuple[str, str]]:
    """By the keys of the job that ask for it. `wanted`: the settings of the next start, and its connections."""
    driver, in_force = "" if job.spec is None else job.spec.driver, scheduler.settings
    if driver in wanted["drivers"] and driver not in in_force.drivers:
        yield driver, f"node.drivers enables the driver {driver!r} from the next start on"
    queue = job.definition.queue
    if queue in wanted["queues"] and queue not in in_force.queues:
        yield "queue", f"node.queues has the queue {queue!r} from the next start on"
    if driver in BROKERS and driver in in_force.drivers:
        has, gets = scheduler.runtime.connections.get(driver), connections.get(driver)
        if has is None and gets is None:
            yield driver, f"it is not said where the server is under [{driver}], and node.drivers leaves the driver"
        elif has is not None and gets is not None and has != gets:
            yield driver, f"this node goes by what [{driver}] has changed to from the next start on"


log = logging.getLogger("evertick.config")

# Of a file: when it was written, its size, and which file it is. None: it is not there.
_Look = dict[Path, tuple[int, int, int] | None]


class Reloaded(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a reload."""

    # With any, the older state holds.
    problems: tuple[str, ...] = ()
    # Likely mistakes, as `evertick config check` shows them.
    warnings: tuple[str, ...] = ()
    # How many jobs there are now; and of those that this reload has brought, changed and taken away, the names.
    jobs: int = 0
    changes: JobDiff = JobDiff()
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
        self._changes = JobDiff()
        # Why files were refused when they were read last; a `chmod` changes nothing else of them.
        self._distrusted: tuple[str, ...] = ()

    @property
    def configuration(self) -> Configuration:
        """The configuration in force."""
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
        self._scheduler.runtime.record_reload(came.problems)
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
            # The ledger is away, or another node has changed it at the same moment.
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
        check_restart_required(scheduler, self._now, loaded, problems)
        problems.raise_any()
        jobs = await self._with_jobs(loaded)
        await check_calendars(scheduler, loaded.jobs, problems)
        problems.raise_any()
        connections = connections_of(loaded)
        new = {name: each for name, each in connections.items() if name not in scheduler.runtime.connections}
        disabled = [job.name for job in loaded.jobs if not job.is_enabled]
        untold = await scheduler.runtime.take_configuration(
            jobs, added=new, replaced={"http": loaded.http}, disabled=disabled
        )
        self._changes = self._changes or job_diff(self._now.jobs, loaded.jobs)
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
        changes = JobDiff() if problems else self._changes
        self._changes = JobDiff() if not problems else self._changes
        return Reloaded(
            problems=problems,
            # Of files that are wrong, these come after they are mended.
            warnings=() if problems else self._now.warnings,
            jobs=len(self._now.jobs),
            changes=changes,
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
