"""Promises about running runs: only the newest claim may write, and each outcome is written once."""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec
import pytest

from evertick.model import Phase, Reason, Run, State, Verdict
from evertick.store.base import Note, TaskTerms
from evertick.testing.conformance.bench import APP, HOUR, MINUTE, SECOND, SHORT_LEASE, Bench, a_run, an_outcome, us

__all__ = ["ENDINGS", "Ending", "Finishing", "end_waiting_run", "expires_for"]

Ending = Literal[
    "finished",
    "cancelled while waiting",
    "cancelled while running, then retried",
    "expired at claim",
    "lost for good",
    "cancelled, and its node died",
]
ENDINGS: tuple[Ending, ...] = get_args(Ending)


def expires_for(way: Ending) -> int | None:
    """The `expires` with which a long due run can end this way."""
    return SECOND if way == "expired at claim" else None


async def end_waiting_run(bench: Bench, run: str, way: Ending) -> Run:
    """Bring the only waiting run to its verdict."""
    node = await bench.node()
    match way:
        case "finished":
            await bench.end(node, await bench.hold(node, run))
        case "cancelled while waiting":
            assert await bench.cancel(run) == ["ended"]
        case "cancelled while running, then retried":
            held = await bench.hold(node, run)
            assert await bench.cancel(run) == ["asked"]
            assert await bench.finish(node, an_outcome(held, "retry")) == ["done"]
        case "expired at claim":
            assert (await bench.claim(node)).expired == [run]
        case "lost for good":
            await bench.hold(node, run, terms=TaskTerms(at_most_once=True))
            await bench.store.leave(node)
            await bench.rehome(await bench.node())
        case "cancelled, and its node died":
            await bench.hold(node, run)
            assert await bench.cancel(run) == ["asked"]
            await bench.store.leave(node)
            await bench.rehome(await bench.node())
    ended = await bench.run(run)
    assert ended.state is State.DONE
    return ended


_KINDS = ("done", "retry", "release", "park")


