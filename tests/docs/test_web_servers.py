"""The web servers of the how-to pages, started by the very commands that stand there."""

from __future__ import annotations

import re
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pages import ROOT, files, shell_lines, text_of
from programs import Program, running

from evertick import Run, Scheduler

HOW_TO = ROOT / "docs/how-to"
SEVERAL_WORKERS = HOW_TO / "web-server-with-several-workers.md"
FLASK = HOW_TO / "flask.md"
WORKERS = 4

_RUN_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PRICES = re.compile(r"^prices of (\S+)$", re.MULTILINE)


def save_files(page: Path, folder: Path) -> None:
    for block in files(page):
        block.save(folder)


def command_of(page: Path, begin: str) -> str:
    """The first command on the page that begins so and asks for several workers."""
    return next(line for line in shell_lines(page) if line.startswith(begin) and f"--workers {WORKERS}" in line)


@contextmanager
def reading(folder: Path) -> Iterator[Scheduler]:
    """The ledger of the servers, from outside."""
    reader = Scheduler(f"sqlite:///{folder / 'shop.db'}", concurrency=0)
    try:
        yield reader
    finally:
        reader.sync.close()


def living_nodes(ledger: Scheduler) -> int:
    return sum(node.died_at is None for node in ledger.sync.nodes())


def post(program: Program) -> str:
    """Pay an order; the id of the run that was enqueued for it."""
    request = urllib.request.Request(f"http://127.0.0.1:{program.port}/orders/7/pay", method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        found = _RUN_ID.search(answer.read().decode())
    assert found is not None
    return found[0]


def has_succeeded(run: Run) -> bool:
    return run.verdict == "succeeded"


SERVERS = {
    "gunicorn": command_of(SEVERAL_WORKERS, "gunicorn"),
    "gunicorn, preloaded": f"{command_of(SEVERAL_WORKERS, 'gunicorn')} --preload",
    "uvicorn": command_of(SEVERAL_WORKERS, "uvicorn"),
    "FastAPI": command_of(HOW_TO / "fastapi.md", "uvicorn"),
    "Flask": command_of(FLASK, "gunicorn"),
}
PAGES = {"FastAPI": HOW_TO / "fastapi.md", "Flask": FLASK}


@pytest.mark.parametrize("name", SERVERS)
def test_every_moment_fires_once_under_several_workers(name: str, tmp_path: Path) -> None:
    save_files(PAGES.get(name, SEVERAL_WORKERS), tmp_path)
    with running(SERVERS[name], tmp_path) as server, reading(tmp_path) as ledger:
        server.wait_until((tmp_path / "shop.db").exists, "the database is there")
        server.wait_until(lambda: living_nodes(ledger) == WORKERS, f"{WORKERS} nodes live")
        seen = len(_PRICES.findall(server.output))
        server.wait_until(lambda: len(_PRICES.findall(server.output)) >= seen + 3, "three more moments have fired")

        run_id = post(server)
        server.wait_until(lambda: has_succeeded(ledger.sync.get_run(run_id)), "the enqueued run has succeeded")

        assert server.terminate() == 0, server.output
        times = Counter(_PRICES.findall(server.output))
        assert set(times.values()) == {1}, f"some moments ran more than once: {times}"
        assert living_nodes(ledger) == 0, "a worker was stopped without its node ending"


def test_web_workers_that_enter_no_scheduler_enqueue_for_a_process_beside_them(tmp_path: Path) -> None:
    save_files(FLASK, tmp_path)
    (tmp_path / "gunicorn.conf.py").unlink()
    with running(command_of(FLASK, "gunicorn"), tmp_path) as server, reading(tmp_path) as ledger:
        server.wait_until(lambda: server.output.count("Booting worker") == WORKERS, "all workers are there")
        run_id = post(server)
        assert ledger.sync.get_run(run_id).state == "waiting"
        assert ledger.sync.nodes() == []
        with running("evertick run app:scheduler", tmp_path) as beside:
            beside.wait_until(lambda: has_succeeded(ledger.sync.get_run(run_id)), "the enqueued run has succeeded")
            assert beside.terminate() == 0, beside.output


def test_a_process_with_slots_runs_what_one_without_has_enqueued(tmp_path: Path) -> None:
    save_files(SEVERAL_WORKERS, tmp_path)
    with running("python jobs_apart.py", tmp_path) as enqueuer:
        assert enqueuer.process.wait(30) == 0, enqueuer.output
    command = next(line for line in shell_lines(SEVERAL_WORKERS) if line.endswith("jobs_apart:scheduler"))
    with running(command, tmp_path) as node, reading(tmp_path) as ledger:
        node.wait_until(lambda: ledger.sync.runs(verdicts=["succeeded"]), "the enqueued run has succeeded")
        assert node.terminate() == 0, node.output


def test_a_store_that_was_opened_before_the_fork_is_refused_in_the_words_of_the_page(tmp_path: Path) -> None:
    save_files(SEVERAL_WORKERS, tmp_path)
    page = text_of(SEVERAL_WORKERS)
    command = re.search(r"`(gunicorn --preload [^`]+)`", page)
    message = re.search(r"^evertick\.errors\.Forked: .*?(?=^```)", page, re.MULTILINE | re.DOTALL)
    assert command is not None
    assert message is not None
    with running(f"{command[1]} --bind 127.0.0.1:8000", tmp_path) as server:
        assert server.process.wait(30) != 0
        assert anonymous(message[0]) in anonymous(server.output)


def anonymous(text: str) -> str:
    """In one line, without the number of the process."""
    return re.sub(r"process \d+", "process N", " ".join(text.split()))
