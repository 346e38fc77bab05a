"""A scheduler from a configuration. Nothing is opened by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evertick.config.adding import add_jobs
from evertick.config.configuration import Configuration
from evertick.config.problem import Problems
from evertick.driver.nats_spec import NatsConnection
from evertick.driver.redis_spec import RedisConnection
from evertick.driver.secret import Secrets
from evertick.errors import InvalidInput
from evertick.scheduler import Scheduler

__all__ = ["SECRETS", "bare_scheduler", "check_brokers", "scheduler_from"]

# The folder of secrets, in that of the configuration.
SECRETS = "secrets"
# How the drivers of brokers are told where their servers are.
_CONNECTIONS: dict[str, type[RedisConnection | NatsConnection]] = {"redis": RedisConnection, "nats": NatsConnection}
# The address has them already.
_IN_URL = ("user", "username", "password")


def scheduler_from(configuration: Configuration) -> Scheduler:
    """The scheduler, with the jobs as its tasks and declarations."""
    scheduler, problems = bare_scheduler(configuration), Problems()
    add_jobs(scheduler, configuration.jobs, problems)
    problems.raise_any()
    return scheduler


def bare_scheduler(configuration: Configuration) -> Scheduler:
    """The scheduler with all but the jobs."""
    scheduler = Scheduler(configuration.database_url, **configuration.settings)
    if configuration.config_directory is not None:
        scheduler._secrets = Secrets(configuration.config_directory / SECRETS)
    for driver in configuration.connections:
        scheduler._connections[driver] = _connection(driver, configuration)
    scheduler._connections["http"] = configuration.http
    return scheduler


def check_brokers(configuration: Configuration, problems: Problems) -> None:
    """Refuse what drivers would refuse later: a broker whose settings cannot be, and one that is nowhere."""
    for driver in configuration.connections:
        try:
            _connection(driver, configuration).check()
        except InvalidInput as wrong:
            said = str(wrong).removeprefix(f"{driver}: ")
            name, _, rest = said.partition(": ")
            is_named = f"{driver}.{name}" in configuration.values
            key = f"{driver}.{name}" if is_named else f"{driver}.url"
            if key == f"{driver}.url" and not configuration.values[key].is_set:
                key = f"{driver}.address"
            problems.add(configuration.values[key].origin.place, key, rest if is_named else said)
    for job in configuration.jobs:
        driver = "" if job.spec is None else job.spec.driver
        is_run_here = driver in configuration.settings["drivers"]
        if driver in _CONNECTIONS and driver not in configuration.connections and is_run_here:
            said = f"it is not said where the server is; set address or url under [{driver}]"
            problems.add(job.places[driver], f"jobs.{job.name}.{driver}", said)


def _connection(driver: str, configuration: Configuration) -> RedisConnection | NatsConnection:
    """As the driver wants it: what the section has beside the address goes by the same names."""
    found, section, wanted = configuration.connections[driver], getattr(configuration, driver), _CONNECTIONS[driver]
    given = {field: getattr(section, field, None) for field in wanted.__struct_fields__ if field not in _IN_URL}
    given |= {field: getattr(found, field) for field in found.__struct_fields__ if field in given}
    fields: dict[str, Any] = {
        field: str(value) if isinstance(value, Path) else value for field, value in given.items() if value is not None
    }
    return wanted(**fields)
