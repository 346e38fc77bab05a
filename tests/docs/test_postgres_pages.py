"""The pages about PostgreSQL, followed on a real server: each example in a database of its own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import psycopg
import pytest
from click.testing import CliRunner
from pages import ROOT, Block, blocks, shell_lines
from programs import SECONDS_MAX, clean_environment

from evertick import Scheduler
from evertick.cli import cli
from evertick.clock import system_clock
from evertick.store.postgres.location import location_of
from live_runs import every_state

PAGE = ROOT / "docs/how-to/postgresql.md"
TRANSACTIONS = ROOT / "docs/how-to/transactions-on-postgresql.md"
EXAMPLES = [block for page in (PAGE, TRANSACTIONS) for block in blocks(page) if block.language == "python"]
# The exit code of `timeout`.
TIMED_OUT = 124
# What the pages call the database, as a URL and in the words of Django.
ADDRESS = "shop@localhost/shop"
DJANGO = {"NAME": '"shop"', "USER": '"shop"', "HOST": '"localhost"', "PORT": "5432"}


class Database:
    """A database of the server, which stands in for the one on the page."""

    def __init__(self, dsn: str, name: str) -> None:
        self._server = urlsplit(dsn)
        self.name = name
        self.url = self.as_role(self._server.netloc.rpartition("@")[0])

    def as_role(self, role: str) -> str:
        return f"postgresql://{role}@{self._server.hostname}:{self._server.port}/{self.name}"

    def in_place_of_the_pages(self, text: str) -> str:
        text = text.replace(ADDRESS, self.url.partition("://")[2])
        ours = (self.name, self._server.username, self._server.hostname, self._server.port)
        for (key, theirs), value in zip(DJANGO.items(), ours, strict=True):
            text = text.replace(f'"{key}": {theirs}', f'"{key}": {value!r}')
        return text


@pytest.fixture
def database(postgres_dsn: str) -> Iterator[Database]:
    name = f"shop_{system_clock.new_token()[:12]}"
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield Database(postgres_dsn, name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda block: block.place)
def test_every_example_runs(example: Block, database: Database, tmp_path: Path) -> None:
    assert ADDRESS in example.text, "it would run on some other database"
    (tmp_path / "example.py").write_text(database.in_place_of_the_pages(example.text), encoding="utf-8")
    command = [sys.executable, "-W", "error", "example.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=SECONDS_MAX
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_commands_of_the_page_work_in_their_order(database: Database) -> None:
    commands = [line for line in shell_lines(PAGE) if line.startswith("evertick") and ADDRESS in line]
    assert len(commands) == 3
    for command in commands:
        words = shlex.split(database.in_place_of_the_pages(command))[1:]
        result = CliRunner().invoke(cli, words)
        assert result.exit_code == 0, f"{command}\n{result.output}"


def test_the_page_waits_for_every_run_that_has_not_ended(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/evertick.db"
    runs, messages, waiting = [line for line in shell_lines(PAGE) if "sqlite:///evertick.db" in line]
    with every_state(url) as ids:
        live = {run_id for state, run_id in ids.items() if state != "done"}
        shown = _said_by(runs, tmp_path)
        assert live == {run_id for run_id in ids.values() if run_id in shown}
        planned = shown.partition("\nPlanned\n")[2]
        assert ids["waiting"] in planned
        assert ids["blocked"] not in planned
        # The message that dispatches a run is on its way to a queue.
        assert "redis" in _said_by(messages, tmp_path)
        assert _shell(f"timeout 3 sh -c {shlex.quote(waiting)}", tmp_path).returncode == TIMED_OUT
    drained = tmp_path / "drained"
    drained.mkdir()
    work_once(f"sqlite:///{drained}/evertick.db", migrate="auto")
    assert _said_by(waiting, drained) == ""
    assert "app 'default' has no matching runs" in _said_by(runs, drained)


def _shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**clean_environment(), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    words = ["sh", "-c", command]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX)


def _said_by(command: str, folder: Path) -> str:
    done = _shell(command, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_roles_of_the_page_have_the_rights_they_need(database: Database) -> None:
    """One makes the tables, the other works with them and could not make any."""
    owner, worker = f"owner_{database.name}", f"worker_{database.name}"
    owning, working = [block.text for block in blocks(PAGE) if block.language == "sql"]
    owning = owning.replace("DATABASE shop", f"DATABASE {database.name}")
    owning = owning.replace("ROLE shop", f"ROLE {owner}").replace("TO shop", f"TO {owner}")
    working = working.replace("worker", worker)
    with psycopg.connect(database.url, autocommit=True) as connection:
        try:
            connection.execute(owning)
            assert CliRunner().invoke(cli, ["db", "migrate", "--database", database.as_role(owner)]).exit_code == 0
            connection.execute(working)
            work_once(database.as_role(worker))
        finally:
            for role in (worker, owner):
                connection.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def work_once(url: str, migrate: Literal["auto", "check"] = "check") -> None:
    scheduler = Scheduler(url, migrate=migrate, poll_interval="1s")

    @scheduler.task
    def add(one: int, other: int) -> int:
        return one + other

    ended = threading.Event()
    scheduler.on("succeeded", lambda event: ended.set())
    with scheduler:
        run = add.sync.enqueue(1, 2)
        assert ended.wait(SECONDS_MAX)
        assert scheduler.sync.get_run(run.id).result == 3


def test_the_urls_of_the_page_can_be_read() -> None:
    written = [line for block in blocks(PAGE) for line in block.text.splitlines() if line.startswith("postgresql://")]
    tls, pooled = (location_of(url) for url in written)
    assert (tls.ca, tls.cert, tls.key) == ("/etc/shop/ca.crt", "/etc/shop/node.crt", "/etc/shop/node.key")
    assert (pooled.is_pooled, pooled.listening().hosts) == (True, (("db", 5432),))
