"""What an attempt's ending means for its run."""

from __future__ import annotations

from typing import Any

import pytest

from evertick import Constant, Exponential, Retry, Skip
from evertick.driver.base import Work
from evertick.engine.judge import BadArguments, Ending, Raised, Returned, Stop, StoppedBy, error_text, judge
from evertick.model import Claimed, Outcome, Phase, Reason, Verdict
from evertick.when.moment import MINUTE, SECOND


def run(attempts: int = 0) -> Claimed:
    return Claimed(id="r1", fence=7, task="job", args=b"{}", fire_at=0, due_at=0, claimed_at=0, attempts=attempts)


def work(**options: Any) -> Work:
    return Work(task="job", driver=None, hash="h1", **options)  # type: ignore[arg-type]


def judged(ending: Ending, *, attempts: int = 0, **options: Any) -> Outcome:
    outcome = judge(run(attempts), work(**options), ending, lambda: 0.0)
    assert outcome is not None
    assert (outcome.id, outcome.fence) == ("r1", 7)
    return outcome


def raised(error: BaseException) -> Raised:
    try:
        raise error
    except BaseException as caught:
        return Raised(caught)


def test_a_job_that_returns_has_succeeded() -> None:
    outcome = judged(Returned(b"42"))
    assert (outcome.kind, outcome.verdict, outcome.reason) == ("done", Verdict.SUCCEEDED, None)
    assert (outcome.result, outcome.attempts) == (b"42", 1)


def test_phases_are_kept_with_the_verdict_and_with_a_retry() -> None:
    phases = (Phase(name="load", at=1, seconds=0.5),)
    done = judge(run(), work(), Returned(None), lambda: 0.0, phases)
    again = judge(run(), work(retry=Constant("1s", 2)), raised(ValueError()), lambda: 0.0, phases)
    assert done is not None
    assert again is not None
    assert done.phases == again.phases == phases


def test_a_job_that_raises_without_a_policy_has_failed_at_once() -> None:
    outcome = judged(raised(ValueError("no such file")))
    assert (outcome.kind, outcome.verdict, outcome.reason) == ("done", Verdict.FAILED, Reason.ERROR)
    assert outcome.error is not None
    assert outcome.error.endswith("ValueError: no such file")
    assert outcome.attempts == 1


def test_a_job_that_raises_is_tried_again_by_its_policy() -> None:
    outcome = judged(raised(ValueError()), attempts=1, retry=Exponential("10s", attempts=3))
    assert (outcome.kind, outcome.verdict, outcome.delay, outcome.attempts) == ("retry", None, 20 * SECOND, 2)
    assert outcome.reason == Reason.ERROR


def test_the_last_attempt_fails_for_good() -> None:
    outcome = judged(raised(ValueError()), attempts=2, retry=Constant("10s", 3))
    assert (outcome.kind, outcome.verdict, outcome.attempts) == ("done", Verdict.FAILED, 3)


def test_only_errors_of_the_named_types_are_tried_again() -> None:
    policy = {"retry": Constant("1s", 3), "retry_on": (OSError,)}
    assert judged(raised(ConnectionError()), **policy).kind == "retry"
    assert judged(raised(ValueError()), **policy).verdict is Verdict.FAILED


def test_giving_up_on_a_type_outranks_retrying_on_it() -> None:
    policy = {"retry": Constant("1s", 3), "give_up_on": (KeyError,)}
    assert judged(raised(KeyError()), **policy).verdict is Verdict.FAILED
    assert judged(raised(IndexError()), **policy).kind == "retry"


def test_an_exit_from_a_job_is_a_failure_that_is_not_tried_again() -> None:
    assert judged(raised(SystemExit(1)), retry=Constant("1s", 3)).verdict is Verdict.FAILED


# --- what a job says itself


def test_a_job_that_skips_ends_as_skipped_with_its_own_words() -> None:
    outcome = judged(raised(Skip("nothing to do")), retry=Constant("1s", 3))
    assert (outcome.kind, outcome.verdict, outcome.reason) == ("done", Verdict.SKIPPED, "nothing to do")
    assert outcome.error is None


def test_a_skip_without_words_gets_some() -> None:
    assert judged(raised(Skip())).reason == "skipped by the job"


def test_the_words_of_a_skip_are_bounded_and_made_text() -> None:
    assert len(judged(raised(Skip("x" * 10_000))).reason or "") == 500
    assert judged(raised(Skip(42))).reason == "42"  # type: ignore[arg-type]


