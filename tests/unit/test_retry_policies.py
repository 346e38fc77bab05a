"""Retry policies: delays before retries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evertick import Constant, Exponential, InvalidDuration, InvalidSetting, Linear
from evertick.model.retry import ATTEMPTS_MAX, RetryPolicy, never_again
from evertick.when.moment import HOUR, MINUTE, SECOND


def test_constant_waits_the_same_each_time() -> None:
    policy = Constant("30s", attempts=4)
    assert [policy.delay(attempt) for attempt in (1, 2, 3)] == [30 * SECOND] * 3


def test_linear_grows_by_its_increment_up_to_its_limit() -> None:
    policy = Linear("10s", "20s", "1m", attempts=9)
    assert [policy.delay(attempt) // SECOND for attempt in (1, 2, 3, 4, 5)] == [10, 30, 50, 60, 60]


def test_exponential_multiplies_up_to_its_limit() -> None:
    policy = Exponential("1s", 3, "1m", attempts=9)
    assert [policy.delay(attempt) // SECOND for attempt in (1, 2, 3, 4, 5, 6)] == [1, 3, 9, 27, 60, 60]


def test_exponential_has_defaults_for_all_but_its_first_delay() -> None:
    policy = Exponential("5m")
    assert [policy.delay(attempt) // MINUTE for attempt in (1, 2, 3, 4, 5)] == [5, 10, 20, 40, 60]
    assert policy.attempts == 5
    assert policy.limit == HOUR


def test_exponential_never_overflows() -> None:
    assert Exponential("1d", 1000, "1h", attempts=ATTEMPTS_MAX).delay(ATTEMPTS_MAX) == HOUR


def test_the_first_execution_counts_as_an_attempt() -> None:
    policy = Constant("1s", attempts=3)
    assert [policy.allows_another(attempt) for attempt in (1, 2, 3, 4)] == [True, True, False, False]


def test_a_task_without_a_policy_has_one_attempt() -> None:
    assert not never_again.allows_another(1)


@given(
    st.sampled_from(
        [Constant("10s", 5, jitter=0.5), Linear("1s", "1s", "9s", 5, jitter=1), Exponential("1s", jitter=0)]
    ),
    st.integers(1, 1000),
    st.floats(0, 1, exclude_max=True),
)
def test_jitter_only_delays_and_by_no_more_than_its_share(policy: RetryPolicy, attempt: int, uniform: float) -> None:
    plain = policy.delay(attempt)
    assert plain <= policy.delay_with_jitter(attempt, uniform) <= plain * (1 + policy.jitter)


@given(st.integers(1, 999))
def test_delays_never_shrink(attempt: int) -> None:
    for policy in (Constant("10s", 5), Linear("1s", "3s", "1h", 5), Exponential("1s", 1.5, "1h", 5)):
        assert policy.delay(attempt) <= policy.delay(attempt + 1)


@pytest.mark.parametrize("attempts", [0, -1, ATTEMPTS_MAX + 1, 2.0, "3", True, None])
def test_an_impossible_number_of_attempts_is_refused(attempts: object) -> None:
    with pytest.raises(InvalidSetting, match=r"attempts: .* is not possible; pass a whole number from 1 \(no retry\)"):
        Constant("1s", attempts=attempts)  # type: ignore[arg-type]


@pytest.mark.parametrize("jitter", [-0.1, 1.1, True, "much", float("nan")])
def test_a_jitter_that_is_no_fraction_is_refused(jitter: object) -> None:
    with pytest.raises(InvalidSetting, match="is not a share of the delay; pass a number from 0 to 1"):
        Constant("1s", attempts=2, jitter=jitter)  # type: ignore[arg-type]


@pytest.mark.parametrize("factor", [0.5, 0, 1001, True, "2", float("nan")])
def test_a_factor_that_does_not_grow_is_refused(factor: object) -> None:
    with pytest.raises(InvalidSetting, match="does not make delays grow"):
        Exponential("1s", factor)  # type: ignore[arg-type]


def test_a_delay_that_is_no_duration_is_refused_by_name() -> None:
    with pytest.raises(InvalidDuration, match="increment: 'often' is not a duration"):
        Linear("1s", "often", "1m", attempts=3)


def test_a_policy_is_shown_and_compared_as_its_constructor_call() -> None:
    assert repr(Constant("90s", 3)) == "Constant('90s', attempts=3)"
    assert repr(Linear("1s", "2s", "1m", 3, jitter=0.5)) == "Linear('1s', '2s', '1m', attempts=3, jitter=0.5)"
    assert repr(Exponential("1s")) == "Exponential('1s', 2, '1h', attempts=5)"
    assert Constant("60s", 3) == Constant("1m", 3)
    assert hash(Constant("60s", 3)) == hash(Constant("1m", 3))
    assert Constant("60s", 3) != Constant("60s", 4)
    assert Constant("60s", 3) != "Constant('1m', attempts=3)"
