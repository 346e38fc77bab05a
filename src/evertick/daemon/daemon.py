"""The process of a daemon: a node, and what a service does beside it.

It handles signals, notifies the supervisor, looks whether its files have changed, and keeps its report. Pidfile and log
are taken before the node and given up after it: when the pidfile is gone, the next daemon may start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from evertick.clock import system_clock
from evertick.config.configuration import job_count, job_digests
from evertick.config.reload import Reloaded, Reloader
from evertick.daemon.logs import Logs
from evertick.daemon.process import Detached, Pidfile
from evertick.daemon.report import DaemonReport, remove_report, write_report
from evertick.daemon.systemd_notify import Notify, Watchdog
from evertick.scheduler.process import SideService
from evertick.scheduler.scheduler import Scheduler
from evertick.when import from_us

__all__ = ["Daemon", "DaemonResources"]

log = logging.getLogger("evertick.daemon")

_LOOK_SECONDS = 1.0
# What the last writes of a node take after its stop time, and what a start takes beyond waiting for its store.
_MARGIN_SECONDS = 30.0


class DaemonResources(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a daemon beside its node."""

    logs: Logs
    notify: Notify
    pidfile: Pidfile | None = None
    detached: Detached | None = None
    # Where its report goes.
    folder: Path
    # None: they are never read again.
    reloader: Reloader | None = None
    # Whether a changed file is enough; else a signal asks for a reload.
    looks_itself: bool = True


class Daemon(SideService):
    """Attends the node of a service: signals, supervisor, reloads, report."""

    def __init__(self, scheduler: Scheduler, report: DaemonReport, belongings: DaemonResources) -> None:
        self._scheduler = scheduler
        self._report = report
        self._has = belongings
        self._watchdog = Watchdog(belongings.notify, self._is_alive)
        self._asked = asyncio.Event()
        self._is_stopping = False

    def signals(self) -> Mapping[signal.Signals, Callable[[], None]]:
        return {signal.SIGUSR1: self._asked.set, signal.SIGUSR2: self._reopen}

    def waiting(self, why: str, seconds: float) -> None:
        self._has.notify.not_yet(f"waiting for the store: {why}", seconds=seconds + _MARGIN_SECONDS)
        self._let_go()

    def started(self) -> None:
        self._has.notify.ready(self._words())
        self._watchdog.start()
        self._keep_report()
        self._let_go()

    async def attend(self) -> None:
        reloader, looks = self._has.reloader, self._has.looks_itself
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS if reloader is not None and looks else None):
                    await self._asked.wait()
            is_asked = self._asked.is_set()
            self._asked.clear()
            if reloader is None:
                log.warning("SIGUSR1: ignored, since daemon.reload is off")
            elif is_asked:
                log.info("SIGUSR1: the configuration is read again")
                await self._reload(reloader, is_told=True)
            elif reloader.has_changed():
                await self._reload(reloader, is_told=False)

    def stopping(self, why: str) -> None:
        self._is_stopping = True
        seconds = self._scheduler.settings.stop_timeout / 1e6
        self._has.notify.stopping(f"{why}: draining", seconds=seconds + _MARGIN_SECONDS)

    def ended(self) -> None:
        """May be called twice, and by another thread where the event loop does not close."""
        self._watchdog.stop()
        remove_report(self._has.folder, self._report.pid)
        if self._has.pidfile is not None:
            self._has.pidfile.remove()
        self._has.notify.close()

    async def _reload(self, reloader: Reloader, *, is_told: bool) -> None:
        self._has.notify.reloading("reading the configuration again")
        try:
            came = await reloader.reload()
        except Exception as error:
            # The node goes on as it is, and the supervisor waits for the end of the reload.
            log.exception("the configuration could not be read again; all stays as it is")
            came = Reloaded(problems=(f"{type(error).__name__}: {error}",), jobs=self._report.jobs)
        # What is tried every second is not logged every second.
        if is_told or came.problems != self._report.problems or not came.problems:
            self._tell(came)
        self._report = msgspec.structs.replace(
            self._report,
            jobs=came.jobs,
            does=job_digests(reloader.configuration),
            reloaded_at=from_us(system_clock.now_us()),
            problems=came.problems,
            wants_restart=came.wants_restart,
        )
        self._keep_report()
        self._has.notify.ready(self._words())

    def _tell(self, came: Reloaded) -> None:
        for problem in came.problems:
            log.error("the new configuration does not hold: %s", problem)
        for warning in came.warnings:
            log.warning("%s", warning)
        if not came.problems:
            changes = f"; {came.changes.words()}" if came.changes else ""
            log.info("the configuration was read again: %s%s", job_count(came.jobs), changes)
        if came.wants_restart:
            log.warning("changed, but not in force before a restart: %s", ", ".join(came.wants_restart))

    def _words(self) -> str:
        """For the status of the supervisor."""
        jobs, problems = self._report.jobs, self._report.problems
        wrong = f"; the new configuration does not hold: {problems[0]}" if problems else ""
        return f"running {job_count(jobs)}{wrong}"

    def _keep_report(self) -> None:
        self._report = msgspec.structs.replace(self._report, node_id=self._scheduler.runtime.node_id)
        try:
            write_report(self._has.folder, self._report)
        except OSError as error:
            log.warning("the report in %s cannot be written: %s", self._has.folder, error)

    def _reopen(self) -> None:
        self._has.logs.reopen()
        log.info("SIGUSR2: the log was opened anew")

    def _let_go(self) -> None:
        """Let the terminal go, and the command that started this daemon return."""
        if self._has.detached is not None:
            self._has.detached.ready()

    def _is_alive(self) -> bool:
        return self._is_stopping or self._scheduler.runtime.is_moving
