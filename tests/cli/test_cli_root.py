"""What holds for every command: help, usage, errors, pipes, terminals, imports."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from terminal import drawn_by

from evertick import Scheduler, __version__
from evertick.cli import cli
from evertick.cli.exits import EXIT_CODES


def every_command(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Groups and what is in them."""
    if path:
        yield " ".join(path)
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from every_command(below, (*path, name))


COMMANDS = list(every_command(cli))
# Those that have nothing to answer a program, each for its reason; the page of the command line says so, too.
WITHOUT_JSON = {
    "run": "is a node, and logs",
    "daemon": "is a node, and logs",
    "worker": "is a worker, and logs",
    "demo": "is a show for people",
    "db": "is a group",
    "calendar": "is a group",
    "outbox": "is a group",
    "import": "is a group",
    "config": "is a group",
}
# A configuration says where the ledger is; what is about one takes no other.
OF_CONFIGURATION = ("apply", "config check", "config show")
WITHOUT_STORE = (*WITHOUT_JSON, *OF_CONFIGURATION, "explain", "completion", "import crontab", "import apscheduler")


def test_the_version_is_printed(evertick):
    assert evertick("--version").stdout == f"evertick {__version__}\n"


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_command_has_help_with_an_example(evertick, command):
    result = evertick(*command.split(), "--help")
    assert result.exit_code == 0
    assert re.search(rf"Example:\n +evertick {command or 'demo'}", result.stdout)


def test_the_first_sentence_of_every_help_fits_into_the_list_of_commands(evertick):
    listing = evertick("--help").stdout
    assert "..." not in listing.partition("Commands:")[2]


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in WITHOUT_JSON])
def test_every_command_that_answers_something_takes_json(evertick, command):
    assert "--json" in evertick(*command.split(), "--help").stdout


@pytest.mark.parametrize("command", WITHOUT_JSON)
def test_what_has_nothing_to_answer_takes_no_json(evertick, command):
    assert not re.search(r"^ +--json\b", evertick(command, "--help").stdout, re.MULTILINE)


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in WITHOUT_STORE])
def test_every_command_on_a_store_takes_a_database_and_an_app(evertick, command):
    text = evertick(*command.split(), "--help").stdout
    assert "--database" in text
    # What concerns the database itself concerns all apps.
    assert ("--app" in text) != command.startswith("db ")


def test_the_exit_codes_of_the_help_are_those_of_the_reference_page(evertick):
    shown = evertick("--help").stdout.partition("Exit codes:\n")[2]
    # Lines that go on are set in further.
    told = dict(re.findall(r"^ +(\d+) +(.+)$", re.sub(r"\n {6,}", " ", shown), re.MULTILINE))
    page = (Path(__file__).parents[2] / "docs/reference/command-line.md").read_text(encoding="utf-8")
    table = page.partition("## Exit codes")[2]
    documented = {code: words.replace("`", "") for code, words in re.findall(r"^\| `(\d+)` \| (.+) \|$", table, re.M)}
    assert told == documented
    assert set(told) == {str(code) for code in EXIT_CODES}


