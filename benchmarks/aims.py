"""What Evertick is to reach, and whether the samples say that it does. The aims stay as they are when one is missed."""

from __future__ import annotations

import dataclasses
import math
import operator
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.contender.contenders import CONTENDERS
from benchmarks.figure import Case
from benchmarks.knee import LATE_MS, knee_of, knee_of_one_node
from benchmarks.measure.schedules import EVENLY, MILLION
from benchmarks.plan import MEASUREMENTS, PLAN
from benchmarks.results import Results, Samples, whole
from benchmarks.size import FULL
from benchmarks.table import STORE_TITLES, line, number_text, ratios

__all__ = ["AIMS", "HISTORY_AIM", "LATE_AIMS", "Aim", "aims_table", "reasons_of"]

_NOT_MEASURED = "not measured"
# So many rounds and fewer that disagree have decided nothing.
_UNDECIDED_MOST = 2
_TIMES = "times"
_TOLD = "to be told"
_HISTORY = 10_000_000
# Of the speed beside a short history.
HISTORY_AIM = 0.9
# By the number of schedules: milliseconds that p99 is to be below.
LATE_AIMS = {10_000: 50, 100_000: 250, MILLION: 2_000}
# Variants: all of one second at once, or no two.
_MINUTES = ("", EVENLY)
_REACHED: dict[str, Callable[[float, float], bool]] = {
    "at least": operator.ge,
    "at most": operator.le,
    "under": operator.lt,
}
_PEERS = {each.name: each.title for each in CONTENDERS if each.is_peer}
# By what is known of them from profiles: told where the aim is not reached in every round.
_AS_INSTALLED = (
    "50 runs at once in place of 2,000, and Python's own event loop in place of uvloop: claims are smaller, and each "
    "takes a round to the store."
)
_OTHER_WORK = (
    "Both wait for the processor, not for the disk. Where the rounds disagree, so does the speed of the machine: see "
    "the spread of each."
)
_START = (
    "By stages, on two cores of 2.5 GHz: a claim takes 0.5 ms where that of the raw loop takes 0.3 (priorities, "
    "limits, what else may be due), and three stretches of Python of 0.3 ms each, cold at 50 a second, lie between "
    "the call and the start: before the insert, between wake-up and claim, between answer and task."
)
_IN_PROCESS = (
    "A statement of SQLite is a call in the process, not a question to a server; the thousand runs of a batch are "
    "written by several, in one commit."
)
_POLLED = (
    "A statement of SQLite is a call in the process. A node hears from the kernel that the file was written to, its "
    "own beats among it, and not by whom or what. So with each of its twenty beats a minute, five statements, it looks "
    "some six times at the counter of changes, and once at what may be due or wait, which takes up to eight more."
)
_SLOW_NODE = (
    "No two are due at one instant: there are up to forty ticks a second, each with a look, a record and an end of its "
    "own."
)
_SHORT_TURNS = (
    "What it is due to was not looked at. Neighbouring turns of the same ledger may differ by a tenth and more: see "
    "the spread of each."
)
_UNKNOWN = "What it is due to was not looked at: see the spread of each."


