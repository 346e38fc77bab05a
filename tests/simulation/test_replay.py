"""The same seed gives the same events, in every process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulation import simulate
from simulation.loop import Machine, SimulationStuck, VirtualLoop
from simulation.world import World

SEEDS = (3, 9, 19)


def _run(*arguments: str, hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "simulation", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert not done.stderr, done.stderr
    return done.stdout


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    assert simulate(seed, with_trace=True).trace == simulate(seed, with_trace=True).trace


def test_different_seeds_give_different_traces() -> None:
    assert len({simulate(seed, with_trace=True).trace for seed in SEEDS}) == len(SEEDS)


@pytest.mark.parametrize("hash_seed", ["1", "4711"])
def test_a_fresh_process_gives_the_same_trace(hash_seed: str) -> None:
    output = _run(str(SEEDS[0]), hash_seed=hash_seed)
    assert f"trace {simulate(SEEDS[0], with_trace=True).trace}" in output


def test_a_replay_prints_the_story_the_trace_and_the_violation() -> None:
    output = _run("0", "--mutant", "losses_not_counted", hash_seed="0")
    assert output.startswith("seed 0: ")
    assert "join #1: insert nodes" in output
    assert "VIOLATION runs: rehome" in output


def test_many_seeds_are_run_by_one_command() -> None:
    assert _run("--seeds", "9-10", hash_seed="0").startswith("2 seeds (9-10), 0 failed, in ")


def test_a_finished_story_leaves_no_objects_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of stories run in one process. In these, nodes die while jobs run."""
    worlds: weakref.WeakSet[World] = weakref.WeakSet()
    make, made = World.__init__, list[int]()

    def known(self: World, *given: Any) -> None:
        make(self, *given)
        worlds.add(self)
        made.append(self.story.seed)

    monkeypatch.setattr(World, "__init__", known)
    for seed in (3, 8, 9):
        simulate(seed)
    assert made == [3, 8, 9]
    gc.collect()
    assert not list(worlds)


# --- the loop ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop("a test")
    yield loop
    loop.end()


def test_a_virtual_day_takes_little_real_time() -> None:
    with _loop() as loop:
        loop.run_until_complete(asyncio.sleep(86_400))
        assert loop.time() == 86_400


def test_a_killed_machine_runs_no_further_line_not_even_finally() -> None:
    log = []

    async def live() -> None:
        try:
            log.append("born")
            await asyncio.sleep(10)
            log.append("old")
        finally:
            log.append("finally")

    with _loop() as loop:
        machine = Machine("m")
        loop.start(machine, live())
        loop.call_later(5, loop.kill, machine)
        loop.run_until_complete(asyncio.sleep(20))
        assert log == ["born"]


def test_a_frozen_machine_continues_in_the_same_order() -> None:
    log = []

    async def live() -> None:
        for number in range(4):
            await asyncio.sleep(1)
            log.append((number, asyncio.get_running_loop().time()))

    with _loop() as loop:
        machine = Machine("m")
        loop.start(machine, live())
        loop.call_later(1.5, loop.freeze, machine)
        loop.call_later(10, loop.thaw, machine)
        loop.run_until_complete(asyncio.sleep(20))
        assert log == [(0, 1), (1, 10), (2, 11), (3, 12)]


def test_a_spinning_loop_is_detected() -> None:
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    with _loop() as loop, pytest.raises(SimulationStuck, match="time did not move"):
        loop.run_until_complete(spin())


def test_a_wait_without_any_timer_is_detected() -> None:
    with _loop() as loop, pytest.raises(SimulationStuck, match="no task is ready"):
        loop.run_until_complete(loop.create_future())
