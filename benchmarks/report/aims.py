"""The aims of Evertick, and whether the samples reach them. A missed aim stays in the list."""

from __future__ import annotations

import dataclasses
import math
import operator
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.contender.contenders import CONTENDERS
from benchmarks.measure.knee import LATE_MS, knee_of, knee_of_one_node
from benchmarks.measure.schedules import EVENLY, MILLION
from benchmarks.measurement import Case
from benchmarks.plan import MEASUREMENTS, PLAN
from benchmarks.report.comparison import ratios
from benchmarks.report.text import STORE_TITLES, number_text, range_text, table
from benchmarks.samples import Results, Samples, present
from benchmarks.size import FULL

__all__ = [
    "AIMS",
    "HISTORY_AIM",
    "LATE_AIMS",
    "MISSED",
    "REACHED",
    "UNDECIDED",
    "Aim",
    "AimResult",
    "aims_table",
    "reasons_of",
    "results_of",
]

REACHED, MISSED, UNDECIDED = "reached", "**missed**", "undecided"
_NOT_MEASURED = "not measured"
# With so few rounds, rounds that disagree decide nothing.
_UNDECIDED_MOST = 2
_TIMES = "times"
_REPORTED = "reported only"
_HISTORY = 10_000_000
# The least speed beside a long history, as a ratio to a short one.
HISTORY_AIM = 0.9
# By the number of schedules: the limit of the p99 lateness in milliseconds.
LATE_AIMS = {10_000: 50, 100_000: 250, MILLION: 2_000}
# Variants: all schedules of a second at once, or each at its own moment.
_MINUTES = ("", EVENLY)
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "at least": operator.ge,
    "at most": operator.le,
    "under": operator.lt,
}
_PEERS = {each.name: each.title for each in CONTENDERS if each.is_peer}

# Reasons that profiles have shown.
_AS_INSTALLED = "50 runs at once instead of 2,000, and asyncio's event loop: smaller batches."
_CPU_BOUND = "Both are limited by the processor, and its speed varies between rounds."
_START = "A claim checks priorities and limits, and the Python code around it takes 0.9 ms on cores of 2.5 GHz."
_IN_PROCESS = "On SQLite a statement is a function call; several write a batch of a thousand runs in one commit."
_POLLING = (
    "inotify does not say which process wrote, so a node also checks for work after its own heartbeats. On SQLite a "
    "statement is a function call."
)
_TICKS = "No two schedules are due together: up to forty ticks a second with few fires each."
_SHORT_TURNS = "Not investigated. Neighbouring turns of the same ledger differ by a tenth or more."
_UNKNOWN = "Not investigated."


@dataclass(frozen=True)
class _Found:
    """The samples of an aim, one for each round; empty if it was not measured.

    `beside` is additional text. `rounds` is their number if one sample stands for several rounds.
    """

    samples: Sequence[float]
    case: Case | None = None
    beside: str = ""
    rounds: int = 0

    @property
    def count(self) -> int:
        return self.rounds or len(self.samples)


@dataclass(frozen=True)
class Aim:
    """`kind` is a key of `_COMPARE`. An aim without a limit is only reported."""

    text: str
    kind: str
    limit: float | None
    unit: str
    find: Callable[[Results], _Found]
    # The reason why it is missed; it may depend on the samples.
    why: str | Callable[[Results], str] = ""
    # Known to be out of reach, and listed only if it was measured.
    is_beyond: bool = False

    @property
    def limit_text(self) -> str:
        return self.kind if self.limit is None else f"{self.kind} {_exact(self.limit)} {self.unit}".rstrip()

    def reason(self, results: Results) -> str:
        return (self.why if isinstance(self.why, str) else self.why(results)) or _UNKNOWN

    def is_reached_by(self, value: float) -> bool:
        return self.limit is None or _COMPARE[self.kind](value, self.limit)


