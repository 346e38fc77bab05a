"""The page `docs/explanation/how-fast.md`: the main results and charts. A sentence without figures is left out."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contender.contenders import EVERTICK, INSTALLED, STORES
from benchmarks.measure.knee import LATE_MS, knee_of_one_node
from benchmarks.measure.limits import LIMITS
from benchmarks.measure.schedules import MILLION
from benchmarks.measurement import Case
from benchmarks.plan import LIMITED_PROCESSES, MEASUREMENTS
from benchmarks.report.aims import LATE_AIMS, MISSED, REACHED, UNDECIDED, results_of
from benchmarks.report.charts import PEER_SCHEDULES, chart_file, charts_of
from benchmarks.report.comparison import ratios, worst_losses
from benchmarks.report.text import STORE_TITLES, contender_title, count_text, filled, number_text, share_text, table
from benchmarks.samples import Results, present
from benchmarks.size import FULL

__all__ = ["PAGE", "SAMPLES", "page_of", "write_page"]

PAGE, SAMPLES = "how-fast.md", "how-fast.json"
_NEXT = "\n\n"
_RAW = "raw"
_LOSSES_MOST = 5
# Measurements whose cases have several processes.
_SEVERAL = ("kill", "stop", "limits")

_TITLE = "# How fast is it"
_QUICK = (
    "**This page shows a quick run with tiny sizes and cases in parallel, to see that everything works. Its figures "
    "mean nothing.**"
)
_INTRODUCTION = (
    "Evertick is measured beside the same SQL without a scheduler (the raw loop) and beside other schedulers, in "
    "turns on one machine. The jobs do nothing, so the figures are the overhead of scheduling. They are generated "
    "from [the samples](how-fast.json). `benchmarks/results/` has all tables (`tables.md`), comparisons "
    "(`comparison.md`) and aims (`aims.md`), and the method, settings, machines and runs (`runs.md`)."
)
_METHOD = (
    "- A figure is the median of its rounds, of one process unless it says otherwise. Each round measures all "
    "contenders in turn on empty stores. Ratios are calculated within a round.",
    "- Every commit reaches the disk: `synchronous=FULL` on SQLite; `fsync`, `synchronous_commit` and "
    "`full_page_writes` on PostgreSQL. The benchmarks verify this.",
    "- Every job records its execution. Each run must have exactly one record, and the ledger must agree.",
    "- Evertick has `concurrency=2000` and uvloop; *as installed*, it has no options and no extras: 50 runs at once on "
    "asyncio's event loop. Jobs are `async`.",
    "- The raw loop writes the same rows in batches of 1,000, without limits, retries or recovery. It is no upper "
    "limit: one statement is in flight, and on SQLite it polls every 10 ms.",
    "- Peers have the production settings of their documentation. Most keep no history of runs; Evertick does.",
)
_NOT_MEASURED = (
    "Jobs with work, threads and child processes, retries, large arguments, a network between node and server, more "
    "than three nodes, other versions of Python and the databases; peers at herds, knee, idle cost, recovery and "
    "history. `benchmarks/results/runs.md` has the complete list."
)
_REPEAT = """\
In a checkout: install the requirements, measure for a minute, measure everything for hours.

```console
$ python3 -m venv .venv && .venv/bin/pip install -c constraints.txt -e '.[dev]'
$ .venv/bin/python -m benchmarks run --store sqlite --only throughput --processes 1 --rounds 1
$ .venv/bin/python -m benchmarks run --peers --million --json figures.json --plots figures
```

`benchmarks/README.md` explains the options."""


def write_page(results: Results, folder: Path) -> None:
    """The page, its charts, and the samples."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PAGE).write_text(page_of(results), encoding="utf-8")
    for name, (_, chart) in charts_of(results).items():
        (folder / chart_file(name)).write_text(chart, encoding="utf-8")
    results.write(folder / SAMPLES)


def page_of(results: Results) -> str:
    blocks = [_TITLE, *([filled(_QUICK)] if results.quick else []), filled(_INTRODUCTION)]
    for title, section in _Page(results).sections():
        blocks += [f"## {title}", *section] if section else []
    return _NEXT.join(blocks) + "\n"


