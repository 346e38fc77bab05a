"""The page about the daemon tells of every logger, signal and field that there is."""

from __future__ import annotations

import logging
import re
import signal
from pathlib import Path

from pages import ROOT, blocks, doc, shell_lines
from programs import SECONDS_MAX, running

from evertick.cli.exits import EXIT_WRONG
from evertick.daemon.logs import LOG_LEVELS, JsonFormatter, Redactor
from evertick.scheduler.process import EXIT_REPLACED, EXIT_RESTART, EXIT_STALLED

PAGE = "reference/daemon.md"


def section(heading: str) -> str:
    return re.split(rf"^#+ {heading}$", doc(PAGE), flags=re.MULTILINE)[1].partition("\n#")[0]


def in_first_column(text: str) -> set[str]:
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row)}


def test_every_logger_is_documented() -> None:
    files = [path for path in (ROOT / "src/evertick").rglob("*.py") if "testing" not in path.parts]
    used = {name for path in files for name in re.findall(r'getLogger\("(evertick[\w.]*)"\)', path.read_text())}
    assert len(used) > 15
    assert used - in_first_column(section("Loggers")) == set()


def test_every_signal_that_it_hears_and_every_code_it_ends_with_is_documented() -> None:
    named = {f"SIG{name}" for name in in_first_column(section("Signals"))}
    assert named == {
        each.name for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    }
    codes = {"0", "1", str(EXIT_WRONG), str(EXIT_STALLED), str(EXIT_REPLACED), str(EXIT_RESTART)}
    assert in_first_column(section("Exit codes")) == codes


def test_every_field_of_a_line_of_json_and_every_level_is_documented() -> None:
    record = logging.LogRecord("x", logging.INFO, "x", 1, "x", (), (ValueError, ValueError("x"), None))
    vars(record).update(run="x", task="x", schedule="x")
    fields = set(re.findall(r'"(\w+)":', JsonFormatter(Redactor(), node="x").format(record)))
    assert in_first_column(section("Log")) == fields
    assert [level for level in LOG_LEVELS if f"`{level}`" not in section("Levels")] == []


def test_what_the_how_to_begins_with_works(tmp_path: Path) -> None:
    """Its file, its commands, in a folder of their own."""
    page = ROOT / "docs/how-to/daemon.md"
    [block] = [block for block in blocks(page) if block.language == "toml"]
    (tmp_path / "evertick.toml").write_text(block.text)
    state = {"STATE_DIRECTORY": str(tmp_path / "state")}
    typed = [line for line in shell_lines(page) if line.startswith("evertick")][:5]
    check, start, *looks, log = typed
    assert (check, start) == ("evertick daemon --check", "evertick daemon -v")
    assert (looks, log) == (["evertick status", "evertick list"], "evertick logs hello")
    with running(check, tmp_path, **state) as checking:
        assert checking.process.wait(SECONDS_MAX) == 0, checking.output
    with running(start, tmp_path, **state) as daemon:
        daemon.wait_until(lambda: "): succeeded" in daemon.output, "a run has succeeded")
        for look in looks:
            with running(look, tmp_path, **state) as looking:
                assert looking.process.wait(SECONDS_MAX) == 0, looking.output
        assert daemon.terminate() == 0, daemon.output
    # While it runs, the last run may have begun just now, and have said nothing yet.
    with running(log, tmp_path, **state) as looking:
        assert looking.process.wait(SECONDS_MAX) == 0, looking.output
        assert "hello from hello" in looking.output


def test_who_may_run_a_command_as_another_user_may_run_that_one_alone() -> None:
    """A pattern would let him name a configuration of his own, and with it what is read and where it is sent."""
    files = [
        path
        for folder in ("docs", "dist")
        for path in (ROOT / folder).rglob("*")
        if path.suffix not in {".json", ".pyc"}
    ]
    lines = [line for path in files if path.is_file() for line in path.read_text().splitlines()]
    allowed = [line.partition("NOPASSWD: ")[2] for line in lines if "NOPASSWD: " in line]
    asked = [line.partition("=sudo -u evertick ")[2] for line in lines if "=sudo -u evertick " in line]
    assert len(allowed) == 1
    assert allowed == asked
    assert re.search(r"[*?\[\\]", allowed[0]) is None
    assert " --config /" in allowed[0]
