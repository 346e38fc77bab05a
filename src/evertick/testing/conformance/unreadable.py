"""Promises about what a node cannot read: newer rows are left to newer nodes, damaged ones are put aside, and neither
holds up anybody."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import pytest

from evertick.model import MessageState, Reason, State
from evertick.model.limits import Concurrency, Subject
from evertick.store.base import TaskTerms
from evertick.testing.conformance.bench import APP, TASK, TERMS, Bench, a_fire, a_run, an_advance
from evertick.testing.conformance.outbox import a_message, claim, one

__all__ = ["Unreadable"]

# What the next release may write.
_NEWER = a_run().format + 1
_LIMITED = {TASK: TaskTerms(concurrency=Concurrency(most=9, of=Subject(task=TASK)))}

both_ways = pytest.mark.parametrize("tasks", [TERMS, _LIMITED], ids=["free", "limited"])


class _Cause(StrEnum):
    """One that no release knows, in a row that says that all do."""

    UNHEARD_OF = "unheard-of"


class Unreadable:
    # --- runs

    @both_ways
    async def test_a_run_in_a_newer_format_is_left_to_newer_nodes(
        self, bench: Bench, tasks: Mapping[str, TaskTerms]
    ) -> None:
        node = await bench.node(tasks=tasks)
        # In front of all others, and too old to start: not even that is ours to judge.
        newer = await bench.enqueue(format=_NEWER, priority=9, expires=1)
        assert (newer.state, newer.reason) == (State.WAITING, Reason.NEWER_FORMAT)
        readable = await bench.enqueue()
        answer = await bench.claim(node, tasks=tasks, limit=1)
        assert ([run.id for run in answer.runs], answer.expired) == ([readable.id], [])
        # Or the node would ask for it again and again.
        assert (await bench.claim(node, tasks=tasks)).next_due_at is None
        assert await bench.run(newer.id) == newer
        assert await bench.cancel(newer.id) == ["ended"]

    async def test_what_a_newer_node_leaves_behind_waits_for_another_of_its_kind(self, bench: Bench) -> None:
        schedule = await bench.add()
        newer, older = await bench.node(), await bench.node()
        fire = a_fire(schedule, is_claimed=True, format=_NEWER)
        assert (await bench.record(an_advance(schedule, fire), node=newer)).taken == [True]
        assert await bench.state(fire.id) is State.RUNNING
        await bench.store.leave(newer)
        answer = await bench.rehome(older)
        assert (answer.claimed, len(answer.released)) == ([], 1)
        assert (await bench.run(fire.id)).reason == Reason.NEWER_FORMAT

    @both_ways
    async def test_a_run_that_makes_no_sense_is_parked_and_stops_nobody(
        self, bench: Bench, tasks: Mapping[str, TaskTerms]
    ) -> None:
        node = await bench.node(tasks=tasks)
        odd = await bench.enqueue(cause=_Cause.UNHEARD_OF, priority=9)
        others = [await bench.enqueue() for _ in range(3)]
        answer = await bench.claim(node, tasks=tasks)
        assert [run.id for run in answer.runs] == [run.id for run in others]
        parked = await bench.run(odd.id)
        assert (parked.state, parked.reason, parked.cause) == (State.PARKED, Reason.UNREADABLE, "unheard-of")
        assert parked.error is not None
        assert "unheard-of" in parked.error
        assert [held.id for held in await bench.store.owned(APP, node)] == sorted(run.id for run in others)
        assert await bench.cancel(odd.id) == ["ended"]

    async def test_a_run_that_makes_no_sense_is_parked_by_whoever_rehomes_it(self, bench: Bench) -> None:
        dying, living = await bench.node(), await bench.node()
        schedule = await bench.add()
        odd = a_fire(schedule, is_claimed=True, cause=_Cause.UNHEARD_OF)
        await bench.record(an_advance(schedule, odd), node=dying)
        held = await bench.hold(dying)
        await bench.store.leave(dying)
        answer = await bench.rehome(living)
        assert [run.id for run in answer.claimed] == [held.id]
        assert (await bench.run(odd.id)).reason == Reason.UNREADABLE

    # --- messages

    async def test_a_message_in_a_newer_format_is_left_to_newer_nodes(self, bench: Bench) -> None:
        node = await bench.node()
        newer, readable = a_message(format=_NEWER), a_message()
        await bench.store.send(APP, [newer, readable])
        answer = await claim(bench, node, room=1)
        assert [message.id for message in answer.messages] == [readable.id]
        assert answer.next_due_at is None
        assert (await one(bench, newer.id)).state is MessageState.WAITING

    async def test_a_message_that_makes_no_sense_is_dead_and_stops_nobody(self, bench: Bench) -> None:
        node = await bench.node()
        headers: Any = {"text": ["where", "a", "list", "is"]}
        odd, readable = a_message(headers=headers), a_message()
        await bench.store.send(APP, [odd, readable])
        answer = await claim(bench, node)
        assert [message.id for message in answer.messages] == [readable.id]
        dead = await one(bench, odd.id)
        assert (dead.state, dead.attempts) == (MessageState.DEAD, 0)
        assert dead.error is not None
        assert "cannot be read" in dead.error
        assert await bench.store.drop_messages(APP, [odd.id]) == [odd.id]
