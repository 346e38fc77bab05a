"""Arguments: typed by the signature, stored as JSON, refused if they do not fit."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest

from evertick import Context, InvalidArguments
from evertick.job.arguments import ARGUMENTS_MAX_BYTES, Signature


class Color(enum.Enum):
    RED = "red"


class Point(msgspec.Struct):
    x: int
    y: int = 0


@dataclasses.dataclass
class Person:
    name: str
    born: date | None = None


class Plain:
    pass


@dataclasses.dataclass
class Moody:
    n: int

    def __post_init__(self) -> None:
        if self.n == 13:
            raise RuntimeError("thirteen brings bad luck")


def there_and_back(function: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    signature = Signature(function, "job")
    return signature.decode(signature.encode(args, kwargs))


def test_arguments_are_decoded_to_their_annotated_types() -> None:
    def job(
        ident: UUID, when: datetime, day: date, price: Decimal, wait: timedelta, pair: tuple[int, str], color: Color
    ) -> None: ...

    given = {
        "ident": UUID(int=5),
        "when": datetime(2026, 1, 1, 12, tzinfo=UTC),
        "day": date(2026, 1, 1),
        "price": Decimal("1.10"),
        "wait": timedelta(seconds=90),
        "pair": (1, "a"),
        "color": Color.RED,
    }
    assert there_and_back(job, **given) == given


def test_structs_and_dataclasses_are_decoded_to_their_own_types() -> None:
    def job(point: Point, people: list[Person]) -> None: ...

    people = [Person("Ada", date(1815, 12, 10)), Person("Bo")]
    assert there_and_back(job, Point(1, 2), people=people) == {"point": Point(1, 2), "people": people}


def test_positional_arguments_are_kept_by_name() -> None:
    def job(a: int, b: int = 2) -> None: ...

    assert Signature(job, "job").encode((1,), {}) == b'{"a":1}'
    assert there_and_back(job, 1) == {"a": 1, "b": 2}


def test_defaults_come_from_the_code_that_runs_the_job() -> None:
    def before(a: int = 1) -> None: ...

    def after(a: int = 2) -> None: ...

    kept = Signature(before, "job").encode((), {})
    assert Signature(after, "job").decode(kept) == {"a": 2}


def test_a_default_need_not_be_json() -> None:
    nothing = object()

    def job(a: Any = nothing) -> None: ...

    assert there_and_back(job)["a"] is nothing


def test_extra_keywords_are_passed_on() -> None:
    def job(a: int, **others: Any) -> None: ...

    assert there_and_back(job, 1, b=2, c=[3]) == {"a": 1, "b": 2, "c": [3]}


def test_a_parameter_without_annotation_takes_any_json() -> None:
    def job(a, b=None) -> None: ...  # type: ignore[no-untyped-def]

    assert there_and_back(job, {"x": [1, 2.5, None, True]}) == {"a": {"x": [1, 2.5, None, True]}, "b": None}


def test_large_whole_numbers_survive() -> None:
    def job(a: int) -> None: ...

    assert there_and_back(job, 2**70) == {"a": 2**70}


# --- the context


def test_a_first_parameter_annotated_as_context_is_not_an_argument() -> None:
    def job(ctx: Context, a: int) -> None: ...

    signature = Signature(job, "job")
    assert signature.takes_context
    assert signature.text == "a: int"
    assert there_and_back(job, 1) == {"a": 1}


def test_a_context_that_is_not_first_is_refused() -> None:
    def job(a: int, ctx: Context) -> None: ...

    with pytest.raises(
        InvalidArguments, match="task 'job': parameter 'ctx' is a Context; make the Context the first parameter"
    ):
        Signature(job, "job")


# --- refusals at the definition


def test_positional_only_parameters_are_refused() -> None:
    def positional(a: int, /) -> None: ...

    def several(*values: int) -> None: ...

    for function in (positional, several):
        with pytest.raises(InvalidArguments, match="cannot be passed by name; arguments are stored by name"):
            Signature(function, "job")


@pytest.mark.parametrize(
    "hint", [Plain, list[Plain], dict[str, Plain], Plain | None, tuple[Plain, int], str | datetime]
)
def test_a_type_that_cannot_be_stored_as_json_is_refused(hint: Any) -> None:
    def job(a: Any) -> None: ...

    job.__annotations__["a"] = hint
    with pytest.raises(InvalidArguments, match="cannot be stored as JSON; use plain data, a dataclass or a msgspec"):
        Signature(job, "job")


def test_an_annotation_that_cannot_be_read_is_refused_with_the_reason() -> None:
    def job(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(InvalidArguments, match="task 'job': its signature cannot be read: name 'Nowhere'"):
        Signature(job, "job")


# --- refusals at the call


def sample(count: int, name: str = "x") -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "missing a required argument: 'count'"),
        ((1, "a", 2), {}, "too many positional arguments"),
        ((1,), {"other": 1}, "got an unexpected keyword argument 'other'"),
        ((), {"coutn": 1}, "got an unexpected keyword argument 'coutn'; it is called 'count'"),
        ((), {"zzz": 1}, "got an unexpected keyword argument 'zzz'"),
        (("one",), {}, "Expected `int`, got `str` - at `$.count`"),
        ((1,), {"name": None}, "Expected `str`, got `null` - at `$.name`"),
        ((float("nan"),), {}, "count: nan is not a JSON number; pass None or text instead"),
        ((1,), {"name": "\ud800"}, "arguments must be JSON-like data"),
        ((object(),), {}, "arguments must be JSON-like data"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_with_the_signature_and_the_reason(
    args: tuple[Any, ...], kwargs: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidArguments) as refused:
        Signature(sample, "sample").encode(args, kwargs)
    assert str(refused.value).startswith("sample(count: int, name: str = 'x'): ")
    assert words in str(refused.value)


def test_self_referencing_arguments_are_refused() -> None:
    def job(a: Any) -> None: ...

    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidArguments, match="JSON-like"):
        Signature(job, "job").encode((endless,), {})


def test_too_large_arguments_are_refused() -> None:
    def job(a: str) -> None: ...

    Signature(job, "job").encode(("x" * (ARGUMENTS_MAX_BYTES - 8),), {})
    with pytest.raises(InvalidArguments, match=f"more than {ARGUMENTS_MAX_BYTES}; pass a reference to the data"):
        Signature(job, "job").encode(("x" * ARGUMENTS_MAX_BYTES,), {})


# --- stored arguments and changed code


@pytest.mark.parametrize("data", [b"", b"[1]", b"{", b'{"count":"one"}', b'{"count":1,"gone":2}', b"\xff", b"null"])
def test_stored_arguments_that_no_longer_fit_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidArguments):
        Signature(sample, "sample").decode(data)


def test_a_type_that_raises_in_its_constructor_is_a_mismatch() -> None:
    def job(a: Moody) -> None: ...

    with pytest.raises(InvalidArguments, match="thirteen brings bad luck"):
        Signature(job, "job").decode(b'{"a":{"n":13}}')


def test_the_hash_changes_only_with_the_signature() -> None:
    def same(count: int, name: str = "x") -> int:
        return 1

    def other(count: int, name: str = "y") -> None: ...

    assert Signature(sample, "a").hash == Signature(same, "b").hash
    assert Signature(sample, "a").hash != Signature(other, "a").hash
