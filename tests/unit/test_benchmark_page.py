"""The page of the benchmarks and their tables: sources of the figures, missing cases, better contenders, charts."""

from __future__ import annotations

import math
import re
import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from benchmarks import machine  # noqa: E402
from benchmarks.measure.limits import NO_LIMIT, NOT_REACHED  # noqa: E402
from benchmarks.measurement import Case  # noqa: E402
from benchmarks.plan import MEASUREMENTS, PLAN  # noqa: E402
from benchmarks.report.charts import charts_of  # noqa: E402
from benchmarks.report.comparison import comparison_table, cross_run_table  # noqa: E402
from benchmarks.report.page import page_of  # noqa: E402
from benchmarks.report.svg import Axis, Point, Range, Series, lines, ranges  # noqa: E402
from benchmarks.report.tables import files_of, missing_of, tables_of  # noqa: E402
from benchmarks.samples import Results, Run, Samples  # noqa: E402


def case_of(contender: str = "evertick", measurement: str = "throughput", store: str = "sqlite") -> Case:
    return Case(measurement, store, contender, 1, 60_000 if measurement == "throughput" else 1_000)


def section(page: str, title: str) -> str:
    """Without line breaks."""
    return " ".join(page.partition(f"## {title}\n")[2].partition("\n## ")[0].split())


def results_of(*cases: Case, **samples: list[float]) -> Results:
    results = Results({}, {})
    for case in cases:
        results.cases[case] = {name: [*each] for name, each in samples.items()}
    return results


def runs_of(results: Results) -> str:
    return files_of(results)["runs.md"]


# --- runs and machines


def test_a_run_whose_cases_were_all_measured_again_is_dropped_and_the_others_are_renumbered(tmp_path: Path) -> None:
    days = {"monday": ["evertick", "raw"], "tuesday": ["evertick"], "wednesday": ["evertick", "huey"]}
    for day, contenders in days.items():
        run = results_of(*map(case_of, contenders), execute=[10.0])
        run.runs = [Run(day, f"commit{len(day)}", 0.1 * len(day), [1.0, len(day)])]
        run.write(tmp_path / day)

    together = Results.read([tmp_path / day for day in days])
    together.write(tmp_path / "together")

    for results in (together, Results.read([tmp_path / "together"])):
        assert [run.measured for run in results.runs] == ["monday", "wednesday"]
        (table,) = tables_of(results, MEASUREMENTS["throughput"])
        assert table.about.startswith("runs 1, 2; ")
        assert [row.split("|")[1].strip() for row in table.text.splitlines()[2:]] == [
            *("Evertick (run 2)", "raw loop (run 1)", "Huey (run 2)"),
        ]
        runs = runs_of(results)
        assert "1. monday, commit commit6: throughput on SQLite; loads 1.0, 6.0\n" in runs
        assert "2. wednesday, commit commit9: throughput on SQLite; loads 1.0, 9.0\n" in runs
        assert "| flush of a page | 0.75 ms [0.60..0.90] in 2 runs |" in runs


def test_a_run_on_another_processor_names_its_own(tmp_path: Path) -> None:
    for number, cpu in enumerate(("quick", "slow")):
        run = results_of(case_of(measurement="idle" if number else "cost"), node=[1.0])
        run.machine, run.runs = {"cpu": cpu}, [Run(cpu=cpu if number else "", stolen=[0.5, 2.0])]
        run.write(tmp_path / cpu)

    runs = runs_of(Results.read([tmp_path / "quick", tmp_path / "slow"]))

    assert "1. cost on SQLite; stolen 0.5, 2.0 %; quick\n2. idle on SQLite; stolen 0.5, 2.0 %; slow\n" in runs
    assert "; quick" not in runs_of(Results.read([tmp_path / "quick"]))


