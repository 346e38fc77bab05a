"""Draws the pictures of docs/images from their sources. `python tests/docs/draw_pictures.py [FOLDER]` writes them."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pages import ROOT
from pictures import deployments, fire_through_rooms, run_states, shop, terminal

__all__ = ["IMAGES", "pictures"]

IMAGES = ROOT / "docs/images"


def pictures() -> Iterator[tuple[str, str]]:
    """Name and SVG of each."""
    yield "run-states.svg", run_states.draw()
    yield "fire-through-rooms.svg", fire_through_rooms.draw()
    yield "deployments.svg", deployments.draw()
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "shop.db"
        shop.record(database)
        yield "top.svg", terminal.draw(["top"], database, columns=100, lines=40)
        yield "why.svg", terminal.draw(["why", "mails"], database, columns=100)
        yield "forecast.svg", terminal.draw(["forecast", "--tz", "Europe/Berlin"], database, columns=108)


def main() -> None:
    # The output of a command must not depend on this machine.
    for name in [name for name in os.environ if name.startswith("EVERTICK_") or name in ("NO_COLOR", "FORCE_COLOR")]:
        del os.environ[name]
    os.environ["TZ"] = "UTC"
    time.tzset()
    logging.disable()
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    folder.mkdir(parents=True, exist_ok=True)
    for name, svg in pictures():
        (folder / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
