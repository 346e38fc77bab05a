"""A proxy that lets a node's way to the server go wrong: cut, swallowed, slow, or lost right after a commit.

Each node has a gate, a port of its own, so that one can be cut off while the others go on. The proxy follows the
messages that clients send just far enough to know when one of them commits: `COMMIT`, or the `Sync` after a statement
that writes outside of a transaction. A commit whose answer is to be lost is forwarded, and the line is cut only once
the server has begun to answer: it is committed, and nobody has told the client.

It runs in a thread of its own; the methods of `Gate` may be called from any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
from collections.abc import AsyncIterator, Callable
from typing import Self

__all__ = ["CommitFinder", "Gate", "Proxy"]

_CHUNK = 64 * 1024
_CLOSE_SECONDS = 5.0
# Longer messages are forwarded without a look at them.
_MESSAGE_MOST = 16 * 1024 * 1024
_WRITES = re.compile(rb"\b(INSERT|UPDATE|DELETE)\b", re.IGNORECASE)


class CommitFinder:
    """Reads what a client sends, and notices when it asks for a commit."""

    def __init__(self) -> None:
        self._rest = b""
        self._skip = 0
        self._has_begun = False
        self._is_in_transaction = False
        self._writing: set[bytes] = set()
        self._has_written = False

    def feed(self, data: bytes) -> bool:
        """Whether a commit is asked for in what has come to its end with this piece."""
        found = False
        self._rest += data
        while message := self._next():
            found = self._see(*message) or found
        return found

    def _next(self) -> tuple[bytes, bytes] | None:
        dropped = min(self._skip, len(self._rest))
        self._rest, self._skip = self._rest[dropped:], self._skip - dropped
        # The first message has no letter in front of its length.
        head = 1 if self._has_begun else 0
        if self._skip or len(self._rest) < head + 4:
            return None
        length = int.from_bytes(self._rest[head : head + 4], "big")
        if length > _MESSAGE_MOST:
            self._skip, self._has_begun = head + length, True
            return self._next()
        if len(self._rest) < head + length:
            return None
        kind, body = self._rest[:head], self._rest[head + 4 : head + length]
        self._rest, self._has_begun = self._rest[head + length :], True
        return kind, body

    def _see(self, kind: bytes, body: bytes) -> bool:
        match kind:
            case b"Q":
                return self._see_query(body.rstrip(b"\0").strip().upper())
            case b"P":
                name, _, rest = body.partition(b"\0")
                is_writing = _WRITES.search(rest.partition(b"\0")[0]) is not None
                (self._writing.add if is_writing else self._writing.discard)(name)
            case b"B":
                name = body.partition(b"\0")[2].partition(b"\0")[0]
                self._has_written = self._has_written or name in self._writing
            case b"S":
                note_written, self._has_written = self._has_written, False
                return note_written and not self._is_in_transaction
        return False

    def _see_query(self, text: bytes) -> bool:
        if text.startswith((b"BEGIN", b"START TRANSACTION")):
            self._is_in_transaction = True
            return False
        if text in (b"COMMIT", b"ROLLBACK"):
            was_open, self._is_in_transaction = self._is_in_transaction, False
            return was_open and text == b"COMMIT"
        return not self._is_in_transaction and _WRITES.search(text) is not None


class _Line:
    """One connection of a client, and the one to the server that belongs to it."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter, *, is_swallowed: bool) -> None:
        self.client, self.server = client, server
        self.is_swallowed = is_swallowed
        self.loses_next_answer = False

    def cut(self) -> None:
        """At once, as by a network that is gone: what was not sent yet is not sent."""
        for writer in (self.client, self.server):
            writer.transport.abort()


