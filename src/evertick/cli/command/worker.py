"""The command worker: takes dispatched runs from a broker and does them, without a database."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from evertick.cli.command.run import find_scheduler, set_up_logging
from evertick.cli.database import config_option
from evertick.cli.parameters import DurationParameter
from evertick.clock import Clock, host_name, system_clock
from evertick.config.brokers import BROKERS, Brokers, load_brokers
from evertick.config.build import SECRETS
from evertick.config.files import find_file, searched_files
from evertick.driver.queue.spec import (
    QUEUE_PREFIX,
    SUBJECT_PREFIX,
    NatsConnection,
    RedisConnection,
    check_prefix,
    check_queue_name,
    check_subject_prefix,
)
from evertick.driver.secret import Secrets
from evertick.errors import InvalidSetting
from evertick.worker.broker_session import BrokerSession
from evertick.worker.executor import Executor
from evertick.worker.worker import Worker

__all__ = ["worker"]

log = logging.getLogger("evertick.worker")

_LEVELS = ["debug", "info", "warning", "error"]
_CODE = click.IntRange(0, 255)
_PARALLELISM_MOST = 10_000
_FILE = click.Path(exists=True, dir_okay=False)
# Flags that are keys of the configuration, in the section of the broker.
_KEYS = {"password_file": "password_file", "credentials": "credentials"} | {
    name: f"ssl.{name}" for name in ("ca", "cert", "key")
}


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("command", nargs=-1, metavar="[-- COMMAND...]")
@click.option("--redis", metavar="URL", help="Take runs from this Redis; default: $EVERTICK_REDIS.")
@click.option("--nats", metavar="URL", help="Take runs from this NATS; default: $EVERTICK_NATS.")
@config_option
@click.option("--broker", type=click.Choice(sorted(BROKERS)), help="The broker, if the configuration names both.")
@click.option("--driver", metavar="NAME", required=True, help="The queue to take from: the driver name of its jobs.")
@click.option(
    "--parallelism",
    type=click.IntRange(0, _PARALLELISM_MOST),
    default=0,
    show_default=True,
    help="Runs at once; 0: one per available processor.",
)
@click.option("--tasks", metavar="MODULE:ATTRIBUTE", help="Do the tasks of this scheduler instead of a command.")
@click.option("--stream", is_flag=True, help="The queue in Redis is a stream, not a list.")
@click.option(
    "--prefix",
    metavar="TEXT",
    help=f"The prefix of the queue's key in Redis ({QUEUE_PREFIX}), or of all subjects in NATS ({SUBJECT_PREFIX}).",
)
@click.option("--name", metavar="NAME", help="The name of this worker in reports; default: host and process.")
@click.option("--success-code", "success_codes", type=_CODE, multiple=True, help="Exit codes of success; default: 0.")
@click.option("--skip-code", "skip_codes", type=_CODE, multiple=True, help="Exit codes that mean: nothing to do.")
@click.option("--retry-code", "retry_codes", type=_CODE, multiple=True, help="Exit codes that mean: try again.")
@click.option("--stop-timeout", type=DurationParameter(), default="30s", help="Time for runs to end at a stop; 30s.")
@click.option("--password-file", type=_FILE, help="A file with the broker's password only.")
@click.option("--credentials", type=_FILE, help="NATS: the credentials file of the server's operator.")
@click.option("--ca", type=_FILE, help="TLS: the CA of the broker's certificate.")
@click.option("--cert", type=_FILE, help="TLS: the certificate of this worker.")
@click.option("--key", type=_FILE, help="TLS: the key of the certificate.")
@click.option("-v", "--verbose", count=True, help="Log Evertick at debug level; -vv: everything.")
@click.option("--log-level", type=click.Choice(_LEVELS, case_sensitive=False), help="The lowest level to log.")
def worker(
    command: tuple[str, ...],
    driver: str,
    parallelism: int,
    tasks: str | None,
    name: str | None,
    stop_timeout: timedelta,
    verbose: int,
    log_level: str | None,
    **given: Any,
) -> None:
    """Do the runs of a queue, until TERM or Ctrl-C.

    A COMMAND gets each run as JSON on its standard input, and its exit code is the outcome of the run. With --tasks the
    worker calls the functions of a program by the names of their tasks. Neither needs the database.

    The broker is that of --redis or --nats, else of $EVERTICK_REDIS or $EVERTICK_NATS, else of [redis] or [nats] in the
    configuration, which is found as the daemon finds it. A URL overrides that of a configuration.

    After TERM the worker takes no more runs, and waits for running ones up to --stop-timeout. A second signal ends it
    at once.

    \b
    Example:
      evertick worker --redis redis://localhost --driver docker -- ./build.sh
      evertick worker --nats nats://bus --driver reports --tasks app:scheduler
      evertick worker --config worker.toml --driver docker -- ./build.sh
    """
    if bool(command) == (tasks is not None):
        raise click.UsageError("name what does a run, one of them: a command after --, or --tasks module:scheduler")
    set_up_logging(verbose, log_level)
    made = Worker(
        _session(driver, system_clock, given),
        _executor(command, tasks, given),
        parallelism=parallelism or _processors(),
        clock=system_clock,
        name=name or f"{host_name()}:{os.getpid()}",
        stop_seconds=stop_timeout.total_seconds(),
    )
    asyncio.run(_serve(made))


def _processors() -> int:
    """The number of processors that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


