"""`evertick run`: finding the scheduler, signals and exit codes, working beside other processes."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from evertick.cli.command.demo import called_as
from evertick.cli.command.run import find_scheduler

PROGRAM = """
import logging, sys
from evertick import Scheduler

scheduler = Scheduler(poll_interval="1s", stop_timeout="5s")
other = scheduler
number = 7

@scheduler.every("100ms")
async def tick():
    print("ticked", flush=True)
    return 1
"""


HASTY = """
from evertick import Scheduler
scheduler = Scheduler()
@scheduler.cron("61 * * * *")
def tick(): ...
"""


@pytest.fixture(autouse=True)
def program(tmp_path: Path) -> Path:
    path = tmp_path / "shop.py"
    path.write_text(PROGRAM)
    return path


def others_may_write(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o002)


@pytest.mark.parametrize(
    ("named", "opened", "said"),
    [
        ("shop:scheduler", ".", "can change this folder"),
        ("shop:scheduler", "shop.py", "can change this file"),
        ("inner.jobs:scheduler", "inner", "can change this folder"),
        ("inner.jobs:scheduler", "inner/jobs.py", "can change this file"),
    ],
)
def test_root_imports_nothing_that_another_user_can_change(
    evertick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, opened: str, said: str
) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/jobs.py").write_text("raise SystemExit('imported')")
    (tmp_path / "shop.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    others_may_write(tmp_path / opened)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    came = evertick("run", named)
    assert came.exit_code == 2
    [line] = [each for each in came.stderr.splitlines() if f"{tmp_path / opened}: " in each]
    assert line.startswith("error: ")
    assert f"every user {said}, and so decide what root runs (owner " in line
    assert "EVERTICK_TRUST_CONFIG=1" in line
    monkeypatch.setenv("EVERTICK_TRUST_CONFIG", "1")
    with pytest.raises(SystemExit, match="imported"):
        find_scheduler(named)


def wait_for(stream, words: str) -> str:
    """The first line with these words; what the process said before is shown if it never comes."""
    said = []
    for line in stream:
        said.append(line)
        if words in line:
            return line
    raise AssertionError(f"{words!r} was never said, but: {''.join(said)}")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGHUP, 75)])
def test_a_signal_ends_the_node_with_the_exit_code_it_stands_for(start, tmp_path, number, code):
    process = start("run", "shop:scheduler")
    wait_for(process.stderr, "has started")
    wait_for(process.stdout, "ticked")
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == code, errors
    assert "has stopped" in errors
    assert "Traceback" not in errors
    assert (tmp_path / "evertick.db").exists()


def test_the_moments_of_the_log_have_their_offset(start):
    process = start("run", "shop:scheduler", env={"TZ": "Asia/Tokyo"})
    line = wait_for(process.stderr, "has started")
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\+09:00 INFO +evertick", line)
    process.terminate()
    assert process.wait() == 0


def test_a_module_alone_will_do_if_it_holds_one_scheduler(start, tmp_path):
    process = start("run", "shop", "--database", f"sqlite:///{tmp_path}/elsewhere.db")
    assert f"sqlite:///{tmp_path}/elsewhere.db" in wait_for(process.stderr, "database")
    wait_for(process.stdout, "ticked")
    process.terminate()
    assert process.wait() == 0
    assert not (tmp_path / "evertick.db").exists()


def test_the_log_level_is_obeyed(start):
    process = start("run", "shop:scheduler", "--log-level", "error")
    wait_for(process.stdout, "ticked")
    process.terminate()
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")


def test_a_program_that_sets_up_logging_keeps_its_own(start, program):
    program.write_text("import logging; logging.basicConfig(level='INFO', format='MINE %(message)s')" + PROGRAM)
    process = start("run", "shop:scheduler")
    assert wait_for(process.stderr, "has started").startswith("MINE ")


def test_the_ledger_can_be_read_and_changed_while_a_node_runs(start, tmp_path, ask, evertick, monkeypatch):
    process = start("run", "shop:scheduler")
    for _ in range(3):
        wait_for(process.stdout, "ticked")
    monkeypatch.setenv("EVERTICK_DATABASE", f"sqlite:///{tmp_path}/evertick.db")
    rows = ask("history", "tick")
    assert {row["verdict"] for row in rows} >= {"succeeded"}
    assert any(row["result"] == 1 for row in rows if row["kind"] == "run")
    (node,) = ask("nodes")
    assert (node["state"], node["tasks"]) == ("alive", ["tick"])
    assert ask("pause", "tick")["is_paused"]
    assert ask("list")[0]["is_paused"]
    assert not ask("resume", "tick")["is_paused"]
    wait_for(process.stdout, "ticked")
    assert process.poll() is None


def test_a_triggered_run_is_run_by_the_node_in_another_process(start, tmp_path, program, evertick):
    program.write_text(PROGRAM.replace('every("100ms")', 'every("30d")'))
    process = start("run", "shop:scheduler")
    wait_for(process.stderr, "has started")
    result = evertick("trigger", "tick", "--database", f"sqlite:///{tmp_path}/evertick.db")
    assert (result.exit_code, result.stderr) == (0, "")
    wait_for(process.stdout, "ticked")


@pytest.fixture
def in_the_folder(tmp_path, monkeypatch):
    """This process is in the folder of the test, and forgets what it has imported from there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(f"{tmp_path}/"):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("where", "code", "words"),
    [
        ("nope:scheduler", 1, "there is no module 'nope' in"),
        ("nope.jobs:scheduler", 1, "there is no module 'nope' in"),
        ("shop:nope", 1, "'shop' has no attribute 'nope'; write shop:scheduler or shop:other"),
        ("shop:number", 1, "shop:number is not a Scheduler but of type int; write shop:scheduler"),
        ("shop:", 2, "write it like app:scheduler"),
        (":scheduler", 2, "write it like app:scheduler"),
        ("shop.py", 2, "'shop.py' is a file; write the module, like shop:scheduler"),
        ("./shop.py:other", 2, "write the module, like shop:other"),
        ("evertick.toml", 2, "is a configuration; run its jobs with `evertick daemon --config evertick.toml`"),
        ("broken:scheduler", 1, "cannot be imported: ZeroDivisionError: division by zero at"),
        ("needy:scheduler", 1, "cannot be imported: ModuleNotFoundError: No module named 'not_installed' at"),
        ("crooked:scheduler", 1, "/crooked.py:2; EVERTICK_TRACEBACK=1"),
        ("uses_crooked:scheduler", 1, "/crooked.py:2; EVERTICK_TRACEBACK=1"),
        ("hasty:scheduler", 1, "'hasty' cannot be imported: cron '61 * * * *'"),
        ("two", 1, "'two' has several schedulers; write two:first or two:second"),
        ("none", 1, "'none' has no scheduler; define one in it"),
    ],
)
def test_a_scheduler_that_cannot_be_found_is_an_error_that_says_what_to_write(
    evertick, in_the_folder, tmp_path, where, code, words
):
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "needy.py").write_text("import not_installed")
    (tmp_path / "crooked.py").write_text("import os\nthis is crooked")
    (tmp_path / "uses_crooked.py").write_text("import crooked")
    (tmp_path / "hasty.py").write_text(HASTY)
    (tmp_path / "two.py").write_text("from evertick import Scheduler\nfirst, second = Scheduler(), Scheduler()")
    (tmp_path / "none.py").write_text("")
    result = evertick("run", where)
    assert (result.exit_code, result.stdout) == (code, "")
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("where", ["hello:scheduler", "hello", "greetings.hello"])
@pytest.mark.parametrize("end", ["scheduler.run()", "sys.exit(scheduler.run())", "def main(): scheduler.run()\nmain()"])
def test_a_module_that_runs_its_scheduler_at_its_end_is_run_by_the_command(start, tmp_path, where, end):
    """As a first program does it, without a guard. Nothing after that is done, and the module can be imported."""
    folder = tmp_path / where.rpartition(".")[0]
    folder.mkdir(exist_ok=True)
    program = PROGRAM.replace("async def tick():", f"async def tick():\n    import {where.partition(':')[0]} as again")
    program = program.replace("return 1", "return again.number")
    (folder / "hello.py").write_text(f"{program}\n{end}\nprint('not reached')\n")
    process = start("run", where, "-v")
    assert process.stdout.readline() == "ticked\n"
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate()
    assert process.returncode == 0
    assert "not reached" not in output
    assert "failed" not in errors


