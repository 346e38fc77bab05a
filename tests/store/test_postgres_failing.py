"""The look for schedules that have failed too often is the work of the database: its answer is short."""

from __future__ import annotations

import pytest
from postgres_stores import PostgresStores

from evertick.model import Verdict
from evertick.store.postgres.connection import Statements
from evertick.testing.conformance import Bench
from evertick.testing.conformance.bench import APP


async def test_however_many_schedules_may_pause_themselves_the_answer_has_a_row_for_each_that_is_asked_for(
    postgres_stores: PostgresStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(postgres_stores, await postgres_stores.open())
    node = await bench.node()
    verdicts = {"well": Verdict.SUCCEEDED, "first": Verdict.FAILED, "second": Verdict.LOST, "third": Verdict.FAILED}
    for key, verdict in verdicts.items():
        await bench.add(key, pause_after=2)
        for _ in range(2):
            schedule = await bench.stored(key)
            assert schedule.fire_at is not None
            following = schedule.fire_at + 1
            run = await bench.fire(schedule, {"next_fire_at": following, "next_at": following})
            await bench.end(node, await bench.hold(node, run), verdict=verdict)
    rows, answers = Statements.rows, list[int]()

    async def counted(session: Statements, name: str, *values: object) -> object:
        found = await rows(session, name, *values)
        answers.append(len(found))
        return found

    monkeypatch.setattr(Statements, "rows", counted)
    failing = await bench.store.failing(APP, limit=2)
    assert ([each.key for each in failing], answers) == (["first", "second"], [2])