@dataclass(frozen=True)
class AimResult:
    """An aim and its samples."""

    aim: Aim
    found: _Found

    @property
    def is_measured(self) -> bool:
        return bool(self.found.samples) and self.found.case is not None

    @property
    def median(self) -> float:
        return statistics.median(self.found.samples)

    @property
    def verdict(self) -> str:
        """By the median; two rounds that disagree are undecided. Empty without a limit."""
        if not self.is_measured or self.aim.limit is None:
            return ""
        reaching = self._reaching()
        if 0 < reaching < len(self.found.samples) <= _UNDECIDED_MOST:
            return UNDECIDED
        return REACHED if self.aim.is_reached_by(self.median) else MISSED

    @property
    def verdict_text(self) -> str:
        """With the number of rounds that reach the aim, if they disagree."""
        count, reaching = len(self.found.samples), self._reaching()
        return f"{self.verdict} ({reaching} of {count} {self._round}s)" if 0 < reaching < count else self.verdict

    @property
    def rounds_text(self) -> str:
        return "one round" if self.found.count == 1 else f"{self.found.count} {self._round}s"

    @property
    def measured_text(self) -> str:
        """Median, range and unit."""
        aim, samples = self.aim, self.found.samples
        words = [_exact(self.median) if aim.limit is None else _distinct(self.median, aim.limit)]
        if len(samples) > 1:
            words.append(range_text(_exact(min(samples)), _exact(max(samples))))
        return " ".join([*words, *(each for each in (aim.unit, self.found.beside) if each)])

    @property
    def median_text(self) -> str:
        return f"{_distinct(self.median, self.aim.limit or 0)} {self.aim.unit}".rstrip()

    @property
    def _round(self) -> str:
        has_turns = self.found.case is not None and MEASUREMENTS[self.found.case.measurement].is_once
        return "turn" if has_turns and self.found.count > 1 else "round"

    def _reaching(self) -> int:
        return sum(map(self.aim.is_reached_by, self.found.samples))

    def cells(self, results: Results) -> list[str]:
        if not self.is_measured or self.found.case is None:
            return [self.aim.text, self.aim.limit_text, _NOT_MEASURED, "-", "-", "-", "-"]
        run = str(results.run_of(self.found.case))
        cells = [self.aim.text, self.aim.limit_text, self.measured_text, self.rounds_text, run]
        if self.aim.limit is None:
            return [*cells, "-", "-"]
        return [*cells, number_text(self.median / self.aim.limit), self.verdict_text]


@dataclass(frozen=True)
class _Source:
    """Cases of one process; any number unless it is given."""

    measurement: str
    store: str
    contender: str = "evertick"
    number: int | None = None
    variant: str = ""

    def case(self, results: Results) -> Case | None:
        return next(iter(self.cases(results)), None)

    def cases(self, results: Results) -> list[Case]:
        return [case for case in results.cases if case.contender == self.contender and self.matches(case)]

    def of(self, results: Results) -> Samples:
        case = self.case(results)
        return {} if case is None else results.cases[case]

    def matches(self, case: Case) -> bool:
        """For any contender."""
        return (
            (case.measurement, case.store, case.variant) == (self.measurement, self.store, self.variant)
            and case.processes == 1
            and self.number in (None, case.number)
        )

    def beside(self, contender: str) -> _Source:
        return _Source(self.measurement, self.store, contender, self.number, self.variant)


def _metric(source: _Source, name: str) -> Callable[[Results], _Found]:
    return lambda results: _Found(present(source.of(results).get(name, [])), source.case(results))


def _growth(source: _Source) -> Callable[[Results], _Found]:
    """Memory at the end beside that after the first period, in each round."""

    def find(results: Results) -> _Found:
        samples = source.of(results)
        return _Found(ratios(samples.get("memory_last", []), samples.get("memory_first", [])), source.case(results))

    return find


def _ratio(source: _Source, other: _Source, name: str) -> Callable[[Results], _Found]:
    return lambda results: _compared(results, source, other, name)


def _memory_ratio(source: _Source, other: _Source) -> Callable[[Results], _Found]:
    """Also between different runs, because a slow machine does not change the memory."""
    return lambda results: _compared(results, source, other, "memory", is_of_any_run=True)