@dataclass(frozen=True)
class _Medians:
    """Medians as text, of Evertick with one process unless the case says otherwise."""

    results: Results

    def of(self, measurement: str, metric: str, store: str = "", **wanted: object) -> float | None:
        case = self.case(measurement, store, **wanted)
        values = present(self.results.cases[case].get(metric, [])) if case else []
        return statistics.median(values) if values else None

    def case(self, measurement: str, store: str, **wanted: object) -> Case | None:
        """The first case with these attributes."""
        wanted = {"contender": EVERTICK.name, "store": store, "processes": 1, "variant": "", **wanted}
        for case in self.results.of(measurement):
            if all(getattr(case, name) == value for name, value in wanted.items()):
                return case
        return None

    def text(self, measurement: str, metric: str, store: str = "", **wanted: object) -> str | None:
        median = self.of(measurement, metric, store, **wanted)
        if median is None:
            return None
        return share_text(median) if metric == "share" else number_text(median)

    def cells(self, measurement: str, metric: str, **wanted: object) -> list[str | None]:
        """One for each store."""
        return [self.text(measurement, metric, store, **wanted) for store in STORES]

    def by_store(self, measurement: str, metric: str, unit: str = "", **wanted: object) -> str | None:
        """For example: 59,385 (SQLite) and 63,010 (PostgreSQL)."""
        return _by_store(self.cells(measurement, metric, **wanted), unit)

    def ratio_to_raw(self, measurement: str, metric: str, store: str) -> str | None:
        """The median of the ratios in the same rounds."""
        ours, raw = (self.case(measurement, store, contender=contender) for contender in (EVERTICK.name, _RAW))
        if ours is None or raw is None or not self.results.are_of_one_run(ours, raw):
            return None
        found = ratios(*(self.results.cases[case].get(metric, []) for case in (ours, raw)))
        return number_text(statistics.median(found)) if found else None

    def number_of(self, measurement: str) -> str | None:
        return next((f"{case.number:,}" for case in self.results.of(measurement)), None)


