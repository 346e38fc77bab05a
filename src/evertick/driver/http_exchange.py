"""One exchange with a server: redirects followed, every address judged, everything bounded by one deadline.

Each request goes to an address that was judged a moment before, on a connection of its own. The name stays what the
server is asked for, and what its certificate is checked against. Proxies that the environment names are not used: what
they connect to nobody here has judged.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import zlib
from collections.abc import AsyncIterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpcore
import httpx
import msgspec

from evertick.driver.address import Address, Allowed, LookUp, permitted
from evertick.driver.http_request import Outgoing
from evertick.errors import InvalidSetting, JobFailed

__all__ = ["Answer", "Exchange", "trusting"]

_FOLLOWED = (301, 302, 303, 307, 308)
_SEND_AGAIN = ("GET", "HEAD")
# Of one body, and for the server that it was signed for.
_SIGNATURE = frozenset(("webhook-id", "webhook-timestamp", "webhook-signature"))
_ANY_ZLIB = 32 + zlib.MAX_WBITS
_PORTS = {"http": 80, "https": 443}
# What the network library says of every failure to connect: the reason is below it.
_ATTEMPTS = "All connection attempts failed"
_SHOWN_MAX_CHARS = 500
_HOST_MAX_CHARS = 100


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a server said, as much of it as is read."""

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

    @property
    def text(self) -> str:
        """The body as text, whatever it is."""
        _, _, charset = self.headers.get("content-type", "").lower().partition("charset=")
        try:
            return self.body.decode(charset.partition(";")[0].strip("\"' ") or "utf-8", "replace")
        except (LookupError, ValueError):  # no encoding that anybody knows, or none that reads everything
            return self.body.decode("utf-8", "replace")


class Exchange:
    """Carries out requests of one task."""

    def __init__(
        self,
        *,
        allowed: Allowed,
        look_up: LookUp,
        ca: str | None,
        timeout: float,
        redirects: int,
        read_limit: int,
        awaited: frozenset[int],
    ) -> None:
        self._allowed, self._look_up = allowed, look_up
        self._ca = ca
        self._timeout, self._redirects, self._read_limit = timeout, redirects, read_limit
        # A redirect that is awaited is an answer, and not followed.
        self._awaited = awaited

    async def carry_out(self, outgoing: Outgoing) -> Answer:
        """The answer. Raises JobFailed when there is none, Refused when an address is not to be talked to."""
        try:
            hop = _Hop(outgoing, f"{outgoing.method} {_shown(outgoing)}")
        except (httpx.InvalidURL, ValueError):
            raise JobFailed(f"{outgoing.method}: its url is no address that can be asked; write it anew") from None
        try:
            async with asyncio.timeout(self._timeout) as deadline:
                until = deadline.when()
                assert until is not None
                for count in range(self._redirects + 1):
                    answer = await self._ask(hop, until, count)
                    if answer.status in self._awaited or not self._redirects:
                        return answer
                    further = _further(hop.outgoing, answer)
                    if further is None:
                        return answer
                    hop.outgoing, hop.doing = further, f"{further.method} {_shown(further)}"
        except TimeoutError:
            raise JobFailed(f"{hop.doing}: no whole answer within {self._timeout:g} s: {hop.stage}") from None
        raise JobFailed(f"{hop.doing}: it was sent elsewhere more than {self._redirects} times; see redirects")

    async def _ask(self, hop: _Hop, until: float, count: int) -> Answer:
        """One request, to the first address that takes it."""
        url = httpx.URL(hop.outgoing.url)
        host = url.raw_host.decode("ascii")
        hop.stage = f"looking up {host!r}"
        try:
            found = await self._look_up(host)
        except OSError as error:
            raise JobFailed(f"{hop.doing}: {host!r} cannot be looked up: {_cause(error)}") from None
        except UnicodeError:
            name = hop.outgoing.beginning(repr(host), _HOST_MAX_CHARS)
            raise JobFailed(f"{hop.doing}: {name} cannot be the name of a host") from None
        addresses = permitted(host, found, self._allowed)
        failed = ""
        for position, address in enumerate(addresses):
            hop.stage = f"connecting to {address}"
            # One that swallows everything leaves the others their share of the time.
            share = (until - asyncio.get_running_loop().time()) / (len(addresses) - position)
            try:
                return await self._request(hop, url, address, max(share, 0.001), count)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = f"cannot connect to {_with_port(address, url)}: {_cause(error)}"
            except (httpcore.NetworkError, httpcore.ProtocolError, zlib.error) as error:
                # It may repeat a line of the server's.
                failed = f"{hop.stage}: {hop.outgoing.beginning(_cause(error), _SHOWN_MAX_CHARS)}"
                break  # it may have been heard
        raise JobFailed(f"{hop.doing}: {failed}")

    async def _request(self, hop: _Hop, url: httpx.URL, address: Address, connect: float, count: int) -> Answer:
        outgoing, backend = hop.outgoing, _ToAddress(address)

        async def listen(event: str, _: object) -> None:
            if event == "http11.send_request_headers.started":
                hop.stage = f"waiting for {address} to answer"

        pool = httpcore.AsyncConnectionPool(ssl_context=trusting(self._ca), network_backend=backend)
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
            hop.stage = "waiting for the rest of the answer"
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
            body, is_cut = await _read(response.aiter_stream(), headers, self._read_limit)
        finally:
            await backend.close()
        phrase = response.extensions.get("reason_phrase", b"").decode("latin-1")
        return Answer(
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

    def __init__(self, address: Address) -> None:
        self._address = str(address)
        self._opened: list[httpcore.AsyncNetworkStream] = []

    async def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *args: Any, **options: Any
    ) -> httpcore.AsyncNetworkStream:
        stream = await super().connect_tcp(self._address, port, timeout, *args, **options)
        self._opened.append(stream)
        return stream

    async def close(self) -> None:
        for stream in self._opened:
            await stream.aclose()


