"""Rows that a store writes while its clock is ahead are found and repaired: waiting, ended and held ones."""

from __future__ import annotations

from postgres_stores import PostgresStores

from evertick.model import Cause, MessageOutcome, NewMessage, NewRun, Outcome, State, Verdict
from evertick.store.base import NodeJoin, RunFilter, Store, TaskTerms
from evertick.store.postgres import PostgresStore
from evertick.store.sqlite import SqliteStore
from evertick.testing.clock import SettableClock
from evertick.when.moment import HOUR, MINUTE, SECOND, to_us

APP, LEASE, TERMS = "shop", 15 * SECOND, {"job": TaskTerms(timeout=10 * MINUTE)}
AHEAD = 30_000 * 24 * HOUR
clock = SettableClock()


def a_run(**fields: object) -> NewRun:
    given: dict[str, object] = {"id": clock.new_id(), "task": "job", "cause": Cause.ENQUEUE, **fields}
    return NewRun(**given)  # type: ignore[arg-type]


async def claimed(store: Store) -> tuple[str, int]:
    (run,) = (await store.claim(APP, "n1", ["default"], TERMS, 1)).runs
    return run.id, run.fence


async def write_before(store: Store) -> tuple[str, str]:
    """A run and a message that were there before the clock went wrong."""
    await store.join(
        NodeJoin(id="n1", name="n1", app=APP, version="1", lease=LEASE, queues=("default",), tasks=TERMS, declares={})
    )
    (waits,) = await store.enqueue(APP, [a_run()])
    (message,) = await store.send(APP, [NewMessage(id=clock.new_id(), channel="mail", key="k", body=b"1")])
    return waits.id, message.id


async def write_ahead(store: Store) -> tuple[str, str, str]:
    """Ahead of time: the run fails and waits, another one ends, a third one is at work, the message fails."""
    id_, fence = await claimed(store)
    await store.finish(
        APP, "n1", [Outcome(id=id_, fence=fence, kind="retry", error="no paper", delay=MINUTE, attempts=1)]
    )
    await store.enqueue(APP, [a_run(unique_key="key", unique_for=HOUR)])
    done, fence = await claimed(store)
    await store.finish(APP, "n1", [Outcome(id=done, fence=fence, kind="done", verdict=Verdict.SUCCEEDED, attempts=1)])
    await store.enqueue(APP, [a_run()])
    working, _ = await claimed(store)
    (later,) = await store.enqueue(APP, [a_run(delay=10 * MINUTE)])
    (message,) = (await store.claim_messages(APP, "n1", {"mail": 1}, [])).messages
    await store.settle_messages(
        APP, "n1", [MessageOutcome(id=message.id, fence=message.fence, kind="retry", attempts=1, delay=MINUTE)]
    )
    return done, working, later.id


async def check(store: SqliteStore | PostgresStore, before: tuple[str, str], ahead: tuple[str, str, str]) -> None:
    now = await store.now()
    traces = await store.clock_traces(APP, limit=100)
    assert traces.first_at is not None
    assert traces.first_at > now + AHEAD - MINUTE
    assert {name: traces.rows[name] for name in ("runs", "messages", "keys", "history", "attempts")} == {
        "runs": 3,
        "messages": 1,
        "keys": 1,
        "history": 1,
        "attempts": 1,
    }
    assert (await store.mend_times(APP, [], traces=traces, limit=100))["runs"] == 3
    runs = {run.id: run for run in await store.runs(APP, RunFilter())}
    done, working, later = ahead
    assert to_us(runs[before[0]].due_at) <= await store.now()
    assert 9 * MINUTE < to_us(runs[later].due_at) - now < 11 * MINUTE
    assert (runs[done].verdict, runs[done].started_at is not None) == (Verdict.SUCCEEDED, True)
    assert all(
        to_us(at) < now + MINUTE for run in runs.values() for at in (run.created_at, run.fire_at) if run.id != later
    )
    assert runs[working].state is State.RUNNING
    # It is still its node's own, and may end.
    owned = {run.id: run.fence for run in await store.owned(APP, "n1")}
    outcome = Outcome(id=working, fence=owned[working], kind="done", verdict=Verdict.SUCCEEDED, attempts=1)
    assert (await store.finish(APP, "n1", [outcome])).answers == ["done"]
    assert [attempt.number for attempt in await store.attempts(APP, before[0])] == [1]
    assert (await claimed(store))[0] == before[0]
    (sent,) = (await store.claim_messages(APP, "n1", {"mail": 1}, [])).messages
    assert sent.id == before[1]
    # The key is held for its hour, and no longer.
    (same,) = await store.enqueue(APP, [a_run(unique_key="key", unique_for=HOUR)])
    assert (same.id, same.is_new) == (done, False)
    assert (await store.clock_traces(APP, limit=100)).rows == {}
    assert await store.mend_times(APP, [], traces=traces, limit=100) == {}


async def test_on_sqlite() -> None:
    own = SettableClock()
    store = SqliteStore("sqlite://", clock=own, is_inline=True)
    await store.open(migrate="auto")
    before, right = await write_before(store), own.now_us()
    own.jump_to(right + AHEAD)
    ahead = await write_ahead(store)
    own.jump_to(right + SECOND)
    await check(store, before, ahead)
    await store.close()


async def test_on_postgresql(postgres_stores: PostgresStores) -> None:
    store = await postgres_stores.open()
    assert isinstance(store, PostgresStore)
    before = await write_before(store)
    await postgres_stores.pass_time(AHEAD)
    ahead = await write_ahead(store)
    await postgres_stores.pass_time(-AHEAD)
    await check(store, before, ahead)