def test_a_module_that_runs_a_scheduler_while_another_is_imported_is_refused(start, tmp_path):
    (tmp_path / "hello.py").write_text(f"{PROGRAM}\nscheduler.run()\n")
    (tmp_path / "outer.py").write_text("from hello import scheduler\n")
    process = start("run", "outer:scheduler")
    output, errors = process.communicate()
    assert (process.returncode, output) == (1, "")
    assert errors.startswith("error: the module 'outer' cannot be imported: run() is called while")
    assert "if __name__ == '__main__':" in errors
    line = PROGRAM.count("\n") + 2
    assert f"({tmp_path}/hello.py:{line})" in errors
    assert len(errors.splitlines()) == 1
    assert not (tmp_path / "evertick.db").exists()


def test_a_mistake_in_a_declaration_cites_the_line_of_the_user(start, tmp_path):
    (tmp_path / "hasty.py").write_text(HASTY)
    process = start("run", "hasty:scheduler")
    assert f"({tmp_path}/hasty.py:4)" in process.communicate()[1]


@pytest.mark.parametrize(
    ("on_path", "script", "called"),
    [
        (True, ".venv/bin/evertick", "evertick"),
        (False, ".venv/bin/evertick", ".venv/bin/evertick"),
        (False, "/my env/bin/evertick", "'/my env/bin/evertick'"),
        (False, "/lib/evertick/__main__.py", f"{sys.executable} -m evertick"),
    ],
)
def test_the_demo_names_the_command_as_it_can_be_called(tmp_path, monkeypatch, on_path, script, called):
    if on_path:
        (tmp_path / "evertick").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [script, "demo"])
    assert called_as() == called


