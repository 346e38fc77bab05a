"""More than sixty stories of failing nodes, lost answers and wrong clocks keep every promise.

For more, run `sh run simulate --from 100000 --minutes 30`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from evertick.engine import fire
from evertick.engine.fire import PeerShare
from evertick.engine.node import LocalNode
from simulation import __main__, simulate
from simulation.mutants import MUTANTS

# The first seeds, one seed for each planted bug (another bug near that guard is likely to show there, too), and seeds
# that once failed.
FIRST = 8
# A moved moment whose grace an edit changed; parked runs, with one queued behind them, that yield to the next fire; a
# resume after a pause that had ended by itself; every-node moments without a node; a job longer than the patience;
# a node that a job killed at the end.
ONCE_FAILED = (
    7002051,
    7002105,
    7003171,
    7003320,
    7003357,
    7005979,
    7100934,
    7101227,
    7101395,
    7101448,
    7200043,
    7306238,
    7307780,
    7311605,
    7312641,
    7316930,
    7324109,
    7333469,
)
SEEDS = sorted({*range(FIRST), *ONCE_FAILED, *(seed for mutant in MUTANTS for seed in mutant.seeds[:1])})
CHUNK = 12


def _failed(seeds: Iterable[int]) -> dict[int, list[str]]:
    return {seed: found for seed in seeds if (found := simulate(seed).violations)}


@pytest.mark.parametrize("first", range(0, len(SEEDS), CHUNK))
def test_every_promise_is_kept_in_the_stories_from_seed(first: int) -> None:
    failed = _failed(SEEDS[first : first + CHUNK])
    report = "\n".join(
        f"seed {seed}: {found[0]} ({len(found)} in all)\n  replay: python -m simulation {seed}"
        for seed, found in failed.items()
    )
    assert not failed, f"\n{report}"


@pytest.mark.parametrize("batches", [1, 4])
def test_every_promise_is_kept_with_ticks_of_many_pages(monkeypatch: pytest.MonkeyPatch, batches: int) -> None:
    """As with many thousands of due schedules: small batches make many pages, which nodes that are behind share."""
    make, look, pages, shares = LocalNode.__init__, fire.Recorder._look_ahead, 0, 0
    peers_keep_up = PeerShare.peers_keep_up

    def with_small_batches(self: LocalNode, **options: Any) -> None:
        make(self, **{**options, "batch_size": 1})

    async def counted(self: fire.Recorder, under_way: Any) -> Any:
        nonlocal pages
        pages += 1
        return await look(self, under_way)

    def shared(self: PeerShare, own: Any, foreign: Any) -> bool:
        nonlocal shares
        is_left = peers_keep_up(self, own, foreign)
        shares += is_left
        return is_left

    monkeypatch.setattr(LocalNode, "__init__", with_small_batches)
    monkeypatch.setattr(fire, "_BATCHES_AHEAD", batches)
    monkeypatch.setattr(fire.Recorder, "_look_ahead", counted)
    monkeypatch.setattr(PeerShare, "peers_keep_up", shared)
    assert not _failed(range(5))
    assert pages > (250 if batches == 1 else 50)
    assert (shares > 0) == (batches > 1)


def _run_command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """In this process; test_replay.py has the command in one of its own."""
    monkeypatch.setattr(__main__, "ProcessPoolExecutor", ThreadPoolExecutor)
    monkeypatch.setattr(__main__, "_BATCH", 1)
    monkeypatch.setattr(sys, "argv", ["simulate", *arguments, "--workers", "1"])
    return __main__.main()


def test_the_command_continues_from_a_seed_and_prints_its_coverage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run_command(monkeypatch, "--from", "100", "--minutes", "0.0001") == 0
    printed = capsys.readouterr().out
    seeds = re.search(r"^(\d+) seeds \(100-(\d+)\), 0 failed, in [\d.]+ min$", printed, re.M)
    assert seeds is not None, printed
    assert int(seeds[1]) == int(seeds[2]) - 99 > 0
    assert re.search(r"^simulated [\d.]+ h of fleets; faults: .*\d+ killed", printed, re.M)
    assert re.search(r"^verdicts: .*\d+ succeeded", printed, re.M)
    assert f"continue with --from {int(seeds[2]) + 1}\n" in printed


def test_the_command_names_each_seed_that_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(__main__, "simulate", MUTANTS[0].simulate)
    seed = MUTANTS[0].seeds[0]
    assert _run_command(monkeypatch, "--seeds", f"{seed}-{seed}") == 1
    assert re.search(rf"^seed {seed} failed: ", capsys.readouterr().out, re.M)