def _compared(results: Results, source: _Source, other: _Source, name: str, *, is_of_any_run: bool = False) -> _Found:
    """Round by round; by medians if the numbers of rounds differ; of another run only if that is allowed."""
    one, two = source.case(results), other.case(results)
    if one is None or two is None:
        return _Found([])
    is_one_run = results.are_of_one_run(one, two)
    ours, theirs = results.cases[one].get(name, []), results.cases[two].get(name, [])
    if not present(ours) or not present(theirs) or not (is_one_run or is_of_any_run):
        return _Found([])
    median = statistics.median(present(theirs))
    if not is_one_run:
        return _Found([value / median for value in present(ours)], one, f"(other run: {results.run_of(two)})")
    found = ratios(ours, theirs)
    if found:
        return _Found(found, one)
    medians = statistics.median(present(ours)) / median
    return _Found([medians], one, rounds=min(len(present(ours)), len(present(theirs))))


def _best_peer(source: _Source, name: str) -> Callable[[Results], _Found]:
    """The ratio to the least of all peers in the same run, in each round.

    A peer that is the best by its median may be the best in few rounds.
    """

    def find(results: Results) -> _Found:
        samples_of = {peer: source.beside(peer).of(results).get(name, []) for peer in _PEERS}
        measured = {
            peer: samples
            for peer, samples in samples_of.items()
            if present(samples) and _compared(results, source, source.beside(peer), name).samples
        }
        if not measured:
            return _Found([])
        planned = {case.contender for case in PLAN if case.contender in _PEERS and source.matches(case)}
        return _beside_best(results, source, name, measured, missing=len(planned - set(measured)))

    return find


def _beside_best(
    results: Results, source: _Source, name: str, measured: Mapping[str, Sequence[float]], missing: int
) -> _Found:
    """Round by round; by medians if the numbers of rounds differ."""
    ours = source.of(results)[name]
    if any(len(each) != len(ours) for each in measured.values()):
        best = min(measured, key=lambda peer: statistics.median(present(measured[peer])))
        found, bests = _compared(results, source, source.beside(best), name), [best]
    else:
        rounds = [
            {peer: each[at] for peer, each in measured.items() if not math.isnan(each[at])} for at in range(len(ours))
        ]
        least = [min(each.values(), default=math.nan) for each in rounds]
        found = _Found(ratios(ours, least), source.case(results))
        bests = [
            min(each, key=each.__getitem__)
            for own, each in zip(ours, rounds, strict=True)
            if each and not math.isnan(own)
        ]
    return dataclasses.replace(found, beside=_bests_text(bests, len(measured), missing))


def _bests_text(bests: Sequence[str], count: int, missing: int) -> str:
    """The best peers, with their numbers of rounds if there are several rounds."""
    more = [f"{missing} more not in this run"] if missing else []
    if len(bests) == 1:
        return f"({'; '.join([f'{_PEERS[bests[0]]}, the best of {count}', *more])})"
    named = [f"{_PEERS[peer]}: {times}" for peer, times in Counter(bests).most_common()]
    return f"(best of {count} by rounds: {', '.join(named)}{'; ' + more[0] if more else ''})"


def _throughput(store: str, least: dict[str, float]) -> Iterator[Aim]:
    ours = _Source("throughput", store)
    titles = {each.name: each.title for each in CONTENDERS}
    for other, limit in least.items():
        text = f"Runs a second on {STORE_TITLES[store]}, ratio to {titles[other]}"
        why = _beside_huey if other == "huey" else _CPU_BOUND
        yield Aim(text, "at least", limit, _TIMES, _ratio(ours, ours.beside(other), "execute"), why)
        if other in _PEERS:
            installed = _ratio(ours.beside("evertick_default"), ours.beside(other), "execute")
            yield Aim(f"{text}, as installed", "at least", limit, _TIMES, installed, _AS_INSTALLED)


