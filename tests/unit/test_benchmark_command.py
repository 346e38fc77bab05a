"""The command line of the benchmarks: a wrong argument fails at once, with one line that names the fix."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from benchmarks import command, machine  # noqa: E402
from benchmarks.command import arguments  # noqa: E402
from benchmarks.contender.contenders import CONTENDERS  # noqa: E402
from benchmarks.contender.environment import environment_of  # noqa: E402
from benchmarks.errors import UsageError  # noqa: E402
from benchmarks.measurement import Case  # noqa: E402
from benchmarks.plan import GROUPS, MEASUREMENTS  # noqa: E402
from benchmarks.report.page import PAGE, page_of  # noqa: E402
from benchmarks.samples import Results, Run  # noqa: E402

Ask = Callable[..., str]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Ask]:
    """Run a command that fails at once, and return its message."""
    was = signal.getsignal(signal.SIGTERM)
    monkeypatch.chdir(tmp_path)

    def ask(*given: object) -> str:
        monkeypatch.setattr(sys, "argv", ["benchmarks", *map(str, given)])
        with pytest.raises(SystemExit) as ended:
            command.main()
        assert "\n" not in str(ended.value)
        return str(ended.value)

    yield ask
    signal.signal(signal.SIGTERM, was)


def refused(capsys: pytest.CaptureFixture[str], *given: object) -> str:
    """The last line of the message for invalid arguments."""
    with pytest.raises(SystemExit, match=r"^2$"):
        arguments([*map(str, given)])
    return capsys.readouterr().err.splitlines()[-1]


def test_without_the_requirements_the_message_says_how_to_install_them() -> None:
    without = "import runpy, sys; sys.modules['asyncpg'] = None; runpy.run_module('benchmarks', run_name='__main__')"
    ended = subprocess.run([sys.executable, "-c", without, "--help"], cwd=ROOT, capture_output=True, text=True)
    install = "pip install -c constraints.txt -e '.[dev]'"
    assert (ended.returncode, ended.stderr) == (1, f"the benchmarks need asyncpg: {sys.executable} -m {install}\n")
    assert install in (ROOT / "benchmarks" / "README.md").read_text()


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        arguments([])

    message = capsys.readouterr()
    assert (message.out, message.err.splitlines()[0]) == ("", "usage: python -m benchmarks [-h] {run,report} ...")


@pytest.mark.parametrize("given", [["cost,idle"], ["cost", "idle"], ["cost, idle"], ["cost", "--only", "idle,cost"]])
def test_names_are_separated_by_commas_spaces_or_options(given: list[str]) -> None:
    assert arguments(["run", "--only", *given]).only == ["cost", "idle"]


def test_postgresql_is_an_alias_of_postgres() -> None:
    assert arguments(["run", "--store", "postgresql,sqlite"]).store == ["postgres", "sqlite"]


@pytest.mark.parametrize(
    ("option", "name", "nearest"),
    [("--only", "latnecy", "latency"), ("--contender", "apscheduler", "apscheduler3"), ("--store", "sqlit", "sqlite")],
)
def test_an_unknown_name_gets_the_known_names_most_similar_first(
    capsys: pytest.CaptureFixture[str], option: str, name: str, nearest: str
) -> None:
    message = refused(capsys, "run", option, name)

    assert f"argument {option}: unknown name '{name}'; known, most similar first: {nearest}, " in message


def test_an_unknown_name_without_a_similar_one_gets_the_known_names_in_their_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    message = refused(capsys, "run", "--only", "nonsense")

    assert f"unknown name 'nonsense'; known: {', '.join(GROUPS)}, " in message


def test_a_number_is_positive_and_has_only_digits(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("10,000", "0", "-1", "many"):
        message = refused(capsys, "run", f"--runs={text}")
        assert message.endswith(f"argument --runs: {text!r} is not a positive number in digits, such as 10000")
    for option, example in (("--rounds", 5), ("--processes", 2), ("--schedules", 10000)):
        assert refused(capsys, "run", f"{option}=0").endswith(f"in digits, such as {example}")


def test_a_file_that_cannot_be_written_is_rejected_before_any_measurement(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()

    assert f"the folder {tmp_path}/no of a.json does not exist" in refused(
        capsys, "run", "--json", tmp_path / "no" / "a.json"
    )
    assert f"{tmp_path} is a folder; name a file in it" in refused(capsys, "run", "--json", tmp_path)
    for option in ("--plots", "--folder"):
        assert "file is a file; name a folder" in refused(capsys, "run", option, tmp_path / "file")
        message = refused(capsys, "run", option, tmp_path / "file" / "deeper")
        assert f"{tmp_path / 'file'} is not writable; name another folder" in message
    # There, not even root can make one.
    for option, path in (("--plots", "/proc/no/page"), ("--folder", "/proc/no"), ("--json", "/proc/no.json")):
        assert "/proc is not writable; name another folder" in refused(capsys, "run", option, path)


def test_a_quick_run_does_not_replace_the_page_of_the_docs(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)

    message = ask("run", "--quick", "--only", "time", "--plots", "docs/explanation")

    assert message == "a quick run measures nothing, so docs/explanation is not changed: --plots ANOTHER_FOLDER"


def test_a_selection_without_cases_gets_the_available_ones(ask: Ask) -> None:
    assert ask("run", "--contender", "huey", "--store", "postgres", "--only", "latency,minute") == (
        "nothing to measure: no such case. Available: huey: latency on sqlite with 1 or 2 processes, "
        "and minute on sqlite with 1 process"
    )
    assert ask("run", "--store", "sqlite", "--only", "vacuum").endswith("evertick: vacuum on postgres with 1 process")
    assert ask("run", "--contender", "cronsim", "--only", "idle").endswith("cronsim: next_fires")
    message = ask("run", "--contender", "celery", "--only", "minute", "--processes", "2")
    assert message.endswith("no such case. Available: celery: minute on broker with 1 process")


def test_an_unsupported_number_of_processes_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, "run", "--processes", "3")

    assert message.endswith("argument --processes: 3 is not supported, only 1 and 2; `limits` always has three")


def test_the_help_names_every_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        arguments(["run", "--help"])

    message = set(re.findall(r"\w+", capsys.readouterr().out))
    assert set(MEASUREMENTS) <= message


def test_a_report_with_fewer_cases_does_not_replace_the_page(ask: Ask, tmp_path: Path) -> None:
    folder = tmp_path / "docs" / "explanation"
    folder.mkdir(parents=True)
    one, two = (Case("throughput", store, "evertick", 1, 60_000) for store in ("sqlite", "postgres"))
    for name, cases in (("kept.json", (one, two)), ("little.json", (one,)), ("more.json", (one, two))):
        results = Results({}, {}, runs=[Run()])
        for case in cases:
            results.add(case, {"execute": 1.0})
        results.write(tmp_path / name)
    command.report(arguments(["report", "kept.json"]))
    before = (folder / PAGE).read_bytes()

    assert ask("report", "little.json") == (
        "docs/explanation/how-fast.json has 1 cases that these samples lack: report little.json --folder FOLDER for a "
        "separate page, or report docs/explanation/how-fast.json little.json to combine them"
    )
    assert (folder / PAGE).read_bytes() == before
    command.report(arguments(["report", "more.json"]))
    command.report(arguments(["report", "docs/explanation/how-fast.json", "little.json"]))
    command.report(arguments(["report", "little.json", "--folder", "page"]))


def test_an_unusable_server_is_named_without_its_password(ask: Ask) -> None:
    message = ask("run", "--only", "fires", "--dsn", "postgresql://me:secret@127.0.0.1:1/x")

    assert message.startswith("--dsn postgresql://me:***@127.0.0.1:1/x cannot be used: ")
    assert message.endswith("; name another server, or leave --dsn out to start one")
    assert ask("run", "--only", "fires", "--dsn", "nonsense").startswith("--dsn nonsense cannot be used: invalid DSN")


def test_a_server_without_pg_stat_statements_is_rejected_with_the_fix(ask: Ask) -> None:
    from servers.postgres import postgres_server

    with postgres_server(fsync="on", synchronous_commit="on", full_page_writes="on") as dsn:
        message = ask("run", "--only", "fires", "--dsn", dsn)

    assert (
        " counts no statements: add pg_stat_statements to its shared_preload_libraries, or name another server"
        in message
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "No such file or directory"),
        ("{}", "it has another format"),
        ("[]", "it has another format"),
        ("x", "it is not JSON"),
    ],
)
def test_a_file_without_samples_is_rejected(ask: Ask, tmp_path: Path, text: str | None, why: str) -> None:
    path = tmp_path / "a.json"
    if text is not None:
        path.write_text(text)

    assert ask("report", path) == f"{path} cannot be read: {why}; name a file that `run --json` has written"


def test_an_interruption_before_the_first_case_is_reported_in_one_line(tmp_path: Path) -> None:
    # An older file: its samples are not of this run.
    (tmp_path / "a.json").touch()
    asked = ["run", "--only", "footprint", "--json", str(tmp_path / "a.json"), "--folder", str(tmp_path / "bench")]
    program = [sys.executable, "-m", "benchmarks", *asked]
    with subprocess.Popen(
        program,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Background processes of a shell ignore it.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as running:
        assert running.stdout is not None
        assert any(line.startswith("python") for line in running.stdout)
        os.killpg(running.pid, signal.SIGINT)
        _, message = running.communicate(timeout=60)

    # On a busy machine a warning comes before.
    assert (running.returncode, message.splitlines()[-1]) == (130, "interrupted; nothing was measured")
    assert not (tmp_path / "bench").exists()


def test_a_report_of_a_quick_run_needs_a_folder_and_has_a_banner(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = Results({}, {}, quick=True)
    quick.add(Case("footprint", "", "evertick", 1, 1), {"import": 1.0})
    quick.write(tmp_path / "quick.json")

    assert ask("report", "quick.json") == (
        "a quick run measures nothing, so docs/explanation is not changed: report quick.json --folder FOLDER"
    )
    assert not (tmp_path / "docs").exists()

    monkeypatch.setattr(sys, "argv", ["benchmarks", "report", "quick.json", "--folder", "page"])
    command.main()
    assert capsys.readouterr().out == f"written: page/{PAGE} with its charts and samples, and tables in page\n"
    assert (tmp_path / "page" / PAGE).read_text().splitlines()[2].startswith("**This page shows a quick run ")
    assert "quick run" not in page_of(Results({}, {}))


def test_installing_a_peer_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def install(command: list[str], **how: object) -> subprocess.CompletedProcess[str]:
        (tmp_path / "huey").mkdir(exist_ok=True)
        return subprocess.CompletedProcess(command, 0, "")

    monkeypatch.setattr(subprocess, "run", install)
    (huey,) = (each for each in CONTENDERS if each.name == "huey")
    environment_of(huey, tmp_path)
    environment_of(huey, tmp_path)

    assert capsys.readouterr().out == "installing  Huey: huey>=2.5\n"


def test_a_report_names_commits_that_the_checkout_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [Run(measured="2026-11-01", commit=commit) for commit in ("0123456789ab", "ba9876543210-dirty")]
    results = Results({}, {}, runs=runs)
    for backend, store in enumerate(("sqlite", "postgres")):
        case = Case("throughput", store, "evertick", 1, 1_000)
        results.add(case, {"execute": 1.0})
        results.ran_in[case] = backend
    results.write(tmp_path / "figures.json")
    known = {"ba9876543210"}

    def git(*words: str) -> tuple[int, str]:
        return (0 if words[-1].partition("^")[0] in known else 128), ""

    monkeypatch.setattr(machine, "_git", git)
    command.report(arguments(["report", str(tmp_path / "figures.json"), "--folder", str(tmp_path / "page")]))

    assert capsys.readouterr().out.splitlines()[-1] == (
        "this checkout does not have 0123456789ab: that code cannot be looked up here"
    )


@pytest.mark.parametrize(("seen", "is_reported"), [(9.0, True), (0.0, False)])
def test_a_busy_machine_gets_a_warning(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seen: float, is_reported: bool
) -> None:
    monkeypatch.setattr(command, "load", lambda: seen)
    monkeypatch.setattr(command.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(command, "_folder", reject_the_folder)

    assert ask("run", "--only", "next_fires") == "not here"
    message = "the machine is busy (load 9.0 on 2 cores): results will be worse\n"
    assert capsys.readouterr().err.endswith(message) is is_reported


def reject_the_folder(_folder: Path) -> None:
    raise UsageError("not here")
