"""The page about high availability has the table that the code declares."""

from __future__ import annotations

from ha_page import PAGE, written_anew


def test_the_table_of_the_page_is_that_of_the_code() -> None:
    page = PAGE.read_text()
    assert page == written_anew(page), "write it anew with: python tests/docs/ha_page.py"
