"""Likely mistakes in a configuration: warnings with their places, which do not prevent a start.

`Prerequisites` finds missing prerequisites of jobs, such as programs and folders, without running anything or using the
network. They are warnings, since the job may run on another machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from urllib.parse import urlsplit

import msgspec

from evertick.clock import system_clock
from evertick.config.brokers import connection_of
from evertick.config.build import SECRETS
from evertick.config.configuration import Configuration
from evertick.config.job import Job
from evertick.config.problem import Problems, phrased, toml_text
from evertick.config.rule import RULES
from evertick.config.section import Http as HttpSection
from evertick.driver.http.address import address_literal, allowed_addresses, is_own_name, parse_allowed
from evertick.driver.http.spec import Http, method_of
from evertick.driver.queue.spec import unencrypted_warnings
from evertick.driver.secret import Secret, Secrets
from evertick.driver.shell.spec import Shell, expand_home, is_home_path
from evertick.driver.spec import Spec
from evertick.errors import EvertickError, JobFailed, Refused
from evertick.text.did_you_mean import alike, nearest
from evertick.when import Cron, Once
from evertick.when.cron import warnings_of_steps
from evertick.when.moment import moment_text

__all__ = ["warnings_of"]

# Others are sent as they are.
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PURGE", "QUERY", "REPORT", "PROPFIND", "MKCOL")
_LOOPBACK = "127.0.0.1"


class Prerequisites:
    """Checks each user and path once, since thousands of jobs share a few."""

    def __init__(self, http: HttpSection) -> None:
        self._allowed = parse_allowed(http.allow, "http.allow", is_private=http.allow_private)
        self._is_user = cache(_is_user)
        self._is_missing = cache(_is_missing)
        self._may_become = cache(_may_become)

    def missing(self, spec: Spec, *, is_table: bool) -> Iterator[tuple[str, str]]:
        """The fields of the specification with a problem and its fix. `is_table`: the job has a table of fields."""
        match spec:
            case Shell():
                yield from self._missing_of_command(spec)
            case Http():
                yield from self._missing_of_request(spec, is_table)

    def _missing_of_command(self, spec: Shell) -> Iterator[tuple[str, str]]:
        if spec.user is not None and not self._is_user(spec.user):
            yield "user", f"there is no user {spec.user!r} on this machine; make it, or name another"
        elif spec.user is not None and not self._may_become(spec.user):
            yield (
                "user",
                f"only a daemon of root may run commands as {spec.user!r}; start it as root, or take this away",
            )
        folder = _folder(spec)
        if folder is not None and self._is_missing(folder, is_folder=True):
            yield "cwd", f"there is no directory {folder} on this machine; make it, or correct the path"
        field = "shell" if isinstance(spec.command, str) else "command"
        program = spec.words[0]
        is_missing = os.path.isabs(program) and self._is_missing(program, is_folder=False)
        if _is_line(spec.command) and (is_missing or not os.path.isabs(program)):
            yield (
                field,
                f"a list is a program and its arguments, so this is a program that is called {program!r:.100}; write "
                "the line as one text, without brackets, or each word in quotes of its own",
            )
        # A name without a path is searched in the PATH of the run.
        elif is_missing:
            yield field, f"there is no program {program} on this machine; install it, or correct the path"

    def _missing_of_request(self, spec: Http, is_table: bool) -> Iterator[tuple[str, str]]:
        method = method_of(spec)
        if method not in _METHODS and (meant := alike(method, _METHODS)) is not None:
            yield "method", f"{method!r} is no method that servers commonly know; write {meant!r}, if that is meant"
        host = (urlsplit(spec.url).hostname or "") if isinstance(spec.url, str) else ""
        address = _LOOPBACK if is_own_name(host) else address_literal(host)
        if address is None:
            return
        try:
            allowed_addresses(host, [address], self._allowed | parse_allowed(spec.allow, "allow"))
        except Refused as refused:
            allow = f"allow = ['{refused.value}']"
            fix = f"{allow} beside url" if is_table else f'http = {{ url = "…", {allow} }}'
            setting = ", or allow_private = true under [http]" if refused.setting == "allow_private" else ""
            yield "url", f"{refused.problem}; if it is meant, allow it: {fix}{setting}"


def _folder(spec: Shell) -> str | None:
    """The working directory, if it is known: the home of another user is found by the run."""
    if spec.cwd is None or (is_home_path(spec.cwd) and spec.user is not None):
        return None
    return expand_home(spec.cwd, os.path.expanduser("~"))


def _is_line(command: str | Sequence[str]) -> bool:
    """Whether a list has one element that looks like a whole line: ["ls -la"]."""
    return not isinstance(command, str) and len(command) == 1 and len(command[0].split()) > 1


def _is_user(user: str | int) -> bool:
    # POSIX only, like shell jobs.
    from evertick.driver.shell.spec import is_user

    return is_user(user)


def _may_become(user: str | int) -> bool:
    """Whether a node of this user may run commands as the given one."""
    from evertick.driver.shell.spec import account_for_user

    try:
        account_for_user(user)
    except JobFailed:
        return False
    return True


def _is_missing(path: str, *, is_folder: bool) -> bool:
    """Whether the path is missing; False if this user may not look."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return os.path.isdir(path) != is_folder


