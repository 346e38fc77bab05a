"""Holds the ledger against the rules of time and against the witnesses. Pure: evidence in, findings out.

The expected moments are worked out here from the catalogue, not by Evertick's own rules. Every finding is of one of a
few kinds; a kind without findings is a promise that was kept.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Literal, NamedTuple

from torment.catalogue import AT_ONCE, RATE_MOST, RATE_SECONDS, Entry, Kind
from torment.witness import Word, Write

__all__ = [
    "CHILDREN_GONE_SECONDS",
    "Evidence",
    "Finding",
    "FindingKind",
    "GapRow",
    "Process",
    "RunRow",
    "check",
    "killed_at",
]

FindingKind = Literal[
    "lost",  # a moment without an outcome
    "doubled",  # a moment with two, or one that is no moment of its schedule
    "started twice",  # the same claim was started more than once, or a run that must not run twice was
    "unwitnessed",  # succeeded, and nobody saw it come to its end
    "wrong verdict",  # an end that a job of this kind cannot come to
    "unfenced",  # an older claim wrote after a newer one, or began after a newer one had written
    "outlived",  # a child, or a child of one, went on after its node had been killed, or had ended
    "limit passed",  # more at once, or more in a period, than may be
    "stuck",  # still live, or not advanced, long after all was well again
    "ended by itself",  # a process of a node that nobody had told to
]

# A killed node's children are gone after this, well before anybody takes its runs over.
CHILDREN_GONE_SECONDS = 1.5
# Rates are counted by the store's time, to the microsecond; ours went through text.
_ROUNDING_SECONDS = 0.00001

_SUCCEEDED, _FAILED, _LOST, _CANCELLED = "succeeded", "failed", "lost", "cancelled"
_ENDS: dict[Kind, frozenset[str]] = {
    "failing": frozenset({_FAILED}),
    "hanging": frozenset({_FAILED}),
}
_USUAL_ENDS = frozenset({_SUCCEEDED})
# After so many losses a run is given up. One that must not run twice is, after the first, or when it is cut off.
_LOSSES_MOST = 3


class RunRow(NamedTuple):
    """A run as the ledger has it in the end."""

    key: str
    moment: int
    run: str
    # None: still live.
    verdict: str | None
    state: str
    reason: str | None
    fence: int | None
    # How many of its claims were lost.
    losses: int


class GapRow(NamedTuple):
    key: str
    first: int
    last: int
    moments: int
    reason: str


class Process(NamedTuple):
    """A process of a node, and what was done to it, by the clock of the witnesses."""

    pid: int
    killed_at: float | None
    freezes: tuple[tuple[float, float], ...] = ()
    # How it ended, if it did so without being told to after it had started.
    own_exit: int | None = None
    # The system gives the number of a process that has ended to another one, sooner or later.
    began_at: float = 0.0


class Evidence(NamedTuple):
    entries: tuple[Entry, ...]
    # When each schedule was made, and the last second that is judged.
    created: dict[str, float]
    until: int
    # The next moment of each schedule; None: it has none.
    cursors: dict[str, int | None]
    runs: list[RunRow]
    gaps: list[GapRow]
    words: list[Word]
    writes: list[Write]
    processes: list[Process]
    # What is still there of children, and of their children, after all nodes have ended: how each was called.
    survivors: tuple[str, ...] = ()


class Finding(NamedTuple):
    kind: FindingKind
    text: str


def check(evidence: Evidence) -> list[Finding]:
    return [
        *_check_moments(evidence),
        *_check_starts(evidence),
        *_check_verdicts(evidence),
        *_check_register(evidence),
        *_check_children(evidence),
        *_check_places(evidence),
        *_check_rate(evidence),
        *_check_stuck(evidence),
        *_check_processes(evidence),
    ]


def expected_moments(entry: Entry, created: float, until: int) -> range:
    first = int(created // entry.seconds + 1) * entry.seconds
    return range(first, until + 1, entry.seconds)


# --- the ledger alone


def _check_moments(evidence: Evidence) -> Iterator[Finding]:
    outcomes: dict[str, Counter[int]] = defaultdict(Counter)
    seconds = {entry.key: entry.seconds for entry in evidence.entries}
    for run in evidence.runs:
        outcomes[run.key][run.moment] += 1
    for gap in evidence.gaps:
        covered = range(gap.first, gap.last + 1, seconds[gap.key])
        outcomes[gap.key].update(covered)
        if gap.moments != len(covered):
            yield Finding("lost", f"{gap.key}: a gap of {gap.moments} moments has {len(covered)} between its ends")
    for entry in evidence.entries:
        expected = expected_moments(entry, evidence.created[entry.key], evidence.until)
        found = outcomes[entry.key]
        for moment in expected:
            if not found[moment]:
                yield Finding("lost", f"{entry.key}: the moment {moment} has no outcome")
        for moment, count in found.items():
            if count > 1:
                yield Finding("doubled", f"{entry.key}: the moment {moment} has {count} outcomes")
            if moment % entry.seconds or moment < expected.start:
                yield Finding("doubled", f"{entry.key}: {moment} has an outcome, and is none of its moments")


def _check_stuck(evidence: Evidence) -> Iterator[Finding]:
    for run in evidence.runs:
        # After the fleet has stopped nothing runs; what was due long before has ended.
        if run.verdict is None and (run.state == "running" or run.moment <= evidence.until):
            yield Finding("stuck", f"{run.key}: run {run.run} of {run.moment} is {run.state} ({run.reason})")
    for key, cursor in evidence.cursors.items():
        if cursor is None or cursor <= evidence.until:
            yield Finding("stuck", f"{key}: its cursor is at {cursor}, and the last second was {evidence.until}")


def _check_processes(evidence: Evidence) -> Iterator[Finding]:
    for process in evidence.processes:
        if process.own_exit is not None:
            yield Finding("ended by itself", f"the process {process.pid} ended with {process.own_exit}")


# --- the ledger and the witnesses


def _check_starts(evidence: Evidence) -> Iterator[Finding]:
    kinds = {entry.key: entry.kind for entry in evidence.entries}
    claims: Counter[tuple[str, int]] = Counter()
    once: Counter[str] = Counter()
    known = {run.run: run for run in evidence.runs}
    for word in evidence.words:
        if word.what != "start":
            continue
        claims[word.run, word.fence] += 1
        if kinds[word.key] == "once":
            once[word.run] += 1
        row = known.get(word.run)
        if row is None:
            yield Finding("lost", f"{word.key}: run {word.run} of {word.moment} was started and is not in the ledger")
        elif (row.key, row.moment) != (word.key, word.moment):
            yield Finding("doubled", f"run {word.run} was started as {word.key} {word.moment}, and is {row}")
    for (run, fence), count in claims.items():
        if count > 1:
            yield Finding("started twice", f"run {run} was started {count} times under fence {fence}")
    for run, count in once.items():
        if count > 1:
            yield Finding("started twice", f"run {run} must not run twice, and was started {count} times")


def _check_verdicts(evidence: Evidence) -> Iterator[Finding]:
    entries = {entry.key: entry for entry in evidence.entries}
    ended = {(word.run, word.fence) for word in evidence.words if word.what == "end"}
    for run in evidence.runs:
        if run.verdict is None:
            continue
        entry = entries[run.key]
        allowed = _ENDS.get(entry.kind, _USUAL_ENDS)
        if entry.overlap == "replace":
            allowed |= {_CANCELLED}
        if entry.kind == "once" or run.losses >= _LOSSES_MOST:
            allowed |= {_LOST}
        if run.verdict not in allowed:
            how = f"{run.verdict} ({run.reason}) after {run.losses} losses"
            yield Finding("wrong verdict", f"{run.key}: run {run.run} ended as {how}")
        if run.verdict == _SUCCEEDED and (run.run, run.fence) not in ended:
            yield Finding("unwitnessed", f"{run.key}: run {run.run} under fence {run.fence} succeeded unseen")


def _check_register(evidence: Evidence) -> Iterator[Finding]:
    """Whoever is refused has come with an older fence. Going on, that is what fences are for; but nobody begins so,
    unless it was frozen between its claim and its first act."""
    greatest: dict[str, int] = defaultdict(int)
    started = {(word.run, word.fence): word for word in evidence.words if word.what == "start"}
    for write in sorted(evidence.writes, key=lambda each: each.at):
        if write.is_accepted and write.fence < greatest[write.resource]:
            yield Finding("unfenced", f"{write.resource}: written under {write.fence} after {greatest[write.resource]}")
        if write.is_accepted:
            greatest[write.resource] = max(greatest[write.resource], write.fence)
        elif write.is_first:
            start = started.get((write.run, write.fence))
            if start is None or not _was_frozen_before(evidence, write.node, write.at):
                newer = greatest[write.resource]
                yield Finding("unfenced", f"{write.resource}: run {write.run} began under {write.fence} after {newer}")


def _check_children(evidence: Evidence) -> Iterator[Finding]:
    for word in evidence.words:
        at = killed_at(evidence, word)
        if at is not None and word.speaker != word.node and word.at > at + CHILDREN_GONE_SECONDS:
            late = word.at - at
            yield Finding("outlived", f"{word.key}: a child of run {word.run} said {word.what} {late:.1f} s too late")
    for survivor in evidence.survivors:
        yield Finding("outlived", f"{survivor} is still there after all nodes have ended")


def killed_at(evidence: Evidence, word: Word) -> float | None:
    """When the node of this word was killed: the last process with its number that had begun by then."""
    had_begun = (each for each in evidence.processes if each.pid == word.node and each.began_at <= word.at)
    node = max(had_begun, key=lambda each: each.began_at, default=None)
    return None if node is None else node.killed_at


def _check_places(evidence: Evidence) -> Iterator[Finding]:
    """All places taken: one too many, unless a frozen node still sits in one that the ledger has given to others."""
    keys = {entry.key for entry in evidence.entries if entry.kind == "placed"}
    words = [word for word in evidence.words if word.key in keys]
    ended = {(word.run, word.fence): word.at for word in words if word.what == "end"}
    for full in words:
        if full.what != "full":
            continue
        at_work = {
            word.node
            for word in words
            if word.what == "start" and word.at <= full.at <= ended.get((word.run, word.fence), full.at)
        }
        if not any(_was_frozen_before(evidence, node, full.at) for node in at_work):
            yield Finding("limit passed", f"{full.key}: run {full.run} found {AT_ONCE} at work already")


def _check_rate(evidence: Evidence) -> Iterator[Finding]:
    kinds = {entry.key: entry.kind for entry in evidence.entries}
    claims = sorted(word.claimed_at for word in evidence.words if word.what == "start" and kinds[word.key] == "rated")
    for first, last in zip(claims, claims[RATE_MOST:], strict=False):
        if last - first < RATE_SECONDS - _ROUNDING_SECONDS:
            yield Finding("limit passed", f"{RATE_MOST + 1} claims in {last - first:.6f} s of the store's time")


def _was_frozen_before(evidence: Evidence, pid: int, at: float) -> bool:
    """Shortly: within the longest freeze and a little."""
    for process in evidence.processes:
        if process.pid == pid:
            return any(began <= at <= ended + _THAW_SECONDS for began, ended in process.freezes)
    return False


# How long after a freeze a node may not have noticed yet that its claims are gone: until its next beat is answered.
_THAW_SECONDS = 2.0
