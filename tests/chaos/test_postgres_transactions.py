"""`kill -9` around a commit: rows of the user and the ledger are there together or not at all, by every library."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from libraries import ASYNC, PLAIN

import preloaded
from evertick import Run, Scheduler, State, Verdict

HERE = Path(__file__).parent
LIBRARIES = (*PLAIN, *ASYNC)
# A job may also take its transaction from its context.
JOBS = (*LIBRARIES, "block", "async-block")
PATIENCE = 60


class Shop:
    """Tables of a user beside those of the ledger, and the processes that use both."""

    def __init__(self, url: str, logs: Path) -> None:
        parts = urlsplit(url)
        self.dsn = url.partition("?")[0]
        self.schema = parse_qs(parts.query)["schema"][0]
        self.manager = Scheduler(url, concurrency=0)
        self.manager.sync.runs()  # makes the schema
        self._logs = logs
        self._started: list[subprocess.Popen[str]] = []
        with psycopg.connect(self.dsn) as connection:
            connection.execute(f"CREATE TABLE {self.schema}.orders (library text)")
            connection.execute(f"CREATE TABLE {self.schema}.paid (library text, run text)")

    def start(self, program: str, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(HERE / program), self.dsn, self.schema, *words]
        log = (self._logs / f"{len(self._started)}.log").open("w")
        with log:
            process = preloaded.popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=HERE
            )
        self._started.append(process)
        return process

    def rows(self, table: str) -> Counter[str]:
        with psycopg.connect(self.dsn) as connection:
            return Counter(row[0] for row in connection.execute(f"SELECT library FROM {self.schema}.{table}"))

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self._logs.glob("*.log")))

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()
        self.manager.sync.close()


@pytest.fixture
def shop(postgres_url: str, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(postgres_url, tmp_path)
    yield shop
    shop.close()


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("point", ["inside", "after"])
def test_an_order_and_the_run_enqueued_with_it_survive_a_kill_together(shop: Shop, library: str, point: str) -> None:
    program = shop.start("ordering_program.py", library, point)
    assert program.stdout is not None
    assert program.stdout.readline().strip() == point, shop.logs()
    program.kill()
    program.wait()
    expected = 0 if point == "inside" else 1
    assert shop.rows("orders").total() == expected
    assert len(shop.manager.sync.runs()) == expected


@pytest.mark.parametrize("point", ["inside", "after"])
def test_jobs_that_end_their_runs_themselves_have_paid_once_though_their_node_is_killed(shop: Shop, point: str) -> None:
    for job in JOBS:
        shop.manager.task(lambda: None, name=job).sync.enqueue()
    first = shop.start("shop_node.py", point)
    assert first.stdout is not None
    arrived = {first.stdout.readline().strip() for _ in JOBS}
    assert arrived == set(JOBS), shop.logs()
    first.kill()
    first.wait()
    assert shop.rows("paid") == ({} if point == "inside" else Counter(JOBS))
    shop.start("shop_node.py", "nowhere")
    runs = settled(shop)
    assert shop.rows("paid") == Counter(JOBS)
    expected = (Verdict.SUCCEEDED, 1 if point == "inside" else 0)
    assert {run.task: (run.verdict, run.losses) for run in runs} == dict.fromkeys(JOBS, expected)


def settled(shop: Shop) -> list[Run]:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        runs = shop.manager.sync.runs()
        if all(run.state is State.DONE for run in runs):
            return runs
        time.sleep(0.1)
    pytest.fail(f"not all runs have their verdict: {runs}\n{shop.logs()}")
