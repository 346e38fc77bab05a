"""Where the database and the brokers are: a URL, or one made of its parts.

A URL of a stronger layer replaces the parts of a weaker one: `EVERTICK_DATABASE` alone moves a node to another
database, whatever the file says of the first. Said twice in one layer, it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote, urlencode

import msgspec

from evertick.config.layer import Value
from evertick.config.origin import Origin
from evertick.config.problem import Problems
from evertick.errors import InvalidInput
from evertick.masked import masked
from evertick.settings import check_url
from evertick.store.sqlite.location import location_of
from evertick.when.duration import duration_text, duration_us

__all__ = ["Connection", "broker_of", "database_url"]

_PASSWORD_MAX_BYTES = 4_096
_PARTS = ("address", "name", "user")
# Keys that go into the URL of PostgreSQL as parameters, by their names there.
_PARAMETERS = {
    "schema": "schema",
    "pooler": "pooler",
    "listen": "listen",
    "pool_size": "pool_size",
    "timeout": "timeout",
    "connect_timeout": "connect_timeout",
    "ssl.mode": "sslmode",
    "ssl.ca": "ca",
    "ssl.cert": "cert",
    "ssl.key": "key",
}
_POSTGRES = ("postgresql://", "postgres://")
_SQLITE_FILE = "sqlite:///"

Warn = Callable[[str], None]


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a broker. The URL may hold a password: it is never shown whole."""

    url: str
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    token: str | None = None
    credentials: Path | None = None

    def __repr__(self) -> str:
        return f"Connection({masked(self.url)!r})"


class _Keys:
    """The keys of one section that are set, by their names in it."""

    def __init__(self, section: str, values: Mapping[str, Value], problems: Problems, warn: Warn) -> None:
        self.section = section
        before = f"{section}."
        self._set = {key.removeprefix(before): each for key, each in values.items() if key.startswith(before)}
        self._set = {name: each for name, each in self._set.items() if each.is_set}
        self._problems, self._warn = problems, warn

    def get(self, name: str) -> Value | None:
        return self._set.get(name)

    def text(self, name: str) -> str | None:
        found = self._set.get(name)
        return None if found is None else str(found.value)

    def path(self, name: str) -> Path | None:
        found = self._set.get(name)
        return None if found is None else Path(found.value)

    def drop_weaker(self, than: Origin) -> None:
        self._set = {name: each for name, each in self._set.items() if each.origin.rank >= than.rank}

    def refuse(self, name: str, said: str) -> None:
        found = self._set.get(name)
        self._problems.add("" if found is None else found.origin.place, f"{self.section}.{name}", said)

    def url(self) -> Value | None:
        """The URL that counts, if one does; what the parts say then of another place is gone."""
        url = self._set.get("url")
        if url is None:
            return None
        parts = {name: self._set[name] for name in _PARTS if name in self._set}
        strongest = max((each.origin.rank for each in parts.values()), default=-1)
        if strongest > url.origin.rank:
            del self._set["url"]
            return None
        self.drop_weaker(url.origin)
        for name in parts:
            if name in self._set:
                self.refuse(name, f"{self.section}.url ({url.origin}) says it already; keep one of the two")
        return url

    def password(self) -> str | None:
        password, file = self._set.get("password"), self._set.get("password_file")
        if password is not None and file is not None:
            if password.origin.rank == file.origin.rank:
                self.refuse("password", f"{self.section}.password_file ({file.origin}) says it, too; keep one of them")
            elif password.origin.rank < file.origin.rank:
                password = None
        if password is not None or file is None:
            return None if password is None else str(password.value)
        return self._read_password(file)

    def _read_password(self, file: Value) -> str | None:
        try:
            with open(file.value, "rb") as opened:
                content = opened.read(_PASSWORD_MAX_BYTES + 1)
                is_open = bool(Path(file.value).stat().st_mode & 0o004)
            password = content.decode().strip("\r\n")
        except OSError as error:
            self.refuse("password_file", f"{file.value} cannot be read: {error.strerror}; let this user read it")
            return None
        except UnicodeDecodeError:
            self.refuse("password_file", f"{file.value} is no UTF-8 text; write the password as text")
            return None
        if not password or len(content) > _PASSWORD_MAX_BYTES or "\n" in password or "\0" in password:
            self.refuse("password_file", f"{file.value} must hold one line, the password, and nothing else")
            return None
        if is_open:
            self._warn(f"{file.value}: everybody may read this password; run `chmod 600 {file.value}`")
        return password


