"""A real PgBouncer in front of a server of the tests, in transaction mode, with few sessions for many clients.

Few, so that whatever a client leaves on its session is soon found by another one. Ended like the server, by a keeper.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from servers.postgres import free_port, keep, other_user

__all__ = ["SESSIONS", "pgbouncer", "pgbouncer_binary"]

SESSIONS = 6
_CONFIGURATION = """
[databases]
* = host={host} port={port} user={user}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 500
default_pool_size = {sessions}
log_connections = 0
log_disconnections = 0
"""
_START_SECONDS = 10
_STOP_SECONDS = 5


def pgbouncer_binary() -> str | None:
    # Debian installs it where only root's PATH leads.
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@contextmanager
def pgbouncer(dsn: str) -> Iterator[str]:
    """The DSN of the pooler in front of the server with this DSN."""
    binary, where, port, user = pgbouncer_binary(), urlsplit(dsn), free_port(), other_user()
    assert binary is not None, "whoever asks for it has looked for it"
    folder = Path(tempfile.mkdtemp(prefix="evpool"))
    try:
        configuration = folder / "pgbouncer.ini"
        about = {"host": where.hostname, "port": where.port or 5432, "user": where.username}
        configuration.write_text(_CONFIGURATION.format(**about, listen_port=port, sessions=SESSIONS))
        if user is not None:
            os.chown(folder, user, -1)
        line, process = keep([binary, "-q", str(configuration)], user, folder / "log")
        try:
            _wait_until_ready(port, folder / "log")
            yield f"postgresql://{where.username}@127.0.0.1:{port}{where.path}"
        finally:
            line.close()
            process.wait(_STOP_SECONDS)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_ready(port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError(f"PgBouncer did not start:\n{log.read_text(errors='replace')}")