class Gate:
    """The port of one node, and what is wrong with it. All state belongs to the proxy's loop."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._lines: set[_Line] = set()
        # Those who came while everything is swallowed: there is nothing behind them.
        self._ignored: set[asyncio.StreamWriter] = set()
        self._answers_to_lose = 0
        self.swallows = False
        self.delay_seconds = 0.0
        self.answers_lost = 0
        self.port = 0

    def cut(self) -> None:
        """End all connections; new ones are let through."""
        self._proxy.do(self._cut)

    def swallow(self) -> None:
        """Nothing comes through any more, and nobody is told: the connections there are, and new ones."""
        self._proxy.do(self._swallow)

    def delay(self, seconds: float) -> None:
        """Everything takes so much longer, in each direction."""
        self._proxy.do(lambda: setattr(self, "delay_seconds", seconds))

    def lose_answers(self, count: int) -> None:
        """The next commits come through, and their answers do not."""
        self._proxy.do(lambda: setattr(self, "_answers_to_lose", count))

    def heal(self) -> None:
        """New connections are let through. What was swallowed stays so: the server is told now that they are gone."""
        self._proxy.do(self._heal)

    # --- on the proxy's loop

    def _cut(self) -> None:
        for line in list(self._lines):
            line.cut()
        for client in self._ignored:
            client.transport.abort()

    def _swallow(self) -> None:
        self.swallows = True
        for line in self._lines:
            line.is_swallowed = True

    def _heal(self) -> None:
        self.swallows, self.delay_seconds, self._answers_to_lose = False, 0.0, 0
        for line in self._lines:
            if line.is_swallowed:
                # Clients go on believing in theirs, as they do when a firewall has forgotten them.
                line.server.transport.abort()

    async def serve(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        if self.swallows:
            await self._serve_nothing(client_in, client_out)
            return
        try:
            server_in, server_out = await asyncio.open_connection("127.0.0.1", self._proxy.server_port)
        except OSError:
            client_out.transport.abort()
            return
        line = _Line(client_out, server_out, is_swallowed=self.swallows)
        self._lines.add(line)
        there = asyncio.ensure_future(self._carry_there(line, client_in))
        back = asyncio.ensure_future(self._carry_back(line, server_in))
        try:
            await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
            if line.is_swallowed:
                # An end is swallowed like everything else: neither side hears of the other's.
                await asyncio.wait([there, back])
        finally:
            there.cancel()
            back.cancel()
            line.cut()
            self._lines.discard(line)

    async def _serve_nothing(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        self._ignored.add(client_out)
        async for _ in _pieces(client_in):
            pass
        client_out.transport.abort()
        self._ignored.discard(client_out)

    async def _carry_there(self, line: _Line, source: asyncio.StreamReader) -> None:
        finder = CommitFinder()
        async for data in _pieces(source):
            commits = finder.feed(data)
            if self.delay_seconds:
                await asyncio.sleep(self.delay_seconds)
            if line.is_swallowed:
                continue
            if commits and self._answers_to_lose > 0:
                self._answers_to_lose -= 1
                line.loses_next_answer = True
            await _send(line.server, data)

    async def _carry_back(self, line: _Line, source: asyncio.StreamReader) -> None:
        async for data in _pieces(source):
            if line.loses_next_answer:
                self.answers_lost += 1
                return
            if self.delay_seconds:
                await asyncio.sleep(self.delay_seconds)
            if not line.is_swallowed:
                await _send(line.client, data)


async def _pieces(source: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """What comes, until the end or a broken line, which is the same here."""
    with contextlib.suppress(OSError):
        while data := await source.read(_CHUNK):
            yield data


async def _send(target: asyncio.StreamWriter, data: bytes) -> None:
    """Whether it is still there is for its own reader to notice."""
    with contextlib.suppress(OSError):
        target.write(data)
        await target.drain()


class Proxy:
    """Gates to one server."""

    def __init__(self, server_port: int, gates: int) -> None:
        self.server_port = server_port
        self.gates = [Gate(self) for _ in range(gates)]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, name="fault proxy", daemon=True)
        self._servers: list[asyncio.Server] = []

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def do(self, what: Callable[[], object]) -> None:
        """On the loop, and done when this comes back."""

        async def doing() -> None:
            what()

        asyncio.run_coroutine_threadsafe(doing(), self._loop).result(10)

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _open(self) -> None:
        for gate in self.gates:
            server = await asyncio.start_server(gate.serve, "127.0.0.1", 0, family=socket.AF_INET)
            gate.port = server.sockets[0].getsockname()[1]
            self._servers.append(server)

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for gate in self.gates:
            gate._cut()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
