"""Output on 80 columns: required text is complete, and no line is wider."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator

import click
import pytest
from terminal import drawn_here

from evertick import Constant, Message, Scheduler
from evertick.cli import cli
from evertick.cli.show.output import Column, table_for_terminal

COLUMNS = 80


def plain(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r", "").splitlines()


@pytest.fixture
def narrow(tmp_path):
    """The lines of a command on a narrow terminal, with its errors and hints."""

    def draw(database: str | None, *args: str, code: int = 0, **environment: str) -> list[str]:
        named = {} if database is None else {"EVERTICK_DATABASE": database}
        variables = {**named, "TERM": "xterm", "COLUMNS": str(COLUMNS), **environment}
        lines = plain(drawn_here(*args, env=variables, folder=tmp_path, code=code, has_errors=True))
        assert max(len(line) for line in lines) <= COLUMNS, lines
        return lines

    return draw


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize("command", ["runs", "failed"])
def test_ids_of_runs_and_their_column_heads_are_never_cut(database, ask, narrow, command, zone):
    ids = {run["id"] for run in ask(command)}
    lines = narrow(database, command, TZ=zone)
    assert ids == {word for line in lines[1:] for word in line.split() if len(word) == 36}
    assert "…" not in lines[0]
    assert {"MOMENT", "RUN"} <= set(lines[0].split())
    if command == "runs":
        assert {"waiting", "succeeded", "failed"} & set(lines[1].split())


def test_a_long_error_is_complete_below_its_run(database, ask, narrow):
    [run] = ask("failed")
    head, line, error = narrow(database, "failed")
    assert head.split() == ["MOMENT", "Z", "KEY", "VERDICT", "RUN"]
    assert line.split()[2:] == ["print", "failed", run["id"]]
    assert error.rstrip() == "    ValueError: no paper [2J left"


def test_names_of_nodes_are_cut_at_their_common_part():
    column = Column(title="NODE", is_cut=True, is_cut_in_front=True)
    table = table_for_terminal(
        [column, Column(title="KEY")], [["evertick@vm-1", "k" * 30], ["evertick@vm-2", "k" * 30]], 43
    )
    assert [str(cell) for cell in table.columns[0].cells] == ["…rtick@vm-1", "…rtick@vm-2"]


def test_a_wider_terminal_has_more_columns_of_runs(database, on_terminal):
    head = plain(on_terminal(database, "runs", COLUMNS="200"))[0].split()
    assert head == ["MOMENT", "RUN", "TASK", "KEY", "STATE", "REASON", "TRIES", "TOOK", "NODE", "DETAIL"]


def test_a_dead_message_is_listed_with_its_key_and_its_complete_error(tmp_path, narrow):
    url = f"sqlite:///{tmp_path}/jobs.db"
    node = Scheduler(url)

    @node.sender("webhook", retry=Constant("1ms", attempts=1))
    async def deliver(message: Message) -> None:
        raise ConnectionError("the server does not answer in the given time")

    end = time.monotonic() + 30
    with node:
        node.sync.send("webhook", {"order": 7}, key="order-7")
        while not node.sync.messages(states=["dead"]):
            assert time.monotonic() < end
            time.sleep(0.01)
    head, line, error, advice = narrow(url, "outbox", "list")
    assert head.split() == ["MESSAGE", "CHANNEL", "STATE", "KEY", "ERROR"]
    assert line.endswith("order-7")
    assert error.rstrip() == "    ConnectionError: the server does not answer in the given time"
    assert advice == "the full traceback of an error: evertick outbox show MESSAGE"
    shown = narrow(url, "outbox", "show", line.split()[0])
    assert any(text.startswith("    File ") for text in shown), "the frames of a traceback are set in"


def test_the_error_of_a_duty_uses_the_free_width(tmp_path, narrow, evertick):
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


def test_an_error_is_wrapped_between_words_and_indented(database, narrow):
    first, *more = narrow(database, "trigger", "a-key-that-was-never-declared-here", code=1)
    assert first.startswith("error: there is no schedule 'a-key-that-was-never-declared-here' in app")
    assert more
    assert all(line.startswith(" " * 7) and line[7] != " " for line in more)


def test_notes_below_the_ha_table_name_the_omitted_columns(database, narrow):
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


def test_the_head_of_top_is_wrapped_between_its_counts(database, narrow):
    text = "\n".join(narrow(database, "top", "--once"))
    for count in ("schedules", "running", "waiting", "blocked", "parked"):
        assert re.search(rf"\d {count}", text)


def test_a_key_in_wide_characters_is_measured_by_its_width():
    from rich.console import Console

    table = table_for_terminal([Column(title="KEY"), Column(title="NOTE", is_cut=True)], [["日報日報", "x" * 30]], 30)
    console = Console(width=30)
    with console.capture() as capture:
        console.print(table)
    assert capture.get().splitlines()[1].startswith("日報日報  xxx")


def test_a_row_that_does_not_fit_is_cut_in_its_widest_column():
    from rich.console import Console

    columns = [Column(title="KEY"), Column(title="VERDICT"), Column(title="RUN", gives_way=1)]
    console = Console(width=30)
    with console.capture() as capture:
        console.print(table_for_terminal(columns, [["k" * 60, "succeeded", "r" * 36]], 30))
    head, line = (text.rstrip() for text in capture.get().splitlines())
    assert head.split() == ["KEY", "VERDICT"]
    assert line == f"{'k' * 18}…  succeeded"


def test_the_default_ledger_is_named_if_none_was_given(database, tmp_path, narrow, evertick, monkeypatch):
    assert (tmp_path / "evertick.db").exists()
    told = "(ledger: sqlite:///evertick.db; --database names another)"
    assert narrow(None, "list")[0] == told
    monkeypatch.chdir(tmp_path)
    # An empty list names none either.
    for change in (
        lambda: monkeypatch.setenv("EVERTICK_DATABASE", ""),
        lambda: monkeypatch.delenv("EVERTICK_DATABASE"),
    ):
        change()
        assert evertick("nodes").stderr.startswith(told)
        assert evertick("nodes", "--json").stderr == ""
        assert evertick("nodes", "--database", "sqlite:///evertick.db").stderr == ""
        assert evertick("doctor").stderr.startswith(told)


def test_ids_and_keys_of_messages_are_never_cut(tmp_path, narrow):
    url = f"sqlite:///{tmp_path}/jobs.db"
    manager, keys = Scheduler(url, concurrency=0), [f"invoice-2026-{number:06}" for number in range(3)]
    for key in keys:
        manager.sync.send("accounting", {"order": 7}, key=key)
    ids = [message.id for message in manager.sync.messages()]
    manager.sync.close()
    _head, *lines = narrow(url, "outbox", "list")
    assert [line.split()[0] for line in lines] == ids
    assert [line.split()[-1] for line in lines] == keys[::-1]


def test_optional_columns_are_cut_before_required_ones():
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


# --- lists of a ledger with long keys, long rules and several zones

LONG = "warehouse.sync.stock-levels-of-all-branches-in-the-east"
RULE = "cron */15 8-18 1,2,3,4,5,6,7,8,9,10,11,12 * 1-5; tz=America/New_York"
NOTE = "until the new disks have been put into the servers of the second data center"
ERROR = "no paper left in the printer of the second floor; see https://intranet.example.org/printers/4711"
SOON = [f"delayed-{number}" for number in range(30)]


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A ledger with failed runs and thirty delayed runs."""
    url = f"sqlite:///{tmp_path_factory.mktemp('busy')}/jobs.db"
    node = Scheduler(url, node_name="shop@warehouse-host-17.example.org", feed="7d")
    failed = threading.Event()

    @node.task
    def sync_stock_levels() -> None:
        raise ValueError(ERROR)

    @node.task
    def send_mail(to: str) -> None: ...

    node.on("failed", lambda event: failed.set())
    with node:
        node.sync.add(key=LONG, when=RULE, task="sync_stock_levels", overlap="allow")
        for key in ("nightly", "invoices"):
            node.sync.add(key=key, when="0 3 * * *; tz=Europe/Berlin", task="send_mail", args={"to": key})
        node.sync.add(key="paused", when="every 1h", task="send_mail", args={"to": "paused"})
        node.sync.pause("paused", note=NOTE)
        node.sync.trigger(LONG)
        assert failed.wait(30)
        for number, name in enumerate(SOON):
            send_mail.options(delay=f"{number + 1}h").sync.enqueue(name)
    return url


