"""More than a hundred stories of failing nodes, lost answers and wrong clocks, and every promise kept in each.

More of them by command: `python -m evertick.testing.simulation --seeds 80-9999`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from evertick.engine import fire
from evertick.engine.company import Company
from evertick.engine.node import LocalNode
from evertick.testing.simulation import simulate
from evertick.testing.simulation.mutants import MUTANTS

# The first ones as they come, and all others that are known to bring a planted bug to light: where a guard that is left
# out shows, one that is broken in another way shows most likely.
FIRST = 80
SEEDS = sorted({*range(FIRST), *(seed for mutant in MUTANTS for seed in mutant.seeds)})
CHUNK = 12


def _red(seeds: Iterable[int]) -> dict[int, list[str]]:
    return {seed: found for seed in seeds if (found := simulate(seed).violations)}


@pytest.mark.parametrize("first", range(0, len(SEEDS), CHUNK))
def test_every_promise_is_kept_in_the_stories_from(first: int) -> None:
    red = _red(SEEDS[first : first + CHUNK])
    told = "\n".join(
        f"seed {seed}: {found[0]} ({len(found)} in all)\n  replay: python -m evertick.testing.simulation {seed}"
        for seed, found in red.items()
    )
    assert not red, f"\n{told}"


@pytest.mark.parametrize("batches", [1, 4])
def test_every_promise_is_kept_where_ticks_go_over_many_pages(monkeypatch: pytest.MonkeyPatch, batches: int) -> None:
    """What only many thousands of due schedules would bring about: each is a batch of its own, and a page of its own or
    with others, which nodes that are behind then share."""
    make, look, pages, shares = LocalNode.__init__, fire.Recorder._look_ahead, 0, 0
    keeps_up = Company.keeps_up

    def with_small_batches(self: LocalNode, **options: Any) -> None:
        make(self, **{**options, "batch_size": 1})

    async def counted(self: fire.Recorder, under_way: Any) -> Any:
        nonlocal pages
        pages += 1
        return await look(self, under_way)

    def shared(self: Company, ours: Any, theirs: Any) -> bool:
        nonlocal shares
        is_left = keeps_up(self, ours, theirs)
        shares += is_left
        return is_left

    monkeypatch.setattr(LocalNode, "__init__", with_small_batches)
    monkeypatch.setattr(fire, "_BATCHES_AHEAD", batches)
    monkeypatch.setattr(fire.Recorder, "_look_ahead", counted)
    monkeypatch.setattr(Company, "keeps_up", shared)
    assert not _red(range(20))
    assert pages > (500 if batches == 1 else 100)
    assert (shares > 0) == (batches > 1)
