"""The log of the daemon: its lines, its file, its levels."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from evertick import Scheduler
from evertick.daemon.logs import JournalFormatter, JsonFormatter, LogFile, Logs, Redactor, TextFormatter, set_up_logs
from evertick.errors import InvalidSetting, Refused
from evertick.text.log_level import TRACE
from other_user import closed_to_us

WRITER = """
import logging, sys, threading
from pathlib import Path
from evertick.daemon.logs import set_up_logs

logs = set_up_logs(file=Path(sys.argv[1]), environ={})
log, is_over, written = logging.getLogger("writer"), threading.Event(), {}

def write(name):
    count = 0
    while not is_over.is_set():
        log.info("record %s-%d", name, count)
        count += 1
    written[name] = count

threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
for thread in threads:
    thread.start()
for line in sys.stdin:
    logs.reopen()
    print("reopened", flush=True)
is_over.set()
for thread in threads:
    thread.join()
print(*(f"{name} {count}" for name, count in written.items()), sep=chr(10))
"""


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Restores the settings of the whole process."""
    root, names = logging.getLogger(), ("evertick", "httpx", "httpcore")
    handlers, level, hook = root.handlers[:], root.level, threading.excepthook
    levels = {name: logging.getLogger(name).level for name in names}
    yield
    for handler in root.handlers[:]:
        if handler not in handlers:
            root.removeHandler(handler)
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in levels.items():
        logging.getLogger(name).setLevel(before)
    logging.raiseExceptions = True
    logging.captureWarnings(False)
    threading.excepthook = hook


