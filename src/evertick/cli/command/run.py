"""The commands that run a node: run, for a scheduler in code, and daemon, for a configuration file."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

import click

import evertick
from evertick.cli.command.db import bring_up_to_date, care_of
from evertick.cli.database import config_option, database_option
from evertick.cli.show.output import hint, say
from evertick.config.load import FILE_NAME, load_configuration
from evertick.config.ownership import distrusted_file, distrusted_folder, is_refused
from evertick.daemon.logs import LOG_FORMATS
from evertick.daemon.process import detach as detach_now
from evertick.daemon.run import run_daemon
from evertick.errors import EvertickError, InvalidConfiguration
from evertick.scheduler.process import EXIT_RESTART, RunReached, importing, run_process
from evertick.scheduler.scheduler import Scheduler
from evertick.text.redact import masked
from evertick.version import VERSION

__all__ = [
    "daemon",
    "find_scheduler",
    "run",
]

log = logging.getLogger("evertick.run")

_LEVELS = ["debug", "info", "warning", "error"]
_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
# Prefixes of files that are not the user's code.
_LIBRARIES = ("<frozen ", f"{Path(evertick.__file__).parent}{os.sep}", f"{Path(importlib.__file__).parent}{os.sep}")


@click.command()
@click.argument("where", metavar="MODULE:ATTRIBUTE")
@database_option
@click.option("-v", "--verbose", count=True, help="Log Evertick at debug level; -vv: everything.")
@click.option("--log-level", type=click.Choice(_LEVELS, case_sensitive=False), help="The lowest level to log.")
@click.option("--migrate-and-exit", is_flag=True, help="Apply missing migrations, print them, and exit.")
def run(where: str, database: str | None, verbose: int, log_level: str | None, migrate_and_exit: bool) -> None:
    """Run a scheduler as a node, until TERM or Ctrl-C.

    MODULE:ATTRIBUTE names the scheduler, like app:scheduler; the module is enough if it has only one.

    Exit codes: 0 after TERM or INT, 75 after HUP (a supervisor should restart it), 70 if the event loop was blocked for
    longer than stall_limit, 1 after an error. A second signal ends it without waiting for running jobs.

    \b
    Example:
      evertick run app:scheduler
      evertick run shop.jobs --database sqlite:////var/lib/shop/jobs.db -v
      evertick run app:scheduler --migrate-and-exit
    """
    scheduler = find_scheduler(where)
    set_up_logging(verbose, log_level)
    if database is not None:
        scheduler.use_database(database)
    if migrate_and_exit:
        asyncio.run(bring_up_to_date(care_of(scheduler.settings.url)))
        return
    log.info("evertick %s, app %r, database %s", VERSION, scheduler.app, masked(scheduler.settings.url))
    if scheduler.settings.concurrency == 0:
        log.warning("app %r: concurrency=0, so this node stores the declared schedules and runs no jobs", scheduler.app)
    if code := run_process(scheduler.runtime):
        sys.exit(code)


def set_up_logging(verbose: int, level: str | None) -> None:
    """Set up logging, unless the user's module has done so. The flags apply in any case."""
    logging.basicConfig(level=logging.INFO, handlers=[_handler()])
    if verbose >= 1:
        logging.getLogger("evertick").setLevel(logging.DEBUG)
    if verbose >= 2:
        logging.getLogger().setLevel(logging.DEBUG)
    if level is not None:
        logging.getLogger().setLevel(level.upper())


