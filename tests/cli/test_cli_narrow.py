"""On a terminal of 80 columns: what must be read or copied is there, and nothing is wider than it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator

import click
import pytest
from terminal import drawn_by

from evertick import Constant, Message, Scheduler
from evertick.cli import cli
from evertick.cli.output import Column, table_for_terminal

COLUMNS = 80


def plain(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r", "").splitlines()


@pytest.fixture
def narrow(start):
    """What a command writes to a narrow terminal, its errors and hints included."""

    def draw(database: str | None, *args: str, code: int = 0, **environment: str) -> list[str]:
        named = {} if database is None else {"EVERTICK_DATABASE": database}
        variables = {**named, "TERM": "xterm", "COLUMNS": str(COLUMNS), **environment}
        lines = plain(drawn_by(start, *args, env=variables, code=code, has_errors=True))
        assert max(len(line) for line in lines) <= COLUMNS, lines
        return lines

    return draw


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize("command", ["runs", "failed"])
def test_ids_of_runs_are_whole_and_so_are_their_heads(database, ask, narrow, command, zone):
    ids = {run["id"] for run in ask(command)}
    lines = narrow(database, command, TZ=zone)
    assert ids == {word for line in lines[1:] for word in line.split() if len(word) == 36}
    assert "…" not in lines[0]
    assert {"MOMENT", "RUN"} <= set(lines[0].split())
    if command == "runs":
        assert {"waiting", "succeeded", "failed"} & set(lines[1].split())


def test_an_error_is_told_whole_below_its_run(database, ask, narrow):
    [run] = ask("failed")
    head, line, error = narrow(database, "failed")
    assert head.split() == ["MOMENT", "RUN", "VERDICT"]
    assert line.split()[2:] == [run["id"], "failed"]
    assert error.rstrip() == "    print: ValueError: no paper [2J left"


def test_the_names_of_nodes_are_cut_where_they_are_alike():
    column = Column(title="NODE", is_cut=True, is_cut_in_front=True)
    table = table_for_terminal(
        [column, Column(title="KEY")], [["evertick@vm-1", "k" * 30], ["evertick@vm-2", "k" * 30]], 43
    )
    assert [str(cell) for cell in table.columns[0].cells] == ["…rtick@vm-1", "…rtick@vm-2"]


def test_a_wider_terminal_has_more_columns_of_runs(database, on_terminal):
    head = plain(on_terminal(database, "runs", COLUMNS="200"))[0].split()
    assert head == ["MOMENT", "RUN", "TASK", "KEY", "STATE", "REASON", "TRIES", "TOOK", "NODE", "DETAIL"]


def test_a_dead_message_is_listed_with_its_key_and_a_cut_error_is_marked_as_one(tmp_path, narrow):
    url = f"sqlite:///{tmp_path}/jobs.db"
    node = Scheduler(url)

    @node.sender("webhook", retry=Constant("1ms", attempts=1))
    async def deliver(message: Message) -> None:
        raise ConnectionError("nobody answers at all, however long one waits")

    end = time.monotonic() + 30
    with node:
        node.sync.send("webhook", {"order": 7}, key="order-7")
        while not node.sync.messages(states=["dead"]):
            assert time.monotonic() < end
            time.sleep(0.01)
    head, line, advice = narrow(url, "outbox", "list")
    assert head.split() == ["MESSAGE", "CHANNEL", "STATE", "KEY", "ERROR"]
    assert re.search(r"order-7 +ConnectionError:.*…$", line)
    assert advice == "the whole of an error: evertick outbox show MESSAGE"
    shown = narrow(url, "outbox", "show", line.split()[0])
    assert any(text.startswith("    File ") for text in shown), "the frames of a traceback are set in"


def test_the_error_of_a_duty_has_the_room_that_others_give(tmp_path, narrow, evertick):
    url, scheduler = f"sqlite:///{tmp_path}/duty.db", Scheduler(f"sqlite:///{tmp_path}/duty.db", node_name="shop@host")
    error = "no paper left in any of the printers of this house"

    @scheduler.duty("rebuild-index", every="1h")
    async def fragile() -> None:
        raise ValueError(error)

    with scheduler:
        end = time.monotonic() + 30
        while not any(duty.error for duty in scheduler.sync.duties()):
            assert time.monotonic() < end
            time.sleep(0.01)
        head, *lines = narrow(url, "duties")
        assert "ERROR" in head
        assert any("ValueError: no paper left in" in line for line in lines)
        shown = narrow(url, "duties", "rebuild-index")
        assert f"  ValueError: {error}" in shown
        assert any(line.startswith("    File ") for line in shown), "the frames of a traceback are set in"
        assert "duty rebuild-index fails on node shop@host" in evertick("doctor", "--database", url).stdout


def test_an_error_is_broken_between_words_and_set_in(database, narrow):
    first, *more = narrow(database, "trigger", "what-nobody-has-ever-declared-here", code=1)
    assert first.startswith("error: there is no schedule 'what-nobody-has-ever-declared-here' in app")
    assert more
    assert all(line.startswith(" " * 7) and line[7] != " " for line in more)


def test_the_remarks_below_the_table_of_high_availability_say_what_is_left_out(database, narrow):
    lines = narrow(database, "ha")
    below = " ".join(lines[[line.startswith("live nodes") for line in lines].index(True) :])
    assert "WITH N NODES is left out below 110 columns, --json has it" in below
    assert re.search(r"lines by mode: .*\d+ claimed", below)


def test_events_of_runs_are_a_line_each(tmp_path, narrow, evertick):
    url, ended = f"sqlite:///{tmp_path}/jobs.db", threading.Event()
    scheduler = Scheduler(url, feed="1d", node_name="shop@host")

    @scheduler.every("1h", key="make-the-report")
    def make_report() -> None: ...

    scheduler.on("succeeded", lambda event: ended.set())
    with scheduler:
        run = scheduler.sync.trigger("make-the-report")
        assert ended.wait(20)
    lines = narrow(url, "events", "--kind", "run.finished")
    assert len(lines) == 2
    assert lines[0].endswith("make-the-report  succeeded  on shop@host")
    assert evertick("events", "--kind", "run.finished", "--database", url).stdout.endswith(f"on shop@host  {run.id}\n")


def test_the_head_of_the_live_view_is_broken_between_its_counts(database, narrow):
    text = "\n".join(narrow(database, "top", "--once"))
    for count in ("schedules", "running", "waiting", "blocked", "parked"):
        assert re.search(rf"\d {count}", text)


def test_a_key_in_wide_letters_is_measured_as_it_is_drawn():
    from rich.console import Console

    table = table_for_terminal([Column(title="KEY"), Column(title="NOTE", is_cut=True)], [["日報日報", "x" * 30]], 30)
    console = Console(width=30)
    with console.capture() as capture:
        console.print(table)
    assert capture.get().splitlines()[1].startswith("日報日報  xxx")


def test_what_cannot_fit_is_cut_where_it_is_widest():
    from rich.console import Console

    columns = [Column(title="KEY"), Column(title="VERDICT"), Column(title="RUN", gives_way=1)]
    console = Console(width=30)
    with console.capture() as capture:
        console.print(table_for_terminal(columns, [["k" * 60, "succeeded", "r" * 36]], 30))
    head, line = (text.rstrip() for text in capture.get().splitlines())
    assert head.split() == ["KEY", "VERDICT"]
    assert line == f"{'k' * 18}…  succeeded"


def test_whoever_names_no_ledger_is_told_which_one_it_is(database, tmp_path, narrow, evertick, monkeypatch):
    assert (tmp_path / "evertick.db").exists()
    told = "(ledger: sqlite:///evertick.db; name another with --database)"
    assert narrow(None, "list")[0] == told
    monkeypatch.chdir(tmp_path)
    # One that is empty names none either.
    for change in (
        lambda: monkeypatch.setenv("EVERTICK_DATABASE", ""),
        lambda: monkeypatch.delenv("EVERTICK_DATABASE"),
    ):
        change()
        assert evertick("nodes").stderr.startswith(told)
        assert evertick("nodes", "--json").stderr == ""
        assert evertick("nodes", "--database", "sqlite:///evertick.db").stderr == ""
        assert evertick("doctor").stderr.startswith(told)


def test_ids_and_keys_of_messages_are_whole_whatever_their_state(tmp_path, narrow):
    url = f"sqlite:///{tmp_path}/jobs.db"
    manager, keys = Scheduler(url, concurrency=0), [f"invoice-2026-{number:06}" for number in range(3)]
    for key in keys:
        manager.sync.send("accounting", {"order": 7}, key=key)
    ids = [message.id for message in manager.sync.messages()]
    manager.sync.close()
    _head, *lines = narrow(url, "outbox", "list")
    assert [line.split()[0] for line in lines] == ids
    assert [line.split()[-1] for line in lines] == keys[::-1]


def test_where_nothing_fits_what_may_be_cut_is_cut_before_what_must_be_whole():
    columns = [Column(title="ID"), Column(title="TEXT", is_cut=True, cut_least=30)]
    table = table_for_terminal(columns, [["1" * 36, "t" * 40]], 60)
    assert [column.width for column in table.columns] == [36, 22]


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in group.commands.items():
        yield from commands(command, (*path, name)) if isinstance(command, click.Group) else [(*path, name)]


@pytest.mark.parametrize("path", list(commands(cli)), ids=" ".join)
def test_every_help_fits(evertick, path):
    lines = evertick(*path, "--help").stdout.splitlines()
    assert lines[0].startswith("Usage: evertick")
    assert [line for line in lines if len(line) > COLUMNS] == []
