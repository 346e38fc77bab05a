"""The tables of the results: one per measurement and store, with all cases, and the files that contain them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contender.contenders import CONTENDERS
from benchmarks.measurement import Case, Measurement, Metric
from benchmarks.plan import GROUPS, MEASUREMENTS, PLAN
from benchmarks.report.aims import aims_table, reasons_of
from benchmarks.report.comparison import comparison_table, cross_run_table, ratios
from benchmarks.report.notes import GROUP_TITLES, LEGEND, METHOD, NOT_MEASURED, notes_of
from benchmarks.report.text import (
    STORE_TITLES,
    case_title,
    contender_title,
    count_text,
    filled,
    number_text,
    range_text,
    share_text,
    table,
)
from benchmarks.samples import Results, Samples, present

__all__ = ["FILES", "Table", "files_of", "metric_values", "missing_of", "tables_of", "write_tables"]

# The files, in the order in which they are linked.
FILES = ("tables.md", "comparison.md", "aims.md", "runs.md")
# With fewer rounds, a table says so.
_ENOUGH = 5
_PLACES = {case: place for place, case in enumerate(PLAN)}
_GUESSING = {each.name for each in CONTENDERS if each.is_guessing}
_LATENESS = ("p50", "p99", "max")
_SHARE = "share"
_NOT_IN_TIME = "not all in time"
_NEXT = "\n\n"


# --- one table


@dataclass(frozen=True)
class Table:
    """`about` names the runs and the number of rounds."""

    title: str
    about: str
    text: str


def tables_of(results: Results, measurement: Measurement) -> list[Table]:
    """One table for each store, with rows in the order of the plan."""
    found = results.of(measurement.name)
    cases = {case: found[case] for case in sorted(found, key=lambda case: _PLACES.get(case, len(_PLACES)))}
    tables = []
    for store in dict.fromkeys(case.store for case in cases):
        here = {case: samples for case, samples in cases.items() if case.store == store}
        title = f"{measurement.title}{f' on {STORE_TITLES[store]}' if store else ''}"
        about = f"{_runs_text(here, results)}; {_rounds_text(measurement, here, results)}"
        tables.append(Table(title, about, _text(measurement, here, results)))
    return tables


def _runs_text(cases: Iterable[Case], results: Results) -> str:
    numbers = sorted({results.run_of(case) for case in cases})
    return f"run{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _rounds_text(measurement: Measurement, cases: Mapping[Case, Samples], results: Results) -> str:
    count = max((_rounds(case, results) for case in cases), default=0)
    noun = "turn" if measurement.is_once and count > 1 else "round"
    text = count_text(count, noun) if count > 1 else f"one {noun}"
    return text if count >= _ENOUGH else f"{text}: fewer than {_ENOUGH}"


def _rounds(case: Case, results: Results) -> int:
    """With missing rounds, but without the last round of an interrupted run that did not reach the case."""
    samples = results.cases[case].values()
    count = max(map(len, samples), default=0)
    is_interrupted = bool(results.runs[results.run_of(case) - 1].interrupted)
    has_last = any(len(each) == count and not math.isnan(each[-1]) for each in samples)
    return count - 1 if is_interrupted and count and not has_last else count


def _text(measurement: Measurement, cases: Mapping[Case, Samples], results: Results) -> str:
    metrics = [each for each in measurement.metrics if _is_shown(each, cases)]
    has_runs = len({results.run_of(case) for case in cases}) > 1
    number = [measurement.number_text] if measurement.number_text else []
    head = ["", *number, *(f"{each.text}, {each.unit}" for each in metrics)]
    rows, most = [], max((_rounds(case, results) for case in cases), default=0)
    for case, samples in cases.items():
        found = max((len(present(each)) for each in samples.values()), default=0)
        rounds = _rounds(case, results)
        about = [f"run {results.run_of(case)}"] if has_runs else []
        if found < rounds:
            about.append(f"{found} of {count_text(rounds, 'round')}")
        elif found < most:
            about.append(count_text(found, "round"))
        if _has_left_some(samples) and present(metric_values(case, samples, "p99")):
            about.append(_NOT_IN_TIME)
        title = case_title(case) + (f" ({'; '.join(about)})" if about else "")
        beside = _raw(case)
        raw = cases.get(beside) if beside != case and results.are_of_one_run(case, beside) else None
        cells = [_cell(each, case, samples, raw) for each in metrics]
        rows.append([title, *([f"{case.number:,}"] if number else []), *cells])
    return table(head, rows)


def _is_shown(metric: Metric, cases: Mapping[Case, Samples]) -> bool:
    has_any = any(present(samples.get(metric.name, [])) for samples in cases.values())
    return has_any and not (metric.is_of_server and all(case.store == "sqlite" for case in cases))


def _raw(case: Case) -> Case:
    return Case(case.measurement, case.store, "raw", case.processes, case.number, case.variant)


def metric_values(case: Case, samples: Samples, name: str) -> list[float]:
    """All samples with missing rounds; none if the contender's lateness is unknown."""
    is_guessed = case.contender in _GUESSING and name in _LATENESS and _has_left_some(samples)
    return [] if is_guessed else samples.get(name, [])


