"""The request of one attempt: the specification with its placeholders filled, its secrets resolved, and a signature.

Signatures follow the Standard Webhooks specification, so that receivers can use its libraries: HMAC-SHA256 over
`id.timestamp.body`, with the run's id and the Unix time, in `webhook-signature: v1,<base64>`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from evertick.driver.http.spec import (
    BODY_MAX_BYTES,
    Http,
    check_url,
    content_type_of,
    escape_of,
    method_of,
    signing_keys_of,
)
from evertick.driver.http.template import Template, fill
from evertick.driver.secret import Secret
from evertick.driver.shell.output import Mask
from evertick.errors import InvalidArguments, JobFailed
from evertick.job.context import Context, record_of
from evertick.version import VERSION
from evertick.when.moment import moment_text, to_us

__all__ = ["OutgoingRequest", "make_request", "signature"]

_KEY_PREFIX = "whsec_"
_HIDDEN = "***"
# Printable ASCII, which is not percent-encoded in a header's value.
_SAFE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


class OutgoingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request ready to send. It holds secrets, so never log it."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes
    # Lower-case names of headers that are dropped when a redirect leads to another server.
    confidential: frozenset[str] = frozenset()
    # Values to mask in responses and errors.
    secrets: tuple[str, ...] = ()
    is_url_secret: bool = False

    def __repr__(self) -> str:
        return f"<OutgoingRequest {self.method}>"

    def hide(self, text: str) -> str:
        """The text with the secrets of this request masked. A part of a secret is not recognised."""
        for secret in self.secrets:
            text = text.replace(secret, _HIDDEN)
        return text

    def excerpt(self, text: str, most: int, *, is_cut: bool = False) -> str:
        """The first `most` characters, masked, also a secret that is cut off at the end."""
        if len(text) <= most and not is_cut:
            return self.hide(text)[:most]
        # A cut inside a character was decoded to a replacement character, which is in no secret.
        data = text[:most].rstrip("\ufffd").encode(errors="surrogatepass")
        # The mask withholds a possible beginning of a secret.
        return Mask(self.secrets).take(data).decode(errors="surrogatepass")[:most]


class _SecretValues:
    """Resolves secrets and collects their values, which must be masked."""

    def __init__(self, resolve: Callable[[str], str]) -> None:
        self._resolve = resolve
        self.values: list[str] = []

    def value(self, secret: Secret) -> str:
        value = self._resolve(secret.name)
        self.values.append(value)
        return value

    def hide_parts(self, url: str) -> None:
        """Mask also the parts of a secret URL: a server may repeat them without its host name."""
        parts = urlsplit(url)
        self.values += [part for part in (f"{parts.path}?{parts.query}", parts.path, parts.query) if len(part) > 1]


def make_request(
    spec: Http, context: Context, arguments: dict[str, Any], app: str, resolve_secret: Callable[[str], str]
) -> OutgoingRequest:
    values, secrets = _values(context, arguments, app), _SecretValues(resolve_secret)
    what = f"task {context.task!r}: http"
    if isinstance(spec.url, Secret):
        url = secrets.value(spec.url)
        check_url(url, f"{what}: url", is_shown=False)
        secrets.hide_parts(url)
    else:
        url = Template(spec.url, "url", f"{what}: url").fill(values)
        _check_path(url, f"{what}: url")
    body, kind = _body(spec, values, what)
    headers = _run_headers(context, app) if spec.run_headers else {}
    if kind is not None:
        headers["Content-Type"] = kind
    own = {name: _header(name, value, values, secrets, what) for name, value in spec.headers.items()}
    own |= _authorization(spec, secrets, what)
    headers = _merged(headers, own)
    confidential = {name.lower() for name, value in spec.headers.items() if isinstance(value, Secret)}
    if spec.sign is not None:
        keys = [secrets.value(secret) for secret in signing_keys_of(spec)]
        headers |= signature(keys, context.run_id, record_of(context).clock.now_us() // 1_000_000, body)
    return OutgoingRequest(
        method=method_of(spec),
        url=url,
        headers=headers,
        body=body,
        confidential=frozenset(confidential | {"authorization", "cookie"}),
        # The longest first, because one may be part of another.
        secrets=tuple(sorted(set(secrets.values), key=len, reverse=True)),
        is_url_secret=isinstance(spec.url, Secret),
    )


def signature(keys: Sequence[str], id_: str, seconds: int, body: bytes) -> dict[str, str]:
    """The three headers of a signed request. The receiver needs only one of the keys, so keys can be rotated."""
    signed = b".".join((id_.encode(), str(seconds).encode(), body))
    digests = [hmac.new(_key_bytes(key), signed, hashlib.sha256).digest() for key in keys]
    return {
        "webhook-id": id_,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests),
    }


def _key_bytes(key: str) -> bytes:
    """Base64 follows `whsec_`, as in the libraries of receivers; any other text is the key itself."""
    if not key.startswith(_KEY_PREFIX):
        return key.encode()
    try:
        return base64.b64decode(key.removeprefix(_KEY_PREFIX), validate=True)
    except binascii.Error:
        raise JobFailed(
            "http: sign: the secret begins with 'whsec_', but the rest is not base64",
            setting="sign",
            fix="set the secret to the complete key",
        ) from None


def _values(context: Context, arguments: dict[str, Any], app: str) -> dict[str, Any]:
    return {
        "run_id": context.run_id,
        "task": context.task,
        "schedule": context.schedule_key,
        "app": app,
        "fire_at": moment_text(to_us(context.fire_at)),
        "due_at": moment_text(to_us(context.due_at)),
        "attempt": context.attempt,
        "fence": context.fence,
        "args": arguments,
    }


def _run_headers(context: Context, app: str) -> dict[str, str]:
    headers = {
        "User-Agent": f"evertick/{VERSION}",
        "Accept": "*/*",
        # The read limit counts decompressed bytes.
        "Accept-Encoding": "identity",
        "Idempotency-Key": context.run_id,
        "Evertick-Run-Id": context.run_id,
        "Evertick-Task": context.task,
        "Evertick-Schedule": context.schedule_key or "",
        "Evertick-Fire-At": moment_text(to_us(context.fire_at)),
        "Evertick-Attempt": str(context.attempt),
        "Evertick-Fence": str(context.fence),
        "Evertick-App": app,
    }
    return {name: quote(value, safe=_SAFE) for name, value in headers.items() if value}


def _check_path(url: str, what: str) -> None:
    """Reject path traversal by an argument, as in /items/../admin."""
    if any(part in (".", "..") for part in urlsplit(url).path.split("/")):
        raise InvalidArguments(
            f"{what}: with these arguments the path has a '.' or '..' segment",
            setting="url",
            fix="pass arguments without such segments",
        )


def _body(spec: Http, values: dict[str, Any], what: str) -> tuple[bytes, str | None]:
    """The body, and its content type if no header sets it."""
    named = content_type_of(spec)
    if spec.json is not None:
        body, kind = msgspec.json.encode(fill(spec.json, values, f"{what}: json")), "application/json"
    elif spec.body is not None:
        filled = Template(spec.body, escape_of(named), f"{what}: body").fill(values)
        body, kind = filled.encode(errors="replace"), "text/plain; charset=utf-8"
    else:
        return b"", None
    if len(body) > BODY_MAX_BYTES:
        raise InvalidArguments(
            f"{what}: the body has {len(body)} bytes, more than {BODY_MAX_BYTES}", fix="send a reference to the data"
        )
    return body, None if named is not None else kind


def _header(name: str, value: str | Secret, values: dict[str, Any], secrets: _SecretValues, what: str) -> str:
    where = f"{what}: headers: {name!r}"
    filled = secrets.value(value) if isinstance(value, Secret) else Template(value, "text", where).fill(values)
    if not all(" " <= letter <= "~" or letter == "\t" for letter in filled):
        # The value may be a secret, so the error omits it. A line break in it could inject headers.
        raise InvalidArguments(
            f"{where}: its value has a character that is not allowed in a header",
            setting="headers",
            fix="use printable ASCII",
        )
    return filled.strip()


def _authorization(spec: Http, secrets: _SecretValues, what: str) -> dict[str, str]:
    if spec.bearer is not None:
        token = _header("Authorization", spec.bearer, {}, secrets, f"{what}: bearer")
        return {"Authorization": f"Bearer {token}"}
    if spec.basic is not None:
        pair = f"{spec.basic.user}:{secrets.value(spec.basic.password)}"
        coded = base64.b64encode(pair.encode()).decode()
        secrets.values.append(coded)
        return {"Authorization": f"Basic {coded}"}
    return {}


def _merged(default: dict[str, str], given: dict[str, str]) -> dict[str, str]:
    """The default headers, replaced by given ones of the same name in any case."""
    names = {name.lower() for name in given}
    return {name: value for name, value in default.items() if name.lower() not in names} | given
