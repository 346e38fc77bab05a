"""The cache of parsed definitions: each text is parsed once, and never outdated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from ledger_bench import APP, Bench

from evertick.aio import cooperative
from evertick.ledger import parsed_rules
from evertick.ledger.parsed_rules import KnownDefinition, Rules
from evertick.when import Calendar, Cron, Every, from_us, parse_when
from evertick.when.moment import HOUR, MINUTE


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    await made.open()
    yield made
    await made.store.close()


async def known(bench: Bench, remembered: Rules) -> dict[str, KnownDefinition]:
    """The due schedules, by key."""
    due = (await bench.store.due_schedules(APP, 100)).schedules
    found = await remembered.of(due)
    return {row.key: found[row.id] for row in due}


async def test_equal_definitions_are_parsed_once(bench: Bench) -> None:
    for key in ("a", "b"):
        await bench.add(Every("1h"), key=key, args={"n": 1})
    bench.later(3600)
    remembered = Rules(bench.store, APP)
    first = await known(bench, remembered)
    assert first["a"] is first["b"]
    assert (await known(bench, remembered))["a"] is first["a"]


async def test_different_definitions_share_equal_rules(bench: Bench) -> None:
    for number, key in enumerate(("a", "b")):
        await bench.add(Cron("0 * * * *", tz="Europe/Berlin"), key=key, args={"n": number})
    bench.later(3600)
    found = await known(bench, Rules(bench.store, APP))
    assert found["a"].rule is found["b"].rule
    assert (found["a"].args, found["b"].args) == (b'{"n":0}', b'{"n":1}')


async def test_a_rule_with_h_is_not_shared_between_keys(bench: Bench) -> None:
    for key in ("a", "b", "c", "d"):
        await bench.add(Cron("H * * * *"), key=key)
    bench.later(3600)
    found = await known(bench, Rules(bench.store, APP))
    stored = {key: await bench.stored(key) for key in found}
    for key, means in found.items():
        assert means.rule is not None
        assert stored[key].fire_at == means.rule.next_us(bench.start)
    assert len({each.fire_at for each in stored.values()}) > 1


async def test_a_moment_of_equal_rules_is_computed_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, work_out = list[int](), Cron._raw_next

    def counted(rule: Cron, after: int) -> int | None:
        asked.append(after)
        return work_out(rule, after)

    monkeypatch.setattr(Cron, "_raw_next", counted)
    for number, key in enumerate(("a", "b", "c")):
        await bench.add(Cron("0 * * * *"), key=key, args={"n": number})
    bench.later(3600)
    found = await known(bench, Rules(bench.store, APP))
    asked.clear()
    nexts = {each.rule.next_us(bench.start) for each in found.values() if each.rule is not None}

    assert (len(found), len(nexts), asked) == (3, 1, [bench.start])


async def test_a_changed_calendar_is_used_at_once(bench: Bench) -> None:
    remembered = Rules(bench.store, APP)
    await bench.editor.put_calendar(Calendar("open", exclude=["2026-02-01"]))
    await bench.add(Every("1h", calendar="open"))
    bench.later(3600)
    before = (await known(bench, remembered))["k"]
    await bench.editor.put_calendar(Calendar("open", exclude=["2026-02-02"]))
    bench.later(7200)
    after = (await known(bench, remembered))["k"]
    assert before.fingerprint != after.fingerprint


async def test_the_cache_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsed_rules, "_KNOWN_MAX", 5)
    monkeypatch.setattr(parsed_rules, "_RULES_MAX", 5)
    for number in range(20):
        await bench.add(Every(f"{number + 1}m"), key=f"k{number}")
    bench.later(HOUR / 1e6)
    remembered = Rules(bench.store, APP)
    for row in (await bench.store.due_schedules(APP, 100)).schedules:
        assert row.id in await remembered.of([row])
        assert len(remembered._known) <= 5
        assert len(remembered._rules) <= 6


async def test_an_unreadable_definition_does_not_affect_the_others(bench: Bench) -> None:
    for key in ("good", "bad"):
        await bench.add(Every("1h"), key=key)
    bench.later(3600)
    good, bad = (await bench.store.due_schedules(APP, 100)).schedules
    bad = msgspec.structs.replace(bad, definition='{"task": 7}')
    assert list(await Rules(bench.store, APP).of([good, bad])) == [good.id]


async def test_rules_that_differ_only_by_their_start_share_one_family(bench: Bench) -> None:
    for number in range(3):
        await bench.add(Every("1h", since="start", start=from_us(bench.start + number * MINUTE)), key=f"k{number}")
    bench.later(2 * 3600)
    remembered = Rules(bench.store, APP)

    found = await known(bench, remembered)

    assert [each.rule for each in found.values()] == [parse_when(each.definition.when) for each in found.values()]
    assert len(remembered._families._families) == 1


async def test_many_new_definitions_do_not_block_the_event_loop(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cooperative, "TURN", 5)
    for number in range(20):
        await bench.add(Every(f"{number + 1}m"), key=f"k{number}")
    bench.later(HOUR / 1e6)
    due = (await bench.store.due_schedules(APP, 100)).schedules

    learning = asyncio.create_task(Rules(bench.store, APP).of(due))
    seen = 0
    while not learning.done():
        await asyncio.sleep(0)
        seen += 1

    assert len(learning.result()) == 20
    assert seen > 20 / 5