@pytest.fixture(params=[80, 60])
def columns(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def shown(busy, tmp_path, columns):
    """The lines of a command on a terminal of 80 and of 60 columns."""

    def draw(*args: str, **environment: str) -> list[str]:
        variables = {"EVERTICK_DATABASE": busy, "TERM": "xterm", "COLUMNS": str(columns), **environment}
        return [line.rstrip() for line in plain(drawn_here(*args, env=variables, folder=tmp_path))]

    return draw


def test_a_narrow_list_has_complete_keys_rules_times_and_notes(shown, ask, busy):
    lines = shown("list", TZ="Asia/Tokyo")
    text = "\n".join(lines)
    assert f"    rule: {RULE}" in lines, "the rule is on one line, to be copied"
    assert "    rule: cron 0 3 * * *; tz=Europe/Berlin" in lines
    assert LONG in text
    assert re.search(r"20\d\d-\d\d-\d\d 03:00:00\+0[12]:00", text), "the time is in the zone of the schedule"
    assert NOTE in " ".join(text.split())
    assert "failed (error)" in text
    assert "…" not in text


def test_a_narrow_forecast_has_complete_recommended_rules(shown, ask, busy):
    suggestions = ask("forecast", "--database", busy, "--days", "14")["suggestions"]
    text = "\n".join(shown("forecast", "--days", "14"))
    assert suggestions
    for each in suggestions:
        # On its own line, or on that of its key.
        assert re.search(rf"^.*\b{re.escape(each['when'])}( |$)", text, re.MULTILINE)
        assert re.search(rf"(instead:|  ) ?{re.escape(each['instead'])}$", text, re.MULTILINE)


def test_the_hours_of_a_forecast_stand_below_their_names(shown, columns):
    lines = shown("forecast", "--days", "2", "--key", "nightly", "--tz", "Europe/Berlin")
    head = next(line for line in lines if line.lstrip().startswith("00"))
    days = [line for line in lines if re.match(r"[A-Z][a-z][a-z] 20\d\d-", line)]
    assert len(days) == 2
    night = head.index("03") if columns == 60 else head.index("02") + 2
    assert next(place for place, letter in enumerate(days[1]) if letter in "▁▂▄▆█") == night
    assert max(len(line) for line in [head, *days]) <= columns


@pytest.mark.parametrize("command", [("runs",), ("runs", "--planned"), ("history",), ("failed",), ("show", LONG)])
def test_moments_on_a_narrow_terminal_keep_their_year_and_their_offset(shown, command):
    lines = shown(*command, TZ="Europe/Berlin")
    heads = [line for line in lines if line.startswith("MOMENT")]
    assert heads
    for head in heads:
        row = lines[lines.index(head) + 1]
        assert re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d", row)
        offset = "[+-]0\\d:00"
        assert re.search(f"^MOMENT {offset} ", head) or re.search(f"^[-0-9]+ [:0-9.]+{offset}", row)


def test_a_narrow_list_of_runs_has_every_field_of_a_failed_run(shown, ask, busy):
    [run] = ask("failed", "--database", busy)
    for command in ("runs", "failed"):
        text = "\n".join(shown(command))
        assert run["id"] in text
        assert LONG in text
        assert "failed" in text
        assert ERROR in " ".join(text.split()).replace("  ", " ")


def test_narrow_lists_have_complete_names_of_nodes_and_keys(shown):
    for command in (("ha", "--kind", "schedule"), ("preview", LONG), ("events", "--since", "1h"), ("history",)):
        assert LONG in "\n".join(shown(*command)), command
    for command in (("nodes",), ("events", "--since", "1h")):
        assert "shop@warehouse-host-17.example.org" in "\n".join(shown(*command)), command


def test_times_of_events_keep_their_year_and_their_offset(shown):
    lines = shown("events", "--since", "1h")
    printed = [line for line in lines if re.match(r"\d\d", line)]
    assert printed
    assert all(re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?(Z|[+-])", line) for line in printed)


def test_top_shows_the_zone_of_the_next_fires_or_their_offset(shown, columns):
    lines = shown("top", "--once")
    assert any(re.search(r" 03:00:00\+0[12]:00 ", line) for line in lines)
    assert (columns == 60) or any("Europe/Berlin" in line for line in lines)
    assert any("Asia/Tokyo" in line or "+09:00" in line for line in shown("top", "--once", "--tz", "Asia/Tokyo"))


@pytest.mark.parametrize("command", ["list", "preview", "top"])
def test_in_a_pipe_times_are_in_the_zone_of_the_schedule_or_the_flag_and_the_zone_is_shown(busy, evertick, command):
    more = ["--count", "200"] if command == "preview" else []
    by_itself = evertick(command, *more, "--database", busy).stdout
    assert re.search(r"20\d\d-\d\d-\d\d 03:00:00\+0[12]:00 +Europe/Berlin", by_itself)
    assert "America/New_York" in by_itself
    by_flag = evertick(command, *more, "--database", busy, "--tz", "Asia/Tokyo").stdout
    assert re.search(r"20\d\d-\d\d-\d\d 1[01]:00:00\+09:00 +Asia/Tokyo", by_flag)
    assert not re.search(r" 03:00:00\+0[12]:00", by_flag)


def test_a_row_that_fits_has_nothing_below_it(database, evertick, narrow):
    evertick("remove", "quick", "--yes")
    head, *lines = narrow(database, "list")
    assert head.split() == ["KEY", "NEXT", "AT", "LAST"]
    assert [line.split(":")[0].strip() for line in lines if line.startswith("    ")] == ["rule", "rule"]
