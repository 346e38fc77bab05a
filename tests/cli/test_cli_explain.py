"""`evertick explain`, which needs no database."""

from __future__ import annotations

import json

import pytest


def test_a_cron_expression_is_explained_with_its_next_moments_and_warnings(evertick):
    result = evertick("explain", "30 2 * * mon-fri", "--tz", "Europe/Berlin")
    assert result.exit_code == 0
    text = result.stdout
    assert "In words  At 02:30, Monday to Friday, in Europe/Berlin" in text
    assert "At least  1 day apart" in text
    assert sum(":00+0" in line for line in text.splitlines()) == 5


def test_the_minimum_distance_shown_includes_clock_changes_of_the_next_year(ask):
    explained = ask("explain", "30 2 * * *", "--tz", "Europe/Berlin")
    assert explained["minimum_distance_seconds"] == 23.5 * 3600


def test_a_surprising_expression_gets_a_warning(ask):
    explained = ask("explain", "0 9 31 * 1")
    assert len(explained["warnings"]) == 2
    assert ask("explain", "0 9 31 * 1", "--days", "and")["warnings"] == explained["warnings"][:1]
    assert ask("explain", "30 2 * * *", "--tz", "Europe/Berlin")["warnings"]
    assert ask("explain", "30 4 * * *", "--tz", "Europe/Berlin")["warnings"] == []


@pytest.mark.parametrize("text", ["@every 90s", "every 90s"])
def test_an_interval_is_explained_too(ask, text):
    explained = ask("explain", text)
    assert explained["text"] == "every 90s; tz=UTC"
    assert explained["minimum_distance_seconds"] == 90


def test_a_sentence_is_explained_as_its_rule(ask):
    explained = ask("explain", "weekdays at 18:30", "--tz", "Europe/Berlin")
    assert explained["text"] == "cron 30 18 * * 1-5; tz=Europe/Berlin"
    assert explained["words"] == "At 18:30, Monday to Friday, in Europe/Berlin"
    assert ask("explain", "weekdays at 18:30 in Europe/Berlin")["text"] == explained["text"]


def test_a_one_shot_has_no_minimum_distance(evertick):
    text = evertick("explain", "once 2090-01-31T09:00:00Z").stdout
    assert "2090-01-31 09:00:00Z" in text
    assert "apart" not in text
    assert "never" in evertick("explain", "once 2001-01-31T09:00:00Z").stdout


def test_h_is_spread_by_the_key(ask):
    explained = ask("explain", "H H * * *")
    assert "--key sets another" in explained["notes"][0]
    report, bill = (ask("explain", "H H * * *", "--key", key) for key in ("report", "bill"))
    assert report["upcoming"] != bill["upcoming"]
    assert report["notes"] == []


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["61 * * * *"], "61"),
        (["* * *"], "* * *"),
        ([""], "is not a rule"),
        (["whenever"], "whenever"),
        (["daily at 9"], "'9'"),
        (["daily at 9:00 in UTC", "--tz", "UTC"], "given twice"),
        (["0 0 30 2 *"], "30"),
        (["0 9 * * *", "--tz", "Mars/Olympus"], "Mars/Olympus"),
        (["0 9 * * *", "--dst", "perhaps"], "perhaps"),
        (["0 9 * * *", "--days", "xor"], "xor"),
        (["every 90s", "--dst", "skip"], "dst"),
        (["0 9 * * *; tz=UTC", "--tz", "UTC"], "given twice"),
    ],
)
def test_an_invalid_rule_is_one_sentence_on_stderr(evertick, args, words):
    for more in ([], ["--json"]):
        result = evertick("explain", *args, *more)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("error: ")
        assert words in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_explain_needs_no_database(tmp_path, monkeypatch, evertick):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERTICK_DATABASE", "nonsense")
    assert json.loads(evertick("explain", "@daily", "--json").stdout)["words"]
    assert list(tmp_path.iterdir()) == []
