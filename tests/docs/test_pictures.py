"""The pictures in docs/images are what their sources draw, and pages show each of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from draw_pictures import IMAGES
from pages import ROOT, pages, text_of
from programs import clean_environment


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    subprocess.run(
        [sys.executable, ROOT / "tests/docs/draw_pictures.py", folder], env=clean_environment(), check=True, timeout=120
    )
    return folder


def test_the_pictures_are_what_their_sources_draw(drawn: Path) -> None:
    assert sorted(path.name for path in IMAGES.iterdir()) == sorted(path.name for path in drawn.iterdir())
    differing = [path.name for path in drawn.iterdir() if path.read_bytes() != (IMAGES / path.name).read_bytes()]
    assert not differing, "draw them with `python tests/docs/draw_pictures.py`, look at them, and commit them"


@pytest.mark.parametrize("picture", sorted(IMAGES.iterdir()), ids=lambda path: path.name)
def test_a_page_shows_each_picture_which_has_a_title_and_needs_no_other_file(picture: Path) -> None:
    assert any(f"images/{picture.name})" in text_of(page) for page in pages())
    root = ElementTree.parse(picture).getroot()
    assert root.find("{http://www.w3.org/2000/svg}title").text
    words = picture.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in words
    assert "href" not in words
    assert "url(" not in words
