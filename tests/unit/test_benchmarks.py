"""The benchmarks work: tiny numbers, every check in them, every figure in the end. How fast it is, is not tested."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from benchmarks.contender.contenders import EVERTICK  # noqa: E402
from benchmarks.contender.environment import Environment  # noqa: E402
from benchmarks.measure import throughput  # noqa: E402
from benchmarks.page import FIGURES, PAGE, page_of, write_report  # noqa: E402
from benchmarks.plan import GROUPS, MEASUREMENTS  # noqa: E402
from benchmarks.results import Results  # noqa: E402
from benchmarks.size import QUICK  # noqa: E402
from benchmarks.stage import Stage  # noqa: E402
from benchmarks.store.sqlite import SqlitePlace  # noqa: E402
from benchmarks.tally import Tally, total, witnessed  # noqa: E402

DOCS = ROOT / "docs" / "explanation"


def benchmarks(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)


# A server of its own, and a hundred processes, of which some are nodes: seconds on a calm machine.
def test_a_quick_benchmark_gives_every_figure_on_both_stores_and_leaves_nothing_behind(tmp_path: Path) -> None:
    written, folder = tmp_path / "figures.json", tmp_path / "bench"

    done = benchmarks("run", "--quick", "--json", written, "--folder", folder)

    assert done.returncode == 0, done.stderr
    results = Results.read([written])
    for measurement in MEASUREMENTS.values():
        cases = results.of(measurement.name)
        found = {name for samples in cases.values() for name in samples}
        assert found == {figure.name for figure in measurement.figures}, measurement.name
        assert all(value >= 0 for samples in cases.values() for each in samples.values() for value in each)
        assert measurement.title in done.stdout
    assert {case.store for case in results.of("throughput")} == {"sqlite", "postgres"}
    assert {case.contender for case in results.of("throughput")} == {"evertick", "raw"}
    assert {"postgresql", "sqlite", "python", "cpu"} <= set(results.machine)
    assert not folder.exists()
    write_report(results, tmp_path / "page")
    assert "these figures mean nothing" in (tmp_path / "page" / PAGE).read_text()
    for picture in (tmp_path / "page").glob("*.svg"):
        ElementTree.parse(picture)
    assert Results.read([tmp_path / "page" / FIGURES]).cases == results.cases


def test_a_group_that_there_is_not_is_refused_with_those_there_are() -> None:
    done = benchmarks("--quick", "--only", "nothing")

    assert (done.returncode, done.stdout) == (2, "")
    assert all(group in done.stderr for group in GROUPS)


def test_the_page_of_the_docs_is_written_from_its_figures(tmp_path: Path) -> None:
    results = Results.read([DOCS / FIGURES])
    write_report(results, tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (DOCS / path.name).read_bytes(), f"write docs/explanation/{path.name} anew"
    assert {path.name for path in DOCS.glob("how-fast*")} == {path.name for path in tmp_path.iterdir()}


def test_who_took_no_part_and_who_failed_is_on_the_page() -> None:
    results = Results({"cores": "2"}, {}, skipped={"Huey": "there is no network"}, failed=["latency, celery: it ended"])

    page = page_of(results)

    assert "Huey took no part: it could not be installed (there is no network)." in page
    assert "- latency, celery: it ended" in page
    assert page.count("Not measured yet.") == len(GROUPS)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """Evertick on a ledger of three runs that have succeeded."""
    place = SqlitePlace(tmp_path)
    stage = Stage(
        place=place,
        contender=EVERTICK,
        environment=Environment((sys.executable,), {}, {}),
        store="sqlite",
        processes=1,
        number=3,
        size=QUICK,
        another_place=lambda: pytest.fail("one is enough"),
    )
    stage.call("fill", 3, 0)
    throughput.execute(stage, 3)
    return stage


def test_a_round_in_which_each_run_was_executed_once_and_kept_is_good(stage: Stage) -> None:
    stage.check(3)


def test_a_run_that_is_lost_makes_the_round_fail(stage: Stage) -> None:
    stage.forget()
    tally = Tally(stage.place.folder)
    tally.count(0)
    tally.count(2)
    with pytest.raises(AssertionError, match="of 3 runs 1 were lost and 0 ran too often"):
        stage.check(3)


def test_a_run_that_is_executed_twice_makes_the_round_fail(stage: Stage) -> None:
    Tally(stage.place.folder).count(1)
    with pytest.raises(AssertionError, match="of 3 runs 0 were lost and 1 ran too often"):
        stage.check(3)


def test_a_run_that_the_ledger_does_not_have_makes_the_round_fail(stage: Stage) -> None:
    Tally(stage.place.folder).count(3)
    with pytest.raises(AssertionError, match=r"4 runs were executed, the ledger has .*: 3"):
        stage.check(4)


def test_a_run_that_is_left_in_the_queue_makes_the_round_fail(stage: Stage) -> None:
    stage.call("fill", 1, 0)
    with pytest.raises(AssertionError, match="1 runs are still in the queue"):
        stage.check(3)


def test_threads_that_count_first_at_once_are_all_counted(tmp_path: Path) -> None:
    for round_ in range(20):
        folder = tmp_path / str(round_)
        folder.mkdir()
        tally, together = Tally(folder), Barrier(8)

        def count(number: int, tally: Tally = tally, together: Barrier = together) -> None:
            together.wait()
            tally.count(number)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(count, range(8)))
        assert sorted(witnessed(folder).numbers) == list(range(8))


def test_a_tally_has_every_count_of_every_process_with_its_number_and_moments(tmp_path: Path) -> None:
    Tally(tmp_path).count(7, 12.5)
    program = f"from benchmarks.tally import Tally; from pathlib import Path; Tally(Path({str(tmp_path)!r})).count(8)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)

    seen = witnessed(tmp_path)

    assert total(tmp_path) == 2
    assert sorted(zip(seen.numbers, seen.dues, strict=True)) == [(7, 12.5), (8, 0.0)]
    assert 0 <= seen.seconds < 60
    assert json.dumps(list(seen.begans))
