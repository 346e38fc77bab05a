"""The specification of an HTTP job, its checks, and the checks of the response."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from typing import Any, ClassVar, Protocol, assert_never
from urllib.parse import urlsplit

import msgspec

from evertick.driver.base import Driver
from evertick.driver.http.address import parse_allowed
from evertick.driver.http.body_check import CHECK_SECONDS, CheckFailure, Checks, check, check_in_child
from evertick.driver.http.template import Escape, Template, placeholders_in
from evertick.driver.python.function import Threads
from evertick.driver.secret import Secret, check_secret
from evertick.driver.spec import DriverParts, Spec
from evertick.driver.spec_errors import Faults
from evertick.errors import InvalidSetting
from evertick.text.byte_size import size_bytes, size_text
from evertick.text.values import shown
from evertick.when.duration import duration_text, duration_us
from evertick.when.moment import DAY, MILLISECOND

__all__ = [
    "BODY_MAX_BYTES",
    "URL_MAX_CHARS",
    "Http",
    "HttpBasic",
    "HttpExpect",
    "HttpSettings",
    "check_url",
    "content_type_of",
    "escape_of",
    "expectation_error",
    "method_of",
    "signing_keys_of",
    "statuses_of",
]

BODY_MAX_BYTES = 1024 * 1024
URL_MAX_CHARS = 8_000
_HEADERS_MAX = 100
_HEADER_MAX_CHARS = 8_000
_REDIRECTS_MAX = 20
_READ_MAX_BYTES = 16 * 1024 * 1024
_SIGNING_KEYS_MAX = 5

_METHOD = re.compile(r"[A-Z]{1,20}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
# Evertick sets these headers. A wrong one breaks the request, or lets it smuggle another one.
_OWN_HEADERS = {
    "host": "it is taken from the url",
    "content-length": "it is computed from the body",
    "transfer-encoding": "the body is sent in one piece",
    "connection": "a connection is used for one request",
    "webhook-id": "sign sets it",
    "webhook-timestamp": "sign sets it",
    "webhook-signature": "sign sets it",
}
_EXPECT_MAX_CHARS = 1_000
_CHECKS_MAX = 50
_SHOWN_MAX_CHARS = 100
_RANGE = re.compile(r"([1-5]\d\d)-([1-5]\d\d)")
_CLASS = re.compile(r"([1-5])[xX]{2}")
# A longer body is checked in a child process.
_CHECKED_HERE_MAX_CHARS = 128 * 1024
_NO_CHECKS = Checks()


class Excerpt(Protocol):
    """The beginning of a text, with secrets masked."""

    def __call__(self, text: str, most: int, *, is_cut: bool = False) -> str: ...


class HttpExpect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conditions for the response; all of them must hold.

    status: codes, classes and ranges: 200, "2xx", "200-204". contains: a text in the body.
    matches: a regular expression that matches in the body. json: values by JSON pointer: {"/state": "ok"}.
    """

    status: int | str | tuple[int | str, ...] = ("2xx",)
    contains: str | None = None
    matches: str | None = None
    json: dict[str, Any] = {}


class HttpBasic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user name, and the secret with the password."""

    user: str
    password: Secret


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of all HTTP jobs of a node.

    allow_private: whether jobs may connect to private and loopback addresses. allow: networks and host names that jobs
    may connect to. ca: a file with the trusted certificates, in place of those of the system.
    """

    allow_private: bool = False
    allow: tuple[str, ...] = ()
    ca: str | None = None

    def check(self, what: str = "http") -> None:
        parse_allowed(self.allow, f"{what}: allow")


class _UrlFirst(Spec, frozen=True, forbid_unknown_fields=True):
    # The only positional field: Http("https://…").
    url: str | Secret


