"""The file and the commands of the page about queues, with real brokers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner
from pages import ROOT, blocks, shell_lines
from programs import running

from evertick.cli import cli
from servers.broker import nats_server, redis_server

PAGE = ROOT / "docs/how-to/dispatch-jobs-to-a-queue.md"
SCRIPT = "#!/bin/sh\necho done by $0\n"


@pytest.fixture
def addresses() -> Iterator[dict[str, str]]:
    """Of the page, and those of real servers."""
    with redis_server(is_durable=False) as redis, nats_server() as nats:
        yield {"redis://localhost:6379/0": redis.url, "nats://localhost:4222": nats.url}


def test_jobs_of_the_file_are_done_by_the_workers_of_the_page(
    addresses: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [file] = [block for block in blocks(PAGE) if block.text.startswith("# evertick.toml")]
    workers = [line for line in shell_lines(PAGE) if line.startswith("evertick worker")]
    assert len(workers) == len(addresses)
    (tmp_path / "evertick.toml").write_text(at(addresses, file.text))
    for name in ("build.sh", "report.sh"):
        (tmp_path / name).write_text(SCRIPT)
        (tmp_path / name).chmod(0o755)
    state = {"STATE_DIRECTORY": str(tmp_path / "state")}
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("EVERTICK_")]:
        monkeypatch.delenv(name)
    for name, value in {"HOME": str(tmp_path), **state}.items():
        monkeypatch.setenv(name, value)

    def asked(*words: str) -> str:
        """Nothing while there is no ledger yet."""
        return " ".join(CliRunner().invoke(cli, words).stdout.split())

    def verdicts() -> dict[str, str | None]:
        return {run["task"]: run["verdict"] for run in json.loads(asked("runs", "--json"))}

    with ExitStack() as stack:
        daemon = stack.enter_context(running("evertick daemon -v", tmp_path, **state))
        daemon.wait_until(lambda: "build" in asked("list"), "it has its jobs")
        for key in ("build", "report"):
            assert asked("trigger", key)
        daemon.wait_until(lambda: "not taken by a worker yet" in asked("why", "build"), "it waits for a worker")
        assert "evertick worker --broker redis --driver docker -- COMMAND" in asked("why", "build")
        for worker in workers:
            stack.enter_context(running(at(addresses, worker), tmp_path, **state))
        done = {"build": "succeeded", "report": "succeeded"}
        daemon.wait_until(lambda: verdicts() == done, "both are done by their workers")
        assert "redis/docker " in asked("history", "build")
        assert "nats/reports " in asked("runs", "report")
        [build] = json.loads(asked("runs", "build", "--json"))
        assert "Dispatched to redis queue docker, worker " in asked("show", build["id"])
        assert daemon.terminate() == 0, daemon.output


def at(addresses: dict[str, str], text: str) -> str:
    for written, real in addresses.items():
        text = text.replace(written, real)
    return text
