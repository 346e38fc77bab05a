"""The parameters of our statements, as some releases of Python want them; also where another one runs the tests."""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import closing

import pytest

from evertick.store.sqlite import connection

ASK, PUT = "SELECT ?2 AS second, ?1 AS first, ?2 AS again", "INSERT INTO t (a, b) VALUES (?1, ?2)"


@pytest.fixture(autouse=True)
def particular_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_WANTS_NAMES", True)
    monkeypatch.setattr(connection, "_OUR_STATEMENTS", frozenset({ASK, PUT}))


@pytest.fixture(params=["ours", "of the user"])
def db(request: pytest.FixtureRequest) -> Iterator[sqlite3.Connection]:
    factory = connection.NumberedConnection if request.param == "ours" else sqlite3.Connection
    with closing(sqlite3.connect(":memory:", factory=factory)) as made:
        yield made if request.param == "ours" else connection.numbered(made)


def test_they_are_taken_in_their_order_however_often_one_is_used(db: sqlite3.Connection) -> None:
    assert db.execute(ASK, ("one", "two")).fetchone() == ("two", "one", "two")
    db.execute("CREATE TABLE t (a, b)")
    db.executemany(PUT, [(1, 2), (3, 4)])
    assert db.execute("SELECT * FROM t").fetchall() == [(1, 2), (3, 4)]
    assert db.in_transaction


def test_statements_of_others_are_left_alone(db: sqlite3.Connection) -> None:
    assert db.execute("SELECT ?, ?", (1, 2)).fetchone() == (1, 2)
    assert db.execute("SELECT :name", {"name": 3}).fetchone() == (3,)


def test_what_has_its_names_keeps_them(db: sqlite3.Connection) -> None:
    """A connection of ours may come back as one of the user's."""
    assert connection.numbered(db).execute(ASK, ("one", "two")).fetchone() == ("two", "one", "two")


def test_the_python_at_hand_has_nothing_to_say_against_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_WANTS_NAMES", connection._wants_names())
    with closing(sqlite3.connect(":memory:", factory=connection.NumberedConnection)) as db, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert db.execute(ASK, ("one", "two")).fetchone() == ("two", "one", "two")
