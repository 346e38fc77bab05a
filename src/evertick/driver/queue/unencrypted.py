"""Brokers on other hosts that are talked to without TLS: whoever is on the way hears what is said.

On NATS that is all that goes over it. Of Redis it is told where a password goes over it, which opens the whole server.
"""

from __future__ import annotations

import logging
from ipaddress import ip_address
from urllib.parse import parse_qs, urlsplit

from evertick.driver.http.address import is_own_name
from evertick.driver.queue.nats_spec import NatsConnection
from evertick.driver.queue.redis_spec import RedisConnection

__all__ = ["plain_text_to", "warn_of_plain_text"]

# Said once in the life of a program.
_warned: set[str] = set()


def plain_text_to(connection: RedisConnection | NatsConnection) -> list[str]:
    """What to say of it, for each host."""
    if isinstance(connection, NatsConnection):
        what = "arguments and results can be read on the way; use tls://"
        return [f"nats at {host} is not encrypted: {what}" for host in _hosts_of_nats(connection)]
    host = _host_of_redis(connection)
    what = "its password can be read on the way; use rediss://"
    return [] if host is None else [f"redis at {host} is not encrypted: {what}"]


def warn_of_plain_text(connection: RedisConnection | NatsConnection, log: logging.Logger) -> None:
    for said in plain_text_to(connection):
        if said not in _warned:
            _warned.add(said)
            log.warning("%s", said)


def _hosts_of_nats(connection: NatsConnection) -> list[str]:
    if connection.ca or connection.cert:
        return []
    urls = [urlsplit(url) for url in connection.urls]
    hosts = [url.hostname or "" for url in urls if url.scheme != "tls"]
    return [host for host in dict.fromkeys(hosts) if not _is_this_machine(host)]


def _host_of_redis(connection: RedisConnection) -> str | None:
    url = urlsplit(connection.url)
    # The client takes it from the parameters of the URL, too.
    has_password = connection.password or url.password or "password" in parse_qs(url.query)
    # Without a host the client means this one.
    host = url.hostname or "localhost"
    return host if url.scheme == "redis" and has_password and not _is_this_machine(host) else None


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return is_own_name(host)
