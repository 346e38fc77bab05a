"""The location of a PostgreSQL store, parsed from its URL. Opens nothing, and never shows a password.

    postgresql://user:password@host:5432/database?schema=evertick

Several hosts may be given, separated by commas; the store uses the one that can be written to. Values that the URL
omits are taken from the usual environment (PGHOST, PGUSER, PGPASSWORD, ~/.pgpass).
"""

from __future__ import annotations

import os
import re
import ssl
from difflib import get_close_matches
from typing import Literal
from urllib.parse import parse_qsl, unquote

import msgspec

from evertick.errors import InvalidDuration, InvalidSetting
from evertick.text.redact import masked, without_listen
from evertick.text.regular_file import open_regular
from evertick.text.values import shown
from evertick.when.duration import duration_us
from evertick.when.moment import SECOND

__all__ = ["Location", "location_of"]

_SCHEMES = ("postgresql", "postgres")
_SHAPE = "write postgresql://user:password@host:5432/database"
_PORT = 5432
# PostgreSQL truncates longer names silently.
_NAME_LONGEST = 63
_RESERVED = "pg_"
_NAME = re.compile(r"[^\W\d]\w*")
# Not by `urlsplit`, whose errors show the text, which may be a password.
_URL = re.compile(r"(?s)(?P<scheme>[^:/?#]*)://(?P<address>[^/?#]*)(?P<path>[^?#]*)(\?(?P<query>[^#]*))?(#.*)?")
# Parameters by their names in other libraries.
_OTHER_NAMES = {
    "sslrootcert": "ca",
    "sslcert": "cert",
    "sslkey": "key",
    "ssl": "sslmode",
    "options": "schema",
    "search_path": "schema",
    "currentSchema": "schema",
    "command_timeout": "timeout",
    "statement_timeout": "timeout",
    "pgbouncer": "pooler=transaction",
    "max_size": "pool_size",
}
_PARAMETERS = (
    *("schema", "host", "port", "sslmode", "ca", "cert", "key", "pooler"),
    *("listen", "timeout", "connect_timeout", "pool_size"),
)
_IN_ADDRESS = ("user", "password", "dbname", "database")
_NO_WAKE_UPS = "off"
# The server counts its timeouts in milliseconds, in 31 bits; 0 means no timeout.
_SECONDS_LEAST, _SECONDS_MOST = 0.001, 86_400.0

