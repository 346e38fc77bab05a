"""The command line on PostgreSQL: the same commands, and errors about server, privileges and driver."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import Result

from evertick import Scheduler
from evertick.cli.command import db
from servers.postgres import dsn_with, other_user, own_server

SECRET = "hunter2"
PROGRAM = """
from evertick import Scheduler
scheduler = Scheduler(stop_timeout="5s")
checking = Scheduler(migrate="check")

@scheduler.every("100ms")
async def tick():
    print("ticked", flush=True)
"""

Evertick = Callable[..., Result]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def url(empty_postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("EVERTICK_DATABASE", empty_postgres_url)
    return empty_postgres_url


@pytest.fixture
def used(url: str) -> Iterator[str]:
    """A store with a succeeded run, a failed run, and a live node."""
    scheduler = Scheduler(url, node_name="shop@host")
    ended = threading.Semaphore(0)

    @scheduler.every("1h", key="report")
    def make_report() -> int:
        return 1

    @scheduler.every("1h", key="print")
    def print_it() -> None:
        raise ValueError("no paper")

    for kind in ("succeeded", "failed"):
        scheduler.on(kind, lambda event: ended.release())
    with scheduler:
        for key in ("report", "print"):
            scheduler.sync.trigger(key)
            assert ended.acquire(timeout=30)
        yield url


# --- maintenance ----------------------------------------------------------------------------------------------------


def output_of(start: Start, *words: str, **options: Any) -> tuple[int, str]:
    """The exit code and the output of a command in its own process."""
    process = start(*words, **options)
    out, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors
    return process.returncode, out + errors


def test_a_schema_is_migrated_checked_and_measured(start: Start, url: str) -> None:
    on_it = {"env": {"EVERTICK_DATABASE": url}}
    code, before = output_of(start, "db", "status", **on_it)
    assert (code, "no tables yet" in before) == (0, True)
    code, lacking = output_of(start, "db", "check", **on_it)
    assert (code, "`evertick db migrate --database URL`" in lacking) == (1, True)
    assert output_of(start, "db", "migrate", **on_it)[1].startswith("applied 0001_ledger\n")
    assert output_of(start, "db", "migrate", **on_it)[1].endswith("; nothing was missing\n")
    code, checked = output_of(start, "db", "check", **on_it)
    assert (code, "no problems found" in checked) == (0, True)
    assert "Version   1" in output_of(start, "db", "status", **on_it)[1]


def test_the_version_of_the_server_is_shown_as_the_server_reports_it(ask: Any, url: str, postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn) as connection:
        version = connection.execute("SHOW server_version").fetchone()
    assert version is not None
    assert ask("db", "status")["engine"] == f"PostgreSQL {version[0].split()[0]}"


def test_a_node_can_migrate_without_running_anything(start: Start, url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    words = ("run", "shop:scheduler", "--migrate-and-exit")
    code, first = output_of(start, *words, env={"EVERTICK_DATABASE": url})
    assert (code, first.startswith("applied 0001_ledger\n")) == (0, True)
    code, second = output_of(start, *words, env={"EVERTICK_DATABASE": url})
    assert (code, second.endswith("is at version 1; nothing was missing\n")) == (0, True)
    assert "ticked" not in first + second


def test_a_node_that_only_checks_migrations_refuses_an_old_schema_with_the_fix(
    start: Start, url: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    code, refusal = output_of(start, "run", "shop:checking", env={"EVERTICK_DATABASE": url})
    assert code == 1
    assert "lacks the migrations 0001_ledger; apply them with `evertick db migrate --database URL`" in refusal


@pytest.mark.parametrize("full", [[], ["--full", "--yes"]])
def test_a_vacuum_is_left_to_the_server(evertick: Evertick, url: str, full: list[str]) -> None:
    assert evertick("db", "migrate").exit_code == 0
    refused = evertick("db", "vacuum", *full)
    assert refused.exit_code == 1
    assert "autovacuum" in refused.stderr or "VACUUM FULL" in refused.stderr


def test_a_refused_vacuum_shows_no_progress_before(
    evertick: Evertick, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evertick("db", "migrate").exit_code == 0
    drawn: list[str] = []
    monkeypatch.setattr(db, "progress", lambda title, **_: drawn.append(title))
    assert "autovacuum" in evertick("db", "vacuum").stderr
    assert "VACUUM FULL" in evertick("db", "vacuum", "--full", "--yes").stderr
    assert drawn == []


def test_a_feed_delayed_by_an_open_transaction_is_reported(evertick: Evertick, url: str, postgres_dsn: str) -> None:
    assert evertick("db", "migrate").exit_code == 0
    assert evertick("events", "--keep", "1d").exit_code == 0
    with psycopg.connect(postgres_dsn, application_name="report") as connection:
        connection.execute("SELECT pg_current_xact_id()")
        assert evertick("add", "report", "--when", "@daily", "--task", "make_report").exit_code == 0
        end = time.monotonic() + 30
        while "behind" not in (message := evertick("events").stderr):
            assert time.monotonic() < end, message
            time.sleep(0.2)
        connection.rollback()
    assert "note: readers of the feed are" in message
    assert "is open, and events written after its start can be read" in message
    assert "of that kind" not in message


def test_the_error_about_a_connection_limit_of_a_role_has_the_command_to_raise_it(
    evertick: Evertick, url: str, postgres_dsn: str
) -> None:
    role = f"few_{url.rpartition('=')[2]}"
    assert evertick("db", "migrate").exit_code == 0
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 0")
        try:
            message = refusal(evertick, dsn_with(url, user=role))
        finally:
            connection.execute(f"DROP ROLE {role}")
    assert f"lets the user {role} have no more connections" in message
    assert "ALTER ROLE … CONNECTION LIMIT" in message
    assert "max_connections" not in message


# --- other commands --------------------------------------------------------------------------------------------------

READING = [
    ["list"],
    ["show", "report"],
    ["runs"],
    ["history"],
    ["failed"],
    ["why", "report"],
    ["logs", "report"],
    ["preview"],
    ["forecast"],
    ["calendar", "list"],
    ["top", "--once"],
    ["nodes"],
    ["ha"],
    ["db", "check", "--quick"],
]
CHANGING = [
    ["add", "more", "--task", "make_report", "--when", "every 5m"],
    ["update", "more", "--when", "every 6m"],
    ["pause", "more", "--note", "for now"],
    ["resume", "more"],
    ["skip-next", "more"],
    ["undo", "more"],
    ["run-early", "more"],
    ["trigger", "report"],
    ["rerun", "--failed", "--yes"],
    ["backfill", "report", "--from", "2h", "--dry-run"],
    ["remove", "more", "--yes"],
]


def test_every_command_works_as_on_a_file(evertick: Evertick, used: str) -> None:
    for words in [*READING, *CHANGING, *READING]:
        result = evertick(*words)
        assert result.exit_code == 0, (words, result.output)


def test_the_doctor_finds_only_the_failed_run(evertick: Evertick, used: str) -> None:
    result = evertick("doctor")
    # The fixture ran a failing job.
    assert result.exit_code == 1
    assert result.output.startswith("warning  1 run failed in the last hour: ")
    assert result.output.endswith("1 warning\n")


# --- failures --------------------------------------------------------------------------------------------------------


def refusal(evertick: Evertick, database: str, *, code: int = 1) -> str:
    """The errors of two commands for an unusable store, in time and without the password."""
    began = time.monotonic()
    results = [evertick(*words, "--database", database) for words in (["list"], ["db", "status"])]
    assert time.monotonic() - began < 20
    for result in results:
        assert result.exit_code == code, result.output
        assert isinstance(result.exception, SystemExit)
        assert SECRET not in result.output
    return results[0].stderr


def test_a_stopped_server_is_reported_as_unreachable(evertick: Evertick) -> None:
    assert "cannot be reached" in refusal(evertick, f"postgresql://ann:{SECRET}@127.0.0.1:1/shop")


def test_a_server_that_never_answers_times_out(evertick: Evertick) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://ann:{SECRET}@127.0.0.1:{silent.getsockname()[1]}/shop?connect_timeout=500ms"
        assert "does not answer in time" in refusal(evertick, url)


def test_a_missing_database_on_a_server_is_named(evertick: Evertick, postgres_dsn: str) -> None:
    assert "database nowhere" in refusal(evertick, dsn_with(postgres_dsn, database="nowhere"))


def test_an_unknown_parameter_of_the_url_is_named(evertick: Evertick) -> None:
    assert "'colour'" in refusal(evertick, f"postgresql://ann:{SECRET}@h/shop?colour=red", code=2)


@pytest.fixture(scope="module")
def strict_dsn() -> Iterator[str]:
    """A server that rejects Ann's password."""
    with tempfile.TemporaryDirectory(prefix="evhba") as folder:
        rules = Path(folder) / "hba.conf"
        rules.write_text("host all ann 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n")
        # The server reads it as another user if this one is root.
        if (user := other_user()) is not None:
            for path in (folder, rules):
                os.chown(path, user, -1)
        with own_server(hba_file=str(rules)) as server:
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                connection.execute("CREATE ROLE ann LOGIN PASSWORD 'another'")
            yield dsn_with(server.dsn, user=f"ann:{SECRET}")


