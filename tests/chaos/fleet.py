"""Node processes of a chaos test: started, killed without warning, stopped, and what they have logged."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import preloaded


class Fleet:
    """Processes of one program. `arguments` says what each is started with, by its number."""

    program: Path

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: list[subprocess.Popen[bytes]] = []
        self._started = 0
        self._logs: dict[int, Path] = {}

    def arguments(self, number: int) -> list[str]:
        raise NotImplementedError

    def start_one(self) -> None:
        self._started += 1
        path = self.folder / f"log-{self._started}"
        with path.open("wb") as log:
            command = [sys.executable, str(self.program), *self.arguments(self._started)]
            node = preloaded.popen(command, stdout=log, stderr=log)
        self.nodes.append(node)
        self._logs[node.pid] = path

    def all_have_started(self) -> bool:
        return all("has started" in self._logs[node.pid].read_text() for node in self.nodes)

    def kill_one(self, chance: random.Random) -> None:
        victim = self.nodes.pop(chance.randrange(len(self.nodes)))
        victim.kill()
        victim.wait()

    def stop_all(self) -> list[int]:
        for node in self.nodes:
            node.send_signal(signal.SIGTERM)
        return [node.wait(timeout=30) for node in self.nodes]

    def close(self) -> None:
        for node in self.nodes:
            node.kill()
            node.wait()

    def logs(self) -> str:
        whole = "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("log-*")))
        return whole[-20_000:]