SslMode = Literal["disable", "prefer", "require", "verify-ca", "verify-full"]
_SSL_MODES: tuple[SslMode, ...] = ("disable", "prefer", "require", "verify-ca", "verify-full")


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """A database, a schema in it, and how to connect."""

    # Pairs of a host (or the directory of a socket) and a port; empty: from the environment.
    hosts: tuple[tuple[str, int], ...] = ()
    user: str | None = None
    password: str | None = None
    database: str | None = None
    schema: str = "evertick"
    # None: verify-full if `ca` is given, otherwise prefer.
    sslmode: SslMode | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    # Behind a pooler that assigns a connection per transaction, so that no state may be left on it.
    is_pooled: bool = False
    # A second URL for wake-ups, around such a pooler. "off": no wake-ups.
    listen: str | None = None
    connect_timeout: float = 10.0
    # The time limit of one intent, all of its statements together.
    timeout: float = 30.0
    pool_size: int = 5

    def __repr__(self) -> str:
        # Shown in tracebacks and logs.
        return f"Location({self.description})"

    @property
    def description(self) -> str:
        """Has no secrets."""
        return self.place if self.schema == "evertick" else f"{self.place}, schema {self.schema}"

    @property
    def place(self) -> str:
        """The description without the schema."""
        where = ",".join(host if host.startswith("/") else f"{host}:{port}" for host, port in self.hosts)
        return f"PostgreSQL database {self.database or '(default)'} at {where or 'the default host'}"

    @property
    def listens(self) -> bool:
        return self.listen != _NO_WAKE_UPS and (self.listen is not None or not self.is_pooled)

    def listening(self) -> Location:
        """The location for wake-ups."""
        if self.listen is None:
            return self
        return msgspec.structs.replace(location_of(self.listen), schema=self.schema)

    def tls(self) -> ssl.SSLContext | str | bool:
        """The value of asyncpg's parameter `ssl`."""
        mode = self.sslmode or ("verify-full" if self.ca is not None else "prefer")
        if mode == "disable":
            return False
        if mode in ("prefer", "require") and self.ca is None and self.cert is None:
            return mode
        self._check_files()
        try:
            context = ssl.create_default_context(cafile=self.ca)
            context.check_hostname = mode == "verify-full"
            if mode in ("prefer", "require") and self.ca is None:
                context.verify_mode = ssl.CERT_NONE
            if self.cert is not None:
                # With an empty password, a key that has one is refused. Otherwise OpenSSL would ask on the terminal.
                context.load_cert_chain(self.cert, self.key, password="")
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(f"{name}={path}" for name, path in self._files())
            raise InvalidSetting(
                f"{files} of the {self.description} cannot be used ({error})",
                setting="url",
                fix="use PEM files, a cert and a key that belong together, and a key without a password",
            ) from error
        return context

    def _files(self) -> list[tuple[str, str]]:
        given = (("ca", self.ca), ("cert", self.cert), ("key", self.key))
        return [(name, path) for name, path in given if path is not None]

    def _check_files(self) -> None:
        for name, path in self._files():
            try:
                os.close(open_regular(path))
            except OSError as error:
                raise InvalidSetting(
                    f"{name}={path} of the {self.description} cannot be read ({error.strerror})",
                    setting=name,
                    value=shown(path),
                    fix="correct the path, or let this user read the file",
                ) from error


def location_of(url: str) -> Location:
    parts = _URL.fullmatch(url)
    if parts is None or parts["scheme"] not in _SCHEMES:
        raise InvalidSetting(f"{_shown(url)} is no URL of a PostgreSQL store", setting="url", fix=_SHAPE)
    _refuse_unencoded(url, parts["address"])
    userinfo, _, hosts = parts["address"].rpartition("@")
    user, _, password = userinfo.partition(":")
    where = Location(
        hosts=_hosts(hosts, url),
        user=unquote(user) or None,
        password=unquote(password) or None,
        database=unquote(parts["path"].removeprefix("/")) or None,
    )
    parameters = parse_qsl(parts["query"] or "", keep_blank_values=True)
    names = [name for name, _ in parameters]
    for name in names:
        if names.count(name) > 1:
            raise InvalidSetting(f"{_shown(url)} has {name!r} more than once", setting="url", fix="keep one of them")
    # A port last: it belongs to the host, wherever that is given.
    for name, value in sorted(parameters, key=lambda parameter: parameter[0] == "port"):
        where = _with_parameter(where, url, name, value)
    if where.key is not None and where.cert is None:
        raise InvalidSetting(f"{_shown(url)} has a key without its cert", setting="url", fix="give both")
    return where


def _refuse_unencoded(url: str, address: str) -> None:
    """Refuse an "@" after the address: the character that ended the address belongs to the password or the user."""
    rest = without_listen(url.partition("://")[2])
    if "@" not in rest[len(address) :]:
        return
    found = rest[len(address)]
    raise InvalidSetting(
        f"{_shown(url)} has a {found!r} before its last '@'",
        setting="url",
        fix=f"in a user or a password write it as %{ord(found):02X}, and an '@' not in front of the host as %40",
    )


def _hosts(text: str, url: str) -> tuple[tuple[str, int], ...]:
    return tuple(_host(one, url) for one in text.split(",") if one)


def _host(text: str, url: str) -> tuple[str, int]:
    # An IPv6 address is in brackets.
    host, bracket, port = text.rpartition("]")
    host, port = (host[1:], port.removeprefix(":")) if bracket else text.partition(":")[::2]
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 2**16):
        # A text that is no number is not shown: it may be a password without a host.
        what = f"the port {port!r}" if port.isdigit() else "no number as its port"
        raise InvalidSetting(f"{_shown(url)} has {what}, and a port is a number up to 65535", setting="url", fix=_SHAPE)
    return unquote(host), int(port or _PORT)