def _beside_huey(results: Results) -> str:
    """With the speed of the disk in that run, if it was measured."""
    case = _Source("throughput", "sqlite").case(results)
    run = None if case is None else results.run_of(case)
    flush_ms = None if run is None else results.runs[run - 1].flush_ms
    measured = "" if flush_ms is None else f" In run {run} a page reached the disk in {number_text(flush_ms)} ms."
    return (
        "Huey writes one run at a time and waits for the disk, Evertick writes a thousand and is limited by the "
        f"processor. So a fast disk makes the ratio smaller.{measured}"
    )


def _latency() -> Iterator[Aim]:
    ours = _Source("latency", "postgres")
    for name, limit in (("p50", 1.5), ("p99", 2.0)):
        text = f"Enqueue to start on PostgreSQL, {name}, ratio to the "
        yield Aim(f"{text}raw loop", "at most", limit, _TIMES, _ratio(ours, ours.beside("raw"), name), _START)
        yield Aim(f"{text}best peer", "under", 1, _TIMES, _best_peer(ours, name), _START)
    # Peers that accept no runs from another process.
    alone = _Source("latency_alone", "postgres")
    for name in ("p50", "p99"):
        text = f"Enqueue to start on PostgreSQL within the worker, {name}, ratio to the best peer"
        yield Aim(text, "under", 1, _TIMES, _best_peer(alone, name), _START)


def _minute(number: int, node: float | None, store: str = "postgres") -> Iterator[Aim]:
    for variant in _MINUTES:
        source = _Source("minute", store, number=number, variant=variant)
        text = _minute_text(number, store, variant)
        yield Aim(f"{text}: started in their minute", "at least", 100, "%", _metric(source, "share"))
        yield Aim(f"{text}: lateness p99", "under", LATE_AIMS[number], "ms", _metric(source, "p99"))
        if node is not None:
            yield Aim(f"{text}: node CPU", "under", node, "% of a core", _metric(source, "node"), _TICKS)


def _minute_text(number: int, store: str, variant: str) -> str:
    return f"{number:,} schedules a minute on {STORE_TITLES[store]}{f', {variant}' if variant else ''}"


def _million() -> Iterator[Aim]:
    yield from _minute(MILLION, None)
    tenth = MILLION // 10
    for variant in _MINUTES:
        many, fewer = (_Source("minute", "postgres", number=number, variant=variant) for number in (MILLION, tenth))
        text = _minute_text(MILLION, "postgres", variant)
        # Memory must not grow with the number of schedules; the runs in flight at ten times the rate take a little.
        yield Aim(f"{text}: memory, ratio to {tenth:,}", "at most", 1.25, _TIMES, _memory_ratio(many, fewer))
        yield Aim(f"{text}: memory at the end, ratio to the first minute", "at most", 1.1, _TIMES, _growth(many))
        yield Aim(f"{text}: checkpoints meanwhile", "at least", 1, "", _metric(many, "checkpoints"))


def _million_on_sqlite() -> Iterator[Aim]:
    for aim in _minute(MILLION, None, "sqlite"):
        yield dataclasses.replace(aim, why=_beyond_sqlite, is_beyond=True)


def _beyond_sqlite(results: Results) -> str:
    """Known only if the knee was found below that rate."""
    per_second = MILLION / 60
    limit = knee_of_one_node(results, "sqlite").excludes(per_second)
    return limit and f"These are {per_second:,.0f} fires a second; {limit}."


def _knee() -> Iterator[Aim]:
    for store in ("postgres", "sqlite"):
        text = f"Knee on {STORE_TITLES[store]}: all started in their period, lateness p99 under {LATE_MS:,} ms"
        yield Aim(text, _REPORTED, None, "fires/s", _found_knee(_Source("knee", store)))


def _found_knee(source: _Source) -> Callable[[Results], _Found]:
    """The step, with the processor time there and at the next step."""

    def find(results: Results) -> _Found:
        steps = source.cases(results)
        if not steps:
            return _Found([])
        knee = knee_of(results, steps)
        words = [] if knee.last is None else [_shares(results, knee.last)]
        if knee.failed is None:
            words.append("the highest step tried")
        else:
            words.append(f"not sustained at {knee.failed.number:,}: {_shares(results, knee.failed)}")
        around = [case for case in (knee.last, knee.failed) if case is not None]
        rounds = min(len(present(results.cases[case].get("p99", []))) for case in around)
        found = [0 if knee.last is None else knee.last.number]
        return _Found(found, around[0], f"({'; '.join(words)})", rounds)

    return find


