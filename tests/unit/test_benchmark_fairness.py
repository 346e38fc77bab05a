"""Compared contenders do the same work, and only that work is measured."""

from __future__ import annotations

import asyncio
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

from benchmarks import trial as trials  # noqa: E402
from benchmarks.backend.postgres import PostgresBackend  # noqa: E402
from benchmarks.backend.protocol import Backend  # noqa: E402
from benchmarks.backend.sqlite import SqliteBackend  # noqa: E402
from benchmarks.contender.contenders import CONTENDERS, EVERTICK, STORES, Contender  # noqa: E402
from benchmarks.contender.environment import Environment  # noqa: E402
from benchmarks.machine import processor_ticks, stolen_percent  # noqa: E402
from benchmarks.measure import fires, footprint, next_fires, open_transaction, schedules, throughput  # noqa: E402
from benchmarks.measurement import (  # noqa: E402
    Case,
    alternate,
    alternate_contenders,
)
from benchmarks.plan import Selection, cases  # noqa: E402
from benchmarks.processes import Workers  # noqa: E402
from benchmarks.size import QUICK  # noqa: E402
from benchmarks.trial import Trial  # noqa: E402
from benchmarks.usage import CpuTime  # noqa: E402

RAW = next(each for each in CONTENDERS if each.name == "raw")
# Columns that differ in every run.
OWN = {"id", "node", "fence", "fire_at", "due_at", "created_at", "started_at", "finished_at"}
# Uses half a second of processor time before it is ready, and none afterwards.
PROGRAM = """
import os, pathlib, time
while time.process_time() < 0.5: pass
here = pathlib.Path({folder!r})
(here / f"{{os.getpid()}}.ready").touch()
while not (here / f"{{os.getpid()}}.go").exists(): time.sleep(0.01)
(here / "gone").touch()
time.sleep(60)
"""


def trial_of(contender: Contender, folder: Path, dsn: str | None = None) -> Trial:
    """On SQLite, or on PostgreSQL if there is a DSN."""
    folder.mkdir()
    return Trial(
        backend=SqliteBackend(folder) if dsn is None else PostgresBackend.make(folder, dsn),
        contender=contender,
        environment=Environment((sys.executable,), {}, {}),
        store="sqlite" if dsn is None else "postgres",
        processes=1,
        number=20,
        size=QUICK,
        another_backend=lambda: pytest.fail("another backend is not needed"),
    )


def rows_of(trial: Trial) -> list[dict[str, object]]:
    """The rows of three runs, waiting and ended, without the columns that always differ."""
    try:
        trial.call("fill", 3, 0)
        rows = read(trial.backend, "runs")
        throughput.execute(trial, 3)
        rows += read(trial.backend, "history")
    finally:
        trial.backend.close()
    return [{name: value for name, value in row.items() if name not in OWN} for row in rows]


def read(backend: Backend, table: str) -> list[dict[str, object]]:
    if isinstance(backend, PostgresBackend):
        return asyncio.run(fetch(backend, table))
    with closing(sqlite3.connect(backend.folder / "ledger.db")) as db:
        db.row_factory = sqlite3.Row
        return [dict(row) for row in db.execute(f"SELECT * FROM evertick_{table} ORDER BY args")]


async def fetch(backend: PostgresBackend, table: str) -> list[dict[str, object]]:
    async with backend.connection() as connection:
        return [dict(row) for row in await connection.fetch(f"SELECT * FROM evertick.{table} ORDER BY args")]


@pytest.mark.parametrize("store", STORES)
def test_the_raw_loop_writes_the_same_rows_as_evertick(
    tmp_path: Path, store: str, request: pytest.FixtureRequest
) -> None:
    dsn = request.getfixturevalue("postgres_dsn") if store == "postgres" else None

    ours, raw = (rows_of(trial_of(each, tmp_path / each.name, dsn)) for each in (EVERTICK, RAW))

    assert len(ours) == 6
    assert raw == ours


async def fired_rows(backend: PostgresBackend, *, is_raw: bool) -> dict[str, list[dict[str, object]]]:
    """The rows that a few fires wrote, without the columns that always differ."""
    count = 4
    async with backend.store() as store, backend.connection() as first, backend.connection() as second:
        await fires.add_schedules(store, count)
        await fires.join(store)
        await fires.fire(fires.RawLoop(first, second) if is_raw else fires.StoreLoop(store), count)
        tables = {"history": "fire_at", "due": "schedule_id"}
        rows = {
            each: await first.fetch(f"SELECT * FROM evertick.{each} ORDER BY {key}") for each, key in tables.items()
        }
    own = {*OWN, "at", "schedule_id"}
    return {table: [{k: v for k, v in row.items() if k not in own} for row in each] for table, each in rows.items()}


def test_the_raw_loop_of_fires_writes_the_same_rows_as_the_store(tmp_path: Path, postgres_dsn: str) -> None:
    left = []
    for is_raw in (False, True):
        folder = tmp_path / str(is_raw)
        folder.mkdir()
        backend = PostgresBackend.make(folder, postgres_dsn)
        try:
            left.append(asyncio.run(fired_rows(backend, is_raw=is_raw)))
        finally:
            backend.close()

    assert [len(rows) for rows in left[0].values()] == [4, 4]
    assert left[1] == left[0]


def test_each_side_goes_first_in_every_other_turn() -> None:
    names = [[name for name, _ in alternate(turn, {"short": 1, "long": 2})] for turn in range(3)]

    assert names == [["short", "long"], ["long", "short"], ["short", "long"]]


