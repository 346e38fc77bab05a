"""Known drivers, specifications from user input, and their error messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from evertick import InvalidSetting, Secret
from evertick.driver import registry
from evertick.driver.registry import check_spec, known_drivers, spec_class, spec_from
from evertick.driver.spec import Spec

MODULE = """
from typing import ClassVar
from evertick.driver.spec import Spec

class Fax(Spec):
    driver: ClassVar[str] = "fax"
    short: ClassVar[str] = "number"
    number: str

class Telex(Spec):
    driver: ClassVar[str] = "morse"

no_spec = 7
"""
ENTRIES = """
[evertick.drivers]
fax = office_drivers:Fax
telex = office_drivers:Telex
number = office_drivers:no_spec
gone = office_drivers:Missing
away = no_such_module_of_drivers:Fax
"""


class Letter(Spec, frozen=True):
    driver: ClassVar[str] = "letter"
    to: str
    copies: int = 1
    headers: dict[str, str | Secret] = msgspec.field(default_factory=dict)

    def check(self, task: str) -> None:
        if self.copies > 100:
            raise InvalidSetting(f"task {task!r}: letter: copies: {self.copies} is more than 100")


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that adds drivers."""
    (tmp_path / "office_drivers.py").write_text(MODULE)
    about = tmp_path / "office_drivers-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: office-drivers\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._BUILT_IN, "letter", f"{__name__}:Letter")


def test_the_built_in_drivers_are_known() -> None:
    assert known_drivers()[:6] == ("function", "process", "shell", "http", "redis", "nats")


@pytest.mark.usefixtures("office")
def test_an_installed_package_can_add_drivers() -> None:
    assert "fax" in known_drivers()
    made: Any = spec_from("fax", "030-1234")
    assert (made.driver, made.number) == ("fax", "030-1234")


@pytest.mark.usefixtures("office")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("telex", "its entry point names the Spec of driver 'morse'; give"),
        ("number", "its entry point names 7, which is not a Spec class; name a subclass"),
        ("gone", "'gone' (office_drivers:Missing) cannot be loaded"),
        ("away", "'away' (no_such_module_of_drivers:Fax) cannot be loaded: No module named"),
    ],
)
def test_a_package_whose_entry_point_is_no_driver_is_named(name: str, expected: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        spec_class(name)
    assert expected in str(refused.value)


@pytest.mark.usefixtures("office")
def test_an_unknown_driver_gets_a_suggestion_and_the_known_ones() -> None:
    with pytest.raises(InvalidSetting) as refused:
        spec_class("shel")
    assert str(refused.value).startswith(
        "driver: driver 'shel' is not installed; did you mean 'shell'? installed are function, process, shell, http, "
        "redis, nats, "
    )
    assert "fax" in str(refused.value)


def test_a_function_has_no_specification() -> None:
    with pytest.raises(
        InvalidSetting, match=r"'process' calls Python functions and has no specification; .* @scheduler.task"
    ):
        spec_class("process")


@pytest.mark.usefixtures("letters")
def test_a_table_becomes_a_specification() -> None:
    made = spec_from("letter", {"to": "Ada", "headers": {"Stamp": {"secret": "STAMP"}, "From": "Bob"}})
    assert made == Letter(to="Ada", headers={"Stamp": Secret("STAMP"), "From": "Bob"})


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("Ada", "letter: 'Ada' is not a table; write a table with its fields: to, copies, headers"),
        ({"too": "Ada"}, "letter: no such field 'too'; it is called 'to'"),
        ({"to": "Ada", "colour": 1}, "letter: no such field 'colour'; the fields are to, copies, headers"),
        ({}, "letter: to is missing; add it"),
        ({"to": 7}, "letter: to: 7 is not text; write it in quotes"),
        (
            {"to": "Ada", "headers": {"A": {"secrt": "B"}}},
            "letter: headers.A: no such field 'secrt'; it is called 'secret'",
        ),
    ],
)
def test_an_invalid_field_is_named_with_its_value(value: object, expected: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        spec_from("letter", value)
    assert str(refused.value) == expected


def test_a_specification_from_code_is_checked_as_strictly() -> None:
    with pytest.raises(InvalidSetting, match=r"task 'post': letter: to: 7 is not text; write it in quotes"):
        check_spec("post", Letter(to=7))  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match=r"task 'post': letter: copies: 101 is more than 100"):
        check_spec("post", Letter(to="Ada", copies=101))
    with pytest.raises(InvalidSetting, match=r"task 'post': letter: it holds a value that is not plain data"):
        check_spec("post", Letter(to=object()))  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match=r"task 'post': 'backup.sh' is not a specification; pass one like Shell"):
        check_spec("post", "backup.sh")


def test_a_specification_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Letter(to="Ada").to = "Bob"  # type: ignore[misc]
    assert msgspec.structs.replace(Letter(to="Ada"), copies=2).copies == 2
