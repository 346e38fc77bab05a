"""The page about your own transaction makes files that can give space back, and tells what to do about others."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from pages import ROOT, Block, blocks, text_of
from programs import clean_environment

from evertick import Scheduler
from evertick.cli import cli

PAGE = ROOT / "docs/how-to/use-your-own-transaction.md"
INCREMENTAL = 2
MAKES_TABLES = "CREATE TABLE orders (id INTEGER PRIMARY KEY, paid INTEGER)"


def auto_vacuum(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("PRAGMA auto_vacuum").fetchone()[0])


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement)


def open_ledger(path: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{path}", concurrency=0)
    scheduler.sync.runs()
    scheduler.sync.close()


@pytest.mark.parametrize("example", [each for each in blocks(PAGE) if MAKES_TABLES in each.text], ids=lambda b: b.place)
def test_the_examples_make_files_that_can_give_space_back(example: Block, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", example.text]
    subprocess.run(command, cwd=tmp_path, env=clean_environment(), check=True, timeout=30)
    assert auto_vacuum(tmp_path / "shop.db") == INCREMENTAL


def test_a_file_of_ones_own_is_changed_by_the_command_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "shop.db"
    execute(path, MAKES_TABLES)
    open_ledger(path)
    refused = CliRunner().invoke(cli, ["db", "vacuum", "--database", "sqlite:///shop.db"])
    assert refused.exit_code != 0
    assert "without auto_vacuum" in refused.output
    command = "evertick db vacuum --full --yes --database sqlite:///shop.db"
    assert f"`{command}`" in text_of(PAGE)
    assert CliRunner().invoke(cli, command.split()[1:]).exit_code == 0
    assert auto_vacuum(path) == INCREMENTAL


def test_a_file_whose_first_statement_is_the_pragma_of_the_page_needs_no_change(tmp_path: Path) -> None:
    pragma = "PRAGMA auto_vacuum = INCREMENTAL"
    assert f"`{pragma}`" in text_of(PAGE)
    execute(tmp_path / "shop.db", pragma, MAKES_TABLES)
    open_ledger(tmp_path / "shop.db")
    assert auto_vacuum(tmp_path / "shop.db") == INCREMENTAL
