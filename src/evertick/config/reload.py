"""Reload: a running node reads its files again when one of them changes, or on a signal.

The new configuration is checked first, also against the ledger. An error leaves the node as it is. Otherwise the
ledger takes the new jobs in one transaction, and then the node does, without a stop: running work continues as it was
claimed. New brokers are connected too. Changes of other settings are reported, and take effect after a restart. A job
that needs such a setting makes the reload fail.
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

# Names that a message lists of each kind.
_NAMED_MOST = 10


class JobDiff(msgspec.Struct, frozen=True, kw_only=True):
    """The names of jobs that differ between two configurations."""

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
        # Imported jobs are disabled at first, and the message says so.
        added=tuple(f"{name}{'' if job.is_enabled else ' (disabled)'}" for name, job in new.items() if name not in old),
        changed=tuple(job.name for was, job in both if _content(was) != _content(job)),
        gone=tuple(name for name in old if name not in new),
    )


def _content(job: Job) -> tuple[object, ...]:
    """Everything but its place, so that moving a job in its file is no change."""
    calendars = tuple(None if each is None else each.version for each in (job.rule.calendar, job.blackout))
    return job.rule.text, calendars, job.definition, job.spec, job.task_options, job.description, job.is_enabled


def _named(names: tuple[str, ...]) -> str:
    more = len(names) - _NAMED_MOST
    return ", ".join(names[:_NAMED_MOST]) + (f" and {more} more" if more > 0 else "")


_FIX = "restart the node to apply the configuration, or remove the job until then"


def check_restart_required(scheduler: Scheduler, now: Configuration, loaded: Configuration, problems: Problems) -> None:
    """Report jobs that need a restart. `now` is the configuration in force."""
    # Computed once for thousands of jobs.
    wanted, connections = loaded.settings, connections_of(loaded)
    known = {job.name: (job.spec, job.definition.queue) for job in now.jobs}
    for job in loaded.jobs:
        if known.get(job.name) != (job.spec, job.definition.queue):
            for key, reason in _needs(scheduler, wanted, connections, job):
                problems.add(job.places.get(key, job.place), f"jobs.{job.name}.{key}", f"{reason}; {_FIX}")


def _needs(
    scheduler: Scheduler, wanted: Mapping[str, Any], connections: Mapping[str, object], job: Job
) -> Iterator[tuple[str, str]]:
    """Keys of the job that need a restart, with the reason. `wanted` and `connections` apply after a restart."""
    driver, in_force = "" if job.spec is None else job.spec.driver, scheduler.settings
    if driver in wanted["drivers"] and driver not in in_force.drivers:
        yield driver, f"node.drivers enables the driver {driver!r} after a restart"
    queue = job.definition.queue
    if queue in wanted["queues"] and queue not in in_force.queues:
        yield "queue", f"node.queues adds the queue {queue!r} after a restart"
    if driver in BROKERS and driver in in_force.drivers:
        has, gets = scheduler.runtime.connections.get(driver), connections.get(driver)
        if has is None and gets is None:
            yield driver, f"[{driver}] configures no server, and node.drivers drops the driver after a restart"
        elif has is not None and gets is not None and has != gets:
            yield driver, f"changes of [{driver}] take effect after a restart"


log = logging.getLogger("evertick.config")

# Modification time, size and inode of each file. None: the file is missing.
_Look = dict[Path, tuple[int, int, int] | None]


class Reloaded(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a reload."""

    # With any, the previous configuration stays in force.
    problems: tuple[str, ...] = ()
    # Likely mistakes, as `evertick config check` shows them.
    warnings: tuple[str, ...] = ()
    # The number of jobs now, and the changes of this reload.
    jobs: int = 0
    changes: JobDiff = JobDiff()
    # Changed keys that take effect after a restart.
    wants_restart: tuple[str, ...] = ()


