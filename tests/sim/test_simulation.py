"""Hundreds of stories of failing nodes, lost answers and wrong clocks, and every promise kept in each.

More of them by command: `python -m evertick.testing.simulation --seeds 600-9999`.
"""

from __future__ import annotations

import pytest

from evertick.testing.simulation import simulate

SEEDS = 600
CHUNK = 20


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_promise_is_kept_in_the_stories_from(first: int) -> None:
    red = {seed: found for seed in range(first, first + CHUNK) if (found := simulate(seed).violations)}
    told = "\n".join(
        f"seed {seed}: {found[0]} ({len(found)} in all)\n  replay: python -m evertick.testing.simulation {seed}"
        for seed, found in red.items()
    )
    assert not red, f"\n{told}"