def test_a_run_with_another_python_names_its_own_if_that_is_known(tmp_path: Path) -> None:
    built = ("CPython 3.11.7", "CPython 3.11.7, built without PGO")
    for number, python in enumerate(built):
        run = results_of(case_of(measurement="idle" if number else "cost"), node=[1.0])
        run.machine, run.runs = {"python": python}, [Run(python=python if number else "")]
        run.write(tmp_path / str(number))
    together = Results.read([tmp_path / "0", tmp_path / "1"])
    together.write(tmp_path / "together")

    for results in (together, Results.read([tmp_path / "together"])):
        assert [run.python for run in results.runs] == [*built]
        assert f"1. cost on SQLite; {built[0]}\n2. idle on SQLite; {built[1]}\n" in runs_of(results)
    assert "; CPython" not in runs_of(Results.read([tmp_path / "0"]))
    # A file of several runs that was written before each of them had its own.
    for run_of_both in together.runs:
        run_of_both.python = ""
    together.write(tmp_path / "old")
    assert "SQLite; CPython" not in runs_of(Results.read([tmp_path / "old"]))


def test_a_failure_of_a_peer_is_dropped_when_its_case_is_measured_again(tmp_path: Path) -> None:
    first, second = results_of(case_of("huey"), execute=[1.0]), results_of(case_of("huey"), execute=[1.0])
    # The second is of another case whose title begins in the same way.
    first.failed = [f"{case_of('huey').title}, round 1/1: twice", f"{case_of('huey').title}, evenly, round 1/1: why"]
    second.failed = [f"{case_of('huey').title}, round 2/5: it was lost"]
    first.write(tmp_path / "first")
    second.write(tmp_path / "second")

    together = Results.read([tmp_path / "first", tmp_path / "second"])

    assert together.failed == [first.failed[1], *second.failed]


def test_a_virtual_machine_is_described_as_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = {"cpuinfo": "cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: Some\nflags\t: fpu hypervisor lm\n"}
    files["meminfo"] = "MemTotal:       24684100 kB\nMemFree: 1 kB\n"
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(machine, "_PROC", tmp_path)

    found = machine.describe(tmp_path)

    assert found["cpu"] == "Some (family 25, model 17), in a virtual machine"
    assert found["memory"] == "23.5 GiB"


# --- tables


def test_sqlite_has_no_columns_of_a_server() -> None:
    results = results_of(*(case_of(store=store) for store in ("sqlite", "postgres")), execute=[1.0], server_us=[0.0])

    sqlite, postgres = tables_of(results, MEASUREMENTS["throughput"])

    assert "server" not in sqlite.text
    assert "| server CPU, µs each |" in postgres.text


def test_a_metric_that_older_samples_lack_has_a_dash() -> None:
    old, new = (case_of(name, "enqueue") for name in ("raw", "evertick"))
    results = results_of(old, bulk=[10.0], single=[1.0])

    (table,) = tables_of(results, MEASUREMENTS["enqueue"])
    assert "node CPU" not in table.text
    results.cases[new] = {"bulk": [10.0], "single": [1.0], "node_us": [7.0]}
    (table,) = tables_of(results, MEASUREMENTS["enqueue"])
    assert [row.split("|")[-2].strip() for row in table.text.splitlines()] == ["node CPU, µs each", "---", "-", "7.00"]
    assert loss_rows(results) == []


def test_results_of_all_planned_cases_lack_nothing() -> None:
    results = Results({}, {})
    for case in PLAN:
        results.cases[case] = {metric.name: [1.0] for metric in MEASUREMENTS[case.measurement].metrics}

    files = files_of(results)

    assert "Planned cases without results" not in files["runs.md"]
    assert "Most schedules of APScheduler 4 are copied rows" in section(files["tables.md"], "Schedules")


