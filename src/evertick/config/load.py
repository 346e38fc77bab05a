"""Loads a configuration from files, environment and flags. The result is checked, or all problems are raised.

An unknown variable `EVERTICK_…` may be misspelt: `EVERTICK_DATABSE` would leave a node on another database. A name
similar to a known one, or with the prefix of a section, is an error; any other is a warning. Variables are not checked
if a file refers to them, if other parts of Evertick read or set them, or if Kubernetes sets them for its services.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from evertick.config.adding import add_jobs
from evertick.config.brokers import Connection, broker_of
from evertick.config.build import bare_scheduler, check_brokers, check_connections
from evertick.config.configuration import SETTINGS, Configuration, settings_from
from evertick.config.database import database_url
from evertick.config.files import (
    FILE_NAME,
    Document,
    Pattern,
    find_file,
    ignored_files,
    patterns_of,
    read_all,
    read_before_error,
    read_folder,
    references_in,
    warnings_in,
)
from evertick.config.job import JOBS_MAX, Defaults, Job, Reading, read_defaults, read_job
from evertick.config.layer import DEFAULT, Table, Value, layered, section_from
from evertick.config.ownership import TRUST_VARIABLE
from evertick.config.paths import check_files, check_writable_paths, default_state, folder_problem
from evertick.config.problem import Problems, phrased, toml_words
from evertick.config.rule import read_calendar
from evertick.config.section import SECTIONS, SHORT_VARIABLES, VARIABLE, keys_of, variable_of
from evertick.config.warning import warnings_of
from evertick.definition.settings import make_settings
from evertick.driver.http.address import parse_allowed
from evertick.driver.registry import IN_PYTHON, known_drivers
from evertick.driver.secret import SECRET_VARIABLE
from evertick.driver.shell.spec import RUN_VARIABLES
from evertick.driver.shell.supervised import MARK
from evertick.errors import InvalidInput
from evertick.scheduler.process import TRACEBACK_VARIABLE
from evertick.text.did_you_mean import alike, nearest
from evertick.text.redact import masked
from evertick.when import Calendar

__all__ = [
    "FILE_NAME",
    "Configuration",
    "Ledger",
    "guess_ledger",
    "load_configuration",
    "load_disabled",
    "load_ledger",
    "management_settings",
]

_KEYS = tuple(variable_of(f"{section}.{key}") for section, kind in SECTIONS.items() for key, _, _ in keys_of(kind))
# Read by other commands and by the init script; or set for the commands of shell jobs, of which one may be ours.
_ELSEWHERE = frozenset((TRACEBACK_VARIABLE, TRUST_VARIABLE, "EVERTICK_DEFAULTS", MARK, *RUN_VARIABLES))
# The variables that Kubernetes sets for the services of a namespace.
_SERVICE = re.compile(
    r"(?P<service>\w+?)_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
# The similarity, after the prefix, from which on a name counts as misspelt.
_MISSPELT = 0.85


def check_variables(environ: Mapping[str, str], data: Iterable[Any], problems: Problems, warnings: Problems) -> None:
    """Report unknown variables. `data` is the content of the files, which may refer to variables."""
    unknown = [name for name in environ if name.startswith(VARIABLE) and not _is_known(name, environ)]
    if not unknown:
        return
    referred = {name for each in data for name in references_in(each)}
    for name in unknown:
        if name not in referred:
            _tell(name, problems, warnings)


def _is_known(name: str, environ: Mapping[str, str]) -> bool:
    is_ours = name in _KEYS or name in SHORT_VARIABLES or name in _ELSEWHERE or name.startswith(SECRET_VARIABLE)
    return is_ours or _is_of_service(name, environ)


def _is_of_service(name: str, environ: Mapping[str, str]) -> bool:
    """Whether Kubernetes set it: for a service evertick-redis every container gets EVERTICK_REDIS_PORT."""
    found = _SERVICE.fullmatch(name)
    return found is not None and f"{found['service']}_SERVICE_HOST" in environ


def _tell(name: str, problems: Problems, warnings: Problems) -> None:
    for section in SECTIONS:
        beginning = f"{variable_of(section)}_"
        if name.startswith(beginning):
            near = nearest(name, [each for each in _KEYS if each.startswith(beginning)], what="there are")
            problems.add(name, "", f"no key of the configuration has this variable; {near}")
            return
    own = [each.removeprefix(VARIABLE) for each in (*SHORT_VARIABLES, *_KEYS)]
    if (meant := alike(name.removeprefix(VARIABLE), own, _MISSPELT)) is not None:
        problems.add(name, "", f"no key of the configuration has this variable; it is called '{VARIABLE}{meant}'")
        return
    fix = next((f"; is {each} meant?" for each in _ending_alike(name)), "; give it another name, if it is yours")
    warnings.add(name, "", f"no key of the configuration has this variable, and nothing reads it{fix}")


def _ending_alike(name: str) -> Iterator[str]:
    """Variables with this name after their section: EVERTICK_TZ is meant for node.tz."""
    ending = f"_{name.removeprefix(VARIABLE)}"
    return (each for each in _KEYS if each.endswith(ending))


_JOBS_FOLDER = "jobs.d"
_JOBS_ONLY = ("jobs", "calendars")
# Settings that affect commands which add, change or backfill schedules.
_MANAGEMENT = ("node.tz", "node.min_interval", "node.allow_schedules", "retention.history")


def load_configuration(
    path: str | Path | None = None,
    environ: Mapping[str, str] = os.environ,
    flags: Mapping[str, tuple[str, Any]] | None = None,
) -> Configuration:
    """Load and check everything. `flags`: by key, like "log.level", the name of the flag and its value.

    Raises InvalidConfiguration with all problems and warnings.
    """
    problems = Problems()
    loading = _Loading(find_file(path, environ), environ, flags or {}, problems)
    made = loading.load()
    check_connections(made, problems)
    if loading.are_settings_right:
        check_brokers(made, problems)
        # Only a scheduler finds rules that its limits forbid, and jobs that share a rate.
        add_jobs(bare_scheduler(made), made.jobs, problems)
    warnings = made.warnings
    if loading.are_settings_right:  # wrong settings would cause false warnings
        warnings += warnings_of(made, environ)
    problems.raise_any(warnings)
    return msgspec.structs.replace(made, warnings=warnings)


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger of a configuration, for commands. The URL may hold a password."""

    file: Path
    database_url: str
    app: str
    state_directory: Path
    # The settings for a scheduler that only manages, as `Scheduler` takes them.
    settings: dict[str, Any]

    def __repr__(self) -> str:
        return f"Ledger({masked(self.database_url)!r}, app={self.app!r})"