class _Page:
    def __init__(self, results: Results) -> None:
        self._results = results
        self._medians = _Medians(results)
        self._charts = charts_of(results)
        numbers = sorted({results.run_of(case) for case in results.cases})
        cpus = dict.fromkeys(results.runs[number - 1].cpu for number in numbers)
        # A letter for each processor, in the order of the runs.
        self._letters = {cpu: chr(ord("A") + place) for place, cpu in enumerate(cpu for cpu in cpus if cpu)}

    def sections(self) -> Iterator[tuple[str, list[str]]]:
        yield "In short", self._short()
        yield "Method and machine", ["\n".join(filled(each, "  ") for each in [*self._machine(), *_METHOD])]
        yield "Throughput", self._throughput()
        yield "Latency", self._latency()
        yield "Schedules once a minute", self._schedules()
        yield "Knee", self._knee()
        yield "Herds", self._herds()
        yield "Idle cost", self._idle()
        yield "Recovery", self._recovery()
        yield "Limits", self._limits()
        yield "Long history", self._history()
        yield "Dispatch", self._dispatch()
        yield "Where others are better", self._losses()
        yield "Missed aims", self._aims()
        yield "Not measured", [filled(_NOT_MEASURED)]
        yield "Repeat it", [_REPEAT]

    def _short(self) -> list[str]:
        medians, number = self._medians, PEER_SCHEDULES
        rows: dict[str, list[str | None]] = {
            "no-op runs a second": medians.cells("throughput", "execute"),
            "the same, as installed": medians.cells("throughput", "execute", contender=INSTALLED.name),
            "enqueue to start, p50 / p99, ms": [
                _joined(medians.text("latency", name, store) for name in ("p50", "p99")) for store in STORES
            ],
            f"{number:,} schedules a minute, p99 lateness, ms": medians.cells("minute", "p99", number=number),
            "sustained fires a second (knee)": [self._knee_rate(store) for store in STORES],
            f"idle with {MILLION:,} schedules, % of a core": medians.cells("idle", "node", number=MILLION),
            "runs of a killed node start again after, s": medians.cells("kill", "last", processes=2),
        }
        return _table(["one process", *(STORE_TITLES[store] for store in STORES)], rows)

    def _machine(self) -> Iterator[str]:
        machine = self._results.machine
        where = "Virtual machine" if "virtual machine" in machine.get("cpu", "") else "Machine"
        yield from _sentence(
            f"- {where} with {{cores}} cores, {{memory}} of memory and an {{disk}} disk. Nodes, server and benchmarks "
            "share the cores.",
            cores=machine.get("cores"),
            memory=machine.get("memory"),
            disk=machine["disk"].partition(" on ")[0] if "disk" in machine else None,
        )
        titles = {"python": "", "sqlite": "SQLite ", "postgresql": "PostgreSQL ", "uvloop": "uvloop "}
        versions = [
            f"{title}{machine[name].replace(',', '').replace('; ', ' or ')}"
            for name, title in titles.items()
            if machine.get(name)
        ]
        if versions:
            yield f"- {', '.join(versions)}."
        if self._letters:
            listed = "; ".join(
                f"{letter}: {cpu.removesuffix(', in a virtual machine')}" for cpu, letter in self._letters.items()
            )
            several = " Compare absolute figures only within one processor." if len(self._letters) > 1 else ""
            yield f"- Processors: {listed}.{several}"

    def _throughput(self) -> list[str]:
        medians = self._medians
        return self._blocks(
            "throughput",
            _sentence(
                "One process of Evertick executes {ratio} times as many no-op runs a second as the raw loop.",
                ratio=_by_store([medians.ratio_to_raw("throughput", "execute", store) for store in STORES]),
            ),
            _sentence(
                "With a second process on the same cores, both execute {rate}.",
                rate=medians.by_store("throughput", "execute", processes=2),
            ),
            _sentence(
                "In bulk, one process enqueues {bulk} runs a second; one by one, where each call waits for its commit, "
                "{single}.",
                bulk=medians.by_store("throughput", "bulk"),
                single=medians.by_store("throughput", "single"),
            ),
        )

    def _latency(self) -> list[str]:
        medians = self._medians
        return self._blocks(
            "latency",
            _sentence(
                "Another process enqueues; the time ends at the first line of the job. On PostgreSQL the p50 is "
                "{ratio} times that of the raw loop. On SQLite the raw loop polls, while inotify wakes Evertick.",
                ratio=medians.ratio_to_raw("latency", "p50", "postgres"),
            ),
            _sentence(
                "Within the worker's own process the p50 is {p50}.", p50=medians.by_store("latency_alone", "p50", " ms")
            ),
        )

    def _schedules(self) -> list[str]:
        cases = self._results.of("minute")
        numbers = {case.number for case in cases if case.contender == EVERTICK.name and case.number in LATE_AIMS}
        rows = {f"{number:,}": [self._minute_cell(number, store) for store in STORES] for number in sorted(numbers)}
        blocks = self._blocks(
            "minute",
            [
                "Schedules are spread over the seconds of the minute; those of one second are due together. *Evenly* "
                "gives each its own moment and rule."
            ]
            if rows
            else [],
            self._million_on_sqlite(),
        )
        if rows:
            blocks.append(
                "Started in their minute (%) / p99 lateness (ms) / CPU of the node (% of a core) / its memory (MB):"
            )
            blocks += _table(["schedules", *(STORE_TITLES[store] for store in STORES)], rows)
        if "peers" in self._charts:
            blocks += self._blocks(
                "peers",
                [
                    "graphile-worker, Huey and Celery have no seconds in their cron, so all schedules are due at once: "
                    "compare these with Evertick at once."
                ],
                self._failed_peers(),
            )
        return blocks

    def _minute_cell(self, number: int, store: str) -> str | None:
        names = ("share", "p99", "node", "memory")
        return _joined(self._medians.text("minute", name, store, number=number) for name in names)

    def _million_on_sqlite(self) -> list[str]:
        """Only if the knee was found below that rate."""
        limit = knee_of_one_node(self._results, "sqlite").excludes(MILLION / 60)
        share = self._medians.of("minute", "share", "sqlite", number=MILLION)
        return _sentence(
            f"A million schedules a minute are {MILLION / 60:,.0f} fires a second. On SQLite, {{limit}}{{share}}.",
            limit=limit or None,
            share=""
            if share is None or share >= 100
            else f"; of a million, {share_text(share)} % started in their minute",
        )

    def _failed_peers(self) -> list[str]:
        return [
            f"{contender_title(case)} on {STORE_TITLES[case.store]} failed the check: {reason}."
            for case in self._results.of("minute")
            for failed in self._results.failed
            if failed.startswith(f"{case.title}, round ") and (reason := failed.partition(": ")[2])
        ]

    def _knee(self) -> list[str]:
        found = []
        for store in STORES:
            last = knee_of_one_node(self._results, store).last
            if last is not None:
                shares = {name: self._medians.text("knee", name, store, number=last.number) for name in _SHARES[store]}
                cpu = ", ".join(f"{name} {text} %" for name, text in shares.items() if text)
                found.append(f"{last.number:,} on {STORE_TITLES[store]}{f' ({cpu} of a core)' if cpu else ''}")
        return self._blocks(
            "knee",
            _sentence(
                "The knee is the highest rate at which all fires start within their period of five seconds, with a p99 "
                f"lateness below {LATE_MS / 1_000:g} seconds. It is {{found}} fires a second.",
                found=_and(found),
            ),
        )

    def _knee_rate(self, store: str) -> str | None:
        last = knee_of_one_node(self._results, store).last
        return None if last is None else f"{last.number:,}"

    def _herds(self) -> list[str]:
        names = ("p50", "p99", "last")
        rows = {
            f"{number:,}": [
                _joined(self._medians.text("herd", name, store, number=number) for name in names) for store in STORES
            ]
            for number in sorted({case.number for case in self._results.of("herd")})
        }
        found = _table(["schedules", *(STORE_TITLES[store] for store in STORES)], rows)
        text = "All schedules are due at one instant. Lateness in ms, p50 / p99 / the last:"
        return [text, *found, *self._origin("herd")] if found else []

    def _idle(self) -> list[str]:
        medians, few = self._medians, FULL.idle_schedules[0]
        return self._blocks(
            "",
            _sentence(
                f"With {MILLION:,} schedules, none of which is due, a node takes {{node}} of a core, {{statements}} "
                "statements a minute and {memory} of memory.",
                node=medians.by_store("idle", "node", " %", number=MILLION),
                statements=medians.by_store("idle", "statements", number=MILLION),
                memory=medians.by_store("idle", "memory", " MB", number=MILLION),
            ),
            _sentence(
                f"With {few:,} schedules the memory is {{memory}}.",
                memory=medians.by_store("idle", "memory", " MB", number=few),
            ),
            _sentence(
                "In full batches, a fire takes {node} of node CPU.",
                node=medians.by_store("cost", "node_us", " µs"),
            ),
            origin=("idle", "cost"),
        )

    def _recovery(self) -> list[str]:
        return self._blocks(
            "",
            _sentence(
                "After `kill -9`, the lease of 15 seconds must expire; another node starts the last of {count} runs "
                "after {seconds}.",
                count=self._medians.number_of("kill"),
                seconds=self._medians.by_store("kill", "last", " s", processes=2),
            ),
            _sentence(
                "A node that is stopped releases its runs after its stop time, here one second; they start again after "
                "{seconds}.",
                seconds=self._medians.by_store("stop", "last", " s", processes=2),
            ),
            origin=("kill", "stop"),
        )

    def _limits(self) -> list[str]:
        wanted = {"processes": LIMITED_PROCESSES}
        rows = {each: self._medians.cells("limits", "execute", variant=each, **wanted) for each in LIMITS}
        found = _table(["limit of the task", *(STORE_TITLES[store] for store in STORES)], rows)
        text = "Three nodes and a full queue, runs a second. A limit has a price even if it is not reached:"
        return [text, *found, *self._origin("limits")] if found else []

    def _history(self) -> list[str]:
        few, many = FULL.open_transaction_schedules
        return self._blocks(
            "history",
            _sentence(
                "Beside {count} finished runs, Evertick executes {runs} times as many runs a second as beside a short "
                "history.",
                count=self._medians.number_of("history"),
                runs=self._medians.by_store("history", "ratio"),
            ),
            _sentence(
                "While a transaction stays open, PostgreSQL cannot remove dead rows: after a minute, the rate of fires "
                f"is {{few}} times that without it with {few:,} schedules, {{many}} times with {many:,}.",
                few=self._medians.text("open_transaction", "ratio", "postgres", number=few),
                many=self._medians.text("open_transaction", "ratio", "postgres", number=many),
            ),
            origin=("history", "open_transaction"),
        )

    def _dispatch(self) -> list[str]:
        return self._blocks(
            "",
            _sentence(
                "A node dispatches {rate} runs a second to Redis; a loop that only pushes the messages reaches {raw}.",
                rate=self._medians.by_store("dispatch", "rate"),
                raw=self._medians.text("dispatch", "raw", "postgres"),
            ),
            origin=("dispatch",),
        )

    def _losses(self) -> list[str]:
        losses = worst_losses(self._results)[:_LOSSES_MOST]
        rows = [
            [each.title, contender_title(each.other), *each.medians, number_text(each.median_times)] for each in losses
        ]
        text = (
            "The largest differences in all rounds of one run. `benchmarks/results/comparison.md` has all, also those "
            "to the raw loop."
        )
        head = ["", "better", "its median", "Evertick", "times better"]
        return [filled(text), table(head, rows)] if rows else []

    def _aims(self) -> list[str]:
        judged = [each for each in results_of(self._results) if each.verdict]
        if not judged:
            return []
        counts = {verdict: sum(each.verdict == verdict for each in judged) for verdict in (REACHED, MISSED, UNDECIDED)}
        text = f"Of {count_text(len(judged), 'aim')}, {counts[REACHED]} are reached and {counts[MISSED]} missed"
        text += f"; {counts[UNDECIDED]} are undecided (two rounds that disagree)" if counts[UNDECIDED] else ""
        lacking = [each for each in results_of(self._results) if not each.is_measured]
        text += f"; {len(lacking)} more were not measured" if lacking else ""
        rows: list[list[str]] = []
        reason = ""
        for each in (each for each in judged if each.verdict == MISSED):
            before, reason = reason, each.aim.reason(self._results)
            shown = "the same" if reason == before else reason
            rows.append([each.aim.text, each.aim.limit_text, each.median_text, shown])
        found = [table(["", "aim", "measured", "reason"], rows)] if rows else []
        return [filled(f"{text}. `benchmarks/results/aims.md` has all."), *found]

    def _blocks(self, chart: str, *sentences: Iterable[str], origin: Sequence[str] = ()) -> list[str]:
        """A paragraph, the chart, and where the figures come from."""
        text = " ".join(each for sentence in sentences for each in sentence)
        blocks = [filled(text)] if text else []
        if chart in self._charts:
            blocks.append(f"![{self._charts[chart][0]}]({chart_file(chart)})")
        return blocks + self._origin(*(origin or (_MEASUREMENTS.get(chart, chart),))) if blocks else []

    def _origin(self, *measurements: str) -> list[str]:
        """The processors and the numbers of rounds of the shown cases."""
        cases = [
            case
            for name in measurements
            for case in self._results.of(name)
            if case.processes == 1 or case.measurement in _SEVERAL
        ]
        letters = sorted({self._letters[cpu] for case in cases if (cpu := self._results.cpu_of(case))})
        samples = [self._results.cases[case].values() for case in cases]
        counts = {max((len(present(each)) for each in values), default=0) for values in samples} - {0}
        if not letters or not counts:
            return []
        noun = "turn" if all(MEASUREMENTS[name].is_once for name in measurements) else "round"
        rounds = count_text(max(counts), noun) if len(counts) == 1 else f"{min(counts)} to {max(counts)} {noun}s"
        return [f"*Processor{'s' if len(letters) > 1 else ''} {_and(letters)}; {rounds}.*"]