def test_a_database_that_cannot_be_opened_is_an_error_in_one_sentence(start):
    process = start("run", "shop", "--database", "sqlite:////nowhere/at/all.db")
    _, errors = process.communicate()
    assert process.returncode == 1
    assert errors.splitlines()[-1].startswith("error: the directory /nowhere/at of the store")
    assert "Traceback" not in errors


def test_the_demo_ends_by_itself_and_shows_what_it_promises(start, tmp_path):
    process = start("demo", "--seconds", "12", "--keep", "kept.db")
    output, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    live, _, ledger = output.partition("--- evertick why report")
    assert "mail    attempt 2 failed" in live
    assert "mail    succeeded at attempt 3" in live
    assert "(overlap)" in live
    assert "missed moments become one gap" in live
    assert re.search(r"^Last  the run of .* before it, \d+ moments from ", ledger, re.MULTILINE)
    assert re.search(r"report  succeeded  late ", ledger)
    assert re.search(r"report  skipped    coalesced .* moments since ", ledger)

    # What was kept is a database like any other.
    reading = start("history", "mail", "--json", "--database", "sqlite:///kept.db")
    (run,) = json.loads(reading.communicate()[0])
    assert (run["verdict"], run["attempts"], run["result"]) == ("succeeded", 3, "sent")
    again = start("demo", "--keep", "kept.db")
    assert "exists already" in again.communicate()[1]
    assert again.returncode == 2
