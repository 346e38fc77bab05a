"""Five nodes on a real PostgreSQL, ninety seconds of faults: every moment comes to one outcome, as witnesses confirm.

The long form of it is `sh run chaos`; its figures are in `docs/explanation/chaos.md`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from torment.figures import summary_of
from torment.storm import storm_in

SEED = 7
SECONDS = 90.0
EVERY_SECONDS = 2.0


@pytest.mark.timeout(600)
def test_a_storm_loses_nothing_doubles_nothing_and_leaves_nothing_stuck(tmp_path: Path) -> None:
    figures = storm_in(tmp_path, SEED, SECONDS, EVERY_SECONDS)
    print(summary_of(figures))

    assert figures.finding_texts == []
    assert figures.exit_codes == [0] * figures.nodes
    assert figures.fires >= 5_000
    assert sum(figures.faults.values()) >= 30
    assert sum(count > 0 for count in figures.faults.values()) >= 8
    # The faults have hit something: else nothing was shown.
    assert figures.lost_answers > 0
    assert len(figures.recoveries_calm) + len(figures.recoveries_disturbed) >= 5
