"""The page about high availability has every loop, duty and mode of the code."""

from __future__ import annotations

import re

from pages import built

from evertick.engine.loops import DUTIES, LOOPS
from evertick.explain.availability import REPLICAS


def test_the_page_has_every_loop_and_duty_of_the_code() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (loop|duty) \| ([\w-]+) \|", built("reference/ha.md"), re.MULTILINE)
    assert rows == [
        (kind.name, sort, kind.mode) for sort, kinds in (("loop", LOOPS), ("duty", DUTIES)) for kind in kinds
    ]


def test_the_page_says_what_n_nodes_do_with_what_users_declare() -> None:
    page = built("reference/ha.md")
    assert [words for words in REPLICAS.values() if words not in page] == []
