"""The live view: its sections, its end, and its layout."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import signal
import threading
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from evertick import Cause, Constant, Context, Duty, Every, Message, Run, Scheduler, State
from evertick.cli.command.top import _rows_shown, _Section, _view
from evertick.cli.show.words import now
from evertick.clock import system_clock
from evertick.doctor.snapshot import Frame, NodeLine
from evertick.store.base import ChannelPulse

PATIENCE_SECONDS = 20.0


@pytest.fixture
def busy(tmp_path: Path):
    """A node whose job has reported progress and waits."""
    url = f"sqlite:///{tmp_path}/busy.db"
    scheduler, begun, may_end = Scheduler(url, node_name="shop@host"), threading.Event(), threading.Event()

    @scheduler.every("1h", key="report")
    def make_report(ctx: Context) -> None:
        ctx.progress(0.5, "half of it")
        begun.set()
        assert may_end.wait(PATIENCE_SECONDS)

    @scheduler.task
    def nothing() -> None: ...

    with scheduler:
        scheduler.sync.trigger("report")
        nothing.sync.enqueue()
        assert begun.wait(PATIENCE_SECONDS)
        yield url
        may_end.set()


def _wait_for_progress(ask, url: str) -> dict:
    end = system_clock.elapsed() + PATIENCE_SECONDS
    while system_clock.elapsed() < end:
        frame = ask("top", "--database", url)
        if frame["runs"] and frame["runs"][0]["progress"] is not None and frame["recent"]:
            return frame
    raise AssertionError("no progress was seen")


def test_one_frame_as_json_has_running_next_and_recent_runs_and_nodes(busy, ask):
    frame = _wait_for_progress(ask, busy)
    assert [(run["task"], run["progress"], run["progress_text"]) for run in frame["runs"]] == [
        ("make_report", 0.5, "half of it")
    ]
    assert [schedule["key"] for schedule in frame["next"]] == ["report"]
    assert [(row["kind"], row["task"], row["verdict"]) for row in frame["recent"]] == [("run", "nothing", "succeeded")]
    assert [(node["name"], node["state"], node["running"]) for node in frame["nodes"]] == [("shop@host", "alive", 1)]
    assert (frame["schedules"], frame["running"], frame["waiting"]) == (1, 1, 0)
    assert frame["lag_seconds"] == 0


def test_in_a_pipe_top_prints_one_frame_as_text(busy, ask, evertick):
    _wait_for_progress(ask, busy)
    text = evertick("top", "--database", busy).stdout
    assert "\x1b" not in text
    assert re.search(r"^default  \S+ \S+  1 schedule  1 running  0 waiting  0 blocked  0 parked  lag 0 s$", text, re.M)
    assert re.search(r"^make_report +report +shop@host +\d+ s +1 +█████░░░░░ 50% half of it ", text, re.M)
    assert re.search(r"^in .* +report +make_report$", text, re.M)
    assert re.search(r"nothing\(\) +succeeded", text)


def test_top_of_an_empty_app_prints_a_note(database, evertick):
    text = evertick("top", "--app", "other").stdout
    assert text.count("none") == 4


def test_top_shows_lag_and_overdue_schedules(database, ask, evertick):
    scheduler = Scheduler(concurrency=0)
    scheduler.sync.trigger("report")
    scheduler.sync.add(key="fast", when=Every("1ms"), task="make_report")
    scheduler.sync.close()
    frame = ask("top")
    assert frame["waiting"] >= 1
    assert frame["lag_seconds"] > 0
    assert frame["overdue_seconds"] > 0


def test_top_shows_failing_duties_and_dead_messages(tmp_path, ask, evertick):
    url = f"sqlite:///{tmp_path}/jobs.db"
    scheduler = Scheduler(url, node_name="shop@host")

    @scheduler.duty("fragile", every="1h")
    async def fragile() -> None:
        raise ValueError("no paper left")

    @scheduler.sender("webhook", retry=Constant("1ms", attempts=1))
    async def deliver(message: Message) -> None:
        raise ConnectionError("server is down")

    with scheduler:
        scheduler.sync.send("webhook", {"order": 7})
        end = system_clock.elapsed() + PATIENCE_SECONDS
        while not any(duty.error for duty in scheduler.sync.duties()) or not scheduler.sync.messages(states=["dead"]):
            assert system_clock.elapsed() < end
        frame, text = ask("top", "--database", url), evertick("top", "--database", url).stdout
    assert {duty["name"]: duty["error"] for duty in frame["duties"]}["fragile"].endswith("ValueError: no paper left")
    assert [(channel["channel"], channel["dead"]) for channel in frame["channels"]] == [("webhook", 1)]
    assert "1 duty fails  1 message dead" in text.splitlines()[0]
    assert re.search(r"^fragile +shop@host +1 .* ValueError: no paper left", text, re.M)
    assert "evertick.prune" not in text
    assert re.search(r"^webhook +0 +0 +1 ", text, re.M)


class Screen:
    """A process on a terminal, with its output so far."""

    def __init__(self, start, url: str, *args: str) -> None:
        self.controller, terminal_fd = pty.openpty()
        environment = {"EVERTICK_DATABASE": url, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
        self.process = start("top", *args, env=environment, stdout=terminal_fd, stdin=terminal_fd, stderr=terminal_fd)
        os.close(terminal_fd)
        self.text = ""

    def read_until(self, wanted: str) -> None:
        end = system_clock.elapsed() + PATIENCE_SECONDS
        while wanted not in self.text:
            assert system_clock.elapsed() < end, self.text
            if select.select([self.controller], [], [], 0.5)[0]:
                self.text += os.read(self.controller, 65536).decode(errors="replace")

    def read_rest(self) -> None:
        try:
            while part := os.read(self.controller, 65536):
                self.text += part.decode(errors="replace")
        except OSError:  # on Linux: the other end was closed
            pass
        os.close(self.controller)


ENTERS, LEAVES = "\x1b[?1049h", "\x1b[?1049l"


@pytest.mark.parametrize("how", ["q", "ctrl-c", "term"])
def test_top_runs_until_it_is_ended_and_restores_the_screen(busy, start, how):
    screen = Screen(start, busy, "--interval", "200ms")
    screen.read_until("half of it")
    first = screen.text.count("Running")
    while screen.text.count("Running") < first + 2:  # it refreshes automatically
        screen.text += os.read(screen.controller, 65536).decode(errors="replace")
    if how == "term":
        screen.process.send_signal(signal.SIGTERM)
    else:
        os.write(screen.controller, b"q" if how == "q" else b"\x03")
        if how == "ctrl-c":
            # Ctrl-C sends a signal only if the process has its own session and terminal.
            screen.process.send_signal(signal.SIGINT)
    screen.read_rest()
    assert screen.process.wait(PATIENCE_SECONDS) == 0
    assert screen.text.index(ENTERS) < screen.text.index(LEAVES)
    assert "Traceback" not in screen.text


def test_once_draws_one_frame_below_the_prompt(busy, start):
    screen = Screen(start, busy, "--once")
    screen.read_rest()
    assert screen.process.wait(PATIENCE_SECONDS) == 0
    assert ENTERS not in screen.text
    assert "shop@host" in screen.text


@pytest.mark.parametrize(
    ("wanted", "lines", "shown"),
    [
        ([2, 2, 2, 2], None, [2, 2, 2, 2]),
        ([2, 2, 2, 2], 40, [2, 2, 2, 2]),
        ([50, 50, 50, 50], 52, [14, 8, 12, 6]),
        ([0, 50, 0, 1], 30, [0, 19, 0, 1]),
        ([5, 5, 5, 5], 3, [1, 1, 1, 1]),
    ],
)
def test_sections_of_top_share_the_lines_of_the_terminal(wanted, lines, shown):
    shares = (0.35, 0.2, 0.3, 0.15)
    sections = [
        _Section(title="", columns=[], rows=[[""]] * count, share=share)
        for count, share in zip(wanted, shares, strict=True)
    ]
    assert _rows_shown(sections, lines, 1) == shown


def test_on_a_small_terminal_every_section_of_top_has_a_row():
    moment = now()
    run = Run(
        **dict.fromkeys(Run.__struct_fields__)
        | {"id": "r1", "task": "pay", "state": State.RUNNING, "verdict": None, "attempts": 0, "losses": 0}
        | {"cause": Cause.ENQUEUE, "fire_at": moment, "due_at": moment, "phases": (), "is_cancel_requested": False}
    )
    node = NodeLine(
        id="n1", name="web-1", state="alive", running=1, beat_at=moment, started_at=moment, queues=("default",)
    )
    duty = Duty(
        name="rebuild",
        node="n1",
        node_name="web-1",
        term=1,
        since=moment,
        ticked_at=moment,
        next_at=moment,
        error="ValueError: no paper",
    )
    channel = ChannelPulse(channel="webhook", waiting=3, sending=0, dead=2, oldest_due_at=None)
    frame = Frame(
        at=moment,
        app="default",
        schedules=1,
        running=5,
        waiting=12,
        blocked=0,
        parked=0,
        dispatched=0,
        lag_seconds=0.0,
        overdue_seconds=0.0,
        runs=[run] * 5,
        next=[],
        recent=[msgspec.structs.replace(run, finished_at=moment)] * 20,
        nodes=[node] * 3,
        duties=[duty] * 2,
        channels=[channel] * 2,
        names={"n1": "web-1"},
    )
    screen = Console(width=80, height=24, file=io.StringIO())
    with screen.capture() as drawn:
        screen.print(_view(frame, 80, 24))
    lines = drawn.get().splitlines()
    assert len(lines) <= 24
    assert "1 schedule " in lines[0] + " "
    assert any(line.startswith("webhook") for line in lines)
    assert any(line.startswith("rebuild") for line in lines)
