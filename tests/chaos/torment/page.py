"""The report of a storm: its figures, its picture, and its results in `docs/explanation/testing.md`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from torment.checker import FindingKind
from torment.faults import KINDS, FaultKind
from torment.figures import FINDINGS, TAKEOVER_SECONDS, Figures, percentile
from torment.picture import picture_of

__all__ = ["FIGURES", "PAGE", "PICTURE", "results_of", "write_report"]

PAGE, PICTURE, FIGURES = "testing.md", "chaos.svg", "chaos.json"

_BEGIN, _END = "<!-- storm -->\n", "<!-- end of storm -->\n"
_MEANING: dict[FaultKind, str] = {
    "kill": "`kill -9` of a node; a new process replaces it",
    "freeze": "SIGSTOP for longer than the lease, then SIGCONT",
    "cut": "all connections of a node end",
    "black hole": "connections stay open and carry nothing",
    "delay": "every message takes 20 to 400 ms longer",
    "lost answers": "commits succeed, their answers do not arrive",
    "terminate": "`pg_terminate_backend` for all connections",
    "restart": "the server stops in immediate mode and starts again",
    "no connection left": "all connections of the server are in use",
    "lock": "ACCESS EXCLUSIVE on the table of live runs",
    "clock jump": "the clock of a node is wrong by up to two days",
}
_FOUND: dict[FindingKind, str] = {
    "lost": "lost moments",
    "doubled": "moments with two outcomes",
    "started twice": "claims started twice",
    "unwitnessed": "successes without a witness",
    "wrong verdict": "wrong verdicts",
    "unfenced": "writes of an old claim",
    "outlived": "children that outlived their node",
    "limit passed": "limits exceeded",
    "stuck": "stuck runs or schedules",
    "ended by itself": "nodes that ended by themselves",
}


def write_report(figures: Figures, folder: Path) -> None:
    """Write figures and picture, and replace the results in the page, if it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PICTURE).write_text(picture_of(figures))
    (folder / FIGURES).write_bytes(msgspec.json.encode(figures))
    page = folder / PAGE
    before, _, rest = (page.read_text() if page.exists() else _BEGIN + _END).partition(_BEGIN)
    page.write_text(before + _BEGIN + results_of(figures) + _END + rest.partition(_END)[2])


def results_of(figures: Figures) -> str:
    """The results as Markdown."""
    parts = [
        "",
        _filled(
            f"Results of `sh run chaos --minutes {figures.minutes:g} --seed {figures.seed}` on {figures.made_on} "
            f"({figures.machine}, shared with the server):"
        ),
        "\n".join(_filled(f"- {fact}", indent="  ") for fact in _facts(figures)),
        "\n".join(
            [
                "| fault | meaning | times |",
                "|---|---|---|",
                *(f"| {kind} | {_MEANING[kind]} | {figures.faults[kind]:,} |" for kind in KINDS),
            ]
        ),
        _recovery(figures),
        *([_filled(figures.remark)] if figures.remark else []),
        f"![Seconds until the runs of killed nodes started again]({PICTURE})",
    ]
    return "\n\n".join(parts)[1:] + "\n\n"


def _facts(figures: Figures) -> list[str]:
    count = {name: f"{value:,}" for name, value in msgspec.structs.asdict(figures).items() if isinstance(value, int)}
    return [
        f"{count['moments']} moments of {count['schedules']} schedules: {count['fires']} runs, and "
        f"{count['gap_moments']} moments in gaps ({_words(figures.gap_reasons)}).",
        f"Verdicts: {_words(figures.verdicts)}. Jobs that fail do so on purpose.",
        f"{count['lost_answers']} commits lost their answer; {count['unheard']} runs that they claimed were released.",
        f"{count['refused_writes']} writes with an old fence were refused.",
        f"Findings: {_words({_FOUND[kind]: figures.findings[kind] for kind in FINDINGS})}.",
    ]


def _recovery(figures: Figures) -> str:
    aim = figures.lease_seconds + TAKEOVER_SECONDS
    text = (
        f"Runs of a killed node start again elsewhere. With a lease of {figures.lease_seconds:g} s the aim is "
        f"{aim:g} s after the kill:"
    )
    rows = [
        _recovery_row("well", figures.recoveries_calm),
        _recovery_row("in trouble", figures.recoveries_disturbed),
    ]
    return "\n".join([_filled(text), "", "| server | runs | p50 | p99 | max |", "|---|---|---|---|---|", *rows])


def _recovery_row(name: str, values: Sequence[float]) -> str:
    if not values:
        return f"| {name} | 0 | | | |"
    half, most = percentile(values, 0.5), percentile(values, 0.99)
    return f"| {name} | {len(values):,} | {half:.2f} s | {most:.2f} s | {max(values):.2f} s |"


def _words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "none"


def _filled(text: str, *, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_on_hyphens=False)
