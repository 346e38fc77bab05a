"""What is not wrong with a configuration, but hardly meant: told with its place, and nobody is kept from running."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from evertick.clock import system_clock
from evertick.config.brokers import connection_of
from evertick.config.build import SECRETS
from evertick.config.configuration import Configuration
from evertick.config.job import Job
from evertick.config.prerequisites import Needs
from evertick.config.problem import Problems
from evertick.config.rule import RULES
from evertick.config.saying import in_file, toml_text
from evertick.driver.queue.spec import unencrypted_warnings
from evertick.driver.secret import Secret, Secrets
from evertick.errors import EvertickError
from evertick.text.did_you_mean import nearest
from evertick.when import Cron, Once
from evertick.when.cron import warnings_of_steps
from evertick.when.moment import moment_text

__all__ = ["warnings_of"]

_BESIDE_URL = re.compile(r"(allow = \[[^\]]*\]) beside url")


def warnings_of(configuration: Configuration, environ: Mapping[str, str]) -> tuple[str, ...]:
    """A line each, as problems have them."""
    found = Problems()
    _warn_of_plain_text(configuration, found)
    folder = configuration.config_directory
    secrets = Secrets(None if folder is None else folder / SECRETS, environ)
    # Once, not for each of thousands of jobs.
    drivers, needs = configuration.settings["drivers"], Needs(configuration.http)
    for job in configuration.jobs:
        if job.is_enabled:
            _warn_of_past(job, found)
            _warn_of_steps(job, found)
            _warn_of_calendars(job, configuration, found)
            _warn_of_queue(job, configuration, found)
        if job.spec is not None and job.spec.driver in drivers:
            _warn_of_secrets(job, secrets, found)
            for field, said in needs.unmet(job.spec):
                _warn(job, f"{job.spec.driver}.{field}", _with_table(job, said), found)
    return found.lines()


def _warn(job: Job, name: str, said: str, found: Problems) -> None:
    """`name`: a key of the job, or a field in one, if the file has it there: the key may stand for a single field."""
    key = name if name in job.places else name.partition(".")[0]
    before = f"jobs.{job.name}" if key.partition(".")[0] in job.shown else "defaults"
    found.add(job.places[key], f"{before}.{key}", said)


def _with_table(job: Job, said: str) -> str:
    """What is to stand beside `url` needs a table, where the file has the address alone."""
    if "http.url" in job.places:
        return said
    return _BESIDE_URL.sub(r'http = { url = "…", \1 }', in_file(said))


def _warn_of_plain_text(configuration: Configuration, found: Problems) -> None:
    for name, each in configuration.connections.items():
        url, address = (configuration.values[f"{name}.{key}"] for key in ("url", "address"))
        # As the connection was made: the URL, unless a stronger layer names an address.
        value = url if url.is_set and url.origin.rank >= address.origin.rank else address
        for said in unencrypted_warnings(connection_of(name, each, getattr(configuration, name))):
            found.add(value.origin.place, value.key, said)


def _warn_of_past(job: Job, found: Problems) -> None:
    rule = job.rule
    if isinstance(rule, Once) and rule.at_us is not None and rule.at_us < system_clock.now_us():
        past = f"{moment_text(rule.at_us)} is past"
        said = f"{past}, so as a new schedule it never fires; give a moment to come, or take it away"
        _warn(job, next(name for name in RULES if name in job.shown), said, found)


def _warn_of_steps(job: Job, found: Problems) -> None:
    if isinstance(job.rule, Cron):
        for said in warnings_of_steps(job.rule):
            _warn(job, next(name for name in RULES if name in job.shown), said, found)


def _warn_of_calendars(job: Job, configuration: Configuration, found: Problems) -> None:
    named = {"calendar": job.rule.bounds.calendar, "blackout": job.definition.blackout}
    for name, calendar in named.items():
        if calendar is None or calendar in configuration.calendars:
            continue
        known = [*configuration.calendars]
        near = nearest(calendar, known, what="there are") if known else "there are none"
        said = f"no [calendars.{calendar}] is in these files ({near}); then it must be in the ledger"
        _warn(job, name if name in job.places else "when", said, found)


def _warn_of_queue(job: Job, configuration: Configuration, found: Problems) -> None:
    """Of one that nobody here has heard of. Where `node.queues` is set, its nodes share the queues on purpose."""
    queue, served = job.definition.queue, configuration.values["node.queues"]
    is_shared = job.spec is None or job.definition.mode == "every-node"
    if not is_shared and queue not in served.value and not served.is_set:
        known = ", ".join(map(toml_text, served.value))
        said = (
            f"a node by this file works on {known} alone, so this waits for another node; write "
            f"queues = [{', '.join(map(toml_text, (*served.value, queue)))}] under [node], or take it away"
        )
        _warn(job, "queue", said, found)


def _warn_of_secrets(job: Job, secrets: Secrets, found: Problems) -> None:
    assert job.spec is not None, "only such jobs have some"
    for secret in _secrets_in(job.spec):
        try:
            secrets.resolve(secret.name)
        except EvertickError as missing:
            _warn(job, job.spec.driver, str(missing), found)


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
