"""Sizes are numbers of bytes, or numbers with a unit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evertick.errors import InvalidSetting
from evertick.text.byte_size import size_bytes, size_text


@pytest.mark.parametrize(
    ("text", "size"),
    [("512B", 512), ("64KiB", 65_536), ("64 kib", 65_536), ("10MB", 10_000_000), ("1.5 GiB", 3 * 2**29), (7, 7)],
)
def test_a_size_is_a_number_with_its_unit(text: str | int, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("64K", "limit: '64K' is not a size; write it as '64KiB'"),
        ("512 m", "limit: '512 m' is not a size; write it as '512MiB'"),
        ("much", "limit: 'much' is not a size; write it like '64KiB', '10MB' or '512B'"),
        (True, "limit: True is not a size; write a number of bytes, or text like '64KiB'"),
        (-1, f"limit: -1 must be between 0 and {2**60} bytes"),
        ("99999999TiB", f"limit: '99999999TiB' must be between 0 and {2**60} bytes"),
    ],
)
def test_an_invalid_size_is_refused_with_the_fix(value: object, expected: str) -> None:
    with pytest.raises(InvalidSetting) as wrong:
        size_bytes(value, what="limit")
    assert str(wrong.value) == expected


@given(st.integers(0, 2**60) | st.integers(0, 2**20).map(lambda count: count * 2**10))
def test_the_text_of_a_size_parses_to_the_same_size(size: int) -> None:
    assert size_bytes(size_text(size)) == size
