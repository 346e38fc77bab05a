"""Promises about dispatched runs: they belong to no node, only reports with their fence count, and they are released
when no worker takes them or their worker is silent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import pytest

from evertick.model import (
    LINES_MAX,
    LOSSES_MAX,
    Claimed,
    DispatchedTo,
    DispatchMode,
    DispatchTerms,
    MessageOutcome,
    MessageState,
    NewMessage,
    Outcome,
    Report,
    Run,
    State,
    Verdict,
)
from evertick.model.limits import make_concurrency
from evertick.model.message import dispatch_key
from evertick.store.base import DispatchesChecked, MessageFilter, ReportAnswer, ReportWindow, TaskTerms
from evertick.testing.conformance.bench import (
    APP,
    HOUR,
    MINUTE,
    OTHER_APP,
    SECOND,
    TASK,
    Bench,
    a_fire,
    a_run,
    an_advance,
    an_outcome,
    us,
)
from evertick.testing.conformance.feed import read_feed

__all__ = ["Dispatched"]

CHANNEL = "queue"
KILLS = "kills"
_PATIENT = DispatchTerms(to=CHANNEL, ack_timeout=HOUR, progress_timeout=HOUR)


def a_dispatch(held: Claimed, dispatch: DispatchTerms = _PATIENT, **fields: Any) -> Outcome:
    """The outcome that dispatches a run, with its message."""
    message = NewMessage(
        id=a_run().id,
        channel=dispatch.to,
        key=dispatch_key(held.id, held.fence),
        body=b'{"v":1}',
        caused_by=held.id,
        dispatches=held.fence,
    )
    return an_outcome(
        held, "dispatch", **{"dispatch": dispatch, "messages": (message,), "attempts": held.attempts, **fields}
    )


def report_of(held: Claimed, kind: str, **fields: Any) -> Report:
    return Report(id=held.id, fence=held.fence, kind=kind, **fields)  # type: ignore[arg-type]


async def dispatch(bench: Bench, node: str, run: str | None = None, **agreed: Any) -> Claimed:
    """Claim a run and dispatch it."""
    terms = agreed.pop("terms", None)
    held = await bench.hold(node, run, terms=terms)
    assert await bench.finish(node, a_dispatch(held, msgspec.structs.replace(_PATIENT, **agreed))) == ["done"]
    return held


async def report(bench: Bench, *reports: Report) -> list[str]:
    answers = await bench.store.apply_reports(APP, reports)
    return [answer.answer for answer in answers]


async def answer_to(bench: Bench, one: Report) -> ReportAnswer:
    [answer] = await bench.store.apply_reports(APP, [one])
    return answer


async def check(
    bench: Bench, *, app: str = APP, limit: int = 100, windows: Mapping[str, ReportWindow] | None = None
) -> DispatchesChecked:
    """Check as a node that has read all reports, or those of `windows`."""
    always = {CHANNEL: ReportWindow(0, await bench.now() + HOUR)}
    return await bench.store.check_dispatched(app, limit, always if windows is None else windows)


async def messages(bench: Bench, channel: str = CHANNEL) -> list[tuple[str, MessageState]]:
    found = await bench.store.messages(APP, MessageFilter(channel=channel))
    return [(message.key, message.state) for message in reversed(found)]


async def dispatched_run(bench: Bench, run: str) -> Run:
    found = await bench.run(run)
    assert found.state is State.DISPATCHED
    return found


class Dispatched:
    # --- queue and worker of a run

    async def test_a_finished_run_names_the_queue_and_the_worker_that_did_it(self, bench: Bench) -> None:
        node = await bench.node()
        known, at_once, nameless = [await dispatch(bench, node, queue="docker") for _ in range(3)]
        await report(bench, report_of(known, "taken", worker="w1"))
        assert (await dispatched_run(bench, known.id)).dispatched_to == DispatchedTo(
            to=CHANNEL, queue="docker", worker="w1"
        )
        await report(
            bench,
            report_of(known, "finish", worker="another name"),
            report_of(at_once, "taken", worker="w2"),
            report_of(at_once, "fail", worker="w2", retry=False, error="no"),
            report_of(nameless, "finish"),
        )
        found = [(await bench.run(held.id)).dispatched_to for held in (known, at_once, nameless)]
        assert found == [DispatchedTo(to=CHANNEL, queue="docker", worker=worker) for worker in ("w1", "w2", None)]

    async def test_a_run_dispatched_again_names_only_its_new_worker(self, bench: Bench) -> None:
        node = await bench.node()
        held = await dispatch(bench, node)
        await report(bench, report_of(held, "taken", worker="w1"), report_of(held, "release"))
        assert (await bench.run(held.id)).dispatched_to is None
        again = await dispatch(bench, node, held.id)
        assert (await dispatched_run(bench, held.id)).dispatched_to == DispatchedTo(to=CHANNEL)
        await report(bench, report_of(again, "finish", worker="w2"))
        assert (await bench.run(held.id)).dispatched_to == DispatchedTo(to=CHANNEL, worker="w2")

    async def test_a_report_of_a_worker_whose_name_cannot_be_stored_is_accepted(self, bench: Bench) -> None:
        held = await dispatch(bench, await bench.node())
        await report(bench, report_of(held, "finish", worker="w\x00\ud800"))
        assert (await bench.run(held.id)).dispatched_to == DispatchedTo(to=CHANNEL, worker="w\ufffd?")

    async def test_a_run_finished_by_a_node_names_no_queue(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        assert await bench.finish(node, an_outcome(held, "done", verdict=Verdict.SUCCEEDED)) == ["done"]
        assert (await bench.run(held.id)).dispatched_to is None

    # --- dispatching

    async def test_a_dispatched_run_belongs_to_no_node_and_keeps_its_fence(self, bench: Bench) -> None:
        node = await bench.node()
        before = await bench.now()
        held = await dispatch(bench, node)
        run = await dispatched_run(bench, held.id)
        assert (run.node, run.fence, run.attempts, run.losses, run.started_at) == (None, held.fence, 0, 0, None)
        assert run.dispatched is not None
        assert (run.dispatched.to, run.dispatched.mode) == (CHANNEL, "finish")
        assert (run.dispatched.pushed_at, run.dispatched.taken_at, run.dispatched.until) == (None, None, None)
        assert before <= us(run.dispatched.at) <= await bench.now()
        assert await bench.store.owned(APP, node) == []
        [listed] = await bench.store.nodes(APP)
        assert listed.running == 0

    async def test_a_dispatch_writes_its_message_with_it(self, bench: Bench) -> None:
        node = await bench.node()
        held = await dispatch(bench, node)
        [message] = await bench.store.messages(APP, MessageFilter(channel=CHANNEL))
        assert (message.key, message.caused_by) == (dispatch_key(held.id, held.fence), held.id)
        [claimed] = (await bench.store.claim_messages(APP, node, {CHANNEL: 9}, ())).messages
        assert (claimed.caused_by, claimed.dispatches) == (held.id, held.fence)

    async def test_a_dispatch_of_a_lost_claim_writes_nothing(self, bench: Bench) -> None:
        node, successor = await bench.node(), await bench.node()
        held = await bench.hold(node)
        await bench.store.leave(node)
        [again] = (await bench.rehome(successor)).claimed
        assert await bench.finish(node, a_dispatch(held)) == ["lost"]
        assert await messages(bench) == []
        assert (await bench.run(held.id)).fence == again.fence

    async def test_a_dispatch_sent_again_is_answered_with_already(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        outcome = a_dispatch(held)
        assert await bench.finish(node, outcome) == ["done"]
        assert await bench.finish(node, outcome) == ["already"]
        assert len(await messages(bench)) == 1
        await report(bench, report_of(held, "finish"))
        assert await bench.finish(node, outcome) == ["already"]

    async def test_a_requested_cancel_wins_over_a_dispatch(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        assert await bench.cancel(held.id) == ["asked"]
        assert await bench.finish(node, a_dispatch(held)) == ["done"]
        run = await bench.run(held.id)
        assert (run.verdict, run.reason) == (Verdict.CANCELLED, "requested")
        assert await messages(bench) == []

    async def test_dispatches_and_other_outcomes_are_written_in_one_batch(self, bench: Bench) -> None:
        node = await bench.node()
        await bench.store.enqueue(APP, [a_run() for _ in range(4)])
        first, second, third, fourth = (await bench.claim(node)).runs
        answers = await bench.finish(
            node, a_dispatch(first), an_outcome(second), an_outcome(third, "release"), a_dispatch(fourth)
        )
        assert answers == ["done"] * 4
        states = [await bench.state(held.id) for held in (first, second, third, fourth)]
        assert states == [State.DISPATCHED, State.DONE, State.WAITING, State.DISPATCHED]
        assert len(await messages(bench)) == 2

    async def test_cancelled_and_lost_runs_of_a_dispatch_batch_send_no_message(self, bench: Bench) -> None:
        node = await bench.node()
        dispatched, cancelled, other, twice = [await bench.hold(node) for _ in range(4)]
        await bench.cancel(cancelled.id, reason="unwanted")
        stale = a_dispatch(msgspec.structs.replace(other, fence=other.fence + 1_000_000))
        outcomes = [a_dispatch(dispatched), a_dispatch(cancelled), stale, a_dispatch(twice), a_dispatch(twice)]
        assert await bench.finish(node, *outcomes) == ["done", "done", "lost", "done", "already"]
        sent = await messages(bench)
        assert {key for key, _ in sent} == {dispatch_key(each.id, each.fence) for each in (dispatched, twice)}
        assert (await bench.run(cancelled.id)).verdict is Verdict.CANCELLED
        assert (await bench.run(other.id)).state is State.RUNNING

    async def test_a_dispatched_run_survives_the_death_of_the_node_that_dispatched_it(self, bench: Bench) -> None:
        node, successor = await bench.node(), await bench.node()
        held = await dispatch(bench, node)
        await bench.store.leave(node)
        rehomed = await bench.rehome(successor)
        assert (rehomed.claimed, rehomed.released, rehomed.ended) == ([], [], [])
        assert (await dispatched_run(bench, held.id)).losses == 0
        assert await report(bench, report_of(held, "finish")) == ["done"]

    async def test_a_run_dispatched_from_the_own_queue_of_a_node_survives_its_death(self, bench: Bench) -> None:
        node, successor = await bench.node(), await bench.node()
        run = await bench.enqueue(queue=f"@{node}")
        [held] = (await bench.claim(node, queues=(f"@{node}",))).runs
        await bench.finish(node, a_dispatch(held))
        await bench.store.leave(node)
        assert (await bench.rehome(successor)).ended == []
        assert await report(bench, report_of(held, "finish")) == ["done"]
        assert (await bench.run(run.id)).verdict is Verdict.SUCCEEDED

    async def test_a_node_cannot_write_about_a_run_that_it_has_dispatched(self, bench: Bench) -> None:
        node = await bench.node()
        held = await dispatch(bench, node)
        assert await bench.note(node, held, progress=0.5, lines=((1, "info", "hello"),)) == [held.id]
        assert await bench.finish(node, an_outcome(held)) == ["already"]
        run = await dispatched_run(bench, held.id)
        assert (run.progress, await bench.store.log(APP, held.id)) == (None, [])

    # --- reports

    async def test_a_worker_takes_a_run_reports_progress_and_finishes_it(self, bench: Bench) -> None:
        node = await bench.node()
        held = await dispatch(bench, node)
        assert await report(bench, report_of(held, "pushed")) == ["done"]
        pushed = (await dispatched_run(bench, held.id)).dispatched
        assert pushed is not None
        assert pushed.until is not None
        assert us(pushed.until) == us(pushed.pushed_at) + HOUR
        assert await report(bench, report_of(held, "taken")) == ["done"]
        run = await dispatched_run(bench, held.id)
        assert run.dispatched is not None
        assert run.started_at == run.dispatched.taken_at
        assert us(run.dispatched.until) == us(run.dispatched.taken_at) + HOUR
        assert await report(bench, report_of(held, "progress", progress=0.5, progress_text="half")) == ["done"]
        run = await dispatched_run(bench, held.id)
        assert (run.progress, run.progress_text) == (0.5, "half")
        answer = await answer_to(bench, report_of(held, "finish", result=b'{"n":1}'))
        assert (answer.answer, answer.verdict) == ("done", Verdict.SUCCEEDED)
        ended = await bench.run(held.id)
        assert (ended.verdict, ended.result, ended.attempts, ended.fence) == (
            Verdict.SUCCEEDED,
            {"n": 1},
            1,
            held.fence,
        )
        assert (ended.started_at, ended.dispatched) == (run.started_at, None)

    async def test_reports_of_a_batch_are_applied_in_order(self, bench: Bench) -> None:
        node = await bench.node()
        held = await dispatch(bench, node)
        reports = [report_of(held, kind) for kind in ("pushed", "taken", "progress", "finish", "progress", "finish")]
        assert await report(bench, *reports) == ["done"] * 4 + ["already"] * 2
        run = await bench.run(held.id)
        assert run.verdict is Verdict.SUCCEEDED
        assert run.started_at is not None

    async def test_a_finished_run_has_the_duration_that_its_worker_measured(self, bench: Bench) -> None:
        """Also if all its reports arrive at one moment."""
        node, took = await bench.node(), bench.short // 3
        held = await dispatch(bench, node, retry_delay=0)
        await bench.pass_time(bench.short)
        await report(
            bench, report_of(held, "pushed"), report_of(held, "taken"), report_of(held, "fail", error="no", took=took)
        )
        [attempt] = await bench.store.attempts(APP, held.id)
        assert took <= us(attempt.finished_at) - us(attempt.started_at) < took + SECOND
        again = await dispatch(bench, node, held.id)
        await report(bench, report_of(again, "taken"))
        taken = await dispatched_run(bench, held.id)
        await bench.pass_time(bench.short)
        await report(bench, report_of(again, "finish", took=took))
        run = await bench.run(held.id)
        assert took <= us(run.finished_at) - us(run.started_at) < took + SECOND
        assert us(run.started_at) > us(taken.started_at)

    async def test_a_run_never_starts_before_its_dispatch(self, bench: Bench) -> None:
        node = await bench.node()
        held = await dispatch(bench, node)
        dispatched = (await dispatched_run(bench, held.id)).dispatched
        assert dispatched is not None
        await report(bench, report_of(held, "finish", took=HOUR))
        assert (await bench.run(held.id)).started_at == dispatched.at

    async def test_reports_about_many_runs_are_applied_in_one_batch(self, bench: Bench) -> None:
        node = await bench.node()
        runs = await bench.store.enqueue(APP, [a_run() for _ in range(5)])
        held = {each.id: each for each in (await bench.claim(node)).runs}
        await bench.finish(node, *(a_dispatch(each) for each in held.values()))
        first, second, third, fourth, fifth = (held[run.id] for run in runs)
        answers = await report(
            bench,
            report_of(first, "finish"),
            report_of(second, "fail", error="no"),
            report_of(third, "skip", reason="nothing new"),
            report_of(fourth, "taken"),
            report_of(msgspec.structs.replace(fifth, fence=fifth.fence + 7), "finish"),
            report_of(msgspec.structs.replace(fifth, id=a_run().id), "finish"),
            report_of(msgspec.structs.replace(fifth, id="no id"), "finish"),
        )
        assert answers == ["done"] * 4 + ["stale"] * 3
        found = [await bench.run(run.id) for run in runs]
        assert [(run.state, run.verdict) for run in found] == [
            (State.DONE, Verdict.SUCCEEDED),
            (State.DONE, Verdict.FAILED),
            (State.DONE, Verdict.SKIPPED),
            (State.DISPATCHED, None),
            (State.DISPATCHED, None),
        ]
        assert (found[1].error, found[1].reason, found[2].reason) == ("no", "error", "nothing new")

    async def test_the_first_report_of_a_worker_marks_the_run_as_taken(self, bench: Bench) -> None:
        node = await bench.node()
        held = await dispatch(bench, node, progress_timeout=MINUTE)
        assert await report(bench, report_of(held, "progress")) == ["done"]
        run = await dispatched_run(bench, held.id)
        assert run.dispatched is not None
        assert None not in (run.dispatched.pushed_at, run.dispatched.taken_at)
        assert us(run.dispatched.until) == us(run.dispatched.taken_at) + MINUTE
        # A late `pushed` of the node changes nothing, and sets no time for taking it.
        assert await report(bench, report_of(held, "pushed"), report_of(held, "taken")) == ["already", "already"]
        assert (await dispatched_run(bench, held.id)).dispatched == run.dispatched

    async def test_a_report_of_an_old_fence_is_refused(self, bench: Bench) -> None:
        node = await bench.node()
        old = await dispatch(bench, node, ack_timeout=0)
        await report(bench, report_of(old, "pushed"))
        assert (await check(bench)).released == [old.id]
        new = await dispatch(bench, node, old.id)
        assert new.fence > old.fence
        for kind in ("pushed", "taken", "progress", "finish", "fail", "skip", "release", "undelivered"):
            assert await report(bench, report_of(old, kind, lines=((1, "info", "late"),))) == ["stale"]
        run = await dispatched_run(bench, old.id)
        assert run.dispatched is not None
        assert (run.fence, run.dispatched.pushed_at, run.attempts) == (new.fence, None, 0)
        assert await bench.store.log(APP, old.id) == []
        assert await report(bench, report_of(new, "finish"), report_of(old, "finish")) == ["done", "stale"]

    async def test_a_report_about_a_run_that_is_not_dispatched_is_refused(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        assert await report(bench, report_of(held, "finish")) == ["stale"]
        assert await bench.state(held.id) is State.RUNNING

    async def test_a_report_from_another_app_is_refused(self, bench: Bench) -> None:
        held = await dispatch(bench, await bench.node())
        [answer] = await bench.store.apply_reports(OTHER_APP, [report_of(held, "finish")])
        assert answer.answer == "stale"
        assert await bench.state(held.id) is State.DISPATCHED

    @pytest.mark.parametrize("kind", ["finish", "fail", "skip"])
    async def test_a_final_report_sent_again_is_answered_with_already(self, bench: Bench, kind: str) -> None:
        held = await dispatch(bench, await bench.node())
        assert await report(bench, report_of(held, kind)) == ["done"]
        assert await report(bench, report_of(held, kind), report_of(held, "progress")) == ["already", "already"]

    @pytest.mark.parametrize(("mode", "kind"), [("forget", "pushed"), ("ack", "taken"), ("ack", "progress")])
    async def test_the_dispatch_mode_decides_when_a_run_has_succeeded(
        self, bench: Bench, mode: DispatchMode, kind: str
    ) -> None:
        held = await dispatch(bench, await bench.node(), mode=mode)
        if mode == "ack":
            assert await report(bench, report_of(held, "pushed")) == ["done"]
            assert await bench.state(held.id) is State.DISPATCHED
        assert await report(bench, report_of(held, kind)) == ["done"]
        run = await bench.run(held.id)
        assert (run.verdict, run.attempts) == (Verdict.SUCCEEDED, 1)
        assert run.started_at is not None
        assert await report(bench, report_of(held, "fail", error="later")) == ["already"]
        assert (await bench.run(held.id)).verdict is Verdict.SUCCEEDED

    async def test_log_lines_of_a_report_sent_again_are_stored_once(self, bench: Bench) -> None:
        held = await dispatch(bench, await bench.node())
        lines = ((1, "info", "one"), (2, "warning", "two"))
        numbered = report_of(held, "progress", lines=lines, seq=0)
        await report(bench, numbered, numbered)
        await report(bench, numbered)
        await report(bench, report_of(held, "progress", lines=((3, "info", "three"),)))
        await report(bench, report_of(held, "finish", lines=((4, "info", "four"),)))
        found = await bench.store.log(APP, held.id)
        assert [line.text for line in found] == ["one", "two", "three", "four"]
        assert {line.fence for line in found} == {held.fence}

    @pytest.mark.parametrize("is_numbered", [True, False], ids=["numbered", "unnumbered"])
    async def test_a_full_log_still_takes_the_lines_of_the_final_report(self, bench: Bench, is_numbered: bool) -> None:
        held = await dispatch(bench, await bench.node())
        each, times = 1_000, 12
        for first in range(0, each * times, each):
            lines = tuple((number, "info", str(number)) for number in range(first, first + each))
            one = report_of(held, "progress", lines=lines, seq=first if is_numbered else None)
            await report(bench, one, *([one] if is_numbered else []))
        end = ((each * times, "error", "no space left"),)
        await report(bench, report_of(held, "finish", lines=end, seq=each * times if is_numbered else None))
        found = [line.text for line in await bench.store.log(APP, held.id, limit=100_000)]
        assert found[:LINES_MAX] == [str(number) for number in range(LINES_MAX)]
        assert "the log of this attempt is full" in found[LINES_MAX]
        assert found[LINES_MAX + 1 :] == ["no space left"]

    async def test_the_log_of_an_attempt_is_limited_by_its_size(self, bench: Bench) -> None:
        held = await dispatch(bench, await bench.node())
        for first in range(0, 200, 20):
            lines = tuple((number, "info", "x" * 10_000) for number in range(first, first + 20))
            await report(bench, report_of(held, "progress", lines=lines, seq=first))
        await report(
            bench, report_of(held, "fail", lines=tuple((number, "info", "y" * 9_000) for number in range(100)))
        )
        found = [line.text for line in await bench.store.log(APP, held.id, limit=100_000)]
        assert 512 * 1024 < sum(map(len, found)) < 1024 * 1024
        assert max(map(len, found)) < 9_000
        assert "is full" in next(text for text in found if not text.startswith("x"))
        assert found[-1].startswith("y")

    async def test_a_report_that_cannot_be_written_does_not_stop_the_others_of_its_batch(self, bench: Bench) -> None:
        node = await bench.node()
        await bench.store.enqueue(APP, [a_run(), a_run()])
        bad, good = (await bench.claim(node)).runs
        await bench.finish(node, a_dispatch(bad), a_dispatch(good))
        reports = [report_of(bad, "finish", result=b"\xff"), report_of(good, "finish", result=b"1")]
        assert await report(bench, *reports) == ["done", "done"]
        run = await bench.run(bad.id)
        assert (run.verdict, run.result) == (Verdict.SUCCEEDED, None)
        assert "cannot be stored" in (run.error or "")
        assert (await bench.run(good.id)).result == 1

    # --- failures

    async def test_a_failure_is_retried_after_the_delay_stored_with_the_dispatch(self, bench: Bench) -> None:
        held = await dispatch(bench, await bench.node(), retry_delay=MINUTE)
        before = await bench.now()
        answer = await answer_to(bench, report_of(held, "fail", error="no", reason="broken"))
        assert (answer.answer, answer.verdict, answer.is_returned) == ("done", None, True)
        run = await bench.run(held.id)
        assert (run.state, run.attempts, run.losses, run.error) == (State.WAITING, 1, 0, "no")
        assert before + MINUTE <= us(run.due_at) <= await bench.now() + MINUTE
        assert (run.dispatched, run.fence) == (None, None)
        [earlier] = await bench.store.attempts(APP, held.id)
        assert (earlier.number, earlier.fence, earlier.error, earlier.reason) == (1, held.fence, "no", "broken")
        assert earlier.started_at is not None
        assert await report(bench, report_of(held, "fail")) == ["already"]

    async def test_a_failure_without_a_retry_delay_is_final(self, bench: Bench) -> None:
        held = await dispatch(bench, await bench.node(), retry_delay=None)
        assert (await answer_to(bench, report_of(held, "fail", error="no"))).verdict is Verdict.FAILED
        run = await bench.run(held.id)
        assert (run.attempts, run.reason, run.error) == (1, "error", "no")

    @pytest.mark.parametrize(
        ("retry", "after", "agreed", "delay"),
        [
            (False, None, {"retry_delay": MINUTE, "asked_delay": MINUTE}, None),
            (True, None, {"asked_delay": MINUTE}, MINUTE),
            (True, SECOND, {"asked_delay": MINUTE}, SECOND),
            (True, SECOND, {"retry_delay": MINUTE}, None),
            (None, SECOND, {"retry_delay": MINUTE, "asked_delay": HOUR}, MINUTE),
        ],
    )
    async def test_a_worker_may_ask_for_a_retry_or_forbid_it(
        self, bench: Bench, retry: bool | None, after: int | None, agreed: dict[str, Any], delay: int | None
    ) -> None:
        held = await dispatch(bench, await bench.node(), **agreed)
        before = await bench.now()
        await report(bench, report_of(held, "fail", retry=retry, retry_after=after))
        run = await bench.run(held.id)
        if delay is None:
            assert run.verdict is Verdict.FAILED
        else:
            assert run.state is State.WAITING
            assert before + delay <= us(run.due_at) <= await bench.now() + delay

    async def test_a_message_that_cannot_be_delivered_is_a_failed_attempt(self, bench: Bench) -> None:
        held = await dispatch(bench, await bench.node(), retry_delay=None)
        assert await report(bench, report_of(held, "undelivered", error="refused")) == ["done"]
        run = await bench.run(held.id)
        assert (run.verdict, run.reason, run.error) == (Verdict.FAILED, "undelivered", "refused")

    async def test_an_at_most_once_run_is_not_dispatched_again_after_an_uncertain_delivery(self, bench: Bench) -> None:
        held = await dispatch(bench, await bench.node(), terms=TaskTerms(at_most_once=True), retry_delay=0)
        assert (await answer_to(bench, report_of(held, "undelivered"))).verdict is Verdict.FAILED

    async def test_a_taken_run_cannot_be_reported_as_undelivered(self, bench: Bench) -> None:
        held = await dispatch(bench, await bench.node())
        await report(bench, report_of(held, "taken"))
        assert await report(bench, report_of(held, "undelivered", error="timeout")) == ["already"]
        assert await bench.state(held.id) is State.DISPATCHED

    async def test_a_run_released_by_its_worker_spends_no_attempt(self, bench: Bench) -> None:
        node = await bench.node()
        held = await dispatch(bench, node)
        answer = await answer_to(bench, report_of(held, "release", reason="shutdown"))
        assert (answer.answer, answer.is_returned) == ("done", True)
        run = await bench.run(held.id)
        assert (run.state, run.attempts, run.losses) == (State.WAITING, 0, 0)
        again = await dispatch(bench, node, held.id)
        assert again.fence > held.fence
        assert len(await messages(bench)) == 2

    # --- timeouts

    async def test_no_timeout_starts_before_the_message_is_in_the_queue(self, bench: Bench) -> None:
        held = await dispatch(bench, await bench.node(), ack_timeout=0, progress_timeout=0, timeout=0)
        await bench.pass_time(50_000)
        checked = await check(bench)
        assert (checked.released, checked.ended) == ([], [])
        assert await bench.state(held.id) is State.DISPATCHED

    async def test_a_run_not_taken_within_ack_timeout_is_released_without_a_loss(self, bench: Bench) -> None:
        node = await bench.node()
        held = await dispatch(bench, node, ack_timeout=bench.short)
        await report(bench, report_of(held, "pushed"))
        assert (await check(bench)).released == []
        async with bench.heartbeat() as heartbeat:
            assert not (await heartbeat.beat(node, HOUR)).has_dispatched
            await bench.pass_time(bench.short)
            assert (await heartbeat.beat(node, HOUR)).has_dispatched
        checked = await check(bench)
        assert (checked.released, checked.ended) == ([held.id], [])
        run = await bench.run(held.id)
        assert (run.state, run.losses, run.attempts, run.dispatched) == (State.WAITING, 0, 0, None)
        assert us(run.due_at) <= await bench.now()
        again = await dispatch(bench, node, held.id)
        assert again.fence > held.fence
        assert [key for key, _ in await messages(bench)] == [
            dispatch_key(held.id, held.fence),
            dispatch_key(held.id, again.fence),
        ]

    async def test_a_worker_that_reports_no_progress_loses_its_run(self, bench: Bench) -> None:
        held = await dispatch(bench, await bench.node(), progress_timeout=bench.short)
        await report(bench, report_of(held, "taken"))
        await bench.pass_time(bench.short // 2)
        await report(bench, report_of(held, "progress"))
        await bench.pass_time(bench.short // 2)
        assert (await check(bench)).released == []
        await bench.pass_time(bench.short)
        assert (await check(bench)).released == [held.id]
        assert await report(bench, report_of(held, "progress"), report_of(held, "finish")) == ["stale", "stale"]

    async def test_a_worker_that_exceeds_the_timeout_loses_its_run(self, bench: Bench) -> None:
        held = await dispatch(bench, await bench.node(), progress_timeout=HOUR, timeout=10 * MINUTE)
        await report(bench, report_of(held, "taken"))
        run = await dispatched_run(bench, held.id)
        assert run.dispatched is not None
        assert us(run.dispatched.until) == us(run.dispatched.taken_at) + 11 * MINUTE

    async def test_an_at_most_once_dispatched_run_that_is_not_taken_ends_as_lost(self, bench: Bench) -> None:
        held = await dispatch(bench, await bench.node(), terms=TaskTerms(at_most_once=True), ack_timeout=0)
        await report(bench, report_of(held, "pushed"))
        assert (await check(bench)).ended == [(held.id, Verdict.LOST)]
        run = await bench.run(held.id)
        assert (run.verdict, run.reason, run.losses) == (Verdict.LOST, "not_taken", 0)

    async def test_a_run_that_is_never_taken_is_released_each_time_without_a_loss(self, bench: Bench) -> None:
        node = await bench.node()
        run = (await bench.enqueue()).id
        for _ in range(2 * LOSSES_MAX):
            held = await dispatch(bench, node, run, ack_timeout=0)
            await report(bench, report_of(held, "pushed"))
            checked = await check(bench)
            assert (checked.released, checked.ended) == ([run], [])
            assert await report(bench, report_of(held, "taken")) == ["stale"]
        assert (await bench.run(run)).losses == 0

    async def test_a_dispatched_run_that_was_lost_too_often_ends_as_lost(self, bench: Bench) -> None:
        node = await bench.node()
        run = (await bench.enqueue()).id
        for count in range(1, LOSSES_MAX + 1):
            held = await dispatch(bench, node, run, progress_timeout=0)
            await report(bench, report_of(held, "taken"))
            checked = await check(bench)
            assert (checked.released, checked.ended) == (
                ([run], []) if count < LOSSES_MAX else ([], [(run, Verdict.LOST)])
            )
        ended = await bench.run(run)
        assert (ended.verdict, ended.reason, ended.losses) == (Verdict.LOST, "no_progress", LOSSES_MAX)

    async def test_a_check_of_dispatched_runs_respects_its_limit_and_its_app(self, bench: Bench) -> None:
        node = await bench.node()
        held = [await dispatch(bench, node, ack_timeout=0) for _ in range(1)]
        for _ in range(2):
            run = (await bench.enqueue(priority=9)).id
            [claimed] = (await bench.claim(node, limit=1)).runs
            assert claimed.id == run
            await bench.finish(node, a_dispatch(claimed, msgspec.structs.replace(_PATIENT, ack_timeout=0)))
            held.append(claimed)
        await report(bench, *(report_of(each, "pushed") for each in held))
        await bench.pass_time(1_000)
        assert (await check(bench, app=OTHER_APP)).released == []
        assert len((await check(bench, limit=2)).released) == 2
        assert len((await check(bench, limit=2)).released) == 1

    async def test_a_worker_that_timed_out_gets_a_kill_message(self, bench: Bench) -> None:
        held = await dispatch(bench, await bench.node(), progress_timeout=0, kill=KILLS)
        await report(bench, report_of(held, "taken"))
        assert (await check(bench)).has_kill_messages
        [message] = await bench.store.messages(APP, MessageFilter(channel=KILLS))
        assert message.body == {"v": 1, "run": held.id, "fence": held.fence, "why": "no_progress"}

    # --- nodes that may declare a worker silent

    async def test_a_node_that_does_not_read_a_channel_declares_none_of_its_workers_silent(self, bench: Bench) -> None:
        node = await bench.node()
        untaken = await dispatch(bench, node, ack_timeout=0)
        silent = await dispatch(bench, node, progress_timeout=0)
        once = await dispatch(bench, node, progress_timeout=0, terms=TaskTerms(at_most_once=True))
        await report(bench, report_of(untaken, "pushed"), report_of(silent, "taken"), report_of(once, "taken"))
        await bench.pass_time(bench.short)
        always = ReportWindow(0, await bench.now() + HOUR)
        for windows in ({}, {"another": always, KILLS: always}):
            checked = await check(bench, windows=windows)
            assert (checked.released, checked.ended, checked.has_kill_messages) == ([], [], False)
        for held in (untaken, silent, once):
            assert (await dispatched_run(bench, held.id)).losses == 0
        assert await report(bench, report_of(once, "finish")) == ["done"]
        assert {*(await check(bench)).released} == {untaken.id, silent.id}

    async def test_overdue_runs_of_an_unread_channel_do_not_delay_other_channels(self, bench: Bench) -> None:
        node = await bench.node()
        unread = [await dispatch(bench, node, to="away", ack_timeout=0) for _ in range(5)]
        late = await dispatch(bench, node, ack_timeout=0)
        await report(bench, *(report_of(each, "pushed") for each in unread))
        await report(bench, report_of(late, "pushed"))
        await bench.pass_time(bench.short)
        assert (await check(bench, limit=2)).released == [late.id]

    async def test_a_run_whose_reports_were_not_read_gets_its_full_timeout_again(self, bench: Bench) -> None:
        node = await bench.node()
        held = await dispatch(bench, node, progress_timeout=bench.short)
        await report(bench, report_of(held, "taken"))
        await bench.pass_time(2 * bench.short)
        back = await bench.now()
        checked = await check(bench, windows={CHANNEL: ReportWindow(back, back)})
        assert (checked.released, checked.ended) == ([], [])
        run = await dispatched_run(bench, held.id)
        assert run.dispatched is not None
        assert (us(run.dispatched.until), run.losses) == (back + bench.short, 0)
        async with bench.heartbeat() as heartbeat:
            await bench.pass_time(2 * bench.short)
            assert (await heartbeat.beat(node, HOUR)).has_dispatched
        # The same window, read further: now the worker is silent.
        assert (await check(bench, windows={CHANNEL: ReportWindow(back, await bench.now())})).released == [held.id]
        assert (await bench.run(held.id)).losses == 1

    async def test_reports_after_a_broker_outage_are_accepted(self, bench: Bench) -> None:
        held = await dispatch(bench, await bench.node(), progress_timeout=bench.short)
        await report(bench, report_of(held, "taken"))
        await bench.pass_time(2 * bench.short)
        back = await bench.now()
        await check(bench, windows={CHANNEL: ReportWindow(back, back)})
        assert await report(bench, report_of(held, "progress")) == ["done"]
        assert await report(bench, report_of(held, "finish", result=b"7")) == ["done"]
        assert (await bench.run(held.id)).verdict is Verdict.SUCCEEDED

    async def test_a_timeout_after_the_last_read_of_the_channel_does_not_count(self, bench: Bench) -> None:
        held = await dispatch(bench, await bench.node(), ack_timeout=bench.short)
        await report(bench, report_of(held, "pushed"))
        last = await bench.now()
        await bench.pass_time(2 * bench.short)
        before = (await dispatched_run(bench, held.id)).dispatched
        assert (await check(bench, windows={CHANNEL: ReportWindow(0, last)})).released == []
        assert (await dispatched_run(bench, held.id)).dispatched == before
        assert (await check(bench, windows={CHANNEL: ReportWindow(0, await bench.now())})).released == [held.id]

    async def test_only_a_node_that_reads_the_channel_checks_the_timeout_of_a_run(self, bench: Bench) -> None:
        held = await dispatch(bench, await bench.node(), progress_timeout=None, timeout=-MINUTE)
        await report(bench, report_of(held, "taken"))
        await bench.pass_time(bench.short)
        assert (await check(bench, windows={})).released == []
        back = await bench.now()
        assert (await check(bench, windows={CHANNEL: ReportWindow(back, back)})).released == []
        run = await dispatched_run(bench, held.id)
        assert run.dispatched is not None
        assert us(run.dispatched.until) == back + MINUTE

    async def test_any_node_may_carry_out_a_cancel(self, bench: Bench) -> None:
        node = await bench.node()
        unsent = await dispatch(bench, node, kill=KILLS)
        taken = await dispatch(bench, node, progress_timeout=bench.short, kill=KILLS)
        overdue = await dispatch(bench, node, ack_timeout=0)
        await report(bench, report_of(taken, "taken"), report_of(overdue, "pushed"))
        async with bench.heartbeat() as heartbeat:
            await bench.pass_time(bench.short)
            beat = await heartbeat.beat(node, HOUR)
            assert (beat.has_dispatched, beat.has_dispatched_cancels) == (True, False)
            await bench.cancel(unsent.id)
            await bench.cancel(taken.id)
            assert (await heartbeat.beat(node, HOUR)).has_dispatched_cancels
            checked = await check(bench, windows={})
            assert (checked.ended, checked.has_kill_messages) == ([(unsent.id, Verdict.CANCELLED)], True)
            assert not (await heartbeat.beat(node, HOUR)).has_dispatched_cancels
        await bench.pass_time(2 * bench.short)
        assert (await check(bench, windows={})).ended == [(taken.id, Verdict.CANCELLED)]
        assert await bench.state(overdue.id) is State.DISPATCHED

    async def test_a_store_has_an_id(self, bench: Bench) -> None:
        assert re.fullmatch(r"[A-Za-z0-9_-]{16,64}", bench.store.id)

    # --- cancel

    async def test_a_cancel_before_the_message_is_sent_ends_the_run_and_drops_the_message(self, bench: Bench) -> None:
        node = await bench.node()
        held = await dispatch(bench, node, kill=KILLS)
        assert await bench.cancel(held.id, reason="unwanted") == ["asked"]
        async with bench.heartbeat() as heartbeat:
            assert (await heartbeat.beat(node, HOUR)).has_dispatched
        checked = await check(bench)
        assert (checked.ended, checked.has_kill_messages) == ([(held.id, Verdict.CANCELLED)], False)
        run = await bench.run(held.id)
        assert (run.verdict, run.reason, run.losses) == (Verdict.CANCELLED, "unwanted", 0)
        assert await messages(bench) == []

    async def test_a_cancel_while_the_message_is_being_sent_sends_a_kill_message(self, bench: Bench) -> None:
        node = await bench.node()
        held = await dispatch(bench, node, kill=KILLS)
        await bench.store.claim_messages(APP, node, {CHANNEL: 1}, ())
        await bench.cancel(held.id)
        checked = await check(bench)
        assert (checked.ended, checked.has_kill_messages) == ([], True)
        assert (await dispatched_run(bench, held.id)).is_cancel_requested

    async def test_a_cancelled_run_that_no_worker_has_taken_ends_at_once_without_a_loss(self, bench: Bench) -> None:
        held = await dispatch(bench, await bench.node(), kill=KILLS)
        await report(bench, report_of(held, "pushed"))
        await bench.cancel(held.id, reason="unwanted")
        checked = await check(bench)
        assert (checked.ended, checked.has_kill_messages) == ([(held.id, Verdict.CANCELLED)], True)
        run = await bench.run(held.id)
        assert (run.verdict, run.reason, run.losses) == (Verdict.CANCELLED, "unwanted", 0)
        # Its message may still be in the queue. Reports of a worker that takes it are refused.
        [message] = await bench.store.messages(APP, MessageFilter(channel=KILLS))
        assert message.body == {"v": 1, "run": held.id, "fence": held.fence, "why": "unwanted"}
        assert await report(bench, report_of(held, "taken"), report_of(held, "finish")) == ["stale", "stale"]

    @pytest.mark.parametrize("read_until", ["never", "before", "since later"])
    async def test_a_cancelled_run_that_a_worker_may_have_taken_gets_the_time_to_stop(
        self, bench: Bench, read_until: str
    ) -> None:
        held = await dispatch(bench, await bench.node(), progress_timeout=bench.short, kill=KILLS)
        await report(bench, report_of(held, "pushed"))
        before = await bench.now()
        await bench.pass_time(bench.short)
        await bench.cancel(held.id)
        later = await bench.now() + HOUR
        known = {"before": ReportWindow(0, before), "since later": ReportWindow(later, later)}
        windows = {CHANNEL: known[read_until]} if read_until in known else {}
        assert (await check(bench, windows=windows)).ended == []
        await bench.pass_time(2 * bench.short)
        assert (await check(bench, windows={})).ended == [(held.id, Verdict.CANCELLED)]
        assert (await bench.run(held.id)).losses == 0

    async def test_a_run_taken_after_its_cancel_gets_the_time_to_stop(self, bench: Bench) -> None:
        held = await dispatch(bench, await bench.node(), kill=KILLS)
        await report(bench, report_of(held, "pushed"))
        await bench.cancel(held.id)
        assert (await check(bench, windows={})).has_kill_messages
        before = await bench.now()
        await report(bench, report_of(held, "taken"))
        run = await dispatched_run(bench, held.id)
        assert run.dispatched is not None
        assert before + HOUR <= us(run.dispatched.until) <= await bench.now() + HOUR
        assert (await check(bench)).ended == []
        assert (await answer_to(bench, report_of(held, "fail", reason="killed"))).verdict is Verdict.CANCELLED

    async def test_a_cancelled_run_ends_with_the_report_of_its_worker(self, bench: Bench) -> None:
        held = await dispatch(bench, await bench.node(), kill=KILLS, retry_delay=0)
        await report(bench, report_of(held, "taken"))
        assert await bench.cancel(held.id, reason="unwanted") == ["asked"]
        assert (await check(bench)).has_kill_messages
        # The kill is sent once, and the worker gets time to stop.
        again = await check(bench)
        assert (again.ended, again.has_kill_messages) == ([], False)
        [message] = await bench.store.messages(APP, MessageFilter(channel=KILLS))
        assert message.body == {"v": 1, "run": held.id, "fence": held.fence, "why": "unwanted"}
        assert (await answer_to(bench, report_of(held, "fail", error="killed"))).verdict is Verdict.CANCELLED
        run = await bench.run(held.id)
        assert (run.verdict, run.reason) == (Verdict.CANCELLED, "unwanted")

    @pytest.mark.parametrize("kind", ["finish", "skip", "release"])
    async def test_a_worker_that_finishes_before_its_cancel_decides_the_verdict(self, bench: Bench, kind: str) -> None:
        held = await dispatch(bench, await bench.node())
        await report(bench, report_of(held, "taken"))
        await bench.cancel(held.id)
        verdict = {"finish": Verdict.SUCCEEDED, "skip": Verdict.SKIPPED, "release": Verdict.CANCELLED}[kind]
        assert (await answer_to(bench, report_of(held, kind))).verdict is verdict

    async def test_a_worker_that_does_not_stop_in_time_loses_the_cancelled_run(self, bench: Bench) -> None:
        held = await dispatch(bench, await bench.node(), progress_timeout=bench.short)
        await report(bench, report_of(held, "taken"))
        await bench.cancel(held.id)
        await check(bench)
        await bench.pass_time(bench.short // 2)
        # Progress does not extend that time.
        assert await report(bench, report_of(held, "progress", progress=0.9)) == ["done"]
        await bench.pass_time(bench.short)
        assert (await check(bench)).ended == [(held.id, Verdict.CANCELLED)]
        assert await report(bench, report_of(held, "finish")) == ["stale"]

    async def test_a_cancel_sent_again_does_not_shorten_the_time_to_stop(self, bench: Bench) -> None:
        held = await dispatch(bench, await bench.node())
        await report(bench, report_of(held, "taken"))
        await bench.cancel(held.id, reason="first")
        await check(bench)
        assert await bench.cancel(held.id, reason="second") == ["asked"]
        assert (await check(bench)).ended == []
        await report(bench, report_of(held, "fail"))
        assert (await bench.run(held.id)).reason == "first"

    async def test_a_newer_fire_replaces_a_dispatched_run(self, bench: Bench) -> None:
        node = await bench.node()
        schedule = await bench.add(overlap="replace")
        held = await dispatch(bench, node, await bench.fire(schedule), kill=KILLS)
        await report(bench, report_of(held, "taken"))
        schedule = await bench.stored()
        newer = a_fire(schedule, state=State.BLOCKED)
        assert (await bench.record(an_advance(schedule, newer, replaces_live=True))).taken == [True]
        assert await bench.state(newer.id) is State.BLOCKED
        assert (await check(bench)).has_kill_messages
        await report(bench, report_of(held, "fail"))
        assert ((await bench.run(held.id)).verdict, (await bench.run(held.id)).reason) == (
            Verdict.CANCELLED,
            "replaced",
        )
        assert await bench.state(newer.id) is State.WAITING

    # --- messages of a dispatch

    async def test_dropping_the_message_of_a_dispatched_run_cancels_it(self, bench: Bench) -> None:
        held = await dispatch(bench, await bench.node())
        [message] = await bench.store.messages(APP, MessageFilter(channel=CHANNEL))
        assert await bench.store.drop_messages(APP, [message.id]) == [message.id]
        assert (await check(bench)).ended == [(held.id, Verdict.CANCELLED)]
        assert (await bench.run(held.id)).reason == "requested"

    async def test_a_dead_message_of_a_finished_run_cannot_be_retried(self, bench: Bench) -> None:
        node = await bench.node()
        await dispatch(bench, node, retry_delay=None)
        [claimed] = (await bench.store.claim_messages(APP, node, {CHANNEL: 1}, ())).messages
        given_up = MessageOutcome(id=claimed.id, fence=claimed.fence, kind="dead", attempts=1, remember=HOUR)
        assert await bench.store.settle_messages(APP, node, [given_up]) == ["done"]
        assert await bench.store.retry_messages(APP, [claimed.id]) == [claimed.id]
        [claimed] = (await bench.store.claim_messages(APP, node, {CHANNEL: 1}, ())).messages
        dead = MessageOutcome(id=claimed.id, fence=claimed.fence, kind="dead", attempts=1, remember=HOUR)
        assert claimed.caused_by is not None
        assert claimed.dispatches is not None
        over = Report(id=claimed.caused_by, fence=claimed.dispatches, kind="undelivered")
        assert await report(bench, over) == ["done"]
        assert await bench.store.settle_messages(APP, node, [dead]) == ["done"]
        assert await bench.store.retry_messages(APP, [claimed.id]) == []

    async def test_a_message_is_found_by_its_key(self, bench: Bench) -> None:
        node = await bench.node()
        held = await dispatch(bench, node)
        key = dispatch_key(held.id, held.fence)
        [found] = await bench.store.messages(APP, MessageFilter(channel=CHANNEL, key=key))
        assert found.caused_by == held.id
        assert await bench.store.messages(APP, MessageFilter(channel="other", key=key)) == []

    # --- dispatched runs count as running

    async def test_a_dispatched_run_counts_for_its_concurrency_limit_until_it_ends_or_is_released(
        self, bench: Bench
    ) -> None:
        terms = {TASK: TaskTerms(concurrency=make_concurrency(1, None, TASK, {}))}
        node = await bench.node(tasks=terms)
        await bench.store.enqueue(APP, [a_run() for _ in range(4)])
        for kind in ("finish", "fail", "release", "silence"):
            [held] = (await bench.claim(node, tasks=terms)).runs
            agreed = {"progress_timeout": 0} if kind == "silence" else {"retry_delay": HOUR}
            await bench.finish(node, a_dispatch(held, msgspec.structs.replace(_PATIENT, **agreed)))
            assert (await bench.claim(node, tasks=terms)).runs == []
            await report(bench, report_of(held, "taken"))
            assert (await bench.claim(node, tasks=terms)).runs == []
            if kind == "silence":
                assert (await check(bench)).released == [held.id]
            else:
                later = {"retry_after": HOUR} if kind == "release" else {}
                await report(bench, report_of(held, kind, **later))
        assert len((await bench.claim(node, tasks=terms)).runs) == 1

    async def test_a_dispatched_run_keeps_its_unique_key(self, bench: Bench) -> None:
        node = await bench.node()
        run = await bench.enqueue(unique_key="k")
        held = await dispatch(bench, node, run.id)
        again = await bench.enqueue(unique_key="k")
        assert (again.id, again.is_new, again.state) == (run.id, False, State.DISPATCHED)
        await report(bench, report_of(held, "finish"))
        assert (await bench.enqueue(unique_key="k")).is_new

    async def test_a_dispatched_run_is_live_for_overlap_and_its_end_frees_the_blocked_run(self, bench: Bench) -> None:
        node = await bench.node()
        schedule = await bench.add(overlap="queue")
        held = await dispatch(bench, node, await bench.fire(schedule))
        schedule = await bench.stored()
        assert schedule.live & 1
        behind = a_fire(schedule, state=State.BLOCKED)
        await bench.record(an_advance(schedule, behind))
        assert (await bench.run(behind.id)).blocked_on == held.id
        await report(bench, report_of(held, "finish"))
        assert await bench.state(behind.id) is State.WAITING

    async def test_a_schedule_that_counts_from_the_end_waits_for_the_end_of_a_dispatched_run(
        self, bench: Bench
    ) -> None:
        node = await bench.node()
        schedule = await bench.add()
        advance = {"after_end": MINUTE, "next_fire_at": None, "next_at": None}
        held = await dispatch(bench, node, await bench.fire(schedule, advance))
        assert (await bench.stored()).fire_at is None
        before = await bench.now()
        await report(bench, report_of(held, "finish"))
        fire_at = (await bench.stored()).fire_at
        assert fire_at is not None
        assert before + MINUTE <= fire_at <= await bench.now() + MINUTE

    async def test_removing_a_schedule_does_not_stop_a_run_that_a_worker_has_taken(self, bench: Bench) -> None:
        node = await bench.node()
        schedule = await bench.add()
        held = await dispatch(bench, node, await bench.fire(schedule), kill=KILLS)
        await report(bench, report_of(held, "taken"))
        assert await bench.change("remove", await bench.stored())
        checked = await check(bench)
        assert (checked.ended, checked.has_kill_messages) == ([], False)
        assert await report(bench, report_of(held, "finish")) == ["done"]

    @pytest.mark.parametrize("is_pushed", [False, True])
    async def test_removing_a_schedule_cancels_dispatched_runs_that_no_worker_has_taken(
        self, bench: Bench, is_pushed: bool
    ) -> None:
        node = await bench.node()
        schedule = await bench.add()
        held = await dispatch(bench, node, await bench.fire(schedule))
        await report(bench, *([report_of(held, "pushed")] if is_pushed else []))
        assert await bench.change("remove", await bench.stored())
        assert (await check(bench)).ended == [(held.id, Verdict.CANCELLED)]
        run = await bench.run(held.id)
        assert (run.reason, run.losses) == ("removed", 0)

    async def test_the_pulse_and_the_run_filter_include_dispatched_runs(self, bench: Bench) -> None:
        node = await bench.node()
        held = await dispatch(bench, node)
        pulse = await bench.store.pulse(APP)
        assert (pulse.dispatched, pulse.running, pulse.waiting) == (1, 0, 0)
        assert [run.id for run in await bench.runs(states=(State.DISPATCHED,))] == [held.id]

    @pytest.mark.parametrize("end", ["finish", "silence"])
    async def test_the_feed_has_events_for_dispatched_and_taken_runs(
        self, bench: Bench, end: Literal["finish", "silence"]
    ) -> None:
        await bench.store.keep_feed(APP, HOUR)
        held = await dispatch(bench, await bench.node(), progress_timeout=0)
        await report(bench, report_of(held, "pushed"))
        await report(bench, report_of(held, "taken"), report_of(held, "progress"))
        if end == "finish":
            await report(bench, report_of(held, "finish"))
        else:
            await check(bench)
        found = await read_feed(bench)
        kinds = [row.kind for row in found.rows if row.kind.startswith("run.")]
        last = "run.finished" if end == "finish" else "run.released"
        assert kinds == ["run.recorded", "run.started", "run.dispatched", "run.taken", last]
