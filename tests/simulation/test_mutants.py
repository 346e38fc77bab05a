"""The oracle sees: every planted bug is caught within a bounded number of stories."""

from __future__ import annotations

import pytest

from simulation.mutants import MUTANTS, Mutant

# Beyond the seeds that are known to show a bug: how far to look before it counts as a survivor.
SEARCHED = 150


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_caught(mutant: Mutant) -> None:
    for seed in (*mutant.seeds, *range(SEARCHED)):
        if mutant.simulate(seed).violations:
            return
    pytest.fail(f"{mutant.name} survived {len(mutant.seeds) + SEARCHED} stories: {mutant.what}")


def test_every_planted_bug_has_a_unique_name() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 20
