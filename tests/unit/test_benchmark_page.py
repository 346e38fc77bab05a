"""The page tells a sceptical reader what it is made of: which run, which rounds, what lacks, and who is better."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from benchmarks import machine  # noqa: E402
from benchmarks.figure import Case  # noqa: E402
from benchmarks.losses import losses_by_runs_table, losses_table  # noqa: E402
from benchmarks.measure.limits import NO_LIMIT, NOT_REACHED  # noqa: E402
from benchmarks.missing import missing_of  # noqa: E402
from benchmarks.page import page_of  # noqa: E402
from benchmarks.picture import pictures_of  # noqa: E402
from benchmarks.plan import MEASUREMENTS, PLAN  # noqa: E402
from benchmarks.plot import Axes, Point, lines  # noqa: E402
from benchmarks.results import Results, Run, Samples  # noqa: E402
from benchmarks.summary import summary_table  # noqa: E402
from benchmarks.table import tables_of  # noqa: E402


def case_of(contender: str = "evertick", measurement: str = "throughput", store: str = "sqlite") -> Case:
    return Case(measurement, store, contender, 1, 60_000 if measurement == "throughput" else 1_000)


def section(page: str, title: str) -> str:
    """Without the breaks of its lines."""
    return " ".join(page.partition(f"## {title}\n")[2].partition("\n## ")[0].split())


def results_of(*cases: Case, **samples: list[float]) -> Results:
    results = Results({}, {})
    for case in cases:
        results.cases[case] = {name: [*each] for name, each in samples.items()}
    return results


def test_a_run_of_which_another_has_measured_everything_again_is_forgotten_and_the_others_are_counted_anew(
    tmp_path: Path,
) -> None:
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
        assert table.about.startswith("runs 1 and 2; ")
        assert [row.split("|")[1].strip() for row in table.text.splitlines()[2:]] == [
            *("Evertick (run 2)", "raw loop (run 1)", "Huey (run 2)"),
        ]
        page = page_of(results)
        assert "1. monday, commit commit6: throughput on SQLite; loads 1.0, 6.0\n" in page
        assert "2. wednesday, commit commit9: throughput on SQLite; loads 1.0, 9.0\n" in page
        assert "| a page reaches the disk in | 0.75 ms [0.60..0.90], before each of 2 runs |" in page
        assert "Measured at commits `commit6` and `commit9`; newer commits are not in it." in page


def test_a_page_has_first_what_readers_came_for_and_last_by_which_runs_it_was_found() -> None:
    results = throughput_of(
        evertick={"execute": [30.0], "single": [10.0]}, raw={"execute": [40.0]}, huey={"single": [20.0]}
    )
    results.runs = [Run("monday", "commit6", cpu="quick")]

    page = page_of(results)

    titles = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    assert titles == [
        *("In short", "Words of the tables", "Where others are faster", "Aims", "How it is measured", "Throughput"),
        *("What this does not measure", "At what the raw loops are better", "On what", "Runs"),
    ]
    introduction = page.partition("## In short")[0]
    assert (
        "of one run, at one commit, on one kind of processor: [the list of them](#runs) is at the end." in introduction
    )
    assert "Huey" in section(page, "Where others are faster")
    assert "raw loop |" not in section(page, "Where others are faster")
    assert "| raw loop | 40.0 | 30.0 | 1.33 |" in section(page, "At what the raw loops are better")
    anchors = {title.lower().replace(" ", "-") for title in titles}
    assert set(re.findall(r"\(#([a-z-]+)\)", page)) <= anchors


def test_sqlite_has_no_columns_of_a_server() -> None:
    results = results_of(*(case_of(store=store) for store in ("sqlite", "postgres")), execute=[1.0], server_us=[0.0])

    sqlite, postgres = tables_of(results, MEASUREMENTS["throughput"])

    assert "server" not in sqlite.text
    assert "| server, us each |" in postgres.text


def test_samples_from_before_the_node_was_charged_for_enqueueing_have_a_dash_beside_those_that_have_it() -> None:
    old, new = (case_of(name, "enqueue") for name in ("raw", "evertick"))
    results = results_of(old, bulk=[10.0], single=[1.0])

    (table,) = tables_of(results, MEASUREMENTS["enqueue"])
    assert "node, us each" not in table.text
    assert "Processor time" not in section(page_of(results), "Throughput")
    results.cases[new] = {"bulk": [10.0], "single": [1.0], "node_us": [7.0]}
    (table,) = tables_of(results, MEASUREMENTS["enqueue"])
    assert [row.split("|")[-2].strip() for row in table.text.splitlines()] == ["node, us each", "---", "-", "7.00"]
    assert "Processor time is for each run" in section(page_of(results), "Throughput")
    assert loss_rows(results) == []


def test_a_page_of_all_cases_of_the_plan_lacks_nothing() -> None:
    results = Results({}, {})
    for case in PLAN:
        results.cases[case] = {figure.name: [1.0] for figure in MEASUREMENTS[case.measurement].figures}

    page = page_of(results)

    assert "Not measured" not in page
    assert "- One process and two: " in page
    assert "The schedules of APScheduler 4 above the first sixty are copies" in section(page, "Schedules")


@pytest.mark.parametrize(
    ("measurement", "kept", "said"),
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
        ("vacuum", {"store": "none"}, "all of it"),
    ],
)
def test_what_the_plan_has_and_the_file_has_not_is_told_as_widely_as_it_is_missing(
    measurement: str, kept: dict[str, object], said: str | None
) -> None:
    planned = [case for case in PLAN if case.measurement == measurement]
    there = [case for case in planned if all(getattr(case, name) == value for name, value in kept.items())]
    results = results_of(*there, some=[1.0])

    found = missing_of(results, MEASUREMENTS[measurement])

    if said is None:
        each = "1 process; on {0}, 2 processes: 1,000, 10,000, 100,000"
        said = "; ".join(f"on {store}: {each.format(store)}" for store in ("SQLite", "PostgreSQL"))
    assert found == said


def test_of_another_number_than_the_plan_has_only_that_is_missing() -> None:
    there = [
        Case("idle", store, "evertick", processes, 100_000) for store in ("sqlite", "postgres") for processes in (1, 2)
    ]

    found = missing_of(results_of(*there, node=[1.0]), MEASUREMENTS["idle"])

    assert found.split("; ")[0] == "on SQLite, 1 process: 1,000, 1,000,000"
    assert found.count("1,000,000") == 4


def test_of_what_is_not_measured_at_all_there_are_no_explanations() -> None:
    page = page_of(results_of(case_of(measurement="minute", store="postgres"), share=[100.0], p99=[1.0]))

    assert "## Recovery" not in page
    left_out = section(page, "What this does not measure")
    assert "Not measured, though the benchmarks have it: - Runs that wait in a full queue: all of it. " in left_out
    assert "- Work of a node that was killed: all of it. - Work of a node that was stopped: all of it. - " in left_out
    assert "More and more fires" not in left_out
    assert "For the knee" not in section(page, "Schedules")
    assert "Huey looks at its schedules" not in section(page, "Schedules")
    assert "More and more fires a second: all of it." in section(page, "Schedules")
    assert "One process and two" not in page


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (
            16_000,
            "On SQLite the knee of one process is 12,000 fires a second, so a million schedules a minute (16,667 ",
        ),
        (20_000, None),
        (None, None),
    ],
)
def test_that_a_million_schedules_a_minute_are_beyond_the_knee_of_sqlite_is_told_where_the_steps_say_so(
    broken: int | None, said: str | None
) -> None:
    results = Results({}, {})
    for number in (12_000, 16_000, 20_000):
        for store in ("sqlite", "postgres"):
            p99 = 9_000.0 if store == "sqlite" and broken is not None and number >= broken else 10.0
            results.cases[Case("knee", store, "evertick", 1, number)] = {"share": [100.0], "p99": [p99]}

    words = section(page_of(results), "Schedules")

    assert said in words if said else "On SQLite the knee" not in words


def loss_rows(results: Results) -> list[list[str]]:
    """Of others, then of the raw loop."""
    tables = (losses_table(results, is_raw=is_raw) for is_raw in (False, True))
    return [[cell.strip() for cell in row.strip("|").split("|")] for text in tables for row in text.splitlines()[2:]]


def throughput_of(**contenders: Samples) -> Results:
    results = Results({}, {})
    for contender, samples in contenders.items():
        results.cases[case_of(contender)] = samples
    return results


def test_who_is_better_at_something_is_told_with_how_many_times_and_who_is_not_is_left_out() -> None:
    results = throughput_of(
        evertick={"execute": [30.0, 30.0], "single": [10.0, 20.0]},
        evertick_default={"execute": [90.0, 90.0], "single": [90.0, 90.0]},
        huey={"execute": [3.0, 3.0], "single": [20.0, 80.0]},
    )

    assert loss_rows(results) == [
        [
            "Runs that wait in a full queue, on SQLite: one by one, runs/s",
            "Huey",
            "50.0",
            "15.0",
            "3.00 [2.00..4.00]",
            "2",
        ]
    ]
    assert "## Where others are faster" in page_of(results)
    assert losses_by_runs_table(results, is_raw=False) == ""


def test_who_is_better_in_another_run_than_evertick_is_told_apart_by_medians() -> None:
    """Whoever measures Evertick alone anew finds the same others better."""
    results = throughput_of(
        evertick={"execute": [30.0, 30.0], "single": [10.0, 20.0]},
        huey={"execute": [3.0, 60.0, 2.0], "single": [20.0, 80.0, math.nan, 35.0]},
        raw={"execute": [60.0]},
    )
    results.runs, results.ran_in[case_of()] = [Run(cpu="quick"), Run(cpu="quick")], 1

    assert loss_rows(results) == []
    where = "Runs that wait in a full queue, on SQLite: {}, runs/s"
    assert losses_by_runs_table(results, is_raw=False).splitlines()[2:] == [
        f"| {where.format('one by one')} | Huey | 35.0 | 15.0 | 2.33 | 3 and 2 | 1 and 2 |"
    ]
    assert losses_by_runs_table(results, is_raw=True).splitlines()[2:] == [
        f"| {where.format('executed')} | raw loop | 60.0 | 30.0 | 2.00 | 1 and 2 | 1 and 2 |"
    ]
    assert "That is weaker evidence" in section(page_of(results), "Where others are faster")
    results.runs[1].cpu = "slow"
    assert losses_by_runs_table(results, is_raw=True).endswith("| 1 and 2, on different processors |")


def test_what_one_of_two_runs_has_not_measured_is_not_compared_between_them() -> None:
    results = throughput_of(evertick={"execute": [30.0]}, huey={"execute": [math.nan], "single": [20.0]})
    results.runs, results.ran_in[case_of()] = [Run(), Run()], 1

    assert losses_by_runs_table(results, is_raw=False) == ""


def test_less_is_better_where_it_is_time_or_memory_and_a_raw_loop_may_be_in_the_same_case() -> None:
    results = results_of(case_of(measurement="footprint", store=""), **{"import": [100.0], "memory": [10.0]})
    results.cases[case_of("huey", "footprint", "")] = {"import": [50.0], "memory": [20.0]}
    results.cases[case_of(measurement="dispatch")] = {"rate": [10.0], "raw": [80.0]}

    assert [[row[1], row[4]] for row in loss_rows(results)] == [["Huey", "2.00"], ["raw loop", "8.00"]]


def test_what_is_too_little_to_be_counted_is_beside_nothing() -> None:
    results = results_of(case_of(measurement="minute"), share=[100.0, 100.0], node=[1.0, 4.0], server=[0.0, 0.0])
    results.cases[case_of("huey", "minute")] = {"share": [100.0, 100.0], "node": [0.0, 2.0], "server": [0.0, 0.0]}

    assert [row[4] for row in loss_rows(results)] == ["2.00"]


def test_who_left_moments_behind_is_not_better_by_those_that_began() -> None:
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
def test_where_rounds_disagree_by_little_about_who_is_better_both_are_about_equal(
    theirs: list[float], times: str
) -> None:
    results = throughput_of(evertick={"single": [10.0] * 3}, huey={"single": theirs})

    assert [row[4] for row in loss_rows(results)] == [times]


def test_a_draw_is_no_loss() -> None:
    results = throughput_of(evertick={"execute": [1_000.0]}, huey={"execute": [1_001.0]})

    assert loss_rows(results) == []


def test_the_page_begins_with_a_row_for_everybody_and_says_what_another_run_has_found() -> None:
    results = throughput_of(evertick={"execute": [10.0, 30.0]}, huey={"execute": [3.0, 3.0]})
    results.cases[case_of("huey", "latency")] = {"p50": [5.0], "p99": [7.0]}
    results.cases[case_of(measurement="latency")] = {"p50": [2.0], "p99": [4.0]}
    results.runs, results.ran_in[case_of("huey", "latency")] = [Run(), Run()], 1

    page = page_of(results)

    assert page.index("## In short") < page.index("## Aims")
    assert (
        "| Evertick | SQLite | 20.0 (run 1) | 2.00 (run 1) | 4.00 (run 1) | - | - | "
        "| Huey | SQLite | 3.00 | 5.00 (run 2) | 7.00 (run 2)" in (section(page, "In short"))
    )
    assert "## In short" not in page_of(throughput_of(evertick={"execute": [10.0]}))


def test_how_late_they_were_is_not_told_of_those_who_guess_and_left_moments_behind() -> None:
    results = results_of(case_of("huey", "minute"), share=[11.0], p99=[59_973.0], node=[5.0])
    results.cases[case_of("graphile", "minute")] = {"share": [11.0], "p99": [59_973.0], "node": [5.0]}

    (table,) = tables_of(results, MEASUREMENTS["minute"])

    assert [row.split("|")[3:-1] for row in table.text.splitlines()[2:]] == [
        [" 11.0 ", " - ", " 5.00 "],
        [" 11.0 ", " 59,973 ", " 5.00 "],
    ]


def test_rows_are_in_the_order_of_the_plan_whenever_they_were_measured() -> None:
    steps = [Case("knee", "sqlite", "evertick", 1, number) for number in (24_000, 4_000, 8_000)]

    (table,) = tables_of(results_of(*steps, share=[100.0], p99=[1.0]), MEASUREMENTS["knee"])

    assert [row.split("|")[2].strip() for row in table.text.splitlines()[2:]] == ["4,000", "8,000", "24,000"]


def test_who_guesses_and_has_no_figure_at_all_has_dashes() -> None:
    results = results_of(case_of("huey", "minute"), share=[math.nan], p99=[math.nan], node=[math.nan])
    results.cases[case_of(measurement="minute")] = {"share": [100.0], "p99": [1.0], "node": [5.0]}

    (table,) = tables_of(results, MEASUREMENTS["minute"])

    assert table.text.splitlines()[3] == "| Huey (0 of 1 round) | 1,000 | - | - | - |"


def test_a_run_on_another_processor_names_its_own(tmp_path: Path) -> None:
    for number, cpu in enumerate(("quick", "slow")):
        run = results_of(case_of(measurement="idle" if number else "cost"), node=[1.0])
        run.machine, run.runs = {"cpu": cpu}, [Run(cpu=cpu if number else "", stolen=[0.5, 2.0])]
        run.write(tmp_path / cpu)

    page = page_of(Results.read([tmp_path / "quick", tmp_path / "slow"]))

    assert "1. cost on SQLite; stolen 0.5, 2.0 %; on quick\n2. idle on SQLite; stolen 0.5, 2.0 %; on slow\n" in page
    assert "; on quick" not in page_of(Results.read([tmp_path / "quick"]))


def test_a_run_by_another_python_names_its_own_where_it_is_known_which_one_that_was(tmp_path: Path) -> None:
    built = ("CPython 3.11.7", "CPython 3.11.7, built without PGO")
    for number, python in enumerate(built):
        run = results_of(case_of(measurement="idle" if number else "cost"), node=[1.0])
        run.machine, run.runs = {"python": python}, [Run(python=python if number else "")]
        run.write(tmp_path / str(number))
    together = Results.read([tmp_path / "0", tmp_path / "1"])
    together.write(tmp_path / "together")

    for results in (together, Results.read([tmp_path / "together"])):
        assert [run.python for run in results.runs] == [*built]
        assert f"1. cost on SQLite; by {built[0]}\n2. idle on SQLite; by {built[1]}\n" in page_of(results)
    assert "; by CPython" not in page_of(Results.read([tmp_path / "0"]))
    # A file of several runs that was written before each of them had its own.
    for run_of_both in together.runs:
        run_of_both.python = ""
    together.write(tmp_path / "old")
    assert "; by CPython" not in page_of(Results.read([tmp_path / "old"]))


def test_what_others_failed_at_is_forgotten_when_it_is_measured_anew(tmp_path: Path) -> None:
    first, second = results_of(case_of("huey"), execute=[1.0]), results_of(case_of("huey"), execute=[1.0])
    # Another case whose title begins in the same way.
    first.failed = [f"{case_of('huey').title}, round 1/1: twice", f"{case_of('huey').title}, evenly, round 1/1: why"]
    second.failed = [f"{case_of('huey').title}, round 2/5: it was lost"]
    first.write(tmp_path / "first")
    second.write(tmp_path / "second")

    together = Results.read([tmp_path / "first", tmp_path / "second"])

    assert together.failed == [first.failed[1], *second.failed]


def test_no_two_lines_of_a_picture_look_alike() -> None:
    many = {f"line {number}": [Point(10, number + 1)] for number in range(20)}

    drawn = ElementTree.fromstring(lines("many", Axes("across", "up", "legend"), many))

    looks = [(each.get("stroke"), each.get("stroke-dasharray")) for each in drawn if each.tag.endswith("polyline")]
    assert len(set(looks)) == 20
    names = [float(each.get("y", 0)) for each in drawn if (each.text or "").startswith("line ")]
    assert max(names) < float((drawn.get("viewBox") or "").split()[3])


def texts(picture: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(picture).iter() if each.tag.endswith("text")]


def dashed(picture: str) -> int:
    return sum(each.get("stroke-dasharray") is not None for each in ElementTree.fromstring(picture).iter())


def test_a_picture_says_what_its_lines_are_and_of_how_many_rounds() -> None:
    results = throughput_of(evertick={"execute": [1.0, 2.0, 3.0]}, raw={"execute": [2.0, 3.0]})

    _, picture = pictures_of(results)["how-fast-throughput-sqlite.svg"]

    assert texts(picture)[-1] == "bars: the median of 2 to 3 rounds; lines: from least to greatest"
    assert dashed(picture) == 0


def test_a_picture_has_a_dashed_line_for_each_aim() -> None:
    results = Results({}, {})
    for number in (1_000, 10_000, 100_000):
        results.cases[Case("minute", "postgres", "evertick", 1, number)] = {"share": [100.0], "p99": [10.0]}
        results.cases[Case("knee", "postgres", "evertick", 1, number)] = {"share": [100.0], "p99": [10.0]}
    results.cases[Case("history", "postgres", "evertick", 1, 10)] = {"short": [1.0], "long": [2.0]}

    pictures = {name: picture for name, (_, picture) in pictures_of(results).items()}

    found = {name: dashed(picture) for name, picture in pictures.items()}
    assert found == {"how-fast-minute.svg": 2, "how-fast-knee.svg": 1, "how-fast-history.svg": 1}
    assert "points: the median of 1 round; " in pictures["how-fast-minute.svg"]
    assert all("dashed: the aim" in picture for picture in pictures.values())


def test_a_virtual_machine_is_told_as_such_and_memory_as_one_reads_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = {"cpuinfo": "cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: Some\nflags\t: fpu hypervisor lm\n"}
    told["meminfo"] = "MemTotal:       24684100 kB\nMemFree: 1 kB\n"
    for name, text in told.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(machine, "_PROC", tmp_path)

    found = machine.describe(tmp_path)

    assert found["cpu"] == "Some (family 25, model 17), in a virtual machine"
    assert found["memory"] == "23.5 GiB"


def test_a_row_of_another_run_tells_its_own_rounds_and_not_those_it_never_had() -> None:
    results = Results({}, {}, runs=[Run(), Run()])
    ours, theirs = (Case("throughput", "postgres", name, 1, 1_000) for name in ("evertick", "graphile"))
    results.add(ours, {"execute": [1.0, 2.0, 3.0]})
    results.add(theirs, {"execute": [1.0]})
    results.ran_in = {ours: 1, theirs: 0}

    [table] = tables_of(results, MEASUREMENTS["throughput"])

    titles = [row.split(" | ")[0].removeprefix("| ") for row in table.text.splitlines()[2:]]
    assert titles == ["Evertick (run 2)", "graphile-worker (run 1; 1 round)"]


def test_in_short_those_whose_schedules_are_due_all_at_once_are_marked() -> None:
    results = Results({}, {})
    for name in ("evertick", "graphile"):
        results.add(Case("minute", "postgres", name, 1, 10_000), {"share": [100.0], "p99": [20.0]})

    rows = {row.split(" | ")[0].removeprefix("| "): row for row in summary_table(results).splitlines()[2:]}

    assert "(all at once)" not in rows["Evertick"]
    assert rows["graphile-worker"].count("(all at once)") == 2


def front_results() -> Results:
    results = Results({"cores": "2", "cpu": "Some (family 25), in a virtual machine"}, {})
    for store, factor in (("sqlite", 1.0), ("postgres", 2.0)):
        results.cases[Case("throughput", store, "evertick", 1, 60_000)] = {"execute": [30_000 * factor] * 3}
        results.cases[Case("latency", store, "evertick", 1, 0)] = {"p50": [2.5 * factor]}
        results.cases[Case("minute", store, "evertick", 1, 10_000)] = {"share": [100.0], "p99": [20.0 * factor]}
    results.cases[Case("throughput", "sqlite", "huey", 1, 60_000)] = {"execute": [3_000.0] * 3}
    return results


def test_in_short_begins_with_what_evertick_does_on_which_machine_and_what_is_not_measured() -> None:
    short = section(page_of(front_results()), "In short")

    assert short.startswith(
        "Measured in a virtual machine with 2 cores. Of a full queue of no-op runs, one process of Evertick executes "
        "30,000 a second on SQLite and 60,000 a second on PostgreSQL. From the call that enqueues a run to its start "
        "it takes 2.50 ms on SQLite and 5.00 ms on PostgreSQL, at the median. Of 10,000 schedules a minute, 99 % are "
        "late by at most 20.0 ms on SQLite and 40.0 ms on PostgreSQL. The job does nothing and is `async`: real jobs, "
    )
    assert "Others are better" not in short
    assert "the knee" not in short


def test_in_short_a_figure_that_is_missing_takes_its_sentence_with_it() -> None:
    results = front_results()
    for case in [case for case in results.cases if case.measurement == "latency" or case.store == "postgres"]:
        del results.cases[case]
    results.machine = {}

    short = section(page_of(results), "In short")

    assert short.startswith(
        "Of a full queue of no-op runs, one process of Evertick executes 30,000 a second on SQLite. Of 10"
    )


def test_in_short_names_the_largest_of_what_others_are_better_at_in_every_round() -> None:
    results = front_results()
    ours, theirs = (results.cases[Case("throughput", "sqlite", name, 1, 60_000)] for name in ("evertick", "huey"))
    ours |= {"single": [10.0, 10.0, 10.0], "bulk": [10.0, 10.0, 10.0]}
    theirs |= {"single": [20.0, 30.0, 40.0], "bulk": [9.0, 90.0, 90.0]}

    short = section(page_of(results), "In short")

    assert (
        "Others are better at some of it ([all](#where-others-are-faster)), by most at: - Runs that wait in a full "
        "queue, on SQLite: one by one, runs/s (Huey by 3.00 times). "
    ) in short


def test_in_short_a_maximum_is_none_of_the_largest_losses() -> None:
    results = front_results()
    results.cases[Case("latency", "sqlite", "huey", 1, 0)] = {"max": [1.0]}
    results.cases[Case("latency", "sqlite", "evertick", 1, 0)]["max"] = [90.0]

    page = page_of(results)

    assert "Others are better" not in section(page, "In short")
    assert "max, ms | Huey" in section(page, "Where others are faster")


def test_in_short_says_what_a_second_process_brings_where_one_run_has_both() -> None:
    results = front_results()
    results.runs = [Run(), Run()]
    two = Case("throughput", "sqlite", "evertick", 2, 60_000)
    results.add(two, {"execute": 34_000.0})

    said = "both together execute 34,000 a second on SQLite, and one alone 30,000 a second on SQLite"
    assert said in section(page_of(results), "In short")
    results.ran_in[two] = 1
    assert "second process" not in section(page_of(results), "In short")


def test_in_short_says_what_a_limit_costs_that_is_not_reached() -> None:
    results = front_results()
    for variant, rate in ((NO_LIMIT, 27_000.0), (NOT_REACHED, 9_000.0)):
        results.cases[Case("limits", "postgres", "evertick", 3, 5_000, variant)] = {"execute": [rate]}

    assert (
        "three processes execute 27,000 a second on PostgreSQL without one, and 9,000 a second on PostgreSQL with one."
        in section(page_of(results), "In short")
    )


def test_in_short_says_that_a_million_a_minute_do_not_fit_on_sqlite_where_the_knee_says_so() -> None:
    results = front_results()
    for number, share in ((12_000, 100.0), (16_000, 40.0)):
        results.cases[Case("knee", "sqlite", "evertick", 1, number)] = {"share": [share], "p99": [10.0]}

    said = "On SQLite one node manages 12,000 fires a second (the knee); a million schedules a minute, which are 16,667"
    assert f"{said} a second, do not fit there. " in section(page_of(results), "In short")
    results.cases[Case("minute", "sqlite", "evertick", 1, 1_000_000)] = {"share": [4.76], "p99": [9_000.0]}
    assert "do not fit there: 4.76 % of them began in their minute. " in section(page_of(results), "In short")


def test_in_short_evertick_has_a_row_with_all_at_once_to_compare_with_those_who_have_no_other_way() -> None:
    results = Results({}, {}, runs=[Run(), Run()])
    for store, herd in (("sqlite", {"p99": [800.0], "last": [900.0]}), ("postgres", {"last": [500.0, 700.0]})):
        results.add(Case("minute", store, "evertick", 1, 10_000), {"share": [100.0], "p99": [20.0]})
        results.add(Case("herd", store, "evertick", 1, 10_000), herd)
        results.add(Case("herd", store, "evertick", 1, 1_000), {"p99": [1.0], "last": [2.0]})
    results.ran_in[Case("herd", "postgres", "evertick", 1, 10_000)] = 1

    rows = [row for row in summary_table(results).splitlines() if "all at once |" in row]

    assert rows == [
        "| Evertick, all at once | SQLite | - | - | - | 100 | 800 |",
        "| Evertick, all at once | PostgreSQL | - | - | - | 100 (run 2) | 600 (the last; run 2) |",
    ]
    results.cases[Case("herd", "sqlite", "evertick", 1, 10_000)]["last"] = [60_000.0]
    assert "| Evertick, all at once | SQLite | - | - | - | - | 800 |" in summary_table(results)