def warnings_of(configuration: Configuration, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The warnings, a line each, in the form of problems."""
    found = Problems()
    _warn_of_plain_text(configuration, found)
    folder = configuration.config_directory
    secrets = Secrets(None if folder is None else folder / SECRETS, environ)
    # Computed once for thousands of jobs.
    drivers, needs = configuration.settings["drivers"], Prerequisites(configuration.http)
    for job in configuration.jobs:
        if job.is_enabled:
            _warn_of_past(job, found)
            _warn_of_steps(job, found)
            _warn_of_calendars(job, configuration, found)
            _warn_of_queue(job, configuration, found)
        if job.spec is not None and job.spec.driver in drivers:
            _warn_of_secrets(job, secrets, found)
            for field, problem in needs.missing(job.spec, is_table="http.url" in job.places):
                _warn(job, f"{job.spec.driver}.{field}", problem, found)
    return found.lines()


def _warn(job: Job, name: str, problem: str, found: Problems) -> None:
    """`name`: a key of the job or a field in it. If the file has no such field, the key is its short form."""
    key = name if name in job.places else name.partition(".")[0]
    before = f"jobs.{job.name}" if key.partition(".")[0] in job.shown else "defaults"
    found.add(job.places[key], f"{before}.{key}", problem)


def _warn_of_plain_text(configuration: Configuration, found: Problems) -> None:
    for name, each in configuration.connections.items():
        url, address = (configuration.values[f"{name}.{key}"] for key in ("url", "address"))
        # The URL, unless a stronger layer sets an address.
        value = url if url.is_set and url.origin.rank >= address.origin.rank else address
        for problem in unencrypted_warnings(connection_of(name, each, getattr(configuration, name))):
            found.add(value.origin.place, value.key, problem)


def _warn_of_past(job: Job, found: Problems) -> None:
    rule = job.rule
    if isinstance(rule, Once) and rule.at_us is not None and rule.at_us < system_clock.now_us():
        past = f"{moment_text(rule.at_us)} is past"
        problem = f"{past}, so as a new schedule it never fires; give a moment to come, or take it away"
        _warn(job, next(name for name in RULES if name in job.shown), problem, found)


def _warn_of_steps(job: Job, found: Problems) -> None:
    if isinstance(job.rule, Cron):
        for problem in warnings_of_steps(job.rule):
            _warn(job, next(name for name in RULES if name in job.shown), problem, found)


def _warn_of_calendars(job: Job, configuration: Configuration, found: Problems) -> None:
    named = {"calendar": job.rule.bounds.calendar, "blackout": job.definition.blackout}
    for name, calendar in named.items():
        if calendar is None or calendar in configuration.calendars:
            continue
        known = [*configuration.calendars]
        near = nearest(calendar, known, what="there are") if known else "there are none"
        problem = f"no [calendars.{calendar}] is in these files ({near}); then it must be in the ledger"
        _warn(job, name if name in job.places else "when", problem, found)


def _warn_of_queue(job: Job, configuration: Configuration, found: Problems) -> None:
    """Warn of a queue that no node of this file reads, unless `node.queues` is set on purpose."""
    queue, served = job.definition.queue, configuration.values["node.queues"]
    is_shared = job.spec is None or job.definition.mode == "every-node"
    if not is_shared and queue not in served.value and not served.is_set:
        known = ", ".join(map(toml_text, served.value))
        problem = (
            f"a node by this file works on {known} alone, so this waits for another node; write "
            f"queues = [{', '.join(map(toml_text, (*served.value, queue)))}] under [node], or take it away"
        )
        _warn(job, "queue", problem, found)


def _warn_of_secrets(job: Job, secrets: Secrets, found: Problems) -> None:
    assert job.spec is not None, "only such jobs have some"
    for secret in _secrets_in(job.spec):
        try:
            secrets.resolve(secret.name)
        except EvertickError as missing:
            _warn(job, job.spec.driver, phrased(missing), found)


def _secrets_in(value: object) -> Iterator[Secret]:
    match value:
        case Secret():
            yield value
        case msgspec.Struct():
            for name in value.__struct_fields__:
                yield from _secrets_in(getattr(value, name))
        case Mapping():
            for each in value.values():
                yield from _secrets_in(each)
        case list() | tuple():
            for each in value:
                yield from _secrets_in(each)