@pytest.mark.parametrize(
    ("measurement", "kept", "expected"),
    [
        ("throughput", {"processes": 1}, "on SQLite: 2 processes; on PostgreSQL: 2 processes"),
        ("throughput", {"store": "sqlite"}, "on PostgreSQL"),
        (
            "latency",
            {"contender": "evertick", "store": "sqlite", "processes": 1},
            "on PostgreSQL; on SQLite: 2 processes; on SQLite, 1 process: Evertick (as installed), raw loop, Huey",
        ),
        ("idle", {"store": "postgres", "processes": 1}, "on SQLite; on PostgreSQL: 2 processes"),
        ("next_fires", {"contender": "evertick"}, "APScheduler 3, cronsim, croniter"),
        ("herd", {"number": 1_000_000, "processes": 2}, None),
        ("vacuum", {}, ""),
        ("vacuum", {"store": "none"}, "all cases"),
    ],
)
def test_missing_cases_are_named_by_what_they_have_in_common(
    measurement: str, kept: dict[str, object], expected: str | None
) -> None:
    planned = [case for case in PLAN if case.measurement == measurement]
    there = [case for case in planned if all(getattr(case, name) == value for name, value in kept.items())]
    results = results_of(*there, some=[1.0])

    found = missing_of(results, MEASUREMENTS[measurement])

    if expected is None:
        each = "1 process; on {0}, 2 processes: 1,000, 10,000, 100,000"
        expected = "; ".join(f"on {store}: {each.format(store)}" for store in ("SQLite", "PostgreSQL"))
    assert found == expected


def test_a_missing_number_is_named() -> None:
    there = [
        Case("idle", store, "evertick", processes, 100_000) for store in ("sqlite", "postgres") for processes in (1, 2)
    ]

    found = missing_of(results_of(*there, node=[1.0]), MEASUREMENTS["idle"])

    assert found.split("; ")[0] == "on SQLite, 1 process: 1,000, 1,000,000"
    assert found.count("1,000,000") == 4


def test_the_tables_have_notes_only_on_measurements_with_results() -> None:
    files = files_of(results_of(case_of(measurement="minute", store="postgres"), share=[100.0], p99=[1.0]))

    tables, runs = files["tables.md"], " ".join(files["runs.md"].split())
    assert "## Recovery" not in tables
    assert "Planned cases without results: - Full queue: all cases. " in runs
    assert "- Node killed: all cases. - Node stopped: all cases. - " in runs
    assert "Rising rate of fires: all cases." in runs
    assert "The knee is" not in section(tables, "Schedules")
    assert "Huey checks its schedules" not in section(tables, "Schedules")


def test_unknown_lateness_has_a_dash() -> None:
    results = results_of(case_of("huey", "minute"), share=[11.0], p99=[59_973.0], node=[5.0])
    results.cases[case_of("graphile", "minute")] = {"share": [11.0], "p99": [59_973.0], "node": [5.0]}

    (table,) = tables_of(results, MEASUREMENTS["minute"])

    assert [row.split("|")[3:-1] for row in table.text.splitlines()[2:]] == [
        [" 11.0 ", " - ", " 5.00 "],
        [" 11.0 ", " 59,973 ", " 5.00 "],
    ]


def test_a_contender_with_unknown_lateness_and_no_samples_has_dashes() -> None:
    results = results_of(case_of("huey", "minute"), share=[math.nan], p99=[math.nan], node=[math.nan])
    results.cases[case_of(measurement="minute")] = {"share": [100.0], "p99": [1.0], "node": [5.0]}

    (table,) = tables_of(results, MEASUREMENTS["minute"])

    assert table.text.splitlines()[3] == "| Huey (0 of 1 round) | 1,000 | - | - | - |"


def test_rows_have_the_order_of_the_plan() -> None:
    steps = [Case("knee", "sqlite", "evertick", 1, number) for number in (24_000, 4_000, 8_000)]

    (table,) = tables_of(results_of(*steps, share=[100.0], p99=[1.0]), MEASUREMENTS["knee"])

    assert [row.split("|")[2].strip() for row in table.text.splitlines()[2:]] == ["4,000", "8,000", "24,000"]


def test_a_row_of_another_run_has_its_own_number_of_rounds() -> None:
    results = Results({}, {}, runs=[Run(), Run()])
    ours, theirs = (Case("throughput", "postgres", name, 1, 1_000) for name in ("evertick", "graphile"))
    results.add(ours, {"execute": [1.0, 2.0, 3.0]})
    results.add(theirs, {"execute": [1.0]})
    results.ran_in = {ours: 1, theirs: 0}

    [table] = tables_of(results, MEASUREMENTS["throughput"])

    titles = [row.split(" | ")[0].removeprefix("| ") for row in table.text.splitlines()[2:]]
    assert titles == ["Evertick (run 2)", "graphile-worker (run 1; 1 round)"]


