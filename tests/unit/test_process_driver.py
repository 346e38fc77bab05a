"""Parts of the process driver: frames, names of functions, settings, outcomes of children, keepers."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evertick import Constant, InvalidSetting, Process, Refused, Retry, Scheduler
from evertick.driver.base import RemoteError, Work, type_name
from evertick.driver.python import child_import
from evertick.driver.python.child_import import FunctionLocation, import_function, location_of, type_names
from evertick.driver.python.child_protocol import (
    FRAME_MAX_BYTES,
    BadFrame,
    Call,
    ChildCall,
    Frames,
    FromChild,
    JobReturned,
    Progress,
    Ready,
    StopJob,
    pack,
    unpack,
)
from evertick.driver.shell import keeper
from evertick.driver.shell.output import LogLines
from evertick.driver.shell.supervised import Ending, SupervisedCommand
from evertick.engine.judge import Raised, judge
from evertick.errors import NotFound
from evertick.model import Claimed

RUN = Claimed(id="r", fence=7, task="t", args=b"{}", fire_at=0, due_at=0, claimed_at=0)


def at_the_top() -> None: ...


# --- frames


def test_frames_are_read_as_written_for_every_split_of_the_stream() -> None:
    messages: list[FromChild] = [Ready(), Progress(lines=((1, "info", "grün"),), progress=(0.5, "half"))]
    messages.append(JobReturned(result=msgspec.Raw(b'{"a":[1,2]}')))
    stream = b"".join(map(pack, messages))
    decoder = msgspec.json.Decoder(FromChild)
    for step in (1, 3, len(stream)):
        frames = Frames()
        chunks = [stream[at : at + step] for at in range(0, len(stream), step)]
        found = [unpack(frame, decoder) for chunk in chunks for frame in frames.feed(chunk)]
        assert [pack(each) for each in found] == [pack(each) for each in messages]


def test_a_frame_that_is_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadFrame, match="a frame of 1048577 bytes, more than 1048576"):
        Frames().feed((FRAME_MAX_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(BadFrame, match="more than 1048576"):
        pack(StopJob("x" * FRAME_MAX_BYTES))


@pytest.mark.parametrize(
    "frame", [b"", b"nonsense", b'{"type":"Nobody"}', b'{"type":"Progress","lines":3}', b"\xff\xfe"]
)
def test_an_invalid_frame_is_refused(frame: bytes) -> None:
    with pytest.raises(BadFrame, match="an unreadable message"):
        unpack(frame, msgspec.json.Decoder(FromChild))


def test_a_call_with_the_largest_arguments_fits_in_a_frame() -> None:
    run = msgspec.structs.replace(RUN, args=b"x" * 256 * 1024)
    assert len(pack(Call(run, None))) < FRAME_MAX_BYTES


# --- names of functions


def test_a_function_at_the_top_of_a_module_is_found_by_its_name() -> None:
    place = location_of(at_the_top, "t")
    assert place == FunctionLocation(module=__name__, qualname="at_the_top")
    assert import_function(place) is at_the_top


class Holder:
    @staticmethod
    def at_the_top() -> None: ...

    def method(self) -> None: ...


def test_a_function_in_a_class_is_found_too() -> None:
    assert import_function(location_of(Holder.at_the_top, "t")) is Holder.at_the_top


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: None, "which is defined inside a function"),
        (functools.partial(at_the_top), "another process cannot import"),
        (Holder().method, "another process cannot import"),
    ],
)
def test_a_function_that_cannot_be_imported_is_refused_at_its_declaration(
    function: Callable[..., Any], words: str
) -> None:
    scheduler = Scheduler("sqlite://")
    with pytest.raises(InvalidSetting, match=words) as refused:
        scheduler.task(process=True, name="t")(function)
    assert "at the top of a module" in str(refused.value)
    scheduler.task(name="t")(function)  # the refused declaration has left nothing behind


def test_a_nested_function_is_refused_with_its_name_and_the_fix() -> None:
    def nested() -> None: ...

    with pytest.raises(InvalidSetting) as refused:
        Scheduler("sqlite://").every("1h", process=True)(nested)
    assert str(refused.value) == (
        "task 'nested': process: another process cannot import "
        "'test_a_nested_function_is_refused_with_its_name_and_the_fix.<locals>.nested', which is defined inside a "
        "function; define it at the top of a module "
        "(a decorator around it needs functools.wraps)"
    )


def test_a_function_of_an_interactive_session_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_the_top, "__module__", "__main__")
    monkeypatch.setitem(sys.modules, "__main__", type(sys)("__main__"))
    with pytest.raises(InvalidSetting, match="which is not in a file"):
        location_of(at_the_top, "t")


def test_a_name_that_its_module_lacks_is_refused_with_the_reason() -> None:
    with pytest.raises(NotFound, match="has no 'gone' when it is imported; define it at the top"):
        import_function(FunctionLocation(module=__name__, qualname="gone"))


def test_classes_of_the_main_module_have_the_same_name_in_the_child() -> None:
    place = FunctionLocation(module=__name__, qualname="at_the_top", is_main=True)
    assert type_names(Holder, place) == {"__main__:Holder", "builtins:object"}
    assert type_name(Holder) == f"{__name__}:Holder"


# --- settings


def test_the_process_settings_are_checked_at_the_declaration() -> None:
    assert repr(Process()) == "Process(warm=0, recycle=100, kill_after='2s')"
    for wrong in ({"warm": -1}, {"warm": True}, {"warm": 257}, {"recycle": 0}, {"recycle": 1.5}, {"kill_after": "6m"}):
        with pytest.raises(InvalidSetting, match=next(iter(wrong))):
            Process(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match=r"task 't': process: 2 is not a valid value; pass True or Process\(...\)"):
        Scheduler("sqlite://").task(process=2, name="t")(at_the_top)  # type: ignore[call-overload]


def test_a_run_is_not_past_its_deadline_while_its_child_is_being_killed() -> None:
    task = Scheduler("sqlite://").task(timeout="10s", process=Process(kill_after="3m"))(at_the_top)
    assert task.work.timeout == 10_000_000
    assert task.work.terms.timeout == 190_000_000


def test_process_false_makes_an_ordinary_task() -> None:
    assert Scheduler("sqlite://").task(process=False)(at_the_top).work.driver.name == "function"
    assert Scheduler("sqlite://").task(process=True)(at_the_top).work.driver.name == "process"


# --- outcomes of a child


def test_an_error_of_a_child_is_matched_by_type_names_and_kept_unchanged() -> None:
    reported = RemoteError(
        "Traceback …\nLookupError: gone", types=type_names(KeyError, FunctionLocation(module="m", qualname="q"))
    )
    work = Work(task="t", driver=None, hash="", retry=Constant("1s", attempts=2))  # type: ignore[arg-type]
    for options, kind in (
        ({}, "retry"),
        ({"retry_on": (LookupError,)}, "retry"),
        ({"retry_on": (OSError,)}, "done"),
        ({"give_up_on": (KeyError,)}, "done"),
    ):
        outcome = judge(RUN, msgspec.structs.replace(work, **options), Raised(reported), lambda: 0.0)
        assert outcome is not None
        assert (outcome.kind, outcome.error) == (kind, reported.text)


def test_a_retry_raised_in_a_child_keeps_its_delay() -> None:
    reported = RemoteError("…", types=frozenset(), retry=Retry("not yet", after="5m"))
    outcome = judge(RUN, Work(task="t", driver=None, hash=""), Raised(reported), lambda: 0.0)  # type: ignore[arg-type]
    assert outcome is not None
    assert (outcome.kind, outcome.delay) == ("retry", 300_000_000)


# --- forbidden in a child


@pytest.fixture
def in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_import, "_is_child", True)


@pytest.mark.usefixtures("in_a_child")
async def test_a_job_in_a_child_cannot_use_a_ledger_in_memory(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="the ledger is in the memory of its node"):
        await Scheduler("sqlite://").runs()
    scheduler = Scheduler(f"sqlite:///{tmp_path}/jobs.db")
    assert await scheduler.runs() == []
    await scheduler.close()


def test_an_import_in_a_child_cannot_start_a_scheduler_even_on_a_second_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child_import, "_is_child", False)
    with child_import.importing_for("t"):
        for _ in range(2):
            with pytest.raises(
                SystemExit, match="starts a scheduler while a child process imports it for task 't'"
            ) as ended:
                Scheduler("sqlite://").run()
            assert isinstance(ended.value.__cause__, Refused)
    child_import.check_may_start()


def test_a_call_is_decoded_in_the_child_as_it_was_encoded() -> None:
    location = FunctionLocation(module="m", qualname="q", script="/s.py")
    call = ChildCall(task="t", location=location, url="sqlite://", calls_max=1, log_level=30)
    assert msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(call))), ChildCall) == call


# --- any command under a keeper


async def kept(*command: str, lines: list[tuple[str, str]] | None = None) -> SupervisedCommand:
    received = [] if lines is None else lines
    return SupervisedCommand(command, LogLines(lambda stream, text: received.append((stream, text))))


async def ending(started: SupervisedCommand) -> Ending:
    return await asyncio.wait_for(started.ended, 20)


async def test_a_supervised_command_reports_its_lines_and_its_end() -> None:
    lines: list[tuple[str, str]] = []
    started = await kept("sh", "-c", "echo one; echo two >&2; printf 'no end'; exit 4", lines=lines)
    assert (await ending(started)).code == 4
    assert sorted(lines) == [("stderr", "two"), ("stdout", "no end"), ("stdout", "one")]


async def test_a_supervised_command_that_cannot_be_started_reports_the_reason() -> None:
    end = await ending(await kept("/no/such/program"))
    assert str(end) == "the command could not be started: /no/such/program: No such file or directory"


async def test_endless_output_without_lines_is_cut_into_lines() -> None:
    lines: list[tuple[str, str]] = []
    started = await kept("sh", "-c", "head -c 100000 /dev/zero | tr '\\0' x", lines=lines)
    assert (await ending(started)).code == 0
    assert sum(len(text) for _, text in lines) == 100_000
    assert max(len(text) for _, text in lines) <= 8192 + 65_536


async def test_a_supervised_command_that_ignores_term_is_killed_after_its_stop_time() -> None:
    lines: list[tuple[str, str]] = []
    started = await kept("sh", "-c", "trap '' TERM; echo ready; sleep 1000; sleep 1000", lines=lines)
    while not lines:
        await asyncio.sleep(0.005)
    began = asyncio.get_running_loop().time()
    started.stop(60)
    started.stop(0.2)  # the shorter limit applies
    started.stop(60)
    assert (await ending(started)).signal == signal.SIGKILL
    assert 0.2 <= asyncio.get_running_loop().time() - began < 10


async def test_a_command_dies_with_its_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "killpg", lambda *_: None)  # as if the node had died with the keeper
    lines: list[tuple[str, str]] = []
    started = await kept("sh", "-c", "echo $$ $PPID; exec sleep 1000", lines=lines)
    while not lines:
        await asyncio.sleep(0.005)
    command, keeper = map(int, lines[0][1].split())
    os.kill(keeper, signal.SIGKILL)
    assert str(await ending(started)).startswith("the keeper process was killed, so the command was killed, too")
    async with asyncio.timeout(10):
        while is_alive(command):
            await asyncio.sleep(0.005)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="others have no orphans to adopt")
def test_a_keeper_finds_its_children_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the kernel's list of children, or through every process id on kernels without it."""
    sleeper = subprocess.Popen(["sleep", "1000"])
    stranger = os.getppid()
    try:
        found = [keeper._children_by_waitid()]
        if os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
            found.append(keeper._children())
        monkeypatch.setattr(keeper, "_hides_processes", lambda: True)
        monkeypatch.setattr(keeper, "open", _open_without_children_file, raising=False)
        found.append(keeper._children())
    finally:
        sleeper.kill()
        sleeper.wait()
    assert all(sleeper.pid in each and stranger not in each for each in found), found


def _open_without_children_file(path: str, mode: str) -> Any:
    if path.endswith("/children"):
        raise FileNotFoundError(path)
    return open(path, mode)


async def test_keeper_and_command_do_not_inherit_files_of_the_node(tmp_path: Path) -> None:
    lines: list[tuple[str, str]] = []
    with (tmp_path / "store").open("w") as store:
        os.set_inheritable(store.fileno(), True)
        started = await kept("sh", "-c", "ls -l /proc/$$/fd; echo $PPID; exec sleep 1000", lines=lines)
        while not (lines and lines[-1][1].isdigit()):
            await asyncio.sleep(0.005)
        assert not any("store" in text for _, text in lines)
        keeper = lines[-1][1]
        held = sorted(os.readlink(f"/proc/{keeper}/fd/{name}") for name in os.listdir(f"/proc/{keeper}/fd"))
    # Its connection, and the pipe for signal wake-ups.
    others = [each for each in held if each != "/dev/null"]
    assert [each.partition(":")[0] for each in others] == ["pipe", "pipe", "socket"]
    assert others[0] == others[1], "both ends of one pipe"
    started.stop(1)
    assert (await ending(started)).signal == signal.SIGTERM