class _Formatter(logging.Formatter):
    """Formats times as a daemon does, with the offset."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return datetime.fromtimestamp(record.created, UTC).astimezone().isoformat(" ", "milliseconds")


def _handler() -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter(_FORMAT))
    return handler


def find_scheduler(where: str) -> Scheduler:
    """The scheduler that `module:attribute` names; a module is enough if it has exactly one."""
    name, colon, attribute = where.partition(":")
    if not name or (colon and not attribute):
        raise click.UsageError(f"{where!r} does not name a scheduler; write it like app:scheduler")
    if name.endswith(".toml"):
        raise click.UsageError(f"{name!r} is a configuration; run its jobs with `evertick daemon --config {name}`")
    if name.endswith(".py") or "/" in name:
        dotted = name.removeprefix("./").removesuffix(".py").replace("/", ".")
        raise click.UsageError(f"{name!r} is a file; write the module, like {dotted}:{attribute or 'scheduler'}")
    module = _import(name)
    return _attribute(module, attribute) if attribute else _only_one(module)


def _import(name: str) -> ModuleType:
    here = os.getcwd()
    _check_folder(Path(here), name)
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with importing(name):
            return importlib.import_module(name)
    except RunReached as reached:
        # The module calls run() at its end, which this command does. Its jobs are found by their module.
        sys.modules[name] = reached.module
        package, _, last = name.rpartition(".")
        if package:
            setattr(sys.modules[package], last, reached.module)
        return reached.module
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise click.ClickException(
                f"there is no module {error.name!r} in {here} or on Python's path; "
                f"change to its directory, or correct the name in module:attribute"
            ) from error
        raise _failed_import(name, error) from error
    except Exception as error:
        raise _failed_import(name, error) from error


def _check_folder(here: Path, name: str) -> None:
    """Refuse to import code as root that another user can change: the folder, and the module if it is in it."""
    found, path = distrusted_folder(here, os.environ), here
    for part in name.split("."):
        path /= part
        if os.path.isfile(module := f"{path}.py"):
            found += distrusted_file(Path(module), os.environ)
        if os.path.isdir(path):
            found += distrusted_folder(path, os.environ) + distrusted_file(path / "__init__.py", os.environ)
    # A folder is reported once, with the stricter rule for imports.
    lines = tuple({each.place: str(each) for each in reversed(found)}.values())
    if lines and is_refused():
        raise InvalidConfiguration(lines)
    for line in lines:
        hint(f"warning: {line}")


def _failed_import(name: str, error: Exception) -> click.ClickException:
    if isinstance(error, EvertickError):  # has its own fix
        return click.ClickException(f"the module {name!r} cannot be imported: {error} ({_place(error)})")
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    place = _place(error)
    return click.ClickException(
        f"the module {name!r} cannot be imported: {type(error).__name__}: {message}{place and f' at {place}'}; "
        "EVERTICK_TRACEBACK=1 shows the traceback"
    )


def _place(error: Exception) -> str:
    """The line of the user's code that raised the error."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).exists():
        return f"{error.filename}:{error.lineno}"  # code that does not compile has no frame
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_LIBRARIES)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def _attribute(module: ModuleType, path: str) -> Scheduler:
    found: Any = module
    for name in path.split("."):
        if not hasattr(found, name):
            raise click.ClickException(f"{module.__name__!r} has no attribute {path!r}; {_advice(module)}")
        found = getattr(found, name)
    if not isinstance(found, Scheduler):
        kind = type(found).__name__
        raise click.ClickException(f"{module.__name__}:{path} is not a Scheduler but of type {kind}; {_advice(module)}")
    return found


def _only_one(module: ModuleType) -> Scheduler:
    names = _schedulers_in(module)
    if len({id(getattr(module, name)) for name in names}) != 1:
        count = "several schedulers" if names else "no scheduler"
        raise click.ClickException(f"{module.__name__!r} has {count}; {_advice(module)}")
    return _attribute(module, names[0])


def _schedulers_in(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if isinstance(value, Scheduler)]


def _advice(module: ModuleType) -> str:
    names = _schedulers_in(module)
    if names:
        return f"write {' or '.join(f'{module.__name__}:{name}' for name in names)}"
    return f"define one in it (scheduler = Scheduler()) and write {module.__name__}:scheduler"


@click.command()
@config_option
@click.option("--pidfile", metavar="FILE", help="Write the process id to this file while it runs.")
@click.option("--log-file", metavar="FILE", help="Log to this file; default: standard error.")
@click.option("--log-format", type=click.Choice(LOG_FORMATS), help="The format of log lines.")
@click.option("-v", "--verbose", count=True, help="Log Evertick at debug level; -vv: everything; -vvv: each batch.")
@click.option("--check", is_flag=True, help="Check the configuration, and exit.")
@click.option("--detach", is_flag=True, help="Run in the background, for SysV init scripts.")
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

    Signals: TERM and INT drain it and exit with 0, HUP drains it and exits with 75 for a restart, USR1 reloads the
    configuration, USR2 reopens the log file. A second TERM, INT or HUP ends it without waiting for running jobs.

    \b
    Example:
      evertick daemon
      evertick daemon --config /etc/evertick/evertick.toml --check
      evertick daemon --pidfile /run/evertick.pid --log-file /var/log/evertick.log
    """
    options = {
        "daemon.pidfile": ("--pidfile", pidfile),
        "log.file": ("--log-file", log_file),
        "log.format": ("--log-format", log_format),
    }
    flags = {key: (flag, value) for key, (flag, value) in options.items() if value is not None}
    configuration = load_configuration(config, os.environ, flags)
    if configuration.file is None:
        raise click.UsageError(f"there is no configuration; create ./{FILE_NAME}, or name one with --config")
    if check:
        for warning in configuration.warnings:
            hint(f"warning: {warning}")
        say(f"{configuration.file}: valid, {configuration.jobs_words}, database {masked(configuration.database_url)}")
        return
    if detach and configuration.log.file is None:
        raise click.UsageError("--detach needs a log file; add --log-file, or set log.file")
    _handle_early_signals()
    detached = detach_now() if detach else None
    code = run_daemon(configuration, flags=flags, verbose=verbose, detached=detached)
    if code:
        sys.exit(code)


def _handle_early_signals() -> None:
    """Until the node has handlers of its own: TERM, INT and HUP end the process, USR1 and USR2 are ignored."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        sys.exit(EXIT_RESTART if number == signal.SIGHUP else 0)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