def _shares(results: Results, case: Case) -> str:
    words = []
    for name in ("node", "server"):
        samples = present(results.cases[case].get(name, []))
        if samples and (name == "node" or case.store == "postgres"):
            words.append(f"{name} {number_text(statistics.median(samples))} %")
    return ", ".join(words)


def _idle(store: str) -> Iterator[Aim]:
    source, text = _Source("idle", store, number=MILLION), f"Idle with {MILLION:,} schedules on {STORE_TITLES[store]}"
    yield Aim(f"{text}: node CPU", "under", 0.5, "% of a core", _metric(source, "node"))
    yield Aim(f"{text}: statements", "at most", 40, "a minute", _metric(source, "statements"), _POLLING)
    few = _Source("idle", store, number=FULL.idle_schedules[0])
    yield Aim(f"{text}: memory, ratio to {few.number:,}", "at most", 1.1, _TIMES, _memory_ratio(source, few))


def _cost(store: str) -> Iterator[Aim]:
    source, text = _Source("cost", store), f"Full batches on {STORE_TITLES[store]}"
    yield Aim(f"{text}: statements", "at most", 0.01, "per fire", _metric(source, "statements"), _IN_PROCESS)
    yield Aim(f"{text}: commits", "at most", 0.005, "per fire", _metric(source, "commits"))


def _history() -> Iterator[Aim]:
    for store in ("postgres", "sqlite"):
        source = _Source("history", store, number=_HISTORY)
        for noun, name in (("Runs", "ratio"), ("Fires", "fires_ratio")):
            text = f"{noun} a second beside {_HISTORY:,} finished runs on {STORE_TITLES[store]}, ratio to a new ledger"
            yield Aim(text, "at least", HISTORY_AIM, _TIMES, _metric(source, name), _SHORT_TURNS)


AIMS = (
    *_throughput("postgres", {"graphile": 1.5, "pgqueuer": 2, "raw": 0.5}),
    *_throughput("sqlite", {"huey": 10, "raw": 1 / 3}),
    *_latency(),
    *_minute(10_000, 8),
    *_minute(10_000, 8, "sqlite"),
    *_minute(100_000, None),
    *_minute(100_000, None, "sqlite"),
    *_million(),
    *_million_on_sqlite(),
    *_knee(),
    *_idle("postgres"),
    *_idle("sqlite"),
    *_cost("postgres"),
    *_cost("sqlite"),
    *_history(),
)


def results_of(results: Results) -> list[AimResult]:
    """All aims but those that are out of reach and were not measured."""
    found = (AimResult(aim, aim.find(results)) for aim in AIMS)
    return [each for each in found if each.is_measured or not each.aim.is_beyond]


def aims_table(results: Results) -> str:
    head = ["", "aim", "measured", "rounds", "run", "measured / aim", "verdict"]
    return table(head, [each.cells(results) for each in results_of(results)])


def reasons_of(results: Results) -> list[str]:
    """The reasons of the aims that some round misses; one item for all aims that share a reason."""
    by_reason: dict[str, list[str]] = {}
    for each in results_of(results):
        if not all(map(each.aim.is_reached_by, each.found.samples)):
            by_reason.setdefault(each.aim.reason(results), []).append(each.aim.text)
    return [f"- {'; '.join(texts)}. {why}" for why, texts in by_reason.items()]


def _exact(value: float) -> str:
    """A value just below a hundred is not rounded to a hundred."""
    if 99 <= value < 100:
        return f"{math.floor(value * 1_000) / 1_000:g}"
    return f"{value:g}" if value == round(value, 3) and value < 1_000 else number_text(value)


def _distinct(value: float, limit: float) -> str:
    """A value beside its limit is not rounded to the limit."""
    text = _exact(value)
    return text if value == limit or float(text.replace(",", "")) != limit else f"{value:.5g}"
