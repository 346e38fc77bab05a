"""The Django page, followed in a project that Django itself has made."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import ROOT, Block, blocks, shell_lines
from programs import clean_environment, running

from evertick import Scheduler

PAGE = ROOT / "docs/how-to/django.md"
# What a reader types, but a test must not: it fetches packages, goes on for ever, or is what a test below does.
NOT_WHILE_FOLLOWING = ("pip install", "python manage.py run_jobs", "gunicorn", "python manage.py test")
# What the page warns of: something that `ready` starts.
TELLING_CONFIG = """import os
from django.apps import AppConfig


class OrdersConfig(AppConfig):
    name = "orders"

    def ready(self):
        print("ready in", os.getpid(), flush=True)
"""


def manage(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "manage.py", *words],
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def type_in(folder: Path, line: str) -> None:
    """A line of the page in a shell, with the programs of this virtual environment."""
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    subprocess.run(["sh", "-e", "-c", line], cwd=folder, env=clean_environment(PATH=path), check=True, timeout=60)


def follow(block: Block, folder: Path) -> None:
    if block.file is not None:
        block.save(folder)
    elif block.language == "sh":
        for line in block.text.splitlines():
            if not line.startswith(NOT_WHILE_FOLLOWING):
                type_in(folder, line)


@pytest.fixture(scope="module")
def made_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page from its top to its end, block by block, and nothing that it does not show."""
    folder = tmp_path_factory.mktemp("project")
    for block in blocks(PAGE):
        follow(block, folder)
    return folder


def test_every_block_of_the_page_is_a_file_or_something_to_type() -> None:
    assert [block.place for block in blocks(PAGE) if block.file is None and block.language != "sh"] == []


@pytest.fixture
def project(made_project: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made_project, tmp_path / "project"))


@pytest.fixture
def ledger(project: Path) -> Iterator[Scheduler]:
    reader = Scheduler(f"sqlite:///{project / 'jobs.db'}", concurrency=0)
    yield reader
    reader.sync.close()


def pay(port: int) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/orders/1/pay", method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 202


def make_an_order(project: Path) -> None:
    manage(project, "shell", "-c", "from orders.models import Order; Order.objects.create()")


def receipt(project: Path) -> str:
    return manage(project, "shell", "-c", "from orders.models import Order; print(Order.objects.get().receipt)")


def test_the_tests_of_the_page_pass(project: Path) -> None:
    assert "Ran 2 tests" in manage(project, "test")
    assert not (project / "jobs.db").exists(), "a test has opened the real ledger"


def test_the_command_runs_what_a_view_under_the_development_server_has_enqueued(
    project: Path, ledger: Scheduler
) -> None:
    make_an_order(project)
    with running("python manage.py runserver --noreload 8000", project) as server:
        server.wait_until(lambda: "Quit the server" in server.output, "the server listens")
        pay(server.port)
    assert [run.state for run in ledger.sync.runs(task="write_receipt")] == ["waiting"]
    with running("python manage.py run_jobs", project) as node:
        node.wait_until(lambda: "running the jobs of shop; Ctrl-C stops" in node.output, "it says that it runs")
        node.wait_until(lambda: ledger.sync.runs(verdicts=["succeeded"]), "the receipt is written")
        assert node.terminate() == 0, node.output
    assert "Receipt of order 1" in receipt(project)
    assert [schedule.key for schedule in ledger.sync.schedules()] == ["forget_unpaid"]


def test_the_workers_of_gunicorn_run_the_jobs_with_the_hooks_of_the_page(project: Path, ledger: Scheduler) -> None:
    make_an_order(project)
    command = next(line for line in shell_lines(PAGE) if line.startswith("gunicorn"))
    with running(command, project) as server:
        server.wait_until(
            lambda: sum(node.died_at is None for node in ledger.sync.nodes()) == 4, "every worker is a node"
        )
        pay(server.port)
        server.wait_until(lambda: ledger.sync.runs(verdicts=["succeeded"]), "the receipt is written")
        assert server.terminate() == 0, server.output
    assert all(node.died_at is not None for node in ledger.sync.nodes())
    assert "Receipt of order 1" in receipt(project)


def test_ready_runs_in_every_command_and_twice_under_the_development_server(project: Path) -> None:
    """The trap that the page warns of is there; if it goes, the warning may."""
    (project / "orders/apps.py").write_text(TELLING_CONFIG)
    assert manage(project, "check").count("ready in") == 1
    with running("python manage.py runserver 8000", project) as server:
        server.wait_until(lambda: "Quit the server" in server.output, "the server listens")
        assert len(set(re.findall(r"ready in (\d+)", server.output))) == 2