def test_a_wrong_password_is_reported_and_not_shown(evertick: Evertick, strict_dsn: str) -> None:
    refused = refusal(evertick, strict_dsn)
    assert "does not let this user in (" in refused
    assert "; check user, password" in refused


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ("DROP TABLE {schema}.gaps", "the table gaps is missing"),
        ("DROP INDEX {schema}.runs_claim", "the index runs_claim is missing"),
        ("DELETE FROM {schema}.meta", "its table meta is empty"),
        ("DROP TABLE {schema}.migrations", "its list of migrations is missing"),
    ],
)
def test_a_check_reports_the_problem_even_if_the_rest_is_unreadable(
    evertick: Evertick, url: str, postgres_dsn: str, damage: str, expected: str
) -> None:
    assert evertick("db", "migrate").exit_code == 0
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(damage.format(schema=url.rpartition("=")[2]))  # type: ignore[arg-type]
    checked = evertick("db", "check")
    assert (checked.exit_code, checked.stderr) == (1, "")
    assert expected in " ".join(checked.stdout.split())
    as_json = evertick("db", "check", "--json")
    assert as_json.exit_code == 1
    assert expected in json.loads(as_json.stdout)["problems"][0]


def test_missing_privileges_are_reported(evertick: Evertick, url: str, postgres_dsn: str) -> None:
    role = f"poor_{url.rpartition('=')[2]}"
    assert evertick("db", "migrate").exit_code == 0
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN")
        try:
            poor = dsn_with(url, user=f"{role}:{SECRET}")
            [database] = connection.execute("SELECT current_database()").fetchone() or ()
            refused = refusal(evertick, poor)
            assert f"does not give the user {role} the rights it needs (" in refused
            assert "; see 'Roles and rights' in the guide to PostgreSQL" in refused
            migrating = evertick("db", "migrate", "--database", f"{poor}_more")
            assert migrating.exit_code == 1
            assert f'GRANT CREATE ON DATABASE "{database}" TO "{role}"' in migrating.stderr
        finally:
            connection.execute(f"DROP ROLE {role}")


def test_without_asyncpg_the_error_names_the_package_to_install() -> None:
    program = "import sys; sys.modules['asyncpg'] = None; from evertick.cli import main; main()"
    command = [sys.executable, "-c", program, "list", "--database", f"postgresql://ann:{SECRET}@h/shop"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "pip install 'evertick[postgres]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert SECRET not in done.stderr
