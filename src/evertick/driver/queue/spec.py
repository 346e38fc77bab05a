"""Specifications of jobs that are dispatched to a queue in Redis or NATS JetStream, and the settings of connections.

Cheap to import: it loads neither library.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import PurePath
from typing import Any, ClassVar, Literal, TypeVar, get_args
from urllib.parse import parse_qs, urlsplit

import msgspec

from evertick.driver.base import Driver
from evertick.driver.secret import Secret
from evertick.driver.spec import DriverParts, Spec
from evertick.driver.spec_errors import Faults
from evertick.errors import InvalidSetting
from evertick.model import DispatchMode
from evertick.model.feed import FEED_KINDS
from evertick.text.did_you_mean import nearest
from evertick.text.redact import masked, shown_value
from evertick.text.values import shown
from evertick.when.duration import duration_text, duration_us
from evertick.when.moment import HOUR, SECOND

__all__ = [
    "EVENT_KINDS",
    "QUEUE_PREFIX",
    "SUBJECT_PREFIX",
    "Nats",
    "NatsConnection",
    "QueueSpec",
    "Redis",
    "RedisConnection",
    "check_prefix",
    "check_queue_name",
    "check_subject_prefix",
    "nats_connection",
    "redis_connection",
    "unencrypted_warnings",
    "warn_if_unencrypted",
]

C = TypeVar("C", "RedisConnection", "NatsConnection")

QUEUE_PREFIX = "builds_"
SUBJECT_PREFIX = "evertick"
# The kinds of events that can be published. Each has a subject.
EVENT_KINDS = tuple(kind for kind in FEED_KINDS if kind.startswith("run."))
# Part of a key in Redis and of a subject in NATS, where ".", "*" and ">" have a meaning.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_KEY_PREFIX = re.compile(r"[\w:.{}-]{0,100}", re.ASCII)
_SUBJECT_PREFIX = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}", re.ASCII)
_TIMEOUT_MIN = SECOND
# Workers remember taken dispatches for a day, and must not receive older ones.
_TIMEOUT_MAX = 12 * HOUR
_REPLICAS_MAX = 5
# Each warning is logged once per process.
_warned: set[str] = set()


class QueueSpec(Spec, frozen=True):
    """A job that external workers do.

    queue: the name of the queue that the workers read. mode: when the run has succeeded: "finish", when a worker
    reports its end; "ack", when a worker has taken it; "forget", when the broker has it. ack_timeout: the run is
    dispatched again if no worker takes it in this time. progress_timeout: the same if its worker sends no report.
    """

    queue: str
    mode: DispatchMode = "finish"
    ack_timeout: str | int | float = "10m"
    progress_timeout: str | int | float = "1m"

    def check(self, task: str) -> None:
        where = f"task {task!r}: {self.driver}"
        faults = Faults(where)
        self._check_fields(where, faults)
        faults.raise_any()

    def _check_fields(self, where: str, faults: Faults) -> None:
        """Check the fields of all queues; subclasses check their own."""
        with faults.of("queue"):
            check_queue_name(self.queue, f"{where}: queue")
        with faults.of("mode"):
            if self.mode not in get_args(DispatchMode):
                raise InvalidSetting(
                    f"{where}: mode: {shown(self.mode)} must be one of {', '.join(get_args(DispatchMode))}",
                    setting="mode",
                    value=shown(self.mode),
                )
        with faults.of("ack_timeout"):
            _check_timeout(self.ack_timeout, f"{where}: ack_timeout")
        with faults.of("progress_timeout"):
            _check_timeout(self.progress_timeout, f"{where}: progress_timeout")


class Redis(QueueSpec, frozen=True):
    """A job that workers take from a queue in Redis: `Redis("docker")`.

    kind: whether the queue is a list or a stream. prefix: the prefix of its key, before the name of the queue.
    """

    driver: ClassVar[str] = "redis"
    short: ClassVar[str | None] = "queue"

    kind: Literal["list", "stream"] = "list"
    prefix: str = QUEUE_PREFIX

    @property
    def key(self) -> str:
        return f"{self.prefix}{self.queue}"

    def _check_fields(self, where: str, faults: Faults) -> None:
        super()._check_fields(where, faults)
        with faults.of("kind"):
            if self.kind not in ("list", "stream"):
                raise InvalidSetting(
                    f"{where}: kind: {shown(self.kind)} must be 'list' or 'stream'",
                    setting="kind",
                    value=shown(self.kind),
                )
        with faults.of("prefix"):
            check_prefix(self.prefix, f"{where}: prefix")

    def make_driver(self, task: str, parts: DriverParts) -> Driver:
        from evertick.driver.queue.redis_broker import redis_driver

        return redis_driver(self, task, parts)


class Nats(QueueSpec, frozen=True):
    """A job that workers take from a queue in NATS JetStream: `Nats("docker")`."""

    driver: ClassVar[str] = "nats"
    short: ClassVar[str | None] = "queue"

    def make_driver(self, task: str, parts: DriverParts) -> Driver:
        from evertick.driver.queue.nats_broker import nats_driver

        return nats_driver(self, task, parts)


# --- connections


class RedisConnection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The connection of a node to Redis.

    url: `redis://host:6379/0`, `rediss://…` for TLS, `unix:///path`. username, password: replace those in the URL.
    ca, cert, key: files for TLS. namespace: the prefix of the keys of reports.
    """

    url: str = "redis://127.0.0.1:6379/0"
    username: str | None = None
    password: str | Secret | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    namespace: str = "evertick"

    def __repr__(self) -> str:
        return f"RedisConnection(url={masked(self.url)!r}, namespace={self.namespace!r})"

    def check(self, what: str = "redis") -> None:
        faults = Faults(what)
        with faults.of("url"):
            _check_url(self.url, f"{what}: url", _is_redis_url, "Redis", "redis://:password@host:6379/0")
            if (self.ca or self.cert) and not self.url.startswith("rediss:"):
                raise InvalidSetting(
                    f"{what}: url: {masked(self.url)!r} does not use TLS, but ca or cert is set",
                    setting="url",
                    value=repr(masked(self.url)),
                    fix="write rediss://",
                )
        with faults.of("namespace"):
            check_prefix(self.namespace, f"{what}: namespace")
        with faults.of("cert", "key", path=()):
            _check_pair(self.cert, self.key, what)
        faults.raise_any()


