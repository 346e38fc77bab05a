"""What the benchmarks are asked on the command line: what is wrong is told at once, in a line that names the fix."""

from __future__ import annotations

import os
import re
import runpy
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
from benchmarks.arguments import arguments  # noqa: E402
from benchmarks.contender.contenders import CONTENDERS  # noqa: E402
from benchmarks.contender.environment import environment_of  # noqa: E402
from benchmarks.figure import Case  # noqa: E402
from benchmarks.page import PAGE, page_of  # noqa: E402
from benchmarks.plan import GROUPS, MEASUREMENTS  # noqa: E402
from benchmarks.refused import Refused  # noqa: E402
from benchmarks.results import Results, Run  # noqa: E402

Ask = Callable[..., str]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Ask]:
    """Give the command, which is to end at once, and get its last word."""
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
    """The last line of what is said to arguments that cannot be."""
    with pytest.raises(SystemExit, match=r"^2$"):
        arguments([*map(str, given)])
    return capsys.readouterr().err.splitlines()[-1]


def test_without_the_development_requirements_the_line_is_told_that_installs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--help"])

    with pytest.raises(SystemExit) as ended:
        runpy.run_module("benchmarks", run_name="__main__")

    install = "pip install -c constraints.txt -e '.[dev]'"
    assert ended.value.code == f"the benchmarks need asyncpg: {sys.executable} -m {install}"
    assert install in (ROOT / "benchmarks" / "README.md").read_text()


def test_without_a_command_nothing_is_measured_but_the_commands_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        arguments([])

    said = capsys.readouterr()
    assert (said.out, said.err.splitlines()[0]) == ("", "usage: python -m benchmarks [-h] {run,report} ...")


@pytest.mark.parametrize("given", [["cost,idle"], ["cost", "idle"], ["cost, idle"], ["cost", "--only", "idle,cost"]])
def test_names_have_commas_or_spaces_between_them_or_an_option_each(given: list[str]) -> None:
    assert arguments(["run", "--only", *given]).only == ["cost", "idle"]


def test_the_store_may_be_called_by_its_whole_name() -> None:
    assert arguments(["run", "--store", "postgresql,sqlite"]).store == ["postgres", "sqlite"]


@pytest.mark.parametrize(
    ("option", "name", "nearest"),
    [("--only", "latnecy", "latency"), ("--contender", "apscheduler", "apscheduler3"), ("--store", "sqlit", "sqlite")],
)
def test_a_name_that_there_is_not_is_told_those_there_are_the_nearest_first(
    capsys: pytest.CaptureFixture[str], option: str, name: str, nearest: str
) -> None:
    said = refused(capsys, "run", option, name)

    assert f"argument {option}: there is no '{name}', but (nearest first) {nearest}, " in said


def test_a_name_that_is_near_to_nothing_is_told_those_there_are_as_they_stand(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = refused(capsys, "run", "--only", "nonsense")

    assert f"there is no 'nonsense', but {', '.join(GROUPS)}, " in said


def test_a_number_has_digits_alone(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("10,000", "0", "-1", "many"):
        said = refused(capsys, "run", f"--runs={text}")
        assert said.endswith(f"argument --runs: {text!r} is no whole number from 1 on, in digits alone, such as 10000")
    for option, example in (("--rounds", 5), ("--processes", 2), ("--schedules", 10000)):
        assert refused(capsys, "run", f"{option}=0").endswith(f"in digits alone, such as {example}")


def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()

    assert f"there is no folder {tmp_path}/no for a.json" in refused(
        capsys, "run", "--json", tmp_path / "no" / "a.json"
    )
    assert f"{tmp_path} is a folder; name a file in it" in refused(capsys, "run", "--json", tmp_path)
    for option in ("--plots", "--folder"):
        assert "file is a file; name a folder" in refused(capsys, "run", option, tmp_path / "file")
        said = refused(capsys, "run", option, tmp_path / "file" / "deeper")
        assert f"nothing can be written into {tmp_path / 'file'}; name another folder" in said
    # There, not even root can make one.
    for option, path in (("--plots", "/proc/no/page"), ("--folder", "/proc/no"), ("--json", "/proc/no.json")):
        assert "nothing can be written into /proc; name another folder" in refused(capsys, "run", option, path)


def test_the_page_of_a_quick_run_is_not_written_over_that_of_the_docs(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)

    said = ask("run", "--quick", "--only", "time", "--plots", "docs/explanation")

    assert said == "a quick run measures nothing, so its page is not for docs/explanation: --plots ANOTHER_FOLDER"


def test_a_selection_that_nothing_fits_is_told_what_there_is(ask: Ask) -> None:
    assert ask("run", "--contender", "huey", "--store", "postgres", "--only", "latency,minute") == (
        "nothing to measure: there is no such case, but huey: latency on sqlite with 1 or 2 processes, "
        "and minute on sqlite with 1 process"
    )
    assert ask("run", "--store", "sqlite", "--only", "vacuum").endswith("evertick: vacuum on postgres with 1 process")
    assert ask("run", "--contender", "cronsim", "--only", "idle").endswith("cronsim: next_fires")
    said = ask("run", "--contender", "celery", "--only", "minute", "--processes", "2")
    assert said.endswith("no such case, but celery: minute on broker with 1 process")


def test_as_many_processes_as_nothing_is_measured_with_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "run", "--processes", "3")

    assert said.endswith("argument --processes: there is no 3, but 1 and 2; `limits` has three always")


def test_the_help_names_every_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        arguments(["run", "--help"])

    said = set(re.findall(r"\w+", capsys.readouterr().out))
    assert set(MEASUREMENTS) <= said


def test_a_report_of_little_is_not_written_over_a_page_that_has_more(ask: Ask, tmp_path: Path) -> None:
    folder = tmp_path / "docs" / "explanation"
    folder.mkdir(parents=True)
    one, two = (Case("throughput", store, "evertick", 1, 60_000) for store in ("sqlite", "postgres"))
    for name, cases in (("kept.json", (one, two)), ("little.json", (one,)), ("more.json", (one, two))):
        results = Results({}, {}, runs=[Run()])
        for case in cases:
            results.add(case, {"execute": 1.0})
        results.write(tmp_path / name)
    command._report(arguments(["report", "kept.json"]))
    before = (folder / PAGE).read_bytes()

    assert ask("report", "little.json") == (
        "docs/explanation/how-fast.md has 1 cases that these samples have not: report little.json --folder FOLDER for "
        "a page of its own, or report docs/explanation/how-fast.json little.json for one of all"
    )
    assert (folder / PAGE).read_bytes() == before
    command._report(arguments(["report", "more.json"]))
    command._report(arguments(["report", "docs/explanation/how-fast.json", "little.json"]))
    command._report(arguments(["report", "little.json", "--folder", "page"]))


def test_a_server_that_cannot_be_used_is_named_without_its_password(ask: Ask) -> None:
    said = ask("run", "--only", "fires", "--dsn", "postgresql://me:secret@127.0.0.1:1/x")

    assert said.startswith("--dsn postgresql://me:***@127.0.0.1:1/x cannot be used: ")
    assert said.endswith("; name another server, or leave --dsn out, and one is started")
    assert ask("run", "--only", "fires", "--dsn", "nonsense").startswith("--dsn nonsense cannot be used: invalid DSN")


def test_a_server_that_does_not_count_statements_is_told_what_to_load(ask: Ask) -> None:
    from servers.postgres import postgres_server

    with postgres_server(fsync="on", synchronous_commit="on", full_page_writes="on") as dsn:
        said = ask("run", "--only", "fires", "--dsn", dsn)

    assert " does not count: add pg_stat_statements to its shared_preload_libraries, or name another server" in said


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "No such file or directory"),
        ("{}", "it is not as these benchmarks write it"),
        ("[]", "it is not as these benchmarks write it"),
        ("x", "it is no JSON"),
    ],
)
def test_a_file_without_samples_is_told(ask: Ask, tmp_path: Path, text: str | None, why: str) -> None:
    path = tmp_path / "a.json"
    if text is not None:
        path.write_text(text)

    assert ask("report", path) == f"{path} cannot be read: {why}; name what `run --json` has written"