@dataclass(frozen=True)
class _Found:
    """A sample for each round; none if it was not measured. `case` is what it was found in, `beside` what else must be
    said. Where one sample is made of several rounds, `rounds` is how many.
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
    """`kind` is a word of `_REACHED`; by it, `limit` is the least that is enough, or what must not be exceeded.

    Without a limit, it is to be told, however much it is.
    """

    text: str
    kind: str
    limit: float | None
    unit: str
    find: Callable[[Results], _Found]
    # Why it is missed, where it is: told from the samples where they have a part in it.
    why: str | Callable[[Results], str] = ""
    # Left out where it was not measured: known to be out of reach there, and kept to show by how much.
    is_beyond: bool = False

    @property
    def limit_text(self) -> str:
        return f"{self.kind} {'' if self.limit is None else f'{_exact(self.limit)} {self.unit}'}".rstrip()

    def reason(self, results: Results) -> str:
        return self.why if isinstance(self.why, str) else self.why(results)

    def is_reached_by(self, value: float) -> bool:
        return self.limit is None or _REACHED[self.kind](value, self.limit)


@dataclass(frozen=True)
class _Source:
    """Where in the results something is looked for: with one process, whatever the number unless it is given."""

    measurement: str
    store: str
    contender: str = "evertick"
    number: int | None = None
    variant: str = ""

    def case(self, results: Results) -> Case | None:
        return next(iter(self.cases(results)), None)

    def cases(self, results: Results) -> list[Case]:
        return [case for case in results.cases if case.contender == self.contender and self.is_alike(case)]

    def of(self, results: Results) -> Samples:
        case = self.case(results)
        return {} if case is None else results.cases[case]

    def is_alike(self, case: Case) -> bool:
        """Whoever it is of."""
        return (
            (case.measurement, case.store, case.variant) == (self.measurement, self.store, self.variant)
            and case.processes == 1
            and self.number in (None, case.number)
        )

    def beside(self, contender: str) -> _Source:
        return _Source(self.measurement, self.store, contender, self.number, self.variant)


def _figure(source: _Source, name: str) -> Callable[[Results], _Found]:
    return lambda results: _Found(whole(source.of(results).get(name, [])), source.case(results))


def _grown(source: _Source) -> Callable[[Results], _Found]:
    """From the first period to the last, round by round."""

    def find(results: Results) -> _Found:
        samples = source.of(results)
        return _Found(ratios(samples.get("memory_last", []), samples.get("memory_first", [])), source.case(results))

    return find


def _ratio(source: _Source, other: _Source, name: str) -> Callable[[Results], _Found]:
    return lambda results: _compared(results, source, other, name)


def _memory_beside(source: _Source, other: _Source) -> Callable[[Results], _Found]:
    """Of different runs, too: a slow hour of the machine makes no program larger."""
    return lambda results: _compared(results, source, other, "memory", is_of_any_run=True)


def _compared(results: Results, source: _Source, other: _Source, name: str, *, is_of_any_run: bool = False) -> _Found:
    """Round by round; of medians, where one has more rounds; of each round beside the median of another run, where that
    may be. None of such runs else.
    """
    one, two = source.case(results), other.case(results)
    if one is None or two is None:
        return _Found([])
    is_one_run = results.are_of_one_run(one, two)
    ours, theirs = results.cases[one].get(name, []), results.cases[two].get(name, [])
    if not whole(ours) or not whole(theirs) or not (is_one_run or is_of_any_run):
        return _Found([])
    beside = statistics.median(whole(theirs))
    if not is_one_run:
        return _Found([value / beside for value in whole(ours)], one, f"of run {results.run_of(two)}")
    found = ratios(ours, theirs)
    if found:
        return _Found(found, one)
    medians = statistics.median(whole(ours)) / beside
    return _Found([medians], one, rounds=min(len(whole(ours)), len(whole(theirs))))


def _best_peer(source: _Source, name: str) -> Callable[[Results], _Found]:
    """The ratio to the least of all others that the same run has measured, whoever that is in each round.

    One that was picked by its median may be the best in few of them, and all the others would be beside nobody.
    """

    def find(results: Results) -> _Found:
        all_of = {peer: source.beside(peer).of(results).get(name, []) for peer in _PEERS}
        measured = {
            peer: samples
            for peer, samples in all_of.items()
            if whole(samples) and _compared(results, source, source.beside(peer), name).samples
        }
        if not measured:
            return _Found([])
        planned = {case.contender for case in PLAN if case.contender in _PEERS and source.is_alike(case)}
        return _beside_best(results, source, name, measured, missing=len(planned - set(measured)))

    return find


def _beside_best(
    results: Results, source: _Source, name: str, measured: Mapping[str, Sequence[float]], missing: int
) -> _Found:
    """Round by round; where somebody has other rounds, of medians."""
    ours = source.of(results)[name]
    if any(len(each) != len(ours) for each in measured.values()):
        best = min(measured, key=lambda peer: statistics.median(whole(measured[peer])))
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
    """Who was the best of so many, and in how many rounds where there are several."""
    more = [f"{missing} more not measured by this run"] if missing else []
    if len(bests) == 1:
        return f"of {_PEERS[bests[0]]}, the best of {count}" + (f" ({more[0]})" if more else "")
    named = [f"{_PEERS[peer]}: {times}" for peer, times in Counter(bests).most_common()]
    return f"of the best of {count} in each round ({'; '.join([*named, *more])})"


def _throughput(store: str, least: dict[str, float]) -> Iterator[Aim]:
    ours = _Source("throughput", store)
    titles = {each.name: each.title for each in CONTENDERS}
    for other, limit in least.items():
        text = f"No-op runs a second on {STORE_TITLES[store]}, beside {titles[other]}"
        why = _beside_huey if other == "huey" else _OTHER_WORK
        yield Aim(text, "at least", limit, _TIMES, _ratio(ours, ours.beside(other), "execute"), why)
        if other in _PEERS:
            installed = _ratio(ours.beside("evertick_default"), ours.beside(other), "execute")
            yield Aim(f"{text}, as installed", "at least", limit, _TIMES, installed, _AS_INSTALLED)


def _beside_huey(results: Results) -> str:
    """With how fast the disk was in that run, where it was looked at."""
    case = _Source("throughput", "sqlite").case(results)
    run = None if case is None else results.run_of(case)
    flush_ms = None if run is None else results.runs[run - 1].flush_ms
    told = "" if flush_ms is None else f" Before run {run} a page reached the disk in {number_text(flush_ms)} ms."
    return (
        "Huey writes one run at a time and waits for the disk, Evertick writes a thousand and waits for Python. So the "
        f"slower the disk is beside the processor, the larger is the ratio.{told}"
    )


def _latency() -> Iterator[Aim]:
    ours = _Source("latency", "postgres")
    for name, limit in (("p50", 1.5), ("p99", 2.0)):
        text = f"Enqueue to start on PostgreSQL, {name}, beside "
        yield Aim(f"{text}raw loop", "at most", limit, _TIMES, _ratio(ours, ours.beside("raw"), name), _START)
        yield Aim(f"{text}the best of the others", "under", 1, _TIMES, _best_peer(ours, name), _START)
    # Who cannot be sent to from outside is beside Evertick there where both send to themselves.
    alone = _Source("latency_alone", "postgres")
    for name in ("p50", "p99"):
        text = f"Enqueue to start on PostgreSQL, sent by the worker itself, {name}, beside the best of the others"
        yield Aim(text, "under", 1, _TIMES, _best_peer(alone, name), _START)


def _minute(number: int, node: float | None, store: str = "postgres") -> Iterator[Aim]:
    for variant in _MINUTES:
        source = _Source("minute", store, number=number, variant=variant)
        text = _minute_text(number, variant) + _on(store)
        yield Aim(f"{text}: began in their minute", "at least", 100, "%", _figure(source, "share"))
        yield Aim(f"{text}: late, p99", "under", LATE_AIMS[number], "ms", _figure(source, "p99"))
        if node is not None:
            yield Aim(f"{text}: node", "under", node, "% of a core", _figure(source, "node"), _SLOW_NODE)


def _on(store: str) -> str:
    """PostgreSQL goes without saying where it is asked for a fleet."""
    return "" if store == "postgres" else f", on {STORE_TITLES[store]}"


def _minute_text(number: int, variant: str) -> str:
    return f"{number:,} schedules a minute{f', {variant}' if variant else ''}"


def _million() -> Iterator[Aim]:
    yield from _minute(MILLION, None)
    tenth = MILLION // 10
    for variant in _MINUTES:
        many, fewer = (_Source("minute", "postgres", number=number, variant=variant) for number in (MILLION, tenth))
        text = _minute_text(MILLION, variant)
        # It is not to grow with their number. Ten times as many fires a second are more runs under way, and that does.
        yield Aim(f"{text}: memory, beside {tenth:,}", "at most", 1.25, _TIMES, _memory_beside(many, fewer))
        yield Aim(f"{text}: memory at the end, beside after the first minute", "at most", 1.1, _TIMES, _grown(many))
        yield Aim(f"{text}: checkpoints that began meanwhile", "at least", 1, "", _figure(many, "checkpoints"))


def _million_on_sqlite() -> Iterator[Aim]:
    for aim in _minute(MILLION, None, "sqlite"):
        yield dataclasses.replace(aim, why=_beyond_sqlite, is_beyond=True)


def _beyond_sqlite(results: Results) -> str:
    """Where the steps say so; else it is not known."""
    per_second = MILLION / 60
    most = knee_of_one_node(results, "sqlite").most_below(per_second)
    if most is None:
        return ""
    return (
        f"They are {per_second:,.0f} fires a second, beyond the knee of one node on SQLite, which is {most:,}: what is "
        "due faster than it can be written waits, and is later and later."
    )


def _knee() -> Iterator[Aim]:
    for store in ("postgres", "sqlite"):
        text = f"The knee on {STORE_TITLES[store]}: all began in their period, late p99 under {LATE_MS:,} ms"
        yield Aim(text, _TOLD, None, "fires/s", _found_knee(_Source("knee", store)))


def _found_knee(source: _Source) -> Callable[[Results], _Found]:
    """The step, and whose processor time it takes there and where it breaks."""

    def find(results: Results) -> _Found:
        steps = source.cases(results)
        if not steps:
            return _Found([])
        knee = knee_of(results, steps)
        told = [] if knee.last is None else [_shares(results, knee.last)]
        if knee.failed is None:
            told.append("the most that was tried")
        else:
            told.append(f"broken at {knee.failed.number:,}: {_shares(results, knee.failed)}")
        around = [case for case in (knee.last, knee.failed) if case is not None]
        rounds = min(len(whole(results.cases[case].get("p99", []))) for case in around)
        found = [0 if knee.last is None else knee.last.number]
        return _Found(found, around[0], f"({'; '.join(told)})", rounds)

    return find


def _shares(results: Results, case: Case) -> str:
    """How busy both are."""
    words = []
    for name in ("node", "server"):
        samples = whole(results.cases[case].get(name, []))
        if samples and (name == "node" or case.store == "postgres"):
            words.append(f"{name} {number_text(statistics.median(samples))} %")
    return ", ".join(words)


def _idle(store: str) -> Iterator[Aim]:
    source, text = _Source("idle", store, number=MILLION), f"Idle with {MILLION:,} schedules{_on(store)}"
    yield Aim(f"{text}: node", "under", 0.5, "% of a core", _figure(source, "node"))
    yield Aim(f"{text}: statements", "at most", 40, "a minute", _figure(source, "statements"), _POLLED)
    few = _Source("idle", store, number=FULL.idle_schedules[0])
    text = f"{text}: memory, beside {few.number:,}"
    yield Aim(text, "at most", 1.1, _TIMES, _memory_beside(source, few))


def _cost(store: str) -> Iterator[Aim]:
    source, text = _Source("cost", store), f"Cost in full batches{_on(store)}"
    yield Aim(f"{text}: statements", "at most", 0.01, "per fire", _figure(source, "statements"), _IN_PROCESS)
    yield Aim(f"{text}: commits", "at most", 0.005, "per fire", _figure(source, "commits"))


def _history() -> Iterator[Aim]:
    for store in ("postgres", "sqlite"):
        source = _Source("history", store, number=_HISTORY)
        for what, name in (("Runs", "ratio"), ("Fires", "fires_ratio")):
            text = f"{what} a second after {_HISTORY:,} on {STORE_TITLES[store]}, beside a fresh ledger"
            yield Aim(text, "at least", HISTORY_AIM, _TIMES, _figure(source, name), _SHORT_TURNS)


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


def aims_table(results: Results) -> str:
    """In Markdown: a row per aim."""
    head = ["", "aim", "measured", "rounds", "run", "measured / aim", "reached"]
    told = (aim for aim in AIMS if not aim.is_beyond or aim.find(results).samples)
    return "\n".join(line(row) for row in [head, ["---"] * len(head), *(_row(aim, results) for aim in told)])


def reasons_of(results: Results) -> list[str]:
    """What is known of those that are not reached in every round; one reason for all that have it."""
    by_reason: dict[str, list[str]] = {}
    for aim in AIMS:
        if not all(map(aim.is_reached_by, aim.find(results).samples)):
            by_reason.setdefault(aim.reason(results) or _UNKNOWN, []).append(aim.text)
    return [f"- {'; '.join(texts)}. {why}" for why, texts in by_reason.items()]


def _row(aim: Aim, results: Results) -> list[str]:
    found = aim.find(results)
    if not found.samples or found.case is None:
        return [aim.text, aim.limit_text, _NOT_MEASURED, "-", "-", "-", "-"]
    median = statistics.median(found.samples)
    words = [_exact(median) if aim.limit is None else _beside(median, aim.limit)]
    if len(found.samples) > 1:
        words.append(f"[{_exact(min(found.samples))}..{_exact(max(found.samples))}]")
    words += [each for each in (aim.unit, found.beside) if each]
    has_turns = MEASUREMENTS[found.case.measurement].is_once and found.count > 1
    count = f"{found.count}{' turns' if has_turns else ''}"
    row = [aim.text, aim.limit_text, " ".join(words), count, str(results.run_of(found.case))]
    if aim.limit is None:
        return [*row, "-", "-"]
    return [*row, number_text(median / aim.limit), _verdict(aim, found, "turns" if has_turns else "rounds")]


def _verdict(aim: Aim, found: _Found, rounds: str) -> str:
    """By the median; where the rounds disagree, with how many of them reach it. `rounds` is what they are called."""
    reaching = sum(map(aim.is_reached_by, found.samples))
    verdict = "yes" if aim.is_reached_by(statistics.median(found.samples)) else "**no**"
    if 0 < reaching < len(found.samples):
        verdict = "undecided" if len(found.samples) <= _UNDECIDED_MOST else verdict
        return f"{verdict} ({reaching} of {len(found.samples)} {rounds})"
    return verdict + (", in one round" if found.count == 1 else "")


def _exact(value: float) -> str:
    """What is just below a hundred is not shown as one."""
    if 99 <= value < 100:
        return f"{math.floor(value * 1_000) / 1_000:g}"
    return f"{value:g}" if value == round(value, 3) and value < 1_000 else number_text(value)


def _beside(value: float, limit: float) -> str:
    """What is just beside its aim is not shown as the aim."""
    text = _exact(value)
    return text if value == limit or float(text.replace(",", "")) != limit else f"{value:.5g}"
