"""Settings: defaults, allowed values, and error messages."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from evertick import InvalidDuration, InvalidKey, InvalidSetting, Scheduler
from evertick.definition.settings import DATABASE_VARIABLE, Settings, check_key, check_labels
from evertick.when.moment import DAY, MINUTE, SECOND


def made(url: str | None = "sqlite://", **options: Any) -> Settings:
    return Scheduler(url, **{"node_name": "node", **options}).settings


def test_the_defaults_are_those_of_the_reference() -> None:
    assert made() == Settings(
        url="sqlite://",
        app="default",
        node_name="node",
        concurrency=50,
        queues=("default",),
        tz="UTC",
        poll_interval=15 * SECOND,
        lease=15 * SECOND,
        stop_timeout=30 * SECOND,
        migrate="auto",
        retention=90 * DAY,
        keep_per_schedule=None,
        stall_limit=15 * MINUTE,
        batch_size=1_000,
        start_timeout=30 * SECOND,
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"timezone": "Europe/Berlin"}, "timezone: no such setting; it is called tz: Scheduler(tz='Europe/Berlin')"),
        (
            {"database": "sqlite:///x.db"},
            "database: no such setting; it is called url: Scheduler(url='sqlite:///x.db')",
        ),
        ({"db": "sqlite://"}, "db: no such setting; it is called url: Scheduler(url='sqlite://')"),
        ({"max_workers": 4}, "max_workers: no such setting; it is called concurrency: Scheduler(concurrency=4)"),
        (
            {"stop_timout": "1s"},
            "stop_timout: no such setting; it is called stop_timeout: Scheduler(stop_timeout='1s')",
        ),
        ({"colour": 7}, "colour: no such setting; there are url, app, node_name, concurrency, "),
    ],
)
def test_a_misnamed_setting_is_refused_with_the_correct_name(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        Scheduler(**given)
    assert str(refused.value).startswith(expected)


def test_a_node_sends_five_heartbeats_per_lease() -> None:
    assert made().beat == 3 * SECOND


def test_the_url_comes_from_the_argument_then_the_environment_then_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATABASE_VARIABLE, raising=False)
    assert made(None).url == "sqlite:///evertick.db"
    monkeypatch.setenv(DATABASE_VARIABLE, "sqlite:////var/jobs.db")
    assert made(None).url == "sqlite:////var/jobs.db"
    assert made("sqlite://").url == "sqlite://"
    monkeypatch.setenv(DATABASE_VARIABLE, "")
    assert made(None).url == "sqlite:///evertick.db"


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("jobs.db", "sqlite:///jobs.db"),
        ("./data/jobs.db", "sqlite:///data/jobs.db"),
        ("/var/lib/jobs.db", "sqlite:////var/lib/jobs.db"),
        (Path("data/jobs.db"), "sqlite:///data/jobs.db"),
        ("sqlite://jobs.db", "sqlite:///jobs.db"),
        ("sqlite:/jobs.db", "sqlite:///jobs.db"),
        ("sqlite:jobs.db", "sqlite:///jobs.db"),
        (":memory:", "sqlite://"),
        ("sqlite:///:memory:", "sqlite://"),
        ("sqlite:///", "sqlite:///evertick.db"),
        ("", "sqlite:///evertick.db"),
        (5, "sqlite:///evertick.db"),
        ("db.example.org:5432/shop", "postgresql://user:password@host:5432/database"),
        ("host=localhost dbname=shop", "postgresql://user:password@host:5432/database"),
        ("postgres:shop", "postgresql://user:password@host:5432/database"),
    ],
)
def test_an_invalid_url_is_refused_with_the_likely_correct_one(url: Any, meant: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        made(url)
    assert str(refused.value).endswith(f"is not a database URL; write it like {meant!r}")


def test_a_url_with_control_characters_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"url: 'sqlite:///a\\x00b' is not a database URL: it is longer than"):
        made("sqlite:///a\x00b")


def test_durations_can_be_text_numbers_or_timedeltas() -> None:
    assert made(lease="1m").lease == made(lease=60).lease == made(lease=timedelta(minutes=1)).lease == MINUTE


def test_a_zone_can_be_a_name_or_a_zoneinfo() -> None:
    assert made(tz="Europe/Berlin").tz == made(tz=ZoneInfo("Europe/Berlin")).tz == "Europe/Berlin"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("migrate", "yes", "migrate: 'yes' is neither 'auto' (apply what is missing) nor 'check' (refuse to)"),
        ("queues", "mail", "queues: 'mail' is one text; pass a list of names, e.g. queues=['mail']"),
        ("concurrency", -1, "concurrency: -1 must be a whole number from 0 to 10000"),
        ("concurrency", True, "concurrency: True must be a whole number from 0 to 10000"),
        ("concurrency", 2.5, "concurrency: 2.5 must be a whole number from 0 to 10000"),
        ("keep_per_schedule", 0, "keep_per_schedule: 0 must be a whole number from 1 to 1000000000"),
        ("batch_size", 0, "batch_size: 0 must be a whole number from 1 to 10000"),
        ("batch_size", 10_001, "batch_size: 10001 must be a whole number from 1 to 10000"),
        ("lease", "10ms", "lease: '10ms' must be between 1 s and 86400 s"),
        ("poll_interval", 0, "poll_interval: 0 must be between 0.01 s and 86400 s"),
        ("stall_limit", "1s", "stall_limit: '1s' must be between 10 s and 86400 s"),
        ("retention", 0, "retention: 0 must be between 1 s and 3.1536e+09 s"),
    ],
)
def test_an_invalid_setting_is_refused_with_its_value_and_the_fix(option: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        made(**{option: value})
    assert str(refused.value) == message


def test_a_zone_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"tz: .*Mars/Base"):
        made(tz="Mars/Base")


def test_an_invalid_duration_is_refused_with_the_name_of_the_setting() -> None:
    with pytest.raises(InvalidDuration, match="lease: 'long' is not a duration"):
        made(lease="long")


def test_a_stop_time_of_zero_is_allowed() -> None:
    assert made(stop_timeout=0).stop_timeout == 0


# --- keys and labels


@pytest.mark.parametrize("key", ["a", "nightly report", "données/été", "x" * 200, "a@b:c.d-e_f"])
def test_a_key_can_have_printable_characters(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("", "must have 1 to 200 characters, not 0"),
        ("x" * 201, "must have 1 to 200 characters, not 201"),
        (" a", "must not begin or end with space"),
        ("a\n", "must not begin or end with space"),
        ("a\tb", "nor hold ';' or control characters"),
        ("a;b", "nor hold ';' or control characters"),
        ("a\x00b", "nor hold ';' or control characters"),
        ("\ud800", "must not hold surrogates; decode its bytes"),
        (7, "key: 7 is not text"),
        (None, "key: None is not text; pass a str"),
    ],
)
def test_a_key_that_cannot_be_used_on_a_command_line_is_refused(key: Any, words: str) -> None:
    with pytest.raises(InvalidKey) as refused:
        check_key(key)
    assert words in str(refused.value)


def test_the_error_about_a_key_names_its_owner() -> None:
    with pytest.raises(InvalidKey, match=r"^queue: 'a;b' must not"):
        made(queues=["a;b"])


def test_labels_map_names_to_text() -> None:
    assert check_labels({"team": "data"}) == {"team": "data"}


@pytest.mark.parametrize(
    "labels", [5, ["a"], {"a": 1}, {"a": "x" * 201}, {"a": "\ud800"}, {str(n): "" for n in range(51)}]
)
def test_invalid_labels_are_refused(labels: Any) -> None:
    with pytest.raises(InvalidSetting, match="labels: "):
        check_labels(labels)


def test_the_name_of_a_label_must_be_a_valid_key() -> None:
    with pytest.raises(InvalidKey, match="label: "):
        check_labels({"a;b": "c"})


@pytest.mark.parametrize(
    ("parameter", "text"), [("pooler=pgbouncer", "pooler="), ("pool_size=abc", "pool_size="), ("shema=s", "shema")]
)
def test_an_invalid_parameter_of_the_url_is_refused_at_the_declaration(parameter: str, text: str) -> None:
    with pytest.raises(InvalidSetting, match=text):
        Scheduler(f"postgresql://shop@localhost/shop?{parameter}")
