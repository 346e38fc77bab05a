"""The brokers of a configuration: URLs or their parts, checked, as settings of drivers and workers.

A worker has no database and no jobs. It reads the address of its broker as a node does; errors in other parts of the
file do not affect it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from evertick.config.files import read_all, warnings_in
from evertick.config.layer import SectionKeys, Value, Warn, layered, section_from
from evertick.config.paths import check_files
from evertick.config.problem import Problems
from evertick.config.section import Section
from evertick.driver.queue.spec import NatsConnection, RedisConnection
from evertick.errors import InvalidSpec
from evertick.text.redact import masked

__all__ = ["BROKERS", "Brokers", "Connection", "broker_of", "connection_of", "load_brokers", "refuse_wrong"]


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a broker. The URL may contain a password and is never shown in full."""

    url: str
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    token: str | None = None
    credentials: Path | None = None

    def __repr__(self) -> str:
        return f"Connection({masked(self.url)!r})"


class _Kind(msgspec.Struct, frozen=True, kw_only=True):
    """The form of the URLs of a broker."""

    scheme: str
    safe: str
    # Schemes of sockets of this machine, for which TLS does not matter.
    local: tuple[str, ...] = ()
    port: int
    # The maximum number of servers.
    most: int
    # Whether a password needs a user.
    is_user_needed: bool


_KINDS = {
    "redis": _Kind(scheme="redis", safe="rediss", local=("unix",), port=6379, most=1, is_user_needed=False),
    "nats": _Kind(scheme="nats", safe="tls", port=4222, most=100, is_user_needed=True),
}


def broker_of(section: str, values: Mapping[str, Value], problems: Problems, warn: Warn) -> Connection | None:
    """The address of a broker; None if it is not set, or invalid."""
    keys, kind = SectionKeys(section, values, problems, warn), _KINDS[section]
    if keys.is_half:
        return None
    before = len(problems)
    given, password = keys.url(), keys.password()
    files = {name: keys.path(f"ssl.{name}") for name in ("ca", "cert", "key")}
    _check_pair(keys)
    if given is not None:
        url = _of_url(str(given.value), password, keys, kind)
    elif keys.get("address") is not None:
        url = _of_parts(password, keys, kind)
    else:
        for name in ("user", "password", "password_file", "token", "credentials"):
            if keys.get(name) is not None:
                keys.refuse(name, f"nothing says where the server is; give {section}.address or {section}.url")
        return None
    _check_token(url, keys)
    if len(problems) > before:
        return None
    return Connection(url=url, token=keys.text("token"), credentials=keys.path("credentials"), **files)


def _of_url(url: str, password: str | None, keys: SectionKeys, kind: _Kind) -> str:
    """Check a URL. Other keys than the password would have no effect, so they are rejected."""
    urls = [each.strip() for each in url.split(",")] if kind.most > 1 else [url]
    schemes = [each.partition("://")[0] for each in urls if "://" in each]
    if len(schemes) < len(urls) or not {*schemes} <= {kind.scheme, kind.safe, *kind.local}:
        keys.refuse("url", f"{masked(url)!r} is no URL of a broker; begin it with {kind.scheme}://host")
        return url
    tls = keys.get("tls")
    if tls is not None and tls.value and kind.scheme in schemes:
        keys.refuse("tls", f"{keys.section}.url begins with {kind.scheme}://, which is without TLS; "
                    f"write {kind.safe}://… there")  # fmt: skip
    if tls is not None and not tls.value and kind.safe in schemes:
        keys.refuse("tls", f"{keys.section}.url begins with {kind.safe}://, which is with TLS; keep one of the two")
    if keys.get("number") is not None:
        example = f"{schemes[0]}:///socket?db=2" if schemes[0] in kind.local else f"{schemes[0]}://host:{kind.port}/2"
        keys.refuse("number", f"{keys.section}.url says where the server is; put the number into it, like {example}")
    return ",".join(keys.with_password(each, password, is_user_needed=kind.is_user_needed) for each in urls)