class Reloader:
    """Applies changes of the configuration files to a scheduler."""

    def __init__(
        self,
        scheduler: Scheduler,
        configuration: Configuration,
        *,
        environ: Mapping[str, str] = os.environ,
        flags: Mapping[str, tuple[str, Any]] | None = None,
        on_loaded: Callable[[Configuration], None] = lambda _: None,
    ) -> None:
        """`on_loaded` is called with each configuration that was read, before it is applied."""
        self._scheduler = scheduler
        self._on_loaded = on_loaded
        # The configuration in force. Its jobs are those of the node.
        self._now = configuration
        # The values in force: those of the start, and those of brokers that were added since.
        self._in_force = dict(configuration.values)
        # The files that were read last, valid or not.
        self._read = dict(configuration.digests)
        self._environ = environ
        self._flags = flags or {}
        self._look = self._seen = self._looked()
        # Whether the reload must be retried although the files are the same: the ledger was unreachable.
        self._is_unfinished = False
        # Changes that were applied and not reported yet.
        self._changes = JobDiff()
        # Files rejected for their owner or mode at the last reading. A `chmod` changes nothing else of a file.
        self._distrusted: tuple[str, ...] = ()

    @property
    def configuration(self) -> Configuration:
        """The configuration in force."""
        return self._now

    def has_changed(self) -> bool:
        """Whether files differ from those that were read last, and are unchanged since the last look.

        Costs a `stat` of each file. A file that is still being written waits for the next look.
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
        """Read the files and apply them. With an error, the node stays as it is."""
        outcome = await self._reload()
        self._scheduler.runtime.record_reload(outcome.problems)
        return outcome

    async def _reload(self) -> Reloaded:
        self._seen = self._look = look = self._looked()
        self._read = self._digests(look)
        self._is_unfinished = False
        self._distrusted = self._refused_files()
        try:
            loaded = await self._loaded()
            self._on_loaded(loaded)
            unrecorded = await self._take(loaded)
        except InvalidConfiguration as wrong:
            return self._outcome(*wrong.problems)
        except InvalidInput as wrong:
            return self._outcome(str(wrong))
        except EvertickError as error:
            # The ledger is unreachable, or another node changed it at the same time.
            self._is_unfinished = True
            return self._outcome(
                f"not applied yet: {error}; the previous configuration stays in force, and the reload is retried"
            )
        self._read = dict(loaded.digests)
        self._seen = self._look = self._looked()
        if unrecorded is not None:
            self._is_unfinished = True
            return self._outcome(
                f"applied, but the ledger has not recorded it for this node: {unrecorded}; the reload is retried"
            )
        return self._outcome()

    async def _take(self, loaded: Configuration) -> EvertickError | None:
        """Check the rest, then apply it. An error leaves everything as it was."""
        scheduler, problems = self._scheduler, Problems()
        check_restart_required(scheduler, self._now, loaded, problems)
        problems.raise_any()
        jobs = await self._with_jobs(loaded)
        await check_calendars(scheduler, loaded.jobs, problems)
        problems.raise_any()
        connections = connections_of(loaded)
        new = {name: each for name, each in connections.items() if name not in scheduler.runtime.connections}
        disabled = [job.name for job in loaded.jobs if not job.is_enabled]
        unrecorded = await scheduler.runtime.take_configuration(
            jobs, added=new, replaced={"http": loaded.http}, disabled=disabled
        )
        self._changes = self._changes or job_diff(self._now.jobs, loaded.jobs)
        self._now = loaded
        self._in_force |= {key: each for key, each in loaded.values.items() if _applies_now(key, new)}
        return unrecorded

    async def _loaded(self) -> Configuration:
        """Read and check in a thread, since thousands of jobs take seconds."""
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

    def _outcome(self, *problems: str) -> Reloaded:
        changes = JobDiff() if problems else self._changes
        self._changes = JobDiff() if not problems else self._changes
        return Reloaded(
            problems=problems,
            # With errors, warnings are reported after the errors are fixed.
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
        """Files that were read, and files that match a pattern now."""
        return {*self._now.digests, *(path for each in self._now.patterns for path in each.matched())}

    def _looked(self) -> _Look:
        return {path: _look_at(path) for path in self._paths()}

    def _refused_files(self) -> tuple[str, ...]:
        """Files rejected for their owner or mode, a line each with the reason."""
        if not is_refused():
            return ()
        found = (each for path in sorted(self._paths()) for each in distrusted_file(path, self._environ))
        return tuple(dict.fromkeys(map(str, found)))

    def _digests(self, look: _Look) -> dict[Path, str]:
        return {path: _digest(path) for path, found in look.items() if found is not None}


def _applies_now(key: str, new: Collection[str]) -> bool:
    """Whether the key belongs to a new broker. `nats.events` needs a restart, since its duty starts with the node."""
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
