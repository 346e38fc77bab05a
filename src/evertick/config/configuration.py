"""A checked configuration: plain data, each value with its origin.

A daemon reports digests of its jobs, so that a command can compare them with a file without storing secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from evertick.clock import host_name
from evertick.config.brokers import Connection
from evertick.config.files import Pattern
from evertick.config.job import TASK_KEYS, Defaults, Job
from evertick.config.layer import Value
from evertick.config.paths import make_private
from evertick.config.section import Daemon, Database, Directories, Http, Log, Nats, Node, Redis, Retention
from evertick.driver.registry import known_drivers
from evertick.text.redact import masked
from evertick.when import Calendar

__all__ = ["SETTINGS", "Configuration", "changed_jobs", "job_count", "job_digests", "settings_from"]

# The settings of a scheduler by the keys that hold them.
SETTINGS = {
    **{f"node.{name}": name for name in Node.__struct_fields__},
    "node.name": "node_name",
    "retention.history": "retention",
    "retention.per_schedule": "keep_per_schedule",
    "retention.feed": "feed",
}


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """All settings and jobs of a node, and where each value comes from."""

    # None: no file was found; only environment and flags count.
    file: Path | None
    # The files that were read, with digests of their content, and the patterns of further files.
    digests: dict[Path, str]
    patterns: tuple[Pattern, ...]
    # The value of each key, with its origin.
    values: dict[str, Value]
    # The full URL of the ledger, which may contain a password.
    database_url: str
    database: Database
    node: Node
    retention: Retention
    directories: Directories
    log: Log
    daemon: Daemon
    http: Http
    redis: Redis
    nats: Nats
    # How to reach the brokers, by the name of their driver.
    connections: dict[str, Connection]
    # With all defaults applied.
    state_directory: Path
    config_directory: Path | None
    calendars: dict[str, Calendar]
    # Defaults of jobs.
    defaults: Defaults
    jobs: tuple[Job, ...]
    # Likely mistakes.
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        # Without passwords, since tracebacks and logs show it.
        return f"Configuration(file={str(self.file)!r}, database={masked(self.database_url)!r}, {self.jobs_words})"

    @property
    def jobs_words(self) -> str:
        return job_count(len(self.jobs), sum(not job.is_enabled for job in self.jobs))

    def make_directories(self) -> list[str]:
        """Create its directories, only for this user; returns warnings about changed modes.

        The folder of the file stays as it is: only a directory that was named belongs to this node.
        """
        warnings = [make_private(self.state_directory)]
        if self.directories.config is not None:
            warnings.append(make_private(self.directories.config, is_only_read=True))
        return [each for each in warnings if each is not None]

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of `Scheduler`, without the URL."""
        return settings_from(self.values)


def settings_from(values: Mapping[str, Value]) -> dict[str, Any]:
    given = {setting: values[key].value for key, setting in SETTINGS.items()}
    given["node_name"] = given["node_name"] or f"evertick@{host_name()}"
    given["drivers"] = given["drivers"] if given["drivers"] is not None else known_drivers()
    return given


def job_count(count: int, disabled: int = 0) -> str:
    """The number of jobs in words, with the number of disabled ones."""
    words = "1 job" if count == 1 else f"{count} jobs"
    if not disabled:
        return words
    which = "" if count == 1 else f"{'all' if disabled == count else disabled} of them "
    return f"{words}, {which}disabled"


_DIGEST_BYTES = 6

JobDigests = Mapping[str, Mapping[str, str]]


def job_digests(configuration: Configuration) -> dict[str, dict[str, str]]:
    """By job, digests of the values of its keys."""
    defaults = {name: each for name, each in configuration.defaults.shown.items() if name in TASK_KEYS}
    return {job.name: _digests(job, defaults) for job in configuration.jobs}


def changed_jobs(old: JobDigests, new: JobDigests) -> dict[str, list[str]]:
    """The changed keys of the jobs that are in both."""
    found = {name: _differing(old[name], new[name]) for name in sorted(old.keys() & new.keys())}
    return {name: keys for name, keys in found.items() if keys}


def _digests(job: Job, defaults: Mapping[str, Any]) -> dict[str, str]:
    if job.spec is None:
        return {}
    own = {name: each for name, each in job.shown.items() if name == job.spec.driver or name in TASK_KEYS}
    return {name: _digest(each) for name, each in (dict(defaults) | own).items()}


def _digest(value: Any) -> str:
    return blake2b(msgspec.json.encode(value, order="sorted"), digest_size=_DIGEST_BYTES).hexdigest()


def _differing(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
