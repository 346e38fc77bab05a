"""Five nodes on a real PostgreSQL, half a minute of faults: every moment comes to one outcome, as witnesses confirm.

`sh run long storm` takes longer, `sh run chaos` an hour; its figures are in `docs/explanation/testing.md`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from torment.figures import summary_of
from torment.storm import storm_in

from long_tests import seconds_for

SEED = 7
SECONDS = 26.0
LONG_SECONDS = 180.0
EVERY_SECONDS = 1.3


@pytest.mark.timeout(600)
def test_a_storm_loses_nothing_doubles_nothing_and_leaves_nothing_stuck(tmp_path: Path) -> None:
    check_a_storm(tmp_path, SEED, SECONDS)


@pytest.mark.long("storm")
@pytest.mark.timeout(0)
def test_a_long_storm_loses_nothing_doubles_nothing_and_leaves_nothing_stuck(tmp_path: Path) -> None:
    check_a_storm(tmp_path, SEED + 1, seconds_for(LONG_SECONDS))


def check_a_storm(folder: Path, seed: int, seconds: float) -> None:
    figures = storm_in(folder, seed, seconds, EVERY_SECONDS)
    print(summary_of(figures))

    assert figures.finding_texts == []
    assert figures.exit_codes == [0] * figures.nodes
    assert figures.fires >= 50 * seconds
    assert sum(figures.faults.values()) >= seconds / 3
    assert sum(count > 0 for count in figures.faults.values()) >= 8
    # The faults have hit something: else nothing was shown.
    assert figures.lost_answers > 0
    assert len(figures.recoveries_calm) + len(figures.recoveries_disturbed) >= 3
