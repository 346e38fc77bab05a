"""What holds of every ledger, whatever was done to it: checked after each test, through what people can read.

`check_ledger` looks at one moment, `Sightings` at how runs change between two looks.
"""

from __future__ import annotations

from collections.abc import Sequence

from evertick.model import LOSSES_MAX, TRANSITIONS, Cause, Claimed, Gap, Reason, Run, State

__all__ = ["Sightings", "check_ledger"]

_NOMINAL = (Cause.FIRE, Cause.BACKFILL)


def check_ledger(runs: Sequence[Run], gaps: Sequence[Gap]) -> None:
    """Every run is in a state that can be, no nominal moment has two runs, every gap is a stretch."""
    live = {run.id for run in runs if run.is_live}
    for run in runs:
        _check_run(run, live)
    fires = [(run.schedule_key, run.fire_at) for run in runs if run.cause in _NOMINAL]
    twice = {fire for fire in fires if fires.count(fire) > 1} if len(set(fires)) < len(fires) else set()
    assert not twice, f"nominal moments with more than one run: {twice}"
    ids = [run.id for run in runs]
    assert len(set(ids)) == len(ids), "a run is listed twice"
    for gap in gaps:
        assert gap.first_at <= gap.last_at, f"a gap that ends before it begins: {gap}"
        assert gap.count >= 1, f"a gap of no moments: {gap}"


def _check_run(run: Run, live: set[str]) -> None:
    is_done = run.state is State.DONE
    assert (run.verdict is not None) == is_done, f"a verdict belongs to what is done, and to nothing else: {run}"
    assert (run.finished_at is not None) == is_done, f"an end belongs to what is done, and to nothing else: {run}"
    if run.state is State.RUNNING:
        assert run.node, f"running, and nobody runs it: {run}"
        assert run.fence, f"running under no fence: {run}"
        assert run.started_at, f"running, and never started: {run}"
    assert (run.dispatched is not None) == (run.state is State.DISPATCHED), f"in other hands, or not: {run}"
    if run.state is State.DISPATCHED:
        assert run.fence, f"dispatched under no fence: {run}"
    if run.state is State.BLOCKED and run.reason in (Reason.CONCURRENCY, Reason.RATE):
        assert run.blocked_on, f"held back by a limit without a key: {run}"
    elif run.state is State.BLOCKED:
        assert run.blocked_on in live, f"blocked on what is not live: {run}"
    if run.state is State.PARKED:
        assert run.reason, f"parked for no reason: {run}"
    assert 0 <= run.losses <= LOSSES_MAX, f"lost more often than a run may be: {run}"


class Sightings:
    """Runs as they were last seen, and claims as they were given out."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._claims: set[tuple[str, int]] = set()
        self._fence = 0

    def look(self, runs: Sequence[Run]) -> None:
        for run in runs:
            before = self._runs.get(run.id)
            if before is not None:
                _check_change(before, run)
            self._runs[run.id] = run

    def claim(self, runs: Sequence[Claimed], fence: int) -> None:
        """A greater fence is a later claim, across runs too; no (run, fence) is given out twice."""
        if not runs:
            return
        assert fence > self._fence, f"fence {fence} after {self._fence}"
        self._fence = fence
        for run in runs:
            assert run.fence == fence, f"claimed under {fence}, but holds {run.fence}"
            assert (run.id, fence) not in self._claims, f"given out twice: {run.id} under {fence}"
            self._claims.add((run.id, fence))


def _reachable() -> dict[State, frozenset[State]]:
    """Where a run may be at a later look: any number of legal transitions away."""
    reach = {state: {state, *TRANSITIONS[state]} for state in State}
    for _ in State:
        for state in State:
            reach[state] |= {end for step in tuple(reach[state]) for end in reach[step]}
    return {state: frozenset(ends) for state, ends in reach.items()}


_REACHABLE = _reachable()


def _check_change(before: Run, after: Run) -> None:
    assert after.state in _REACHABLE[before.state], f"{before.state} became {after.state}: {after}"
    assert after.losses >= before.losses, f"a loss was forgotten: {after}"
    assert after.attempts >= before.attempts, f"an attempt was forgotten: {after}"
    for name in ("fire_at", "created_at", "cause", "task", "args", "schedule_key", "app"):
        assert getattr(after, name) == getattr(before, name), f"{name} of a run changed: {before} -> {after}"
    if before.state is State.DONE:
        for name in ("verdict", "reason", "finished_at", "result", "error", "attempts", "losses"):
            assert getattr(after, name) == getattr(before, name), f"{name} changed after the verdict: {after}"
