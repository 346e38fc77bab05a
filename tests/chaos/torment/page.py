"""The page that tells of a storm: `docs/explanation/chaos.md` is written by it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import msgspec

from torment.faults import KINDS
from torment.figures import FINDINGS, TAKEOVER_SECONDS, Figures, percentile
from torment.picture import picture_of

__all__ = ["FIGURES", "PAGE", "PICTURE", "page_of", "write_report"]

PAGE, PICTURE, FIGURES = "chaos.md", "chaos.svg", "chaos.json"

_INTRODUCTION = """\
# Chaos

What the promises are worth is seen when things go wrong. So five real node processes on a real PostgreSQL were
tormented for {minutes:g} minutes, by a seed, and afterwards every moment of every schedule was accounted for. This page
is written by that run:

```console
$ sh run chaos --minutes {minutes:g} --seed {seed} --report docs/explanation
```

A storm of 40 seconds is part of the tests (`tests/chaos`).

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


def write_report(figures: Figures, folder: Path) -> None:
    """The page, its picture, and the figures from which both can be written anew."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PAGE).write_text(page_of(figures))
    (folder / PICTURE).write_text(picture_of(figures))
    (folder / FIGURES).write_bytes(msgspec.json.encode(figures))


def page_of(figures: Figures) -> str:
    parts = [
        _INTRODUCTION.format(
            minutes=figures.minutes, seed=figures.seed, schedules=figures.schedules, lease=figures.lease_seconds
        ),
        _results(figures),
        _findings(figures),
        _recovery(figures),
    ]
    return "\n".join(parts)


def _results(figures: Figures) -> str:
    load = ", ".join(f"{each:.1f}" for each in figures.load)
    made = f"{figures.minutes:g} minutes with seed {figures.seed} on {figures.made_on}, on {figures.machine}"
    count = {name: f"{value:,}" for name, value in msgspec.structs.asdict(figures).items() if isinstance(value, int)}
    facts = [
        f"{count['moments']} moments: {count['fires']} runs and {count['gap_moments']} moments in gaps "
        f"({_words(figures.gap_reasons)}).",
        f"Runs ended as {_words(figures.verdicts)}. Failures are those of jobs that are made to fail. "
        f"{count['starts']} starts were witnessed: what was lost with its node, and what failed at first, is started "
        "again.",
        f"{count['lost_answers']} commits were made whose answer was lost. {count['unheard']} runs were claimed by "
        f"such commits, and given back. The register refused {count['refused_writes']} writes of older claims.",
        f"{sum(figures.faults.values()):,} faults, under way for so long in all:",
    ]
    rows = [f"| {kind} | {figures.faults[kind]:,} | {figures.fault_seconds[kind]:,.0f} s |" for kind in KINDS]
    parts = [
        "## What came of it",
        _filled(f"{made}, server and witnesses included (load averages {load} at the end)."),
        "\n".join(_filled(f"- {fact}", indent="  ") for fact in facts),
        "\n".join(["| fault | times | for |", "|---|---|---|", *rows]),
    ]
    return "\n\n".join(parts) + "\n"


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
    remark = [_filled(figures.remark), ""] if figures.remark else []
    head = ["## What was found", "", "| finding | what it is | times |", "|---|---|---|"]
    return "\n".join([*head, *rows, "", *remark])


def _recovery(figures: Figures) -> str:
    allowed = figures.lease_seconds + TAKEOVER_SECONDS
    text = (
        "From the kill to the next start of each run that the node had at work. With a lease of "
        f"{figures.lease_seconds:g} s it is to be less than {allowed:g} s. After an outage of the server nobody is "
        "judged dead for one lease, so those are shown apart. Not counted are runs that must not run twice, which end "
        "as lost instead, and runs with a limit, which stand in line for it again."
    )
    rows = [
        _recovery_row("the server was well", figures.recoveries_calm),
        _recovery_row("other trouble with the server", figures.recoveries_disturbed),
    ]
    parts = [
        "## When the work of a killed node starts again",
        _filled(text),
        "\n".join(["| while | runs | p50 | p99 | max |", "|---|---|---|---|---|", *rows]),
        f"![How long the work of killed nodes waited]({PICTURE})",
    ]
    return "\n\n".join(parts) + "\n"


def _recovery_row(name: str, values: Sequence[float]) -> str:
    if not values:
        return f"| {name} | 0 | | | |"
    half, most = percentile(values, 0.5), percentile(values, 0.99)
    return f"| {name} | {len(values):,} | {half:.2f} s | {most:.2f} s | {max(values):.2f} s |"


def _words(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "none"


def _filled(text: str, *, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_on_hyphens=False)
