"""Jobs that are dispatched to a queue in Redis, and how Redis is reached."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

import msgspec

from evertick.driver.base import Driver
from evertick.driver.connection import fields_for
from evertick.driver.faults import Faults
from evertick.driver.queue.spec import QueueSpec
from evertick.driver.secret import Secret
from evertick.driver.spec import DriverParts
from evertick.errors import InvalidSetting
from evertick.text.redact import masked, shown_value

__all__ = ["QUEUE_PREFIX", "Redis", "RedisConnection", "redis_connection"]

QUEUE_PREFIX = "builds_"
_PREFIX = re.compile(r"[\w:.{}-]{0,100}", re.ASCII)
_SCHEMES = ("redis", "rediss", "unix")


class Redis(QueueSpec, frozen=True):
    """A job that workers take from a queue in Redis: `Redis("docker")`.

    kind: whether the queue is a list or a stream. prefix: what its key begins with; the name of the queue follows.
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
                raise InvalidSetting(f"{where}: kind: {self.kind!r} must be 'list' or 'stream'")
        with faults.of("prefix"):
            check_prefix(self.prefix, f"{where}: prefix")

    def make_driver(self, task: str, parts: DriverParts) -> Driver:
        from evertick.driver.queue.redis import redis_driver

        return redis_driver(self, task, parts)


class RedisConnection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a node reaches Redis.

    url: `redis://host:6379/0`, `rediss://…` for TLS, `unix:///path`. username, password: in place of those in the URL.
    ca, cert, key: files for TLS. namespace: what the keys of reports begin with, before the app and the id of the
    ledger.
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
        faults = Faults()
        with faults.of("url"):
            check_redis_url(self.url, f"{what}: url")
            self._check_tls(what)
        with faults.of("namespace"):
            check_prefix(self.namespace, f"{what}: namespace")
        with faults.of("cert", "key"):
            if (self.cert is None) != (self.key is None):
                raise InvalidSetting(f"{what}: cert and key belong together; give both, or none")
        faults.raise_any()

    def _check_tls(self, what: str) -> None:
        if (self.ca or self.cert) and not self.url.startswith("rediss:"):
            raise InvalidSetting(
                f"{what}: url: {masked(self.url)!r} is without TLS, so ca, cert and key would not be used; write rediss://"
            )


def redis_connection(given: object) -> RedisConnection:
    """What was configured: settings, a URL, or nothing."""
    match given:
        case RedisConnection():
            connection = given
        case str():
            connection = RedisConnection(url=given)
        case None:
            raise InvalidSetting(
                "redis: it is not said where it is; call scheduler.connect('redis', 'redis://host:6379/0'), or set url "
                "under [redis] in the file"
            )
        case _ if (fields := fields_for(RedisConnection, given)) is not None:
            connection = RedisConnection(**fields)
        case _:
            raise InvalidSetting(f"redis: this {type(given).__name__} is neither a URL nor a RedisConnection; pass one")
    connection.check()
    return connection


def check_redis_url(url: Any, what: str) -> str:
    if not isinstance(url, str) or not _is_redis_url(url):
        shape = "redis://:password@host:6379/0"
        raise InvalidSetting(f"{what}: {shown_value(url)} is no URL of a Redis; write it like {shape!r}")
    return url


def _is_redis_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in _SCHEMES and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is no number, a bracket that does not end
        return False


def check_prefix(prefix: Any, what: str) -> str:
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise InvalidSetting(
            f"{what}: {prefix!r:.120} must be up to 100 letters, digits and signs of '_-:.{{}}', like 'builds_'"
        )
    return prefix
