"""What the benchmarks compare does the same work, and is charged for that alone."""

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

from benchmarks import stage as stages  # noqa: E402
from benchmarks.contender.contenders import CONTENDERS, EVERTICK, STORES, Contender  # noqa: E402
from benchmarks.contender.environment import Environment  # noqa: E402
from benchmarks.figure import Case  # noqa: E402
from benchmarks.machine import processor_ticks, stolen_percent  # noqa: E402
from benchmarks.measure import enqueue, fires, footprint, held_open, next_fires, schedules, throughput  # noqa: E402
from benchmarks.order import by_turn, in_turn  # noqa: E402
from benchmarks.plan import Choice, cases  # noqa: E402
from benchmarks.processes import Workers  # noqa: E402
from benchmarks.size import QUICK  # noqa: E402
from benchmarks.stage import Stage  # noqa: E402
from benchmarks.store.place import Place  # noqa: E402
from benchmarks.store.postgres import PostgresPlace  # noqa: E402
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


def stage_of(contender: Contender, folder: Path, dsn: str | None = None) -> Stage:
    """On a file, or on a server."""
    folder.mkdir()
    return Stage(
        place=SqlitePlace(folder) if dsn is None else PostgresPlace.make(folder, dsn),
        contender=contender,
        environment=Environment((sys.executable,), {}, {}),
        store="sqlite" if dsn is None else "postgres",
        processes=1,
        number=20,
        size=QUICK,
        another_place=lambda: pytest.fail("one is enough"),
    )


def rows_of(stage: Stage) -> list[dict[str, object]]:
    """Of three runs, as they wait and as they have ended, without what is another one in each."""
    try:
        stage.call("fill", 3, 0)
        rows = read(stage.place, "runs")
        throughput.execute(stage, 3)
        rows += read(stage.place, "history")
    finally:
        stage.place.close()
    return [{name: value for name, value in row.items() if name not in OWN} for row in rows]


def read(place: Place, table: str) -> list[dict[str, object]]:
    if isinstance(place, PostgresPlace):
        return asyncio.run(fetch(place, table))
    with closing(sqlite3.connect(place.folder / "ledger.db")) as db:
        db.row_factory = sqlite3.Row
        return [dict(row) for row in db.execute(f"SELECT * FROM evertick_{table} ORDER BY args")]


async def fetch(place: PostgresPlace, table: str) -> list[dict[str, object]]:
    async with place.connection() as connection:
        return [dict(row) for row in await connection.fetch(f"SELECT * FROM evertick.{table} ORDER BY args")]


@pytest.mark.parametrize("store", STORES)
def test_the_raw_loop_writes_the_same_rows_as_evertick(
    tmp_path: Path, store: str, request: pytest.FixtureRequest
) -> None:
    dsn = request.getfixturevalue("postgres_dsn") if store == "postgres" else None

    ours, raw = (rows_of(stage_of(each, tmp_path / each.name, dsn)) for each in (EVERTICK, RAW))

    assert len(ours) == 6
    assert raw == ours


async def fired_rows(place: PostgresPlace, *, is_raw: bool) -> dict[str, list[dict[str, object]]]:
    """What a few fires have left behind, without what is another one in each."""
    count = 4
    async with place.store() as store, place.connection() as first, place.connection() as second:
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
        place = PostgresPlace.make(folder, postgres_dsn)
        try:
            left.append(asyncio.run(fired_rows(place, is_raw=is_raw)))
        finally:
            place.close()

    assert [len(rows) for rows in left[0].values()] == [4, 4]
    assert left[1] == left[0]


def test_of_two_that_take_turns_each_goes_first_in_every_other_one() -> None:
    names = [[name for name, _ in by_turn(turn, {"short": 1, "long": 2})] for turn in range(3)]

    assert names == [["short", "long"], ["long", "short"], ["short", "long"]]


def test_of_those_that_are_compared_another_goes_first_in_the_next_round() -> None:
    one, two = (Case("latency", "sqlite", contender, 1, 0) for contender in ("evertick", "raw"))
    alone = replace(one, store="postgres")

    assert [in_turn(number, [one, two, alone]) for number in (0, 1, 2)] == [
        [one, two, alone],
        [two, one, alone],
        [one, two, alone],
    ]


def test_what_the_host_gave_to_others_is_a_share_of_all_that_there_was() -> None:
    before, after = [10, 0, 10, 70, 0, 0, 0, 10], [20, 0, 20, 140, 0, 0, 0, 20]
    assert stolen_percent(before, after) == 10.0
    assert stolen_percent(before, before) == stolen_percent([], []) == 0.0
    assert len(processor_ticks()) == 8


def test_who_asks_for_one_store_alone_gets_no_broker() -> None:
    choice = Choice(("minute",), ("sqlite", "postgres"), (1,), has_peers=True, names=(), has_million=False, size=QUICK)
    assert {case.store for case in cases(choice)} == {"sqlite", "postgres", "broker"}
    assert {case.store for case in cases(replace(choice, stores=("sqlite",)))} == {"sqlite"}


def test_a_run_that_begins_before_its_moment_ends_the_benchmark() -> None:
    schedules.check_none_early([0.0, 0.2])
    schedules.check_none_early([])

    with pytest.raises(AssertionError, match=r"a run began 20\.000 ms before its moment"):
        schedules.check_none_early([0.1, -0.02])


def test_what_one_process_has_enqueued_is_no_figure_of_two(tmp_path: Path) -> None:
    one = stage_of(EVERTICK, tmp_path / "one")
    two = replace(stage_of(EVERTICK, tmp_path / "two"), processes=2)

    assert set(throughput.measure(one)) - set(throughput.measure(two)) == {"bulk", "single"}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("contender", [EVERTICK, RAW], ids=lambda each: str(each.name))
def test_what_it_takes_a_node_to_enqueue_is_measured(
    tmp_path: Path, store: str, contender: Contender, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueue, "_AHEAD_SECONDS", 0)
    dsn = request.getfixturevalue("postgres_dsn") if store == "postgres" else None
    stage = replace(stage_of(contender, tmp_path / contender.name, dsn), processes=2)

    try:
        found = enqueue.measure(stage)
    finally:
        stage.place.close()

    assert set(found) - {"server_us"} == {"bulk", "single", "node_us"}
    node = found["node_us"]
    assert isinstance(node, float)
    assert 0 < node < 1e6


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


def test_what_is_slower_with_a_transaction_held_open_is_compared_with_the_same_turns_without() -> None:
    """The machine gets half as fast meanwhile, and the ledger whose transaction is held open half as fast again."""
    used = Used(node=0.01, server=0.02)
    turns = {
        "held": [(1.0, used)] * 6 + [(4.0, used)] * 6,
        "free": [(1.0, used)] * 6 + [(2.0, used)] * 6,
    }

    found = held_open.figures_of(turns, fires=100)

    assert (found["begin_ratio"], found["ratio"]) == (1.0, 0.5)
    assert (found["held"], found["free"]) == (25.0, 50.0)
    assert (found["held_node_us"], found["free_server_us"]) == pytest.approx((100.0, 200.0))


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