def record(message: str, *args: object, level: int = logging.INFO, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("evertick.engine", level, __file__, 1, message, args, None)
    vars(made).update({"created": 1_769_850_000.125, **more})
    return made


def raised(message: str) -> logging.LogRecord:
    try:
        raise ValueError(message)
    except ValueError:
        return record("it failed", level=logging.ERROR, exc_info=sys.exc_info())


# --- lines ---


def test_a_line_of_text_has_the_moment_with_its_offset_the_level_and_the_logger() -> None:
    line = TextFormatter(Redactor()).format(record("%d runs", 3))
    moment, _, rest = line.partition(" INFO    ")
    assert datetime.fromisoformat(moment).timestamp() == 1_769_850_000.125
    assert rest == "evertick.engine: 3 runs"


def test_a_line_of_json_is_one_object_and_names_the_node() -> None:
    line = JsonFormatter(Redactor(), node="web1").format(record("ä\nb"))
    assert "\n" not in line
    assert json.loads(line) == {
        "at": "2026-01-31T09:00:00.125000Z",
        "level": "info",
        "logger": "evertick.engine",
        "message": "ä\nb",
        "node": "web1",
    }


def test_a_line_for_the_journal_begins_with_how_grave_it_is_and_has_no_time() -> None:
    lines = JournalFormatter(Redactor())
    assert lines.format(record("a\nb", level=logging.WARNING)) == "<4>evertick.engine: a\n<4>    b"
    grave = [lines.format(record("", level=level))[:3] for level in (50, 40, 30, 20, 10, TRACE)]
    assert grave == ["<2>", "<3>", "<4>", "<6>", "<7>", "<7>"]


def test_what_a_job_writes_cannot_look_like_another_record() -> None:
    nasty = "done\n2026-01-31 09:00:00.000+00:00 ERROR   evertick.engine: forged\r\x1b[2J\u2028\u202ex\udc80"
    line = TextFormatter(Redactor()).format(record("%s", nasty))
    first, second = line.split("\n")
    assert first.endswith("evertick.engine: done")
    assert second.startswith("    2026-01-31")
    assert second.endswith(r"forged\x0d\x1b[2J\u2028\u202ex\udc80")
    assert json.loads(JsonFormatter(Redactor()).format(record("%s", nasty)))["message"].endswith(r"x\udc80")


def test_a_traceback_goes_with_its_record() -> None:
    text = TextFormatter(Redactor()).format(raised("no paper")).split("\n")
    assert text[-1] == "    ValueError: no paper"
    assert all(line.startswith("    ") for line in text[1:])
    data = json.loads(JsonFormatter(Redactor()).format(raised("no paper")))
    assert data["message"] == "it failed"
    assert data["trouble"].endswith("ValueError: no paper")


def test_a_long_record_is_cut_and_says_so() -> None:
    line = TextFormatter(Redactor()).format(record("x" * 100_000))
    assert len(line) < 66_000
    assert line.endswith("… (34464 more characters cut)")


def test_a_record_whose_arguments_do_not_fit_is_written_all_the_same() -> None:
    assert "'%d runs' with ('three',) (TypeError:" in TextFormatter(Redactor()).format(record("%d runs", "three"))


def test_no_secret_is_written_wherever_it_comes_from() -> None:
    hidden = Redactor()
    for secret in ("hunter2", "hunter2-and-more", "abc", ""):
        hidden.add(secret)
    for lines in (TextFormatter(hidden), JsonFormatter(hidden)):
        line = lines.format(record("sent %s to %s", "hunter2-and-more", "postgresql://ann:s3cret@db/x?a=hunter2"))
        assert "sent *** to postgresql://ann:***@db/x?a=***" in line
        assert "hunter2" not in lines.format(raised("token hunter2 refused"))
        assert "hunter2" not in lines.format(record("x", run="hunter2"))
        assert "abc" in lines.format(record("abc"))  # too short to be distinguished from other words


def test_what_a_job_logs_has_its_run_and_its_task(tmp_path: Path) -> None:
    scheduler = Scheduler("sqlite://")
    logs = set_up_logs(file=tmp_path / "log", form="json", environ={})
    logs.name_node("web1")

    @scheduler.task
    def speak() -> None:
        logging.getLogger("shop").info("from a thread")

    @scheduler.task
    async def whisper() -> None:
        logging.getLogger("shop").info("from a coroutine")

    ended = threading.Semaphore(0)
    scheduler.on("succeeded", lambda event: ended.release())
    with scheduler:
        ids = {"speak": speak.sync.enqueue().id, "whisper": whisper.sync.enqueue().id}
        for _ in ids:
            assert ended.acquire(timeout=20)
    found = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    said = {line["task"]: (line["run"], line["node"]) for line in found if line["logger"] == "shop"}
    assert said == {task: (run, "web1") for task, run in ids.items()}
    assert all("run" not in line for line in found if line["message"].endswith("has started"))


# --- levels ---


@pytest.mark.parametrize(
    ("level", "verbose", "ours", "others", "httpx"),
    [
        ("info", 0, logging.INFO, logging.INFO, logging.WARNING),
        ("warning", 0, logging.WARNING, logging.WARNING, logging.WARNING),
        ("info", 1, logging.DEBUG, logging.INFO, logging.WARNING),
        ("warning", 1, logging.DEBUG, logging.WARNING, logging.WARNING),
        ("info", 2, logging.DEBUG, logging.DEBUG, logging.DEBUG),
        ("info", 3, TRACE, TRACE, TRACE),
        ("info", 7, TRACE, TRACE, TRACE),
        ("trace", 1, TRACE, TRACE, logging.WARNING),
    ],
)
def test_each_v_shows_more(tmp_path: Path, level: str, verbose: int, ours: int, others: int, httpx: int) -> None:
    set_up_logs(file=tmp_path / "log", level=level, verbose=verbose, environ={})
    assert logging.getLogger("evertick.engine").getEffectiveLevel() == ours
    assert logging.getLogger("asyncio").getEffectiveLevel() == others
    assert logging.getLogger("httpx").getEffectiveLevel() == httpx


def test_a_level_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="'loud' must be one of trace, debug, info, warning, error"):
        set_up_logs(file=tmp_path / "log", level="loud", environ={})


def test_trace_tells_every_step_of_every_loop(tmp_path: Path) -> None:
    set_up_logs(file=tmp_path / "log", verbose=3, environ={})
    with Scheduler("sqlite://"):
        pass
    steps = re.findall(r"TRACE   evertick.engine: loop (\w+): step took", (tmp_path / "log").read_text())
    assert {"fire", "work"} <= set(steps)


