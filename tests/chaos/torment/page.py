"""The page that tells of a storm: `docs/explanation/chaos.md` is written by it."""

from __future__ import annotations

from torment.faults import KINDS
from torment.figures import FINDINGS, TAKEOVER_SECONDS, Figures, percentile

__all__ = ["page_of"]

_INTRODUCTION = """\
# Chaos

What the promises are worth is seen when things go wrong. So five real node processes on a real PostgreSQL were
tormented for {minutes:g} minutes, by a seed, and afterwards every moment of every schedule was accounted for. This page
is written by that run:

```console
$ sh run chaos --minutes {minutes:g} --seed {seed} --report docs/explanation
```

A shorter storm of 90 seconds is part of the tests (`tests/chaos`).

## What is done

{schedules} schedules fire every second to every minute. Their jobs are quick or long, coroutines, threads or child
processes with children of their own; they fail, fail at first, hang until their timeout, must not run twice, are
limited in number or in rate, and use every overlap and catch-up policy. The lease is {lease:g} s, so that the storm has
many leases in it. Between each node and the server is a proxy, by which connections can be cut, swallowed and slowed
down, and answers lost.

| fault | what it is |
|---|---|
| kill | `kill -9` of a node; another process takes its place |
| freeze | SIGSTOP for longer than the lease, then SIGCONT |
| cut | all connections of a node end |
| black hole | nothing comes through in either direction, and nobody is told; the connections never recover |
| delay | every message takes 20 to 400 ms longer |
| lost answers | commits come through, their answers do not |
| terminate | `pg_terminate_backend` of all connections of the fleet |
| restart | the server ends in immediate mode, as by a crash, and comes back |
| no connection left | somebody takes every connection that the server has, while a node needs new ones |
| lock | ACCESS EXCLUSIVE on the table of live runs |
| clock jump | the wall clock of a node is off by up to two days |

## Who judges

Jobs testify outside of the database: every start and end is a line in a file, with run, fence and time. Jobs with a
limit take places, files under a lock that the kernel gives back. A register accepts a write only with a fence that is
not older than the greatest it has seen. The checker works out from the catalogue which moments there were, by itself,
and matches each to one outcome. It is tested with doctored evidence: each kind of finding is seen.
"""


def page_of(figures: Figures, picture: str) -> str:
    parts = [
        _INTRODUCTION.format(
            minutes=figures.minutes, seed=figures.seed, schedules=figures.schedules, lease=figures.lease_seconds
        ),
        _results(figures),
        _findings(figures),
        _recovery(figures, picture),
    ]
    return "\n".join(parts)


def _results(figures: Figures) -> str:
    load = ", ".join(f"{each:.1f}" for each in figures.load)
    rows = [f"| {kind} | {figures.faults[kind]} | {figures.fault_seconds[kind]:.0f} s |" for kind in KINDS]
    return "\n".join(
        [
            "## What came of it",
            "",
            f"{figures.minutes:g} minutes with seed {figures.seed} on {figures.made_on}, on {figures.machine}, server "
            f"and witnesses included (load averages {load} at the end).",
            "",
            f"- {_number(figures.moments)} moments: {_number(figures.fires)} runs and {_number(figures.gap_moments)} "
            f"moments in gaps ({_words(figures.gap_reasons)}).",
            f"- Runs ended as {_words(figures.verdicts)}. {_number(figures.starts)} starts were witnessed: what was "
            "lost with its node, and what failed at first, is started again.",
            f"- {_number(figures.lost_answers)} commits were made whose answer was lost. "
            f"{_number(figures.unheard)} runs were claimed by such commits, and given back. The register refused "
            f"{_number(figures.refused_writes)} writes of older claims.",
            f"- {_number(sum(figures.faults.values()))} faults, under way for so long in all:",
            "",
            "| fault | times | for |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def _findings(figures: Figures) -> str:
    meaning: dict[str, str] = {
        "lost": "a moment without an outcome, or a start that the ledger does not know",
        "doubled": "a moment with two outcomes",
        "started twice": "a claim started twice, or a run that must not run twice",
        "unwitnessed": "a success that nobody saw",
        "wrong verdict": "an end that such a job cannot come to",
        "unfenced": "a write of an older claim after a newer one",
        "outlived": "a child at work after its node was killed",
        "limit passed": "more at once, or in a period, than may be",
        "stuck": "a run or a schedule that did not go on after the storm",
        "ended by itself": "a node that ended and that nobody had told to",
    }
    rows = [f"| {kind} | {meaning[kind]} | {figures.findings[kind]} |" for kind in FINDINGS]
    return "\n".join(["| finding | what it is | times |", "|---|---|---|", *rows, ""])


def _recovery(figures: Figures, picture: str) -> str:
    rows = []
    for name, values in (
        ("the server was well", figures.recoveries_calm),
        ("other trouble with the server", figures.recoveries_disturbed),
    ):
        if values:
            half, most = percentile(values, 0.5), percentile(values, 0.99)
            rows.append(f"| {name} | {len(values)} | {half:.2f} s | {most:.2f} s | {max(values):.2f} s |")
    allowed = figures.lease_seconds + TAKEOVER_SECONDS
    return "\n".join(
        [
            "## When the work of a killed node starts again",
            "",
            "From the kill to the next start of each run that the node had at work. With a lease of "
            f"{figures.lease_seconds:g} s it is to be less than {allowed:g} s. After an outage of the server nobody is "
            "judged dead for one lease, so those are shown apart. Not counted are runs that must not run twice, which "
            "end as lost instead, and runs with a limit, which stand in line for it again.",
            "",
            "| while | runs | p50 | p99 | max |",
            "|---|---|---|---|---|",
            *rows,
            "",
            f"![How long the work of killed nodes waited]({picture})",
            "",
        ]
    )


def _words(counts: dict[str, int]) -> str:
    return ", ".join(f"{_number(count)} {name}" for name, count in counts.items()) or "none"


def _number(value: int) -> str:
    return f"{value:,}"
