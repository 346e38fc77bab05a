"""Halves of surrogate pairs are replaced, and nothing else is."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evertick.text.surrogates import json_bytes, json_without_surrogates, without_surrogates

# Halves, pairs, backslashes and zeros, in any order.
TEXTS = st.lists(
    st.sampled_from(["\ud83d", "\ude00", "\U0001f600", "\\", "u", "d83d", '"', "\x00", "ü", "a"]), max_size=12
).map("".join)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (rb'"\ud83d"', "\ufffd"),
        (rb'"\uD83D end"', "\ufffd end"),
        (rb'"\ude00"', "\ufffd"),
        (rb'"\ud83d\ud83d\ude00"', "\ufffd\U0001f600"),
        (rb'"\\ud83d"', "\\ud83d"),
        (rb'"\\\ud83d"', "\\\ufffd"),
        (b'"\xed\xa0\xbd"', "\ufffd"),
        (b'"\xed\xa0\xbd\xed\xb8\x80"', "\U0001f600"),
        (b'"\xff"', "\ufffd"),
    ],
)
def test_a_half_becomes_the_sign_for_what_cannot_be_shown(data: bytes, text: str) -> None:
    assert msgspec.json.decode(json_without_surrogates(data)) == text


@given(TEXTS)
def test_text_as_any_program_writes_it_can_be_read(text: str) -> None:
    wanted = without_surrogates(text)
    assert wanted.encode().decode() == wanted
    for data in (json.dumps(text).encode(), json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")):
        assert msgspec.json.decode(json_without_surrogates(data)) == wanted
    assert msgspec.json.decode(json_bytes([text, {text: text}])) == [wanted, {wanted: wanted}]


def test_what_is_whole_stays_as_it_is() -> None:
    data = json.dumps({"text": "\U0001f600 \x00 \\ud83d ü", "numbers": [1, 2.5, None]}).encode()
    assert json_without_surrogates(data) == data
    with pytest.raises(TypeError):
        json_bytes(object())