def load_ledger(path: str | Path | None, environ: Mapping[str, str] = os.environ) -> Ledger | None:
    """The ledger that the configuration names; None without a file.

    Jobs are not read, so an invalid job does not affect a command that only reads the ledger.
    """
    file = find_file(path, environ)
    if file is None:
        return None
    problems = Problems()
    ledger = _ledger(file, read_all(file, problems, environ=environ), environ, problems)
    problems.raise_any()
    return ledger


def load_disabled(path: str | Path | None, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The jobs with `enabled = false`, by name, with the place of that key. Nothing else of them is checked."""
    file = find_file(path, environ)
    if file is None:
        return {}
    ignored = Problems()
    loading = _Loading(file, environ, {}, ignored)
    values = layered(loading.documents, environ, {}, ignored, only=("directories",))
    return loading.disabled(values)


def guess_ledger(path: str | Path | None, environ: Mapping[str, str] = os.environ) -> Ledger | None:
    """The ledger of an invalid configuration, by its valid parts.

    The line that names the database may be invalid too, so the caller needs other evidence.
    """
    file = find_file(path, environ)
    if file is None:
        return None
    ignored = Problems()
    return _ledger(file, read_all(file, ignored, read_before_error, environ=environ), environ, ignored)


def _ledger(file: Path, documents: list[Document], environ: Mapping[str, str], problems: Problems) -> Ledger:
    values = layered(documents, environ, {}, problems, only=("database", "node", "retention", "directories"))
    state = _state(values, environ)
    url = database_url(values, state, problems, lambda problem: None)
    return Ledger(
        file=file,
        database_url=url,
        app=str(values["node.app"].value),
        state_directory=state,
        settings=_management_settings(values, problems),
    )


def management_settings(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The settings in the environment, for a scheduler that only manages."""
    variables, problems = {variable_of(key) for key in _MANAGEMENT}, Problems()
    given = {name: value for name, value in environ.items() if name in variables}
    settings = _management_settings(layered([], given, {}, problems), problems)
    problems.raise_any()
    return settings


def _management_settings(values: Mapping[str, Value], problems: Problems) -> dict[str, Any]:
    """Checked settings for management. Others are not checked: a wrong lease does not affect reading the ledger."""
    others = {setting: key for key, setting in SETTINGS.items() if key not in _MANAGEMENT}
    defaults = {key: Value(key=key, value=_default(key), origin=DEFAULT) for key in others.values()}
    # Set explicitly, since finding all installed drivers searches every package.
    defaults["node.drivers"] = msgspec.structs.replace(defaults["node.drivers"], value=IN_PYTHON)
    checked = _checked_settings({**values, **defaults}, problems)
    return {setting: value for setting, value in checked.items() if setting not in others}


def _checked_settings(values: Mapping[str, Value], problems: Problems) -> dict[str, Any]:
    """Check the settings as the scheduler does. A rejected one is reported, and its default used from there on."""
    checked = dict(values)
    names = {setting: key for key, setting in SETTINGS.items()}
    for _ in SETTINGS:
        try:
            make_settings("sqlite://", **settings_from(checked))
            break
        except InvalidInput as wrong:
            key = names.get(wrong.setting or "")
            if key is None:
                raise
            problems.add(checked[key].origin.place, key, phrased(wrong, value=checked[key].value))
            checked[key] = Value(key=key, value=_default(key), origin=DEFAULT)
    return settings_from(checked)


class _Loading:
    """One reading of a configuration."""

    def __init__(
        self,
        file: Path | None,
        environ: Mapping[str, str],
        flags: Mapping[str, tuple[str, Any]],
        problems: Problems,
    ) -> None:
        self.file = file
        self.documents = [] if file is None else read_all(file, problems, environ=environ)
        self._environ, self._flags, self._problems = environ, flags, problems
        self._warnings: list[str] = []
        # Whether only jobs may have errors, so that a scheduler can be made.
        self.are_settings_right = False

    def load(self) -> Configuration:
        values = layered(self.documents, self._environ, self._flags, self._problems)
        sections = {name: section_from(name, values) for name in SECTIONS}
        patterns = [each for document in self.documents for each in patterns_of(document)]
        folder = self._jobs_folder(values)
        if folder is not None:
            patterns.append(Pattern(folder=folder, text="*.toml"))
            self.documents += self._read_jobs(folder)
        self._check_variables()
        state = _state(values, self._environ)
        url = database_url(values, state, self._problems, self._warnings.append)
        settings = _checked_settings(values, self._problems)
        self._check_around(values, state)
        connections = self._connections(values)
        self._check_events(values)
        self.are_settings_right = not len(self._problems)
        calendars = self._calendars()
        defaults = read_defaults(self._tables("defaults"), self._environ, self._problems)
        jobs = self._jobs(defaults, calendars, str(settings["tz"]))
        self._warnings += warnings_in(self.documents)
        self._warn_open(values)
        return Configuration(
            file=self.file,
            digests={document.path: document.digest for document in self.documents},
            patterns=tuple(patterns),
            values=values,
            database_url=url,
            connections=connections,
            state_directory=state,
            config_directory=self._config_directory(values),
            calendars=calendars,
            defaults=defaults,
            jobs=jobs,
            warnings=tuple(self._warnings),
            **sections,
        )

    def disabled(self, values: Mapping[str, Value]) -> dict[str, str]:
        folder = self._jobs_folder(values)
        self.documents += [] if folder is None else self._read_jobs(folder)
        tables = self._named("jobs").items()
        return {name: table.place("enabled") for name, table in tables if table.data.get("enabled") is False}

    # --- settings

    def _check_variables(self) -> None:
        warnings = Problems()
        check_variables(self._environ, (each.data for each in self.documents), self._problems, warnings)
        self._warnings += warnings.lines()

    def _check_events(self, values: Mapping[str, Value]) -> None:
        events, feed = values["nats.events"], values["retention.feed"]
        if events.value and feed.value == "off":
            problem = f"events are published from the feed, which {feed.origin.place} turns off; remove one of them"
            self._problems.add(events.origin.place, "nats.events", problem)

    def _check_around(self, values: Mapping[str, Value], state: Path) -> None:
        """Check keys that refer to the machine: files, directories, addresses."""
        allow, warnings = values["http.allow"], Problems()
        for some in (allow.value, *([each] for each in allow.value)):
            try:
                parse_allowed(some, "http.allow")
            except InvalidInput as wrong:
                self._problems.add(allow.origin.place, "http.allow", phrased(wrong, "http.allow: "))
        check_files(values, self._problems)
        check_writable_paths(values, state, self._problems, warnings)
        self._warnings += warnings.lines()

    def _connections(self, values: Mapping[str, Value]) -> dict[str, Connection]:
        found = {name: broker_of(name, values, self._problems, self._warnings.append) for name in ("redis", "nats")}
        return {name: each for name, each in found.items() if each is not None}

    def _config_directory(self, values: Mapping[str, Value]) -> Path | None:
        given = values["directories.config"].value
        if given is not None:
            return Path(given)
        return None if self.file is None else self.file.parent.absolute()

    def _warn_open(self, values: Mapping[str, Value]) -> None:
        """Warn of a file with a password that every user may read."""
        by_path = {str(document.path): document for document in self.documents}
        for key, value in values.items():
            holds = value.about.is_secret or (value.about.is_url and _holds_secret(key, values))
            file = value.origin.place.rpartition(":")[0]
            is_written = value.is_set and value.written is None and file in by_path
            if holds and is_written and by_path[file].is_open:
                self._warnings.append(
                    f"{value.origin.place}: {key}: every user may read this password; run `chmod 600 {file}`, or put "
                    "it into a file of its own"
                )

    # --- jobs

    def _jobs_folder(self, values: Mapping[str, Value]) -> Path | None:
        value = values["directories.jobs"]
        if value.is_set:
            problem = folder_problem(Path(value.value))
            if problem is not None:
                self._problems.add(value.origin.place, "directories.jobs", problem)
            return Path(value.value)
        folder = None if self.file is None else self.file.parent / _JOBS_FOLDER
        if folder is not None and os.path.isdir(folder) and (problem := folder_problem(folder)) is not None:
            self._problems.add(str(folder), "", problem.removeprefix(f"{folder} "))
        return folder

    def _read_jobs(self, folder: Path) -> list[Document]:
        read = read_folder(folder, self.documents, self._problems, environ=self._environ)
        self._warnings += [
            f"{path}: it is not read, since its name does not end with .toml; rename it, or take it away"
            for path in ignored_files(folder)
        ]
        for document in read:
            for name in document.data:
                if name not in _JOBS_ONLY:
                    meant = None if name in SECTIONS else alike(name, _JOBS_ONLY)
                    fix = f"it is called {meant!r}" if meant else f"move it to {self.file}"
                    problem = f"a file of jobs holds [jobs.…] and [calendars.…] alone; {fix}"
                    self._problems.add(document.place((name,)), name, problem)
        return read

    def _tables(self, name: str) -> list[Table]:
        found = []
        for document in self.documents:
            data = document.data.get(name, {})
            if isinstance(data, dict):
                found.append(Table(document=document, path=(name,), data=data))
            else:
                what = f"{name}.NAME" if name != "defaults" else name
                problem = f"{toml_words(data):.60} is no table; write [{what}] and its keys below"
                self._problems.add(document.place((name,)), name, problem)
        return found

    def _named(self, name: str) -> dict[str, Table]:
        """The tables below it, by name."""
        found: dict[str, Table] = {}
        for table in self._tables(name):
            for key, data in table.data.items():
                inner = Table(document=table.document, path=(name, key), data=data)
                if key in found:
                    problem = f"it is defined at {found[key].place()}, too; give one of them another name"
                    self._problems.add(inner.place(), inner.key(), problem)
                elif not isinstance(data, dict):
                    problem = f"{toml_words(data):.60} is no table; write [{inner.key()}] and its keys below"
                    self._problems.add(inner.place(), inner.key(), problem)
                else:
                    found[key] = inner
        return found

    def _calendars(self) -> dict[str, Calendar]:
        tables = self._named("calendars").items()
        made = {name: read_calendar(table, self._environ, self._problems) for name, table in tables}
        return {name: each for name, each in made.items() if each is not None}

    def _jobs(self, defaults: Defaults, calendars: dict[str, Calendar], tz: str) -> tuple[Job, ...]:
        tables = self._named("jobs")
        if len(tables) > JOBS_MAX:
            first = next(iter(tables.values()))
            problem = f"{len(tables)} jobs are more than {JOBS_MAX}; give some to another app, with a file of its own"
            self._problems.add(str(first.document.path), "jobs", problem)
            return ()
        reading = Reading(
            environ=self._environ,
            defaults=defaults,
            calendars=calendars,
            tz=tz,
            drivers=tuple(name for name in known_drivers() if name not in IN_PYTHON),
            problems=self._problems,
        )
        read = [read_job(table, reading) for table in tables.values()]
        return tuple(job for job in read if job is not None)


def _default(key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(SECTIONS[section](), name)


def _state(values: Mapping[str, Value], environ: Mapping[str, str]) -> Path:
    given = values["directories.state"].value
    return default_state(environ) if given is None else Path(given)


def _holds_secret(key: str, values: Mapping[str, Value]) -> bool:
    """Whether the URL holds a secret. A user without a password may be a token, unless the password is in a file."""
    url, elsewhere = values[key].value, values.get(f"{key.rpartition('.')[0]}.password_file")
    return bool(url) and masked(url) != url and (elsewhere is None or not elsewhere.is_set)
