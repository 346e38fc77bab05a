"""The URL of a database as it may be shown: in logs, errors and reprs. The one place that hides passwords.

Nothing here relies on a URL that is well written, for those that are not end up in errors: where it cannot be told
which part is the password, all between the scheme and the last "@" is hidden.
"""

from __future__ import annotations

import re

__all__ = ["masked", "masked_within", "shown_value", "without_listen"]

_HIDDEN = "***"
_SCHEME = re.compile(r"[A-Za-z][\w+.-]*:/*")
# Whose users are no secrets: elsewhere what stands alone before the "@" may be a token, as with NATS.
_NAMES_USERS = re.compile(r"(?i)postgres(ql)?(\+\w+)?://")
# A user, a password, and a host that follows at once.
_WELL_WRITTEN = re.compile(r"(?P<user>[\w.~-]*)(?P<password>:[^@/?#]*)?@(?P<where>[^@]*)")
# Hosts with ports. Anything else in their place may be a user and a password whose host was forgotten.
_HOST = r"(\[[^\]]*\]|[^:,]*)(:\d{1,5})?"
_HOSTS = re.compile(rf"{_HOST}(,{_HOST})*")
# A whole URL as a parameter: its "@" is not that of the address.
_LISTEN = re.compile(r"(?<=[?&])listen=[^&]*&?")
# Whole, or not at all: half a name is another one.
_SCHEMA = re.compile(r"(?<=[?&])schema=\w+(?![^&#])")
# As other libraries write what leads to a database: words with their values.
_SPELLED_OUT = re.compile(r"(?is)(pass\w*|pwd)\s*=.*")
_ADDRESS_IN_TEXT = re.compile(r"([A-Za-z][\w+.-]*://)(\S*)")
_SAYS_PASSWORD = re.compile(r"(?i)pass|pwd|secret")


def masked(url: str) -> str:
    """The URL without what is or may be secret. Of its parameters it has the schema, which says which ledger it is."""
    beginning = _SCHEME.match(url)
    scheme = "" if beginning is None else beginning[0]
    rest = without_listen(url.removeprefix(scheme))
    well_written = _WELL_WRITTEN.fullmatch(rest) if scheme.endswith("://") else None
    if scheme.startswith("sqlite:"):
        shown = rest  # a file: an "@" in it is one in the name of a folder
    elif _SPELLED_OUT.search(url) and not scheme:
        shown = _SPELLED_OUT.sub(rf"\1={_HIDDEN}", url)
    elif well_written is not None:
        is_token = not well_written["password"] and not _NAMES_USERS.match(scheme)
        password = f":{_HIDDEN}" if well_written["password"] else ""
        shown = f"{_HIDDEN if is_token else well_written['user'] + password}@{well_written['where']}"
    elif "@" in rest:
        shown = f"{_HIDDEN}@{rest.rpartition('@')[2]}"
    else:
        hosts = re.split("[/?#]", rest, maxsplit=1)[0]
        shown = rest if _HOSTS.fullmatch(hosts) else _HIDDEN + rest[len(hosts) :]
    return scheme + _with_schema_only(shown)


def masked_within(text: str) -> str:
    """A text that holds URLs among other words, like a command: nothing but who signs in by them is hidden."""
    return _ADDRESS_IN_TEXT.sub(lambda found: found[1] + _unsigned(found[2]), text)


def _unsigned(rest: str) -> str:
    """What follows a scheme. An "@" behind the hosts is one of a path or a question, if hosts is what stands there."""
    hosts = re.split("[/?#]", rest, maxsplit=1)[0]
    is_signed = "@" in rest and ("@" in hosts or not _HOSTS.fullmatch(hosts))
    return f"{_HIDDEN}@{rest.rpartition('@')[2]}" if is_signed else rest


def shown_value(value: object) -> str:
    """What was given in place of something else, in at most 200 letters: it may be a URL, or hold a password."""
    if isinstance(value, str):
        return f"{masked(value)!r:.200}"
    said = f"{value!r:.200}"
    is_told = "@" not in said and "://" not in said and not _SAYS_PASSWORD.search(said)
    return said if is_told else f"this {type(value).__name__}"


def without_listen(rest: str) -> str:
    """What follows the scheme, less the second URL that it may have as a parameter."""
    address, question, parameters = rest.partition("?")
    # Before the first slash or "@" a question mark is one in a password.
    return address + _LISTEN.sub("", question + parameters) if "/" in address or "@" in address else rest


def _with_schema_only(shown: str) -> str:
    address, question, parameters = shown.partition("?")
    schema = _SCHEMA.search(question + parameters)
    return address if schema is None else f"{address}?{schema[0]}"