# --- better contenders


def loss_rows(results: Results) -> list[list[str]]:
    """Of peers, then of the raw loop."""
    tables = (comparison_table(results, is_raw=is_raw) for is_raw in (False, True))
    return [[cell.strip() for cell in row.strip("|").split("|")] for text in tables for row in text.splitlines()[2:]]


def throughput_of(**contenders: Samples) -> Results:
    results = Results({}, {})
    for contender, samples in contenders.items():
        results.cases[case_of(contender)] = samples
    return results


def test_a_better_peer_is_listed_with_the_ratio() -> None:
    results = throughput_of(
        evertick={"execute": [30.0, 30.0], "single": [10.0, 20.0]},
        evertick_default={"execute": [90.0, 90.0], "single": [90.0, 90.0]},
        huey={"execute": [3.0, 3.0], "single": [20.0, 80.0]},
    )

    title = "Full queue, SQLite: enqueued one by one, runs/s"
    assert loss_rows(results) == [[title, "Huey", "50.0", "15.0", "3.00 [2.00..4.00]", "2"]]
    assert f"| {title} | Huey | 50.0 | 15.0 | 3.00 |" in section(page_of(results), "Where others are better")
    assert cross_run_table(results, is_raw=False) == ""


def test_a_better_peer_of_another_run_is_compared_by_medians_in_a_separate_table() -> None:
    results = throughput_of(
        evertick={"execute": [30.0, 30.0], "single": [10.0, 20.0]},
        huey={"execute": [3.0, 60.0, 2.0], "single": [20.0, 80.0, math.nan, 35.0]},
        raw={"execute": [60.0]},
    )
    results.runs, results.ran_in[case_of()] = [Run(cpu="quick"), Run(cpu="quick")], 1

    assert loss_rows(results) == []
    title = "Full queue, SQLite: {}, runs/s"
    assert cross_run_table(results, is_raw=False).splitlines()[2:] == [
        f"| {title.format('enqueued one by one')} | Huey | 35.0 | 15.0 | 2.33 | 3 and 2 | 1 and 2 |"
    ]
    assert cross_run_table(results, is_raw=True).splitlines()[2:] == [
        f"| {title.format('executed')} | raw loop | 60.0 | 30.0 | 2.00 | 1 and 2 | 1 and 2 |"
    ]
    assert "This is weaker evidence" in section(files_of(results)["comparison.md"], "Better peers")
    results.runs[1].cpu = "slow"
    assert cross_run_table(results, is_raw=True).endswith("| 1 and 2, different processors |")


def test_metrics_that_one_of_two_runs_lacks_are_not_compared() -> None:
    results = throughput_of(evertick={"execute": [30.0]}, huey={"execute": [math.nan], "single": [20.0]})
    results.runs, results.ran_in[case_of()] = [Run(), Run()], 1

    assert cross_run_table(results, is_raw=False) == ""


def test_less_is_better_for_time_and_memory_and_one_case_may_have_a_raw_loop() -> None:
    results = results_of(case_of(measurement="footprint", store=""), **{"import": [100.0], "memory": [10.0]})
    results.cases[case_of("huey", "footprint", "")] = {"import": [50.0], "memory": [20.0]}
    results.cases[case_of(measurement="dispatch")] = {"rate": [10.0], "raw": [80.0]}

    assert [[row[1], row[4]] for row in loss_rows(results)] == [["Huey", "2.00"], ["raw loop", "8.00"]]


def test_a_zero_is_not_compared() -> None:
    results = results_of(case_of(measurement="minute"), share=[100.0, 100.0], node=[1.0, 4.0], server=[0.0, 0.0])
    results.cases[case_of("huey", "minute")] = {"share": [100.0, 100.0], "node": [0.0, 2.0], "server": [0.0, 0.0]}

    assert [row[4] for row in loss_rows(results)] == ["2.00"]


