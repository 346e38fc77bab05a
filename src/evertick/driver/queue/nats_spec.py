"""Jobs that are dispatched to a queue in NATS JetStream, and how NATS is reached."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar
from urllib.parse import urlsplit

import msgspec

from evertick.driver.base import Driver
from evertick.driver.connection import fields_for
from evertick.driver.faults import Faults
from evertick.driver.queue.spec import QueueSpec
from evertick.driver.secret import Secret
from evertick.driver.spec import DriverParts
from evertick.errors import InvalidSetting
from evertick.model.feed import FEED_KINDS
from evertick.text.did_you_mean import nearest
from evertick.text.redact import masked, shown_value

__all__ = ["EVENT_KINDS", "SUBJECT_PREFIX", "Nats", "NatsConnection", "check_subject_prefix", "nats_connection"]

SUBJECT_PREFIX = "evertick"
# What can be published: each has a subject below the runs of its app.
EVENT_KINDS = tuple(kind for kind in FEED_KINDS if kind.startswith("run."))
_PREFIX = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}", re.ASCII)
_SCHEMES = ("nats", "tls")
_REPLICAS_MOST = 5


class Nats(QueueSpec, frozen=True):
    """A job that workers take from a queue in NATS JetStream: `Nats("docker")`."""

    driver: ClassVar[str] = "nats"
    short: ClassVar[str | None] = "queue"

    def make_driver(self, task: str, parts: DriverParts) -> Driver:
        from evertick.driver.queue.nats import nats_driver

        return nats_driver(self, task, parts)


class NatsConnection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a node reaches NATS.

    url: `nats://host:4222`, `tls://…`; several, of one cluster, with commas between. user, password, token: in place of
    those in the URL. credentials: a file with a JWT and its key. ca, cert, key: files for TLS.
    prefix: what subjects and streams begin with. replicas: how many servers of a cluster keep a stream.
    events: publish what becomes of runs, for others: True their ends, a list these kinds of events.
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
        """Those that are published."""
        if isinstance(self.events, bool):
            return ("run.finished",) if self.events else ()
        return tuple(self.events)

    def check(self, what: str = "nats") -> None:
        faults = Faults()
        for url in self.urls:
            with faults.of("url"):
                _check_url(url, f"{what}: url")
        with faults.of("prefix"):
            check_subject_prefix(self.prefix, f"{what}: prefix")
        with faults.of("cert", "key"):
            if (self.cert is None) != (self.key is None):
                raise InvalidSetting(f"{what}: cert and key belong together; give both, or none")
        with faults.of("replicas"):
            if isinstance(self.replicas, bool) or not 1 <= self.replicas <= _REPLICAS_MOST:
                raise InvalidSetting(f"{what}: replicas: {self.replicas!r} must be a number from 1 to {_REPLICAS_MOST}")
        with faults.of("events"):
            _check_events(self.events, f"{what}: events")
        faults.raise_any()


def nats_connection(given: object) -> NatsConnection:
    """What was configured: settings, a URL, or nothing."""
    match given:
        case NatsConnection():
            connection = given
        case str():
            connection = NatsConnection(url=given)
        case None:
            raise InvalidSetting(
                "nats: it is not said where it is; call scheduler.connect('nats', 'nats://host:4222'), or set url "
                "under [nats] in the file"
            )
        case _ if (fields := fields_for(NatsConnection, given)) is not None:
            connection = NatsConnection(**fields)
        case _:
            raise InvalidSetting(f"nats: this {type(given).__name__} is neither a URL nor a NatsConnection; pass one")
    connection.check()
    return connection


def check_subject_prefix(prefix: Any, what: str) -> str:
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise InvalidSetting(
            f"{what}: {prefix!r:.80} must be up to 32 small letters, digits, '-' and '_', like {SUBJECT_PREFIX!r}"
        )
    return prefix


def _check_events(events: Any, what: str) -> None:
    if isinstance(events, bool):
        return
    if isinstance(events, str) or not isinstance(events, Sequence):
        raise InvalidSetting(f"{what}: {events!r:.80} must be true, false, or a list of kinds, like ['run.finished']")
    for kind in events:
        if kind not in EVENT_KINDS:
            meant = nearest(str(kind), EVENT_KINDS, what="there are")
            raise InvalidSetting(f"{what}: {kind!r:.80} is no event of a run; {meant}")


def _check_url(url: str, what: str) -> None:
    if not _is_nats_url(url):
        shape = "nats://user:password@host:4222"
        raise InvalidSetting(f"{what}: {shown_value(url)} is no URL of a NATS; write it like {shape!r}")


def _is_nats_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in _SCHEMES and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is no number, a bracket that does not end
        return False
