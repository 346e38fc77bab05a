"""The driver of HTTP jobs: makes the request of an `Http(...)` specification.

The response becomes the result of the run, or its error if it is not the expected one. Both are masked, because a
server may echo secrets of the request.
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from evertick.clock import system_clock
from evertick.driver.http.address import AllowedAddresses, Resolver, parse_allowed, system_resolver
from evertick.driver.http.exchange import Exchange, Response, charset_of, decoded, tls_context
from evertick.driver.http.request import OutgoingRequest, make_request
from evertick.driver.http.spec import Http, HttpSettings, expectation_error, method_of, statuses_of
from evertick.driver.secret import Secret
from evertick.driver.spec import DriverParts
from evertick.errors import JobFailed, Refused, Retry
from evertick.job.arguments import FreeArguments
from evertick.job.context import Context, record_of
from evertick.text.byte_size import size_bytes
from evertick.when.duration import duration_text, duration_us
from evertick.when.moment import SECOND

__all__ = ["HttpDriver"]

# A result has at most 64 KiB of JSON, where a character may take six bytes.
_KEPT_MAX_CHARS = 8_192
_SHOWN_MAX_CHARS = 2_000
_PHRASE_MAX_CHARS = 100
_MOMENT_MAX_CHARS = 100
# A longer body is decoded in a thread.
_DECODED_HERE_BYTES = 64 * 1024
_BUSY = (429, 503)
# A server that answers `Retry-After: 0` often repeats it.
_RETRY_AFTER_MIN = SECOND
_KEPT_HEADERS = ("content-type", "content-length", "date", "etag", "last-modified", "retry-after")


class HttpDriver:
    """Makes the request of one task."""

    name = "http"
    can_be_cancelled = True
    kill_after = 0

    def __init__(self, spec: Http, task: str, parts: DriverParts, look_up: Resolver | None = None) -> None:
        self._spec, self._task, self._parts = spec, task, parts
        self._arguments = FreeArguments(task)
        self._look_up = look_up or system_resolver(parts.threads)
        self._statuses = statuses_of(spec.expect.status, f"task {task!r}: http: expect: status")
        self._retry_after_max = max(duration_us(spec.retry_after_max, what="retry_after_max"), _RETRY_AFTER_MIN)
        if spec.ca is not None:
            tls_context(spec.ca)

    def prepare(self, args: bytes) -> dict[str, Any]:
        return self._arguments.decode(args)

    async def execute(self, context: Context, arguments: dict[str, Any]) -> dict[str, Any] | None:
        if record_of(context).clock is not system_clock:
            # Virtual time: a test of schedules must not call real servers.
            context.log(f"not sent in virtual time: {method_of(self._spec)} {_target(self._spec)}")
            return None
        parts, started_at = self._parts, record_of(context).clock.elapsed()
        outgoing = make_request(self._spec, context, arguments, parts.app, parts.resolve_secret)
        try:
            response = await self._exchange(context).carry_out(outgoing)
        except (JobFailed, Refused) as error:
            raise _masked(error, outgoing) from None
        seconds = round(record_of(context).clock.elapsed() - started_at, 6)
        cut = " (cut at read_limit)" if response.is_cut else ""
        size = f"{len(response.body)} bytes{cut}"
        outcome = f"{_status(outgoing, response)} from {response.address} after {seconds:.3g} s, {size}"
        context.log(outgoing.hide(f"{outgoing.method} {response.shown}: {outcome}"))
        text = await self._text(response)
        result = record_of(context).fallback_result = _result(outgoing, response, text, seconds)
        await self._check(outgoing, response, text, context, result)
        return result

    async def _text(self, response: Response) -> str:
        charset = charset_of(response.headers)
        if len(response.body) <= _DECODED_HERE_BYTES:
            return decoded(response.body, charset)
        return str(await self._parts.threads.call(lambda: decoded(response.body, charset)))

    def _exchange(self, context: Context) -> Exchange:
        spec, node = self._spec, _node_settings(self._parts)
        return Exchange(
            allowed=parse_allowed(spec.allow, "allow") | _allowed_by(node),
            look_up=self._look_up,
            ca=spec.ca or node.ca,
            timeout=duration_us(spec.timeout, what="timeout") / SECOND,
            redirects=spec.redirects,
            read_limit=size_bytes(spec.read_limit, what="read_limit"),
            awaited=self._statuses,
            begin_phase=record_of(context).begin_phase,
        )

    async def _check(
        self, outgoing: OutgoingRequest, response: Response, text: str, context: Context, result: object
    ) -> None:
        request, expect = outgoing.hide(f"{outgoing.method} {response.shown}"), self._spec.expect
        status = _status(outgoing, response)
        if response.status not in self._statuses:
            body = _quoted(outgoing, response, text)
            asked = _retry_after(response, record_of(context).clock.now_us()) if response.status in _BUSY else None
            if asked is None:
                raise JobFailed(f"{request}: unexpected status {status}{body}", result=result)
            wait = min(max(asked, _RETRY_AFTER_MIN), self._retry_after_max)
            raise Retry(f"{request}: {status}, retry after {duration_text(wait)}{body}", after=wait / SECOND)
        mismatch = await expectation_error(expect, text, self._parts.threads, outgoing.excerpt)
        if mismatch is not None:
            cut = f" (only the first {len(response.body)} bytes are read; see read_limit)" if response.is_cut else ""
            body = _quoted(outgoing, response, text)
            raise JobFailed(f"{request}: {status}, but {outgoing.hide(mismatch)}{cut}{body}", result=result)


def _masked(error: JobFailed | Refused, outgoing: OutgoingRequest) -> JobFailed | Refused:
    """The error without secrets, which a server may repeat in a redirect."""
    fields = {"setting": error.setting, "value": error.value, "fix": error.fix}
    hidden = {name: text if text is None else outgoing.hide(text) for name, text in fields.items()}
    return type(error)(outgoing.hide(error.problem), **hidden)


def _target(spec: Http) -> str:
    """The URL without its query, which often holds keys."""
    if isinstance(spec.url, Secret):
        return f"to the URL in secret {spec.url.name!r}"
    path, mark, _ = spec.url.partition("?")
    return f"{path}{mark}…" if mark else path


def _node_settings(parts: DriverParts) -> HttpSettings:
    """The HTTP settings of the node; the section of a configuration has fields of the same names."""
    section = parts.connections.get("http")
    if section is None or isinstance(section, HttpSettings):
        return section or HttpSettings()
    names = HttpSettings.__struct_fields__
    return HttpSettings(**{name: getattr(section, name) for name in names if hasattr(section, name)})


def _allowed_by(node: HttpSettings) -> AllowedAddresses:
    return parse_allowed(node.allow, "http: allow", is_private=node.allow_private)


def _status(outgoing: OutgoingRequest, response: Response) -> str:
    return f"{response.status} {outgoing.excerpt(response.phrase, _PHRASE_MAX_CHARS)}".rstrip()


def _quoted(outgoing: OutgoingRequest, response: Response, text: str) -> str:
    """The beginning of the body, for an error."""
    body = text.strip()
    if not body:
        return ""
    more = "…" if len(body) > _SHOWN_MAX_CHARS or response.is_cut else ""
    return f"; response body:\n{outgoing.excerpt(body, _SHOWN_MAX_CHARS, is_cut=response.is_cut)}{more}"


def _result(outgoing: OutgoingRequest, response: Response, text: str, seconds: float) -> dict[str, Any]:
    return {
        "status": response.status,
        "url": outgoing.hide(response.shown),
        "address": response.address,
        "seconds": seconds,
        "redirects": response.redirects,
        "headers": {
            name: outgoing.hide(response.headers[name])[:500] for name in _KEPT_HEADERS if name in response.headers
        },
        "body": outgoing.excerpt(text, _KEPT_MAX_CHARS, is_cut=response.is_cut),
        "is_cut": response.is_cut or len(text) > _KEPT_MAX_CHARS,
    }


def _retry_after(response: Response, now_us: int) -> int | None:
    """The Retry-After header in microseconds. It holds seconds or a date."""
    text = response.headers.get("retry-after", "").strip()
    if len(text) > _MOMENT_MAX_CHARS:
        return None
    if text.isascii() and text.isdigit():
        return int(text[:9]) * SECOND
    until = _moment(text)
    if until is None:
        return None
    # The server's clock counts, if it sends its time.
    now = _moment(response.headers.get("date", "")[:_MOMENT_MAX_CHARS]) or datetime.fromtimestamp(now_us / SECOND, UTC)
    return max(round((until - now).total_seconds() * SECOND), 0)


def _moment(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
