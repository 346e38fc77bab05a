"""How `why`, the doctor and listings show dispatched runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from evertick import Run, Scheduler, State
from evertick.cli.show.words import losses_words, remark, tries
from evertick.doctor import examine
from evertick.explain.run import ended_words, explain_run, explain_task
from evertick.model import Claimed, DispatchTerms, MessageOutcome, NewMessage, Outcome, Report, Verdict, hearing_tick
from evertick.model.message import dispatch_key
from evertick.store.base import NodeJoin, RunFilter, Store, TaskTerms
from evertick.store.sqlite import SqliteStore
from evertick.testing.clock import SettableClock
from evertick.testing.conformance import a_run
from evertick.when.moment import HOUR, MINUTE, from_us

APP, QUEUE = "default", "builds"
TERMS = {"build": TaskTerms()}


class Ledger:
    """A run that is dispatched, step by step."""

    def __init__(self, store: Store, clock: SettableClock, run: Run) -> None:
        self.store, self.clock, self.run = store, clock, run
        self.held: Claimed | None = None

    async def dispatch(self, **agreed: Any) -> None:
        [self.held] = (await self.store.claim(APP, "n", ["default"], TERMS, 1)).runs
        dispatch = DispatchTerms(to=QUEUE, **{"ack_timeout": 10 * MINUTE, "progress_timeout": MINUTE, **agreed})
        key = dispatch_key(self.held.id, self.held.fence)
        message = NewMessage(
            id=self.clock.new_id(),
            channel=QUEUE,
            key=key,
            body=b"{}",
            caused_by=self.held.id,
            dispatches=self.held.fence,
        )
        outcome = Outcome(
            id=self.held.id, fence=self.held.fence, kind="dispatch", dispatch=dispatch, messages=(message,)
        )
        assert (await self.store.finish(APP, "n", [outcome])).answers == ["done"]

    async def report(self, kind: Any, **fields: Any) -> None:
        assert self.held is not None
        said = Report(id=self.held.id, fence=self.held.fence, kind=kind, **fields)
        assert [each.answer for each in await self.store.apply_reports(APP, [said])] == ["done"]

    async def fail_to_send(self, error: str) -> None:
        [held] = (await self.store.claim_messages(APP, "n", {QUEUE: 1}, ())).messages
        outcome = MessageOutcome(
            id=held.id, fence=held.fence, kind="retry", attempts=held.attempts + 1, delay=MINUTE, error=error
        )
        assert await self.store.settle_messages(APP, "n", [outcome]) == ["done"]

    async def beat(self, *ticks: str) -> None:
        line = await self.store.heartbeat_session()
        await line.beat("n", HOUR, dict.fromkeys(ticks, (0, None)))
        await line.close()

    async def why(self) -> str:
        [run] = await self.store.runs(APP, RunFilter())
        return (await explain_run(self.store, run)).now

    async def found(self) -> Run:
        [run] = await self.store.runs(APP, RunFilter())
        return run

    async def findings(self) -> list[tuple[str, str]]:
        found = await examine(self.store, APP, from_us(await self.store.now()))
        checks = ("queue_away", "untaken_runs", "reports_unheard")
        return [(each.check, each.what) for each in found if each.check in checks]


@pytest.fixture
async def ledger() -> AsyncIterator[Ledger]:
    clock = SettableClock()
    store = SqliteStore("sqlite://", clock=clock, is_inline=True)
    await store.open(migrate="auto")
    await store.join(
        NodeJoin(
            id="n",
            name="n",
            app=APP,
            version="1",
            lease=HOUR,
            queues=("default",),
            tasks=TERMS,
            declares={},
            channels=(QUEUE,),
        )
    )
    [run] = await store.enqueue(APP, [a_run(task="build")])
    ledger = Ledger(store, clock, run)
    await ledger.beat(hearing_tick(QUEUE))
    yield ledger
    await store.close()


async def test_why_tells_each_step_of_a_dispatched_run(ledger: Ledger) -> None:
    id_ = ledger.run.id
    await ledger.dispatch()
    since = f"run {id_} was dispatched to 'builds' at 2026-01-01 00:00:00 UTC"
    assert await ledger.why() == f"{since}, and its message waits to be sent"
    await ledger.fail_to_send("Traceback (most recent call last):\nConnectionError: nobody answers")
    tried = "1 try (ConnectionError: nobody answers), the next at 2026-01-01 00:01:00 UTC"
    assert await ledger.why() == f"{since}, which has not accepted it: {tried}"
    await ledger.beat()
    assert await ledger.why() == (f"{since}, which is unreachable: {tried}")
    await ledger.beat(hearing_tick(QUEUE))
    await ledger.report("pushed")
    assert await ledger.why() == (
        f"{since}, not taken by a worker yet; if no worker takes it, it is sent again at 2026-01-01 00:10:00 UTC"
    )
    await ledger.report("taken")
    await ledger.report("progress", progress=0.5, progress_text="half")
    assert await ledger.why() == (
        f"run {id_} (attempt 1) is with a worker of 'builds' since 2026-01-01 00:00:00 UTC, at 50% half; if its "
        "worker does not report by 2026-01-01 00:01:00 UTC, it is sent again"
    )
    await ledger.store.cancel(APP, [id_], "requested")
    assert (await ledger.why()).endswith(
        ", at 50% half; cancel requested: it ends when its worker obeys, or when the time to stop is over"
    )
    assert (await explain_task(ledger.store, APP, "build")).live == {"dispatched": 1}


async def test_why_does_not_say_that_a_cancelled_run_is_pushed_again(ledger: Ledger) -> None:
    await ledger.dispatch(queue="docker", served_by="evertick worker --broker redis --driver docker -- COMMAND")
    await ledger.report("pushed")
    await ledger.store.cancel(APP, [ledger.run.id], "requested")
    assert (await ledger.why()).endswith(", not taken by a worker yet; cancel requested: a node ends it within seconds")
    await ledger.beat()
    assert (await ledger.why()).endswith(
        ", not taken by a worker yet; cancel requested: no live node reads the reports of 'builds', so a worker "
        "that has it gets time to stop"
    )


async def test_the_queue_and_the_command_that_serves_it_are_named_until_a_worker_takes_the_run(ledger: Ledger) -> None:
    served_by = "evertick worker --broker redis --driver docker"
    await ledger.dispatch(queue="docker", served_by=served_by)
    assert "dispatched to builds queue docker since " in remark(await ledger.found())
    await ledger.report("pushed")
    assert await ledger.why() == (
        f"run {ledger.run.id} was dispatched to the queue 'docker' of 'builds' at 2026-01-01 00:00:00 UTC, not taken "
        f"by a worker yet (start one with `{served_by}`); if no worker takes it, it is sent again at "
        "2026-01-01 00:10:00 UTC"
    )
    ledger.clock.move(6 * MINUTE)
    await ledger.beat(hearing_tick(QUEUE))
    findings = await examine(ledger.store, APP, from_us(await ledger.store.now()))
    [finding] = [each for each in findings if each.check == "untaken_runs"]
    assert finding.what == "1 dispatched run waits for a worker of the queue 'docker' of 'builds', the oldest for 6 min"
    assert f"start a worker that takes them, `{served_by}`, or more of them" in finding.fix
    await ledger.report("taken")
    assert "is with a worker of the queue 'docker' of 'builds' since " in await ledger.why()
    assert "with a worker of builds queue docker since " in remark(await ledger.found())


async def test_why_tells_that_no_node_delivers_to_a_queue(ledger: Ledger) -> None:
    await ledger.dispatch()
    await ledger.store.leave("n")
    assert (await ledger.why()).endswith("and no live node sends to it: start one that does")


async def test_the_doctor_names_a_queue_that_is_away_and_one_whose_workers_are(ledger: Ledger) -> None:
    await ledger.dispatch()
    assert await ledger.findings() == []
    await ledger.fail_to_send("ConnectionError: no answer")
    ledger.clock.move(2 * MINUTE)
    what = "which has not accepted the message: 1 try so far (ConnectionError: no answer)"
    assert await ledger.findings() == [("queue_away", f"1 dispatched run waits for 'builds', {what}")]
    await ledger.beat()
    assert await ledger.findings() == [
        (
            "queue_away",
            "1 dispatched run waits for 'builds', which is unreachable: 1 try so far (ConnectionError: no answer)",
        )
    ]
    await ledger.beat(hearing_tick(QUEUE))
    await ledger.report("pushed")
    ledger.clock.move(MINUTE // 2)
    assert await ledger.findings() == []
    ledger.clock.move(5 * MINUTE + MINUTE // 2)
    await ledger.beat(hearing_tick(QUEUE))
    assert await ledger.findings() == [
        ("untaken_runs", "1 dispatched run waits for a worker of 'builds', the oldest for 6 min")
    ]
    await ledger.report("taken")
    assert await ledger.findings() == []


async def test_the_doctor_waits_a_minute_for_a_worker_where_a_run_may_wait_for_hours(ledger: Ledger) -> None:
    await ledger.dispatch(ack_timeout=6 * HOUR)
    await ledger.report("pushed")
    ledger.clock.move(MINUTE // 2)
    assert await ledger.findings() == []
    ledger.clock.move(MINUTE)
    assert [check for check, _ in await ledger.findings()] == ["untaken_runs"]


async def test_why_and_the_doctor_tell_that_no_node_reads_the_reports_of_a_queue(ledger: Ledger) -> None:
    await ledger.dispatch()
    await ledger.report("pushed")
    await ledger.beat()
    unheard = "; no live node reads the reports of 'builds', so none declares its workers silent"
    assert (await ledger.why()).endswith(f", not taken by a worker yet{unheard}")
    await ledger.report("taken")
    assert (await ledger.why()).endswith(f"is with a worker of 'builds' since 2026-01-01 00:00:00 UTC{unheard}")
    assert await ledger.findings() == []
    ledger.clock.move(2 * MINUTE)
    assert await ledger.findings() == [
        (
            "reports_unheard",
            "1 dispatched run waits for a report of the workers of 'builds', which no live node reads, the oldest "
            "overdue by 1 min: no worker is declared silent",
        )
    ]
    await ledger.beat(hearing_tick(QUEUE))
    assert await ledger.findings() == []


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("no_progress", "its worker stopped reporting"),
        ("not_taken", "no worker took it in time"),
        ("node_died", "its node died"),
    ],
)
async def test_a_run_that_ended_by_its_loss_was_not_run_again(ledger: Ledger, reason: str, shown: str) -> None:
    run = await ledger.found()
    lost = msgspec.structs.replace(run, state=State.DONE, losses=1, verdict=Verdict.LOST, reason=reason)
    assert ended_words(lost, None) == f"ended as lost: {shown}"
    often = msgspec.structs.replace(lost, losses=3)
    who = "its node" if reason == "node_died" else "its worker"
    assert ended_words(often, None) == f"ended as lost: {shown}; {who} was lost 2 times before, and it was run again"
    went_on = msgspec.structs.replace(lost, verdict=Verdict.SUCCEEDED, reason=None)
    assert ended_words(went_on, None) == "succeeded; it was lost once before, and it was run again"
    cancelled = msgspec.structs.replace(lost, verdict=Verdict.CANCELLED, reason="requested")
    assert ended_words(cancelled, None) == "ended as cancelled: it was requested; it was lost once"


async def test_a_listing_tells_in_whose_hands_a_run_is(ledger: Ledger) -> None:
    await ledger.dispatch()
    assert remark(await ledger.found()).startswith("dispatched to builds since ")
    assert remark(await ledger.found()).endswith(", not sent yet")
    await ledger.report("pushed")
    untaken = await ledger.found()
    assert remark(untaken).endswith(", not taken yet")
    assert tries(untaken) == "0", "a run that was not started has no try"
    assert tries(msgspec.structs.replace(untaken, attempts=1)) == "1"
    await ledger.report("taken")
    run = await ledger.found()
    assert "with a worker of builds since " in remark(run)
    assert (tries(run), run.state) == ("1", State.DISPATCHED)
    lost = msgspec.structs.replace(run, losses=1)
    assert tries(lost) == "2", "the one that was lost, and the one that goes on"
    assert losses_words(lost) == "its worker was lost once, run again"
    ended = msgspec.structs.replace(run, losses=3, dispatched=None, verdict=Verdict.LOST, reason="no_progress")
    assert losses_words(ended) == "its worker was lost 3 times"


async def test_health_counts_dispatched_runs() -> None:
    scheduler = Scheduler("sqlite://", concurrency=0)
    assert (await scheduler.health()).dispatched == 0
    await scheduler.close()
