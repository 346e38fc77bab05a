"""What a storm came to, in figures. Nothing is counted here that the evidence does not show."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from torment.catalogue import LEASE_SECONDS, NODES
from torment.checker import Evidence, Finding, FindingKind, killed_at
from torment.faults import FLEET_WIDE, KINDS, Happened

__all__ = ["FINDINGS", "TAKEOVER_SECONDS", "Figures", "Run", "figures_of", "percentile", "recoveries_of", "summary_of"]

# What may follow the lease before the work of a dead node is under way again.
TAKEOVER_SECONDS = 3.0
FINDINGS: tuple[FindingKind, ...] = (
    "lost",
    "doubled",
    "started twice",
    "unwitnessed",
    "wrong verdict",
    "unfenced",
    "outlived",
    "limit passed",
    "stuck",
    "ended by itself",
)
_ENDED = frozenset({"end", "failed", "stopped"})


class Recovery(NamedTuple):
    """A run that a killed node left behind: how long until it was started again."""

    seconds: float
    # Nothing was wrong with the server meanwhile, nor shortly before.
    is_calm: bool


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Enough to write the page again."""

    seed: int
    minutes: float
    made_on: str
    machine: str
    load: list[float]
    nodes: int
    schedules: int
    moments: int
    fires: int
    gap_moments: int
    starts: int
    losses: int
    verdicts: dict[str, int]
    gap_reasons: dict[str, int]
    faults: dict[str, int]
    fault_seconds: dict[str, float]
    findings: dict[str, int]
    finding_texts: list[str]
    refused_writes: int
    lost_answers: int
    unheard: int
    lease_seconds: float
    recoveries_calm: list[float]
    recoveries_disturbed: list[float]
    settle_seconds: float
    stop_seconds: float
    exit_codes: list[int]
    # What whoever looked into the findings has to say, in Markdown.
    remark: str = ""


class Run(NamedTuple):
    """What is known of a storm beside the evidence."""

    seed: int
    seconds: float
    made_on: str
    machine: str
    load: tuple[float, float, float]
    happened: list[Happened]
    lost_answers: int
    # Runs that a node found to be its own without having heard of their claim.
    unheard: int
    settle_seconds: float
    stop_seconds: float
    exit_codes: list[int]


def figures_of(run: Run, evidence: Evidence, findings: Sequence[Finding]) -> Figures:
    recoveries = recoveries_of(evidence, run.happened)
    found = Counter(finding.kind for finding in findings)
    starts = sum(word.what == "start" for word in evidence.words)
    gap_reasons: Counter[str] = Counter()
    for gap in evidence.gaps:
        gap_reasons[gap.reason] += gap.moments
    fault_seconds = dict.fromkeys(map(str, KINDS), 0.0)
    for happened in run.happened:
        fault_seconds[happened.kind] += happened.ended - happened.began
    done = [row for row in evidence.runs if row.verdict is not None]
    return Figures(
        seed=run.seed,
        minutes=run.seconds / 60,
        made_on=run.made_on,
        machine=run.machine,
        load=list(run.load),
        nodes=NODES,
        schedules=len(evidence.entries),
        moments=len(done) + sum(gap_reasons.values()),
        fires=len(done),
        gap_moments=sum(gap_reasons.values()),
        starts=starts,
        losses=sum(row.verdict == "lost" for row in done),
        verdicts=dict(Counter(row.verdict or "" for row in done).most_common()),
        gap_reasons=dict(gap_reasons.most_common()),
        faults={kind: sum(happened.kind == kind for happened in run.happened) for kind in KINDS},
        fault_seconds={kind: round(fault_seconds[kind], 1) for kind in KINDS},
        findings={kind: found[kind] for kind in FINDINGS},
        finding_texts=[f"{finding.kind}: {finding.text}" for finding in findings][:100],
        refused_writes=sum(not write.is_accepted for write in evidence.writes),
        lost_answers=run.lost_answers,
        unheard=run.unheard,
        lease_seconds=LEASE_SECONDS,
        recoveries_calm=sorted(round(each.seconds, 3) for each in recoveries if each.is_calm),
        recoveries_disturbed=sorted(round(each.seconds, 3) for each in recoveries if not each.is_calm),
        settle_seconds=round(run.settle_seconds, 1),
        stop_seconds=round(run.stop_seconds, 1),
        exit_codes=run.exit_codes,
    )


def recoveries_of(evidence: Evidence, happened: Sequence[Happened]) -> list[Recovery]:
    """From the kill of a node to the next start of each run that it had begun and not ended.

    Not of what must not run twice; nor of what has a limit, behind which it stands in line again.
    """
    uncounted = {entry.key for entry in evidence.entries if entry.kind in ("once", "placed", "rated")}
    ended = {(word.run, word.fence) for word in evidence.words if word.what in _ENDED}
    starts: dict[str, list[tuple[int, float]]] = {}
    for word in evidence.words:
        if word.what == "start":
            starts.setdefault(word.run, []).append((word.fence, word.at))
    found = []
    for word in evidence.words:
        at = killed_at(evidence, word)
        if word.what != "start" or at is None or (word.run, word.fence) in ended or word.key in uncounted:
            continue
        again = min((began for fence, began in starts[word.run] if fence > word.fence), default=None)
        # A run that another node started before the kill was lost by other means.
        if again is not None and again > at:
            found.append(Recovery(again - at, _is_calm(at, happened)))
    return found


def _is_calm(at: float, happened: Sequence[Happened]) -> bool:
    """After trouble with the server nobody is judged for one lease, and then a beat must come round."""
    after = LEASE_SECONDS + TAKEOVER_SECONDS
    return not any(
        fault.kind in FLEET_WIDE and fault.began < at + after and fault.ended + after > at for fault in happened
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share does not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def summary_of(figures: Figures) -> str:
    """A few lines for a terminal."""
    lines = [
        f"{figures.minutes:.1f} min, seed {figures.seed}: {figures.fires} fires, {figures.gap_moments} moments in gaps",
        f"{sum(figures.faults.values())} faults: {_listed(figures.faults)}",
        f"ends: {_listed(figures.verdicts)}; gaps: {_listed(figures.gap_reasons)}",
        f"findings: {_listed(figures.findings)}",
        f"{figures.lost_answers} answers to commits lost, {figures.unheard} runs claimed unheard, "
        f"{figures.refused_writes} writes refused by the register",
        f"work of killed nodes, calm: {_times(figures.recoveries_calm)}; "
        f"disturbed: {_times(figures.recoveries_disturbed)}",
        f"settled in {figures.settle_seconds} s, stopped in {figures.stop_seconds} s, exits {figures.exit_codes}",
    ]
    return "\n".join([*lines, *figures.finding_texts[:20]])


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def _times(values: Sequence[float]) -> str:
    if not values:
        return "none"
    half, most = percentile(values, 0.5), percentile(values, 0.99)
    return f"{len(values)} runs, p50 {half:.2f} s, p99 {most:.2f} s, max {max(values):.2f} s"
