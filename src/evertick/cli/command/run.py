"""Commands that run a node: run, of a scheduler in code, and daemon, of a configuration file, as a service."""

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
_NOT_THE_USERS = ("<frozen ", f"{Path(evertick.__file__).parent}{os.sep}", f"{Path(importlib.__file__).parent}{os.sep}")


@click.command()
@click.argument("where", metavar="MODULE:ATTRIBUTE")
@database_option
@click.option("-v", "--verbose", count=True, help="Log more of Evertick's own work; -vv: of everything.")
@click.option("--log-level", type=click.Choice(_LEVELS, case_sensitive=False), help="Log from this level on.")
@click.option("--migrate-and-exit", is_flag=True, help="Bring the tables up to date, say what was done, and end.")
def run(where: str, database: str | None, verbose: int, log_level: str | None, migrate_and_exit: bool) -> None:
    """Run a scheduler as a node, until TERM or Ctrl-C.

    MODULE:ATTRIBUTE is where it is, like app:scheduler; the module alone will do if it holds only one.

    Exit codes: 0 after TERM or INT, 75 after HUP (a supervisor should start it again), 70 when the event loop was
    blocked for too long, 1 after an error. A second signal does not wait for running work.

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
        log.warning("this scheduler has concurrency=0: it stores what the code declares, and runs nothing")
    if code := run_process(scheduler.runtime):
        sys.exit(code)


def set_up_logging(verbose: int, level: str | None) -> None:
    """Ours only where the user's module has set up none; what is asked for on the command line holds anyway."""
    logging.basicConfig(level=logging.INFO, handlers=[_handler()])
    if verbose >= 1:
        logging.getLogger("evertick").setLevel(logging.DEBUG)
    if verbose >= 2:
        logging.getLogger().setLevel(logging.DEBUG)
    if level is not None:
        logging.getLogger().setLevel(level.upper())


class _Lines(logging.Formatter):
    """With moments as a daemon writes them: the offset tells those of another machine apart."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return datetime.fromtimestamp(record.created, UTC).astimezone().isoformat(" ", "milliseconds")


def _handler() -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines(_FORMAT))
    return handler


def find_scheduler(where: str) -> Scheduler:
    """The scheduler that `module:attribute` names; a module alone will do if it holds exactly one."""
    name, colon, attribute = where.partition(":")
    if not name or (colon and not attribute):
        raise click.UsageError(f"{where!r} does not name a scheduler; write it like app:scheduler")
    if name.endswith(".toml"):
        raise click.UsageError(f"{name!r} is a configuration; its jobs are run by `evertick daemon --config {name}`")
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
        # As a first program does it: run() at its end, which is ours to do now. Its jobs must be found by their module.
        sys.modules[name] = reached.module
        package, _, last = name.rpartition(".")
        if package:
            setattr(sys.modules[package], last, reached.module)
        return reached.module
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise click.ClickException(
                f"there is no module {error.name!r} in {here} or on Python's path; "
                f"go to the directory that holds it, or correct the name in module:attribute"
            ) from error
        raise _failed_import(name, error) from error
    except Exception as error:
        raise _failed_import(name, error) from error


def _check_folder(here: Path, name: str) -> None:
    """Refuse to import as root what another user can change: the folder itself, and the module if it is in it."""
    found, path = distrusted_folder(here, os.environ), here
    for part in name.split("."):
        path /= part
        if os.path.isfile(module := f"{path}.py"):
            found += distrusted_file(Path(module), os.environ)
        if os.path.isdir(path):
            found += distrusted_folder(path, os.environ) + distrusted_file(path / "__init__.py", os.environ)
    # A folder is reported once, by the stricter rule for imports.
    lines = tuple({each.place: str(each) for each in reversed(found)}.values())
    if lines and is_refused():
        raise InvalidConfiguration(lines)
    for line in lines:
        hint(f"warning: {line}")


def _failed_import(name: str, error: Exception) -> click.ClickException:
    if isinstance(error, EvertickError):  # says by itself what to do
        return click.ClickException(f"the module {name!r} cannot be imported: {error} ({_place(error)})")
    what = error.msg if isinstance(error, SyntaxError) else str(error)
    place = _place(error)
    return click.ClickException(
        f"the module {name!r} cannot be imported: {type(error).__name__}: {what}{place and f' at {place}'}; "
        "EVERTICK_TRACEBACK=1 shows the whole traceback"
    )


def _place(error: Exception) -> str:
    """The line of the user's own code that it comes from: not one of ours, nor of the machinery of imports."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).exists():
        return f"{error.filename}:{error.lineno}"  # what cannot be compiled has no frame
    own = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_NOT_THE_USERS)
    ]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def _attribute(module: ModuleType, path: str) -> Scheduler:
    found: Any = module
    for name in path.split("."):
        if not hasattr(found, name):
            raise click.ClickException(f"{module.__name__!r} has no attribute {path!r}; {_advice(module)}")
        found = getattr(found, name)
    if not isinstance(found, Scheduler):
        what = type(found).__name__
        raise click.ClickException(f"{module.__name__}:{path} is no Scheduler but of type {what}; {_advice(module)}")
    return found


def _only_one(module: ModuleType) -> Scheduler:
    names = _schedulers_in(module)
    if len({id(getattr(module, name)) for name in names}) != 1:
        count = "several schedulers" if names else "no scheduler"
        raise click.ClickException(f"{module.__name__!r} holds {count}; {_advice(module)}")
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
