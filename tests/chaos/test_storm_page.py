"""The page about testing has the results of a storm as its command writes them."""

from __future__ import annotations

import shutil
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from torment.figures import Figures, summary_of
from torment.page import FIGURES, PAGE, PICTURE, results_of, write_report
from torment.picture import picture_of

DOCS = Path(__file__).parents[2] / "docs" / "explanation"
BARS = "{http://www.w3.org/2000/svg}rect"
# In the key of the picture.
KEY_BARS = 2


@pytest.fixture(scope="module")
def figures() -> Figures:
    return msgspec.json.decode((DOCS / FIGURES).read_bytes(), type=Figures)


def test_the_results_of_the_docs_has_the_results_of_its_figures(figures: Figures, tmp_path: Path) -> None:
    shutil.copy(DOCS / PAGE, tmp_path)
    write_report(figures, tmp_path)
    for name in (PAGE, PICTURE, FIGURES):
        assert (tmp_path / name).read_bytes() == (DOCS / name).read_bytes(), f"write docs/explanation/{name} again"


def test_a_report_beside_no_page_has_the_results_alone(figures: Figures, tmp_path: Path) -> None:
    folder = tmp_path / "not there yet"
    write_report(figures, folder)
    assert results_of(figures) in (folder / PAGE).read_text()


def test_the_storm_of_the_docs_has_found_nothing(figures: Figures) -> None:
    assert sum(figures.findings.values()) == 0
    assert figures.exit_codes == [0] * figures.nodes


def test_a_finding_is_on_the_page_and_in_the_summary(figures: Figures) -> None:
    found = msgspec.structs.replace(
        figures, findings={**figures.findings, "doubled": 3}, finding_texts=["doubled: k: the moment 7 has 2 outcomes"]
    )
    assert "3 moments with two outcomes" in results_of(found)
    assert "3 doubled" in summary_of(found)
    assert "the moment 7 has 2 outcomes" in summary_of(found)


def test_the_picture_has_a_bar_for_each_half_second_in_which_something_was_taken_over(figures: Figures) -> None:
    drawn = msgspec.structs.replace(figures, recoveries_calm=[2.6, 2.9, 3.1], recoveries_disturbed=[2.7, 9.0])
    assert len(list(ElementTree.fromstring(picture_of(drawn)).iter(BARS))) == 4 + KEY_BARS
    nothing = msgspec.structs.replace(figures, recoveries_calm=[], recoveries_disturbed=[])
    assert len(list(ElementTree.fromstring(picture_of(nothing)).iter(BARS))) == KEY_BARS
