"""What a fleet of `limited_program.py` has to do, and how its witnesses are held against the limits."""

from __future__ import annotations

from pathlib import Path

from evertick import Run, Scheduler, State, Verdict

__all__ = ["PROGRAM", "check_limits", "enqueue_all", "live_runs"]

PROGRAM = Path(__file__).parent / "limited_program.py"
# As the program has them.
_RATE_MOST, _RATE_SECONDS = 6, 2.0


def enqueue_all(manager: Scheduler, share: float = 1.0) -> None:
    """All of it is work for about 25 seconds."""
    for name, count in (("press", 250), ("bind", 150), ("mail", 60)):
        manager.task(name=name)(lambda: None).sync.enqueue_many({} for _ in range(round(count * share)))


def live_runs(manager: Scheduler) -> list[Run]:
    return manager.sync.runs(states=[state for state in State if state is not State.DONE], limit=1000)


def check_limits(manager: Scheduler, folder: Path, share: float = 1.0) -> None:
    assert _testimony(folder, "full") == [], "a job found more at work than may be at once"
    # By the loss of its node, and three times over, a run may be given up; none is forgotten.
    runs = manager.sync.runs(limit=10_000)
    assert len(runs) == round(460 * share)
    assert {run.verdict for run in runs} <= {Verdict.SUCCEEDED, Verdict.LOST}
    succeeded = {run.id for run in runs if run.verdict is Verdict.SUCCEEDED}
    assert succeeded <= {run for _, _, _, run, _ in _testimony(folder, "placed", "mailed")}
    _check_rate(_testimony(folder, "mailed"), round(60 * share))


def _testimony(folder: Path, *what: str) -> list[list[str]]:
    lines = (folder / "testimony").read_text().splitlines()
    return [line.split() for line in lines if line.split()[0] in what]


def _check_rate(mailed: list[list[str]], least: int) -> None:
    """No stretch of a period has more starts than may be, give or take how long a start comes after its claim."""
    starts = sorted(float(at) for _, at, _, _, _ in mailed)
    late = max(float(ago) for _, _, ago, _, _ in mailed)
    assert len(starts) >= least
    for first, last in zip(starts, starts[_RATE_MOST:], strict=False):
        assert last - first >= _RATE_SECONDS - late, f"{_RATE_MOST + 1} starts in {last - first:.3f} s"
    # Strict by the claims themselves: what the job was told of them, not what the ledger says.
    claims = sorted(float(at) - float(ago) for _, at, ago, _, _ in mailed)
    for first, last in zip(claims, claims[_RATE_MOST:], strict=False):
        assert last - first >= _RATE_SECONDS - 0.01, f"{_RATE_MOST + 1} claims in {last - first:.3f} s"