# Charts that are not named like their measurement.
_MEASUREMENTS = {"peers": "minute"}
# SQLite has no server.
_SHARES = {"sqlite": ("node",), "postgres": ("node", "server")}


def _sentence(template: str, **values: str | None) -> list[str]:
    """The sentence, unless a value is missing."""
    return [] if any(value is None for value in values.values()) else [template.format(**values)]


def _table(head: Sequence[str], rows: dict[str, list[str | None]]) -> list[str]:
    """Without rows that have no value."""
    found = [[title, *(cell or "-" for cell in cells)] for title, cells in rows.items() if any(cells)]
    return [table(head, found)] if found else []


def _by_store(texts: Iterable[str | None], unit: str = "") -> str | None:
    """With the names of the stores, unless both have the same value."""
    found = {store: text for store, text in zip(STORES, texts, strict=True) if text}
    if len(found) > 1 and len({*found.values()}) == 1:
        return f"{found[STORES[0]]}{unit} on both stores"
    return _and([f"{text}{unit} ({STORE_TITLES[store]})" for store, text in found.items()])


def _and(texts: Sequence[str]) -> str | None:
    if not texts:
        return None
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _joined(texts: Iterable[str | None]) -> str | None:
    """Several values of one cell."""
    found = [*texts]
    return " / ".join(text or "-" for text in found) if any(found) else None