def test_a_peer_that_left_moments_behind_is_not_better() -> None:
    results = results_of(case_of(measurement="minute"), share=[100.0], p99=[10.0])
    results.cases[case_of("huey", "minute")] = {"share": [99.0], "p99": [1.0]}

    assert loss_rows(results) == []


@pytest.mark.parametrize(
    ("theirs", "times"),
    [
        ([9.0, 10.5, 12.0], "about equal [0.90..1.20]"),
        ([10.0, 10.5, 12.0], "about equal [1.00..1.20]"),
        ([10.1, 10.5, 12.0], "1.05 [1.01..1.20]"),
        ([9.0, 30.0, 40.0], "3.00 [0.90..4.00]"),
    ],
)
def test_contenders_are_about_equal_if_rounds_disagree_by_little(theirs: list[float], times: str) -> None:
    results = throughput_of(evertick={"single": [10.0] * 3}, huey={"single": theirs})

    assert [row[4] for row in loss_rows(results)] == [times]


def test_a_ratio_that_is_shown_as_one_is_no_loss() -> None:
    results = throughput_of(evertick={"execute": [1_000.0]}, huey={"execute": [1_001.0]})

    assert loss_rows(results) == []


# --- the page


def page_results() -> Results:
    results = Results({"cores": "2", "memory": "4 GiB", "disk": "ext4 on /dev/vda", "cpu": "in a virtual machine"}, {})
    for store, factor in (("sqlite", 1.0), ("postgres", 2.0)):
        results.cases[Case("throughput", store, "evertick", 1, 60_000)] = {"execute": [30_000 * factor] * 3}
        results.cases[Case("throughput", store, "raw", 1, 60_000)] = {"execute": [40_000] * 3}
        results.cases[Case("latency", store, "evertick", 1, 0)] = {"p50": [2.5 * factor], "p99": [3.5]}
        results.cases[Case("minute", store, "evertick", 1, 10_000)] = {"share": [100.0], "p99": [20.0 * factor]}
    results.cases[Case("throughput", "sqlite", "huey", 1, 60_000)] = {"execute": [3_000.0] * 3}
    return results


def test_the_page_begins_with_the_main_figures_and_ends_with_how_to_repeat_them() -> None:
    page = page_of(page_results())

    titles = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    assert titles == [
        *("In short", "Method and machine", "Throughput", "Latency", "Schedules once a minute", "Missed aims"),
        *("Not measured", "Repeat it"),
    ]
    assert section(page, "In short") == (
        "| one process | SQLite | PostgreSQL | | --- | --- | --- | | no-op runs a second | 30,000 | 60,000 | "
        "| enqueue to start, p50 / p99, ms | 2.50 / 3.50 | 5.00 / 3.50 | "
        "| 10,000 schedules a minute, p99 lateness, ms | 20.0 | 40.0 |"
    )
    assert section(page, "Method and machine").startswith(
        "- Virtual machine with 2 cores, 4 GiB of memory and an ext4 disk. Nodes, server and benchmarks share"
    )
    assert section(page, "Throughput").startswith(
        "One process of Evertick executes 0.75 (SQLite) and 1.50 (PostgreSQL) times as many no-op runs a second as the "
        "raw loop."
    )


def test_a_missing_figure_leaves_out_its_sentence() -> None:
    results = page_results()
    for case in [case for case in results.cases if case.measurement == "latency" or case.store == "postgres"]:
        del results.cases[case]
    results.machine = {}

    page = page_of(results)

    assert "| no-op runs a second | 30,000 | - |" in section(page, "In short")
    assert "enqueue to start" not in section(page, "In short")
    assert section(page, "Throughput").startswith("One process of Evertick executes 0.75 (SQLite) times as many")
    assert section(page, "Method and machine").startswith("- A figure is the median")
    assert "## Latency" not in page


def test_the_page_names_the_processors_and_rounds_of_its_figures() -> None:
    results = page_results()
    results.runs = [Run(cpu="quick"), Run(cpu="slow")]
    results.cases[Case("throughput", "sqlite", "evertick", 1, 60_000)] = {"execute": [30_000.0, math.nan]}
    results.ran_in[Case("throughput", "sqlite", "huey", 1, 60_000)] = 1

    page = page_of(results)

    assert "- Processors: A: quick; B: slow. Compare absolute figures only within one processor." in page
    assert section(page, "Throughput").endswith("*Processors A and B; 1 to 3 rounds.*")
    assert section(page, "Latency").endswith("*Processor A; 1 round.*")


