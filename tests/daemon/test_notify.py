"""Notifications to a supervisor, by the protocol of systemd's socket."""

from __future__ import annotations

import os
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from evertick import Scheduler
from evertick.clock import supervisor_us, system_clock
from evertick.daemon.systemd_notify import Notify, Watchdog


@pytest.fixture(params=["file", "abstract"])
def supervisor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[socket.socket]:
    """A supervisor that listens: at a file, or at a name without one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        name = str(tmp_path / "notify") if request.param == "file" else f"\0evertick-{system_clock.new_token()}"
        listening.bind(name)
        listening.settimeout(20)
        yield listening


def address_of(supervisor: socket.socket) -> str:
    name = supervisor.getsockname()
    return name if isinstance(name, str) else f"@{name[1:].decode()}"


def heard(supervisor: socket.socket) -> list[str]:
    return supervisor.recv(4096).decode().split("\n")


def test_it_is_notified_of_start_reload_problems_and_stop(supervisor: socket.socket) -> None:
    environ = {"NOTIFY_SOCKET": address_of(supervisor), "PATH": "/bin"}
    notify = Notify.from_environment(environ)
    assert notify.is_heard
    notify.extend_start("waiting for the store", seconds=12.5)
    assert heard(supervisor) == ["EXTEND_TIMEOUT_USEC=12500000", "STATUS=waiting for the store"]
    notify.ready("2 jobs")
    assert heard(supervisor) == ["READY=1", "STATUS=2 jobs"]
    before = supervisor_us()
    notify.reloading("reading it again")
    reloading, at, status = heard(supervisor)
    assert (reloading, status) == ("RELOADING=1", "STATUS=reading it again")
    assert before <= int(at.removeprefix("MONOTONIC_USEC=")) <= supervisor_us()
    notify.status("one line\nand another \x1b[31m")
    assert heard(supervisor) == ["STATUS=one line and another  [31m"]
    notify.stopping("SIGTERM", seconds=30)
    assert heard(supervisor) == ["STOPPING=1", "EXTEND_TIMEOUT_USEC=30000000", "STATUS=SIGTERM"]
    notify.alive()
    assert heard(supervisor) == ["WATCHDOG=1"]
    notify.close()
    notify.alive()
    supervisor.setblocking(False)
    with pytest.raises(BlockingIOError):
        supervisor.recv(4096)


def test_what_jobs_start_does_not_inherit_the_line(supervisor: socket.socket) -> None:
    environ = {
        "NOTIFY_SOCKET": address_of(supervisor),
        "WATCHDOG_USEC": "60000000",
        "WATCHDOG_PID": str(os.getpid()),
        "PATH": "/bin",
    }
    with closing(Notify.from_environment(environ)) as notify:
        assert notify.watchdog_seconds == 60
    assert environ == {"PATH": "/bin"}


@pytest.mark.parametrize(
    ("wanted", "pid", "seconds"),
    [
        ("3000000", None, 3.0),
        ("3000000", "1", None),
        ("0", None, None),
        ("soon", None, None),
        ("-1", None, None),
        ("", None, None),
    ],
)
def test_the_watchdog_is_ours_only_if_it_means_this_process(
    supervisor: socket.socket, wanted: str, pid: str | None, seconds: float | None
) -> None:
    environ = {"NOTIFY_SOCKET": address_of(supervisor), "WATCHDOG_USEC": wanted}
    with closing(Notify.from_environment(environ | ({"WATCHDOG_PID": pid} if pid else {}))) as notify:
        assert notify.watchdog_seconds == seconds


def test_without_a_supervisor_nothing_is_said() -> None:
    notify = Notify.from_environment({"WATCHDOG_USEC": "3000000"})
    assert not notify.is_heard
    assert notify.watchdog_seconds is None
    notify.ready("nobody hears it")
    watchdog = Watchdog(notify, lambda: True)
    watchdog.start()
    watchdog.stop()
    notify.close()


def test_a_supervisor_that_is_missing_or_goes_away_stops_no_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Notify(str(tmp_path / "nobody")).ready("nobody hears it")
    assert "unreachable" in caplog.text
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "gone"))
        notify = Notify(str(tmp_path / "gone"))
    notify.ready("nobody hears it")
    notify.alive()
    notify.close()


def test_the_watchdog_speaks_in_time_and_only_while_the_node_moves(
    supervisor: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    is_moving = threading.Event()
    is_moving.set()
    notify = Notify(address_of(supervisor), watchdog_seconds=0.15)
    watchdog = Watchdog(notify, is_moving.is_set)
    watchdog.start()
    for _ in range(3):
        assert heard(supervisor) == ["WATCHDOG=1"]
    is_moving.clear()
    # Words that were on their way already come; then no more, for longer than the supervisor waits.
    supervisor.settimeout(0.5)
    last_line = 0
    with suppress(TimeoutError):
        while heard(supervisor):
            last_line += 1
    assert last_line <= 2
    assert caplog.text.count("the event loop is stuck") == 1
    supervisor.settimeout(20)
    is_moving.set()
    assert heard(supervisor) == ["WATCHDOG=1"]
    watchdog.stop()
    notify.close()


def test_the_watchdog_is_silent_while_a_job_blocks_the_event_loop_and_speaks_when_it_moves_again(
    supervisor: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evertick.engine.heartbeat.BLOCKED_SECONDS", 1.5)
    scheduler, notify = Scheduler("sqlite://"), Notify(address_of(supervisor), watchdog_seconds=0.6)
    is_blocking, may_go_on = threading.Event(), threading.Event()

    @scheduler.task
    async def block() -> None:
        is_blocking.set()
        may_go_on.wait(30)

    watchdog = Watchdog(notify, lambda: scheduler.runtime.is_moving)
    with scheduler:
        watchdog.start()
        assert heard(supervisor) == ["WATCHDOG=1"]
        block.sync.enqueue()
        assert is_blocking.wait(20)
        # Not at once: a loop may be busy for a moment.
        assert heard(supervisor) == ["WATCHDOG=1"]
        supervisor.settimeout(1.5)
        with suppress(TimeoutError):
            while heard(supervisor):
                continue
        assert not scheduler.runtime.is_moving
        may_go_on.set()
        supervisor.settimeout(20)
        assert heard(supervisor) == ["WATCHDOG=1"]
    watchdog.stop()
    notify.close()


def test_a_store_that_is_away_does_not_silence_the_watchdog(supervisor: socket.socket, tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    scheduler = Scheduler(f"sqlite:///{path}", lease="1s")
    notify = Notify(address_of(supervisor), watchdog_seconds=0.6)
    watchdog = Watchdog(notify, lambda: scheduler.runtime.is_moving)
    with scheduler:
        watchdog.start()
        with closing(sqlite3.connect(path, isolation_level=None)) as locking:
            locking.execute("BEGIN IMMEDIATE")
            # For longer than its lease: it is not healthy any more, and alive.
            for _ in range(15):
                assert heard(supervisor) == ["WATCHDOG=1"]
            assert not scheduler.is_healthy
            locking.execute("ROLLBACK")
    watchdog.stop()
    notify.close()
