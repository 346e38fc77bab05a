"""Jobs that make HTTP requests: `Http(...)` carried out.

The answer is the result of the run, or its error where it is not the expected one. Neither holds a secret of the
request, though a server may repeat it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from evertick.clock import system_clock
from evertick.driver.http.address import AllowedAddresses, LookUp, allowed_of, look_up_in
from evertick.driver.http.exchange import Exchange, Response, charset_of, decoded, trusting
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

# A result is at most 64 KiB of JSON, where a letter may take six.
_KEPT_MAX_CHARS = 8_192
_SHOWN_MAX_CHARS = 2_000
_PHRASE_MAX_CHARS = 100
_MOMENT_MAX_CHARS = 100
# A longer body is decoded in a thread.
_DECODED_HERE_BYTES = 64 * 1024
_BUSY = (429, 503)
# Servers that ask for a retry at once do so again and again.
_WAIT_LEAST = SECOND
_KEPT_HEADERS = ("content-type", "content-length", "date", "etag", "last-modified", "retry-after")


class HttpDriver:
    """Makes the request of one task."""

    name = "http"
    can_be_cancelled = True
    kill_after = 0

    def __init__(self, spec: Http, task: str, parts: DriverParts, look_up: LookUp | None = None) -> None:
        self._spec, self._task, self._parts = spec, task, parts
        self._arguments = FreeArguments(task)
        self._look_up = look_up or look_up_in(parts.threads)
        self._statuses = statuses_of(spec.expect.status, f"task {task!r}: http: expect: status")
        self._longest_wait = duration_us(spec.retry_after_max, what="retry_after_max")
        if spec.ca is not None:
            trusting(spec.ca)

    def prepare(self, args: bytes) -> dict[str, Any]:
        return self._arguments.decode(args)

    async def execute(self, context: Context, arguments: dict[str, Any]) -> dict[str, Any] | None:
        if record_of(context).clock is not system_clock:
            # A server cannot live in virtual time, and a test of schedules must not call one.
            context.log(f"not sent in virtual time: {method_of(self._spec)} {_written(self._spec)}")
            return None
        parts, began = self._parts, record_of(context).clock.elapsed()
        outgoing = make_request(self._spec, context, arguments, parts.app, parts.resolve_secret)
        try:
            answer = await self._exchange(context).carry_out(outgoing)
        except (JobFailed, Refused) as error:
            # A server may repeat a secret in what it redirects to.
            raise type(error)(outgoing.hide(str(error))) from None
        seconds = round(record_of(context).clock.elapsed() - began, 6)
        more = " read, and there are more" if answer.is_cut else ""
        outcome = (
            f"{_status(outgoing, answer)} from {answer.address} after {seconds:.3g} s, {len(answer.body)} bytes{more}"
        )
        context.log(outgoing.hide(f"{outgoing.method} {answer.shown}: {outcome}"))
        text = await self._text(answer)
        result = record_of(context).kept_result = _result(outgoing, answer, text, seconds)
        await self._check(outgoing, answer, text, context, result)
        return result

    async def _text(self, answer: Response) -> str:
        charset = charset_of(answer.headers)
        if len(answer.body) <= _DECODED_HERE_BYTES:
            return decoded(answer.body, charset)
        return str(await self._parts.threads.call(lambda: decoded(answer.body, charset)))

    def _exchange(self, context: Context) -> Exchange:
        spec, node = self._spec, _node_settings(self._parts)
        return Exchange(
            allowed=allowed_of(spec.allow, "allow") | _allowed_by(node),
            look_up=self._look_up,
            ca=spec.ca or node.ca,
            timeout=duration_us(spec.timeout, what="timeout") / SECOND,
            redirects=spec.redirects,
            read_limit=size_bytes(spec.read_limit, what="read_limit"),
            awaited=self._statuses,
            begin_phase=record_of(context).begin_phase,
        )

    async def _check(
        self, outgoing: OutgoingRequest, answer: Response, text: str, context: Context, result: object
    ) -> None:
        doing, expect = outgoing.hide(f"{outgoing.method} {answer.shown}"), self._spec.expect
        if answer.status not in self._statuses:
            outcome = _quoted(outgoing, answer, text)
            asked = _asked_to_wait(answer, record_of(context).clock.now_us()) if answer.status in _BUSY else None
            if asked is None:
                raise JobFailed(f"{doing}: {_status(outgoing, answer)}, which is not expected{outcome}", result=result)
            wait = min(max(asked, _WAIT_LEAST), max(self._longest_wait, _WAIT_LEAST))
            raise Retry(
                f"{doing}: {_status(outgoing, answer)}, and to be asked again after {duration_text(wait)}{outcome}",
                after=wait / SECOND,
            )
        wrong = await expectation_error(expect, text, self._parts.threads, outgoing.excerpt)
        if wrong is not None:
            cut = f" (only the first {len(answer.body)} bytes are read; see read_limit)" if answer.is_cut else ""
            outcome = f"{_status(outgoing, answer)}, but {outgoing.hide(wrong)}{cut}{_quoted(outgoing, answer, text)}"
            raise JobFailed(f"{doing}: {outcome}", result=result)


def _written(spec: Http) -> str:
    """The address as the job has it, without what follows the question mark: people put keys there."""
    if isinstance(spec.url, Secret):
        return f"to the address in the secret {spec.url.name!r}"
    path, mark, _ = spec.url.partition("?")
    return f"{path}{mark}…" if mark else path


def _node_settings(parts: DriverParts) -> HttpSettings:
    """Of the configuration, whose section has the same names."""
    found = parts.connections.get("http")
    if found is None or isinstance(found, HttpSettings):
        return found or HttpSettings()
    named = HttpSettings.__struct_fields__
    return HttpSettings(**{name: getattr(found, name) for name in named if hasattr(found, name)})


def _allowed_by(node: HttpSettings) -> AllowedAddresses:
    return allowed_of(node.allow, "http: allow", is_private=node.allow_private)


def _status(outgoing: OutgoingRequest, answer: Response) -> str:
    return f"{answer.status} {outgoing.excerpt(answer.phrase, _PHRASE_MAX_CHARS)}".rstrip()


def _quoted(outgoing: OutgoingRequest, answer: Response, text: str) -> str:
    """The beginning of the body, for the error."""
    whole = text.strip()
    if not whole:
        return ""
    more = "…" if len(whole) > _SHOWN_MAX_CHARS or answer.is_cut else ""
    return f"; it says:\n{outgoing.excerpt(whole, _SHOWN_MAX_CHARS, is_cut=answer.is_cut)}{more}"


def _result(outgoing: OutgoingRequest, answer: Response, text: str, seconds: float) -> dict[str, Any]:
    return {
        "status": answer.status,
        "url": outgoing.hide(answer.shown),
        "address": answer.address,
        "seconds": seconds,
        "redirects": answer.redirects,
        "headers": {
            name: outgoing.hide(answer.headers[name])[:500] for name in _KEPT_HEADERS if name in answer.headers
        },
        "body": outgoing.excerpt(text, _KEPT_MAX_CHARS, is_cut=answer.is_cut),
        "is_cut": answer.is_cut or len(text) > _KEPT_MAX_CHARS,
    }


def _asked_to_wait(answer: Response, now_us: int) -> int | None:
    """Its Retry-After in microseconds: in seconds there, or as a moment."""
    text = answer.headers.get("retry-after", "").strip()
    if len(text) > _MOMENT_MAX_CHARS:
        return None
    if text.isascii() and text.isdigit():
        return int(text[:9]) * SECOND
    until = _moment(text)
    if until is None:
        return None
    # By its own clock, if it shows it.
    now = _moment(answer.headers.get("date", "")[:_MOMENT_MAX_CHARS]) or datetime.fromtimestamp(now_us / SECOND, UTC)
    return max(round((until - now).total_seconds() * SECOND), 0)


def _moment(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
