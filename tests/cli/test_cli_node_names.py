"""Names of nodes: in lists, for one run, in JSON beside their ids, and for pruned nodes."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from evertick import Gap, Scheduler, Verdict
from evertick.cli.command.runs import print_ledger
from evertick.cli.show.words import known_names, now, shown_node
from evertick.ledger.planning import overlap_on
from evertick.model import Node


@pytest.fixture
def pair(tmp_path, monkeypatch) -> Iterator[str]:
    """Two nodes that each ran an every-node schedule."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    monkeypatch.setenv("EVERTICK_DATABASE", url)
    monkeypatch.setenv("TZ", "UTC")
    ended = threading.Semaphore(0)

    def program(name: str) -> Scheduler:
        scheduler = Scheduler(url, node_name=name, feed="1d")

        @scheduler.every("1h", key="refresh", mode="every-node")
        def refresh() -> None: ...

        scheduler.on("succeeded", lambda event: ended.release())
        return scheduler

    with program("web-a") as first, program("web-b"):
        first.sync.trigger("refresh")
        assert ended.acquire(timeout=20)
        assert ended.acquire(timeout=20)
        yield url


def test_every_node_runs_are_shown_with_their_nodes(pair, ask, evertick, on_terminal):
    for command in ("runs", "history", "show refresh"):
        text = evertick(*command.split()).stdout
        assert {"web-a", "web-b"} <= set(text.split()), command
    assert {row["node_name"] for row in ask("history")} == {"web-a", "web-b"}
    assert all(row["node"] and row["node"] != row["node_name"] for row in ask("runs"))
    narrow = on_terminal(pair, "history", COLUMNS="80")
    assert "web-a" in narrow
    assert "web-b" in narrow
    message = [line for line in evertick("events").stdout.splitlines() if "run.finished" in line]
    assert {re.search(r"on (web-\w)", line)[1] for line in message} == {"web-a", "web-b"}


def test_show_of_a_run_has_the_name_and_the_id_of_its_node(pair, ask, evertick):
    run = ask("runs", "--limit", "1")[0]
    line = next(line for line in evertick("show", run["id"]).stdout.splitlines() if line.startswith("Node"))
    assert line.split(None, 1)[1] == f"{run['node_name']}, id {run['node']}"
    assert ask("show", run["id"])["run"]["node_name"] == run["node_name"]


def test_a_running_run_has_its_current_attempt_and_why_names_its_node(tmp_path, monkeypatch, evertick):
    monkeypatch.setenv("EVERTICK_DATABASE", f"sqlite:///{tmp_path}/jobs.db")
    scheduler, begun, may_end = Scheduler(node_name="web-a"), threading.Event(), threading.Event()

    @scheduler.every("1h", key="slow")
    def slow() -> None:
        begun.set()
        assert may_end.wait(30)

    with scheduler:
        run = scheduler.sync.trigger("slow")
        assert begun.wait(20)
        deadline = now() + timedelta(seconds=20)
        while not scheduler.sync.runs(states=["running"]):
            assert now() < deadline
        row = dict(zip(*(re.split(r"  +", line) for line in evertick("runs").stdout.splitlines()), strict=True))
        words = evertick("why", "slow").stdout
        may_end.set()
    assert (row["STATE"], row["TRIES"], row["NODE"]) == ("running", "1", "web-a")
    assert re.search(rf"run {run.id} \(attempt 1\) runs since .* on web-a$", words, re.MULTILINE)


def a_node(id_: str, name: str, died_at: datetime | None = None, *, hour: int = 0) -> Node:
    """A node that started and sent a heartbeat in this hour."""
    given: dict[str, Any] = dict.fromkeys(Node.__struct_fields__)
    started = datetime(2026, 1, 31, hour, tzinfo=UTC)
    times = {"started_at": started, "beat_at": started + timedelta(minutes=50), "died_at": died_at}
    return Node(**{**given, "id": id_, "name": name, **times})


def test_the_end_of_an_id_is_shown_only_for_ambiguous_names():
    # Killed, restarted, and only then declared dead.
    noticed = datetime(2026, 1, 31, 1, 10, tzinfo=UTC)
    restarted = [a_node("n-000001", "web", noticed), a_node("n-000002", "web", hour=1)]
    assert known_names(restarted) == {"n-000001": "web", "n-000002": "web"}
    twins = [a_node("n-000003", "web"), a_node("n-000004", "web")]
    assert known_names(twins) == {"n-000003": "web (000003)", "n-000004": "web (000004)"}
    survived = [a_node("n-000003", "web", noticed), a_node("n-000004", "web")]
    assert known_names(survived) == known_names(twins), "the runs of the dead are not those of the living"
    assert shown_node("n-000005", known_names(twins)) == "…000005"
    assert shown_node(None, {}) == ""


def test_the_gap_of_one_node_shows_its_node(capsys):
    moment = datetime(2026, 1, 31, tzinfo=UTC)
    gap = Gap(
        **dict.fromkeys(Gap.__struct_fields__)
        | {"schedule_key": "reload", "reason": overlap_on("web-a"), "verdict": Verdict.SKIPPED}
        | {"first_at": moment, "last_at": moment, "recorded_at": moment, "count": 1, "is_exact": True}
    )
    print_ledger([gap], {})
    head, line = capsys.readouterr().out.splitlines()
    cells = dict(zip(re.split(r"  +", head), re.split(r"  +", line), strict=True))
    assert (cells["REASON"], cells["NODE"]) == ("overlap", "web-a")
