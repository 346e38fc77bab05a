"""One exchange with a server: redirects followed, every address judged, everything bounded by one deadline.

Each request goes to an address that was judged a moment before, on a connection of its own. The Host header has the
name, and the certificate is checked against it. Proxies of the environment are not used: the addresses that they
connect to cannot be judged here.
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

from evertick.driver.http.address import Address, AllowedAddresses, LookUp, permitted
from evertick.driver.http.request import OutgoingRequest
from evertick.driver.http.spec import URL_MAX_CHARS
from evertick.errors import InvalidSetting, JobFailed
from evertick.job.context import OpenPhase
from evertick.text.regular_file import open_regular

__all__ = ["Exchange", "Response", "charset_of", "decoded", "trusting"]

_FOLLOWED = (301, 302, 303, 307, 308)
_SEND_AGAIN = ("GET", "HEAD")
# Of one body, and for the server that it was signed for.
_SIGNATURE = frozenset(("webhook-id", "webhook-timestamp", "webhook-signature"))
_ANY_ZLIB = 32 + zlib.MAX_WBITS
_PORTS = {"http": 80, "https": 443}
# The network library's text for every failure to connect: the reason is below it.
_ATTEMPTS = "All connection attempts failed"
_SHOWN_MAX_CHARS = 500
_HOST_MAX_CHARS = 100
# Read at once; handled without yielding to the event loop; unpacked and decoded at once.
_READ_BYTES = 16 * 1024
_PIECES_AT_ONCE = 100
_UNPACKED_AT_ONCE = 1024 * 1024
_DECODED_AT_ONCE = 64 * 1024
# Of the headers, with those of answers before the answer; and of frames and what unpacks to nothing, beside the body.
_HEAD_MAX_BYTES = 64 * 1024
_HEAD_MAX_LINES = 500
_AROUND_BODY_TIMES = 4
_AROUND_BODY_BYTES = 512 * 1024
_EMPTY_LINE = re.compile(rb"\n\r?\n")
# The codecs of web pages, by the names that servers use.
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
    """The answer of a server, as much of it as is read."""

    status: int
    phrase: str
    # By their names in small letters.
    headers: dict[str, str]
    body: bytes
    # Whether there was more.
    is_cut: bool
    # Where it came from in the end, as it may be shown.
    shown: str
    address: str
    # How often it was sent elsewhere.
    redirects: int


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """Carries out requests of one task."""

    allowed: AllowedAddresses
    look_up: LookUp
    ca: str | None
    timeout: float
    redirects: int
    read_limit: int
    # A redirect with one of these statuses is an answer, and not followed.
    awaited: frozenset[int]
    begin_phase: Callable[[str], OpenPhase]

    async def carry_out(self, outgoing: OutgoingRequest) -> Response:
        """The answer. Raises JobFailed when there is none, Refused when an address is not to be talked to."""
        try:
            hop = _Hop(outgoing, f"{outgoing.method} {_shown(outgoing)}", self.begin_phase)
        except (httpx.InvalidURL, ValueError):
            raise JobFailed(f"{outgoing.method}: its url is no address that can be asked; write it anew") from None
        try:
            async with asyncio.timeout(self.timeout) as deadline:
                until = deadline.when()
                assert until is not None
                for count in range(self.redirects + 1):
                    answer = await self._ask(hop, until, count)
                    if answer.status in self.awaited or not self.redirects:
                        return answer
                    further = _further(hop.outgoing, answer)
                    if further is None:
                        return answer
                    hop.outgoing, hop.doing = further, f"{further.method} {_shown(further)}"
        except TimeoutError:
            raise JobFailed(f"{hop.doing}: no whole answer within {self.timeout:g} s: {hop.stage}") from None
        finally:
            hop.end(is_failed=True)
        raise JobFailed(f"{hop.doing}: it was sent elsewhere more than {self.redirects} times; see redirects")

    async def _ask(self, hop: _Hop, until: float, count: int) -> Response:
        """One request, to the first address that takes it."""
        url = httpx.URL(hop.outgoing.url)
        host = url.raw_host.decode("ascii")
        hop.enter("connect", f"looking up {host!r}")
        try:
            found = await self.look_up(host)
        except OSError as error:
            raise JobFailed(f"{hop.doing}: {host!r} cannot be looked up: {_cause(error)}") from None
        except UnicodeError:
            name = hop.outgoing.excerpt(repr(host), _HOST_MAX_CHARS)
            raise JobFailed(f"{hop.doing}: {name} cannot be the name of a host") from None
        addresses = permitted(host, found, self.allowed)
        failed = ""
        for position, address in enumerate(addresses):
            hop.enter("connect", f"connecting to {address}", address=str(address))
            # One that swallows everything leaves the others their share of the time.
            share = (until - asyncio.get_running_loop().time()) / (len(addresses) - position)
            try:
                return await self._request(hop, url, address, max(share, 0.001), count)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = f"cannot connect to {_with_port(address, url)}: {_cause(error)}"
                hop.end(is_failed=True)
            except (httpcore.NetworkError, httpcore.ProtocolError, zlib.error) as error:
                # It may repeat a line of the server's.
                failed = f"{hop.stage}: {hop.outgoing.excerpt(_cause(error), _SHOWN_MAX_CHARS)}"
                break  # the server may have received it
        raise JobFailed(f"{hop.doing}: {failed}")

    async def _request(self, hop: _Hop, url: httpx.URL, address: Address, connect: float, count: int) -> Response:
        outgoing, received = hop.outgoing, _ReceivedBytes(self.read_limit)
        backend = _ToAddress(address, received)

        async def listen(event: str, _: object) -> None:
            if event == "http11.send_request_headers.started":
                hop.enter("wait", f"waiting for {address} to answer")

        pool = httpcore.AsyncConnectionPool(ssl_context=trusting(self.ca), network_backend=backend)
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
            received.is_head_over = True
            hop.end(status=response.status)
            hop.enter("read", "waiting for the rest of the answer")
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
    """Connects to one address, whatever the name is, and closes what it has opened: a handshake cut off does not."""

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
    """How much a server has sent. It may send answers before its answer, headers and frames without end, and each of
    them keeps the event loop for a while."""

    def __init__(self, read_limit: int) -> None:
        self._body_most = _AROUND_BODY_TIMES * read_limit + _AROUND_BODY_BYTES
        self._head = self._lines = self._body = 0
        self._last = b""
        self.is_head_over = False

    def count(self, data: bytes) -> None:
        if self.is_head_over:
            self._body += len(data)
            if self._body > self._body_most:
                raise httpcore.RemoteProtocolError("it sends far more around its body than in it")
            return
        self._head += len(data)
        # Up to an empty line: what follows may be the body.
        found = _EMPTY_LINE.search(self._last + data)
        end = len(data) if found is None else max(found.end() - len(self._last), 0)
        self._lines += data.count(b"\n", 0, end)
        self._last = data[-3:]
        if self._lines > _HEAD_MAX_LINES:
            raise httpcore.RemoteProtocolError(f"it sends more than {_HEAD_MAX_LINES} lines of headers")
        if self._head > _HEAD_MAX_BYTES:
            raise httpcore.RemoteProtocolError(f"it sends more than {_HEAD_MAX_BYTES // 1024} KiB of headers")


class _Stream(httpcore.AsyncNetworkStream):
    """A connection that is read in small parts, which are counted."""

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
    """How far an exchange has come: for the words of its end, and in phases."""

    def __init__(self, outgoing: OutgoingRequest, doing: str, begin_phase: Callable[[str], OpenPhase]) -> None:
        self.outgoing, self.doing, self.stage = outgoing, doing, "beginning"
        self._begin_phase = begin_phase
        self._name = ""
        self._phase: OpenPhase | None = None

    def enter(self, phase: str, stage: str, **metadata: object) -> None:
        """Another stage, of the phase that goes on or of the next."""
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


def trusting(ca: str | None) -> ssl.SSLContext:
    """TLS that trusts the certificates of the system, or only those in the file."""
    try:
        # A file that was changed is read anew: certificates are renewed while nodes live.
        if ca is not None:
            os.close(open_regular(ca))  # the library would wait for a pipe
        return _context(ca, None if ca is None else Path(ca).stat().st_mtime_ns)
    except (OSError, ssl.SSLError) as error:
        raise InvalidSetting(
            f"http: ca: the certificates in {ca!r} cannot be read: {_cause(error)}; name a file in PEM format",
            setting="ca",
        ) from None


@lru_cache(maxsize=16)
def _context(ca: str | None, _changed: int | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca)


def _head(outgoing: OutgoingRequest, url: httpx.URL) -> list[tuple[str, str]]:
    head = [("Host", url.netloc.decode("ascii")), *outgoing.headers.items(), ("Connection", "close")]
    if outgoing.body or outgoing.method not in ("GET", "HEAD", "OPTIONS", "DELETE"):
        head.append(("Content-Length", str(len(outgoing.body))))
    return head


async def _read(stream: AsyncIterable[bytes], headers: Mapping[str, str], most: int) -> tuple[bytes, bool]:
    """The body as far as it is wanted, and whether there is more. What is packed is unpacked no further than that."""
    is_packed = headers.get("content-encoding", "").lower() in ("gzip", "x-gzip", "deflate")
    unpack = zlib.decompressobj(_ANY_ZLIB) if is_packed else None
    body, pieces = bytearray(), 0
    async for chunk in stream:
        rest = chunk
        while rest:
            pieces += 1
            if pieces % _PIECES_AT_ONCE == 0:
                await asyncio.sleep(0)  # data that has arrived already comes without a pause
            if unpack is None:
                body, rest = body + rest[: most + 1 - len(body)], b""
            else:
                body += unpack.decompress(rest, min(most + 1 - len(body), _UNPACKED_AT_ONCE))
                rest = unpack.unconsumed_tail
            if len(body) > most:
                return bytes(body[:most]), True
            if unpack is not None and unpack.eof:
                return bytes(body), False  # whatever follows, it is no part of it
    return bytes(body), False


def charset_of(headers: Mapping[str, str]) -> str:
    """The name of the codec by which a body is read. What is not among those of web pages is read as UTF-8: some that
    Python has take a time that grows with the square of the text, or make other texts of it than any browser."""
    _, _, rest = headers.get("content-type", "").lower().partition("charset=")
    name = rest.partition(";")[0].strip("\"' ").replace("_", "-")
    return _CHARSETS.get(name, "utf-8")


def decoded(body: bytes, charset: str) -> str:
    """The body as text. In parts, so that other threads have their turns."""
    if charset == "utf-16":  # as browsers have it, the smaller byte first without a mark
        charset = "utf-16be" if body.startswith(codecs.BOM_UTF16_BE) else "utf-16le"
        body = body.removeprefix(codecs.BOM_UTF16_BE if charset == "utf-16be" else codecs.BOM_UTF16_LE)
    decoder = codecs.getincrementaldecoder(charset)("replace")
    parts = [decoder.decode(body[at : at + _DECODED_AT_ONCE]) for at in range(0, len(body), _DECODED_AT_ONCE)]
    return "".join([*parts, decoder.decode(b"", final=True)])


def _further(outgoing: OutgoingRequest, answer: Response) -> OutgoingRequest | None:
    """The request that a redirect asks for; None where it asks for none. Raises JobFailed where it is not made."""
    location = answer.headers.get("location")
    if answer.status not in _FOLLOWED or location is None:
        return None
    doing, here = f"{outgoing.method} {answer.shown}", httpx.URL(outgoing.url)
    if len(location) > URL_MAX_CHARS:
        raise JobFailed(
            f"{doing}: it redirects to an address of {len(location)} characters, which is not followed; "
            f"{URL_MAX_CHARS} are the most"
        )
    try:
        there = here.join(location).copy_with(fragment=None)
    except (httpx.InvalidURL, ValueError, TypeError):
        raise JobFailed(f"{doing}: it redirects to what is no address") from None
    shown = "" if outgoing.is_url_secret else f" to {_shown_url(outgoing, there)}"
    if there.scheme not in _PORTS or not there.host or there.userinfo:
        raise JobFailed(f"{doing}: it redirects{shown}, which is no plain address of a web server")
    if here.scheme == "https" and there.scheme == "http":
        raise JobFailed(f"{doing}: it redirects{shown}, which is not encrypted; that is not followed")
    headers, method, body = outgoing.headers, outgoing.method, outgoing.body
    if answer.status == 303 and method != "HEAD":
        method, body = "GET", b""
        headers = _without(headers, _SIGNATURE | {"content-type"})
    elif answer.status in (301, 302) and method not in _SEND_AGAIN:
        # Most programs send a GET without the body then, which would look like a success.
        raise JobFailed(
            f"{doing}: it redirects{shown} with status {answer.status}, by which {method} is not sent again; write the "
            "new address into the url"
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
    """Without what follows the question mark: people put keys there."""
    more = "?…" if url.query else ""
    return f"{url.scheme}://{url.netloc.decode('ascii')}{outgoing.excerpt(url.path, _SHOWN_MAX_CHARS)}{more}"


def _with_port(address: Address, url: httpx.URL) -> str:
    port = url.port or _PORTS[url.scheme]
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _cause(error: BaseException) -> str:
    """Its first cause, in a line."""
    while (inner := error.__cause__ or error.__context__) is not None and str(error) in ("", str(inner), _ATTEMPTS):
        error = inner
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, zlib.error):
        return f"its body cannot be unpacked: {error}"
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno).lower()  # asyncio has the address in its place
    text = " ".join(str(getattr(error, "strerror", None) or error).split())
    return text or type(error).__name__
