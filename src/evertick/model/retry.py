"""Retry policies: how long to wait before the next attempt. Pure.

`attempts` includes the first attempt. Attempt numbers start at 1: `delay(1)` is the wait after the first failure.
"""

from __future__ import annotations

from evertick.errors import InvalidSetting
from evertick.text.values import shown
from evertick.when.duration import Duration, duration_text, duration_us

__all__ = ["ATTEMPTS_MAX", "Constant", "Exponential", "Linear", "RetryPolicy", "never_again"]

# More attempts of one run are probably a mistake.
ATTEMPTS_MAX = 1_000


class RetryPolicy:
    """The base of all policies: the number of attempts, and the random share that is added to the delay."""

    __slots__ = ("attempts", "jitter")

    attempts: int
    jitter: float

    def __init__(self, attempts: int, jitter: float) -> None:
        if isinstance(attempts, bool) or not isinstance(attempts, int) or not 1 <= attempts <= ATTEMPTS_MAX:
            raise InvalidSetting(
                f"attempts: {shown(attempts)} is not possible",
                setting="attempts",
                value=shown(attempts),
                fix=f"pass a whole number from 1 (no retry) to {ATTEMPTS_MAX}",
            )
        if isinstance(jitter, bool) or not isinstance(jitter, int | float) or not 0 <= jitter <= 1:
            raise InvalidSetting(
                f"jitter: {shown(jitter)} is not a share of the delay",
                setting="jitter",
                value=shown(jitter),
                fix="pass a number from 0 to 1",
            )
        self.attempts = attempts
        self.jitter = float(jitter)

    def delay(self, attempt: int) -> int:
        """Microseconds to wait after the given attempt failed, without jitter."""
        raise NotImplementedError

    def allows_another(self, attempt: int) -> bool:
        """Whether there is another attempt after this many."""
        return attempt < self.attempts

    def delay_with_jitter(self, attempt: int, uniform: float) -> int:
        """The delay, longer by a random part of up to `jitter` of it. `uniform` is drawn from [0, 1)."""
        delay = self.delay(attempt)
        return delay + int(delay * self.jitter * uniform)

    def __repr__(self) -> str:
        jitter = f", jitter={self.jitter:g}" if self.jitter else ""
        return f"{type(self).__name__}({self._steps()}, attempts={self.attempts}{jitter})"

    def _steps(self) -> str:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other) if isinstance(other, RetryPolicy) else NotImplemented

    def __hash__(self) -> int:
        return hash(repr(self))


class Constant(RetryPolicy):
    """The same wait between all attempts."""

    __slots__ = ("interval",)

    def __init__(self, interval: Duration, attempts: int, *, jitter: float = 0.0) -> None:
        super().__init__(attempts, jitter)
        self.interval = duration_us(interval, what="interval")

    def delay(self, attempt: int) -> int:
        return self.interval

    def _steps(self) -> str:
        return repr(duration_text(self.interval))


class Linear(RetryPolicy):
    """A wait that grows by the same amount after each attempt, up to a limit."""

    __slots__ = ("increment", "initial", "limit")

    def __init__(
        self, initial: Duration, increment: Duration, limit: Duration, attempts: int, *, jitter: float = 0.0
    ) -> None:
        super().__init__(attempts, jitter)
        self.initial = duration_us(initial, what="initial")
        self.increment = duration_us(increment, what="increment")
        self.limit = duration_us(limit, what="limit")

    def delay(self, attempt: int) -> int:
        return min(self.initial + self.increment * (attempt - 1), self.limit)

    def _steps(self) -> str:
        return ", ".join(repr(duration_text(us)) for us in (self.initial, self.increment, self.limit))


class Exponential(RetryPolicy):
    """A wait that is multiplied after each attempt, up to a limit."""

    __slots__ = ("factor", "initial", "limit")

    def __init__(
        self, initial: Duration, factor: float = 2.0, limit: Duration = "1h", attempts: int = 5, *, jitter: float = 0.0
    ) -> None:
        super().__init__(attempts, jitter)
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= 1_000:
            raise InvalidSetting(
                f"factor: {shown(factor)} does not make delays grow",
                setting="factor",
                value=shown(factor),
                fix="pass a number from 1 to 1000",
            )
        self.initial = duration_us(initial, what="initial")
        self.factor = float(factor)
        self.limit = duration_us(limit, what="limit")

    def delay(self, attempt: int) -> int:
        try:
            grown = self.initial * self.factor ** (attempt - 1)
        except OverflowError:  # far beyond any limit
            return self.limit
        return int(min(grown, self.limit))

    def _steps(self) -> str:
        return f"{duration_text(self.initial)!r}, {self.factor:g}, {duration_text(self.limit)!r}"


# The default of a task: one attempt.
never_again = Constant("1h", attempts=1)