@pytest.mark.parametrize(
    "args",
    [
        "nonsense",
        "list --nonsense",
        "show",
        "history --limit 0",
        "history --limit x",
        "preview --count -1",
        "run",
        "demo --seconds 1",
        "top --interval 1ms",
        "top --interval soon",
        "forecast --days 0",
        "forecast --tz Nowhere",
        "forecast --label team",
        "completion tcsh",
        "db nonsense",
        "logs",
    ],
)
def test_bad_usage_is_one_sentence_that_names_the_help(evertick, args):
    result = evertick(*args.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert re.fullmatch(r"error: .*(; see|\? See) 'evertick.* --help'\n", result.stderr)


@pytest.mark.parametrize("url", ["jobs.db", "mysql://localhost/jobs", "sqlite:///jobs.db?speed=high"])
def test_a_bad_database_url_is_a_mistake_of_usage(tmp_path, monkeypatch, evertick, url):
    monkeypatch.chdir(tmp_path)
    result = evertick("list", "--database", url)
    assert result.exit_code == 2
    assert re.fullmatch(r"error: .*\n", result.stderr)


def test_an_option_before_its_command_is_refused_with_its_place(evertick):
    result = evertick("--database", "sqlite:///evertick.db", "list")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "write it behind the command, like `evertick list --database …`" in result.stderr
    assert "behind the command" not in evertick("--bogus", "list").stderr


def test_an_unexpected_error_is_one_sentence_too(database, evertick, monkeypatch):
    async def fail(self: Scheduler) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(Scheduler, "nodes", fail)
    result = evertick("nodes")
    assert result.exit_code == 1
    assert result.stderr == (
        "error: unexpected ZeroDivisionError: by zero; set EVERTICK_TRACEBACK=1 to see where it comes from\n"
    )


def test_a_traceback_is_shown_on_request(start, database):
    process = start("show", "nope", env={"EVERTICK_DATABASE": database, "EVERTICK_TRACEBACK": "1"})
    _, errors = process.communicate()
    assert process.returncode == 1
    assert "Traceback" in errors
    assert "NotFound" in errors


@pytest.mark.parametrize("args", [["history"], ["history", "--json"], ["list"]])
def test_a_reader_that_goes_away_makes_no_noise(start, database, args):
    process = start(*args, env={"EVERTICK_DATABASE": database})
    process.stdout.close()
    assert process.wait() == 141
    assert process.stderr.read() == ""


def test_ctrl_c_makes_no_noise(start):
    process = start("demo", "--seconds", "60")
    assert process.stdout.readline().startswith("Evertick")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert errors.strip() == ""


def test_on_a_terminal_there_are_colours_and_long_texts_stand_below_their_row(start, database):
    variables = {"EVERTICK_DATABASE": database, "TERM": "xterm", "COLUMNS": "60", "NO_COLOR": ""}
    text = drawn_by(start, "history", env=variables)
    assert "\x1b[1;31mfailed" in text
    lines = _lines(text)
    assert "    by trigger; ValueError: no paper [2J left" in [line.rstrip() for line in lines]
    assert max(len(line) for line in lines) <= 60


def _lines(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()


def test_the_note_of_a_pause_is_seen_on_a_narrow_terminal(on_terminal, database, evertick):
    evertick("pause", "report", "--note", "out of paper", "--until", "2h")
    for zone in ("UTC", "Europe/Berlin"):
        lines = _lines(on_terminal(database, "list", COLUMNS="80", TZ=zone))
        assert max(len(line) for line in lines) <= 80
        place = next(number for number, line in enumerate(lines) if line.startswith("report"))
        assert "paused" in lines[place]
        assert "out of paper" in lines[place + 1]
    lines = _lines(on_terminal(database, "list", COLUMNS="180"))
    (line,) = (line for line in lines if line.startswith("report"))
    assert re.search(r"out of paper; until \d{4}-\S+ \S+Z", line)


def test_the_nodes_fit_on_a_narrow_terminal(on_terminal, database):
    lines = _lines(on_terminal(database, "nodes", COLUMNS="80"))
    assert lines[0].split() == ["NAME", "STATE", "STARTED", "LAST", "BEAT", "ENDED", "RUNNING"]
    assert "…" not in lines[1]


def test_no_color_is_respected(on_terminal, database):
    text = on_terminal(database, "history", COLUMNS="80", NO_COLOR="1")
    assert "failed" in text
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", text)


@pytest.mark.parametrize(
    ("module", "absent"), [("evertick", ("click", "rich", "evertick.cli")), ("evertick.cli", ("rich",))]
)
def test_nothing_is_loaded_before_it_is_needed(module, absent):
    code = f"import sys, {module}; print([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
