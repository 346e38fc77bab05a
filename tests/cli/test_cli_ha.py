"""`evertick ha`, with three live node processes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evertick import Scheduler
from evertick.engine.loops import LOOPS

PATIENCE = 30.0
PROGRAM = """
import os
from evertick import Scheduler

scheduler = Scheduler(node_name=os.environ["NODE"], lease="10s", poll_interval="1s")

@scheduler.every("1s", mode="every-node", key="refresh-cache")
def refresh() -> None:
    with open("seen", "a") as seen:
        print(os.environ["NODE"], file=seen, flush=True)

@scheduler.every("1h", key="report")
def report() -> None: ...

@scheduler.duty("rebuild-index", every="500ms")
def rebuild() -> None: ...
"""


def _plain(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r", "").splitlines()


@pytest.fixture
def fleet(start: Callable[..., Any], tmp_path: Path, postgres_url: str, evertick: Callable[..., Any]) -> Iterator[str]:
    """Three processes on PostgreSQL, after each has stored the ticks of its loops."""
    (tmp_path / "shop.py").write_text(PROGRAM)
    processes = []
    for number in range(3):
        env = {"NODE": f"web-{number}", "EVERTICK_DATABASE": postgres_url}
        with (tmp_path / f"log-{number}").open("w") as log:
            processes.append(start("run", "shop:scheduler", env=env, stdout=log, stderr=log))
    end = time.monotonic() + PATIENCE
    while not _is_complete(evertick, postgres_url):
        assert time.monotonic() < end, [(tmp_path / f"log-{number}").read_text() for number in range(3)]
        time.sleep(0.1)
    yield postgres_url
    for process in processes:
        process.terminate()
    assert [process.wait() for process in processes] == [0, 0, 0]


def _table(evertick: Callable[..., Any], url: str, *args: str) -> Any:
    result = evertick("ha", "--database", url, "--json", *args)
    return json.loads(result.stdout) if result.exit_code == 0 else None


def _is_complete(evertick: Callable[..., Any], url: str) -> bool:
    table = _table(evertick, url)
    if table is None or len(table["nodes"]) < 3:
        return False
    lines = {line["name"]: line for line in table["lines"]}
    has_index = bool(lines.get("rebuild-index", {}).get("holders"))
    return has_index and len(lines["watch"]["holders"]) == 3 and bool(lines["refresh-cache"]["last_at"])


def test_ha_shows_three_live_nodes_and_the_holders_of_duties(
    fleet: str, evertick: Callable[..., Any], on_terminal: Callable[..., str], tmp_path: Path
) -> None:
    table = _table(evertick, fleet)
    lines = {line["name"]: line for line in table["lines"]}
    names = {node["name"] for node in table["nodes"]}
    assert names == {"web-0", "web-1", "web-2"}
    assert {kind.name for kind in LOOPS} | {"evertick.prune", "rebuild-index", "refresh-cache", "report"} == set(lines)
    assert [lines[name]["mode"] for name in ("report", "refresh-cache", "rebuild-index", "sweep")] == [
        "claimed",
        "every-node",
        "duty",
        "idempotent",
    ]
    [holder] = lines["rebuild-index"]["holders"]
    assert holder["name"] in names
    assert lines["rebuild-index"]["term"] == 1
    assert {node["name"] for node in lines["refresh-cache"]["holders"]} == names

    _check_widths(fleet, on_terminal)
    _check_effect(fleet, tmp_path)


def _check_widths(url: str, on_terminal: Callable[..., str]) -> None:
    narrow = _plain(on_terminal(url, "ha", COLUMNS="80"))
    assert narrow[0].split() == ["KIND", "NAME", "MODE", "HELD", "BY", "LAST", "NEXT"]
    assert max(len(line) for line in narrow) <= 80
    assert re.search(r"loop +auto_pause +idempotent +all 3 .* when needed", "\n".join(narrow))
    assert re.search(r"duty +rebuild-index +duty +web-\d, term 1", "\n".join(narrow))
    assert re.search(r"schedule +refresh-cache +every-node +all 3", "\n".join(narrow))
    wide = _plain(on_terminal(url, "ha", COLUMNS="120"))
    assert "WITH N NODES" in wide[0]
    assert max(len(line) for line in wide) <= 120


def _check_effect(url: str, tmp_path: Path) -> None:
    """Checked outside of the ledger: each node ran once for each of its moments."""
    scheduler = Scheduler(url, concurrency=0)
    scheduler.sync.pause("refresh-cache")
    end = time.monotonic() + PATIENCE
    while scheduler.sync.runs("refresh-cache", states=["waiting", "running"]):
        assert time.monotonic() < end
        time.sleep(0.05)
    runs = scheduler.sync.runs("refresh-cache", limit=1000)
    scheduler.sync.close()
    seen = (tmp_path / "seen").read_text().split()
    assert len(seen) == len(runs)
    assert len({(run.fire_at, run.queue) for run in runs}) == len(runs)
    assert set(seen) == {"web-0", "web-1", "web-2"}


def test_ha_lists_lines_by_kind_and_a_bounded_number_of_schedules(database: str, evertick: Callable[..., Any]) -> None:
    result = evertick("ha", "--kind", "schedule", "--limit", "1")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["KIND", "schedule"]
    assert "1 of 3 schedules are listed, more with --limit" in result.stderr
    assert "live nodes of app default: 0" in result.stderr
    loops = evertick("ha", "--kind", "loop").stdout.splitlines()
    assert len(loops) == 1 + len(LOOPS)
    assert "no node" in loops[1]


def test_a_trigger_of_an_every_node_schedule_lists_all_runs(
    fleet: str, evertick: Callable[..., Any], on_terminal: Callable[..., str]
) -> None:
    assert evertick("pause", "refresh-cache", "--database", fleet).exit_code == 0
    end = time.monotonic() + PATIENCE
    while True:
        result = evertick("trigger", "refresh-cache", "--database", fleet)
        if "on 3 nodes: " in result.stdout:
            break
        # A node was still running the previous moment.
        assert time.monotonic() < end, result.output
        time.sleep(0.1)
    shown = evertick("show", "refresh-cache", "--database", fleet).stdout
    assert re.search(r"Mode +every-node: a run on each live node that knows the task", shown)