class Http(_UrlFirst, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Make a request: `Http("https://example.org/hook", json={"run": "{run_id}"})`.

    url: the address, or a `Secret` that holds it. method: by default GET, or POST with a body.
    headers: by name. bearer, basic: credentials. json, body: the data to send, with placeholders like {run_id},
    {fire_at} and {args.NAME}. sign: the secret or secrets that sign the request.
    expect: conditions for the response. timeout: for the whole exchange with its redirects. redirects: the maximum
    number. read_limit: the maximum of the body that is read. retry_after_max: the longest wait that a server may ask
    for. allow: networks and host names that are allowed although they are not public. ca: a file with the trusted
    certificates. run_headers: whether to send headers that identify the run.
    """

    driver: ClassVar[str] = "http"
    short: ClassVar[str | None] = "url"

    method: str | None = None
    headers: dict[str, str | Secret] = msgspec.field(default_factory=dict)
    bearer: Secret | None = None
    basic: HttpBasic | None = None
    json: Any = None
    body: str | None = None
    sign: Secret | tuple[Secret, ...] | None = None
    expect: HttpExpect = HttpExpect()
    timeout: float | str = "30s"
    redirects: int = 5
    read_limit: int | str = "64KiB"
    retry_after_max: float | str = "1h"
    allow: tuple[str, ...] = ()
    ca: str | None = None
    run_headers: bool = True

    def check(self, task: str) -> None:
        what = f"task {task!r}: http"
        faults = Faults(what)
        with faults.of("url"):
            if isinstance(self.url, str):
                check_url(self.url, f"{what}: url", has_places=True)
        for path, secret in self._secrets():
            with faults.of(path[0], path=path):
                check_secret(secret.name, f"{what}: {': '.join(path)}")
        with faults.of("method"):
            self._check_method(what)
        self._check_headers(what, faults)
        self._check_credentials(what, faults)
        self._check_body(what, faults)
        _check_expect(self.expect, f"{what}: expect", faults)
        with faults.of("timeout"):
            _check_span(self.timeout, f"{what}: timeout", 10 * MILLISECOND, DAY)
        with faults.of("retry_after_max"):
            _check_span(self.retry_after_max, f"{what}: retry_after_max", 0, 30 * DAY)
        with faults.of("redirects"):
            _check_whole(self.redirects, f"{what}: redirects", 0, _REDIRECTS_MAX)
        with faults.of("read_limit"):
            self._check_read_limit(what)
        with faults.of("sign"):
            self._check_sign(what)
        for each in self.allow:
            with faults.of("allow"):
                parse_allowed([each], f"{what}: allow")
        with faults.of("allow"):
            parse_allowed(self.allow, f"{what}: allow")
        faults.raise_any()

    def make_driver(self, task: str, parts: DriverParts) -> Driver:
        try:
            from evertick.driver.http.driver import HttpDriver
        except ModuleNotFoundError as missing:
            if (missing.name or "").partition(".")[0] == "evertick":
                raise
            raise InvalidSetting(
                f"task {task!r}: http: {missing.name} is not installed",
                setting="http",
                value=missing.name,
                fix="pip install 'evertick[http]'",
            ) from None
        return HttpDriver(self, task, parts)

    def _secrets(self) -> Iterator[tuple[tuple[str, ...], Secret]]:
        if isinstance(self.url, Secret):
            yield ("url",), self.url
        for name, value in self.headers.items():
            if isinstance(value, Secret):
                yield ("headers", name), value
        if self.bearer is not None:
            yield ("bearer",), self.bearer
        if self.basic is not None:
            yield ("basic", "password"), self.basic.password
        for each in signing_keys_of(self):
            yield ("sign",), each

    def _check_method(self, what: str) -> None:
        method = method_of(self)
        if not _METHOD.fullmatch(method) or method in ("CONNECT", "TRACE"):
            raise InvalidSetting(
                f"{what}: method: {shown(self.method)} is not an allowed HTTP method",
                setting="method",
                value=shown(self.method),
                fix="write one like 'POST'",
            )

    def _check_headers(self, what: str, faults: Faults) -> None:
        if len(self.headers) > _HEADERS_MAX:
            with faults.of("headers"):
                raise InvalidSetting(
                    f"{what}: headers: {len(self.headers)} headers are more than {_HEADERS_MAX}",
                    setting="headers",
                    fix="send fewer",
                )
            return
        seen: set[str] = set()
        for name, value in self.headers.items():
            with faults.of("headers", path=("headers", name)):
                _check_header(name, value, seen, f"{what}: headers: {shown(name)}")
            seen.add(name.lower())

    def _check_credentials(self, what: str, faults: Faults) -> None:
        chosen = [name for name, given in (("bearer", self.bearer), ("basic", self.basic)) if given is not None]
        chosen += ["headers: Authorization"] if any(name.lower() == "authorization" for name in self.headers) else []
        with faults.of("bearer", "basic", "headers", path=()):
            if len(chosen) > 1:
                raise InvalidSetting(f"{what}: {' and '.join(chosen)} both set credentials", fix="keep one of them")
        with faults.of("basic", path=("basic", "user")):
            if self.basic is not None and (":" in self.basic.user or not self.basic.user.isprintable()):
                user = shown(self.basic.user)
                raise InvalidSetting(
                    f"{what}: basic: user: {user} must be printable and without ':'", setting="basic", value=user
                )

    def _check_body(self, what: str, faults: Faults) -> None:
        with faults.of("json", "body", path=()):
            if self.json is not None and self.body is not None:
                raise InvalidSetting(f"{what}: json and body both set the request body", fix="keep one of them")
        with faults.of("json"):
            if self.json is not None:
                _check_data(self.json, f"{what}: json")
        with faults.of("body", "headers"):
            if self.body is not None:
                _check_text_body(self.body, content_type_of(self), f"{what}: body")

    def _check_read_limit(self, what: str) -> None:
        if size_bytes(self.read_limit, what=f"{what}: read_limit") > _READ_MAX_BYTES:
            limit, value = size_text(_READ_MAX_BYTES), shown(self.read_limit)
            raise InvalidSetting(
                f"{what}: read_limit: {value} is more than {limit}",
                setting="read_limit",
                value=value,
                fix=f"write at most {limit}",
            )

    def _check_sign(self, what: str) -> None:
        count = len(signing_keys_of(self))
        if count > _SIGNING_KEYS_MAX or self.sign == ():
            raise InvalidSetting(
                f"{what}: sign: {count} secrets are not allowed",
                setting="sign",
                value=str(count),
                fix=f"give 1 to {_SIGNING_KEYS_MAX}",
            )


def method_of(spec: Http) -> str:
    has_body = spec.json is not None or spec.body is not None
    return spec.method.upper() if spec.method is not None else "POST" if has_body else "GET"


def signing_keys_of(spec: Http) -> tuple[Secret, ...]:
    return () if spec.sign is None else (spec.sign,) if isinstance(spec.sign, Secret) else spec.sign


def content_type_of(spec: Http) -> str | None:
    """The Content-Type that the headers set."""
    values = (value for name, value in spec.headers.items() if name.lower() == "content-type")
    return next((value for value in values if isinstance(value, str)), None)


def escape_of(content_type: str | None) -> Escape:
    """How to escape values in a body of this type."""
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return "json"
    return "form" if kind == "application/x-www-form-urlencoded" else "text"


def check_url(url: str, what: str, *, has_places: bool = False, is_shown: bool = True) -> None:
    """Raise InvalidSetting unless it is an http or https URL. `is_shown`: False if the URL is a secret."""
    # Not quoted with an "@": a password may stand before it.
    value = shown(url) if is_shown and "@" not in url else "the url" if is_shown else "the value of the secret"
    field = value if is_shown else None
    if has_places:
        list(placeholders_in(url, what))
    if len(url) > URL_MAX_CHARS:
        raise InvalidSetting(
            f"{what}: {value} has more than {URL_MAX_CHARS} characters",
            setting="url",
            value=field,
            fix="send the data in the body",
        )
    odd = next((letter for letter in url if letter.isspace() or not letter.isprintable()), None)
    if odd is not None:
        raise InvalidSetting(
            f"{what}: {value} contains the character {odd!r}",
            setting="url",
            value=field,
            fix=f"write it as %{ord(odd):02X}, or remove it",
        )
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise InvalidSetting(
            f"{what}: {value} is not a valid URL: {error}",
            setting="url",
            value=field,
            fix="write it like 'https://host/path'",
        ) from None
    if "@" in parts.netloc:
        raise InvalidSetting(
            f"{what}: a password in the URL would be shown in listings",
            setting="url",
            fix="remove 'user:password@' and write basic = { user = '…', password = { secret = '…' } }",
        )
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidSetting(
            f"{what}: {value} is not an http or https URL",
            setting="url",
            value=field,
            fix="write it like 'https://host/path'",
        )
    if parts.fragment or port == 0:
        part = "port 0" if port == 0 else "a fragment (#…)"
        raise InvalidSetting(f"{what}: {value} has {part}", setting="url", value=field, fix="remove it")
    if "{" in parts.netloc or "}" in parts.netloc:
        raise InvalidSetting(
            f"{what}: {value} has a placeholder in its host",
            setting="url",
            value=field,
            fix="write the host, and use placeholders only after it",
        )


def _check_header(name: str, value: str | Secret, seen: Set[str], where: str) -> None:
    if not _HEADER_NAME.fullmatch(name):
        raise InvalidSetting(
            f"{where} is not a valid header name",
            setting="headers",
            value=shown(name),
            fix="use letters, digits and '-'",
        )
    if name.lower() in _OWN_HEADERS:
        raise InvalidSetting(
            f"{where} cannot be set: {_OWN_HEADERS[name.lower()]}",
            setting="headers",
            value=shown(name),
            fix="remove it",
        )
    if name.lower() in seen:
        raise InvalidSetting(
            f"{where} is given twice (header names are case-insensitive)",
            setting="headers",
            value=shown(name),
            fix="keep one of them",
        )
    if isinstance(value, str):
        _check_header_value(value, where)


def _check_text_body(body: str, content_type: str | None, what: str) -> None:
    if len(body.encode(errors="surrogatepass")) > BODY_MAX_BYTES:
        raise InvalidSetting(
            f"{what}: it has more than {BODY_MAX_BYTES} bytes", setting="body", fix="send a reference to the data"
        )
    list(placeholders_in(body, what))
    if escape_of(content_type) == "json" and not _is_json(body):
        raise InvalidSetting(
            f"{what}: it is not JSON, but its Content-Type is {content_type!r}",
            setting="body",
            fix="write the data as json = …",
        )
    if content_type is None and _is_json(body) and body.lstrip()[:1] in ("{", "["):
        raise InvalidSetting(
            f"{what}: it is JSON without a Content-Type",
            setting="body",
            fix="write it as json = …, or add the header Content-Type",
        )


def _check_header_value(text: str, what: str) -> None:
    if len(text) > _HEADER_MAX_CHARS:
        raise InvalidSetting(
            f"{what}: {len(text)} characters are more than {_HEADER_MAX_CHARS}",
            setting="headers",
            fix="send a shorter value",
        )
    odd = next((letter for letter in text if not (" " <= letter <= "~" or letter == "\t")), None)
    if odd is not None:
        raise InvalidSetting(
            f"{what}: the character {odd!r} is not allowed in a header",
            setting="headers",
            value=repr(odd),
            fix="use printable ASCII",
        )
    list(placeholders_in(text, what))


def _check_data(data: Any, what: str) -> None:
    try:
        size = len(msgspec.json.encode(data))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidSetting(
            f"{what}: it is not JSON-like data: {error}", setting="json", fix="use dicts, lists, text and numbers"
        ) from None
    if size > BODY_MAX_BYTES:
        raise InvalidSetting(
            f"{what}: it has {size} bytes, more than {BODY_MAX_BYTES}",
            setting="json",
            fix="send a reference to the data",
        )
    for text in _texts_in(data):
        list(placeholders_in(text, what))


def _texts_in(data: Any) -> Iterator[str]:
    match data:
        case str():
            yield data
        case Mapping():
            for name, value in data.items():
                yield from _texts_in(name)
                yield from _texts_in(value)
        case list() | tuple():
            for each in data:
                yield from _texts_in(each)


def _is_json(text: str) -> bool:
    """Whether the text is JSON when its placeholders are filled."""
    try:
        msgspec.json.decode(Template(text, "json", "body").with_empty_values())
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True


def _check_span(value: float | str, what: str, least: int, most: int) -> None:
    us = duration_us(value, what=what)
    if not least <= us <= most:
        shortest, longest = duration_text(least) if least else "0s", duration_text(most)
        raise InvalidSetting(f"{what}: {shown(value)} must be between {shortest} and {longest}", value=shown(value))


def _check_whole(value: int, what: str, least: int, most: int) -> None:
    if isinstance(value, bool) or not least <= value <= most:
        raise InvalidSetting(
            f"{what}: {shown(value)} must be a whole number from {least} to {most}", value=shown(value)
        )


# --- expectations


def _check_expect(expect: HttpExpect, what: str, faults: Faults) -> None:
    with faults.of("expect", path=("expect", "status")):
        statuses_of(expect.status, f"{what}: status")
    for name, text in (("contains", expect.contains), ("matches", expect.matches)):
        with faults.of("expect", path=("expect", name)):
            if text is not None and not 1 <= len(text) <= _EXPECT_MAX_CHARS:
                raise InvalidSetting(
                    f"{what}: {name}: {shown(text)} must have 1 to {_EXPECT_MAX_CHARS} characters",
                    setting=name,
                    value=shown(text),
                )
    with faults.of("expect", path=("expect", "matches")):
        _check_pattern(expect.matches, f"{what}: matches")
    with faults.of("expect", path=("expect", "json")):
        if len(expect.json) > _CHECKS_MAX:
            raise InvalidSetting(
                f"{what}: json: {len(expect.json)} checks are more than {_CHECKS_MAX}", setting="json", fix="check less"
            )
    for pointer in expect.json:
        with faults.of("expect", path=("expect", "json", pointer)):
            if pointer and not pointer.startswith("/"):
                raise InvalidSetting(
                    f"{what}: json: {shown(pointer)} is not a JSON pointer",
                    setting="json",
                    value=shown(pointer),
                    fix=f"write it like {shown(f'/{pointer}')}",
                )


def _check_pattern(pattern: str | None, what: str) -> None:
    if pattern is None:
        return
    if "\0" in pattern:
        raise InvalidSetting(f"{what}: it contains a zero character", setting="matches", fix="remove it")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidSetting(
            f"{what}: {shown(pattern)} is not a valid regular expression: {error}",
            setting="matches",
            value=shown(pattern),
        ) from None


def statuses_of(given: int | str | tuple[int | str, ...], what: str) -> frozenset[int]:
    """All status codes that the expressions name."""
    several = given if isinstance(given, tuple) else (given,)
    if not several:
        raise InvalidSetting(f"{what}: the list is empty", setting="status", value="[]", fix="write ['2xx']")
    codes: set[int] = set()
    for each in several:
        codes |= _codes(each, what)
    return frozenset(codes)


def _codes(given: int | str, what: str) -> set[int]:
    text = str(given).strip()
    if re.fullmatch(r"[1-5]\d\d", text) and not isinstance(given, bool):
        return {int(text)}
    if found := _CLASS.fullmatch(text):
        return set(range(int(found[1]) * 100, int(found[1]) * 100 + 100))
    if (found := _RANGE.fullmatch(text)) and int(found[1]) <= int(found[2]):
        return set(range(int(found[1]), int(found[2]) + 1))
    raise InvalidSetting(
        f"{what}: {shown(given)} is not a status",
        setting="status",
        value=shown(given),
        fix="write it like 204, '2xx' or '200-204'",
    )


async def expectation_error(expect: HttpExpect, body: str, threads: Threads, excerpt: Excerpt) -> str | None:
    """The first failed condition for the body, in words; None: all hold."""
    wanted = Checks(expect.contains, expect.matches, expect.json)
    if wanted == _NO_CHECKS:
        return None
    if expect.matches is None and len(body) <= _CHECKED_HERE_MAX_CHARS:
        failure = check(wanted, body)
    else:
        failure = await threads.call(lambda: check_in_child(wanted, body))
    return None if failure is None else _describe(failure, expect, excerpt)


def _describe(failure: CheckFailure, expect: HttpExpect, excerpt: Excerpt) -> str:
    match failure.what:
        case "contains":
            return f"the body does not contain {(expect.contains or '')[:_SHOWN_MAX_CHARS]!r}"
        case "matches":
            return f"the body does not match {(expect.matches or '')[:_SHOWN_MAX_CHARS]!r}"
        case "no json":
            return f"the body is not JSON: {failure.text}"
        case "absent":
            return f"the body has no value at {failure.pointer!r}"
        case "unequal":
            actual = excerpt(failure.text, _SHOWN_MAX_CHARS, is_cut=failure.is_cut)
            wanted = msgspec.json.encode(expect.json[failure.pointer]).decode()[:_SHOWN_MAX_CHARS]
            return f"the body has {actual} at {failure.pointer!r}, not {wanted}"
        case "endless" if expect.matches is not None:
            return (
                f"matching the body with {expect.matches[:_SHOWN_MAX_CHARS]!r} timed out after {CHECK_SECONDS} s; use "
                "an expression without nested repeats"
            )
        case "endless":
            return f"checking the body timed out after {CHECK_SECONDS} s; lower read_limit or send a smaller body"
        case _:
            assert_never(failure.what)