def _has_left_some(samples: Samples) -> bool:
    return min(present(samples.get(_SHARE, [])), default=100) < 100


def _cell(metric: Metric, case: Case, samples: Samples, raw: Samples | None) -> str:
    """Median, range, and the ratio to the raw loop by rounds."""
    values = present(metric_values(case, samples, metric.name))
    if not values:
        return "-"
    text_of = share_text if metric.name == _SHARE else number_text
    text = text_of(statistics.median(values))
    if len(values) > 1:
        text += f" {range_text(text_of(min(values)), text_of(max(values)))}"
    to_raw = ratios(samples[metric.name], raw.get(metric.name, [])) if metric.has_ratio and raw is not None else []
    if to_raw:
        text += f", {number_text(statistics.median(to_raw))} of raw"
    return text


# --- cases of the plan without results

# From the widest to the finest: if a whole store is missing, its cases are not listed.
_PARTS: tuple[Callable[[Case], str], ...] = (
    lambda case: f"on {STORE_TITLES[case.store]}",
    lambda case: f"{case.processes} process{'es' if case.processes > 1 else ''}",
    lambda case: _without_comma(contender_title(case)),
    lambda case: case.variant,
    lambda case: f"{case.number:,}",
)


def _without_comma(title: str) -> str:
    name, _, variant = title.partition(", ")
    return f"{name} ({variant})" if variant else name


def missing_of(results: Results, measurement: Measurement) -> str:
    """The planned cases of a measurement that have no results; empty if all have."""
    planned = [case for case in PLAN if case.measurement == measurement.name]
    # A case that failed in each round has a row.
    there = list(results.of(measurement.name))
    return "; ".join(_missing(planned, there, _PARTS, ())) if there else "all cases"


def _missing(
    planned: Sequence[Case], there: Sequence[Case], parts: Sequence[Callable[[Case], str]], within: Sequence[str]
) -> Iterator[str]:
    if not parts:
        return
    part, *finer = parts
    wanted, found = _by(part, planned), _by(part, there)
    lacking = [text for text in wanted if text not in found]
    if lacking:
        where = f"{', '.join(within)}: " if within else ""
        yield where + ", ".join(lacking)
    for text in (each for each in wanted if each in found):
        # A part that all cases share is not named.
        deeper = [*within, text] if text and len(wanted) > 1 else within
        yield from _missing(wanted[text], found[text], finer, deeper)


def _by(part: Callable[[Case], str], cases: Sequence[Case]) -> dict[str, list[Case]]:
    by_text: dict[str, list[Case]] = {}
    for case in cases:
        by_text.setdefault(part(case), []).append(case)
    return by_text


# --- files

_QUICK = "**A quick run with tiny sizes and cases in parallel: these results mean nothing.**"
_GENERATED = "Written by `python -m benchmarks report` from the samples in `how-fast.json`."
_COMPARISON = (
    "The metrics at which a peer is better than Evertick in the same rounds of one run. The ratio is the median of the "
    "ratios of the rounds, with their range. If the rounds disagree and the median is below 1.5, both are about equal. "
    "Evertick has 2,000 runs at once here. A peer that left moments behind is not compared by those that started."
)
_CROSS_RUN = (
    "The same for results of different runs, by their medians. Rounds and runs are those of the other contender, then "
    "those of Evertick. This is weaker evidence: code and machine may have changed in between."
)
_RAW = "The metrics at which the raw loop is better: the price of a scheduler. The loop does nothing else."
_AIMS = (
    "The aims are for one process on two cores shared with the server. An aim is reached if the median of the rounds "
    "reaches it; where the rounds disagree, the number that reach it follows. Two rounds that disagree are undecided. "
    "Ratios are medians of the ratios in the same rounds of one run, for the best peer with the best one in each "
    "round; only memory is also compared between runs. Evertick has 2,000 runs at once, as installed 50."
)
_REASONS = "Known reasons of the aims that some round misses, by profiles:"
_RUNS = (
    "The runs that measured these results. The tables name them by number. Loads are load averages before the first "
    "round and after each; stolen is processor time that the host gave to other machines in each round. Results of "
    "different processors can only be compared by their ratios."
)


