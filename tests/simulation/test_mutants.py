"""The checks work: every planted bug is found within a bounded number of stories."""

from __future__ import annotations

import pytest

from simulation.mutants import MUTANTS, Mutant

# How many further seeds to try if the known ones do not find the bug.
SEARCHED = 150


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_caught(mutant: Mutant) -> None:
    for seed in (*mutant.seeds, *range(SEARCHED)):
        if mutant.simulate(seed).violations:
            return
    pytest.fail(f"{mutant.name} survived {len(mutant.seeds) + SEARCHED} stories: {mutant.what}")


def test_every_planted_bug_has_a_unique_name() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 20
