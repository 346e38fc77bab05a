"""A job that makes an HTTP request: its specification, the checks of that, and of the answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from typing import Any, ClassVar, Protocol, assert_never
from urllib.parse import urlsplit

import msgspec

from evertick.driver.base import Driver
from evertick.driver.http.address import allowed_of
from evertick.driver.http.body_check import CHECK_SECONDS, CheckFailure, Checks, check, check_apart
from evertick.driver.http.template import Escape, Template, places_in
from evertick.driver.python.function import Threads
from evertick.driver.secret import Secret, check_secret
from evertick.driver.spec import DriverParts, Spec
from evertick.driver.spec_errors import Faults
from evertick.errors import InvalidSetting
from evertick.text.byte_size import size_bytes, size_text
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
# They follow from the rest, and a wrong one breaks the request or the one after it.
_OWN_HEADERS = {
    "host": "it follows from the url",
    "content-length": "it follows from the body",
    "transfer-encoding": "the body is sent in one piece",
    "connection": "there is one request on a connection",
    "webhook-id": "sign sets it",
    "webhook-timestamp": "sign sets it",
    "webhook-signature": "sign sets it",
}
_EXPECT_MAX_CHARS = 1_000
_CHECKS_MAX = 50
_SHOWN_MAX_CHARS = 100
_RANGE = re.compile(r"([1-5]\d\d)-([1-5]\d\d)")
_CLASS = re.compile(r"([1-5])[xX]{2}")
# A longer body is looked through by a process of its own.
_LOOKED_THROUGH_HERE = 128 * 1024
_NOTHING = Checks()


class Excerpt(Protocol):
    """The beginning of a text, without secrets."""

    def __call__(self, text: str, most: int, *, is_cut: bool = False) -> str: ...


class HttpExpect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conditions for an answer; all of them must hold.

    status: codes, classes and ranges: 200, "2xx", "200-204". contains: a text in the body.
    matches: a regular expression that is found in the body. json: values by their JSON pointers: {"/state": "ok"}.
    """

    status: int | str | tuple[int | str, ...] = ("2xx",)
    contains: str | None = None
    matches: str | None = None
    json: dict[str, Any] = {}


class HttpBasic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user and the secret that is the password."""

    user: str
    password: Secret


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of all HTTP jobs of a node.

    allow_private: they may talk to private and loopback addresses. allow: networks and names that they may talk to.
    ca: a file of certificates that are trusted in place of those of the system.
    """

    allow_private: bool = False
    allow: tuple[str, ...] = ()
    ca: str | None = None

    def check(self, what: str = "http") -> None:
        allowed_of(self.allow, f"{what}: allow")


class _UrlFirst(Spec, frozen=True, forbid_unknown_fields=True):
    # The one field that may be given by its place: Http("https://…").
    url: str | Secret