def write_tables(results: Results, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files_of(results).items():
        (folder / name).write_text(text, encoding="utf-8")


def files_of(results: Results) -> dict[str, str]:
    """The text of each file by its name."""
    sections = (_tables(results), _comparison(results), _aims(results), _runs(results))
    return {
        name: _NEXT.join([f"# {title}", *([_QUICK] if results.quick else []), _GENERATED, *blocks]) + "\n"
        for name, (title, blocks) in zip(FILES, sections, strict=True)
    }


_Section = tuple[str, list[str]]


def _tables(results: Results) -> _Section:
    blocks = [LEGEND.rstrip()]
    for group in GROUPS:
        measurements = [each for each in MEASUREMENTS.values() if each.group == group]
        cases = [case for each in measurements for case in results.of(each.name)]
        if cases:
            blocks += [f"## {GROUP_TITLES[group]}", *map(filled, notes_of(group, cases))]
        for measurement in measurements:
            for each in tables_of(results, measurement):
                blocks += [f"**{each.title}** ({each.about})", each.text]
    return "Tables", blocks


def _comparison(results: Results) -> _Section:
    blocks = []
    for title, text, is_raw in (("Better peers", _COMPARISON, False), ("Raw loop", _RAW, True)):
        within, between = comparison_table(results, is_raw=is_raw), cross_run_table(results, is_raw=is_raw)
        blocks += [f"## {title}", filled(text), within or "None."]
        blocks += [filled(_CROSS_RUN), between] if between else []
    return "Comparison", blocks


def _aims(results: Results) -> _Section:
    blocks = [filled(_AIMS), aims_table(results)]
    if reasons := reasons_of(results):
        blocks += [_REASONS, "\n".join(filled(each, "  ") for each in reasons)]
    return "Aims", blocks


def _runs(results: Results) -> _Section:
    blocks = ["## Method", METHOD.rstrip(), "## Not measured", NOT_MEASURED.rstrip(), *_missing_cases(results)]
    blocks += ["## Machines", table(["", ""], [*{**results.machine, **_flush(results)}.items()])]
    if results.server:
        shown = ", ".join(f"`{name}={value}`" for name, value in results.server.items())
        blocks.append(filled(f"Settings of PostgreSQL: {shown}."))
    if results.settings or results.skipped:
        blocks.append("## Contenders")
    if results.settings:
        blocks.append(table(["", "settings"], [*results.settings.items()]))
    blocks += [
        filled(f"{title} was not measured: it could not be installed ({reason}).")
        for title, reason in results.skipped.items()
    ]
    if results.failed:
        blocks.append("Failed rounds of peers:")
        blocks.append("\n".join(filled(f"- {' '.join(each.split())}", "  ") for each in results.failed))
    if results.cases:
        blocks += ["## Runs", *([filled(results.note)] if results.note else []), filled(_RUNS)]
        numbers = sorted({results.run_of(case) for case in results.cases})
        blocks.append("\n".join(filled(f"{number}. {_run_text(results, number)}", "   ") for number in numbers))
    return "Method, machines and runs", blocks


def _missing_cases(results: Results) -> Iterator[str]:
    """A quick run has other sizes than the plan."""
    if results.quick:
        return
    lacking = {each.title: missing_of(results, each) for each in MEASUREMENTS.values()}
    items = [filled(f"- {title}: {text}.", "  ") for title, text in lacking.items() if text]
    if items:
        yield "Planned cases without results:"
        yield "\n".join(items)


def _flush(results: Results) -> dict[str, str]:
    found = [run.flush_ms for run in results.runs if run.flush_ms is not None]
    if not found:
        return {}
    spread = f" {range_text(f'{min(found):.2f}', f'{max(found):.2f}')} in {len(found)} runs" if len(found) > 1 else ""
    return {"flush of a page": f"{statistics.median(found):.2f} ms{spread}"}


def _run_text(results: Results, number: int) -> str:
    """Date, commit, cases and machine of a run."""
    run, cases = results.runs[number - 1], [case for case in results.cases if results.run_of(case) == number]
    by_name: dict[str, list[str]] = {}
    for case in cases:
        by_name.setdefault(case.measurement, []).append(STORE_TITLES[case.store])
    stores: dict[str, list[str]] = {}
    for name in (name for name in MEASUREMENTS if name in by_name):
        stores.setdefault(" and ".join(dict.fromkeys(by_name[name])), []).append(name)
    measured = "; ".join(f"{', '.join(names)}{f' on {where}' if where else ''}" for where, names in stores.items())
    when = ", ".join(each for each in (run.measured, f"commit {run.commit}" if run.commit else "") if each)
    words = [f"{when}: {measured}" if when else measured]
    words += [f"interrupted in round {run.interrupted}"] if run.interrupted else []
    words += [f"loads {', '.join(f'{each:.1f}' for each in run.loads)}"] if run.loads else []
    words += [f"stolen {', '.join(f'{each:.1f}' for each in run.stolen)} %"] if run.stolen else []
    words += [run.cpu] if run.cpu and len({each.cpu for each in results.runs}) > 1 else []
    words += [run.python] if run.python and len({each.python for each in results.runs}) > 1 else []
    return "; ".join(words)