async def _serve(made: Worker) -> None:
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        log.info("%s: draining", number.name)
        made.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    await made.run()


def _session(driver: str, clock: Clock, given: dict[str, Any]) -> BrokerSession:
    queue = check_queue_name(driver, "--driver")
    name = _named_broker(given)
    file = find_file(given["config"]) if given["config"] is not None or name is None else None
    found = load_brokers(file, _environment(name, given), _flags(name, given))
    for warning in found.warnings:
        log.warning("configuration: %s", warning)
    broker = _chosen(found, name or given["broker"], file)
    resolve = Secrets(None if file is None else file.parent / SECRETS).resolve
    if isinstance(broker, RedisConnection):
        with _extra("redis"):
            from evertick.worker.redis_session import RedisBrokerSession

        prefix = check_prefix(QUEUE_PREFIX if given["prefix"] is None else given["prefix"], "--prefix")
        kind: Literal["list", "stream"] = "stream" if given["stream"] else "list"
        return RedisBrokerSession(broker, queue, clock=clock, kind=kind, prefix=prefix, resolve_secret=resolve)
    if given["stream"]:
        raise click.UsageError("--stream applies to Redis only; leave it out with NATS")
    with _extra("nats"):
        from evertick.worker.nats_session import NatsBrokerSession

    prefix = check_subject_prefix(broker.prefix if given["prefix"] is None else given["prefix"], "--prefix")
    broker = msgspec.structs.replace(broker, prefix=prefix)
    return NatsBrokerSession(broker, queue, clock=clock, resolve_secret=resolve)


@contextmanager
def _extra(extra: str) -> Iterator[None]:
    """For a block that imports the modules of an extra."""
    try:
        yield
    except ImportError as error:
        problem = f"the packages for a worker of {extra} are missing ({error})"
        raise InvalidSetting(problem, fix=f"install them with `pip install 'evertick[{extra}]'`") from error


def _named_broker(given: dict[str, Any]) -> str | None:
    """The broker that a flag or the environment names by a URL; None: the configuration names it."""
    for urls in (given, {name: os.environ.get(_variable(name)) for name in BROKERS}):
        named = [name for name in BROKERS if urls[name]]
        if len(named) > 1 and given["broker"] not in named:
            raise click.UsageError("name one broker: --redis URL or --nats URL")
        if named:
            return named[0] if len(named) == 1 else str(given["broker"])
    return None


def _variable(broker: str) -> str:
    return f"EVERTICK_{broker.upper()}"


def _environment(name: str | None, given: dict[str, Any]) -> dict[str, str]:
    """EVERTICK_REDIS and EVERTICK_NATS are short forms of EVERTICK_REDIS_URL and EVERTICK_NATS_URL."""
    url = None if name is None or given[name] else os.environ[_variable(name)]
    return {**os.environ} if url is None else {**os.environ, f"{_variable(str(name))}_URL": url}


def _flags(name: str | None, given: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    flags = {f"{each}.url": (f"--{each}", given[each]) for each in BROKERS if given[each] and each == name}
    files = {each: given[each] for each in _KEYS if given[each] is not None}
    if not files:
        return flags
    broker = name or given["broker"] or ("nats" if given["credentials"] else None)
    if broker is None:
        raise click.UsageError("name the broker of these files: --broker redis or --broker nats")
    if broker == "redis" and given["credentials"]:
        raise click.UsageError("--credentials applies to NATS only; leave it out with Redis")
    return flags | {f"{broker}.{_KEYS[each]}": (f"--{each.replace('_', '-')}", file) for each, file in files.items()}


def _chosen(found: Brokers, name: str | None, file: Path | None) -> RedisConnection | NatsConnection:
    if name is None and len(found.connections) == 1:
        [name] = found.connections
    if name is None and found.connections:
        raise click.UsageError(f"{file} has a Redis and a NATS; name one with --broker redis or --broker nats")
    if name is None or name not in found.connections:
        section = "[redis] or [nats]" if name is None else f"[{name}]"
        where = f"no configuration at {searched_files()}" if file is None else f"no {section} in {file}"
        raise click.UsageError(
            f"no broker is named, and there is {where}; write --redis URL or --nats URL, or url or address under "
            f"{section} in a configuration"
        )
    return found.connections[name]


def _executor(command: tuple[str, ...], tasks: str | None, given: dict[str, Any]) -> Executor:
    codes = {name: given[name] for name in ("success_codes", "skip_codes", "retry_codes") if given[name]}
    if tasks is None:
        from evertick.worker.executor import CommandExecutor

        if shutil.which(command[0]) is None:
            raise click.UsageError(f"there is no executable program {command[0]!r}; correct its name or path")
        return CommandExecutor(command, clock=system_clock, **codes)
    if codes:
        raise click.UsageError("exit codes apply to a command only; leave them out with --tasks")
    from evertick.worker.executor import TasksExecutor

    return TasksExecutor(find_scheduler(tasks))
