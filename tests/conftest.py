"""Shared by all folders of tests: a real PostgreSQL, started at its first use."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from long_tests import GROUPS, is_time_over
from servers.postgres import DSN_VARIABLE, known_types, shared_postgres
from servers.schemas import Schemas, in_schema, new_schema

# Moments without a zone of their own are shown by the clock of the machine.
os.environ["TZ"] = "UTC"
time.tzset()

# Of a shell in the background programs are born deaf to Ctrl-C, and so would be all that the tests start.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)

# Those with tests of ten seconds and more, the longest first.
_LONGEST = (
    "test_storm.py",
    "test_dispatch_kill.py",
    "test_limits_under_kill.py",
    "test_takeover.py",
    "test_many_processes.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--group", choices=sorted(GROUPS), help="of the tests marked long only those of this group")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Storms and fleets first: they mostly wait, so that one worker is at them while others keep the cores busy. Begun
    last, they would keep all others waiting."""
    items.sort(key=_turn)
    wanted = config.getoption("group")
    others = [item for item in items if (group := _group(item)) is not None and wanted not in (None, group)]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


def pytest_collection_finish() -> None:
    """The collected tests stay until the end: each collection of garbage would look through ten thousand of them, which
    takes half a second."""
    gc.collect()
    gc.freeze()


def _group(item: pytest.Item) -> str | None:
    mark = item.get_closest_marker("long")
    if mark is None:
        return None
    if len(mark.args) != 1 or mark.args[0] not in GROUPS:
        raise pytest.UsageError(f"{item.nodeid}: give `long` one of the groups in tests/long_tests.py: {list(GROUPS)}")
    return str(mark.args[0])


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("long") and is_time_over():
        pytest.skip("the time of `sh run long --minutes` is over")


def _turn(item: pytest.Item) -> int:
    if item.path.name in _LONGEST:
        return _LONGEST.index(item.path.name)
    return len(_LONGEST) + (item.path.parent.name != "chaos")


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The same for all workers of a run."""
    folder = tmp_path_factory.getbasetemp()
    return folder if worker_id == "master" else folder.parent


@pytest.fixture(scope="session")
def postgres_dsn(shared_folder: Path) -> Iterator[str]:
    """One server for all workers of a run."""
    with shared_postgres(shared_folder / "postgres") as dsn, known_types():
        yield dsn


@pytest.fixture(scope="session")
def schemas(postgres_dsn: str) -> Iterator[Schemas]:
    made = Schemas(postgres_dsn)
    yield made
    if os.environ.get(DSN_VARIABLE):  # else the server goes with them
        made.drop()
    made.close()


@pytest.fixture
def postgres_url(postgres_dsn: str, schemas: Schemas, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a store without rows, in a schema of the test's own."""
    # A node that joins opens more connections than a test uses, and makes all plans on each.
    monkeypatch.setattr("evertick.store.postgres.session._WARM_MOST", 0)
    schema = schemas.take()
    yield in_schema(postgres_dsn, schema)
    schemas.give_back(schema)


@pytest.fixture
def empty_postgres_url(postgres_dsn: str) -> Iterator[str]:
    """The same in a schema that does not exist yet, and goes with the test."""
    schema = new_schema()
    yield in_schema(postgres_dsn, schema)
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