def test_the_order_of_compared_contenders_changes_with_each_round() -> None:
    one, two = (Case("latency", "sqlite", contender, 1, 0) for contender in ("evertick", "raw"))
    alone = replace(one, store="postgres")

    assert [alternate_contenders(number, [one, two, alone]) for number in (0, 1, 2)] == [
        [one, two, alone],
        [two, one, alone],
        [one, two, alone],
    ]


def test_stolen_time_is_a_share_of_all_processor_time() -> None:
    before, after = [10, 0, 10, 70, 0, 0, 0, 10], [20, 0, 20, 140, 0, 0, 0, 20]
    assert stolen_percent(before, after) == 10.0
    assert stolen_percent(before, before) == stolen_percent([], []) == 0.0
    assert len(processor_ticks()) == 8


def test_a_selection_of_one_store_has_no_broker() -> None:
    selection = Selection(
        ("minute",), ("sqlite", "postgres"), (1,), has_peers=True, names=(), has_million=False, size=QUICK
    )
    assert {case.store for case in cases(selection)} == {"sqlite", "postgres", "broker"}
    assert {case.store for case in cases(replace(selection, stores=("sqlite",)))} == {"sqlite"}


def test_a_run_that_starts_before_its_moment_fails_the_benchmark() -> None:
    schedules.check_none_early([0.0, 0.2])
    schedules.check_none_early([])

    with pytest.raises(AssertionError, match=r"a run started 20\.000 ms before its moment"):
        schedules.check_none_early([0.1, -0.02])


def test_two_processes_have_no_rate_of_enqueueing(tmp_path: Path) -> None:
    one = trial_of(EVERTICK, tmp_path / "one")
    two = replace(trial_of(EVERTICK, tmp_path / "two"), processes=2)

    assert set(throughput.measure(one)) - set(throughput.measure(two)) == {"bulk", "single"}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("contender", [EVERTICK, RAW], ids=lambda each: str(each.name))
def test_enqueueing_measures_the_processor_time_of_the_node(
    tmp_path: Path, store: str, contender: Contender, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput, "_AHEAD_SECONDS", 0)
    dsn = request.getfixturevalue("postgres_dsn") if store == "postgres" else None
    trial = replace(trial_of(contender, tmp_path / contender.name, dsn), processes=2)

    try:
        found = throughput.measure_enqueue(trial)
    finally:
        trial.backend.close()

    assert set(found) - {"server_us"} == {"bulk", "single", "node_us"}
    node = found["node_us"]
    assert isinstance(node, float)
    assert 0 < node < 1e6


@pytest.mark.parametrize(
    ("name", "expected"), [("evertick", "uvloop"), ("raw", "uvloop"), ("evertick_default", "asyncio.unix_events")]
)
def test_evertick_as_installed_runs_without_uvloop(name: str, expected: str) -> None:
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


def test_an_open_transaction_is_compared_with_the_same_turns_without_it() -> None:
    """The machine becomes half as fast meanwhile, and the ledger with the open transaction half as fast again."""
    used = CpuTime(node=0.01, server=0.02)
    turns = {
        "with": [(1.0, used)] * 6 + [(4.0, used)] * 6,
        "without": [(1.0, used)] * 6 + [(2.0, used)] * 6,
    }

    found = open_transaction.metrics_of(turns, fires=100)

    assert (found["begin_ratio"], found["ratio"]) == (1.0, 0.5)
    assert (found["with"], found["without"]) == (25.0, 50.0)
    assert (found["with_node_us"], found["without_server_us"]) == pytest.approx((100.0, 200.0))


def test_the_import_is_measured_without_a_store_and_with_each() -> None:
    program = (
        "import sys, evertick{also}; print(sorted(each for each in sys.modules if each in ('sqlite3', 'asyncpg')))"
    )

    def loaded(also: str) -> str:
        command = [sys.executable, "-c", program.format(also=also)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    found = {variant: loaded(f", {module}") for variant, module in footprint.WITH_STORE.items()}
    assert loaded("") == "[]"
    assert found == {"with SQLite": "['sqlite3']", "with PostgreSQL": "['asyncpg']"}


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    command = [sys.executable, "-c", PROGRAM.format(folder=str(tmp_path))]
    workers = Workers(command, {"BENCH_ROOT": str(ROOT)}, tmp_path, 1)
    yield workers
    workers.stop()


def test_processor_time_before_workers_are_ready_is_not_measured(workers: Workers, tmp_path: Path) -> None:
    workers.wait_until_ready()
    before = CpuTime.of_workers(workers, SqliteBackend(tmp_path))
    assert before.node >= 0.4
    assert not (tmp_path / "gone").exists()

    workers.go()

    assert CpuTime.of_workers(workers, SqliteBackend(tmp_path)).since(before).node < 0.3


def test_a_stalled_worker_fails_the_round(workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "_STALL_SECONDS", 0.05)
    trial = trial_of(EVERTICK, tmp_path / "ours")

    with pytest.raises(AssertionError, match="0 of 3 were executed, then none for a minute"):
        trial.wait_for(3, workers, 60)


class Walked(Trial):
    """A contender that returns a wrong moment."""

    def call(self, verb: str, *values: object) -> dict[str, list[float]]:
        return {each.text: [20, 0.5, 0.0] for each in next_fires.EXPRESSIONS.values()}


def test_a_wrong_moment_of_a_cron_expression_fails_the_round(tmp_path: Path) -> None:
    trial = trial_of(EVERTICK, tmp_path / "ours")
    wrong = Walked(**{name: getattr(trial, name) for name in Trial.__dataclass_fields__})

    with pytest.raises(AssertionError, match=r"Evertick: 1969-12-31 .* instead of 2026-03-07 .* for \*/5"):
        next_fires.measure(wrong)

    assert set(next_fires.measure(replace(trial, number=400))) == {"often", "weekdays", "leap"}
