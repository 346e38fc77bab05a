"""The pidfile says which process is the daemon, and there is one at most."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from evertick.daemon.process import Pidfile, pid_in, running_pid
from evertick.errors import Refused
from other_user import closed_to_us

HOLDER = """
import sys
from pathlib import Path
from evertick.daemon.process import Pidfile
from evertick.errors import Refused
pidfile = Pidfile(Path(sys.argv[1]))
try:
    pidfile.take()
except Refused as error:
    print(f"refused: {error}", flush=True)
    sys.exit(1)
print("taken", flush=True)
sys.stdin.read()
pidfile.remove()
"""

Hold = Callable[[Path], "subprocess.Popen[str]"]
Take = Callable[[Path], Pidfile]


@pytest.fixture
def hold() -> Iterator[Hold]:
    """A process that takes a pidfile, and removes it when its input ends."""
    processes: list[subprocess.Popen[str]] = []

    def start(path: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def take() -> Iterator[Take]:
    """Take a pidfile for this process; it goes with the test."""
    with ExitStack() as held:

        def taking(path: Path) -> Pidfile:
            pidfile = Pidfile(path)
            pidfile.take()
            held.callback(pidfile.remove)
            return pidfile

        yield taking


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "evertick.pid"


def test_it_holds_the_number_of_the_process_and_goes_at_the_end(path: Path) -> None:
    pidfile = Pidfile(path)
    pidfile.take()
    assert path.read_text() == f"{os.getpid()}\n"
    assert path.stat().st_mode & 0o022 == 0
    assert (running_pid(path), pid_in(path)) == (os.getpid(), os.getpid())
    pidfile.remove()
    assert list(path.parent.iterdir()) == []
    assert (running_pid(path), pid_in(path)) == (None, None)
    pidfile.remove()


def test_a_second_start_is_refused_with_the_number_of_the_first(path: Path, take: Take, hold: Hold) -> None:
    first = hold(path)
    assert said(first) == "taken"
    with pytest.raises(Refused, match=rf"pidfile {path}: already held by process {first.pid}; stop it"):
        Pidfile(path).take()
    assert path.read_text() == f"{first.pid}\n"
    assert list(path.parent.iterdir()) == [path]
    first.communicate("")
    take(path)


def test_one_that_a_killed_process_left_behind_is_stale(path: Path, take: Take, hold: Hold) -> None:
    first = hold(path)
    assert said(first) == "taken"
    first.kill()
    first.wait()
    assert path.read_text() == f"{first.pid}\n"
    assert (running_pid(path), pid_in(path)) == (None, first.pid)
    taken = take(path)
    assert (taken.stale_pid, taken.stale_why) == (first.pid, "which is not running")
    assert path.read_text() == f"{os.getpid()}\n"


def test_a_file_with_a_reused_number_is_stale(path: Path, take: Take) -> None:
    # The parent of this test lives, but was started after the file was written, long ago.
    path.write_text(f"{os.getppid()}\n")
    os.utime(path, (1_000_000_000, 1_000_000_000))
    assert take(path).stale_why == "whose number is used by another process"
    assert pid_in(path) == os.getpid()


def test_the_file_of_another_program_that_lives_and_takes_no_lock_is_refused(path: Path) -> None:
    path.write_text(f"{os.getppid()}\n")
    name = Path(f"/proc/{os.getppid()}/comm").read_text().strip()
    words = re.escape(f"belongs to another program: process {os.getppid()} ({name}) is running and has not locked it")
    with pytest.raises(Refused, match=words):
        Pidfile(path).take()
    assert pid_in(path) == os.getppid()


@pytest.mark.parametrize("content", ["root:x:0:0:root:/root:/bin/bash\n", "12 13\n", "-4\n", "0\n", "1" * 40])
def test_a_file_that_is_no_pidfile_is_left_as_it_is(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(Refused, match="is no pidfile: its content is not the number of a process"):
        Pidfile(path).take()
    assert path.read_text() == content


def test_an_empty_file_is_taken(path: Path, take: Take) -> None:
    path.touch()
    take(path)
    assert pid_in(path) == os.getpid()


def test_a_pidfile_in_a_directory_that_is_closed_to_this_user_is_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    with closed_to_us(folder), pytest.raises(Refused, match=f"Permission denied.; let this user write to {folder}, or"):
        Pidfile(folder / "pid").take()


def test_a_link_in_its_place_is_not_followed(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("")
    path.symlink_to(elsewhere)
    with pytest.raises(Refused, match="cannot be read"):
        Pidfile(path).take()
    assert elsewhere.read_text() == ""


@pytest.mark.parametrize("name", ["no/such/folder/evertick.pid", "file/evertick.pid"])
def test_one_that_cannot_be_written_is_refused_with_what_to_do(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match=r"cannot be written .*create the directory .*, or name another --pidfile"):
        Pidfile(tmp_path / name).take()


def test_a_file_that_was_replaced_is_not_removed(path: Path) -> None:
    pidfile = Pidfile(path)
    pidfile.take()
    path.unlink()
    path.write_text("1\n")
    pidfile.remove()
    assert path.read_text() == "1\n"


def test_of_many_that_start_at_once_one_gets_it_and_the_others_name_it(path: Path, hold: Hold) -> None:
    path.write_text("4194304\n")  # stale: there is no such process
    os.utime(path, (1_000_000_000, 1_000_000_000))
    starting = [hold(path) for _ in range(8)]
    words = {process.pid: said(process) for process in starting}
    (winner,) = [pid for pid, word in words.items() if word == "taken"]
    assert pid_in(path) == winner
    assert all(f"already held by process {winner};" in word for pid, word in words.items() if pid != winner)
    assert list(path.parent.iterdir()) == [path]


def test_a_reader_never_finds_half_of_it(path: Path) -> None:
    """A reader finds nothing or a whole number while the file comes and goes."""
    found, is_over = set[str](), threading.Event()

    def read() -> None:
        while not is_over.is_set():
            try:
                found.add(path.read_text())
            except FileNotFoundError:
                continue

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(200):
        pidfile = Pidfile(path)
        pidfile.take()
        pidfile.remove()
    is_over.set()
    reader.join()
    assert found <= {f"{os.getpid()}\n"}


def test_a_stale_file_is_taken_while_another_process_reads_it(path: Path, take: Take) -> None:
    path.write_text("4194304\n")
    os.utime(path, (1_000_000_000, 1_000_000_000))
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            assert running_pid(path) in (None, 4194304, os.getpid())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        take(path)
    finally:
        is_over.set()
        looking.join()
    assert pid_in(path) == os.getpid()


def test_a_stale_file_that_stays_locked_is_reported(path: Path) -> None:
    path.write_text("4194304\n")
    with path.open() as looking:
        fcntl.flock(looking, fcntl.LOCK_EX)
        with pytest.raises(Refused, match="locked by another process than the one in it"):
            Pidfile(path).take()


def test_a_pipe_in_place_of_the_pidfile_is_refused_without_waiting(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    os.mkfifo(path)
    for look in (running_pid, pid_in, lambda where: Pidfile(where).take()):
        with pytest.raises(Refused, match="is a named pipe, not a regular file; name another --pidfile"):
            look(path)
