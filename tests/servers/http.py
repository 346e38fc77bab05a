"""A web server that says what a test wants it to say, byte by byte, and remembers what it heard."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

__all__ = ["Heard", "WebServer", "answer", "web_server"]

# Given to a test that wants to write an answer by itself.
Writing = Callable[["Heard", asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Heard:
    """One request."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes = b""
    # The name that the client asked for when it began to speak TLS.
    server_name: str | None = None


@dataclass
class WebServer:
    host: str
    port: int = 0
    heard: list[Heard] = field(default_factory=list)
    # What it answers, by the path; bytes are a whole answer.
    paths: dict[str, bytes | Writing] = field(default_factory=dict)
    _names: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            request = await self._read(reader)
            if writer.get_extra_info("ssl_object") is not None and self._names:
                request.server_name = self._names[-1]
            self.heard.append(request)
            path = request.target.partition("?")[0]
            said = self.paths.get(path, answer(404, body=b"no such path"))
            if isinstance(said, bytes):
                writer.write(said)
                await writer.drain()
            else:
                await said(request, writer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def _read(self, reader: asyncio.StreamReader) -> Heard:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")[:-2]
        method, target, _ = first.split(" ")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            assert name.lower() not in headers, f"{name} is there twice"
            headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Heard(method, target, headers, body)


def answer(status: int = 200, headers: dict[str, str] | None = None, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@contextlib.asynccontextmanager
async def web_server(
    host: str = "127.0.0.1", port: int = 0, tls: tuple[str, str] | None = None
) -> AsyncIterator[WebServer]:
    """tls: the files of a certificate and its key."""
    server = WebServer(host)
    context = None
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        context.sni_callback = lambda _, name, __: server._names.append(name)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await server.serve(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            tasks.discard(task)

    listening = await asyncio.start_server(serve, host, port, ssl=context)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