def test_a_benchmark_that_is_interrupted_before_its_first_case_says_so_in_a_line(tmp_path: Path) -> None:
    # There from before: nothing of it was measured now.
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
        # Whoever is started in the background of a shell ignores it.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as running:
        assert running.stdout is not None
        assert any(line.startswith("python") for line in running.stdout)
        os.killpg(running.pid, signal.SIGINT)
        _, said = running.communicate(timeout=60)

    # Where the machine is busy that is told before.
    assert (running.returncode, said.splitlines()[-1]) == (130, "broken off; nothing was measured")
    assert not (tmp_path / "bench").exists()


def test_the_page_of_a_quick_run_is_not_written_where_the_page_is_but_into_a_folder_with_a_banner(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = Results({}, {}, quick=True)
    quick.add(Case("footprint", "", "evertick", 1, 1), {"import": 1.0})
    quick.write(tmp_path / "quick.json")

    assert ask("report", "quick.json") == (
        "a quick run measures nothing, so its page is not for docs/explanation: report quick.json --folder FOLDER"
    )
    assert not (tmp_path / "docs").exists()

    monkeypatch.setattr(sys, "argv", ["benchmarks", "report", "quick.json", "--folder", "page"])
    command.main()
    assert capsys.readouterr().out == f"written: page/{PAGE}, with its pictures and samples\n"
    assert (tmp_path / "page" / PAGE).read_text().splitlines()[2].startswith("**This is of a quick run, ")
    assert "quick run" not in page_of(Results({}, {}))


def test_installing_somebody_is_told(
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


def test_a_report_tells_whose_commits_nobody_can_check_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [Run(measured="2026-11-01", commit=commit) for commit in ("0123456789ab", "ba9876543210-dirty")]
    results = Results({}, {}, runs=runs)
    for place, store in enumerate(("sqlite", "postgres")):
        case = Case("throughput", store, "evertick", 1, 1_000)
        results.add(case, {"execute": 1.0})
        results.ran_in[case] = place
    results.write(tmp_path / "figures.json")
    known = {"ba9876543210"}

    def git(*words: str) -> tuple[int, str]:
        return (0 if words[-1].partition("^")[0] in known else 128), ""

    monkeypatch.setattr(machine, "_git", git)
    command._report(arguments(["report", str(tmp_path / "figures.json"), "--folder", str(tmp_path / "page")]))

    assert capsys.readouterr().out.splitlines()[-1] == (
        "this checkout does not know 0123456789ab: nobody can look at what was measured there"
    )


@pytest.mark.parametrize(("seen", "is_told"), [(9.0, True), (0.0, False)])
def test_a_busy_machine_is_told(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seen: float, is_told: bool
) -> None:
    monkeypatch.setattr(command, "load", lambda: seen)
    monkeypatch.setattr(command.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(command, "_folder", refuse_the_folder)

    assert ask("run", "--only", "next_fires") == "not here"
    said = "the machine is busy, with a load of 9.0 on 2 cores: these figures will not be those of a calm one\n"
    assert capsys.readouterr().err.endswith(said) is is_told


def refuse_the_folder(_folder: Path) -> None:
    raise Refused("not here")
