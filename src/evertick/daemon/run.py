"""Runs a daemon from its configuration.

The daemon takes the state directory, the pidfile and the log, in this order. Then the node starts, which waits for its
store. The store is not touched before the pidfile is taken.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import unquote

from evertick.clock import system_clock
from evertick.config.build import scheduler_from
from evertick.config.configuration import job_digests
from evertick.config.load import Configuration
from evertick.config.reload import Reloader
from evertick.daemon.daemon import Daemon, DaemonResources
from evertick.daemon.logs import Logs, Redactor, set_up_logs
from evertick.daemon.process import Detached, Pidfile, started_at_tick
from evertick.daemon.report import DaemonReport, read_previous_reports
from evertick.daemon.systemd_notify import Notify
from evertick.doctor.finding import named
from evertick.driver.secret import SECRET_VARIABLE, Secrets
from evertick.engine.node import declarer_of
from evertick.errors import EvertickError
from evertick.scheduler.process import run_process
from evertick.scheduler.scheduler import Scheduler
from evertick.text.redact import masked
from evertick.version import VERSION
from evertick.when import from_us

__all__ = ["run_daemon", "secrets_known"]

log = logging.getLogger("evertick.daemon")

# After the user, before the host. A URL may name several hosts.
_PASSWORD = re.compile(r"(?:://|,)[^\s/:@,]*:([^\s/@]+)@")
# In a NATS URL, a user without a password is a token.
_TOKEN = re.compile(r"(?:nats|tls)://([^\s/:@,]+)@")


class _HiddenSecrets(Secrets):
    """The secrets of the node. Each value is hidden from the log before a job gets it."""

    def __init__(self, secrets: Secrets, hidden: Redactor) -> None:
        super().__init__()
        self._secrets, self._hidden = secrets, hidden

    def resolve(self, name: str) -> str:
        value = self._secrets.resolve(name)
        self._hidden.add(value)
        return value


def run_daemon(
    configuration: Configuration,
    *,
    flags: Mapping[str, tuple[str, Any]],
    verbose: int = 0,
    detached: Detached | None = None,
    environ: MutableMapping[str, str] = os.environ,
) -> int:
    """Run until a signal stops the node, and return the exit code. `flags` are those of the command line."""
    # A crash, or the watchdog of the supervisor, prints the stacks.
    faulthandler.enable()
    notify = Notify.from_environment(environ)
    mended = configuration.make_directories()
    with ExitStack() as held:
        pidfile = _pidfile(configuration, held)
        logs = _logs(configuration, verbose, environ)
        for said in (_stale(pidfile), *mended, *configuration.warnings):
            if said is not None:
                log.warning("%s", said)
        with _last_words():
            scheduler = _scheduler(configuration, logs)
            report = _report(configuration, scheduler)
            _warn_of_replaced(report, read_previous_reports(configuration.state_directory))
            is_reloaded = configuration.daemon.reload != "off"
            reloader = Reloader(
                scheduler,
                configuration,
                environ=environ,
                flags=flags,
                on_loaded=lambda loaded: _hide(loaded, logs, environ),
            )
            belongings = DaemonResources(
                logs=logs,
                notify=notify,
                pidfile=pidfile,
                detached=detached,
                folder=configuration.state_directory,
                reloader=reloader if is_reloaded else None,
                looks_itself=configuration.daemon.reload == "change",
            )
            return run_process(scheduler.runtime, Daemon(scheduler, report, belongings))


@contextmanager
def _last_words() -> Iterator[None]:
    """Log the error that ends the daemon, since the terminal may be closed."""
    try:
        yield
    except Exception as error:
        is_ours = isinstance(error, EvertickError)
        log.critical("the daemon ends: %s", error, exc_info=None if is_ours else error)
        raise


def _pidfile(configuration: Configuration, held: ExitStack) -> Pidfile | None:
    if configuration.daemon.pidfile is None:
        return None
    pidfile = Pidfile(configuration.daemon.pidfile)
    pidfile.take()
    held.callback(pidfile.remove)
    return pidfile


def _stale(pidfile: Pidfile | None) -> str | None:
    if pidfile is None or pidfile.stale_pid is None:
        return None
    return f"the pidfile {pidfile.path} was left behind by process {pidfile.stale_pid}, {pidfile.stale_why}"


def _logs(configuration: Configuration, verbose: int, environ: MutableMapping[str, str]) -> Logs:
    settings = configuration.log
    logs = set_up_logs(
        file=settings.file,
        form="json" if settings.format == "json" else "text",
        level=settings.level,
        verbose=verbose,
        environ=environ,
    )
    _hide(configuration, logs, environ)
    return logs


def _hide(configuration: Configuration, logs: Logs, environ: Mapping[str, str]) -> None:
    for secret in secrets_known(configuration, environ):
        logs.hidden.add(secret)


def secrets_known(configuration: Configuration, environ: Mapping[str, str]) -> list[str]:
    """Secrets known at the start: passwords in the configuration, and secrets in the environment."""
    own = [str(value.value) for value in configuration.values.values() if value.about.is_secret and value.value]
    urls = [configuration.database_url, *(each.url for each in configuration.connections.values())]
    # A URL may be a quoted parameter of another one.
    passwords = [password for url in urls for each in (url, unquote(url)) for password in _PASSWORD.findall(each)]
    passwords += [token for url in urls for token in _TOKEN.findall(url)]
    named = [value for name, value in environ.items() if name.startswith(SECRET_VARIABLE)]
    return [*own, *passwords, *map(unquote, passwords), *named]


def _scheduler(configuration: Configuration, logs: Logs) -> Scheduler:
    scheduler = scheduler_from(configuration)
    settings = scheduler.settings
    logs.name_node(settings.node_name)
    scheduler.runtime.configure(secrets=_HiddenSecrets(scheduler.runtime.secrets, logs.hidden))
    log.info(
        "evertick %s, %s, %s, app %r, database %s",
        VERSION,
        configuration.file,
        configuration.jobs_words,
        settings.app,
        masked(settings.url),
    )
    return scheduler


def _report(configuration: Configuration, scheduler: Scheduler) -> DaemonReport:
    return DaemonReport(
        pid=os.getpid(),
        start_tick=started_at_tick(os.getpid()),
        version=VERSION,
        node=scheduler.settings.node_name,
        config=None if configuration.file is None else str(configuration.file.absolute()),
        jobs=len(configuration.jobs),
        started_at=from_us(system_clock.now_us()),
        database=masked(configuration.database_url),
        app=scheduler.settings.app,
        reload=configuration.daemon.reload,
        does=job_digests(configuration),
    )


def _warn_of_replaced(ours: DaemonReport, others: Iterable[DaemonReport]) -> None:
    """Warn of jobs of another daemon that this start pauses, with the fix.

    Two folders with an `evertick.toml` each share the ledger of their user by default. The ledger sees one daemon whose
    file has changed, so the jobs of the first folder are paused as if they had been removed.
    """
    for other in others:
        left = sorted(other.does.keys() - ours.does.keys())
        if left and other.config != ours.config and _whose(other) == _whose(ours):
            log.warning(
                "%s has jobs that %s has not (%s): both go by the ledger %s, the app %r and the node name %r, so these "
                "jobs are paused while no daemon of that file runs; give one of the two files an `app` or a `name` of "
                "its own under [node]",
                other.config or "the environment alone",
                ours.config,
                named(left),
                ours.database,
                ours.app,
                declarer_of(ours.node),
            )
            return


def _whose(report: DaemonReport) -> tuple[str, str, str]:
    return report.database, report.app, declarer_of(report.node)