class _Hop:
    """How far an exchange has come: for the words of its end."""

    def __init__(self, outgoing: Outgoing, doing: str) -> None:
        self.outgoing, self.doing, self.stage = outgoing, doing, "beginning"


def trusting(ca: str | None) -> ssl.SSLContext:
    """TLS that trusts what the system trusts, or what is in the file, and nobody else."""
    try:
        # A file that was changed is read anew: certificates are renewed while nodes live.
        return _context(ca, None if ca is None else Path(ca).stat().st_mtime_ns)
    except (OSError, ssl.SSLError) as error:
        raise InvalidSetting(
            f"http: ca: the certificates in {ca!r} cannot be read: {_cause(error)}; name a file in PEM format"
        ) from None


@lru_cache(maxsize=16)
def _context(ca: str | None, _changed: int | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca)


def _head(outgoing: Outgoing, url: httpx.URL) -> list[tuple[str, str]]:
    head = [("Host", url.netloc.decode("ascii")), *outgoing.headers.items(), ("Connection", "close")]
    if outgoing.body or outgoing.method not in ("GET", "HEAD", "OPTIONS", "DELETE"):
        head.append(("Content-Length", str(len(outgoing.body))))
    return head


async def _read(stream: AsyncIterable[bytes], headers: Mapping[str, str], most: int) -> tuple[bytes, bool]:
    """The body as far as it is wanted, and whether there is more. What is packed is unpacked no further than that."""
    is_packed = headers.get("content-encoding", "").lower() in ("gzip", "x-gzip", "deflate")
    unpack = zlib.decompressobj(_ANY_ZLIB) if is_packed else None
    body = bytearray()
    async for chunk in stream:
        if unpack is None:
            body += chunk[: most + 1 - len(body)]
        else:
            body += unpack.decompress(chunk, most + 1 - len(body))
        if len(body) > most:
            return bytes(body[:most]), True
    return bytes(body), False


def _further(outgoing: Outgoing, answer: Answer) -> Outgoing | None:
    """The request that a redirect asks for; None where it asks for none. Raises JobFailed where it is not made."""
    location = answer.headers.get("location")
    if answer.status not in _FOLLOWED or location is None:
        return None
    doing, here = f"{outgoing.method} {answer.shown}", httpx.URL(outgoing.url)
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
        # What most programs make of it, a GET without the body, would look like success and be none.
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


def _shown(outgoing: Outgoing) -> str:
    url = httpx.URL(outgoing.url)
    return f"{url.scheme}://{url.netloc.decode('ascii')}/…" if outgoing.is_url_secret else _shown_url(outgoing, url)


def _shown_url(outgoing: Outgoing, url: httpx.URL) -> str:
    """Without what follows the question mark: people put keys there."""
    more = "?…" if url.query else ""
    return f"{url.scheme}://{url.netloc.decode('ascii')}{outgoing.beginning(url.path, _SHOWN_MAX_CHARS)}{more}"


def _with_port(address: Address, url: httpx.URL) -> str:
    port = url.port or _PORTS[url.scheme]
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _cause(error: BaseException) -> str:
    """What is at the bottom of it, in a line."""
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
