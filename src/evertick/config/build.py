"""A scheduler from a configuration. Nothing is opened by it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from evertick.config.adding import add_jobs
from evertick.config.configuration import Configuration
from evertick.config.problem import Problems
from evertick.driver.secret import Secrets
from evertick.scheduler import Scheduler

__all__ = ["SECRETS", "bare_scheduler", "scheduler_from"]

# The folder of secrets, in that of the configuration.
SECRETS = "secrets"
# What the drivers of brokers want to be told by.
_CONNECTIONS = {
    "redis": ("evertick.driver.redis_spec", "RedisConnection"),
    "nats": ("evertick.driver.nats_spec", "NatsConnection"),
}


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


def _connection(driver: str, configuration: Configuration) -> object:
    """As the driver wants it: what the section has beside the address goes by the same names."""
    found, section = configuration.connections[driver], getattr(configuration, driver)
    module, name = _CONNECTIONS[driver]
    try:
        wanted = getattr(import_module(module), name)
    except ModuleNotFoundError:  # a driver that is not there wants nothing
        return found
    given = {field: getattr(section, field, None) for field in wanted.__struct_fields__}
    given |= {field: getattr(found, field) for field in found.__struct_fields__}
    # The address has the user and the password already.
    alone = ("user", "username", "password")
    return wanted(**{
        field: str(value) if isinstance(value, Path) else value
        for field, value in given.items()
        if field in wanted.__struct_fields__ and value is not None and field not in alone
    })  # fmt: skip