class NatsConnection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The connection of a node to NATS.

    url: `nats://host:4222`, `tls://…`; several servers of a cluster are separated by commas. user, password, token:
    replace those in the URL. credentials: a file with a JWT and its key. ca, cert, key: files for TLS.
    prefix: the prefix of subjects and streams. replicas: the number of servers of a cluster that store a stream.
    events: publish events of runs: True for their ends, or a list of kinds.
    """

    url: str = "nats://127.0.0.1:4222"
    user: str | None = None
    password: str | Secret | None = None
    token: str | Secret | None = None
    credentials: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    prefix: str = SUBJECT_PREFIX
    replicas: int = 1
    events: bool | Sequence[str] = False

    def __repr__(self) -> str:
        return f"NatsConnection(url={self.shown!r}, prefix={self.prefix!r})"

    @property
    def urls(self) -> list[str]:
        return [url.strip() for url in self.url.split(",")]

    @property
    def shown(self) -> str:
        return ",".join(masked(url) for url in self.urls)

    @property
    def event_kinds(self) -> tuple[str, ...]:
        """The kinds of events that are published."""
        if isinstance(self.events, bool):
            return ("run.finished",) if self.events else ()
        return tuple(self.events)

    def check(self, what: str = "nats") -> None:
        faults = Faults(what)
        for url in self.urls:
            with faults.of("url"):
                _check_url(url, f"{what}: url", _is_nats_url, "NATS", "nats://user:password@host:4222")
        with faults.of("prefix"):
            check_subject_prefix(self.prefix, f"{what}: prefix")
        with faults.of("cert", "key", path=()):
            _check_pair(self.cert, self.key, what)
        with faults.of("replicas"):
            if isinstance(self.replicas, bool) or not 1 <= self.replicas <= _REPLICAS_MAX:
                raise InvalidSetting(
                    f"{what}: replicas: {shown(self.replicas)} must be a number from 1 to {_REPLICAS_MAX}",
                    setting="replicas",
                    value=shown(self.replicas),
                )
        with faults.of("events"):
            _check_events(self.events, f"{what}: events")
        faults.raise_any()


def redis_connection(given: object) -> RedisConnection:
    return _connection(RedisConnection, given, "redis", "redis://host:6379/0")


def nats_connection(given: object) -> NatsConnection:
    return _connection(NatsConnection, given, "nats", "nats://host:4222")


def _connection(kind: type[C], given: object, name: str, example: str) -> C:
    """Make a connection from settings, a URL, or the section of a configuration."""
    if isinstance(given, kind):
        connection = given
    elif isinstance(given, str):
        connection = kind(url=given)
    elif given is None:
        raise InvalidSetting(
            f"{name}: the address of the server is not set",
            setting=name,
            fix=f"call scheduler.connect('{name}', '{example}'), or set url under [{name}] in the file",
        )
    elif isinstance(given, msgspec.Struct) and hasattr(given, "url"):
        # The section of a configuration has fields of the same names.
        values: dict[str, Any] = {}
        for field in kind.__struct_fields__:
            value = getattr(given, field, None)
            if value is not None:
                values[field] = str(value) if isinstance(value, PurePath) else value
        connection = kind(**values)
    else:
        raise InvalidSetting(
            f"{name}: this {type(given).__name__} is neither a URL nor a {kind.__name__}",
            setting=name,
            fix=f"pass one like {example!r}",
        )
    connection.check()
    return connection


# --- connections without TLS


def unencrypted_warnings(connection: RedisConnection | NatsConnection) -> list[str]:
    """A warning for each remote host without TLS. For Redis only a password is reported, which gives access to the
    whole server."""
    if isinstance(connection, NatsConnection):
        if connection.ca or connection.cert:
            return []
        urls = [urlsplit(url) for url in connection.urls]
        hosts = [url.hostname or "" for url in urls if url.scheme != "tls"]
        what = "the network can read arguments and results; use tls://"
        return [
            f"nats at {host} is not encrypted: {what}" for host in dict.fromkeys(hosts) if not _is_this_machine(host)
        ]
    url = urlsplit(connection.url)
    # The client also reads the password from the parameters of the URL.
    has_password = connection.password or url.password or "password" in parse_qs(url.query)
    # Without a host the client connects to this machine.
    host = url.hostname or "localhost"
    if url.scheme != "redis" or not has_password or _is_this_machine(host):
        return []
    return [f"redis at {host} is not encrypted: the network can read its password; use rediss://"]


def warn_if_unencrypted(connection: RedisConnection | NatsConnection, log: logging.Logger) -> None:
    for warning in unencrypted_warnings(connection):
        if warning not in _warned:
            _warned.add(warning)
            log.warning("%s", warning)


def _is_this_machine(host: str) -> bool:
    from evertick.driver.http.address import is_own_name  # slow to import: it builds tables of networks

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return is_own_name(host)


# --- checks


def check_queue_name(name: Any, what: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidSetting(
            f"{what}: {shown(name)} is not a valid queue name",
            setting="queue",
            value=shown(name),
            fix="use 1 to 64 letters, digits, '-' and '_', like 'docker'",
        )
    return name


def check_prefix(prefix: Any, what: str) -> str:
    if not isinstance(prefix, str) or not _KEY_PREFIX.fullmatch(prefix):
        raise InvalidSetting(
            f"{what}: {shown(prefix)} is not a valid prefix",
            setting="prefix",
            value=shown(prefix),
            fix="use up to 100 letters, digits and characters of '_-:.{}', like 'builds_'",
        )
    return prefix


def check_subject_prefix(prefix: Any, what: str) -> str:
    if not isinstance(prefix, str) or not _SUBJECT_PREFIX.fullmatch(prefix):
        raise InvalidSetting(
            f"{what}: {shown(prefix)} is not a valid prefix",
            setting="prefix",
            value=shown(prefix),
            fix=f"use up to 32 lower-case letters, digits, '-' and '_', like {SUBJECT_PREFIX!r}",
        )
    return prefix


def _check_timeout(value: str | int | float, what: str) -> None:
    us = duration_us(value, what=what)
    if not _TIMEOUT_MIN <= us <= _TIMEOUT_MAX:
        raise InvalidSetting(
            f"{what}: {shown(value)} must be from {duration_text(_TIMEOUT_MIN)} to {duration_text(_TIMEOUT_MAX)}",
            value=shown(value),
        )


def _check_events(events: Any, what: str) -> None:
    if isinstance(events, bool):
        return
    if isinstance(events, str) or not isinstance(events, Sequence):
        raise InvalidSetting(
            f"{what}: {shown(events)} must be true, false, or a list of kinds",
            setting="events",
            value=shown(events),
            fix="write it like ['run.finished']",
        )
    for kind in events:
        if kind not in EVENT_KINDS:
            raise InvalidSetting(
                f"{what}: {shown(kind)} is not an event of a run",
                setting="events",
                value=shown(kind),
                fix=nearest(str(kind), EVENT_KINDS, what="there are"),
            )


def _check_pair(cert: str | None, key: str | None, what: str) -> None:
    if (cert is None) != (key is None):
        given, missing = ("key", "cert") if cert is None else ("cert", "key")
        raise InvalidSetting(
            f"{what}: {given} is set without {missing}", setting=missing, fix=f"set both, or remove {given}"
        )


def _check_url(url: Any, what: str, is_one: Callable[[str], bool], name: str, shape: str) -> None:
    try:
        is_valid = isinstance(url, str) and is_one(url)
    except ValueError:  # an invalid port, or an unclosed bracket
        is_valid = False
    if not is_valid:
        raise InvalidSetting(
            f"{what}: {shown_value(url)} is not a {name} URL",
            setting="url",
            value=shown_value(url),
            fix=f"write it like {shape!r}",
        )


def _is_redis_url(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("redis", "rediss", "unix") and (parts.port is None or parts.port > 0)


def _is_nats_url(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("nats", "tls") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