def test_a_job_may_say_how_long_to_wait() -> None:
    outcome = judged(raised(Retry("busy", after="5m")), retry=Constant("1s", 3))
    assert (outcome.kind, outcome.delay) == ("retry", 5 * MINUTE)


def test_a_retry_without_a_time_takes_that_of_the_policy() -> None:
    assert judged(raised(Retry("busy")), retry=Constant("7s", 3)).delay == 7 * SECOND


def test_a_retry_outranks_the_types_to_give_up_on() -> None:
    outcome = judged(raised(Retry()), retry=Constant("7s", 3), retry_on=(OSError,), give_up_on=(Exception,))
    assert outcome.kind == "retry"


def test_a_retry_is_bounded_by_the_attempts_of_the_policy() -> None:
    assert judged(raised(Retry()), attempts=2, retry=Constant("7s", 3)).verdict is Verdict.FAILED


def test_a_task_without_a_policy_may_ask_for_some_retries_and_not_for_endless_ones() -> None:
    assert judged(raised(Retry()), attempts=0).delay == MINUTE
    assert judged(raised(Retry()), attempts=8).kind == "retry"
    assert judged(raised(Retry()), attempts=9).verdict is Verdict.FAILED


@pytest.mark.parametrize("after", ["soon", -1, True, float("nan"), object()])
def test_a_retry_after_something_that_is_no_time_still_ends_in_an_outcome(after: Any) -> None:
    outcome = judged(raised(Retry(after=after)), retry=Constant("7s", 3))
    assert (outcome.kind, outcome.delay) == ("retry", 7 * SECOND)
    assert "Retry(after=…)" in (outcome.error or "")


# --- stops


def test_a_timeout_is_a_failure_with_that_reason() -> None:
    outcome = judged(StoppedBy(Stop.TIMEOUT), timeout=90 * SECOND)
    assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, Reason.TIMEOUT)
    assert outcome.error == "TimeoutError: the attempt timed out after 90 s"


def test_a_timeout_spends_an_attempt_and_is_tried_again() -> None:
    outcome = judged(StoppedBy(Stop.TIMEOUT), timeout=SECOND, retry=Constant("3s", 2))
    assert (outcome.kind, outcome.reason, outcome.attempts) == ("retry", Reason.TIMEOUT, 1)


def test_a_timeout_that_the_job_raised_itself_is_an_error_like_others() -> None:
    assert judged(raised(TimeoutError("upstream"))).reason == Reason.ERROR


def test_a_requested_cancel_ends_as_cancelled() -> None:
    outcome = judged(StoppedBy(Stop.REQUESTED), retry=Constant("3s", 2))
    assert (outcome.kind, outcome.verdict) == ("done", Verdict.CANCELLED)


@pytest.mark.parametrize("why", [Stop.SHUTDOWN, Stop.UNREACHABLE])
def test_a_stop_that_is_not_the_runs_fault_spends_nothing(why: Stop) -> None:
    outcome = judged(StoppedBy(why), attempts=1)
    assert (outcome.kind, outcome.attempts, outcome.verdict) == ("release", 1, None)


@pytest.mark.parametrize("why", [Stop.SHUTDOWN, Stop.UNREACHABLE])
def test_what_must_not_run_twice_is_lost_when_it_is_cut_off(why: Stop) -> None:
    outcome = judged(StoppedBy(why), on_lost="fail")
    assert (outcome.kind, outcome.verdict, outcome.reason) == ("done", Verdict.LOST, why.value)


def test_nothing_is_said_about_a_run_that_is_no_longer_ours() -> None:
    assert judge(run(), work(), StoppedBy(Stop.LOST), lambda: 0.0) is None


def test_arguments_that_do_not_fit_park_the_run_until_the_signature_changes() -> None:
    outcome = judged(BadArguments("job(x: int): …"), attempts=2)
    assert (outcome.kind, outcome.reason, outcome.task_hash) == ("park", Reason.BAD_ARGUMENTS, "h1")
    assert outcome.attempts == 2


# --- the text of an error


def test_a_long_error_is_cut_in_the_middle() -> None:
    text = error_text(ValueError("a" * 20_000 + "the end"))
    assert len(text) < 17_000
    assert text.startswith("ValueError: aaa")
    assert text.endswith("the end")
    assert "characters left out" in text


def test_an_error_whose_words_fail_still_has_a_text() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    assert "Silent" in error_text(Silent())
