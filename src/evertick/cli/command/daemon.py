"""The command daemon: a node made from a configuration file, as a service."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

import click

from evertick.cli.database import config_option
from evertick.cli.show.output import hint, say
from evertick.config.load import FILE_NAME, load_configuration
from evertick.daemon.logs import LOG_FORMATS
from evertick.daemon.process import detach as detach_now
from evertick.daemon.run import run_daemon
from evertick.scheduler.process import EXIT_RESTART
from evertick.text.redact import masked

__all__ = ["daemon"]


@click.command()
@config_option
@click.option("--pidfile", metavar="FILE", help="Keep the process id in this file while it runs.")
@click.option("--log-file", metavar="FILE", help="Log into this file; default: the error output.")
@click.option("--log-format", type=click.Choice(LOG_FORMATS), help="Lines for people, or for programs.")
@click.option("-v", "--verbose", count=True, help="Log Evertick's own work; -vv: of everything; -vvv: each batch.")
@click.option("--check", is_flag=True, help="Check the configuration, and end.")
@click.option("--detach", is_flag=True, help="Return when it runs in the background, as SysV scripts want it.")
def daemon(
    config: str | None,
    pidfile: str | None,
    log_file: str | None,
    log_format: str | None,
    verbose: int,
    check: bool,
    detach: bool,
) -> None:
    """Run a node from a configuration file, as a service.

    Signals: TERM and INT drain and end it with 0, HUP drains and ends it with 75 for a restart, USR1 reads the
    configuration again, USR2 opens the log file anew. A second TERM, INT or HUP does not wait for running work.

    \b
    Example:
      evertick daemon
      evertick daemon --config /etc/evertick/evertick.toml --check
      evertick daemon --pidfile /run/evertick.pid --log-file /var/log/evertick.log
    """
    written = {
        "daemon.pidfile": ("--pidfile", pidfile),
        "log.file": ("--log-file", log_file),
        "log.format": ("--log-format", log_format),
    }
    flags = {key: (flag, value) for key, (flag, value) in written.items() if value is not None}
    configuration = load_configuration(config, os.environ, flags)
    if configuration.file is None:
        raise click.UsageError(f"there is no configuration; write ./{FILE_NAME}, or name one with --config")
    if check:
        for warning in configuration.warnings:
            hint(f"warning: {warning}")
        say(f"{configuration.file}: right, {configuration.jobs_words}, database {masked(configuration.database_url)}")
        return
    if detach and configuration.log.file is None:
        raise click.UsageError("--detach leaves the terminal, so the log needs a file: add --log-file, or log.file")
    _hear_early_signals()
    detached = detach_now() if detach else None
    code = run_daemon(configuration, flags=flags, verbose=verbose, detached=detached)
    if code:
        sys.exit(code)


def _hear_early_signals() -> None:
    """Until the node is there to hear them: what ends it ends it now, the rest comes too early."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        sys.exit(EXIT_RESTART if number == signal.SIGHUP else 0)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
