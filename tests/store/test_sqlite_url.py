"""The URL of a SQLite store says where it is and how it is used; what cannot be is refused by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from evertick.clock import system_clock
from evertick.errors import InvalidSetting
from evertick.store.sqlite import SqliteStore
from evertick.store.sqlite.location import location_of
from evertick.store.url import open_store


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite://", None),
        ("sqlite:///jobs.db", "jobs.db"),
        ("sqlite:////var/lib/jobs.db", "/var/lib/jobs.db"),
        ("sqlite:////var/my%20jobs.db?synchronous=normal", "/var/my jobs.db"),
    ],
)
def test_a_url_names_a_file_or_memory(url: str, path: str | None) -> None:
    assert location_of(url).path == path


def test_parameters_say_how_the_file_is_used() -> None:
    where = location_of("sqlite:///x.db?synchronous=normal&busy_timeout=250ms")
    assert (where.synchronous, where.busy_timeout_ms) == ("NORMAL", 250)
    assert location_of("sqlite:///x.db").synchronous == "FULL"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite:///x.db?sync=full", "'sync'"),
        ("sqlite:///x.db?synchronous=off", "'off'"),
        ("sqlite:///x.db?busy_timeout=soon", "'soon'"),
        ("sqlite://host/x.db", "sqlite:///relative.db"),
        ("sqlite:///", "names no file"),
    ],
)
def test_an_invalid_url_is_refused_with_the_offending_part(url: str, said: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        SqliteStore(url, clock=system_clock)
    assert said in str(refused.value)


def test_the_scheme_finds_the_store() -> None:
    store = open_store("sqlite://", clock=system_clock, is_inline=True)
    assert isinstance(store, SqliteStore)


def test_an_unknown_scheme_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidSetting, match=r"'mongodb'.*sqlite"):
        open_store("mongodb://user:secret@host/x", clock=system_clock)


def test_a_url_without_a_scheme_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="scheme"):
        open_store("jobs.db", clock=system_clock)


def test_sqlite_is_found_without_a_search_of_installed_packages(tmp_path: Path) -> None:
    script = (
        "from importlib import metadata\n"
        "def search(**_): raise AssertionError('searched')\n"
        "metadata.entry_points = search\n"
        "from evertick.clock import system_clock\n"
        "from evertick.store.url import open_store\n"
        "open_store('sqlite://', clock=system_clock)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)


def test_a_file_named_like_the_memory_of_others_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="write sqlite:// for a store in memory"):
        open_store("sqlite:///:memory:", clock=system_clock)