# --- the file ---


def test_the_file_is_for_its_owner_and_group(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        set_up_logs(file=tmp_path / "log", environ={})
    finally:
        os.umask(before)
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o640


def test_a_file_in_a_directory_that_is_closed_to_this_user_is_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    with closed_to_us(folder), pytest.raises(Refused, match=f"Permission denied.; let this user write to {folder}, or"):
        set_up_logs(file=folder / "log", environ={})


@pytest.mark.parametrize("name", ["no/such/folder/log", "."])
def test_a_file_that_cannot_be_opened_is_refused_with_what_to_do(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refused, match=r"log file .*: opening failed \(.*\); .*, or name another --log-file"):
        set_up_logs(file=tmp_path / name, environ={})


def test_a_file_that_was_moved_away_is_created_again_with_the_next_record(tmp_path: Path) -> None:
    path = tmp_path / "log"
    set_up_logs(file=path, environ={})
    log = logging.getLogger("shop")
    log.info("one")
    path.rename(tmp_path / "log.1")
    log.info("two")
    path.unlink()
    log.info("three")
    path.rename(tmp_path / "log.2")
    path.write_text("made by logrotate\n")
    log.info("four")
    assert (tmp_path / "log.1").read_text().endswith("shop: one\n")
    assert (tmp_path / "log.2").read_text().endswith("shop: three\n")
    assert re.fullmatch(r"made by logrotate\n.* shop: four\n", path.read_text())


def test_reopening_takes_the_file_that_is_there_now(tmp_path: Path) -> None:
    path = tmp_path / "log"
    logs = set_up_logs(file=path, environ={})
    before = len(os.listdir("/proc/self/fd"))
    path.rename(tmp_path / "log.1")
    logs.reopen()
    assert path.exists()
    assert len(os.listdir("/proc/self/fd")) == before


def test_where_no_new_file_can_be_made_the_old_one_is_written_on(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    logs = set_up_logs(file=folder / "log", environ={})
    folder.rename(tmp_path / "elsewhere")
    logs.reopen()
    logging.getLogger("shop").info("still here")
    text = (tmp_path / "elsewhere/log").read_text()
    assert "reopening failed (No such file or directory" in text
    assert text.endswith("shop: still here\n")
    folder.mkdir()
    logging.getLogger("shop").info("and here again")
    assert (folder / "log").read_text().endswith("shop: and here again\n")


def test_rotation_under_load_loses_no_record_and_tears_none(tmp_path: Path) -> None:
    """Three threads write; the file is moved away thirty times, and half of the times the process gets a signal."""
    path = tmp_path / "log"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for turn in range(30):
            while not (path.exists() and path.stat().st_size > 0):
                assert process.poll() is None
            path.rename(tmp_path / f"log.{turn}")
            if turn % 2:
                process.stdin.write("\n")
                process.stdin.flush()
                assert process.stdout.readline() == "reopened\n"
        told, _ = process.communicate("")
    written = {name: int(count) for name, count in (line.split() for line in told.splitlines())}
    assert set(written) == set("abc")
    lines = [line for file in tmp_path.glob("log*") for line in file.read_text().splitlines()]
    found = [re.fullmatch(r"\S+ \S+ INFO    writer: record (\w-\d+)", line) for line in lines]
    assert [line for line, match in zip(lines, found, strict=True) if match is None] == []
    names = sorted(match[1] for match in found if match)
    assert names == sorted(f"{name}-{number}" for name, count in written.items() for number in range(count))


def test_a_full_disk_costs_records_but_says_how_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    set_up_logs(file=path, environ={})
    log, write = logging.getLogger("shop"), os.write
    left = 10

    def full(descriptor: int, data: bytes) -> int:
        nonlocal left
        if left == 0:
            raise OSError(28, "No space left on device")
        taken = write(descriptor, data[:left])
        left -= taken
        return taken

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        log.info("torn")
        log.info("lost")
    log.info("whole")
    first, second, third = path.read_text().splitlines()
    assert len(first) == 10
    assert second == "(2 records before this one could not be written)"
    assert third.endswith("shop: whole")


def test_an_error_that_ends_a_thread_is_in_the_log(tmp_path: Path) -> None:
    def fall() -> None:
        raise ValueError("no paper")

    set_up_logs(file=tmp_path / "log", environ={})
    thread = threading.Thread(target=fall, name="falling")
    thread.start()
    thread.join()
    text = (tmp_path / "log").read_text()
    assert "thread 'falling': failed" in text
    assert "ValueError: no paper" in text


# --- without a file ---


def test_without_a_file_it_goes_to_stderr_and_for_the_journal_in_its_form(capfd: pytest.CaptureFixture[str]) -> None:
    set_up_logs(file=None, environ={"JOURNAL_STREAM": "1:2"})
    logging.getLogger("shop").info("to a reader")
    assert re.fullmatch(r"\d{4}-.* INFO    shop: to a reader\n", capfd.readouterr().err)
    facts = os.fstat(sys.stderr.fileno())
    set_up_logs(file=None, environ={"JOURNAL_STREAM": f"{facts.st_dev}:{facts.st_ino}"})
    logging.getLogger("shop").info("to the journal")
    assert capfd.readouterr().err == "<6>shop: to the journal\n"


def test_reopening_without_a_file_does_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    logs: Logs = set_up_logs(file=None, environ={})
    logs.reopen()
    assert not isinstance(logs.handler, LogFile)
    assert capfd.readouterr().err == ""


# --- what stands in place of the file ---


def test_the_standard_output_is_no_log_file_and_is_never_to_be_removed() -> None:
    with pytest.raises(Refused, match="leave --log-file out to log to stderr, or name a file") as refused:
        LogFile(Path("/dev/stdout"))
    assert "remove it" not in str(refused.value)


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "directory", "socket"])
def test_what_is_no_regular_file_of_its_own_name_is_no_log_file(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "daemon.log", tmp_path / "other"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(os.path.relpath(path))
    else:
        path.symlink_to(other)
        if kind == "link":
            other.write_text("theirs")
    what = {"pipe": "a named pipe", "directory": "a directory", "socket": "a socket"}.get(kind, "a symbolic link")
    with pytest.raises(Refused) as refused:
        LogFile(path)
    assert str(refused.value) == (
        f"log file {path}: opening failed (it is {what}, not a regular file); remove it, or name another --log-file"
    )
    assert kind == "link" or not other.exists()
    assert kind != "link" or other.read_text() == "theirs"


def test_root_writes_to_no_file_that_has_a_second_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = tmp_path / "daemon.log", tmp_path / "other"
    other.write_text("theirs")
    path.hardlink_to(other)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(Refused, match="it has 2 hard links, so another user may have linked a file of root there"):
        LogFile(path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    LogFile(path).close()
    assert other.read_text() == "theirs"


@pytest.mark.parametrize("how", ["found at a record", "asked for"])
def test_a_link_in_place_of_the_moved_file_is_not_followed(tmp_path: Path, how: str) -> None:
    path, old, other = tmp_path / "daemon.log", tmp_path / "daemon.log.1", tmp_path / "other"
    other.write_text("theirs\n")
    logs = set_up_logs(file=path, environ={})
    log = logging.getLogger("evertick.test")
    log.info("one")
    path.rename(old)
    path.symlink_to(other if how == "found at a record" else old)
    if how == "asked for":
        logs.reopen()
    log.info("two")
    log.info("three")
    assert other.read_text() == "theirs\n"
    told = old.read_text()
    assert re.findall(r"(?<=evertick.test: )\w+", told) == ["one", "two", "three"]
    said = f"log file {path}: reopening failed (it is a symbolic link, not a regular file)"
    assert said in told
    assert told.count(said) == 1
    path.unlink()
    log.info("four")
    assert path.read_text().endswith("four\n")


def test_a_terminal_may_be_the_log_file(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    logs = LogFile(Path(os.ttyname(theirs)))
    logs.emit(record("hello"))
    assert b"hello" in os.read(ours, 100)
    logs.close()
    os.close(ours)
    os.close(theirs)