class Finishing:
    # --- finish

    @pytest.mark.parametrize(("kind", "is_freed"), [("done", False), ("retry", True), ("release", True)])
    async def test_finish_reports_whether_a_run_has_become_due(self, bench: Bench, kind: str, is_freed: bool) -> None:
        node = await bench.node()
        finished = await bench.store.finish(APP, node, [an_outcome(await bench.hold(node), kind)])
        assert finished.freed is is_freed

    async def test_finish_reports_that_a_blocked_run_was_freed(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node, await bench.fire(await bench.add()))
        await bench.fire(await bench.stored(), state=State.BLOCKED)
        assert (await bench.store.finish(APP, node, [an_outcome(held)])).freed

    async def test_finish_reports_that_an_after_end_schedule_was_restarted(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node, await bench.fire(await bench.add(), {"after_end": MINUTE}))
        assert (await bench.store.finish(APP, node, [an_outcome(held)])).freed

    @pytest.mark.parametrize("verdict", list(Verdict))
    async def test_a_finished_run_keeps_its_verdict(self, bench: Bench, verdict: Verdict) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        before = await bench.now()
        run = await bench.end(node, held, verdict=verdict, reason="why", attempts=2)
        assert (run.state, run.verdict, run.reason, run.attempts) == (State.DONE, verdict, "why", 2)
        assert before <= us(run.finished_at) <= await bench.now()
        assert us(run.started_at) == held.claimed_at
        assert (await bench.claim(node)).runs == []
        assert await bench.store.owned(APP, node) == []

    async def test_result_error_and_phases_are_stored_unchanged(self, bench: Bench) -> None:
        node = await bench.node()
        phases = (Phase(name="fetch", at=5, seconds=1.5), Phase(name="store", at=7, seconds=0.25, is_failed=True))
        run = await bench.end(
            node,
            await bench.hold(node),
            verdict=Verdict.FAILED,
            result=b'{"rows":[1,2]}',
            error="Traceback: ö\nsecond line",
            phases=phases,
        )
        assert run.result == {"rows": [1, 2]}
        assert run.error == "Traceback: ö\nsecond line"
        assert run.phases == phases

    async def test_each_attempt_keeps_its_own_phases(self, bench: Bench) -> None:
        node = await bench.node()
        first = (Phase(name="fetch", at=5, seconds=1.5, metadata={"status": 503, "url": "ö"}),)
        second = (Phase(name="store", at=7, seconds=0.25),)
        held = await bench.hold(node)
        waiting = await bench.end(node, held, kind="retry", phases=first)
        assert waiting.phases == first
        again = await bench.hold(node, held.id)
        assert (await bench.run(held.id)).phases == ()
        [attempt] = await bench.store.attempts(APP, held.id)
        assert attempt.phases == first
        done = await bench.end(node, again, verdict=Verdict.FAILED, attempts=2, phases=second)
        assert done.phases == second
        assert [each.phases for each in await bench.store.attempts(APP, held.id)] == [first]

    async def test_phases_of_a_running_attempt_can_be_read_before_its_end(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        phases = (Phase(name="fetch", at=5, seconds=1.5), Phase(name="store", at=7, seconds=None))
        assert await bench.note(node, held, phases=phases) == []
        assert (await bench.run(held.id)).phases == phases
        assert await bench.note(node, held, progress=0.5) == []
        assert (await bench.run(held.id)).phases == phases
        # An outcome without phases keeps the stored ones.
        assert (await bench.end(node, held)).phases == phases

    @pytest.mark.parametrize("is_in_release", [True, False], ids=["with the release", "before it"])
    async def test_a_released_attempt_keeps_its_phases(self, bench: Bench, is_in_release: bool) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        phases = (Phase(name="fetch", at=5, seconds=None),)
        if not is_in_release:
            await bench.note(node, held, phases=phases)
        release = an_outcome(held, "release", reason=Reason.SHUTDOWN, phases=phases if is_in_release else ())
        assert await bench.finish(node, release) == ["done"]
        again = await bench.hold(node, held.id)
        assert await bench.finish(node, release) == ["already"]
        [attempt] = await bench.store.attempts(APP, held.id)
        assert (attempt.number, attempt.fence, attempt.node) == (1, held.fence, node)
        assert (attempt.reason, attempt.phases) == (Reason.SHUTDOWN, phases)
        done = await bench.end(node, again)
        assert (done.attempts, done.phases) == (1, ())

    async def test_a_released_attempt_without_phases_is_not_kept(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        assert await bench.finish(node, an_outcome(held, "release", reason=Reason.SHUTDOWN)) == ["done"]
        assert await bench.store.attempts(APP, held.id) == []

    async def test_text_that_a_database_rejects_is_stored_with_replacements(self, bench: Bench) -> None:
        # File names in error texts can have halves of surrogate pairs, binary data has zeros.
        odd = "no such file: \udcff \x00 end"
        node = await bench.node()
        held = await bench.hold(node)
        assert await bench.note(node, held, progress_text=odd, lines=((1, odd, odd),)) == []
        [line] = await bench.store.log(APP, held.id)
        assert line.text.endswith("end")
        phase = Phase(name=odd, at=5, seconds=1.5, metadata={odd: [odd, {"deep": odd}]})
        fields: dict[str, Any] = {"error": odd, "reason": odd, "phases": (phase,)}
        retried = await bench.end(node, held, kind="retry", **fields)
        assert retried.error is not None
        assert retried.error.endswith("end")
        fields["result"] = b'{"zero":"a\\u0000b"}'
        run = await bench.end(node, await bench.hold(node, held.id), verdict=Verdict.FAILED, **fields)
        assert run.result == {"zero": "a\x00b"}
        assert [phase.seconds for phase in run.phases] == [1.5]
        assert run.phases[0].name.endswith("end")
        [(name, values)] = run.phases[0].metadata.items()
        assert name.endswith("end")
        assert values[1]["deep"].endswith("end")
        assert run.error is not None
        assert run.error.startswith("no such file: ")
        assert run.error.endswith("end")

    async def test_a_finished_run_keeps_the_fields_it_was_recorded_with(self, bench: Bench) -> None:
        node = await bench.node()
        schedule = await bench.add(args={"x": 1})
        run_id = await bench.fire(schedule, priority=2, labels={"a": "b"}, caused_by="who", expires=HOUR)
        live = await bench.run(run_id)
        done = await bench.end(node, await bench.hold(node, run_id))
        for name in (
            "fire_at",
            "due_at",
            "created_at",
            "expires_at",
            "args",
            "labels",
            "priority",
            "queue",
            "caused_by",
        ):
            assert getattr(done, name) == getattr(live, name), name

    async def test_an_outcome_without_a_reason_keeps_the_recorded_reason(self, bench: Bench) -> None:
        node = await bench.node()
        late = await bench.fire(await bench.add(), reason=Reason.LATE)
        assert (await bench.end(node, await bench.hold(node, late))).reason == Reason.LATE
        failed = await bench.fire(await bench.stored(), reason=Reason.LATE)
        held = await bench.hold(node, failed)
        run = await bench.end(node, held, verdict=Verdict.FAILED, reason=Reason.TIMEOUT)
        assert run.reason == Reason.TIMEOUT

    async def test_a_late_run_is_still_late_after_a_retry(self, bench: Bench) -> None:
        node = await bench.node()
        late = await bench.fire(await bench.add(), reason=Reason.LATE)
        await bench.end(node, await bench.hold(node, late), kind="retry")
        assert (await bench.end(node, await bench.hold(node, late), attempts=2)).reason == Reason.LATE

    @pytest.mark.parametrize("kind", _KINDS)
    async def test_an_outcome_under_another_fence_or_node_is_lost(self, bench: Bench, kind: str) -> None:
        node, other = await bench.node(), await bench.node()
        held = await bench.hold(node)
        before = await bench.run(held.id)
        for fence in (held.fence - 1, held.fence + 1):
            assert await bench.finish(node, an_outcome(held, kind, fence=fence)) == ["lost"]
        assert await bench.finish(other, an_outcome(held, kind)) == ["lost"]
        assert await bench.run(held.id) == before
        assert await bench.store.attempts(APP, held.id) == []

    @pytest.mark.parametrize("kind", _KINDS)
    async def test_an_outcome_sent_again_is_answered_with_already(self, bench: Bench, kind: str) -> None:
        node = await bench.node()
        outcome = an_outcome(await bench.hold(node), kind, delay=HOUR)
        assert await bench.finish(node, outcome) == ["done"]
        before = await bench.run(outcome.id)
        tries = await bench.store.attempts(APP, outcome.id)
        assert await bench.finish(node, outcome) == ["already"]
        assert await bench.run(outcome.id) == before
        assert await bench.store.attempts(APP, outcome.id) == tries

    async def test_a_cancelled_retry_sent_again_is_answered_with_already(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        await bench.cancel(held.id)
        assert await bench.finish(node, an_outcome(held, "retry")) == ["done"]
        assert await bench.finish(node, an_outcome(held, "retry")) == ["already"]

    async def test_a_second_verdict_is_not_written(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        first = await bench.end(node, held)
        [answer] = await bench.finish(node, an_outcome(held, verdict=Verdict.FAILED, error="no"))
        assert answer != "done"
        assert await bench.run(held.id) == first

    @pytest.mark.parametrize("kind", _KINDS)
    async def test_an_outcome_after_the_run_was_reassigned_is_lost(self, bench: Bench, kind: str) -> None:
        node, other = await bench.node(), await bench.node()
        held = await bench.hold(node)
        await bench.store.leave(node)
        [taken] = (await bench.rehome(other)).claimed
        assert await bench.finish(node, an_outcome(held, kind)) == ["lost"]
        assert (await bench.end(other, taken)).verdict is Verdict.SUCCEEDED
        assert await bench.finish(node, an_outcome(held, kind)) == ["lost"]

    async def test_an_outcome_after_another_node_released_the_run_is_lost(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        await bench.store.leave(node)
        assert len((await bench.rehome(await bench.node(), limit=0)).released) == 1
        assert await bench.finish(node, an_outcome(held)) == ["lost"]
        assert await bench.state(held.id) is State.WAITING

    @pytest.mark.parametrize("is_cancelled", [False, True])
    async def test_an_outcome_after_another_node_ended_the_run_is_lost(self, bench: Bench, is_cancelled: bool) -> None:
        node = await bench.node()
        held = await bench.hold(node, terms=TaskTerms(at_most_once=not is_cancelled))
        if is_cancelled:
            await bench.cancel(held.id)
        await bench.store.leave(node)
        assert len((await bench.rehome(await bench.node())).ended) == 1
        ended = await bench.run(held.id)
        assert await bench.finish(node, an_outcome(held)) == ["lost"]
        assert await bench.run(held.id) == ended

    @pytest.mark.parametrize("kind", _KINDS)
    async def test_an_outcome_of_an_earlier_claim_never_ends_a_later_one(self, bench: Bench, kind: str) -> None:
        node = await bench.node()
        first = await bench.hold(node)
        await bench.end(node, first, kind="release")
        second = await bench.hold(node, first.id)
        [answer] = await bench.finish(node, an_outcome(first, kind))
        assert answer != "done"
        run = await bench.run(first.id)
        assert (run.state, run.fence) == (State.RUNNING, second.fence)

    async def test_an_outcome_of_an_unknown_run_is_lost(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        assert await bench.finish(node, an_outcome(held, id=a_run().id)) == ["lost"]

    async def test_finish_answers_for_each_run(self, bench: Bench) -> None:
        node = await bench.node()
        await bench.store.enqueue(APP, [a_run() for _ in range(5)])
        first, second, third, fourth, fifth = (await bench.claim(node)).runs
        await bench.end(node, second)
        answers = await bench.finish(
            node,
            an_outcome(first),
            an_outcome(second),
            an_outcome(third, fence=third.fence + 1),
            an_outcome(fourth, "retry", delay=HOUR),
            an_outcome(fifth, "park"),
        )
        assert answers == ["done", "already", "lost", "done", "done"]
        states = [await bench.state(held.id) for held in (first, second, third, fourth, fifth)]
        assert states == [State.DONE, State.DONE, State.RUNNING, State.WAITING, State.PARKED]
        assert await bench.finish(node) == []

    @pytest.mark.parametrize("kind", _KINDS)
    async def test_an_outcome_that_cannot_be_written_does_not_stop_the_others_of_its_batch(
        self, bench: Bench, kind: str
    ) -> None:
        node = await bench.node()
        await bench.store.enqueue(APP, [a_run() for _ in range(3)])
        first, bad, last = (await bench.claim(node)).runs
        outcomes = [
            an_outcome(first, result=b"1"),
            # Not UTF-8.
            an_outcome(bad, result=b"\xff", error="original error"),
            an_outcome(last, kind, delay=HOUR),
        ]
        assert await bench.finish(node, *outcomes) == ["done", "done", "done"]
        assert (await bench.run(first.id)).result == 1
        assert await bench.state(last.id) is not State.RUNNING
        run = await bench.run(bad.id)
        assert (run.state, run.verdict, run.result) == (State.DONE, Verdict.SUCCEEDED, None)
        assert run.error is not None
        assert "cannot be stored" in run.error
        assert run.error.endswith("original error")
        assert await bench.finish(node, *outcomes) == ["already", "already", "already"]

    async def test_an_outcome_that_cannot_be_written_even_without_its_result_is_lost(self, bench: Bench) -> None:
        node = await bench.node()
        await bench.store.enqueue(APP, [a_run() for _ in range(2)])
        bad, good = (await bench.claim(node)).runs
        # More than any integer column holds.
        assert await bench.finish(node, an_outcome(bad, attempts=2**70), an_outcome(good)) == ["lost", "done"]
        assert await bench.state(bad.id) is State.RUNNING
        assert await bench.state(good.id) is State.DONE

    # --- retry, release, park

    async def test_a_retry_waits_for_its_delay_and_spends_an_attempt(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        before = await bench.now()
        run = await bench.end(node, held, kind="retry", delay=HOUR, error="no luck")
        assert (run.state, run.attempts, run.losses) == (State.WAITING, 1, 0)
        assert before + HOUR <= us(run.due_at) <= await bench.now() + HOUR
        assert us(run.fire_at) == held.fire_at
        answer = await bench.claim(node)
        assert (answer.runs, answer.next_due_at) == ([], us(run.due_at))

    async def test_a_retry_is_claimed_after_its_delay_with_its_attempts(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        await bench.end(node, held, kind="retry", delay=SHORT_LEASE)
        await bench.pass_time(2 * SHORT_LEASE)
        again = await bench.hold(node, held.id)
        assert (again.attempts, again.losses, again.args) == (1, 0, held.args)

    async def test_earlier_attempts_are_kept_with_their_errors(self, bench: Bench) -> None:
        node = await bench.node()
        run = await bench.enqueue()
        fences = []
        for number in (1, 2):
            held = await bench.hold(node, run.id)
            fences.append(held.fence)
            await bench.end(node, held, kind="retry", attempts=number, error=f"error {number}", reason=Reason.TIMEOUT)
        await bench.end(node, await bench.hold(node, run.id), attempts=3)
        tries = await bench.store.attempts(APP, run.id)
        assert [attempt.number for attempt in tries] == [1, 2]
        assert [attempt.fence for attempt in tries] == fences
        assert [attempt.error for attempt in tries] == ["error 1", "error 2"]
        for attempt in tries:
            assert (attempt.node, attempt.reason) == (node, Reason.TIMEOUT)
            assert us(attempt.started_at) <= us(attempt.finished_at)
        assert (await bench.run(run.id)).attempts == 3

    async def test_a_retry_does_not_expire_by_its_own_delay(self, bench: Bench) -> None:
        node = await bench.node()
        run = await bench.enqueue(expires=HOUR)
        waits = await bench.end(node, await bench.hold(node, run.id), kind="retry", delay=2 * HOUR)
        assert waits.expires_at is None or waits.expires_at > waits.due_at

    async def test_a_release_spends_no_attempt(self, bench: Bench) -> None:
        node, other = await bench.node(), await bench.node()
        held = await bench.hold(node)
        before = await bench.run(held.id)
        run = await bench.end(node, held, kind="release")
        assert (run.state, run.attempts, run.losses) == (State.WAITING, 0, 0)
        assert run.reason == before.reason
        assert await bench.store.owned(APP, node) == []
        assert await bench.store.attempts(APP, held.id) == []
        again = await bench.hold(other, held.id)
        assert (again.attempts, again.losses) == (0, 0)

    async def test_a_release_after_a_retry_keeps_the_attempts(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        await bench.end(node, held, kind="retry")
        await bench.end(node, await bench.hold(node, held.id), kind="release")
        assert (await bench.hold(node, held.id)).attempts == 1

    async def test_a_parked_run_is_not_claimed_and_spends_no_attempt(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        run = await bench.end(
            node, held, kind="park", reason=Reason.BAD_ARGUMENTS, error="x: expected int", task_hash="h"
        )
        assert (run.state, run.reason, run.attempts, run.losses) == (State.PARKED, Reason.BAD_ARGUMENTS, 0, 0)
        assert run.error == "x: expected int"
        answer = await bench.claim(node)
        assert (answer.runs, answer.next_due_at) == ([], None)
        assert await bench.store.owned(APP, node) == []

    # --- owned

    async def test_owned_lists_only_the_runs_that_the_node_holds(self, bench: Bench) -> None:
        node, other = await bench.node(), await bench.node()
        first, ended = await bench.hold(node), await bench.hold(node)
        await bench.hold(other)
        await bench.end(node, ended)
        await bench.enqueue()
        assert [(run.id, run.fence) for run in await bench.store.owned(APP, node)] == [(first.id, first.fence)]
        assert await bench.store.owned(APP, "never joined") == []

    # --- note

    async def test_the_latest_progress_wins(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        for progress, text in ((0.25, "a quarter"), (0.5, "half")):
            assert await bench.note(node, held, progress=progress, progress_text=text) == []
        run = await bench.run(held.id)
        assert (run.progress, run.progress_text) == (0.5, "half")

    async def test_a_note_without_progress_keeps_the_progress(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        await bench.note(node, held, progress=0.5, progress_text="half")
        await bench.note(node, held, lines=((1, "info", "only a line"),))
        run = await bench.run(held.id)
        assert (run.progress, run.progress_text) == (0.5, "half")

    async def test_log_lines_are_in_order_also_after_the_end_of_the_run(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        at = await bench.now()
        lines = [(at + number, "info" if number % 2 else "error", f"line {number} ö\n") for number in range(5)]
        assert await bench.note(node, held, seq=0, lines=tuple(lines[:2])) == []
        assert await bench.note(node, held, seq=2, lines=tuple(lines[2:])) == []
        log = await bench.store.log(APP, held.id)
        assert [(us(line.at), line.level, line.text) for line in log] == lines
        assert {line.fence for line in log} == {held.fence}
        await bench.end(node, held)
        assert await bench.store.log(APP, held.id) == log
        assert await bench.store.log(APP, held.id, after=1, limit=2) == log[1:3]
        assert await bench.store.log(APP, held.id, after=5) == []

    async def test_a_note_sent_again_adds_nothing(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node)
        for _ in range(2):
            assert await bench.note(node, held, seq=0, progress=0.5, lines=((1, "info", "once"),)) == []
        await bench.note(node, held, seq=1, lines=((2, "info", "then"),))
        assert await bench.note(node, held, seq=0, lines=((1, "info", "once"),)) == []
        assert [line.text for line in await bench.store.log(APP, held.id)] == ["once", "then"]

    async def test_lines_of_a_later_attempt_follow_those_of_an_earlier_one(self, bench: Bench) -> None:
        node = await bench.node()
        first = await bench.hold(node)
        await bench.note(node, first, lines=((5, "info", "first"),))
        await bench.end(node, first, kind="retry")
        second = await bench.hold(node, first.id)
        await bench.note(node, second, lines=((6, "info", "second"),))
        log = await bench.store.log(APP, first.id)
        assert [(line.text, line.fence) for line in log] == [("first", first.fence), ("second", second.fence)]

    async def test_a_note_about_a_run_that_the_node_does_not_hold_is_not_written(self, bench: Bench) -> None:
        node, other = await bench.node(), await bench.node()
        own, gone = await bench.hold(node), await bench.hold(node)
        await bench.end(node, gone, verdict=Verdict.FAILED)
        foreign = await bench.hold(other)
        stale = msgspec.structs.replace(own, fence=own.fence - 1)
        text = ((1, "info", "a line"),)
        notes = [Note(id=run.id, fence=run.fence, progress=0.5, lines=text) for run in (gone, foreign, own)]
        assert sorted(await bench.store.note(APP, node, notes)) == sorted([gone.id, foreign.id])
        assert await bench.note(node, stale, progress=0.9, lines=text, seq=1) == [own.id]
        assert await bench.store.log(APP, gone.id) == await bench.store.log(APP, foreign.id) == []
        assert (await bench.run(foreign.id)).progress is None
        assert (await bench.run(own.id)).progress == 0.5
        assert len(await bench.store.log(APP, own.id)) == 1

    async def test_a_note_that_cannot_be_written_does_not_stop_the_others_of_its_batch(self, bench: Bench) -> None:
        node = await bench.node()
        await bench.store.enqueue(APP, [a_run() for _ in range(3)])
        bad, good, gone = (await bench.claim(node)).runs
        await bench.end(node, gone, verdict=Verdict.FAILED)
        # More than any integer column holds.
        first_lines = {bad.id: 2**70, good.id: 0, gone.id: 0}
        notes = [
            Note(id=run.id, fence=run.fence, seq=first_lines[run.id], lines=((5, "info", "said"),))
            for run in (bad, good, gone)
        ]
        assert await bench.store.note(APP, node, notes) == [gone.id]
        assert [line.text for line in await bench.store.log(APP, good.id)] == ["said"]
        assert await bench.store.log(APP, bad.id) == []

    async def test_a_note_after_the_run_was_reassigned_is_not_written(self, bench: Bench) -> None:
        node, other = await bench.node(), await bench.node()
        held = await bench.hold(node)
        await bench.store.leave(node)
        await bench.rehome(other)
        assert await bench.note(node, held, progress=0.5) == [held.id]
        assert (await bench.run(held.id)).progress is None

    async def test_a_run_without_log_or_attempts_has_empty_lists(self, bench: Bench) -> None:
        run = await bench.enqueue(fire_at=await bench.now() - MINUTE, due_at=await bench.now())
        for wanted in (run.id, a_run().id):
            assert await bench.store.log(APP, wanted) == []
            assert await bench.store.attempts(APP, wanted) == []
