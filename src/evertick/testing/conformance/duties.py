"""Promises about duties: each has at most one live holder, and its term only grows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from evertick.model import Duty
from evertick.store.base import DutyTick, Store
from evertick.testing.conformance.bench import APP, DAY, OTHER_APP, SECOND, SHORT_LEASE, Bench, us

__all__ = ["Duties"]


async def _hold(bench: Bench, node: str, *names: str, store: Store | None = None) -> dict[str, tuple[str | None, int]]:
    """The holder and the term of each duty after this node has asked."""
    held = await (store or bench.store).hold_duties(APP, node, names or ("tidy",))
    return {duty.name: (duty.node, duty.term) for duty in held.duties}


async def _tick(
    bench: Bench, node: str, term: int, *, next_at: int | None = None, error: str | None = None, has_acted: bool = True
) -> bool:
    tick = DutyTick(name="tidy", term=term, has_acted=has_acted, next_at=next_at, error=error)
    return await bench.store.tick_duty(APP, node, tick)


async def _duty(bench: Bench, name: str = "tidy") -> Duty:
    [found] = [duty for duty in await bench.store.duties(APP) if duty.name == name]
    return found


async def _prune(bench: Bench, *, before: int) -> None:
    await bench.store.prune(APP, before=before, keep_per_schedule=1_000, limit=100)


class Duties:
    # --- taking

    async def test_a_free_duty_goes_to_the_node_that_asks_first(self, bench: Bench) -> None:
        first, second = await bench.node(), await bench.node()
        assert await _hold(bench, first) == {"tidy": (first, 1)}
        assert await _hold(bench, second) == {"tidy": (first, 1)}

    async def test_asking_for_a_held_duty_again_changes_nothing(self, bench: Bench) -> None:
        node = await bench.node()
        await _hold(bench, node)
        since = (await _duty(bench)).since
        await bench.pass_time(1_000)
        assert await _hold(bench, node) == {"tidy": (node, 1)}
        assert (await _duty(bench)).since == since

    async def test_each_node_takes_only_the_duties_it_asks_for(self, bench: Bench) -> None:
        first, second = await bench.node(), await bench.node()
        assert await _hold(bench, first, "a", "b") == {"a": (first, 1), "b": (first, 1)}
        assert await _hold(bench, second, "b", "c") == {"b": (first, 1), "c": (second, 1)}
        assert [duty.name for duty in await bench.store.duties(APP)] == ["a", "b", "c"]

    async def test_the_answer_about_duties_has_the_time_of_the_store(self, bench: Bench) -> None:
        node, before = await bench.node(), await bench.now()
        taken = await bench.store.hold_duties(APP, node, ["tidy"])
        again = await bench.store.hold_duties(APP, node, ["tidy"])
        assert before <= taken.now <= again.now <= await bench.now()

    async def test_asking_for_no_duty_takes_none(self, bench: Bench) -> None:
        node = await bench.node()
        assert (await bench.store.hold_duties(APP, node, [])).duties == []
        assert await bench.store.duties(APP) == []

    async def test_a_dead_node_gets_no_duty(self, bench: Bench) -> None:
        dead, stranger = await bench.dead_node(), "never joined"
        assert await _hold(bench, dead) == {}
        assert await _hold(bench, stranger) == {}
        node = await bench.node()
        await _hold(bench, node)
        await bench.store.leave(node)
        assert await _hold(bench, dead) == {"tidy": (None, 1)}
        assert await _hold(bench, node) == {"tidy": (None, 1)}

    async def test_of_many_nodes_that_ask_at_once_one_gets_the_duty(self, bench: Bench) -> None:
        stores = [bench.store, await bench.stores.open(), await bench.stores.open()]
        nodes = [await bench.node() for _ in stores]
        for term in range(1, 6):
            asked = [_hold(bench, node, store=store) for node, store in zip(nodes, stores, strict=True)]
            answers = await asyncio.gather(*asked)
            assert {holder["tidy"][1] for holder in answers} == {term}
            [(holder, _)] = {answer["tidy"] for answer in answers}
            assert holder in nodes
            await bench.store.resign_duties(APP, str(holder), {"tidy": term})

    async def test_each_app_has_its_own_duties(self, bench: Bench) -> None:
        here, there = await bench.node(), await bench.node(app=OTHER_APP)
        assert await _hold(bench, here) == {"tidy": (here, 1)}
        [other] = (await bench.store.hold_duties(OTHER_APP, there, ["tidy"])).duties
        assert (other.node, other.term) == (there, 1)
        assert [duty.node for duty in await bench.store.duties(OTHER_APP)] == [there]

    # --- losing

    async def test_the_death_of_a_node_frees_its_duties(self, bench: Bench) -> None:
        first, second = await bench.node(lease=SHORT_LEASE), await bench.node()
        await _hold(bench, first)
        await bench.pass_time(2 * SHORT_LEASE)
        assert await _hold(bench, second) == {"tidy": (first, 1)}, "an expired lease alone does not free a duty"
        assert await bench.store.judge() == [first]
        assert await _hold(bench, second) == {"tidy": (second, 2)}

    async def test_a_heartbeat_reports_whether_a_duty_is_free(self, bench: Bench) -> None:
        first, second = await bench.node(), await bench.node()
        async with bench.heartbeat() as heartbeat:

            async def is_free() -> bool:
                return (await heartbeat.beat(second, DAY)).has_free_duties

            assert not await is_free(), "no duty exists"
            await _hold(bench, first)
            assert not await is_free()
            await bench.store.resign_duties(APP, first, {"tidy": 1})
            assert await is_free()
            await _hold(bench, first)
            await bench.store.leave(first)
            assert await is_free()
            await _hold(bench, second)
            assert not await is_free()

    async def test_a_node_that_leaves_gives_up_its_duties(self, bench: Bench) -> None:
        first, second = await bench.node(), await bench.node()
        await _hold(bench, first)
        await bench.store.leave(first)
        assert await _hold(bench, second) == {"tidy": (second, 2)}

    async def test_a_node_that_records_its_own_death_gives_up_its_duties(self, bench: Bench) -> None:
        first, second = await bench.node(), await bench.node()
        await _hold(bench, first)
        async with bench.heartbeat() as heartbeat:
            await heartbeat.die(first)
        assert await _hold(bench, second) == {"tidy": (second, 2)}

    async def test_the_heartbeat_session_can_resign_all_duties_of_its_node(self, bench: Bench) -> None:
        first, second = await bench.node(), await bench.node()
        await _hold(bench, first, "a", "b")
        await _hold(bench, second, "c")
        async with bench.heartbeat() as heartbeat:
            await heartbeat.resign(first)
        assert await _hold(bench, second, "a", "b", "c") == {"a": (second, 2), "b": (second, 2), "c": (second, 1)}

    async def test_a_resigned_duty_is_free_and_can_be_taken_again(self, bench: Bench) -> None:
        first, second = await bench.node(), await bench.node()
        await _hold(bench, first, "a", "b")
        await bench.store.resign_duties(APP, first, {"a": 1})
        assert (await _duty(bench, "a")).node is None
        assert await _hold(bench, second, "a", "b") == {"a": (second, 2), "b": (first, 1)}
        await bench.store.resign_duties(APP, second, {"a": 2})
        assert await _hold(bench, first, "a") == {"a": (first, 3)}

    async def test_a_late_resignation_frees_no_duty(self, bench: Bench) -> None:
        first, second = await bench.node(), await bench.node()
        await _hold(bench, first)
        await bench.store.resign_duties(APP, first, {"tidy": 1})
        await _hold(bench, first)
        terms: Sequence[Mapping[str, int]] = ({"tidy": 1}, {"tidy": 3}, {"other": 2}, {})
        for late in terms:
            await bench.store.resign_duties(APP, first, late)
        await bench.store.resign_duties(APP, second, {"tidy": 2})
        assert await _hold(bench, second) == {"tidy": (first, 2)}

    # --- ticking

    async def test_the_holder_records_its_last_tick_its_error_and_its_next_tick(self, bench: Bench) -> None:
        node = await bench.node(name="web-1")
        await _hold(bench, node)
        duty = await _duty(bench)
        assert (duty.node, duty.node_name, duty.term) == (node, "web-1", 1)
        assert (duty.ticked_at, duty.next_at, duty.error) == (None, None, None)
        before = await bench.now()
        assert await _tick(bench, node, 1, next_at=before + SECOND, error="ValueError: no")
        duty = await _duty(bench)
        assert before <= us(duty.ticked_at) <= await bench.now()
        assert (us(duty.next_at), duty.error) == (before + SECOND, "ValueError: no")
        assert await _tick(bench, node, 1, next_at=before + SECOND, error="no such file: \udcff \x00 end")
        duty = await _duty(bench)
        assert duty.error is not None
        assert duty.error.endswith("end")

    async def test_the_next_tick_can_be_recorded_without_a_tick(self, bench: Bench) -> None:
        node = await bench.node()
        await _hold(bench, node)
        assert await _tick(bench, node, 1, next_at=5, has_acted=False)
        duty = await _duty(bench)
        assert (duty.ticked_at, us(duty.next_at)) == (None, 5)
        await _tick(bench, node, 1)
        ticked_at = (await _duty(bench)).ticked_at
        assert await _tick(bench, node, 1, next_at=7, has_acted=False)
        assert (await _duty(bench)).ticked_at == ticked_at

    async def test_only_the_holder_may_tick_and_only_under_its_term(self, bench: Bench) -> None:
        first, second = await bench.node(), await bench.node()
        assert not await _tick(bench, first, 1)
        await _hold(bench, first)
        assert not await _tick(bench, second, 1)
        assert not await _tick(bench, first, 2)
        await bench.store.resign_duties(APP, first, {"tidy": 1})
        assert not await _tick(bench, first, 1)
        await _hold(bench, first)
        assert not await _tick(bench, first, 1)
        assert (await _duty(bench)).ticked_at is None
        assert await _tick(bench, first, 2)

    async def test_a_dead_holder_cannot_tick(self, bench: Bench) -> None:
        node = await bench.node()
        await _hold(bench, node)
        await bench.store.leave(node)
        assert not await _tick(bench, node, 1)

    async def test_a_new_holder_sees_when_the_previous_holder_planned_its_next_tick(self, bench: Bench) -> None:
        first, second = await bench.node(), await bench.node()
        await _hold(bench, first)
        await _tick(bench, first, 1, next_at=77, error="oh")
        await bench.store.leave(first)
        [duty] = (await bench.store.hold_duties(APP, second, ["tidy"])).duties
        assert (duty.node, duty.term, duty.next_at, duty.error) == (second, 2, 77, "oh")

    # --- pruning

    async def test_a_duty_without_a_holder_is_pruned_after_a_day(self, bench: Bench) -> None:
        node = await bench.node(lease=100 * DAY)
        await _hold(bench, node, "kept", "left")
        await bench.store.resign_duties(APP, node, {"left": 1})
        await _prune(bench, before=await bench.now() + SECOND)
        assert [duty.name for duty in await bench.store.duties(APP)] == ["kept", "left"], "kept for at least a day"
        await bench.pass_time(2 * DAY)
        await _prune(bench, before=await bench.now() - 3 * DAY)
        assert [duty.name for duty in await bench.store.duties(APP)] == ["kept", "left"]
        await _prune(bench, before=await bench.now() - DAY)
        assert [duty.name for duty in await bench.store.duties(APP)] == ["kept"]

    async def test_the_term_of_a_pruned_duty_is_not_used_again(self, bench: Bench) -> None:
        node = await bench.node(lease=100 * DAY)
        for term in (1, 2, 3):
            await _hold(bench, node)
            await bench.store.resign_duties(APP, node, {"tidy": term})
        await bench.pass_time(2 * DAY)
        await _prune(bench, before=await bench.now() - DAY)
        assert await bench.store.duties(APP) == []
        assert await _hold(bench, node) == {"tidy": (node, 4)}
