"""The request of one attempt: the specification, filled with what the run knows, its secrets looked up, and signed.

Signed as the Standard Webhooks specification has it, so that its libraries can check it in any language: HMAC-SHA256
over `id.timestamp.body`, with the run's id and the seconds since 1970, in `webhook-signature: v1,<base64>`.
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
# Left as they are in a header's value: printable ASCII.
_SAFE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


class OutgoingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it goes out. It holds secrets: it is never shown."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes
    # Names of headers, in small letters, that only the server may see that the request was written for.
    confidential: frozenset[str] = frozenset()
    # Values that must not be shown wherever they turn up: in an answer that repeats them, in an error.
    secrets: tuple[str, ...] = ()
    is_url_secret: bool = False

    def __repr__(self) -> str:
        return f"<OutgoingRequest {self.method}>"

    def hide(self, text: str) -> str:
        """The text without the secrets of this request. It must be whole: a half of one is not recognised."""
        for secret in self.secrets:
            text = text.replace(secret, _HIDDEN)
        return text

    def excerpt(self, text: str, most: int, *, is_cut: bool = False) -> str:
        """Up to so many characters of a text, without secrets and without the first part of one at the cut."""
        if len(text) <= most and not is_cut:
            return self.hide(text)[:most]
        # A cut inside of a character was decoded to a replacement character, which is in no secret.
        data = text[:most].rstrip("\ufffd").encode(errors="surrogatepass")
        # The mask holds the possible beginning of a secret back.
        return Mask(self.secrets).take(data).decode(errors="surrogatepass")[:most]


class _SecretValues:
    """Looks secrets up, and remembers their values, which must not be shown."""

    def __init__(self, resolve: Callable[[str], str]) -> None:
        self._resolve = resolve
        self.values: list[str] = []

    def value(self, secret: Secret) -> str:
        found = self._resolve(secret.name)
        self.values.append(found)
        return found

    def hide_parts(self, url: str) -> None:
        """The parts of a secret address: a server repeats them without its own name."""
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
        _refuse_steps(url, f"{what}: url")
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
        # The longest first: one may be a part of another.
        secrets=tuple(sorted(set(secrets.values), key=len, reverse=True)),
        is_url_secret=isinstance(spec.url, Secret),
    )


def signature(keys: Sequence[str], id_: str, seconds: int, body: bytes) -> dict[str, str]:
    """The three headers of a signed request. Of several keys the receiver needs one: so they can be exchanged."""
    signed = b".".join((id_.encode(), str(seconds).encode(), body))
    digests = [hmac.new(_key_bytes(key), signed, hashlib.sha256).digest() for key in keys]
    return {
        "webhook-id": id_,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests),
    }


def _key_bytes(key: str) -> bytes:
    """`whsec_` is followed by base64, as the receivers' libraries have it; any other text is the key itself."""
    if not key.startswith(_KEY_PREFIX):
        return key.encode()
    try:
        return base64.b64decode(key.removeprefix(_KEY_PREFIX), validate=True)
    except binascii.Error:
        raise JobFailed(
            "http: sign: the secret begins with 'whsec_' and does not go on in base64; set it anew"
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
        # Reading is bounded, so a small body should not unpack to a large one.
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


def _refuse_steps(url: str, what: str) -> None:
    """An argument must not lead out of the folder that the address has it in, as /items/../admin does."""
    if any(part in (".", "..") for part in urlsplit(url).path.split("/")):
        raise InvalidArguments(
            f"{what}: with these arguments its path has a '.' or '..' between slashes; name it whole"
        )


def _body(spec: Http, values: dict[str, Any], what: str) -> tuple[bytes, str | None]:
    """The body, and what it is if the headers do not say so."""
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
            f"{what}: the body takes {len(body)} bytes, more than {BODY_MAX_BYTES}; send a reference"
        )
    return body, None if named is not None else kind


def _header(name: str, value: str | Secret, values: dict[str, Any], secrets: _SecretValues, what: str) -> str:
    where = f"{what}: headers: {name!r}"
    filled = secrets.value(value) if isinstance(value, Secret) else Template(value, "text", where).fill(values)
    if not all(" " <= letter <= "~" or letter == "\t" for letter in filled):
        # Not shown, for it may be a secret. With a line break in it a value could add headers of its own.
        raise InvalidArguments(f"{where}: its value holds a character that cannot be in a header; use plain ASCII")
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


def _merged(ours: dict[str, str], theirs: dict[str, str]) -> dict[str, str]:
    """Ours, unless they wrote the same header themselves, in whatever letters."""
    written = {name.lower() for name in theirs}
    return {name: value for name, value in ours.items() if name.lower() not in written} | theirs
