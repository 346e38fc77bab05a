"""The URL of the ledger, given or made of its parts, with the other keys of the section as parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode

from evertick.config.layer import PARTS, Origin, SectionKeys, Value, Warn
from evertick.config.problem import Problems
from evertick.definition.settings import check_url
from evertick.errors import InvalidInput
from evertick.store.sqlite.location import location_of
from evertick.store.url import check_installed
from evertick.text.redact import masked
from evertick.when.duration import duration_text, duration_us

__all__ = ["database_url"]

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
_HOSTS_MOST = 100


def database_url(values: Mapping[str, Value], state: Path, problems: Problems, warn: Warn) -> str:
    """The URL of the ledger, checked."""
    keys = SectionKeys("database", values, problems, warn)
    default = f"{_SQLITE_FILE}{quote(str(state / 'evertick.db'))}"
    if keys.is_half:
        return default
    before = len(problems)
    given = keys.url()
    password = keys.password()
    if given is not None:
        url = _absolute(str(given.value), given.origin)
        url = keys.with_password(url, password) if url.startswith(_POSTGRES) else url
    elif keys.first(*PARTS) is not None:
        url = _of_parts(keys, password)
    else:
        url = default
    # Prevents that a problem of the address is reported twice.
    is_right = len(problems) == before and _is_right(url, keys, "url" if given is not None else keys.first(*PARTS))
    return _with_parameters(url, keys) if is_right else url


def _of_parts(keys: SectionKeys, password: str | None) -> str:
    login = keys.login(password)
    address = keys.text("address")
    # The folder of a socket cannot be the host of a URL.
    is_folder = address is None or address.startswith("/")
    hosts = "" if is_folder else ",".join(keys.hosts("db.example.org:5432", most=_HOSTS_MOST))
    folder = "" if address is None or not is_folder else f"?{urlencode({'host': address})}"
    return f"postgresql://{login}{hosts}/{quote(keys.text('name') or '', safe='')}{folder}"


def _absolute(url: str, origin: Origin) -> str:
    """Resolve the path of an SQLite file from the folder of the configuration file."""
    if origin.layer != "file" or not url.startswith(_SQLITE_FILE):
        return url
    try:
        path = location_of(url).path
    except InvalidInput:
        return url  # reported by the check of the whole URL
    if path is None:
        return url
    _, question, query = url.partition("?")
    return f"{_SQLITE_FILE}{quote(str((origin.folder / path).absolute()))}{question}{query}"


def _is_right(url: str, keys: SectionKeys, name: str | None) -> bool:
    try:
        check_url(url)
        if url.startswith("sqlite:"):
            location_of(url)
        # Otherwise a missing package would be reported only when a node opens the store.
        check_installed(url)
    except InvalidInput as wrong:
        keys.refuse(name or "url", str(wrong).removeprefix("url: "))
        return False
    return True


def _with_parameters(url: str, keys: SectionKeys) -> str:
    """The URL with the other keys as parameters, checked one by one, so that an error names its key."""
    made, written = url, {each for each, _ in parse_qsl(url.partition("?")[2], keep_blank_values=True)}
    for name, parameter in _PARAMETERS.items():
        found = keys.get(name)
        if found is None:
            continue
        if not url.startswith(_POSTGRES):
            keys.refuse(name, "it is only for PostgreSQL; remove it, or use a PostgreSQL database")
            continue
        if name == "ssl.key" and keys.get("ssl.cert") is None:
            keys.refuse(name, "it is a key without a certificate; set ssl.cert too")
            continue
        if parameter in written:
            keys.refuse(name, f"{keys.section}.url says it already, as {parameter}=; keep one of the two")
            continue
        is_duration = parameter in ("timeout", "connect_timeout")
        value = duration_text(duration_us(found.value)) if is_duration else str(found.value)
        longer = f"{made}{'&' if '?' in made else '?'}{urlencode({parameter: value})}"
        try:
            made = check_url(longer)
        except InvalidInput as wrong:
            keys.refuse(name, _of_parameter(str(wrong), longer, parameter))
    return made


def _of_parameter(problem: str, url: str, parameter: str) -> str:
    """The problem of a parameter of a URL, as that of its key."""
    words = problem.removeprefix("url: ").removeprefix(f"{masked(url)!r}: ").removeprefix(f"{masked(url)!r} ")
    return words.removeprefix(f"{parameter}=").removeprefix(f"{parameter} ")
