"""The command that runs a worker: takes handed runs from a broker and does them, without a database."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from datetime import timedelta
from typing import Any, Literal

import click

from evertick.cli.parameters import DurationParameter
from evertick.cli.run import find_scheduler, set_up_logging
from evertick.clock import Clock, host_name, system_clock
from evertick.driver.handed_spec import check_queue_name
from evertick.driver.nats_spec import SUBJECT_PREFIX, NatsConnection
from evertick.driver.redis_spec import QUEUE_PREFIX, RedisConnection, check_prefix
from evertick.driver.secret import Secrets
from evertick.worker.craft import Craft
from evertick.worker.line import Line
from evertick.worker.worker import Worker

__all__ = ["worker"]

log = logging.getLogger("evertick.worker")

_LEVELS = ["debug", "info", "warning", "error"]
_CODE = click.IntRange(0, 255)
_PARALLELISM_MOST = 10_000


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("command", nargs=-1, metavar="[-- COMMAND...]")
@click.option("--redis", "redis", metavar="URL", envvar="EVERTICK_REDIS", help="Take from this Redis; $EVERTICK_REDIS.")
@click.option("--nats", "nats", metavar="URL", envvar="EVERTICK_NATS", help="Take from this NATS; $EVERTICK_NATS.")
@click.option("--driver", metavar="NAME", required=True, help="The queue to take from: the driver name of its jobs.")
@click.option(
    "--parallelism",
    type=click.IntRange(0, _PARALLELISM_MOST),
    default=0,
    show_default=True,
    help="Runs at once; 0: one for each processor.",
)
@click.option("--tasks", metavar="MODULE:ATTRIBUTE", help="Do the tasks of this scheduler, instead of a command.")
@click.option("--stream", is_flag=True, help="The queue in Redis is a stream, not a list.")
@click.option(
    "--prefix",
    metavar="TEXT",
    help=f"What the queue's key begins with in Redis ({QUEUE_PREFIX}), or all subjects in NATS ({SUBJECT_PREFIX}).",
)
@click.option("--name", metavar="NAME", help="How this worker is called in reports; default: host and process.")
@click.option("--success-code", "success_codes", type=_CODE, multiple=True, help="Exit codes of success; default: 0.")
@click.option("--skip-code", "skip_codes", type=_CODE, multiple=True, help="Exit codes that mean: nothing to do.")
@click.option("--retry-code", "retry_codes", type=_CODE, multiple=True, help="Exit codes that mean: try again.")
@click.option("--stop-timeout", type=DurationParameter(), default="30s", help="How long runs get at a stop; 30s.")
@click.option("--ca", type=click.Path(exists=True, dir_okay=False), help="TLS: who signed the broker's certificate.")
@click.option("--cert", type=click.Path(exists=True, dir_okay=False), help="TLS: this worker's certificate.")
@click.option("--key", type=click.Path(exists=True, dir_okay=False), help="TLS: the key of the certificate.")
@click.option("-v", "--verbose", count=True, help="Log more of Evertick's own work; -vv: of everything.")
@click.option("--log-level", type=click.Choice(_LEVELS, case_sensitive=False), help="Log from this level on.")
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
    """Do the runs that are handed to a queue, until TERM or Ctrl-C.

    A COMMAND gets each run as JSON on its standard input; its exit code says how the run ended. With --tasks the
    functions of a program are called, by the names of their tasks. Neither needs the database.

    At TERM nothing more is taken, and what is under way gets its time; a second signal does not wait for it.

    \b
    Example:
      evertick worker --redis redis://localhost --driver docker -- ./build.sh
      evertick worker --nats nats://localhost --driver reports --tasks app:scheduler --parallelism 4
    """
    if bool(command) == (tasks is not None):
        raise click.UsageError(
            "say what to do for a run, one of them: a command behind --, or --tasks module:scheduler"
        )
    line = _line(driver, system_clock, given)
    craft = _craft(command, tasks, given)
    set_up_logging(verbose, log_level)
    made = Worker(
        line,
        craft,
        parallelism=parallelism or os.cpu_count() or 1,
        clock=system_clock,
        name=name or f"{host_name()}:{os.getpid()}",
        stop_seconds=stop_timeout.total_seconds(),
    )
    asyncio.run(_serve(made))


async def _serve(made: Worker) -> None:
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        log.info("%s: draining", number.name)
        made.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    await made.run()


def _line(driver: str, clock: Clock, given: dict[str, Any]) -> Line:
    queue = check_queue_name(driver, "--driver")
    resolve = Secrets().resolve
    files = {name: given[name] for name in ("ca", "cert", "key")}
    if (given["redis"] is None) == (given["nats"] is None):
        raise click.UsageError("say where the queue is, one of them: --redis URL or --nats URL")
    if given["redis"] is not None:
        from evertick.worker.redis_line import RedisLine

        prefix = check_prefix(QUEUE_PREFIX if given["prefix"] is None else given["prefix"], "--prefix")
        to_redis = RedisConnection(url=given["redis"], **files)
        to_redis.check("--redis")
        kind: Literal["list", "stream"] = "stream" if given["stream"] else "list"
        return RedisLine(to_redis, queue, clock=clock, kind=kind, prefix=prefix, resolve_secret=resolve)
    if given["stream"]:
        raise click.UsageError("--stream is about queues in Redis; leave it out with --nats")
    from evertick.worker.nats_line import NatsLine

    to_nats = NatsConnection(url=given["nats"], prefix=given["prefix"] or SUBJECT_PREFIX, **files)
    to_nats.check("--nats")
    return NatsLine(to_nats, queue, clock=clock, resolve_secret=resolve)


def _craft(command: tuple[str, ...], tasks: str | None, given: dict[str, Any]) -> Craft:
    codes = {name: given[name] for name in ("success_codes", "skip_codes", "retry_codes") if given[name]}
    if tasks is None:
        from evertick.worker.command import CommandCraft

        return CommandCraft(command, clock=system_clock, **codes)
    if codes:
        raise click.UsageError("exit codes are those of a command; leave them out with --tasks")
    from evertick.worker.tasks import TasksCraft

    return TasksCraft(find_scheduler(tasks))
