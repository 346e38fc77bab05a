"""The benchmarks work: tiny sizes, every check, every metric. Speed itself is not tested."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from pathlib import Path
from threading import Barrier
from xml.etree import ElementTree

import pytest

from evertick import Scheduler
from evertick.ledger import parsed_rules

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from benchmarks import rounds  # noqa: E402
from benchmarks.backend.postgres import PostgresBackend  # noqa: E402
from benchmarks.backend.protocol import LedgerBackend  # noqa: E402
from benchmarks.backend.server import server  # noqa: E402
from benchmarks.backend.sqlite import SqliteBackend  # noqa: E402
from benchmarks.contender import sqlite_statements  # noqa: E402
from benchmarks.contender.contenders import CONTENDERS, EVERTICK, STORES, Contender  # noqa: E402
from benchmarks.contender.environment import Environment, Unavailable, environment_of  # noqa: E402
from benchmarks.contender.tally import Tally, executions, total  # noqa: E402
from benchmarks.errors import NotDurable  # noqa: E402
from benchmarks.machine import disk_of  # noqa: E402
from benchmarks.measure import schedules, throughput  # noqa: E402
from benchmarks.measure.fires import APP, StoreLoop, add_schedules, fire, join  # noqa: E402
from benchmarks.measure.knee import is_near  # noqa: E402
from benchmarks.measurement import (  # noqa: E402
    Case,
    Measured,
    Measurement,
    percentile,
)
from benchmarks.plan import GROUPS, MEASUREMENTS, Selection, cases  # noqa: E402
from benchmarks.processes import start  # noqa: E402
from benchmarks.report.aims import AIMS, MISSED, aims_table, reasons_of  # noqa: E402
from benchmarks.report.aims import results_of as aim_results  # noqa: E402
from benchmarks.report.charts import charts_of  # noqa: E402
from benchmarks.report.page import PAGE, SAMPLES, write_page  # noqa: E402
from benchmarks.report.tables import files_of, tables_of, write_tables  # noqa: E402
from benchmarks.report.text import number_text  # noqa: E402
from benchmarks.samples import Results, Run, Samples  # noqa: E402
from benchmarks.size import FULL, QUICK  # noqa: E402
from benchmarks.trial import Trial  # noqa: E402

DOCS, TABLES = ROOT / "docs" / "explanation", ROOT / "benchmarks" / "results"


def benchmarks(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)


# It starts a server and a hundred processes, some of them nodes.
@pytest.mark.long("benchmark")
def test_a_quick_benchmark_has_every_metric_on_both_stores_and_removes_its_files(tmp_path: Path) -> None:
    written, folder = tmp_path / "figures.json", tmp_path / "bench"

    done = benchmarks("run", "--quick", "--json", written, "--folder", folder)

    assert done.returncode == 0, done.stderr
    results = Results.read([written])
    for measurement in MEASUREMENTS.values():
        cases = results.of(measurement.name)
        found = {name for samples in cases.values() for name in samples}
        assert found == {figure.name for figure in measurement.metrics}, measurement.name
        assert all(value >= 0 for samples in cases.values() for each in samples.values() for value in each)
        about = r" \(run 1; one round: fewer than 5\)"
        assert re.search(rf"^{re.escape(measurement.title)}.*{about}$", done.stdout, re.MULTILINE)
    for name in ("cost", "idle"):
        wanted = {figure.name for figure in MEASUREMENTS[name].metrics}
        assert {case.store: set(found) for case, found in results.of(name).items()} == dict.fromkeys(STORES, wanted)
    assert {case.store for case in results.of("throughput")} == {"sqlite", "postgres"}
    assert {case.contender for case in results.of("throughput")} == {"evertick", "raw"}
    assert {"postgresql", "sqlite", "python", "cpu", "disk"} <= set(results.machine)
    assert {"fsync", "shared_buffers", "max_wal_size", "checkpoint_timeout"} <= set(results.server)
    assert len(results.runs) == 1
    assert not folder.exists()
    write_page(results, tmp_path / "page")
    assert "Its figures mean nothing" in " ".join((tmp_path / "page" / PAGE).read_text().split())
    assert done.stdout.splitlines()[-1].startswith("A quick run measures nothing: ")
    for picture in (tmp_path / "page").glob("*.svg"):
        ElementTree.parse(picture)
    assert Results.read([tmp_path / "page" / SAMPLES]).cases == results.cases


def test_an_unknown_group_is_rejected_with_the_known_ones() -> None:
    done = benchmarks("--quick", "--only", "nothing")

    assert (done.returncode, done.stdout) == (2, "")
    assert all(group in done.stderr for group in GROUPS)


def test_page_tables_and_charts_are_generated_from_the_samples(tmp_path: Path) -> None:
    results = Results.read([DOCS / SAMPLES])
    write_page(results, tmp_path / "page")
    write_tables(results, tmp_path / "tables")
    for made, folder, pattern in ((tmp_path / "page", DOCS, "how-fast*"), (tmp_path / "tables", TABLES, "*")):
        for path in made.iterdir():
            fix = "run: python -m benchmarks report docs/explanation/how-fast.json"
            assert path.read_bytes() == (folder / path.name).read_bytes(), f"{folder / path.name} differs; {fix}"
        assert {path.name for path in folder.glob(pattern)} == {path.name for path in made.iterdir()}


def test_the_page_of_the_docs_is_short_and_names_every_missed_aim() -> None:
    page, results = (DOCS / PAGE).read_text(), Results.read([DOCS / SAMPLES])

    assert len(page.split()) <= 1_800
    missed = [each.aim.text for each in aim_results(results) if each.verdict == MISSED]
    assert missed
    assert all(f"| {text} |" in page for text in missed)
    assert all((DOCS / name).exists() for name in re.findall(r"!\[.*\]\((.*)\)", page))


def test_the_note_precedes_the_list_of_runs(tmp_path: Path) -> None:
    results = throughput_of(evertick=[10.0])
    results.note = "On a boat."
    results.write(tmp_path / "samples.json")

    runs = files_of(Results.read([tmp_path / "samples.json"]))["runs.md"]

    assert runs.partition("## Runs\n\n")[2].startswith("On a boat.\n\nThe runs that measured these results.")
    assert runs.count("On a boat.") == 1


def test_skipped_and_failed_contenders_are_listed() -> None:
    results = Results({"cores": "2"}, {}, skipped={"Huey": "there is no network"}, failed=["latency, celery: it ended"])

    runs = files_of(results)["runs.md"]

    assert "Huey was not measured: it could not be installed (there is no network)." in runs
    assert "- latency, celery: it ended" in runs
    assert runs.count(": all cases.") == len(MEASUREMENTS)


def test_the_tables_have_notes_on_both_kinds_of_dispatch() -> None:
    tables = files_of(measured("dispatch", "sqlite", 10_000, evertick={"rate": [1.0]}))["tables.md"]
    notes = " ".join(tables.partition("## Dispatch")[2].split())

    assert "a full queue of runs, then the same number of due schedules" in notes


def selection(**other: object) -> Selection:
    asked: dict[str, object] = {
        "groups": GROUPS,
        "stores": STORES,
        "processes": (1, 2),
        "has_peers": False,
        "names": (),
        "has_million": False,
        "size": FULL,
    }
    return Selection(**{**asked, **other})  # type: ignore[arg-type]


def test_peers_are_measured_only_on_request_and_only_at_supported_measurements() -> None:
    by_name = {each.name: each for each in CONTENDERS}

    assert not any(by_name[case.contender].is_peer for case in cases(selection()))
    for case in cases(selection(has_peers=True)):
        contender = by_name[case.contender]
        assert case.measurement in contender.measurements
        assert not case.store or case.store in contender.stores
        assert case.processes <= contender.most_processes or case.measurement == "limits"
        assert case.processes <= contender.most_planners or case.measurement != "minute"
    assert {case.contender for case in cases(selection(has_peers=True))} == set(by_name)
    assert {case.contender for case in cases(selection(names=("huey",)))} == {"huey"}


@pytest.mark.parametrize("asked", [{}, {"size": QUICK, "is_quick": True, "processes": (1,)}])
def test_every_contender_with_schedules_is_measured_at_them(asked: dict[str, object]) -> None:
    found = {case.contender for case in cases(selection(has_peers=True, groups=("minute",), **asked))}

    assert found == {
        *("evertick", "graphile", "pgqueuer", "procrastinate", "apscheduler3", "apscheduler4", "celery", "huey"),
    }


def test_one_and_two_processes_are_measured_where_that_makes_sense() -> None:
    both = [case for case in cases(selection()) if case.contender == "evertick"]

    found = {name: {case.processes for case in both if case.measurement == name} for name in MEASUREMENTS}
    for name in ("throughput", "enqueue", "latency", "minute", "herd", "knee", "idle", "cost", "history"):
        assert found.pop(name) == {1, 2}, name
    assert found.pop("dispatch") == found.pop("dispatch_due") == {1, 2}
    assert found.pop("kill") == found.pop("stop") == {2}
    assert found.pop("limits") == {3}
    assert set(map(frozenset, found.values())) == {frozenset({1})}
    alone = cases(selection(processes=(1,), groups=("throughput", "knee", "history", "dispatch")))
    assert {case.processes for case in alone} == {1}


def test_a_million_schedules_are_measured_on_request_for_evertick_on_both_stores() -> None:
    def million(**asked: object) -> list[Case]:
        return [case for case in cases(selection(has_peers=True, **asked)) if case.number == 1_000_000]

    names = ("minute", "herd", "idle")
    asked_twice = dataclasses.replace(FULL, schedules=(1_000_000,))
    twice = million(has_million=True, size=asked_twice)
    assert len(twice) == len(set(twice))
    assert [case for case in million() if case.measurement in names] == []
    found = {case for case in million(has_million=True) if case.measurement in names}
    assert found == {
        Case(name, store, "evertick", processes, 1_000_000, variant)
        for name, variant, processes in (
            *((name, "", processes) for name in names for processes in (1, 2)),
            ("minute", "evenly", 1),
        )
        for store in STORES
    }


def test_a_million_schedules_with_a_rule_each_have_one_round() -> None:
    million = [case for case in cases(selection(has_million=True, groups=("minute",))) if case.number == 1_000_000]

    known = Results({}, {}, cases={case: {} for case in million})
    again = [case for case in million if MEASUREMENTS["minute"].has_round(case, known)]

    assert {case.variant for case in million} == {"", "evenly"}
    assert again == [case for case in million if not case.variant]


def test_a_million_schedules_that_do_not_fit_have_one_round() -> None:
    fits, not_quite, far = (Case("minute", store, "evertick", 1, 1_000_000) for store in ("postgres", "sqlite", "x"))
    small = Case("minute", "sqlite", "evertick", 1, 1_000)
    shares = {fits: 100.0, not_quite: 99.9, far: 4.8, small: 4.8}
    known = Results({}, {}, cases={case: {"share": [share]} for case, share in shares.items()})

    again = [case for case in shares if MEASUREMENTS["minute"].has_round(case, known)]

    assert again == [fits, not_quite, small]


def test_the_notes_have_the_size_of_the_rule_cache() -> None:
    tables = files_of(measured("minute", "postgres", 10_000, evertick={"share": [100.0], "p99": [1.0]}))["tables.md"]

    assert f"A node caches {parsed_rules._RULES_MAX:,} rules" in " ".join(tables.split())


def test_the_import_with_a_store_is_measured_only_for_evertick() -> None:
    found = [case for case in cases(selection(has_peers=True, groups=("footprint",))) if case.variant]

    assert [(case.contender, case.variant) for case in found] == [
        ("evertick", "with SQLite"),
        ("evertick", "with PostgreSQL"),
    ]


def test_compared_cases_are_neighbours() -> None:
    order = [case for case in cases(selection(has_peers=True)) if case.measurement == "throughput"]

    groups = [(case.store, case.processes) for case in order]
    assert len(dict.fromkeys(groups)) == 4
    assert groups == sorted(groups, key=list(dict.fromkeys(groups)).index)


def peer(name: str) -> Contender:
    return next(each for each in CONTENDERS if each.name == name)


def case_of(contender: str = "evertick", measurement: str = "throughput", number: int = 100) -> Case:
    return Case(measurement, "sqlite", contender, 1, number)


@pytest.fixture
def backends(tmp_path: Path) -> rounds.Backends:
    environment = Environment((sys.executable,), {}, {})
    return rounds.Backends(tmp_path, None, {each.name: environment for each in CONTENDERS}, QUICK)


def keeping_nothing(results: Results, round_name: str) -> None: ...


def measuring(monkeypatch: pytest.MonkeyPatch, *answers: Measured | Exception) -> None:
    """Let the throughput of each round be what is given."""
    given = iter(answers)

    def measure(trial: Trial) -> Measured:
        answer = next(given)
        if isinstance(answer, Exception):
            raise answer
        return answer

    was = MEASUREMENTS["throughput"]
    measurement = Measurement(was.name, was.group, was.title, was.metrics, measure)
    monkeypatch.setitem(MEASUREMENTS, "throughput", measurement)


def test_a_failed_round_of_a_peer_has_no_sample_and_is_reported(
    backends: rounds.Backends, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measuring(monkeypatch, {"execute": 10.0}, AssertionError("a worker has ended\nby itself"), {"execute": 30.0})
    results = Results({}, {})

    rounds.run_rounds(backends, [case_of("huey")], 3, results, keeping_nothing)

    assert results.failed == ["throughput, sqlite, huey, 1 process, 100, round 2/3: a worker has ended by itself"]
    first, missing, last = results.cases[case_of("huey")]["execute"]
    assert (first, math.isnan(missing), last) == (10.0, True, 30.0)
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_evertick_ends_the_benchmark(backends: rounds.Backends, monkeypatch: pytest.MonkeyPatch) -> None:
    measuring(monkeypatch, AssertionError("1 was lost"))
    with pytest.raises(AssertionError, match="1 was lost"):
        rounds.run_rounds(backends, [case_of()], 1, Results({}, {}), keeping_nothing)


def measuring_knee(monkeypatch: pytest.MonkeyPatch, late: dict[int, list[float]]) -> None:
    """Let each step of the knee be so late: at the look before the rounds, then round by round."""
    given = {number: iter(each) for number, each in late.items()}

    def measure(trial: Trial) -> Measured:
        return {"share": 100.0, "p99": next(given[trial.number])}

    monkeypatch.setitem(MEASUREMENTS, "knee", dataclasses.replace(MEASUREMENTS["knee"], measure=measure))


def rounds_of(results: Results) -> dict[int, int]:
    return {case.number: len(samples["p99"]) for case, samples in results.of("knee").items()}


def test_all_steps_of_the_knee_have_a_preview_and_those_near_it_have_rounds(
    backends: rounds.Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring_knee(monkeypatch, {n: [2_000.0 if n > 4 else 1_999.0] * 6 for n in range(1, 9)})
    results = Results({}, {})

    rounds.run_rounds(
        backends, [case_of(measurement="knee", number=n) for n in range(1, 9)], 5, results, keeping_nothing
    )

    assert rounds_of(results) == {1: 1, 2: 1, 3: 5, 4: 5, 5: 5, 6: 5, 7: 1, 8: 1}
    rows = table_rows(results, "knee")
    assert rows["Evertick (1 round)"][0] == "8"
    assert rows["Evertick"][0] == "6"


def test_if_a_round_moves_the_knee_the_steps_near_the_new_one_have_rounds(
    backends: rounds.Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second step has a bad minute in the first round, which two good ones outweigh.
    late = {1: [10.0] * 3, 2: [10.0, 9_000.0, *[10.0] * 4], 3: [10.0] * 6, 4: [9_000.0] * 4}
    measuring_knee(monkeypatch, late)
    results = Results({}, {})

    rounds.run_rounds(backends, [case_of(measurement="knee", number=n) for n in late], 5, results, keeping_nothing)

    assert rounds_of(results) == {1: 2, 2: 5, 3: 5, 4: 3}


def test_a_preview_is_no_sample_of_the_rounds(backends: rounds.Backends, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(trial: Trial) -> Measured:
        return {"share": 100.0, "p99": 1.0 if trial.is_preview else float(trial.number)}

    monkeypatch.setitem(MEASUREMENTS, "knee", dataclasses.replace(MEASUREMENTS["knee"], measure=measure))
    results = Results({}, {})
    steps = [case_of(measurement="knee", number=n) for n in (10, 20, 30)]

    rounds.run_rounds(backends, steps, 2, results, keeping_nothing)

    assert [results.cases[each]["p99"] for each in steps] == [[1.0], [20.0, 20.0], [30.0, 30.0]]


def test_a_run_that_fails_in_its_first_round_keeps_the_previews(
    backends: rounds.Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring_knee(monkeypatch, {10: [1.0, 2.0], 20: [1.0]})
    steps, kept = [case_of(measurement="knee", number=n) for n in (10, 20)], list[dict[int, list[float]]]()

    def keep(results: Results, round_name: str) -> None:
        kept.append({case.number: samples["p99"] for case, samples in results.cases.items()})

    with pytest.raises(StopIteration):
        rounds.run_rounds(backends, steps, 1, Results({}, {}), keep)

    assert kept[-1] == {10: [2.0], 20: [1.0]}


def test_each_number_of_processes_has_its_own_knee() -> None:
    results = Results({}, {})
    for processes, knee in ((1, 2), (2, 5)):
        for number in range(1, 8):
            samples = {"share": [100.0 if number <= knee else 99.0], "p99": [10.0]}
            results.cases[Case("knee", "sqlite", "evertick", processes, number)] = samples

    near = [(case.processes, case.number) for case in results.of("knee") if is_near(case, results)]

    assert near == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 4), (2, 5), (2, 6), (2, 7)]


def test_measurements_that_alternate_themselves_have_one_round() -> None:
    once = {name for name, each in MEASUREMENTS.items() if each.is_once}

    assert once == {"idle", "fires", "history", "dispatch", "dispatch_due"}


def test_samples_before_a_failure_are_kept_and_the_last_round_is_incomplete(
    backends: rounds.Backends, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measuring(monkeypatch, {"execute": 10.0}, {"execute": 20.0}, {"execute": 30.0}, AssertionError("1 was lost"))
    path, rounds_saved = tmp_path / "kept.json", list[str]()

    def keep(results: Results, round_name: str) -> None:
        rounds_saved.append(round_name)
        results.write(path)

    with pytest.raises(AssertionError, match="1 was lost") as broken:
        rounds.run_rounds(backends, [case_of(), case_of("raw")], 2, Results({}, {}), keep)

    kept = Results.read([path])
    assert rounds_saved == ["1/2", "1/2", "2/2"]
    # The last case of a round is the first of the next.
    assert broken.value.__notes__ == [case_of().title]
    assert kept.cases[case_of("raw")] == {"execute": [20.0, 30.0]}
    first, missing = kept.cases[case_of()]["execute"]
    assert (first, math.isnan(missing)) == (10.0, True)
    rows = table_rows(kept)
    assert (rows["Evertick (1 of 2 rounds)"], rows["raw loop"]) == (["10.0, 0.50 of raw"], ["25.0 [20.0..30.0]"])
    assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]


def test_a_case_without_any_round_is_not_in_the_file() -> None:
    results = Results({}, {})
    results.add(case_of(), {"execute": 10.0})

    assert results.as_interrupted([case_of("raw")]).cases == {case_of(): {"execute": [10.0]}}


def test_an_interrupted_benchmark_leaves_a_file_that_can_be_reported(tmp_path: Path) -> None:
    written, page = tmp_path / "figures.json", tmp_path / "page"
    asked = ["run", "--quick", "--only", "footprint", "--rounds", "100000", "--json", str(written)]
    command = [sys.executable, "-m", "benchmarks", *asked, "--folder", str(tmp_path / "bench")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        # The file exists when the second round has begun.
        assert any(line.startswith("round 2/") for line in running.stdout)
        running.terminate()
        _, errors = running.communicate(timeout=60)

    assert (running.returncode, errors.splitlines()[-1]) == (1, f"interrupted; the samples are in {written}")
    assert benchmarks("report", written, "--folder", page).returncode == 0
    expected = r"^1\. .*: footprint; interrupted in round \d+/100000 by the user; "
    assert re.search(expected, (page / "runs.md").read_text(), re.MULTILINE)


def test_a_peer_that_cannot_be_installed_is_unavailable_with_the_error_of_its_installer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(command: list[str], **how: object) -> None:
        raise subprocess.CalledProcessError(1, command, stderr="looking for it\nthere is no network\n")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(Unavailable, match=r"^there is no network$"):
        environment_of(peer("huey"), tmp_path)


def test_a_node_peer_is_unavailable_without_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="'node'"):
        environment_of(peer("graphile"), tmp_path)


@pytest.mark.parametrize(
    ("name", "driver"),
    [
        ("pgqueuer", "asyncpg"),
        ("procrastinate", "psycopg"),
        ("apscheduler3", "psycopg"),
        ("apscheduler4", "asyncpg"),
        ("celery", "kombu"),
    ],
)
def test_the_versions_of_a_peer_include_its_driver(tmp_path: Path, name: str, driver: str) -> None:
    packages = tmp_path / name / "lib" / "python3" / "site-packages"
    for package in ("SomeThing", driver):
        (packages / f"{package}-1.2.dist-info").mkdir(parents=True)
        (packages / f"{package}-1.2.dist-info" / "METADATA").write_text(f"Name: {package}\nVersion: 1.2\n")
    (tmp_path / name / "installed").touch()

    assert environment_of(peer(name), tmp_path).versions == {driver: "1.2"}


def test_a_missing_sample_is_written_and_read(tmp_path: Path) -> None:
    results = Results({}, {})
    results.add(case_of("huey"), {"execute": 10.0})
    results.add_missing(case_of("huey"), ["execute", "single"])
    results.write(tmp_path / "one.json")

    line = json.loads((tmp_path / "one.json").read_text(), parse_constant=pytest.fail)["cases"][0]["metrics"]
    assert line["execute"] == {"median": 10.0, "min": 10.0, "max": 10.0, "samples": [10.0, None]}
    assert line["single"] == {"median": None, "min": None, "max": None, "samples": [None]}
    assert Results.read([tmp_path / "one.json"]).cases == results.cases


def test_files_of_several_runs_are_combined_with_the_differences_of_their_machines(tmp_path: Path) -> None:
    one, two = Run("monday", "aaa", loads=[1.0]), Run("tuesday", "bbb", loads=[2.0])
    first = Results({"cores": "2", "disk": "old"}, {"Evertick": "x"}, {"fsync": "on"}, [one])
    first.add(case_of(), {"execute": 10.0})
    second = Results({"cores": "2", "disk": "new"}, {"Huey": "y"}, {"fsync": "on"}, [two])
    second.failed.append("it ended")
    second.skipped["Celery beat"] = "no network"
    second.add(case_of("huey"), {"execute": 5.0})
    first.write(tmp_path / "1.json")
    second.write(tmp_path / "2.json")

    both = Results.read([tmp_path / "1.json", tmp_path / "2.json"])

    assert both.machine == {"cores": "2", "disk": "old; new"}
    assert (both.settings, both.server) == ({"Evertick": "x", "Huey": "y"}, {"fsync": "on"})
    assert both.runs == [one, two]
    assert (both.run_of(case_of()), both.run_of(case_of("huey"))) == (1, 2)
    assert (both.failed, both.skipped) == (["it ended"], {"Celery beat": "no network"})
    assert both.cases == {case_of(): {"execute": [10.0]}, case_of("huey"): {"execute": [5.0]}}


def table_rows(results: Results, measurement: str = "throughput") -> dict[str, list[str]]:
    """The cells of each row by the first one, the head under the empty text."""
    (table,) = tables_of(results, MEASUREMENTS[measurement])
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.text.splitlines()]
    return {row[0]: row[1:] for row in rows if row[0] != "---"}


def throughput_of(**samples: list[float]) -> Results:
    results = Results({}, {})
    for contender, values in samples.items():
        results.cases[case_of(contender)] = {"execute": values}
    return results


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    rows = table_rows(throughput_of(evertick=[10.0, 20.0, 90.0], raw=[20.0, 10.0, 30.0]))

    assert rows["Evertick"] == ["20.0 [10.0..90.0], 2.00 of raw"]
    assert rows["raw loop"] == ["20.0 [10.0..30.0]"]


def test_a_missing_round_of_a_peer_is_counted_and_has_no_ratio() -> None:
    rows = table_rows(throughput_of(raw=[20.0, 10.0, 40.0], huey=[10.0, math.nan, 40.0]))

    assert rows["Huey (2 of 3 rounds)"] == ["25.0 [10.0..40.0], 0.75 of raw"]


def test_different_numbers_of_rounds_have_no_ratio() -> None:
    rows = table_rows(throughput_of(raw=[20.0, 10.0, 40.0], huey=[10.0, 40.0]))

    assert rows["Huey (2 rounds)"] == ["25.0 [10.0..40.0]"]


def test_a_peer_that_failed_in_every_round_has_a_row_of_dashes() -> None:
    rows = table_rows(throughput_of(raw=[20.0, 10.0], huey=[math.nan, math.nan]))

    assert rows["Huey (0 of 2 rounds)"] == ["-"]


def test_a_number_is_shown_even_if_all_rows_have_the_same() -> None:
    results = Results({}, {})
    results.cases[case_of(measurement="minute", number=10_000)] = {"share": [100.0]}

    rows = table_rows(results, "minute")

    assert rows[""][0] == "schedules"
    assert rows["Evertick"][0] == "10,000"


@pytest.mark.parametrize(
    ("share", "shown"), [(100.0, "100"), (99.9996, "99.999"), (99.97, "99.97"), (99.94, "99.9"), (0.0, "0")]
)
def test_a_share_of_nearly_a_hundred_is_not_rounded_to_it(share: float, shown: str) -> None:
    results = Results({}, {})
    results.cases[case_of(measurement="minute", number=10_000)] = {"share": [share]}

    title = "Evertick" if share == 100 else "Evertick (not all in time)"
    results.cases[case_of(measurement="minute", number=10_000)]["p99"] = [1.0]
    assert table_rows(results, "minute")[title][1] == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(99.956, "100"), (99.94, "99.9"), (9.996, "10.0"), (999.6, "1,000"), (0.1234, "0.12"), (0.01234, "0.0123")],
)
def test_a_number_has_three_significant_digits(value: float, shown: str) -> None:
    assert number_text(value) == shown


@pytest.mark.parametrize(
    ("measurement", "count", "expected"),
    [
        ("throughput", 5, "5 rounds"),
        ("throughput", 3, "3 rounds: fewer than 5"),
        ("throughput", 1, "one round: fewer than 5"),
        ("history", 5, "5 turns"),
        ("knee", 1, "one round: fewer than 5"),
    ],
)
def test_a_table_names_its_rounds_and_whether_they_are_few(measurement: str, count: int, expected: str) -> None:
    results, wanted = Results({}, {}), MEASUREMENTS[measurement]
    names = {figure.name for figure in wanted.metrics}
    results.cases[case_of(measurement=measurement)] = {name: [1.0] * count for name in names}

    assert f"**{wanted.title} on SQLite** (run 1; {expected})" in files_of(results)["tables.md"]


def test_the_chart_of_the_knee_has_hollow_points_beyond_it() -> None:
    results = Results({}, {})
    for number, share in ((2_000, 100.0), (8_000, 70.0)):
        for processes in (1, 2):
            case = Case("knee", "sqlite", "evertick", processes, number)
            results.cases[case] = {"share": [share], "p99": [float(number)]}

    _, chart = charts_of(results)["knee"]

    circles = [each for each in ElementTree.fromstring(chart).iter() if each.tag.endswith("circle")]
    # Charts show one process.
    assert [each.get("fill") == "#ffffff" for each in circles] == [False, True]


def test_the_chart_of_the_history_has_two_bars_for_each_store() -> None:
    results = Results({}, {})
    for processes in (1, 2):
        case = Case("history", "postgres", "evertick", processes, 10_000_000)
        results.cases[case] = {"short": [20.0, 30.0], "long": [10.0, 20.0], "ratio": [0.5, 0.7]}

    _, chart = charts_of(results)["history"]

    texts = [each.text for each in ElementTree.fromstring(chart).iter() if each.tag.endswith("text")]
    assert texts[1:-1] == ["PostgreSQL", "short history", "25.0", "10,000,000 finished runs", "15.0"]


def aim_rows(results: Results) -> dict[str, list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in aims_table(results).splitlines()[2:]]
    assert len(rows) == sum(not aim.is_beyond or bool(aim.find(results).samples) for aim in AIMS)
    return {row[0]: row[1:] for row in rows}


def measured(measurement: str, store: str, number: int = 0, variant: str = "", **contenders: Samples) -> Results:
    results = Results({}, {})
    for contender, samples in contenders.items():
        results.cases[Case(measurement, store, contender, 1, number, variant)] = samples
    return results


def test_an_aim_without_samples_is_not_measured() -> None:
    rows = aim_rows(Results({}, {}))

    assert {tuple(row[1:]) for row in rows.values()} == {("not measured", "-", "-", "-", "-")}


def test_only_missed_aims_have_a_reason() -> None:
    def reasons(ours: float) -> list[str]:
        found = measured("throughput", "sqlite", 60_000, evertick={"execute": [ours]}, huey={"execute": [10.0]})
        assert ("Known reasons" in files_of(found)["aims.md"]) == bool(reasons_of(found))
        return reasons_of(found)

    [reason] = reasons(99.0)
    assert reason.startswith("- Runs a second on SQLite, ratio to Huey. Huey writes one run at a time")
    assert "reached the disk" not in reason
    assert reasons(100.0) == []
    found = measured("throughput", "sqlite", 60_000, evertick={"execute": [99.0]}, huey={"execute": [10.0]})
    found.runs = [Run(flush_ms=0.19)]
    [reason] = reasons_of(found)
    assert reason.endswith(" In run 1 a page reached the disk in 0.19 ms.")


def test_a_million_schedules_a_minute_on_sqlite_are_an_aim_if_measured() -> None:
    text = "1,000,000 schedules a minute on SQLite: {}"
    results = measured("minute", "sqlite", 1_000_000, evertick={"share": [4.76], "p99": [9_000.0]})

    rows = aim_rows(results)

    expected = ["at least 100 %", "4.76 %", "one round", "1", "0.0476", MISSED]
    assert rows[text.format("started in their minute")] == expected
    assert rows[text.format("lateness p99")][-1] == MISSED
    assert "1,000,000 schedules a minute on SQLite, evenly: lateness p99" not in rows
    assert text.format("lateness p99") not in aim_rows(Results({}, {}))
    assert [why.partition(". ")[2] for why in reasons_of(results)] == ["Not investigated."]
    results.cases |= knee_results(sqlite_12000=10.0, sqlite_20000=9_000.0).cases
    [reason] = reasons_of(results)
    assert reason.endswith("These are 16,667 fires a second; one node sustains 12,000 and not 20,000.")


def test_results_of_different_runs_have_no_ratio(tmp_path: Path) -> None:
    ours = measured("throughput", "postgres", 60_000, evertick={"execute": [30.0]}, raw={"execute": [40.0]})
    theirs = measured("throughput", "postgres", 60_000, graphile={"execute": [20.0]})
    for number, each in enumerate((ours, theirs)):
        each.write(tmp_path / f"{number}.json")

    both = Results.read([tmp_path / "0.json", tmp_path / "1.json"])
    both.write(tmp_path / "both.json")

    for results in (both, Results.read([tmp_path / "both.json"])):
        rows = aim_rows(results)
        assert rows["Runs a second on PostgreSQL, ratio to graphile-worker"][1] == "not measured"
        assert rows["Runs a second on PostgreSQL, ratio to raw loop"][1] == "0.75 times"
        [table] = tables_of(results, MEASUREMENTS["throughput"])
        assert "30.0, 0.75 of raw" in table.text
        assert "20.0 |" in table.text


def test_runs_and_fires_beside_a_long_history_are_separate_aims() -> None:
    samples = {"ratio": [1.0, 0.8, 0.9], "fires_ratio": [0.7, 0.6, 0.8]}

    rows = aim_rows(measured("history", "sqlite", 10_000_000, evertick=samples))

    text = "{} a second beside 10,000,000 finished runs on SQLite, ratio to a new ledger"
    assert rows[text.format("Runs")][1:] == ["0.9 [0.8..1] times", "3 turns", "1", "1.00", "reached (2 of 3 turns)"]
    assert rows[text.format("Fires")][1:] == ["0.7 [0.6..0.8] times", "3 turns", "1", "0.78", MISSED]
    [reason] = reasons_of(measured("history", "sqlite", 10_000_000, evertick=samples))
    assert reason.startswith(f"- {text.format('Runs')}; {text.format('Fires')}. Not investigated.")


def knee_results(**late: float) -> Results:
    """By store and step, of one process: the p99 lateness."""
    results = Results({}, {})
    for name, p99 in late.items():
        store, _, number = name.partition("_")
        case = Case("knee", store, "evertick", 1, int(number))
        samples = {"share": [100.0, 100.0], "p99": [p99, p99], "node": [40.0, 50.0], "server": [int(number) / 100] * 2}
        results.cases[case] = samples
    return results


KNEE = "Knee on {}: all started in their period, lateness p99 under 2,000 ms"


def test_the_knee_is_the_last_sustained_step_with_the_processor_time_of_it_and_the_next() -> None:
    results = knee_results(postgres_4000=50.0, postgres_8000=1999.0, postgres_12000=2000.0, postgres_16000=10.0)

    rows = aim_rows(results)

    found = "8,000 fires/s (node 45.0 %, server 80.0 %; not sustained at 12,000: node 45.0 %, server 120 %)"
    assert rows[KNEE.format("PostgreSQL")] == ["reported only", found, "2 rounds", "1", "-", "-"]
    assert rows[KNEE.format("SQLite")] == ["reported only", "not measured", "-", "-", "-", "-"]


def test_a_knee_that_was_not_found_is_reported_as_such() -> None:
    text = KNEE.format("SQLite")

    rows = aim_rows(knee_results(sqlite_500=10.0, sqlite_1000=10.0))
    assert rows[text][1] == "1,000 fires/s (node 45.0 %; the highest step tried)"

    rows = aim_rows(knee_results(sqlite_500=9000.0, sqlite_1000=10.0))
    assert rows[text][1] == "0 fires/s (not sustained at 500: node 45.0 %)"


def test_memory_at_the_end_is_compared_with_the_first_minute_by_rounds() -> None:
    samples = {"share": [100.0] * 2, "memory_first": [50.0, 40.0], "memory_last": [60.0, 40.0]}

    rows = aim_rows(measured("minute", "postgres", 1_000_000, evertick=samples))

    text = "1,000,000 schedules a minute on PostgreSQL: memory at the end, ratio to the first minute"
    assert rows[text] == [
        *("at most 1.1 times", "1.1 [1..1.2] times", "2 rounds", "1", "1.00", "undecided (1 of 2 rounds)"),
    ]


def test_memory_of_a_million_is_compared_with_that_of_fewer_also_in_another_run() -> None:
    results = measured("minute", "postgres", 1_000_000, evertick={"share": [100.0] * 2, "memory": [48.0, 50.0]})
    fewer = Case("minute", "postgres", "evertick", 1, 100_000)
    results.cases[fewer] = {"share": [100.0] * 3, "memory": [39.0, 40.0, 41.0]}
    text = "1,000,000 schedules a minute on PostgreSQL: memory, ratio to 100,000"

    assert aim_rows(results)[text][1] == "1.225 times"

    results.runs.append(Run())
    results.ran_in[fewer] = 1
    beside = "1.225 [1.2..1.25] times (other run: 2)"
    assert aim_rows(results)[text] == ["at most 1.25 times", beside, "2 rounds", "1", "0.98", "reached"]


def test_a_value_just_within_its_aim_is_not_rounded_to_it() -> None:
    node = {"share": [100.0], "p99": [20.0], "node": [7.99895]}

    rows = aim_rows(measured("minute", "postgres", 10_000, evertick=node))

    text = "10,000 schedules a minute on PostgreSQL: node CPU"
    assert rows[text][1:] == ["7.9989 % of a core", "one round", "1", "1.00", "reached"]


def test_a_ratio_aim_is_the_median_of_the_ratios_of_the_same_rounds() -> None:
    ours, theirs = {"execute": [30.0, 60.0, 90.0]}, {"execute": [20.0, 50.0, 30.0]}

    rows = aim_rows(
        measured("throughput", "postgres", 60_000, evertick=ours, graphile=theirs, raw={"execute": [100.0]})
    )

    assert rows["Runs a second on PostgreSQL, ratio to graphile-worker"] == [
        *("at least 1.5 times", "1.5 [1.2..3] times", "3 rounds", "1", "1.00", "reached (2 of 3 rounds)"),
    ]
    # With different numbers of rounds: the ratio of the medians.
    assert rows["Runs a second on PostgreSQL, ratio to raw loop"][1:] == [
        *("0.6 times", "one round", "1", "1.20", "reached"),
    ]
    assert rows["Runs a second on PostgreSQL, ratio to PgQueuer"][1] == "not measured"


def test_a_missed_aim_has_its_ratio() -> None:
    ours = {"share": [99.9999], "p99": [62.5], "node": [8.0]}

    rows = aim_rows(measured("minute", "postgres", 10_000, evertick=ours))

    text = "10,000 schedules a minute on PostgreSQL"
    assert rows[f"{text}: started in their minute"][1:] == ["99.999 %", "one round", "1", "1.00", MISSED]
    assert rows[f"{text}: lateness p99"] == ["under 50 ms", "62.5 ms", "one round", "1", "1.25", MISSED]
    assert rows[f"{text}: node CPU"][1:] == ["8 % of a core", "one round", "1", "1.00", MISSED]
    assert rows[f"{text}, evenly: node CPU"][1] == "not measured"


BEST = "Enqueue to start on PostgreSQL, {}, ratio to the best peer"


def test_the_best_peer_is_named_with_the_number_of_peers() -> None:
    results = measured(
        "latency",
        "postgres",
        evertick={"p50": [2.0], "p99": [4.0]},
        graphile={"p50": [2.5], "p99": [8.0]},
        pgqueuer={"p50": [9.0], "p99": [3.2]},
        procrastinate={"p50": [math.nan], "p99": [math.nan]},
    )

    rows = aim_rows(results)

    best = "the best of 2; 3 more not in this run"
    assert rows[BEST.format("p50")][1] == f"0.8 times (graphile-worker, {best})"
    assert rows[BEST.format("p50")][5] == "reached"
    assert rows[BEST.format("p99")][1] == f"1.25 times (PgQueuer, {best})"
    assert rows[BEST.format("p99")][5] == MISSED


def test_the_best_peer_may_be_another_in_each_round() -> None:
    """Each peer has a bad round, so the best by its median would be beaten."""
    results = measured(
        "latency",
        "postgres",
        evertick={"p50": [2.0, 2.0, 2.0, math.nan]},
        graphile={"p50": [3.0, 3.0, 3.0, 1.0]},
        pgqueuer={"p50": [4.0, 4.0, 1.0, 1.0]},
        procrastinate={"p50": [1.0, 4.0, 4.0, 1.0]},
    )
    results.cases[Case("latency", "postgres", "apscheduler4", 1, 0)] = {"p50": [0.1] * 4}
    results.ran_in[Case("latency", "postgres", "apscheduler4", 1, 0)] = 1

    row = aim_rows(results)[BEST.format("p50")]

    best = "(best of 3 by rounds: Procrastinate: 1, graphile-worker: 1, PgQueuer: 1; 2 more not in this run)"
    assert row[1:3] == [f"2 [0.67..2] times {best}", "3 rounds"]
    assert row[5] == f"{MISSED} (1 of 3 rounds)"


def test_with_different_numbers_of_rounds_the_best_peer_is_found_by_medians() -> None:
    results = measured(
        "latency", "postgres", evertick={"p50": [2.0, 2.0]}, graphile={"p50": [4.0, 4.0]}, pgqueuer={"p50": [1.0]}
    )

    row = aim_rows(results)[BEST.format("p50")]

    assert row[1] == "2 times (PgQueuer, the best of 2; 3 more not in this run)"


@pytest.mark.parametrize(
    ("late", "verdict"),
    [
        ((20.0, 49.0), "reached"),
        ((20.0, 30.0, 51.0), "reached (2 of 3 rounds)"),
        # The median of two is between them.
        ((49.0, 52.0), "undecided (1 of 2 rounds)"),
        ((40.0, 52.0), "undecided (1 of 2 rounds)"),
        ((20.0, 51.0, 52.0, 53.0, math.nan), "**missed** (1 of 4 rounds)"),
        ((51.0, 60.0), "**missed**"),
        ((49.0,), "reached"),
        ((51.0, math.nan), "**missed**"),
    ],
)
def test_the_median_decides_the_verdict_and_disagreeing_rounds_are_counted(
    late: tuple[float, ...], verdict: str
) -> None:
    rows = aim_rows(measured("minute", "postgres", 10_000, evertick={"p99": [*late]}))

    assert rows["10,000 schedules a minute on PostgreSQL: lateness p99"][5] == verdict


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (20, 1), (21, 2), (50, 3), (99, 5), (100, 5)])
def test_a_percentile_is_one_of_the_samples(percent: float, expected: float) -> None:
    assert percentile([5.0, 3.0, 1.0, 4.0, 2.0], percent) == expected


def test_without_samples_there_is_no_percentile() -> None:
    with pytest.raises(AssertionError, match="no samples"):
        percentile([], 50)


@pytest.fixture(scope="module")
def careless_server() -> Iterator[str]:
    """A server that says of a commit that it is on the disk, and it is not."""
    from servers.postgres import postgres_server

    with postgres_server(fsync="off", synchronous_commit="on", full_page_writes="on") as dsn:
        yield dsn


def test_a_server_without_fsync_is_rejected(careless_server: str) -> None:
    with pytest.raises(NotDurable, match="the server has fsync = off"), server(careless_server):
        pytest.fail("it was taken")


def test_a_benchmark_on_a_server_without_fsync_fails_with_the_reason(careless_server: str, tmp_path: Path) -> None:
    done = benchmarks("--quick", "--only", "fires", "--dsn", careless_server, "--folder", tmp_path / "bench")

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("nothing is measured: the server has fsync = off")


def test_a_database_with_an_unlogged_table_or_relaxed_commits_is_not_durable(
    careless_server: str, tmp_path: Path
) -> None:
    backend = PostgresBackend.make(tmp_path / "backend", careless_server)
    backend.folder.mkdir()
    backend.check_durable()

    asyncio.run(execute(backend, "CREATE UNLOGGED TABLE jobs (id bigint)"))
    with pytest.raises(NotDurable, match="jobs: unlogged, so a crash would empty it"):
        backend.check_durable()
    asyncio.run(execute(backend, f"DROP TABLE jobs; ALTER DATABASE {backend.database} SET synchronous_commit = off"))
    with pytest.raises(NotDurable, match="synchronous_commit = off"):
        backend.check_durable()
    backend.close()


async def execute(backend: PostgresBackend, statement: str) -> None:
    async with backend.connection() as connection:
        await connection.execute(statement)


class CarelessBackend(SqliteBackend):
    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}?synchronous=normal"


def test_a_file_with_relaxed_commits_is_not_durable(tmp_path: Path) -> None:
    SqliteBackend(tmp_path).check_durable()
    with pytest.raises(NotDurable, match="synchronous is 1"):
        CarelessBackend(tmp_path).check_durable()


def test_statements_to_sqlite_are_counted_on_every_connection_without_begin_and_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Put back when the test has ended.
    monkeypatch.setattr(sqlite3, "connect", sqlite3.connect)
    assert sqlite_statements.total(tmp_path) == 0

    sqlite_statements.count_in(tmp_path)

    one, other = (sqlite3.connect(tmp_path / "some.db", isolation_level=None) for _ in range(2))
    one.execute("CREATE TABLE t (a)")
    for each in ("BEGIN IMMEDIATE", "INSERT INTO t VALUES (1)", "ROLLBACK"):
        one.execute(each)
    other.executemany("INSERT INTO t VALUES (?)", [(1,), (2,), (3,)])
    assert other.execute("SELECT count(*) FROM t").fetchone() == (3,)
    one.close()
    other.close()
    assert sqlite_statements.total(tmp_path) == 6


def test_write_transactions_of_all_connections_to_sqlite_are_counted(tmp_path: Path) -> None:
    backend = SqliteBackend(tmp_path)
    assert backend.commits() == 0
    one, other = (sqlite3.connect(backend.path, isolation_level=None) for _ in range(2))
    one.execute("PRAGMA journal_mode = WAL")
    one.execute("CREATE TABLE t (a)")
    before = backend.commits()

    for each in ("BEGIN IMMEDIATE", "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)", "COMMIT"):
        one.execute(each)
    other.execute("INSERT INTO t VALUES (3)")
    one.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    other.execute("INSERT INTO t VALUES (4)")
    for each in ("BEGIN IMMEDIATE", "COMMIT", "BEGIN", "INSERT INTO t VALUES (5)", "ROLLBACK", "SELECT * FROM t"):
        one.execute(each)

    assert backend.commits() - before == 3
    one.close()
    other.close()


def test_a_folder_in_memory_is_rejected_and_one_on_a_disk_is_named(tmp_path: Path) -> None:
    inside = tmp_path.resolve()
    disk = "24 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"
    memory = f"25 24 0:31 / {inside} rw - tmpfs tmpfs rw"

    found = disk_of(tmp_path, disk)
    found.check()
    assert str(found) == "ext4 on /dev/vda"
    with pytest.raises(NotDurable, match="is in memory"):
        disk_of(tmp_path / "deeper", f"{memory}\n{disk}").check()


@pytest.fixture(params=STORES)
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LedgerBackend]:
    """Empty, on each store."""
    folder = tmp_path / "ledger"
    folder.mkdir()
    if request.param == "sqlite":
        yield SqliteBackend(folder)
        return
    backend = PostgresBackend.make(folder, request.getfixturevalue("careless_server"))
    yield backend
    backend.close()


def test_moments_without_a_run_are_found_in_the_ledger_once(ledger: LedgerBackend) -> None:
    """Ten schedules, once a second: of the first of three seconds four have run, and those moved on to the next."""

    async def fire_some() -> int:
        async with ledger.store() as store:
            await add_schedules(store, 10)
            await join(store)
            first = min(row.fire_at for row in (await store.due_schedules(APP, 10)).schedules if row.fire_at)
            await fire(StoreLoop(store), 4)
            return first

    first = asyncio.run(fire_some())

    end = first + 3_000_000
    assert ledger.succeeded(first, end) == 4
    assert ledger.outstanding(first, end, 1_000_000) == 26
    assert ledger.outstanding(first + 1_000_000, end, 1_000_000) == 20


def test_a_run_that_ended_without_a_node_is_found_in_the_ledger(ledger: LedgerBackend) -> None:
    async def fire_ten() -> None:
        async with ledger.store() as store:
            await add_schedules(store, 10)
            await join(store)
            await fire(StoreLoop(store), 10)

    async def cancel_one() -> None:
        scheduler = Scheduler(ledger.url)

        @scheduler.task
        async def tick() -> None: ...

        await scheduler.cancel(await tick.enqueue())
        await scheduler.close()

    asyncio.run(fire_ten())
    ledger.check(10)
    asyncio.run(cancel_one())

    with pytest.raises(AssertionError, match=r"10 runs were executed, the ledger has .*'cancelled': 1"):
        ledger.check(10)


def test_moments_of_a_gap_count_within_the_time(tmp_path: Path) -> None:
    backend = SqliteBackend(tmp_path)

    async def make() -> None:
        async with backend.store():
            pass

    asyncio.run(make())
    with sqlite3.connect(backend.path) as db:
        db.execute(
            "INSERT INTO evertick_gaps (app, schedule_id, schedule_key, first_at, last_at, count, is_exact, verdict, "
            "reason, recorded_at) VALUES ('default', 1, 's', 500, 4500, 5, 1, 'missed', 'x', 1)"
        )
    db.close()

    # Its moments are 500, 1500, 2500, 3500 and 4500.
    found = {
        time: backend.outstanding(*time, 1_000) for time in ((0, 5_000), (1_000, 3_000), (4_000, 9_000), (5_000, 6_000))
    }
    assert list(found.values()) == [5, 2, 1, 0]


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    """Evertick on a ledger of three runs that have succeeded."""
    backend = SqliteBackend(tmp_path)
    trial = Trial(
        backend=backend,
        contender=EVERTICK,
        environment=Environment((sys.executable,), {}, {}),
        store="sqlite",
        processes=1,
        number=3,
        size=QUICK,
        another_backend=lambda: pytest.fail("another backend is not needed"),
    )
    trial.call("fill", 3, 0)
    throughput.execute(trial, 3)
    return trial


def test_a_round_with_one_execution_for_each_run_passes(trial: Trial) -> None:
    trial.check(3)


def test_a_lost_run_fails_the_round(trial: Trial) -> None:
    trial.clear_executions()
    tally = Tally(trial.backend.folder)
    tally.count(0)
    tally.count(2)
    with pytest.raises(AssertionError, match="of 3 runs 1 were lost and 0 ran too often"):
        trial.check(3)


def test_a_run_that_is_executed_twice_fails_the_round(trial: Trial) -> None:
    Tally(trial.backend.folder).count(1)
    with pytest.raises(AssertionError, match="of 3 runs 0 were lost and 1 ran too often"):
        trial.check(3)


def test_a_run_without_a_ledger_row_fails_the_round(trial: Trial) -> None:
    Tally(trial.backend.folder).count(3)
    with pytest.raises(AssertionError, match=r"4 runs were executed, the ledger has .*: 3"):
        trial.check(4)


def test_a_moment_that_the_ledger_does_not_know_fails_the_round(trial: Trial) -> None:
    schedules.check_none_lost(trial, begin=0, end=1, period=1, executed=3, expected=3)
    with pytest.raises(AssertionError, match="of 4 moments 3 were executed and 0 are still to come: 1 were lost"):
        schedules.check_none_lost(trial, begin=0, end=1, period=1, executed=3, expected=4)


def test_moments_that_have_not_started_are_the_latest() -> None:
    # Sorted, and never shorter than it is.
    assert schedules.with_missing([1.0, 2.0], expected=4, tail_seconds=5) == [1.0, 2.0, 5, 5]
    assert schedules.with_missing([1.0, 7.0], expected=3, tail_seconds=5) == [1.0, 7.0, 7.0]
    assert schedules.with_missing([1.0, 7.0], expected=2, tail_seconds=5) == [1.0, 7.0]
    assert schedules.with_missing([], expected=2, tail_seconds=5) == []


def test_a_run_left_in_the_queue_fails_the_round(trial: Trial) -> None:
    trial.call("fill", 1, 0)
    with pytest.raises(AssertionError, match="1 runs are still in the queue"):
        trial.check(3)


def test_threads_that_start_programs_together_get_the_exit_code_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, reading = forkserver.read_signed, set[int]()

    def read_slowly(fd: int) -> int:
        """Of two threads the second reads first, and leaves nothing to the other."""
        if fd not in reading:
            reading.add(fd)
            time.sleep(0.02)
            reading.discard(fd)
        return read(fd)

    monkeypatch.setattr(forkserver, "read_signed", read_slowly)
    command = [sys.executable, "-m", "json.tool", "--nothing"]

    def code(number: int) -> int:
        return start(command, {"BENCH_ROOT": str(tmp_path)}, tmp_path / f"{number}.out").wait(60)

    with ThreadPoolExecutor(5) as pool:
        assert list(pool.map(code, range(20))) == [2] * 20


def test_a_failing_verb_is_reported_with_exit_code_and_output(trial: Trial) -> None:
    with pytest.raises(AssertionError, match=r"(?s)^Evertick, nothing, exit code 1: .*KeyError: 'nothing'"):
        trial.call("nothing")


def test_threads_whose_first_records_coincide_are_all_recorded(tmp_path: Path) -> None:
    for round_ in range(20):
        folder = tmp_path / str(round_)
        folder.mkdir()
        tally, together = Tally(folder), Barrier(8)

        def count(number: int, tally: Tally = tally, together: Barrier = together) -> None:
            together.wait()
            tally.count(number)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(count, range(8)))
        assert sorted(executions(folder).numbers) == list(range(8))


def test_a_tally_has_the_records_of_all_processes(tmp_path: Path) -> None:
    Tally(tmp_path).count(7, 12.5)
    program = f"""
from pathlib import Path
from benchmarks.contender.tally import Tally
Tally(Path({str(tmp_path)!r})).count(8)
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)

    seen = executions(tmp_path)

    assert total(tmp_path) == 2
    assert sorted(zip(seen.numbers, seen.dues, strict=True)) == [(7, 12.5), (8, 0.0)]
    assert 0 <= seen.seconds < 60
    assert json.dumps(list(seen.begans))