def database_url(values: Mapping[str, Value], state: Path, problems: Problems, warn: Warn) -> str:
    """The URL of the ledger, checked."""
    keys = _Keys("database", values, problems, warn)
    given = keys.url()
    password = keys.password()
    if given is not None:
        url = _absolute(str(given.value), given.origin)
        url = _with_password(url, password, keys) if url.startswith(_POSTGRES) else url
    elif any(keys.get(name) is not None for name in _PARTS):
        user = "" if keys.text("user") is None else quote(keys.text("user") or "", safe="")
        signed = f"{user}{'' if password is None else ':' + quote(password, safe='')}@" if user else ""
        url = f"postgresql://{signed}{_hosts(keys.text('address') or '')}/{quote(keys.text('name') or '', safe='')}"
        if password is not None and not user:
            keys.refuse("user", "a password is given, and no user; give it, too")
    else:
        url = f"{_SQLITE_FILE}{quote(str(state / 'evertick.db'))}"
    return _checked(_with_parameters(url, keys), keys, given)


def broker_of(section: str, scheme: str, values: Mapping[str, Value], problems: Problems, warn: Warn) -> (
    Connection | None
):  # fmt: skip
    """How to reach a broker; None where nothing is said of it."""
    keys = _Keys(section, values, problems, warn)
    given, password = keys.url(), keys.password()
    files = {name: keys.path(f"ssl.{name}") for name in ("ca", "cert", "key")}
    if files["key"] is not None and files["cert"] is None:
        keys.refuse("ssl.key", "it is the key of no certificate; give ssl.cert, too")
    credentials, token = keys.path("credentials"), keys.text("token")
    tls = keys.get("tls")
    is_secure = (tls is not None and bool(tls.value)) or any(files.values())
    if given is not None:
        url = _with_password(str(given.value), password, keys)
        known = {"redis": ("redis", "rediss", "unix"), "nats": ("nats", "tls", "ws", "wss")}[section]
        if url.partition("://")[0] not in known or "://" not in url:
            keys.refuse("url", f"{masked(url)!r} is no URL of a broker; begin it with {scheme}://host")
    elif (address := keys.text("address")) is not None:
        user = quote(keys.text("user") or "", safe="")
        signed = f"{user}{'' if password is None else ':' + quote(password, safe='')}@"
        safe = {"redis": "rediss", "nats": "tls"}[section]
        hosts = [f"{safe if is_secure else scheme}://{'' if signed == '@' else signed}{host}"
                 for host in _hosts(address).split(",")]  # fmt: skip
        number = keys.get("number")
        url = ",".join(hosts) + ("" if number is None else f"/{number.value}")
    else:
        for name in ("user", "password", "password_file", "token", "credentials"):
            if keys.get(name) is not None:
                keys.refuse(name, f"nothing says where the server is; give {section}.address or {section}.url")
        return None
    return Connection(url=url, token=token, credentials=credentials, **files)


def _hosts(address: str) -> str:
    """Hosts with commas between them; an IPv6 address gets its brackets, the folder of a socket is a parameter."""
    if address.startswith("/"):
        return ""
    hosts = [part.strip() for part in address.split(",") if part.strip()]
    return ",".join(f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host for host in hosts)


def _absolute(url: str, origin: Origin) -> str:
    """A file of SQLite counts from the folder of the file that names it."""
    if origin.layer != "file" or not url.startswith(_SQLITE_FILE):
        return url
    try:
        path = location_of(url).path
    except InvalidInput:
        return url  # which the check of the whole says better
    if path is None:
        return url
    _, question, query = url.partition("?")
    return f"{_SQLITE_FILE}{quote(str((origin.folder / path).absolute()))}{question}{query}"


def _with_password(url: str, password: str | None, keys: _Keys) -> str:
    if password is None:
        return url
    scheme, _, rest = url.partition("://")
    user, at, where = rest.partition("@")
    name = "password" if keys.get("password") is not None else "password_file"
    if not at:
        keys.refuse(name, f"{keys.section}.url names no user that has it; write {scheme}://user@host")
        return url
    if ":" in user:
        keys.refuse(name, f"{keys.section}.url has a password already; keep one of the two")
        return url
    return f"{scheme}://{user}:{quote(password, safe='')}@{where}"


def _with_parameters(url: str, keys: _Keys) -> str:
    parameters: dict[str, str] = {}
    address = keys.text("address")
    if address is not None and address.startswith("/"):
        parameters["host"] = address
    for name, parameter in _PARAMETERS.items():
        found = keys.get(name)
        if found is None:
            continue
        if not url.startswith(_POSTGRES):
            keys.refuse(name, "it is for PostgreSQL, and the database is none; take it away, or name one")
        is_duration = parameter in ("timeout", "connect_timeout")
        parameters[parameter] = duration_text(duration_us(found.value)) if is_duration else str(found.value)
    if not parameters or not url.startswith(_POSTGRES):
        return url
    return f"{url}{'&' if '?' in url else '?'}{urlencode(parameters)}"


def _checked(url: str, keys: _Keys, given: Value | None) -> str:
    try:
        return check_url(url)
    except InvalidInput as wrong:
        said = str(wrong).removeprefix("url: ")
        name = "url" if given is not None else next((name for name in _PARTS if keys.get(name) is not None), "url")
        keys.refuse(name, said)
        return url
