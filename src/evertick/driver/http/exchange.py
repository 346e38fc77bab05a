"""One HTTP exchange: a request and its redirects, each to a checked address, within one deadline.

Each request uses a new connection to an address that was just checked. The Host header and the certificate check use
the host name. Proxies from the environment are ignored, because the addresses behind a proxy cannot be checked.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import ssl
import zlib
from collections.abc import AsyncIterable, Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpcore
import httpx
import msgspec

from evertick.driver.http.address import Address, AllowedAddresses, Resolver, allowed_addresses
from evertick.driver.http.request import OutgoingRequest
from evertick.driver.http.spec import URL_MAX_CHARS
from evertick.errors import InvalidSetting, JobFailed
from evertick.job.context import OpenPhase
from evertick.text.regular_file import open_regular

__all__ = ["Exchange", "Response", "charset_of", "decoded", "tls_context"]

_FOLLOWED = (301, 302, 303, 307, 308)
_REPEATED_METHODS = ("GET", "HEAD")
# A signature is for one body and one server, so a redirect that changes either drops it.
_SIGNATURE = frozenset(("webhook-id", "webhook-timestamp", "webhook-signature"))
_ANY_ZLIB = 32 + zlib.MAX_WBITS
_PORTS = {"http": 80, "https": 443}
# The text of the network library for every failure to connect; its cause has the reason.
_ATTEMPTS = "All connection attempts failed"
_SHOWN_MAX_CHARS = 500
_HOST_MAX_CHARS = 100
# Sizes of one step: of a read, before the event loop gets a turn, of decompressing, of decoding.
_READ_BYTES = 16 * 1024
_PIECES_AT_ONCE = 100
_UNPACKED_AT_ONCE = 1024 * 1024
_DECODED_AT_ONCE = 64 * 1024
# Limits of the headers, including those of 1xx responses.
_HEAD_MAX_BYTES = 64 * 1024
_HEAD_MAX_LINES = 500
# The limit of bytes received for a body: these times its read limit plus these. Chunk headers and empty compressed
# blocks count, too.
_BODY_FRAMING_TIMES = 4
_BODY_FRAMING_BYTES = 512 * 1024
_EMPTY_LINE = re.compile(rb"\n\r?\n")
# The codecs of web pages, by the names that servers send.
_CHARSETS = {
    **{name: name for name in ("utf-8", "utf-16", "utf-16le", "utf-16be", "us-ascii", "koi8-r", "koi8-u", "tis-620")},
    **{name: name for name in ("gb2312", "gbk", "gb18030", "big5", "big5-hkscs", "euc-kr", "euc-jp", "iso-2022-jp")},
    **{f"iso-8859-{part}": f"iso-8859-{part}" for part in range(1, 17) if part != 12},
    **{f"{kind}{page}": f"cp{page}" for page in range(1250, 1259) for kind in ("windows-", "cp")},
    **dict.fromkeys(("latin1", "latin-1", "iso8859-1"), "iso-8859-1"),
    **dict.fromkeys(("shift-jis", "sjis", "x-sjis", "windows-31j", "ms932"), "cp932"),
    **dict.fromkeys(("ks-c-5601-1987", "windows-949"), "cp949"),
    **dict.fromkeys(("ibm866", "cp866"), "cp866"),
    "utf8": "utf-8",
    "ascii": "us-ascii",
    "macintosh": "mac-roman",
}


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """The response of a server, up to the read limit."""

    status: int
    phrase: str
    # By lower-case names.
    headers: dict[str, str]
    body: bytes
    # Whether the body was longer.
    is_cut: bool
    # The final URL without secrets.
    shown: str
    address: str
    # The number of followed redirects.
    redirects: int


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """Sends the requests of one task."""

    allowed: AllowedAddresses
    look_up: Resolver
    ca: str | None
    timeout: float
    redirects: int
    read_limit: int
    # Expected statuses: a redirect with one of them is not followed.
    awaited: frozenset[int]
    begin_phase: Callable[[str], OpenPhase]

    async def carry_out(self, outgoing: OutgoingRequest) -> Response:
        """Return the response. Raises JobFailed if there is none, Refused if an address is not allowed."""
        try:
            hop = _Hop(outgoing, f"{outgoing.method} {_shown(outgoing)}", self.begin_phase)
        except (httpx.InvalidURL, ValueError):
            raise JobFailed(
                f"{outgoing.method}: the url is not valid", setting="url", fix="write it like 'https://host/path'"
            ) from None
        try:
            async with asyncio.timeout(self.timeout) as deadline:
                until = deadline.when()
                assert until is not None
                for count in range(self.redirects + 1):
                    response = await self._ask(hop, until, count)
                    if response.status in self.awaited or not self.redirects:
                        return response
                    redirected = _redirected(hop.outgoing, response)
                    if redirected is None:
                        return response
                    hop.outgoing, hop.label = redirected, f"{redirected.method} {_shown(redirected)}"
        except TimeoutError:
            raise JobFailed(f"{hop.label}: timed out after {self.timeout:g} s while {hop.stage}") from None
        finally:
            hop.end(is_failed=True)
        raise JobFailed(
            f"{hop.label}: more than {self.redirects} redirects",
            setting="redirects",
            value=str(self.redirects),
            fix="correct the url, or raise redirects",
        )

    async def _ask(self, hop: _Hop, until: float, count: int) -> Response:
        """Send one request to the first address that accepts the connection."""
        url = httpx.URL(hop.outgoing.url)
        host = url.raw_host.decode("ascii")
        hop.enter("connect", f"resolving {host!r}")
        try:
            resolved = await self.look_up(host)
        except OSError as error:
            raise JobFailed(f"{hop.label}: {host!r} cannot be resolved: {_cause(error)}") from None
        except UnicodeError:
            name = hop.outgoing.excerpt(repr(host), _HOST_MAX_CHARS)
            raise JobFailed(f"{hop.label}: {name} is not a valid host name", setting="url", value=name) from None
        addresses = allowed_addresses(host, resolved, self.allowed)
        failure = ""
        for position, address in enumerate(addresses):
            hop.enter("connect", f"connecting to {address}", address=str(address))
            # An address that drops packets must leave the others their share of the time.
            share = (until - asyncio.get_running_loop().time()) / (len(addresses) - position)
            try:
                return await self._request(hop, url, address, max(share, 0.001), count)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = f"cannot connect to {_with_port(address, url)}: {_cause(error)}"
                hop.end(is_failed=True)
            except (httpcore.NetworkError, httpcore.ProtocolError, zlib.error) as error:
                # The text may repeat a line from the server.
                failure = f"failed while {hop.stage}: {hop.outgoing.excerpt(_cause(error), _SHOWN_MAX_CHARS)}"
                break  # the server may have received the request, so it is not sent to another address
        raise JobFailed(f"{hop.label}: {failure}")

    async def _request(self, hop: _Hop, url: httpx.URL, address: Address, connect: float, count: int) -> Response:
        outgoing, received = hop.outgoing, _ReceivedBytes(self.read_limit)
        backend = _ToAddress(address, received)

        async def listen(event: str, _: object) -> None:
            if event == "http11.send_request_headers.started":
                hop.enter("wait", f"waiting for a response from {address}")

        pool = httpcore.AsyncConnectionPool(ssl_context=tls_context(self.ca), network_backend=backend)
        try:
            response = await pool.handle_async_request(
                httpcore.Request(
                    outgoing.method,
                    httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                    headers=_head(outgoing, url),
                    content=outgoing.body,
                    extensions={
                        "timeout": {"connect": connect},
                        "sni_hostname": url.raw_host.decode("ascii").rstrip("."),
                        "trace": listen,
                    },
                )
            )
            received.has_head = True
            hop.end(status=response.status)
            hop.enter("read", "reading the response")
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
            body, is_cut = await _read(response.aiter_stream(), headers, self.read_limit)
            hop.end(bytes=len(body), **({"is_cut": True} if is_cut else {}))
        finally:
            await backend.close()
        phrase = response.extensions.get("reason_phrase", b"").decode("latin-1")
        return Response(
            status=response.status,
            phrase=phrase,
            headers=headers,
            body=body,
            is_cut=is_cut,
            shown=_shown(outgoing),
            address=str(address),
            redirects=count,
        )


class _ToAddress(httpcore.AnyIOBackend):
    """Connects to a given address instead of the host name, and closes all its connections; httpcore leaves one open
    whose TLS handshake is interrupted."""

    def __init__(self, address: Address, received: _ReceivedBytes) -> None:
        self._address = str(address)
        self._received = received
        self._opened: list[httpcore.AsyncNetworkStream] = []

    async def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *args: Any, **options: Any
    ) -> httpcore.AsyncNetworkStream:
        stream = await super().connect_tcp(self._address, port, timeout, *args, **options)
        self._opened.append(stream)
        return _Stream(stream, self._received)

    async def close(self) -> None:
        for stream in self._opened:
            await stream.aclose()


class _ReceivedBytes:
    """Limits the received bytes: endless 1xx responses, headers or chunks would block the event loop."""

    def __init__(self, read_limit: int) -> None:
        self._body_max = _BODY_FRAMING_TIMES * read_limit + _BODY_FRAMING_BYTES
        self._head = self._lines = self._body = 0
        self._last = b""
        self.has_head = False

    def count(self, data: bytes) -> None:
        if self.has_head:
            self._body += len(data)
            if self._body > self._body_max:
                raise httpcore.RemoteProtocolError("the server sent far more chunk headers or padding than body")
            return
        self._head += len(data)
        # Lines after an empty line may belong to the body.
        empty_line = _EMPTY_LINE.search(self._last + data)
        end = len(data) if empty_line is None else max(empty_line.end() - len(self._last), 0)
        self._lines += data.count(b"\n", 0, end)
        self._last = data[-3:]
        if self._lines > _HEAD_MAX_LINES:
            raise httpcore.RemoteProtocolError(f"the server sent more than {_HEAD_MAX_LINES} lines of headers")
        if self._head > _HEAD_MAX_BYTES:
            raise httpcore.RemoteProtocolError(f"the server sent more than {_HEAD_MAX_BYTES // 1024} KiB of headers")


class _Stream(httpcore.AsyncNetworkStream):
    """A connection that reads in small, counted parts."""

    def __init__(self, stream: httpcore.AsyncNetworkStream, received: _ReceivedBytes) -> None:
        self._stream, self._received = stream, received

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._stream.read(min(max_bytes, _READ_BYTES), timeout)
        self._received.count(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._stream.start_tls(ssl_context, server_hostname, timeout), self._received)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Hop:
    """The current request of an exchange: its stage, for errors, and its open phase."""

    def __init__(self, outgoing: OutgoingRequest, label: str, begin_phase: Callable[[str], OpenPhase]) -> None:
        self.outgoing, self.label, self.stage = outgoing, label, "starting"
        self._begin_phase = begin_phase
        self._name = ""
        self._phase: OpenPhase | None = None

    def enter(self, phase: str, stage: str, **metadata: object) -> None:
        """Begin a stage of the open phase, or of a new one."""
        self.stage = stage
        if self._phase is None or self._name != phase:
            self.end()
            self._name, self._phase = phase, self._begin_phase(phase)
        self._phase.metadata |= metadata

    def end(self, *, is_failed: bool = False, **metadata: object) -> None:
        phase, self._phase = self._phase, None
        if phase is not None:
            phase.metadata |= metadata
            phase.end(is_failed=is_failed)


def tls_context(ca: str | None) -> ssl.SSLContext:
    """A TLS context that trusts the certificates of the system, or only those in the file."""
    try:
        if ca is not None:
            os.close(open_regular(ca))  # the ssl module would block on a named pipe
        return _context(ca, None if ca is None else Path(ca).stat().st_mtime_ns)
    except (OSError, ssl.SSLError) as error:
        raise InvalidSetting(
            f"http: ca: the certificates in {ca!r} cannot be read: {_cause(error)}",
            setting="ca",
            value=repr(ca),
            fix="name a file in PEM format",
        ) from None


# The time of the last change is part of the key: certificates are renewed while a node runs.
@lru_cache(maxsize=16)
def _context(ca: str | None, _changed_ns: int | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca)


def _head(outgoing: OutgoingRequest, url: httpx.URL) -> list[tuple[str, str]]:
    head = [("Host", url.netloc.decode("ascii")), *outgoing.headers.items(), ("Connection", "close")]
    if outgoing.body or outgoing.method not in ("GET", "HEAD", "OPTIONS", "DELETE"):
        head.append(("Content-Length", str(len(outgoing.body))))
    return head


async def _read(stream: AsyncIterable[bytes], headers: Mapping[str, str], most: int) -> tuple[bytes, bool]:
    """The first `most` bytes of the decompressed body, and whether there are more. The rest is not decompressed."""
    is_packed = headers.get("content-encoding", "").lower() in ("gzip", "x-gzip", "deflate")
    unpack = zlib.decompressobj(_ANY_ZLIB) if is_packed else None
    body, pieces = bytearray(), 0
    async for chunk in stream:
        rest = chunk
        while rest:
            pieces += 1
            if pieces % _PIECES_AT_ONCE == 0:
                await asyncio.sleep(0)  # buffered data arrives without yielding to the event loop
            if unpack is None:
                body, rest = body + rest[: most + 1 - len(body)], b""
            else:
                body += unpack.decompress(rest, min(most + 1 - len(body), _UNPACKED_AT_ONCE))
                rest = unpack.unconsumed_tail
            if len(body) > most:
                return bytes(body[:most]), True
            if unpack is not None and unpack.eof:
                return bytes(body), False  # bytes after the end of the stream are not part of the body
    return bytes(body), False


def charset_of(headers: Mapping[str, str]) -> str:
    """The codec of a body. Codecs that web pages do not use are replaced by UTF-8: some codecs of Python take quadratic
    time, or decode otherwise than browsers."""
    _, _, rest = headers.get("content-type", "").lower().partition("charset=")
    name = rest.partition(";")[0].strip("\"' ").replace("_", "-")
    return _CHARSETS.get(name, "utf-8")


def decoded(body: bytes, charset: str) -> str:
    """The body as text, decoded in parts so that other threads can run."""
    if charset == "utf-16":  # little-endian without a byte order mark, as in browsers
        charset = "utf-16be" if body.startswith(codecs.BOM_UTF16_BE) else "utf-16le"
        body = body.removeprefix(codecs.BOM_UTF16_BE if charset == "utf-16be" else codecs.BOM_UTF16_LE)
    decoder = codecs.getincrementaldecoder(charset)("replace")
    parts = [decoder.decode(body[at : at + _DECODED_AT_ONCE]) for at in range(0, len(body), _DECODED_AT_ONCE)]
    return "".join([*parts, decoder.decode(b"", final=True)])


def _redirected(outgoing: OutgoingRequest, response: Response) -> OutgoingRequest | None:
    """The request after a redirect; None if the response is none. Raises JobFailed if it must not be followed."""
    location = response.headers.get("location")
    if response.status not in _FOLLOWED or location is None:
        return None
    label, here = f"{outgoing.method} {response.shown}", httpx.URL(outgoing.url)
    if len(location) > URL_MAX_CHARS:
        raise JobFailed(
            f"{label}: redirect not followed: its URL has {len(location)} characters, more than {URL_MAX_CHARS}"
        )
    try:
        there = here.join(location).copy_with(fragment=None)
    except (httpx.InvalidURL, ValueError, TypeError):
        raise JobFailed(f"{label}: redirect not followed: its URL is not valid") from None
    shown = "" if outgoing.is_url_secret else f" to {_shown_url(outgoing, there)}"
    if there.scheme not in _PORTS or not there.host or there.userinfo:
        raise JobFailed(f"{label}: redirect{shown} not followed: only http and https URLs without a user are allowed")
    if here.scheme == "https" and there.scheme == "http":
        raise JobFailed(f"{label}: redirect{shown} not followed: it leads from https to unencrypted http")
    headers, method, body = outgoing.headers, outgoing.method, outgoing.body
    if response.status == 303 and method != "HEAD":
        method, body = "GET", b""
        headers = _without(headers, _SIGNATURE | {"content-type"})
    elif response.status in (301, 302) and method not in _REPEATED_METHODS:
        # Most clients send a GET without the body here, which would look like a success.
        raise JobFailed(
            f"{label}: redirect{shown} not followed: {method} is not repeated after status {response.status}",
            setting="url",
            fix="write the new address as url",
        )
    if _origin(here) != _origin(there):
        headers = _without(headers, outgoing.confidential | _SIGNATURE)
    return msgspec.structs.replace(outgoing, url=str(there), method=method, body=body, headers=headers)


def _without(headers: dict[str, str], names: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in names}


def _origin(url: httpx.URL) -> tuple[str, str, int]:
    return url.scheme, url.host, url.port or _PORTS[url.scheme]


def _shown(outgoing: OutgoingRequest) -> str:
    url = httpx.URL(outgoing.url)
    return f"{url.scheme}://{url.netloc.decode('ascii')}/…" if outgoing.is_url_secret else _shown_url(outgoing, url)


def _shown_url(outgoing: OutgoingRequest, url: httpx.URL) -> str:
    """The URL without its query, which often holds keys."""
    more = "?…" if url.query else ""
    return f"{url.scheme}://{url.netloc.decode('ascii')}{outgoing.excerpt(url.path, _SHOWN_MAX_CHARS)}{more}"


def _with_port(address: Address, url: httpx.URL) -> str:
    port = url.port or _PORTS[url.scheme]
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _cause(error: BaseException) -> str:
    """The first cause of the error, in one line."""
    while (inner := error.__cause__ or error.__context__) is not None and str(error) in ("", str(inner), _ATTEMPTS):
        error = inner
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted: {error.verify_message}"
    if isinstance(error, zlib.error):
        return f"the body cannot be decompressed: {error}"
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno).lower()  # the text of asyncio repeats the address
    text = " ".join(str(getattr(error, "strerror", None) or error).split())
    return text or type(error).__name__
