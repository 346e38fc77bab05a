"""The daemon: runs beside a node, and handles signals, notifications of the supervisor, reloads and the report.

Pidfile and log are opened before the node starts and released after it has stopped: when the pidfile is gone, the next
daemon may start.
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

# How often the configuration files are checked for changes.
_LOOK_SECONDS = 1.0
# How long the last writes of a node take after its stop time, and a start beyond the wait for the store.
_MARGIN_SECONDS = 30.0


class DaemonResources(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a daemon beside its node."""

    logs: Logs
    notify: Notify
    pidfile: Pidfile | None = None
    detached: Detached | None = None
    # The directory of the report.
    folder: Path
    # None: `daemon.reload` is off.
    reloader: Reloader | None = None
    # Whether a changed file causes a reload; otherwise only SIGUSR1 does.
    looks_itself: bool = True


class Daemon(SideService):
    """The side service of a daemon's node: signals, supervisor, reloads, report."""

    def __init__(self, scheduler: Scheduler, report: DaemonReport, resources: DaemonResources) -> None:
        self._scheduler = scheduler
        self._report = report
        self._resources = resources
        self._watchdog = Watchdog(resources.notify, self._is_alive)
        self._reload_asked = asyncio.Event()
        self._is_stopping = False

    def signals(self) -> Mapping[signal.Signals, Callable[[], None]]:
        return {signal.SIGUSR1: self._reload_asked.set, signal.SIGUSR2: self._reopen}

    def waiting(self, why: str, seconds: float) -> None:
        self._resources.notify.extend_start(f"waiting for the store: {why}", seconds=seconds + _MARGIN_SECONDS)
        self._release_terminal()

    def started(self) -> None:
        self._resources.notify.ready(self._status())
        self._watchdog.start()
        self._write_report()
        self._release_terminal()

    async def attend(self) -> None:
        reloader, looks = self._resources.reloader, self._resources.looks_itself
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS if reloader is not None and looks else None):
                    await self._reload_asked.wait()
            is_asked = self._reload_asked.is_set()
            self._reload_asked.clear()
            if reloader is None:
                log.warning("SIGUSR1: ignored: daemon.reload is off")
            elif is_asked:
                log.info("SIGUSR1: reloading the configuration")
                await self._reload(reloader, is_asked=True)
            elif reloader.has_changed():
                await self._reload(reloader, is_asked=False)

    def stopping(self, why: str) -> None:
        self._is_stopping = True
        seconds = self._scheduler.settings.stop_timeout / 1e6
        self._resources.notify.stopping(f"{why}: draining", seconds=seconds + _MARGIN_SECONDS)

    def ended(self) -> None:
        """May be called twice, and by another thread if the event loop does not close."""
        self._watchdog.stop()
        remove_report(self._resources.folder, self._report.pid)
        if self._resources.pidfile is not None:
            self._resources.pidfile.remove()
        self._resources.notify.close()

    async def _reload(self, reloader: Reloader, *, is_asked: bool) -> None:
        self._resources.notify.reloading("reloading the configuration")
        try:
            result = await reloader.reload()
        except Exception as error:
            # The node continues, and the supervisor expects the end of the reload.
            log.exception("configuration reload failed; the previous configuration stays in force")
            result = Reloaded(problems=(f"{type(error).__name__}: {error}",), jobs=self._report.jobs)
        # A reload that fails every second is logged once.
        if is_asked or result.problems != self._report.problems or not result.problems:
            self._log_reload(result)
        self._report = msgspec.structs.replace(
            self._report,
            jobs=result.jobs,
            does=job_digests(reloader.configuration),
            reloaded_at=from_us(system_clock.now_us()),
            problems=result.problems,
            wants_restart=result.wants_restart,
        )
        self._write_report()
        self._resources.notify.ready(self._status())

    def _log_reload(self, result: Reloaded) -> None:
        for problem in result.problems:
            log.error("new configuration rejected: %s", problem)
        for warning in result.warnings:
            log.warning("%s", warning)
        if not result.problems:
            changes = f"; {result.changes.words()}" if result.changes else ""
            log.info("configuration reloaded: %s%s", job_count(result.jobs), changes)
        if result.wants_restart:
            log.warning("changes to %s take effect after a restart", ", ".join(result.wants_restart))

    def _status(self) -> str:
        """The status line for the supervisor."""
        jobs, problems = self._report.jobs, self._report.problems
        rejected = f"; new configuration rejected: {problems[0]}" if problems else ""
        return f"running {job_count(jobs)}{rejected}"

    def _write_report(self) -> None:
        self._report = msgspec.structs.replace(self._report, node_id=self._scheduler.runtime.node_id)
        try:
            write_report(self._resources.folder, self._report)
        except OSError as error:
            log.warning("daemon report in %s: writing failed: %s", self._resources.folder, error)

    def _reopen(self) -> None:
        self._resources.logs.reopen()
        log.info("SIGUSR2: log file reopened")

    def _release_terminal(self) -> None:
        """Close the terminal, and let the command that started this daemon return."""
        if self._resources.detached is not None:
            self._resources.detached.ready()

    def _is_alive(self) -> bool:
        return self._is_stopping or self._scheduler.runtime.is_moving