def _of_parts(password: str | None, keys: SectionKeys, kind: _Kind) -> str:
    tls, number = keys.get("tls"), keys.get("number")
    is_secure = (tls is not None and bool(tls.value)) or keys.first("ssl.ca", "ssl.cert", "ssl.key") is not None
    login = keys.login(password, is_user_needed=kind.is_user_needed)
    before = f"{kind.safe if is_secure else kind.scheme}://{login}"
    if number is not None and number.value < 0:
        keys.refuse("number", f"{number.value} cannot be; write a whole number from 0 on")
    hosts = keys.hosts(f"host:{kind.port}", most=kind.most)
    return ",".join(before + host for host in hosts) + ("" if number is None else f"/{number.value}")


def _check_pair(keys: SectionKeys) -> None:
    cert, key = keys.get("ssl.cert"), keys.get("ssl.key")
    if key is not None and cert is None:
        keys.refuse("ssl.key", "it is a key without a certificate; set ssl.cert too")
    if cert is not None and key is None:
        keys.refuse("ssl.cert", "it is a certificate without a key; set ssl.key too")


def _check_token(url: str, keys: SectionKeys) -> None:
    """Reject a token beside a user: a server uses only one of them."""
    if keys.get("token") is None:
        return
    other = keys.first("user", "password", "password_file") or ("url" if _is_signed(url) else None)
    if other is not None:
        keys.refuse("token", f"{keys.section}.{other} is set too; keep one of them")


def _is_signed(url: str) -> bool:
    try:
        return any("@" in urlsplit(each.strip()).netloc for each in url.split(","))
    except ValueError:
        return True


# The settings of each driver that needs a broker.
BROKERS: dict[str, type[RedisConnection | NatsConnection]] = {"redis": RedisConnection, "nats": NatsConnection}
# The address has them already.
_IN_URL = ("user", "username", "password")


class Brokers(msgspec.Struct, frozen=True, kw_only=True):
    """The configured brokers by driver."""

    connections: dict[str, RedisConnection | NatsConnection]
    warnings: tuple[str, ...]


def load_brokers(
    file: Path | None, environ: Mapping[str, str] = os.environ, flags: Mapping[str, tuple[str, Any]] | None = None
) -> Brokers:
    """Load the brokers from file, environment and flags. Raises InvalidConfiguration."""
    problems = Problems()
    documents = [] if file is None else read_all(file, problems, environ=environ)
    warnings = list(warnings_in(documents))
    values = layered(documents, environ, flags or {}, problems, only=tuple(BROKERS))
    check_files(values, problems, only=tuple(BROKERS))
    found = {name: broker_of(name, values, problems, warnings.append) for name in BROKERS}
    problems.raise_any()
    connections = {
        name: connection_of(name, each, section_from(name, values)) for name, each in found.items() if each is not None
    }
    for name, connection in connections.items():
        refuse_wrong(name, connection, values, problems)
    problems.raise_any()
    return Brokers(connections=connections, warnings=tuple(warnings))


def connection_of(driver: str, found: Connection, section: Section) -> RedisConnection | NatsConnection:
    """The settings of the driver: its address, and the other keys of the section."""
    wanted = BROKERS[driver]
    given = {field: getattr(section, field, None) for field in wanted.__struct_fields__ if field not in _IN_URL}
    given |= {field: getattr(found, field) for field in found.__struct_fields__ if field in given}
    fields: dict[str, Any] = {
        field: str(value) if isinstance(value, Path) else value for field, value in given.items() if value is not None
    }
    return wanted(**fields)


def refuse_wrong(
    driver: str, connection: RedisConnection | NatsConnection, values: Mapping[str, Value], problems: Problems
) -> None:
    """Report settings that the driver would reject, with their places."""
    try:
        connection.check()
    except InvalidSpec as wrong:
        for each in wrong.problems:
            name = ".".join(map(str, each.path))
            is_named = f"{driver}.{name}" in values
            key = f"{driver}.{name}" if is_named else f"{driver}.url"
            if key == f"{driver}.url" and not values[key].is_set:
                key = f"{driver}.address"
            problem = each.problem if is_named or not name else f"{name}: {each.problem}"
            problems.add(values[key].origin.place, key, problem if each.fix is None else f"{problem}; {each.fix}")
