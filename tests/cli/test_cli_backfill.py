"""The command backfill: counting, making, and what its exit code says."""

from __future__ import annotations

import re
import signal
import time

import pytest

from evertick import Scheduler


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A node that carries out what is backfilled; jobs of the key `bad` fail."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    monkeypatch.setenv("EVERTICK_DATABASE", url)
    scheduler = Scheduler(url, node_name="shop@host")

    @scheduler.cron("0 9 * * *", key="good")
    def good(day: str = "") -> str:
        return day

    @scheduler.cron("0 9 * * *", key="bad")
    def bad() -> None:
        raise ValueError("no paper")

    with scheduler:
        yield scheduler


def test_a_dry_run_counts_and_makes_nothing(node, evertick, ask):
    result = evertick("backfill", "good", "--from", "72h", "--dry-run")
    assert (result.exit_code, result.stdout) == (
        0,
        "0 of 3 moments of good have a run already; 3 would be made\n",
    )
    counted = ask("backfill", "good", "--from", "72h", "--dry-run")
    assert (counted["moments"], counted["to_make"], counted["made"], counted["is_dry_run"]) == (3, 3, 0, True)
    assert ask("history", "good") == []


def test_moments_of_the_past_get_their_runs_once(node, evertick, ask):
    made = ask("backfill", "good", "--from", "72h", "--args", '{"day": "x"}', "--overlap", "allow")
    assert (made["made"], made["done"], made["failed"], made["is_over"]) == (3, 3, 0, True)
    rows = ask("history", "good")
    assert [(row["cause"], row["verdict"], row["result"]) for row in rows] == [("backfill", "succeeded", "x")] * 3
    again = evertick("backfill", "good", "--from", "72h")
    assert (again.exit_code, again.stdout) == (0, "3 of 3 moments of good have a run already; 0 were made\n")


def test_a_backfill_of_which_some_failed_has_exit_code_1(node, evertick):
    result = evertick("backfill", "bad", "--from", "48h")
    assert result.exit_code == 1
    assert re.search(r"; 2 were made, 2 of them failed$", result.stdout)


def test_without_a_node_it_says_at_once_that_it_waits_and_after_ctrl_c_how_far_it_came(tmp_path, start):
    url = f"sqlite:///{tmp_path}/jobs.db"
    scheduler = Scheduler(url, concurrency=0)
    scheduler.sync.add(key="lonely", when="0 9 * * *", task="nobody_has_it")
    scheduler.sync.close()
    for made in (1, 0):  # asked again, it waits for the run that is there
        process = start("backfill", "lonely", "--from", "72h", env={"EVERTICK_DATABASE": url})
        assert process.stderr.readline() == (
            "note: no live node knows the task 'nobody_has_it' and works on the queue 'default'; "
            "this waits until one is started, Ctrl-C ends it\n"
        )
        if made:
            _wait_for_run(url)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate()
        assert (process.returncode, output) == (130, "")
        assert re.fullmatch(
            rf"made {made} of {2 + made} runs(, 1 of them not ended yet)?; call it again to continue", errors.strip()
        )


def _wait_for_run(url: str) -> None:
    scheduler, deadline = Scheduler(url, concurrency=0), time.monotonic() + 30
    while not scheduler.sync.runs("lonely"):
        assert time.monotonic() < deadline, "no run was made"
    scheduler.sync.close()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--from", "1h", "--to", "2h"], "swap them"),
        (["--from", "72h", "--limit", "2"], "more than the limit of 2"),
        (["--from", "2020-01-01T00:00:00Z", "--to", "2020-01-02T00:00:00Z"], "older than the retention of history"),
        ([], "--from"),
    ],
)
def test_what_cannot_be_backfilled_is_refused_before_anything_is_made(node, evertick, ask, args, words):
    result = evertick("backfill", "good", *args)
    assert result.exit_code == 2
    assert words in result.stderr
    assert ask("history", "good") == []