def test_the_page_lists_the_largest_losses_in_every_round_without_maxima() -> None:
    results = page_results()
    ours, theirs = (results.cases[Case("throughput", "sqlite", name, 1, 60_000)] for name in ("evertick", "huey"))
    ours |= {"single": [10.0, 10.0, 10.0], "bulk": [10.0, 10.0, 10.0]}
    theirs |= {"single": [20.0, 30.0, 40.0], "bulk": [9.0, 90.0, 90.0]}
    results.cases[Case("latency", "sqlite", "huey", 1, 0)] = {"max": [1.0]}
    results.cases[Case("latency", "sqlite", "evertick", 1, 0)]["max"] = [90.0]

    rows = section(page_of(results), "Where others are better").partition("| --- ")[2]

    assert rows.endswith("| | Full queue, SQLite: enqueued one by one, runs/s | Huey | 30.0 | 10.0 | 3.00 |")
    assert "max" not in rows
    assert "max, ms | Huey" in files_of(results)["comparison.md"]


def test_a_second_process_is_mentioned_if_it_was_measured() -> None:
    results = page_results()
    assert "second process" not in page_of(results)

    results.add(Case("throughput", "sqlite", "evertick", 2, 60_000), {"execute": 34_000.0})

    assert "With a second process on the same cores, both execute 34,000 (SQLite)." in section(
        page_of(results), "Throughput"
    )


def test_the_page_shows_the_price_of_a_limit() -> None:
    results = page_results()
    for variant, rate in ((NO_LIMIT, 27_000.0), (NOT_REACHED, 9_000.0)):
        results.cases[Case("limits", "postgres", "evertick", 3, 5_000, variant)] = {"execute": [rate]}

    limits = section(page_of(results), "Limits")

    assert "| no limit | - | 27,000 | | a concurrency that is not reached | - | 9,000 |" in limits


@pytest.mark.parametrize(
    ("failed", "expected"),
    [
        (
            16_000,
            "A million schedules a minute are 16,667 fires a second. On SQLite, one node sustains 12,000 and not 16",
        ),
        (20_000, "On SQLite, one node sustains 16,000 and not 20,000."),
        (24_000, None),
        (None, None),
    ],
)
def test_a_million_schedules_a_minute_are_compared_with_the_knee_of_sqlite(
    failed: int | None, expected: str | None
) -> None:
    results = page_results()
    for number in (12_000, 16_000, 20_000, 24_000):
        for store in ("sqlite", "postgres"):
            p99 = 9_000.0 if store == "sqlite" and failed is not None and number >= failed else 10.0
            results.cases[Case("knee", store, "evertick", 1, number)] = {"share": [100.0], "p99": [p99]}

    found = section(page_of(results), "Schedules once a minute")
    assert expected in found if expected else "one node sustains" not in found

    if failed == 16_000:
        results.cases[Case("minute", "sqlite", "evertick", 1, 1_000_000)] = {"share": [4.76], "p99": [9_000.0]}
        found = section(page_of(results), "Schedules once a minute")
        assert "one node sustains 12,000 and not 16,000; of a million, 4.76 % started in their minute." in found


def test_a_failed_check_of_a_peer_at_schedules_is_on_the_page() -> None:
    results = page_results()
    case = Case("minute", "postgres", "pgqueuer", 1, 10_000)
    results.cases[case] = {"share": [math.nan], "p99": [math.nan], "p50": [math.nan]}
    results.cases[Case("minute", "postgres", "apscheduler3", 1, 10_000)] = {
        "share": [100.0],
        "p50": [1.0],
        "p99": [2.0],
    }
    results.failed = [f"{case.title}, round 1/1: 9 moments were executed twice"]

    assert "PgQueuer on PostgreSQL failed the check: 9 moments were executed twice." in section(
        page_of(results), "Schedules once a minute"
    )


