"""Texts with places for what a run knows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evertick import InvalidArguments, InvalidSetting
from evertick.driver.http.template import Escape, Template, fill, placeholders_in

VALUES = {
    "run_id": "0190-7",
    "schedule": None,
    "attempt": 2,
    "args": {"name": 'Ada "L"\n', "copies": [1, 2], "nested": {"deep-er": True}, "odd": "a/b &c=ü"},
}


def filled(text: str, escape: Escape = "text") -> str:
    return Template(text, escape, "body").fill(VALUES)


def test_places_are_filled_and_other_braces_stay() -> None:
    assert filled("run {run_id}, try {attempt}{schedule}.") == "run 0190-7, try 2."
    assert filled('{"a": {"b": 1}} {} { run_id } {1}') == '{"a": {"b": 1}} {} { run_id } {1}'
    assert filled("{{run_id}} and {args.nested.deep-er}") == "{run_id} and true"


def test_in_json_a_value_is_escaped_within_a_string_and_whole_outside_of_one() -> None:
    text = '{"who": "dear {args.name}", "n": {args.copies}, "all": {args}, "s": {schedule}, "q": "\\"{run_id}"}'
    assert msgspec.json.decode(filled(text, "json")) == {
        "who": 'dear Ada "L"\n',
        "n": [1, 2],
        "all": VALUES["args"],
        "s": None,
        "q": '"0190-7',
    }


def test_in_addresses_and_forms_values_are_quoted() -> None:
    assert filled("/x/{args.odd}", "url") == "/x/a%2Fb%20%26c%3D%C3%BC"
    assert filled("a={args.odd}", "form") == "a=a%2Fb+%26c%3D%C3%BC"


def test_in_data_a_place_alone_becomes_the_value_itself() -> None:
    data = {"n": "{attempt}", "t": "no {attempt}", "{run_id}": ["{args.copies}", 5, None, True, "{{run_id}}"]}
    assert fill(data, VALUES, "json") == {"n": 2, "t": "no 2", "0190-7": [[1, 2], 5, None, True, "{run_id}"]}


@pytest.mark.parametrize("text", ["{args.missing}", "{args.name.first}", "{args.nested.other}"])
def test_an_argument_that_the_run_has_not_is_told(text: str) -> None:
    with pytest.raises(InvalidArguments) as refused:
        filled(text)
    assert str(refused.value) == f"body: {text} is not an argument of this run; pass it in args"


def test_a_place_that_no_run_knows_is_refused_with_the_nearest_and_all() -> None:
    with pytest.raises(InvalidSetting) as refused:
        list(placeholders_in("{runid}", "body"))
    assert str(refused.value) == (
        "body: {runid} is not a value of a run; it is called {run_id}; use {run_id}, {task}, {schedule}, {app}, "
        "{fire_at}, {due_at}, {attempt}, {fence}, {args} or {args.NAME}; for literal braces write {{runid}}"
    )
    for wrong in ("{run_id.x}", "{args.}", "{args..x}", "{other}"):
        with pytest.raises(InvalidSetting):
            list(placeholders_in(wrong, "body"))
    assert list(placeholders_in("{args.x} {{other}} {fire_at}", "body")) == ["args.x", "fire_at"]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(), lambda inner: st.lists(inner, max_size=3)
)


@given(value=_JSON)
def test_whatever_the_value_json_stays_json(value: Any) -> None:
    text = '{"in": "<{args.x}>", "out": {args.x}}'
    found = msgspec.json.decode(Template(text, "json", "body").fill({"args": {"x": value}}))
    assert found["out"] == value
    assert isinstance(found["in"], str)
    if isinstance(value, str):
        assert found["in"] == f"<{value}>"
