"""A scheduler from a configuration. Nothing is opened by it."""

from __future__ import annotations

from evertick.config.adding import add_jobs
from evertick.config.brokers import BROKERS, connection_of, refuse_wrong
from evertick.config.configuration import Configuration
from evertick.config.problem import Problems
from evertick.driver.queue.spec import NatsConnection, RedisConnection
from evertick.driver.secret import Secrets
from evertick.operations.context import Actor
from evertick.scheduler.scheduler import Scheduler

__all__ = ["SECRETS", "bare_scheduler", "check_brokers", "check_connections", "connections_of", "scheduler_from"]

# A folder beside the configuration file.
SECRETS = "secrets"


def scheduler_from(configuration: Configuration, *, actor: Actor | None = None) -> Scheduler:
    """The scheduler, with the jobs as its tasks and declarations. `actor`: who asks for its operations."""
    scheduler, problems = bare_scheduler(configuration), Problems()
    scheduler.runtime.configure(actor=actor)
    add_jobs(scheduler, configuration.jobs, problems)
    problems.raise_any()
    return scheduler


def bare_scheduler(configuration: Configuration) -> Scheduler:
    """The scheduler without the jobs."""
    scheduler = Scheduler(configuration.database_url, **configuration.settings)
    folder = configuration.config_directory
    secrets = None if folder is None else Secrets(folder / SECRETS)
    scheduler.runtime.configure(secrets=secrets, connections=connections_of(configuration))
    return scheduler


def connections_of(configuration: Configuration) -> dict[str, object]:
    """The connections of drivers, by the name of the driver."""
    brokers = {driver: _connection(driver, configuration) for driver in configuration.connections}
    return {**brokers, "http": configuration.http}


def check_connections(configuration: Configuration, problems: Problems) -> None:
    """Report settings of brokers that a driver would reject later."""
    for driver in configuration.connections:
        refuse_wrong(driver, _connection(driver, configuration), configuration.values, problems)


def check_brokers(configuration: Configuration, problems: Problems) -> None:
    """Report jobs whose broker is not configured."""
    # Read once: finding the drivers searches all installed packages.
    drivers = configuration.settings["drivers"]
    for job in configuration.jobs:
        driver = "" if job.spec is None else job.spec.driver
        if driver in BROKERS and driver not in configuration.connections and driver in drivers:
            problem = f"no server is configured; set address or url under [{driver}]"
            problems.add(job.places[driver], f"jobs.{job.name}.{driver}", problem)


def _connection(driver: str, configuration: Configuration) -> RedisConnection | NatsConnection:
    return connection_of(driver, configuration.connections[driver], getattr(configuration, driver))
