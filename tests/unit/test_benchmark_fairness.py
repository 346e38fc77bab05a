"""What the benchmarks compare does the same work, and is charged for that alone."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from benchmarks import stage as stages  # noqa: E402
from benchmarks.contender.contenders import CONTENDERS, EVERTICK, Contender  # noqa: E402
from benchmarks.contender.environment import Environment  # noqa: E402
from benchmarks.measure import next_fires, throughput  # noqa: E402
from benchmarks.processes import Workers  # noqa: E402
from benchmarks.size import QUICK  # noqa: E402
from benchmarks.stage import Stage  # noqa: E402
from benchmarks.store.sqlite import SqlitePlace  # noqa: E402
from benchmarks.used import Used  # noqa: E402

RAW = next(each for each in CONTENDERS if each.name == "raw")
# What is another one in every run, whoever writes it.
OWN = {"id", "node", "fence", "fire_at", "due_at", "created_at", "started_at", "finished_at"}
# Burns half a second before it is ready, and nothing afterwards.
PROGRAM = """
import os, pathlib, time
while time.process_time() < 0.5: pass
here = pathlib.Path({folder!r})
(here / f"{{os.getpid()}}.ready").touch()
while not (here / f"{{os.getpid()}}.go").exists(): time.sleep(0.01)
(here / "gone").touch()
time.sleep(60)
"""


def stage_of(contender: Contender, folder: Path) -> Stage:
    folder.mkdir()
    return Stage(
        place=SqlitePlace(folder),
        contender=contender,
        environment=Environment((sys.executable,), {}, {}),
        store="sqlite",
        processes=1,
        number=20,
        size=QUICK,
        another_place=lambda: pytest.fail("one is enough"),
    )


def history_of(contender: Contender, folder: Path) -> list[dict[str, object]]:
    stage = stage_of(contender, folder)
    stage.call("fill", 3, 0)
    throughput.execute(stage, 3)
    with closing(sqlite3.connect(folder / "ledger.db")) as db:
        db.row_factory = sqlite3.Row
        rows = db.execute("SELECT * FROM evertick_history ORDER BY args").fetchall()
    return [{name: row[name] for name in row.keys() if name not in OWN} for row in rows]  # noqa: SIM118


def test_the_raw_loop_leaves_the_same_rows_as_evertick(tmp_path: Path) -> None:
    ours, raw = history_of(EVERTICK, tmp_path / "ours"), history_of(RAW, tmp_path / "raw")

    assert len(ours) == 3
    assert raw == ours


def test_what_one_process_has_enqueued_is_no_figure_of_two(tmp_path: Path) -> None:
    one = stage_of(EVERTICK, tmp_path / "one")
    two = replace(stage_of(EVERTICK, tmp_path / "two"), processes=2)

    assert set(throughput.measure(one)) - set(throughput.measure(two)) == {"bulk", "single"}


@pytest.mark.parametrize(
    ("name", "expected"), [("evertick", "uvloop"), ("raw", "uvloop"), ("evertick_default", "asyncio.unix_events")]
)
def test_evertick_as_installed_runs_without_uvloop_which_does_not_come_with_it(name: str, expected: str) -> None:
    program = """
import asyncio
from benchmarks.contender import verbs
async def loop():
    return type(asyncio.get_running_loop()).__module__
verbs.main(loop)
"""
    options = next(each for each in CONTENDERS if each.name == name).options
    variables = {**os.environ, "BENCH_OPTIONS": json.dumps(options)}

    done = subprocess.run(
        [sys.executable, "-c", program, "loop"], env=variables, cwd=ROOT, check=True, capture_output=True, text=True
    )

    assert json.loads(done.stdout) == expected


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    command = [sys.executable, "-c", PROGRAM.format(folder=str(tmp_path))]
    workers = Workers(command, {"BENCH_ROOT": str(ROOT)}, tmp_path, 1)
    yield workers
    workers.stop()


def test_what_workers_do_before_they_are_ready_is_not_charged(workers: Workers, tmp_path: Path) -> None:
    workers.wait_until_ready()
    before = Used.by(workers, SqlitePlace(tmp_path))
    assert before.node >= 0.4
    assert not (tmp_path / "gone").exists()

    workers.go()

    assert Used.by(workers, SqlitePlace(tmp_path)).since(before).node < 0.3


def test_a_worker_that_executes_nothing_any_more_makes_the_round_fail(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "_STALL_SECONDS", 0.05)
    stage = stage_of(EVERTICK, tmp_path / "ours")

    with pytest.raises(AssertionError, match="0 of 3 were executed, then none for a minute"):
        stage.wait_for(3, workers, 60)


class Walked(Stage):
    """A contender that answers some moment."""

    def call(self, verb: str, *values: object) -> dict[str, list[float]]:
        return {each.text: [20, 0.5, 0.0] for each in next_fires.EXPRESSIONS.values()}


def test_a_scheduler_that_works_out_another_moment_has_no_figure(tmp_path: Path) -> None:
    stage = stage_of(EVERTICK, tmp_path / "ours")
    wrong = Walked(**{name: getattr(stage, name) for name in Stage.__dataclass_fields__})

    with pytest.raises(AssertionError, match=r"Evertick has 1969-12-31 .* for 2026-03-07 .* of \*/5"):
        next_fires.measure(wrong)

    assert set(next_fires.measure(replace(stage, number=400))) == {"often", "weekdays", "leap"}
