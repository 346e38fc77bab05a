"""Where a storm takes place: a server, the proxy before it, and the processes of the nodes."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg

import preloaded
from servers.postgres import Server, own_server
from torment.catalogue import NODES
from torment.checker import CHILDREN_GONE_SECONDS
from torment.proxy import Proxy
from torment.witness import NODE_VARIABLE

__all__ = ["ROLE", "SCHEMA", "NodeProcess", "Site", "open_site", "wait_until"]

PROGRAM = Path(__file__).parent / "program.py"
# Whom the nodes are to the server: nobody with rights or places of their own.
ROLE, SCHEMA = "tormented", "torment"
_START_SECONDS = 60
_UNHEARD = re.compile(r"(\d+) claims unknown here, their answers were lost")


class NodeProcess:
    """A process of a node, from its start to its end."""

    def __init__(self, site: Site, slot: int, program: Path) -> None:
        self.slot = slot
        self.killed_at: float | None = None
        self.freezes: list[tuple[float, float]] = []
        self.own_exit: int | None = None
        self._frozen_at: float | None = None
        self._has_started = False
        self.log_path = site.folder / f"log-{slot}-{len(site.processes)}"
        command = [sys.executable, str(program), site.url_of(slot), str(site.folder), str(slot)]
        self.began_at = time.monotonic()
        with self.log_path.open("wb") as log:
            self._popen = preloaded.popen(command, stdout=log, stderr=log)
        self.pid = self._popen.pid

    @property
    def has_started(self) -> bool:
        # Its log grows long in an hour, and begins with what is looked for.
        self._has_started = self._has_started or "has started" in self.log_path.read_text(errors="replace")
        return self._has_started

    def signal(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def kill(self) -> None:
        self.has_ended()
        self._popen.kill()
        self._popen.wait()
        self.killed_at = time.monotonic()

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)
        self._frozen_at = time.monotonic()

    def thaw(self) -> None:
        if self._frozen_at is not None:
            self.freezes.append((self._frozen_at, time.monotonic()))
            self._frozen_at = None
            self.signal(signal.SIGCONT)

    def has_ended(self) -> bool:
        """By itself. One that has not started yet may: it was started while the server could not be reached."""
        code = self._popen.poll()
        if code is not None and self.killed_at is None and self.has_started:
            self.own_exit = code
        return code is not None

    def wait(self, seconds: float) -> int:
        return self._popen.wait(seconds)

    def close(self) -> None:
        self._popen.kill()
        self._popen.wait()


class Site:
    """The server, the proxy before it, and the processes of the nodes."""

    def __init__(self, folder: Path, server: Server, proxy: Proxy, program: Path = PROGRAM) -> None:
        self.folder, self.server, self.proxy = folder, server, proxy
        self.program = program
        # Straight to the server, past all faults.
        self.url = f"postgresql://{ROLE}@127.0.0.1:{server.port}/postgres?schema={SCHEMA}&sslmode=disable"
        # All there ever were, and who is in each slot now.
        self.processes: list[NodeProcess] = []
        self.at_work: dict[int, NodeProcess] = {}

    def url_of(self, slot: int) -> str:
        """Deadlines fit the short lease: a connection that leads nowhere is given up within one."""
        direct, through = f":{self.server.port}/", f":{self.proxy.gates[slot].port}/"
        return f"{self.url.replace(direct, through)}&timeout=3s&connect_timeout=2s&pool_size=4"

    def start_node(self, slot: int) -> NodeProcess:
        process = NodeProcess(self, slot, self.program)
        self.processes.append(process)
        self.at_work[slot] = process
        return process

    def look_after(self) -> None:
        """What whoever runs a service does: start what has ended."""
        for slot, process in list(self.at_work.items()):
            if process.killed_at is None and process.has_ended():
                self.start_node(slot)

    def wait_for_all(self) -> None:
        wait_until(self._have_all_started, _START_SECONDS, self.logs)

    def _have_all_started(self) -> bool:
        self.look_after()
        return all(process.has_started for process in self.at_work.values())

    def stop_all(self) -> list[int]:
        for node in self.at_work.values():
            node.signal(signal.SIGTERM)
        return [node.wait(30) for node in self.at_work.values()]

    def admin(self) -> psycopg.Connection:
        """With the rights, and the reserved places, of the one who runs the server."""
        return psycopg.connect(self.server.dsn, autocommit=True)

    def unheard(self) -> int:
        """How many runs nodes have found to be theirs without having heard of their claim, by their logs."""
        texts = (path.read_text(errors="replace") for path in self.folder.glob("log-*"))
        return sum(int(count) for text in texts for count in _UNHEARD.findall(text))

    def survivors(self) -> tuple[str, ...]:
        """What the nodes, all of which have ended, have left running: whoever has inherited the name of one."""
        names = {f"{NODE_VARIABLE}={process.pid}".encode() for process in self.processes}
        wait_until(lambda: not _with_variable(names), CHILDREN_GONE_SECONDS, None)
        return tuple(_with_variable(names))

    def logs(self) -> str:
        paths = sorted(self.folder.glob("log-*"))
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-4_000:]}" for path in paths)[-40_000:]

    def close(self) -> None:
        for process in self.processes:
            process.close()


@contextmanager
def open_site(folder: Path, *, nodes: int = NODES, program: Path = PROGRAM) -> Iterator[Site]:
    with ExitStack() as stack:
        # Commits must outlive a crash of the server, not one of the machine: so they are waited for, and not synced.
        server = stack.enter_context(own_server(synchronous_commit="on", autovacuum="on", max_connections="60"))
        with psycopg.connect(server.dsn, autocommit=True) as admin:
            admin.execute(f"CREATE ROLE {ROLE} LOGIN")
            admin.execute(f"GRANT CREATE ON DATABASE postgres TO {ROLE}")
        site = Site(folder, server, stack.enter_context(Proxy(server.port, nodes)), program)
        stack.callback(site.close)
        for slot in range(nodes):
            site.start_node(slot)
        site.wait_for_all()
        yield site


def _with_variable(settings: set[bytes]) -> list[str]:
    """Processes of this machine that have one of these in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment, command = (process / "environ").read_bytes(), (process / "cmdline").read_bytes()
        except OSError:  # it has just ended, or is somebody else's
            continue
        if not settings.isdisjoint(environment.split(b"\0")):
            found.append(f"{process.name} ({command.replace(bytes(1), b' ').decode(errors='replace').strip()})")
    return sorted(found)


def wait_until(is_so: Callable[[], bool], seconds: float, what: Callable[[], str] | None) -> float:
    """How long it took. Where `what` is None, time may run out: then whoever looks next sees what is wrong."""
    began = time.monotonic()
    while not is_so():
        if time.monotonic() > began + seconds:
            if what is None:
                break
            raise TimeoutError(f"not so after {seconds:g} s\n{what()}")
        time.sleep(0.05)
    return time.monotonic() - began
