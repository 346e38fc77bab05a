"""Values that a ledger cannot give back as they were, or that no terminal shows: refused at the call, on each store."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from evertick import (
    Calendar,
    Context,
    EvertickError,
    InvalidArguments,
    InvalidInput,
    InvalidKey,
    Scheduler,
)
from evertick.cli import cli
from evertick.text.values import encode_data, shown

HOSTILE = ["half \ud800", "zero \x00", "bell \x07", "escape \x1b[2J", "delete \x7f", "c1 \x9b"]
HUGE = "x" * 10**7
NOW = datetime.now(UTC)
# An error names the value shortened: whatever was given, it can be read, logged and kept.
MESSAGE_MOST = 1_000


@pytest.fixture(params=["sqlite", "postgres"])
def scheduler(request: pytest.FixtureRequest, tmp_path: Path) -> Scheduler:
    is_sqlite = request.param == "sqlite"
    scheduler = Scheduler(f"sqlite:///{tmp_path}/l.db" if is_sqlite else request.getfixturevalue("postgres_url"))

    @scheduler.task
    def job(value: Any = None) -> None: ...

    @scheduler.task
    def save(data: bytes, name: str = "") -> None: ...

    @scheduler.task
    def later(when: float | None = None) -> None: ...

    return scheduler


Call = Callable[[Scheduler, Any], Any]

# All calls that take arguments or data from a program.
TAKING_DATA: dict[str, Call] = {
    "enqueue": lambda s, value: s.runtime.tasks["job"].enqueue(value=value),
    "enqueue_many": lambda s, value: s.runtime.tasks["job"].enqueue_many([{"value": value}]),
    "add": lambda s, value: s.add(key="new", when="hourly", task="job", args={"value": value}),
    "add of an unknown task": lambda s, value: s.add(key="new", when="hourly", task="elsewhere", args={"value": value}),
    "update": lambda s, value: s.update("k", args={"value": value}),
    "update of an unknown task": lambda s, value: s.update("e", args={"value": value}),
    "trigger": lambda s, value: s.trigger("k", args={"value": value}),
    "trigger of an unknown task": lambda s, value: s.trigger("e", args={"value": value}),
    "backfill": lambda s, value: s.backfill("k", NOW - timedelta(days=1), NOW, args={"value": value}),
    "send": lambda s, value: s.send("channel", {"value": value}),
}
# All that take a text by which something is found, named or described.
TAKING_TEXT: dict[str, Call] = {
    "add": lambda s, text: s.add(key=text, when="hourly", task="job"),
    "task of add": lambda s, text: s.add(key="new", when="hourly", task=text),
    "labels of add": lambda s, text: s.add(key="new", when="hourly", task="job", labels={"team": text}),
    "names of labels": lambda s, text: s.add(key="new", when="hourly", task="job", labels={text: "sales"}),
    "queue": lambda s, text: s.add(key="new", when="hourly", task="job", queue=text),
    "unique": lambda s, text: s.add(key="new", when="hourly", task="job", unique=text),
    "update": lambda s, text: s.update(text, priority=1),
    "labels of update": lambda s, text: s.update("k", labels={"team": text}),
    "remove": lambda s, text: s.remove(text),
    "pause": lambda s, text: s.pause(text),
    "note of pause": lambda s, text: s.pause("k", note=text),
    "resume": lambda s, text: s.resume(text),
    "trigger": lambda s, text: s.trigger(text),
    "schedule": lambda s, text: s.schedule(text),
    "schedules": lambda s, text: s.schedules(labels={"team": text}),
    "why": lambda s, text: s.why(text),
    "preview": lambda s, text: s.preview(key=text),
    "preview_change": lambda s, text: s.preview_change(text, "daily at 9:00"),
    "skip_next": lambda s, text: s.skip_next(text),
    "note of skip_next": lambda s, text: s.skip_next("k", note=text),
    "move": lambda s, text: s.move(text, NOW, to=NOW),
    "note of move": lambda s, text: s.move("k", NOW, to=NOW, note=text),
    "run_early": lambda s, text: s.run_early(text),
    "undo": lambda s, text: s.undo(text),
    "pause_many": lambda s, text: s.pause_many(labels={"team": text}),
    "note of pause_many": lambda s, text: s.pause_many(everything=True, note=text),
    "resume_many": lambda s, text: s.resume_many(labels={"team": text}),
    "backfill": lambda s, text: s.backfill(text, NOW - timedelta(days=1), NOW),
    "get_run": lambda s, text: s.get_run(text),
    "cancel": lambda s, text: s.cancel(text),
    "rerun": lambda s, text: s.rerun(text),
    "attempts": lambda s, text: s.attempts(text),
    "log": lambda s, text: s.log(text),
    "runs": lambda s, text: s.runs(text),
    "runs of a task": lambda s, text: s.runs(task=text),
    "runs by labels": lambda s, text: s.runs(labels={"team": text}),
    "gaps": lambda s, text: s.gaps(text),
    "history": lambda s, text: s.history(text),
    "rerun_many": lambda s, text: s.rerun_many(schedule_key=text),
    "rerun_many of a task": lambda s, text: s.rerun_many(task=text),
    "calendar": lambda s, text: s.calendar(text),
    "calendar_users": lambda s, text: s.calendar_users(text),
    "remove_calendar": lambda s, text: s.remove_calendar(text),
    "calendar of a rule": lambda s, text: s.add(key="new", when=f"0 9 * * *; calendar={text}", task="job"),
    "a calendar": lambda s, text: s.set_calendar(Calendar(text, exclude=["sat"])),
    "days of a calendar": lambda s, text: s.set_calendar(Calendar("c", exclude=[text])),
    "blackout": lambda s, text: s.update("k", blackout=text),
    "when": lambda s, text: s.add(key="new", when=text, task="job"),
    "duration": lambda s, text: s.update("k", grace=text),
    "channel": lambda s, text: s.send(text, {}),
    "key of a message": lambda s, text: s.send("channel", {}, key=text),
    "names of headers": lambda s, text: s.send("channel", {}, headers={text: "x"}),
    "headers": lambda s, text: s.send("channel", {}, headers={"x": text}),
    "messages": lambda s, text: s.messages(channel=text),
    "get_message": lambda s, text: s.get_message(text),
    "retry_message": lambda s, text: s.retry_message(text),
    "drop_message": lambda s, text: s.drop_message(text),
    "retry_dead": lambda s, text: s.retry_dead(channel=text),
    "feed_page": lambda s, text: s.feed_page(text),
    "feed_page of a schedule": lambda s, text: s.feed_page(schedule=text),
    "kinds of feed_page": lambda s, text: s.feed_page(kinds=[text]),
    "states": lambda s, text: s.runs(states=[text]),
    "unique of a call": lambda s, text: s.runtime.tasks["job"].options(unique=text).enqueue(),
    "queue of a call": lambda s, text: s.runtime.tasks["job"].options(queue=text).enqueue(),
    "labels of a call": lambda s, text: s.runtime.tasks["job"].options(labels={"team": text}).enqueue(),
    "delay of a call": lambda s, text: s.runtime.tasks["job"].options(delay=text).enqueue(),
}
# All that takes something while a program is set up.
SETTING_UP: dict[str, Call] = {
    "url": lambda _, text: Scheduler(text),
    "app": lambda _, text: Scheduler("sqlite://", app=text),
    "node_name": lambda _, text: Scheduler("sqlite://", node_name=text),
    "queues": lambda _, text: Scheduler("sqlite://", queues=[text]),
    "tz": lambda _, text: Scheduler("sqlite://", tz=text),
    "lease": lambda _, text: Scheduler("sqlite://", lease=text),
    "migrate": lambda _, text: Scheduler("sqlite://", migrate=text),
    "rate_limits": lambda _, text: Scheduler("sqlite://", rate_limits=text),
    "allow_schedules": lambda _, text: Scheduler("sqlite://", allow_schedules=[text]),
    "drivers": lambda _, text: Scheduler("sqlite://", drivers=[text]),
    "concurrency": lambda _, text: Scheduler("sqlite://", concurrency=text),
    "name of a task": lambda s, text: s.task(name=text)(lambda: None),
    "key of a schedule": lambda s, text: s.every("1h", key=text)(print_nothing),
    "labels of a schedule": lambda s, text: s.every("1h", labels={"team": text})(print_nothing),
    "cron": lambda s, text: s.cron(text),
    "every": lambda s, text: s.every(text),
    "overlap": lambda s, text: s.every("1h", overlap=text)(print_nothing),
    "catch_up": lambda s, text: s.every("1h", catch_up=text)(print_nothing),
    "retry": lambda s, text: s.task(retry=text)(print_nothing),
    "retry_on": lambda s, text: s.task(retry_on=text)(print_nothing),
    "timeout": lambda s, text: s.task(timeout=text)(print_nothing),
    "rate": lambda s, text: s.task(rate=text)(print_nothing),
    "rate_key": lambda s, text: s.task(rate="1/s", rate_key=text)(print_nothing),
    "limit": lambda s, text: s.task(concurrency=text)(print_nothing),
    "priority": lambda s, text: s.task(lambda: None, name="t").options(priority=text),
    "duty": lambda s, text: s.duty(text, every="1s"),
    "sender": lambda s, text: s.sender(text),
    "hook": lambda s, text: s.on(text),
}


def print_nothing() -> None: ...


class Parcel(msgspec.Struct):
    content: bytes
    stamp: bytes = b"stamp"


@pytest.fixture
async def ledger(scheduler: Scheduler) -> AsyncIterator[Scheduler]:
    """With a schedule of a task that is here, and of one that is not. All calls share it, because none changes it."""
    await scheduler.keep_feed("1d")
    await scheduler.add(key="k", when="hourly", task="job")
    await scheduler.add(key="e", when="hourly", task="elsewhere")
    yield scheduler
    await scheduler.close()


async def refusal(ledger: Scheduler, make: Call, value: Any, name: str) -> Exception:
    try:
        await make(ledger, value)
    except EvertickError as refused:
        return refused
    raise AssertionError(f"{name}: nothing was refused")


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (float("nan"), "nan is not a JSON number; pass None or text instead"),
        ({"deep": [1.5, float("-inf")]}, "['deep'][1]: -inf is not a JSON number"),
        (b"\x00raw", r"b'\x00raw' would come back as text"),
        ([bytearray(b"raw")], "[0]: b'raw' would come back as text"),
        ("half \ud800", "holds half a character (an unpaired surrogate)"),
    ],
)
async def test_data_that_would_come_back_otherwise_is_refused(ledger: Scheduler, value: Any, named: str) -> None:
    for name, make in TAKING_DATA.items():
        refused = await refusal(ledger, make, value, name)
        assert isinstance(refused, InvalidInput), name
        assert named in str(refused), name
        keys = [schedule.key for schedule in await ledger.schedules()]
        assert (await ledger.runs(), await ledger.messages(), keys) == ([], [], ["e", "k"]), f"{name} changed something"


async def test_text_that_no_database_or_terminal_holds_is_refused(ledger: Scheduler) -> None:
    for name, make in TAKING_TEXT.items():
        for text in HOSTILE:
            refused = await refusal(ledger, make, text, name)
            assert isinstance(refused, InvalidInput), name
            assert str(refused).isprintable(), f"{name}: the error itself can be shown anywhere"
            assert len(str(refused)) < MESSAGE_MOST, name


async def test_an_error_about_a_huge_text_is_short(ledger: Scheduler) -> None:
    for name, make in TAKING_TEXT.items():
        for huge in (HUGE, HUGE.encode(), (HUGE,)):
            assert len(str(await refusal(ledger, make, huge, name))) < MESSAGE_MOST, name


@pytest.mark.parametrize("name", SETTING_UP)
def test_an_error_about_a_huge_setting_is_short(name: str) -> None:
    for huge in (HUGE, HUGE.encode(), [HUGE]):
        with pytest.raises(EvertickError) as refused:
            SETTING_UP[name](Scheduler("sqlite://"), huge)
        assert len(str(refused.value)) < MESSAGE_MOST


def test_an_over_long_id_is_named_by_its_beginning_and_its_size() -> None:
    scheduler = Scheduler("sqlite://")
    with pytest.raises(
        InvalidKey, match=r"^run: 'x{80}'… \(10,000,000 characters\) must have 1 to 200 characters, not 10000000$"
    ):
        scheduler.sync.get_run(HUGE)
    scheduler.sync.close()


async def test_bytes_are_kept_where_the_function_asks_for_bytes(tmp_path: Path) -> None:
    got = list[object]()
    scheduler = Scheduler(f"sqlite:///{tmp_path}/l.db")

    @scheduler.task
    async def save(data: bytes, parcels: list[Parcel], names: dict[str, bytes], extra: bytes = b"more") -> None:
        got.append((data, parcels, names, extra))
        done.set()

    done = asyncio.Event()
    parcels = [Parcel(b"\xff\x00"), Parcel(b"", b"other")]
    async with scheduler:
        await save.enqueue(data=b"\x00\xffabc", parcels=parcels, names={"a": b"1", "b": b"1"})
        await asyncio.wait_for(done.wait(), 10)
    assert got == [(b"\x00\xffabc", parcels, {"a": b"1", "b": b"1"}, b"more")]


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda data: None, {"data": b"raw"}),
        ("text", {"data": b"raw"}),
        ("anything", {"data": b"raw"}),
        ("either", {"data": b"raw"}),
        ("bytes", {"data": b"raw", "name": b"raw"}),
        ("keywords", {"data": b"raw"}),
    ],
)
async def test_bytes_are_refused_where_they_would_arrive_as_text(function: Any, args: Mapping[str, Any]) -> None:
    def text(data: str) -> None: ...
    def anything(data: Any) -> None: ...
    def either(data: str | int) -> None: ...
    def keywords(**more: Any) -> None: ...
    def with_bytes(data: bytes, name: str = "") -> None: ...

    named = {"text": text, "anything": anything, "either": either, "bytes": with_bytes, "keywords": keywords}
    scheduler = Scheduler("sqlite://")
    task = scheduler.task(named.get(function, function) if isinstance(function, str) else function, name="job")
    with pytest.raises(InvalidArguments, match=r"(data|name): b'raw' would come back as text; .*: bytes` in the func"):
        await task.enqueue(**args)
    with pytest.raises(InvalidArguments, match="would come back as text"):
        scheduler.every("1h", args=args)(task)


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ({"mean": float("nan")}, "the result['mean']: nan is not a JSON number"),
        (b"raw", "the result: b'raw' would come back as text"),
    ],
)
async def test_a_result_that_would_come_back_otherwise_is_not_kept_and_the_log_says_so(
    scheduler: Scheduler, result: object, told: str
) -> None:
    """The work is done: to call it failed would have it done again."""

    @scheduler.task
    async def measure() -> object:
        return result

    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    scheduler.on("succeeded", lambda event: loop.call_soon_threadsafe(ended.set))
    async with scheduler:
        run = await measure.enqueue()
        await asyncio.wait_for(ended.wait(), 20)
        kept = await scheduler.get_run(run.id)
        [line] = await scheduler.log(run.id)
    assert (kept.verdict, kept.result) == ("succeeded", None)
    assert line.text.startswith("the result is not kept: ")
    assert told in line.text


async def test_no_character_in_the_words_of_a_job_fails_it(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    nasty = "half \ud800 zero \x00 bell \x07"

    @scheduler.task
    async def talk(ctx: Context) -> str:
        ctx.log(nasty)
        ctx.progress(0.5, nasty)
        with ctx.phase(nasty):
            return "said \x00"

    @scheduler.task
    async def fail() -> None:
        raise ValueError(nasty)

    ended = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()
    for kind in ("succeeded", "failed"):
        scheduler.on(kind, lambda event: loop.call_soon_threadsafe(ended.release))
    async with scheduler:
        runs = [await talk.enqueue(), await fail.enqueue()]
        for _ in runs:
            await asyncio.wait_for(ended.acquire(), 20)
        verdicts = [(await scheduler.get_run(run.id)).verdict for run in runs]
        [line] = await scheduler.log(runs[0].id)
    assert verdicts == ["succeeded", "failed"]
    assert "bell" in line.text
    assert caplog.text.encode().count(b"half ? zero") == 1, "a log file in UTF-8 takes the line"


@pytest.mark.parametrize(
    "arguments",
    [
        [b"show", b"caf\xe9"],
        [b"why", b"caf\xe9"],
        [b"pause", b"report", b"--note", b"caf\xe9"],
        [b"pause", b"report", b"--note=caf\xe9"],
        [b"add", b"caf\xe9", b"hourly", b"job"],
        [b"history", b"caf\xe9"],
        [b"list", b"--app", b"caf\xe9"],
        [b"list", b"--database", b"caf\xe9"],
        [b"list", b"-l", b"team=caf\xe9"],
        [b"caf\xe9"],
        [b"run", b"caf\xe9:scheduler"],
        [b"explain", b"caf\xe9"],
    ],
)
def test_an_argument_that_is_no_utf_8_is_refused_in_a_sentence(
    arguments: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Scheduler(f"sqlite:///{tmp_path}/evertick.db").sync.schedules()
    answer = CliRunner().invoke(cli, [each.decode(errors="surrogateescape") for each in arguments])
    assert_is_refused(answer.exit_code, answer.stderr)


def test_bytes_of_a_process_that_are_no_utf_8_are_refused(tmp_path: Path) -> None:
    answer = subprocess.run(
        [os.fsencode(sys.executable), b"-m", b"evertick", b"show", b"caf\xe9"],
        capture_output=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONUTF8": "1"},
    )
    assert_is_refused(answer.returncode, answer.stderr.decode())


def assert_is_refused(code: int, errors: str) -> None:
    assert code == 2
    assert "\\udce9" in errors
    assert "is no UTF-8 text, or has control characters; write it as plain text" in errors
    assert len(errors.splitlines()) == 1


def test_a_path_may_have_any_bytes(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9.crontab"
    with open(path, "w") as file:
        file.write("0 9 * * * /bin/true\n")
    answer = subprocess.run(
        [os.fsencode(sys.executable), b"-m", b"evertick", b"import", b"crontab", path],
        capture_output=True,
        check=False,
        cwd=tmp_path,
    )
    assert (answer.returncode, b"UTF-8" in answer.stderr) == (0, False), answer.stderr.decode(errors="replace")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("short", "'short'"),
        ("é\x00\ud800", r"'é\x00\ud800'"),
        (b"x" * 100, f"b'{'x' * 80}'… (100 bytes)"),
        (list(range(10**6)), "[0, 1, 2, 3, 4, 5, ...]"),
        (10**5_000, "this int"),
    ],
    ids=["short", "control", "bytes", "list", "number"],
)
def test_a_value_is_shown_short(value: object, expected: str) -> None:
    assert shown(value) == expected


def test_data_that_contains_itself_or_is_too_deep_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="is nested too deeply, or contains itself"):
        encode_data(loop)