def test_the_anchors_of_the_page_exist() -> None:
    page = page_of(page_results())

    titles = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    anchors = {title.lower().replace(" ", "-") for title in titles}
    assert set(re.findall(r"\(#([a-z-]+)\)", page)) <= anchors


# --- charts


def texts(chart: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(chart).iter() if each.tag.endswith("text")]


def aims_in(chart: str) -> int:
    return sum(each.get("stroke") == "#e53935" for each in ElementTree.fromstring(chart).iter())


def test_lines_of_a_chart_differ_in_colour_or_dashes() -> None:
    many = [Series(f"line {number}", [Point(10, number + 1)], number % 4, number // 4) for number in range(12)]

    drawn = ElementTree.fromstring(lines("many", Axis("across", "up", "legend"), many))

    looks = [(each.get("stroke"), each.get("stroke-dasharray")) for each in drawn if each.tag.endswith("polyline")]
    assert len(set(looks)) == 12
    names = [float(each.get("y", 0)) for each in drawn if (each.text or "").startswith("line ")]
    assert names == sorted(set(names))
    assert max(names) < float((drawn.get("viewBox") or "").split()[3])


def test_texts_of_a_chart_do_not_overlap() -> None:
    """The texts of one column are a line apart."""
    rows = [Range(f"row {number}", "ours", 1.0, 2.0 + number) for number in range(9)]
    rows.append(Range("the last", "peer", note="failed"))

    drawn = ElementTree.fromstring(ranges("many", "ms", {"SQLite": rows, "PostgreSQL": rows}, "legend"))

    columns: dict[str, list[float]] = {}
    for each in drawn:
        if each.tag.endswith("text") and each.get("text-anchor") == "end":
            columns.setdefault(each.get("x", ""), []).append(float(each.get("y", 0)))
    assert [len(ys) for ys in columns.values()] == [20]
    assert all(low - high >= 14 for ys in columns.values() for high, low in pairwise(ys))


def test_a_chart_names_its_rounds() -> None:
    results = throughput_of(evertick={"execute": [1.0, 2.0, 3.0]}, raw={"execute": [2.0, 3.0]})

    _, chart = charts_of(results)["throughput"]

    assert texts(chart)[-1] == "bar: median of 2 to 3 rounds; line: range"
    assert aims_in(chart) == 0


def test_a_chart_has_a_dashed_line_for_each_aim() -> None:
    results = Results({}, {})
    for number in (1_000, 10_000, 100_000):
        results.cases[Case("minute", "postgres", "evertick", 1, number)] = {"share": [100.0], "p99": [10.0]}
        results.cases[Case("knee", "postgres", "evertick", 1, number)] = {"share": [100.0], "p99": [10.0]}
    results.cases[Case("history", "postgres", "evertick", 1, 10)] = {"short": [1.0], "long": [2.0]}

    charts = {name: chart for name, (_, chart) in charts_of(results).items()}

    assert {name: aims_in(chart) for name, chart in charts.items()} == {"minute": 2, "knee": 1, "history": 1}
    assert any("one round; " in text for text in texts(charts["minute"]))
    assert all("dashed red: aim" in chart for chart in charts.values())


def test_the_chart_of_peers_marks_schedules_that_are_due_at_once() -> None:
    results = Results({}, {})
    samples = {"share": [100.0], "p50": [10.0], "p99": [20.0]}
    for name in ("evertick", "graphile", "apscheduler3"):
        results.add(Case("minute", "postgres", name, 1, 10_000), samples)
    results.add(Case("minute", "postgres", "apscheduler4", 1, 10_000), {**samples, "share": [80.7]})
    results.add(Case("herd", "postgres", "evertick", 1, 10_000), {"p50": [300.0], "p99": [800.0]})

    _, chart = charts_of(results)["peers"]

    found = texts(chart)
    assert {"Evertick", "Evertick, at once", "graphile-worker, at once", "APScheduler 3"} < set(found)
    assert found[found.index("APScheduler 4 (pre-release)") + 1] == "80.7 % started in their minute"
    assert "300 / 800" in found
