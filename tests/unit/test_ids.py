"""Ids of a clock."""

from __future__ import annotations

from uuid import UUID

from evertick.clock import Clock, derived_id
from evertick.testing.clock import SettableClock

NOON = 1_767_268_800_000_000


def test_ids_are_uuids_of_version_7_and_tell_when_they_were_made() -> None:
    [first, *_] = ids = SettableClock(NOON).new_ids(10)
    assert {UUID(id_).version for id_ in ids} == {7}
    assert {UUID(id_).variant for id_ in ids} == {"specified in RFC 4122"}
    assert UUID(first).int >> 80 == NOON // 1000
    assert [str(UUID(id_)) for id_ in ids] == ids


def test_ids_sort_in_the_order_in_which_they_were_made() -> None:
    clock = Clock()
    ids = [clock.new_id(), *clock.new_ids(5_000), clock.new_id(), *clock.new_ids(2), clock.new_id()]
    assert ids == sorted(set(ids))


def test_ids_of_one_moment_differ_between_clocks() -> None:
    mine, yours = SettableClock(NOON, seed=1).new_ids(100), SettableClock(NOON, seed=2).new_ids(100)
    assert not set(mine) & set(yours)


def test_no_ids_are_made_when_none_are_asked_for() -> None:
    clock = SettableClock(NOON)
    assert clock.new_ids(0) == []
    assert UUID(clock.new_id()).int >> 80 == NOON // 1000


def test_a_derived_id_is_a_uuid_of_version_7_too() -> None:
    id_ = derived_id(NOON, "schedule", 7)
    assert UUID(id_).version == 7
    assert UUID(id_).int >> 80 == NOON // 1000
    assert derived_id(NOON, "schedule", 7) == id_
