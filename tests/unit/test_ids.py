"""Ids of a clock."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

from evertick.clock import Clock, derived_id, system_clock
from evertick.testing.clock import SettableClock

NOON = 1_767_268_800_000_000


def test_ids_are_uuids_of_version_7_with_their_time() -> None:
    [first, *_] = ids = SettableClock(NOON).new_ids(10)
    assert {UUID(id_).version for id_ in ids} == {7}
    assert {UUID(id_).variant for id_ in ids} == {"specified in RFC 4122"}
    assert UUID(first).int >> 80 == NOON // 1000
    assert [str(UUID(id_)) for id_ in ids] == ids


def test_ids_sort_in_the_order_of_creation() -> None:
    clock = Clock()
    ids = [clock.new_id(), *clock.new_ids(5_000), clock.new_id(), *clock.new_ids(2), clock.new_id()]
    assert ids == sorted(set(ids))


def test_ids_of_one_moment_differ_between_clocks() -> None:
    own, yours = SettableClock(NOON, seed=1).new_ids(100), SettableClock(NOON, seed=2).new_ids(100)
    assert not set(own) & set(yours)


def test_asking_for_no_ids_makes_none() -> None:
    clock = SettableClock(NOON)
    assert clock.new_ids(0) == []
    assert UUID(clock.new_id()).int >> 80 == NOON // 1000


def test_a_derived_id_is_a_uuid_of_version_7_too() -> None:
    id_ = derived_id(NOON, "schedule", 7)
    assert UUID(id_).version == 7
    assert UUID(id_).int >> 80 == NOON // 1000
    assert derived_id(NOON, "schedule", 7) == id_


def test_random_numbers_have_the_requested_size() -> None:
    drawn = [system_clock.random_bits(62) for _ in range(2_000)]
    assert len(set(drawn)) == len(drawn)
    assert 1 << 61 < max(drawn) < 1 << 62
    assert all(0 <= system_clock.uniform() < 1 for _ in range(2_000))
    assert max(system_clock.random_bits(1) for _ in range(100)) == 1


def test_threads_never_get_the_same_random_number() -> None:
    with ThreadPoolExecutor(4) as pool:
        drawn = [each for part in pool.map(lambda _: _some_numbers(5_000), range(4)) for each in part]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_forked_process_gets_different_random_numbers() -> None:
    # In a process without threads, because Python warns about a fork with threads.
    script = """
import os
from evertick.clock import system_clock
system_clock.random_bits(62)
is_child = os.fork() == 0
os.write(1, f"{system_clock.random_bits(62)} {system_clock.uniform()}\\n".encode())
if not is_child:
    os.wait()
"""
    message = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    first, second = (line.split() for line in message.splitlines())
    assert first[0] != second[0]
    assert first[1] != second[1]


def _some_numbers(count: int) -> list[int]:
    return [system_clock.random_bits(62) for _ in range(count)]