def _with_parameter(where: Location, url: str, name: str, value: str) -> Location:
    replace = msgspec.structs.replace
    match name:
        case "schema":
            return replace(where, schema=_schema(value))
        case "host":
            # The directory of a socket has slashes, so it cannot be in the address of a URL.
            return replace(where, hosts=((value, where.hosts[0][1] if where.hosts else _PORT),))
        case "port":
            if not where.hosts:
                raise InvalidSetting(
                    f"{_shown(url)} has a port without a host", setting="url", fix=f"add host=, or {_SHAPE}"
                )
            return replace(where, hosts=tuple((host, _host(f"x:{value}", url)[1]) for host, _ in where.hosts))
        case "sslmode":
            modes = {mode: mode for mode in _SSL_MODES}
            if value not in modes:
                raise _invalid(name, value, f"write {', '.join(_SSL_MODES)}")
            return replace(where, sslmode=modes[value])
        case "ca" | "cert" | "key" | "listen":
            return replace(where, **{name: _given(value, name)})
        case "pooler":
            if value != "transaction":
                raise _invalid(name, value, "write transaction, or leave it out")
            return replace(where, is_pooled=True)
        case "timeout" | "connect_timeout":
            return replace(where, **{name: _seconds(value, name)})
        case "pool_size":
            if not (value.isascii() and value.isdigit() and 1 <= int(value) <= 100):
                raise _invalid(name, value, "write a number from 1 to 100")
            return replace(where, pool_size=int(value))
        case _:
            raise InvalidSetting(
                f"{_shown(url)} has an unknown parameter {shown(name)}", setting="url", fix=_advice(name)
            )


def _advice(name: str) -> str:
    if name in _IN_ADDRESS:
        return f"put it into the address: {_SHAPE}"
    meant = _OTHER_NAMES.get(name) or next(iter(get_close_matches(name, _PARAMETERS, 1)), None)
    return f"it is called {meant} here" if meant else f"known parameters are {', '.join(_PARAMETERS)}"


def _invalid(name: str, value: str, fix: str) -> InvalidSetting:
    return InvalidSetting(f"{name}={shown(value)} is invalid", setting=name, value=shown(value), fix=fix)


def _schema(value: str) -> str:
    # Always quoted, so any name of this form is safe.
    if not _NAME.fullmatch(value) or len(value.encode()) > _NAME_LONGEST:
        letters = f"letters, digits and underscores, not a digit first, {_NAME_LONGEST} bytes at most"
        raise _invalid("schema", value, f"write {letters}")
    if value.startswith(_RESERVED):
        raise _invalid("schema", value, f"choose another name, because {_RESERVED} is for PostgreSQL's own schemas")
    return value


def _given(value: str, name: str) -> str:
    if not value:
        raise InvalidSetting(f"{name} is empty", setting=name, fix="give it a value, or leave it out")
    if name == "listen" and value != _NO_WAKE_UPS:
        # Refused here, and not at the first wait for a wake-up.
        location_of(value)
    return value


def _seconds(value: str, name: str) -> float:
    try:
        seconds = duration_us(value, what=name) / SECOND
    except InvalidDuration as error:
        raise InvalidSetting(error.problem, setting=name, value=shown(value), fix=error.fix) from None
    if seconds < _SECONDS_LEAST:
        raise InvalidSetting(
            f"{name}={shown(value)} is too short", setting=name, value=shown(value), fix="write a millisecond at least"
        )
    if seconds > _SECONDS_MOST:
        raise InvalidSetting(
            f"{name}={shown(value)} is too long", setting=name, value=shown(value), fix="write a day at most"
        )
    return seconds


def _shown(url: str) -> str:
    return repr(masked(url))