class Http(_UrlFirst, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Make a request: `Http("https://example.org/hook", json={"run": "{run_id}"})`.

    url: where; a `Secret` where the address itself is one. method: default GET, with a body POST.
    headers: by name. bearer, basic: credentials. json, body: what is sent; places like {run_id}, {fire_at} and
    {args.NAME} are filled. sign: the secret or secrets that the request is signed with.
    expect: what the answer must be. timeout: for all of it, redirects included. redirects: how many are followed.
    read_limit: so much of the answer is read. retry_after_max: how long a server may ask to wait.
    allow: networks and names that it may talk to although they are not public. ca: a file of trusted certificates.
    run_headers: whether to tell the server which run asks.
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
        faults = Faults()
        with faults.of("url"):
            if isinstance(self.url, str):
                check_url(self.url, f"{what}: url", has_places=True)
        for name, secret in self._secrets():
            with faults.of(name.partition(":")[0]):
                check_secret(secret.name, f"{what}: {name}")
        with faults.of("method"):
            self._check_method(what)
        self._check_headers(what, faults)
        self._check_who_asks(what, faults)
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
                allowed_of([each], f"{what}: allow")
        with faults.of("allow"):
            allowed_of(self.allow, f"{what}: allow")
        faults.raise_any()

    def make_driver(self, task: str, parts: DriverParts) -> Driver:
        try:
            from evertick.driver.http.driver import HttpDriver
        except ModuleNotFoundError as missing:
            if (missing.name or "").partition(".")[0] == "evertick":
                raise
            raise InvalidSetting(
                f"task {task!r}: http: {missing.name} is not installed; pip install 'evertick[http]'", setting="http"
            ) from None
        return HttpDriver(self, task, parts)

    def _secrets(self) -> Iterator[tuple[str, Secret]]:
        if isinstance(self.url, Secret):
            yield "url", self.url
        for name, value in self.headers.items():
            if isinstance(value, Secret):
                yield f"headers: {name}", value
        if self.bearer is not None:
            yield "bearer", self.bearer
        if self.basic is not None:
            yield "basic: password", self.basic.password
        for each in signing_keys_of(self):
            yield "sign", each

    def _check_method(self, what: str) -> None:
        method = method_of(self)
        if not _METHOD.fullmatch(method) or method in ("CONNECT", "TRACE"):
            raise InvalidSetting(f"{what}: method: {self.method!r:.60} is no method of a job; write one like 'POST'")

    def _check_headers(self, what: str, faults: Faults) -> None:
        if len(self.headers) > _HEADERS_MAX:
            with faults.of("headers"):
                raise InvalidSetting(f"{what}: headers: {len(self.headers)} are more than {_HEADERS_MAX}; send fewer")
            return
        seen: set[str] = set()
        for name, value in self.headers.items():
            with faults.of("headers"):
                _check_header(name, value, seen, f"{what}: headers: {name!r:.60}")
            seen.add(name.lower())

    def _check_who_asks(self, what: str, faults: Faults) -> None:
        chosen = [name for name, given in (("bearer", self.bearer), ("basic", self.basic)) if given is not None]
        chosen += ["headers: Authorization"] if any(name.lower() == "authorization" for name in self.headers) else []
        with faults.of("bearer", "basic", "headers"):
            if len(chosen) > 1:
                raise InvalidSetting(f"{what}: {' and '.join(chosen)} both say who asks; give one of them")
        with faults.of("basic"):
            if self.basic is not None and (":" in self.basic.user or not self.basic.user.isprintable()):
                raise InvalidSetting(f"{what}: basic: user: {self.basic.user!r:.60} must be printable, without ':'")

    def _check_body(self, what: str, faults: Faults) -> None:
        with faults.of("json", "body"):
            if self.json is not None and self.body is not None:
                raise InvalidSetting(f"{what}: json and body both say what is sent; give one of them")
        with faults.of("json"):
            if self.json is not None:
                _check_data(self.json, f"{what}: json")
        with faults.of("body", "headers"):
            if self.body is not None:
                _check_text_body(self.body, content_type_of(self), f"{what}: body")

    def _check_read_limit(self, what: str) -> None:
        if size_bytes(self.read_limit, what=f"{what}: read_limit") > _READ_MAX_BYTES:
            most = size_text(_READ_MAX_BYTES)
            raise InvalidSetting(f"{what}: read_limit: {self.read_limit!r} is more than {most}; write less")

    def _check_sign(self, what: str) -> None:
        if len(signing_keys_of(self)) > _SIGNING_KEYS_MAX or self.sign == ():
            raise InvalidSetting(f"{what}: sign: {len(signing_keys_of(self))} secrets; give 1 to {_SIGNING_KEYS_MAX}")


def method_of(spec: Http) -> str:
    has_body = spec.json is not None or spec.body is not None
    return spec.method.upper() if spec.method is not None else "POST" if has_body else "GET"


def signing_keys_of(spec: Http) -> tuple[Secret, ...]:
    return () if spec.sign is None else (spec.sign,) if isinstance(spec.sign, Secret) else spec.sign


def content_type_of(spec: Http) -> str | None:
    """The type of the body by its headers."""
    values = (value for name, value in spec.headers.items() if name.lower() == "content-type")
    return next((value for value in values if isinstance(value, str)), None)


def escape_of(content_type: str | None) -> Escape:
    """How values are put into a body of this kind."""
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return "json"
    return "form" if kind == "application/x-www-form-urlencoded" else "text"


def check_url(url: str, what: str, *, has_places: bool = False, is_shown: bool = True) -> None:
    """Refuse what is no address of a web server. Not shown: where the address is a secret."""
    shown = f"{url!r:.100}" if is_shown else "what the secret holds"
    if has_places:
        list(places_in(url, what))
    if len(url) > URL_MAX_CHARS:
        raise InvalidSetting(f"{what}: {shown} has more than {URL_MAX_CHARS} characters; send a body instead")
    odd = next((letter for letter in url if letter.isspace() or not letter.isprintable()), None)
    if odd is not None:
        raise InvalidSetting(
            f"{what}: {shown} holds the character {odd!r}; write it as %{ord(odd):02X}, or leave it out"
        )
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise InvalidSetting(f"{what}: {shown} is no address: {error}; write it like 'https://host/path'") from None
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidSetting(f"{what}: {shown} is no address of a web server; write it like 'https://host/path'")
    if "@" in parts.netloc:
        raise InvalidSetting(
            f"{what}: an address with a password in it is shown wherever it is listed; leave 'user:password@' out and "
            "write basic = { user = '…', password = { secret = '…' } }"
        )
    if parts.fragment or port == 0:
        raise InvalidSetting(f"{what}: {shown}: leave out {'the port 0' if port == 0 else 'what follows #'}")
    if "{" in parts.netloc or "}" in parts.netloc:
        raise InvalidSetting(
            f"{what}: {shown}: arguments of a run do not choose the server; write its name, and use places behind it"
        )


def _check_header(name: str, value: str | Secret, seen: Set[str], where: str) -> None:
    if not _HEADER_NAME.fullmatch(name):
        raise InvalidSetting(f"{where} is no name of a header; use letters, digits and '-'")
    if name.lower() in _OWN_HEADERS:
        raise InvalidSetting(f"{where} is not for you to set: {_OWN_HEADERS[name.lower()]}; leave it out")
    if name.lower() in seen:
        raise InvalidSetting(f"{where} is there twice, in other letters; give it once")
    if isinstance(value, str):
        _check_text(value, where, _HEADER_MAX_CHARS)


def _check_text_body(body: str, kind: str | None, what: str) -> None:
    if len(body.encode(errors="surrogatepass")) > BODY_MAX_BYTES:
        raise InvalidSetting(f"{what}: it takes more than {BODY_MAX_BYTES} bytes; send a reference instead")
    list(places_in(body, what))
    if escape_of(kind) == "json" and not _is_json(body):
        raise InvalidSetting(
            f"{what}: it is not JSON, although its Content-Type is {kind!r}; write the data as json = …"
        )
    if kind is None and _is_json(body) and body.lstrip()[:1] in ("{", "["):
        raise InvalidSetting(
            f"{what}: it is JSON, and nothing says so; write it as json = …, or add the header Content-Type"
        )


def _check_text(text: str, what: str, most: int) -> None:
    if len(text) > most:
        raise InvalidSetting(f"{what}: {len(text)} characters are more than {most}; send a shorter text")
    odd = next((letter for letter in text if not (" " <= letter <= "~" or letter == "\t")), None)
    if odd is not None:
        raise InvalidSetting(f"{what}: the character {odd!r} cannot be in a header; write plain ASCII")
    list(places_in(text, what))


def _check_data(data: Any, what: str) -> None:
    try:
        size = len(msgspec.json.encode(data))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidSetting(f"{what}: it is no JSON-like data: {error}") from None
    if size > BODY_MAX_BYTES:
        raise InvalidSetting(f"{what}: it takes {size} bytes, more than {BODY_MAX_BYTES}; send a reference instead")
    for text in _texts_in(data):
        list(places_in(text, what))


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
    """Whether it is JSON once its places are filled."""
    try:
        msgspec.json.decode(Template(text, "json", "body").tried_out())
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True


def _check_span(value: float | str, what: str, least: int, most: int) -> None:
    us = duration_us(value, what=what)
    if not least <= us <= most:
        shortest, longest = duration_text(least) if least else "0s", duration_text(most)
        raise InvalidSetting(f"{what}: {value!r} must be between {shortest} and {longest}")


def _check_whole(value: int, what: str, least: int, most: int) -> None:
    if isinstance(value, bool) or not least <= value <= most:
        raise InvalidSetting(f"{what}: {value!r} must be a whole number from {least} to {most}")


# --- expectations


def _check_expect(expect: HttpExpect, what: str, faults: Faults) -> None:
    with faults.of("expect"):
        statuses_of(expect.status, f"{what}: status")
    for name, text in (("contains", expect.contains), ("matches", expect.matches)):
        with faults.of("expect"):
            if text is not None and not 1 <= len(text) <= _EXPECT_MAX_CHARS:
                raise InvalidSetting(f"{what}: {name}: a text of 1 to {_EXPECT_MAX_CHARS} characters is looked for")
    with faults.of("expect"):
        _check_pattern(expect.matches, f"{what}: matches")
    with faults.of("expect"):
        if len(expect.json) > _CHECKS_MAX:
            raise InvalidSetting(f"{what}: json: {len(expect.json)} checks are more than {_CHECKS_MAX}; keep the best")
    for pointer in expect.json:
        with faults.of("expect"):
            if pointer and not pointer.startswith("/"):
                raise InvalidSetting(
                    f"{what}: json: {pointer!r:.60} is no JSON pointer; write it like '/{pointer:.60}'"
                )


def _check_pattern(pattern: str | None, what: str) -> None:
    if pattern is None:
        return
    if "\0" in pattern:
        raise InvalidSetting(f"{what}: a zero is not looked for; leave it out")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidSetting(f"{what}: {pattern[:_SHOWN_MAX_CHARS]!r} is no regular expression: {error}") from None


def statuses_of(given: int | str | tuple[int | str, ...], what: str) -> frozenset[int]:
    """All codes that are meant."""
    several = given if isinstance(given, tuple) else (given,)
    if not several:
        raise InvalidSetting(f"{what}: no status at all is no answer; write ['2xx']")
    found: set[int] = set()
    for each in several:
        found |= _codes(each, what)
    return frozenset(found)


def _codes(given: int | str, what: str) -> set[int]:
    text = str(given).strip()
    if re.fullmatch(r"[1-5]\d\d", text) and not isinstance(given, bool):
        return {int(text)}
    if found := _CLASS.fullmatch(text):
        return set(range(int(found[1]) * 100, int(found[1]) * 100 + 100))
    if (found := _RANGE.fullmatch(text)) and int(found[1]) <= int(found[2]):
        return set(range(int(found[1]), int(found[2]) + 1))
    raise InvalidSetting(f"{what}: {given!r:.60} is no status; write 204, '2xx' or '200-204'")


async def expectation_error(expect: HttpExpect, body: str, threads: Threads, excerpt: Excerpt) -> str | None:
    """Why the body is not what is expected; None when it is."""
    wanted = Checks(expect.contains, expect.matches, expect.json)
    if wanted == _NOTHING:
        return None
    if expect.matches is None and len(body) <= _LOOKED_THROUGH_HERE:
        missed = check(wanted, body)
    else:
        missed = await threads.call(lambda: check_apart(wanted, body))
    return None if missed is None else _words(missed, expect, excerpt)


def _words(missed: CheckFailure, expect: HttpExpect, excerpt: Excerpt) -> str:
    match missed.what:
        case "contains":
            return f"its body does not contain {(expect.contains or '')[:_SHOWN_MAX_CHARS]!r}"
        case "matches":
            return f"its body does not match {(expect.matches or '')[:_SHOWN_MAX_CHARS]!r}"
        case "no json":
            return f"its body is no JSON: {missed.text}"
        case "absent":
            return f"its body has nothing at {missed.pointer!r}"
        case "unequal":
            shown = excerpt(missed.text, _SHOWN_MAX_CHARS, is_cut=missed.is_cut)
            wanted = msgspec.json.encode(expect.json[missed.pointer]).decode()[:_SHOWN_MAX_CHARS]
            return f"its body has {shown} at {missed.pointer!r}, not {wanted}"
        case "endless" if expect.matches is not None:
            return (
                f"whether its body matches {expect.matches[:_SHOWN_MAX_CHARS]!r} was not found out within "
                f"{CHECK_SECONDS} s; write a simpler expression, without repeats within repeats"
            )
        case "endless":
            return (
                f"whether its body is what is expected was not found out within {CHECK_SECONDS} s; lower read_limit, "
                "or have the server send less"
            )
        case _:
            assert_never(missed.what)
