"""A configuration for display: values and their origins, without secrets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from evertick.config.configuration import Configuration
from evertick.config.job import TASK_KEYS, Defaults, Job
from evertick.config.layer import DEFAULT, Value
from evertick.definition.task import make_work
from evertick.driver.spec import AbsentDriver
from evertick.job.arguments import FreeArguments
from evertick.text.redact import masked, masked_within

__all__ = ["shown_defaults", "shown_jobs", "shown_values"]

HIDDEN = "***"
# Keys about late, lost and still running jobs, which are shown even if they are not set.
_ASKED_OF_SCHEDULE = ("queue", "catch_up", "overlap")
_ASKED_OF_TASK = ("on_lost", "on_unreachable")
_ASKED_OF_DRIVER = ("ack_timeout", "progress_timeout", "kill_after")
_REFERENCE = re.compile(r"\$\{\w+\}")
_ADDRESS = re.compile(r"[A-Za-z][\w+.-]*:/")
_WEB = re.compile(r"(?i)https?://")
# Names of values that are often secrets.
_TELLING = re.compile(r"(?i)pass|secret|token|authorization|credential|cookie|api[-_]?key")


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A key, its value as plain data, and its origin in words."""

    key: str
    value: Any
    origin: str


def shown_values(configuration: Configuration) -> list[Shown]:
    """All keys of all sections, in the order of the reference, with value or default."""
    instead = _instead(configuration)
    shown = []
    for key, value in configuration.values.items():
        text = instead[key] if key in instead and not value.is_set else _shown_value(value)
        shown.append(Shown(key=key, value=text, origin=str(value.origin)))
    return shown


def shown_defaults(configuration: Configuration) -> list[Shown]:
    """The defaults of jobs."""
    found = configuration.defaults
    return [
        Shown(key=f"defaults.{name}", value=_hidden(name, value), origin=found.places[name])
        for name, value in found.shown.items()
    ]


def shown_jobs(configuration: Configuration) -> list[dict[str, Any]]:
    return [_job(job, configuration.defaults) for job in configuration.jobs]


def _instead(configuration: Configuration) -> dict[str, Any]:
    settings = configuration.settings
    config = configuration.config_directory
    return {
        "database.url": masked(configuration.database_url),
        "node.name": settings["node_name"],
        "node.drivers": list(settings["drivers"]),
        "directories.state": str(configuration.state_directory),
        "directories.config": None if config is None else str(config),
    }


def _shown_value(value: Value) -> Any:
    if value.about.is_secret and value.value is not None:
        return value.written if _is_reference(value.written) else HIDDEN
    if value.written is not None:
        return masked(value.written) if value.about.is_url else value.written
    if value.about.is_url and value.value is not None:
        return masked(value.value)
    return _plain(value.value)


def _is_reference(written: Any) -> bool:
    """Whether the value is only a reference to a variable, which does not reveal its value."""
    return isinstance(written, str) and _REFERENCE.fullmatch(written) is not None


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _job(job: Job, defaults: Defaults) -> dict[str, Any]:
    # Options of tasks do not apply to a task of another node.
    given = {name: each for name, each in defaults.shown.items() if job.spec is not None or name not in TASK_KEYS}
    held = {name: each for name, each in _held(job).items() if name not in given | job.shown}
    return {
        "name": job.name,
        "place": job.place,
        "when": job.rule.text,
        "driver": None if job.spec is None else job.spec.driver,
        "task": job.definition.task,
        "enabled": job.is_enabled,
        "description": job.description,
        # As the file has them, those of the defaults too: of what comes from the environment, the name of the variable.
        "keys": {name: {"value": _hidden(name, value), "origin": job.places.get(name, job.place)}
                 for name, value in (given | job.shown).items()}
                | {name: {"value": value, "origin": str(DEFAULT)} for name, value in held.items()},
    }  # fmt: skip


def _held(job: Job) -> dict[str, Any]:
    """Defaults of important keys that the job does not set."""
    held: dict[str, Any] = {name: getattr(job.definition, name) for name in _ASKED_OF_SCHEDULE}
    if job.spec is None:
        return held
    work = make_work(job.name, AbsentDriver("", job.name), FreeArguments(job.name), job.task_options)  # type: ignore[arg-type]
    held |= {name: getattr(work, name) for name in _ASKED_OF_TASK}
    given = job.shown.get(job.spec.driver)
    fields = given if isinstance(given, dict) else {}
    return held | {
        f"{job.spec.driver}.{name}": _plain(getattr(job.spec, name))
        for name in _ASKED_OF_DRIVER
        if name in job.spec.__struct_fields__ and name not in fields
    }


def _hidden(name: str, value: Any) -> Any:
    """Hide values whose name suggests a secret. References to secrets stay."""
    match value:
        case dict():
            return {each: _hidden(each, inner) for each, inner in value.items()}
        case list():
            return [_hidden(name, each) for each in value]
        case str() if _TELLING.search(name) and name != "secret" and not _is_reference(value):
            return HIDDEN
        case str() if any(map(str.isspace, value)) and not _ADDRESS.match(value):
            return masked_within(value)
        case str() if _WEB.match(value):
            # As the runs of the job show it: in a query there is often a key.
            address, question, _ = (masked(value) if "@" in value.partition("?")[0] else value).partition("?")
            return f"{address}{question and '?…'}"
        case str() if "://" in value:
            return masked(value) if "@" in value else value
        case _:
            return value
