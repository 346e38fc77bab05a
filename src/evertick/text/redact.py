"""Hides passwords in URLs for logs, errors and reprs.

Malformed URLs end up in errors, so nothing here relies on a correct form: if the password cannot be located, everything
between the scheme and the last "@" is hidden.
"""

from __future__ import annotations

import re

__all__ = ["masked", "masked_within", "shown_value", "without_listen"]

_HIDDEN = "***"
_SCHEME = re.compile(r"[A-Za-z][\w+.-]*:/*")
# Schemes whose user is no secret; with others, for example NATS, a name alone before the "@" may be a token.
_NAMES_USERS = re.compile(r"(?i)postgres(ql)?(\+\w+)?://")
# A user, a password and a host.
_WELL_FORMED = re.compile(r"(?P<user>[\w.~-]*)(?P<password>:[^@/?#]*)?@(?P<where>[^@]*)")
# Hosts with ports. Anything else in this place may be a user and a password without a host.
_HOST = r"(\[[^\]]*\]|[^:,]*)(:\d{1,5})?"
_HOSTS = re.compile(rf"{_HOST}(,{_HOST})*")
# A second URL as a parameter, whose "@" is not that of the address.
_LISTEN = re.compile(r"(?<=[?&])listen=[^&]*&?")
# The whole name only: a part of it is a different schema.
_SCHEMA = re.compile(r"(?<=[?&])schema=\w+(?![^&#])")
# Connection strings of other libraries: "host=db password=…".
_KEY_VALUE = re.compile(r"(?is)(pass\w*|pwd)\s*=.*")
_ADDRESS_IN_TEXT = re.compile(r"([A-Za-z][\w+.-]*://)(\S*)")
_SAYS_PASSWORD = re.compile(r"(?i)pass|pwd|secret")


def masked(url: str) -> str:
    """The URL without possible secrets. Of its parameters only the schema stays, which identifies the ledger."""
    beginning = _SCHEME.match(url)
    scheme = "" if beginning is None else beginning[0]
    rest = without_listen(url.removeprefix(scheme))
    well_formed = _WELL_FORMED.fullmatch(rest) if scheme.endswith("://") else None
    if scheme.startswith("sqlite:"):
        shown = rest  # a path: an "@" belongs to the name of a folder
    elif _KEY_VALUE.search(url) and not scheme:
        shown = _KEY_VALUE.sub(rf"\1={_HIDDEN}", url)
    elif well_formed is not None:
        is_token = not well_formed["password"] and not _NAMES_USERS.match(scheme)
        password = f":{_HIDDEN}" if well_formed["password"] else ""
        shown = f"{_HIDDEN if is_token else well_formed['user'] + password}@{well_formed['where']}"
    elif "@" in rest:
        shown = f"{_HIDDEN}@{rest.rpartition('@')[2]}"
    else:
        hosts = re.split("[/?#]", rest, maxsplit=1)[0]
        shown = rest if _HOSTS.fullmatch(hosts) else _HIDDEN + rest[len(hosts) :]
    return scheme + _with_schema_only(shown)


def masked_within(text: str) -> str:
    """A text with URLs, such as a command: only the credentials in the URLs are hidden."""
    return _ADDRESS_IN_TEXT.sub(lambda found: found[1] + _without_credentials(found[2]), text)


def _without_credentials(rest: str) -> str:
    """The part of a URL after its scheme. An "@" after well-formed hosts belongs to the path or the query."""
    hosts = re.split("[/?#]", rest, maxsplit=1)[0]
    has_credentials = "@" in rest and ("@" in hosts or not _HOSTS.fullmatch(hosts))
    return f"{_HIDDEN}@{rest.rpartition('@')[2]}" if has_credentials else rest


def shown_value(value: object) -> str:
    """An invalid value for an error, at most 200 characters, hidden if it may hold a password."""
    if isinstance(value, str):
        return f"{masked(value)!r:.200}"
    text = f"{value!r:.200}"
    is_safe = "@" not in text and "://" not in text and not _SAYS_PASSWORD.search(text)
    return text if is_safe else f"this {type(value).__name__}"


def without_listen(rest: str) -> str:
    """The part of a URL after its scheme, without the `listen` parameter, which is a second URL."""
    address, question, parameters = rest.partition("?")
    # A question mark before the first slash or "@" belongs to a password.
    return address + _LISTEN.sub("", question + parameters) if "/" in address or "@" in address else rest


def _with_schema_only(shown: str) -> str:
    address, question, parameters = shown.partition("?")
    schema = _SCHEMA.search(question + parameters)
    return address if schema is None else f"{address}?{schema[0]}"
