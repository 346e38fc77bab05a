"""Schedules declared in code, and stored schedules."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest
from ledger_bench import APP, Bench

from evertick import AlreadyDeclared, Every
from evertick.definition.declarations import Declaration, Declarations, calling_place
from evertick.ledger.editor import Addition
from evertick.model import Definition
from evertick.when import When


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    await made.open()
    yield made
    await made.store.close()


def declaration(rule: When | None = None, key: str = "k", place: str = "app.py:1", **fields: Any) -> Declaration:
    return Declaration(
        key=key, rule=rule or Every("1m"), definition=Definition(task="job", when="", **fields), place=place
    )


async def start(bench: Bench, *declared: Declaration, name: str = "web") -> None:
    declarations = Declarations()
    for each in declared:
        declarations.add(each)
    await declarations.store_all(bench.store, APP, bench.editor, name)


async def test_declared_schedules_are_stored_at_the_start(bench: Bench) -> None:
    await start(bench, declaration(args={"a": 1}), declaration(key="other"))
    stored = await bench.stored()
    assert stored.declared is not None
    assert stored.declared.node_name == "web"
    assert stored.definition.args == {"a": 1}
    assert (await bench.stored("other")).version == 1


async def test_starting_again_with_the_same_code_writes_nothing(bench: Bench) -> None:
    await start(bench, declaration(Every("7m", since="start")))
    before = await bench.stored()
    bench.later(1000)
    await start(bench, declaration(Every("7m", since="start")))
    assert await bench.stored() == before


async def test_starting_again_leaves_a_pause_alone(bench: Bench) -> None:
    await start(bench, declaration())
    await bench.editor.pause("k", note="rain")
    before = await bench.stored()
    await start(bench, declaration())
    assert await bench.stored() == before


async def test_changed_code_is_an_edit(bench: Bench) -> None:
    await start(bench, declaration())
    bench.later(601)
    await start(bench, declaration(Every("5m")))
    stored = await bench.stored()
    assert (stored.version, stored.definition.when) == (2, "every 5m; tz=UTC")
    assert await bench.fired() == [600]
    assert await bench.gaps() == [(60, 540, 9, "skipped", "edited")]


async def test_changed_code_leaves_a_pause_alone(bench: Bench) -> None:
    await start(bench, declaration())
    await bench.editor.pause("k", note="rain")
    await start(bench, declaration(priority=3))
    stored = await bench.stored()
    assert stored.definition.priority == 3
    assert stored.pause is not None
    assert stored.pause.note == "rain"


async def test_an_edit_at_run_time_stays_as_an_override_until_the_code_changes(bench: Bench) -> None:
    await start(bench, declaration(priority=1))
    await bench.editor.edit("k", lambda old: msgspec.structs.replace(old, priority=9))
    await start(bench, declaration(priority=1))
    assert (await bench.stored()).definition.priority == 9
    await start(bench, declaration(priority=2))
    assert (await bench.stored()).definition.priority == 2


async def test_of_two_programs_with_different_declarations_the_last_to_start_wins(bench: Bench) -> None:
    await start(bench, declaration(priority=1))
    await start(bench, declaration(priority=2), name="worker")
    stored = await bench.stored()
    assert stored.definition.priority == 2
    assert stored.declared is not None
    assert stored.declared.node_name == "worker"


async def test_a_declaration_whose_key_another_node_adds_at_the_same_moment_is_not_dropped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, others = bench.editor.add, [declaration(Every("5m"))]

    async def add_second(additions: Sequence[Addition], **options: bool) -> list[bool]:
        if others:
            await start(bench, others.pop(), name="other")
        return await add(additions, **options)

    monkeypatch.setattr(bench.editor, "add", add_second)
    await start(bench, declaration(Every("7m")), declaration(key="free"))
    stored = await bench.stored()
    assert stored.declared is not None
    assert stored.declared.node_name == "web"
    assert stored.definition.when.startswith("every 7m")
    assert (await bench.stored("free")).version == 1


async def test_declaring_a_schedule_again_resumes_it_after_a_pause_as_undeclared(bench: Bench) -> None:
    await start(bench, declaration())
    await bench.editor.pause_undeclared("k", "web")
    bench.later(150)
    await start(bench, declaration())
    stored = await bench.stored()
    assert stored.pause is None
    assert bench.seconds(stored.fire_at) == 180
    assert await bench.gaps() == [(60, 120, 2, "skipped", "undeclared")]


async def test_a_schedule_added_at_run_time_is_taken_over_by_the_code_that_declares_it(bench: Bench) -> None:
    await bench.add(Every("1h"))
    await start(bench, declaration())
    stored = await bench.stored()
    assert stored.declared is not None
    assert stored.definition.when == "every 1m; tz=UTC"


async def test_a_start_does_not_touch_schedules_that_it_no_longer_declares(bench: Bench) -> None:
    await start(bench, declaration(), declaration(key="other"))
    before = await bench.stored("other")
    await start(bench, declaration())
    assert await bench.stored("other") == before


async def test_a_program_that_declares_nothing_reads_and_writes_nothing(bench: Bench) -> None:
    await bench.store.close()
    await start(bench)
    await bench.store.open(migrate="auto")


def test_the_same_key_twice_is_refused_with_both_places() -> None:
    declarations = Declarations()
    declarations.add(declaration(place="a.py:3"))
    with pytest.raises(AlreadyDeclared) as refused:
        declarations.add(declaration(place="b.py:9"))
    assert str(refused.value) == (
        "schedule 'k' is declared twice: at a.py:3 and at b.py:9; give one of them another key="
    )


def test_the_hash_changes_with_the_declaration_and_not_with_its_place() -> None:
    assert declaration().hash == declaration(place="elsewhere.py:9").hash
    assert declaration(args={"a": 1, "b": 2}).hash == declaration(args={"b": 2, "a": 1}).hash
    others = [declaration(Every("2m")), declaration(priority=1), declaration(args={"a": 1}), declaration(grace=5)]
    assert len({each.hash for each in [declaration(), *others]}) == 5


def test_the_place_of_a_declaration_is_the_line_of_the_caller() -> None:
    def declare() -> str:
        return calling_place(1)

    place = declare()
    file, _, line = place.rpartition(":")
    assert file == __file__
    assert int(line) > 1
