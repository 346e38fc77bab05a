"""The page that tells how fast it is: `docs/explanation/how-fast.md` is written by it, from the file of a run."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from benchmarks.aims import aims_table, reasons_of
from benchmarks.figure import Case
from benchmarks.front import front_of
from benchmarks.losses import losses_by_runs_table, losses_table
from benchmarks.missing import missing_of
from benchmarks.picture import pictures_of
from benchmarks.plan import GROUPS, MEASUREMENTS
from benchmarks.results import Results, Run
from benchmarks.summary import summary_table
from benchmarks.table import STORE_TITLES, tables_of
from benchmarks.words import GROUP_WORDS

__all__ = ["FIGURES", "PAGE", "page_of", "write_report"]

PAGE, FIGURES = "how-fast.md", "how-fast.json"
_WIDTH = 120
# Between paragraphs.
_NEXT = "\n\n"

_TITLE = "# How fast is it\n"

_BANNER = """\
**This is of a quick run, with tiny numbers and cases side by side, to see that everything works: these figures mean
nothing.**
"""

_INTRODUCTION = """\
Beside the same SQL work without a scheduler, and beside other schedulers, by turns on the same machine. This page is
written by the benchmarks from [the samples](how-fast.json). In a checkout, this installs what they need, measures for a
minute, then for hours all that is here, and writes such a page into `figures`; `benchmarks/README.md` tells the rest:

```console
$ python3 -m venv .venv && .venv/bin/pip install -c constraints.txt -e '.[dev]'
$ .venv/bin/python -m benchmarks run --store sqlite --only throughput --processes 1 --rounds 1
$ .venv/bin/python -m benchmarks run --peers --million --json figures.json --plots figures
```
"""

_REASONS = (
    "Of those that some round does not reach, also where the median does, what is known, by profiles unless it says "
    "otherwise:"
)

_SUMMARY = (
    "With one process, medians of what the tables below have in full. Evertick is set to 2,000 runs at once, on "
    "uvloop, and as installed it has 50, on Python's own event loop. The raw loop is the same SQL without a scheduler; "
    "on SQLite it looks for work every 10 ms. Schedules are spread over the seconds of the minute. Those of a "
    'scheduler without seconds in its cron are due all at once, which is harder: compare them with "Evertick, all at '
    'once", which has as many at one instant. '
    '"(run N)" is by which run a figure of Evertick was found, and that of another where it was not the same one: the '
    "machine or the code may have been different then, so it is weaker evidence. A dash is what was not measured, or "
    "cannot be told. Of Celery only beat is here: whether its queue is faster is not known."
)

_LEGEND = """\
## Words of the tables

- **node**: a process of Evertick, or the workers of another scheduler; its columns are the processor time of all nodes.
- **server**: PostgreSQL with all that it does in the background, or the broker of Celery beat; SQLite has none.
- **us each**: microseconds of processor time for each run or fire. In **% of a core**, 100 is one core all the time.
- **late**: from the moment that a schedule is due at to the first line of its job. 99 % are no later than p99.
- **evenly**: no two schedules are due at one moment, and each has a rule of its own. Else all of a second are due at
  once.
- **raw loop**: the same SQL work without a scheduler; "0.5 of raw" is half of what it has.
- **as installed**: Evertick without options and extras: 50 runs at once, on Python's own event loop. Else it has 2,000,
  on uvloop. A program of yours needs `concurrency=2000` only if so many of its jobs are at work at once, or if they are
  as short as these; `evertick[fast]` brings uvloop.
"""

_AIMS = (
    "What Evertick is to reach with one process on two cores, with the server on the same machine, and whether it "
    "does: yes if the median of the rounds does, and no if it does not. Where the rounds disagree, how many of them "
    "reach it is told behind that, be it yes or no; two rounds that disagree have decided nothing. One round decides "
    "little, and the row says so. Beside somebody is the median of the ratios of the same rounds of one run; beside "
    "the others, with whichever was the best of them in that round. Memory alone is also compared between runs, each "
    "round with the median of the other run. An aim of at least so much is reached where measured / aim is 1 or more, "
    "any other where it is 1 or less. Evertick has 2,000 runs at once, and as installed 50, on the event loops that "
    "the table below names: uvloop comes with `evertick[fast]`. Schedules of every minute share sixty rules, and "
    "evenly each has one of its own. That memory does not grow with the number of schedules is held to be so up to "
    "1.25 times, and that it does not grow with time up to 1.1 times. The knee has no aim but to be known, with what "
    "it is made of: how much of a core the node and the server have in use there, and in the next step, which breaks. "
    "Both together have the two cores of the machine, and the Python of a node has one of them."
)

_METHOD = """\
## How it is measured

- Every figure is the median of the rounds that its table names, with the least and the greatest: median [min..max]. A
  figure without a spread was found once; a table of fewer than five rounds says so. Some measurements take turns
  between what they compare, all in one round: their tables name the turns, and a count over all turns is one figure.
  Who goes first changes with every turn, except beside the dispatch, where the raw loop sends what Evertick has sent.
  A round takes all that is compared one after the other, so that a slow minute falls on all of them. "of raw" is the
  median of the ratios to the raw loop of the same round: of rounds of 10, 20 and 90 beside 20, 10 and 30 the ratios are
  0.5, 2 and 3, and it is 2, though both have a median of 20.
- The count is taken inside the job. Every execution is a record of its own in a file that is mapped into memory, with
  the number of the run: each must be there exactly once. Then the ledger is read back, and must have one succeeded row
  for each and nothing else. A round in which that does not hold gives no figure, but ends the benchmark; for another
  scheduler it costs that one its figure: its row says how many rounds are left, and the reason is told below. Of
  schedules that did not begin in time, each moment must be found in the ledger: still due, waiting, or skipped.
- Every measurement has an empty file or database. All commits reach the disk: `synchronous=FULL` on SQLite; `fsync`,
  `synchronous_commit` and `full_page_writes` on PostgreSQL, all tables logged. The benchmarks read that back, from the
  server before they begin and from each database after its measurement, and refuse to measure where it is not so, or
  where the folder is in memory.
- Processor time is that of the kernel: of the workers with all their children, and of the whole server, with what it
  does in the background. It begins when the workers are let go. Evertick is let go when it is imported, before it opens
  its ledger, joins, and on PostgreSQL rehearses its statements: where a full queue waits for it, these are in its
  figures. The raw loops are let go when they have connected, and so are most of the others; graphile-worker and
  APScheduler 4 before. The runs a second of a full queue begin with the first execution, so none of it is in them.
- Python's garbage collector looks more rarely in Evertick's nodes, also as installed, and in the raw loops: as
  `evertick run` and `scheduler.run()` have it since commit e652c6c. A scheduler inside another program leaves it as it
  is there, and so do the other schedulers here. Runs of earlier commits have it as Python does. The same goes for the
  turns of threads, which are of a tenth of a millisecond in Evertick's nodes since 2026-11-18.
- The raw loop writes the same rows to the same tables with the same indexes, in batches of a thousand, and starts a
  task per run. It cannot recover, retry, limit or stop. On PostgreSQL it has one connection and one statement at a
  time, and waits for each answer; Evertick has several under way. So the loop is a yardstick there and no ceiling:
  Evertick can be as fast, or faster. A loop with its claims and its ends on two connections was an eighth faster
  (`docs/decisions/engine.md`); it is not in the tables.
"""

_TWO_PROCESSES = """\
- One process and two: two workers on one store, which share the machine with the server. Some figures have no two. A
  worker that sends to itself is one, and so is the program that takes the steps of a fire through the store alone,
  with a transaction held open or with other vacuum options. Recovery is two nodes of which one ends, limits are
  three, and neither time nor import has a node. The loop beside the dispatch is one process always; APScheduler 3 and
  Celery beat, and Huey with schedules, are one, because two of them would run things twice.
"""

_METHOD_OF_OTHERS = """\
- Each of the other schedulers has an environment of its own, and is set up for production as its documents say; where
  they name no number, as of what PgQueuer takes at once or how many jobs Procrastinate has, it is our choice ([all of
  them](#on-what) are below). They promise other things: most keep no history of runs, which Evertick does here.
"""

_LOSSES = (
    "Every figure of this page at which somebody else is better than Evertick in the same rounds of one run: how many "
    "times, as the median of the ratios of the rounds, with the least and the greatest. Where the least is 1 or "
    "under, it is not so in every round, and both are about equal unless the median is 1.5 or more. The median of the "
    "ratios and the ratio of the two medians may disagree; the former counts. What different runs have measured "
    "stands apart. Evertick is the row with 2,000 runs at once; as installed it is slower at most of them, as the "
    "tables below tell. A scheduler that left moments behind is not called better by those that began."
)

_LOSSES_BY_RUNS = (
    "**By different runs**, the same of figures that no run has of both: the medians, and how many times one is the "
    "other; rounds and runs are theirs and then Evertick's. That is weaker evidence: between two runs the code may "
    "have changed, or the machine been slower, and where they had different processors it is hardly any."
)

_RAW_LOSSES = (
    "Told in the same way as where others are faster: what Evertick costs beside the bare SQL. A raw loop is no "
    "scheduler, and does nothing else."
)

_RAW_ELSEWHERE = "[At what the raw loops are better](#at-what-the-raw-loops-are-better) is told near the end."

_NO_LOSSES = "At nothing that was measured here in the same run as Evertick; or no others were."

_RUNS = (
    "Measured by these runs of the benchmarks, whose numbers the tables name, with the load averages of the machine "
    "before the first round and after each, and with how much of its processors the host gave to other machines in "
    "each round (stolen), where that was looked at. Where not all had the same processor, or the same Python, each run "
    "names its own, as far as it is known: what runs on different ones have found can be compared by its ratios alone."
)

_LIMITS = """\
## What this does not measure

- Real jobs. A job that does anything takes longer than what is measured here, and then the scheduler matters less.
- Plain functions. The jobs of Evertick are `async` here; a plain function runs in a thread, and what that takes is in
  no figure. Those of Huey, APScheduler 3 and Celery are plain functions, which is what they have.
- A network: server and nodes share one machine and its cores, so each slows the other down. A server of its own makes
  everything but the shortest latencies faster. More than two nodes, except at a limit, or nodes on several machines,
  whose clocks differ.
- Retries, failures, timeouts, jobs in processes, shell and HTTP jobs, several queues and priorities, or large arguments
  and results.
- Other machines and settings: few kinds of processor and disk, one version of Python, of PostgreSQL and of SQLite, with
  uvloop where [it is named](#on-what), on Linux. From Python 3.12 on a job begins in the step that starts it, which
  makes a full queue on PostgreSQL faster; that is not in these figures.
- A replica that commits wait for, data larger than memory, or months of running: the longest that anything is watched
  is five minutes.
- Years of history. The ten million finished runs are rows that SQL has written, as many as ten days of a million have,
  not runs that came and went. Beside them it is measured how many runs and fires there are in a second, and what each
  takes; not how late they are, nor latency, enqueueing, idle nodes or recovery.
- Latency at another pace than 50 a second, or beside a full queue. It begins with the call: where a caller is held up
  by its own call before, the next begins later, and that wait is in no figure.
- A million cron expressions that all differ. Cron schedules share sixty rules here, which a node reads once; a million
  with a rule each are intervals that differ by their start, which takes a sixth of what a cron expression with its
  first moment does.
- That limits hold, which tests show. Here it is seen what they cost, with what three nodes ask when they start.
- Catching up after hours in which no node ran.
- Workers. The dispatch is of `mode="forget"`, whose runs are over when the queue has them; by default (`finish`) a run
  stays dispatched until its worker has reported its start and its end, two more writes for each.
- Others at everything. One instant, the knee, idle, cost, recovery and growth are measured of Evertick alone, and so is
  a million schedules. Celery has a broker and neither of the two stores, so of it only beat is here.
- What the experts of another scheduler could reach. Their settings are those of their documents; whoever knows better
  ones, they are a line each in `benchmarks/contender`. Evertick has 2,000 runs at once, and once what it is installed
  with.
- Equal promises. Who deletes a run when it is done writes less than who keeps a ledger; a broker that flushes once a
  second may lose that second.
- A queue for longer than it lasts: the fast ones empty theirs in a second or two, in which no checkpoint falls. The
  minutes of schedules are longer.
- The most that SQLite can do. The raw loop is no upper limit there at two figures: in bulk it enqueues with a statement
  for each run, and a worker of it with nothing to do looks for work every 10 milliseconds only. So Evertick is faster
  at enqueueing in bulk and from enqueue to start.
- On SQLite, the log by itself: what a node writes to the disk is counted, log and file together.
- What the durability of each connection to SQLite is: it belongs to the connection, and is asked of one that is opened
  as Evertick opens all of its own; the programs of others ask their own. Others count their executions as their
  language can: graphile-worker in an array that is written out every 20 milliseconds.
- Small differences. On a shared machine neighbouring rounds differ by a tenth and more: look at [min..max] first. What
  was measured in one round, or by runs on different days, is weaker still: the tables and the list of runs tell.
- Upkeep that comes once in minutes or hours (pruning, partitions of the next days), except where it fell into a round.
"""


def write_report(results: Results, folder: Path) -> None:
    """The page, its pictures, and the samples from which both can be written anew."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PAGE).write_text(page_of(results), encoding="utf-8")
    for name, (_, picture) in pictures_of(results).items():
        (folder / name).write_text(picture, encoding="utf-8")
    results.write(folder / FIGURES)


def page_of(results: Results) -> str:
    """What most readers came for is first; what the figures were found on, and by which runs, is last."""
    banner = [_BANNER] if results.quick else []
    head = [_TITLE, *banner, _introduction(results), *_summary(results), _LEGEND, *_losses(results), _aims(results)]
    groups = (_group(results, group) for group in GROUPS if _cases_of(results, group))
    tail = [_limits(results), *_raw_losses(results), _machine(results), *_runs(results)]
    return "\n".join([*head, _method(results), *groups, *tail])


def _introduction(results: Results) -> str:
    if not results.cases:
        return _INTRODUCTION
    runs = [results.runs[at - 1] for at in _used_runs(results)]
    commits, processors = len(_commits(runs)), len({run.cpu for run in runs} - {""})
    of = [_counted(len(runs), "run"), f"at {_counted(commits, 'commit')}" if commits else ""]
    of.append(f"on {_counted(processors, 'kind')} of processor" if processors else "")
    told = f"The figures are of {', '.join(each for each in of if each)}: [the list of them](#runs) is at the end."
    return f"{_INTRODUCTION}\n{_filled(told)}\n"


def _aims(results: Results) -> str:
    parts = ["## Aims", _filled(_AIMS), aims_table(results)]
    if reasons := reasons_of(results):
        parts += [_filled(_REASONS), "\n".join(_filled(each, "  ") for each in reasons)]
    return _NEXT.join(parts) + "\n"


def _summary(results: Results) -> Iterator[str]:
    table = summary_table(results)
    if table:
        front = map(_filled_or_list, front_of(results))
        yield _NEXT.join(["## In short", *front, _filled(_SUMMARY), table]) + "\n"


def _losses(results: Results) -> Iterator[str]:
    within, by_runs = losses_table(results, is_raw=False), losses_by_runs_table(results, is_raw=False)
    parts = [_filled(_LOSSES), within] if within else [_NO_LOSSES]
    parts += [_filled(_LOSSES_BY_RUNS), by_runs] if by_runs else []
    has_raw = any(_raw_losses(results))
    parts += [_RAW_ELSEWHERE] if has_raw else []
    if within or by_runs or has_raw:
        yield _NEXT.join(["## Where others are faster", *parts]) + "\n"


def _raw_losses(results: Results) -> Iterator[str]:
    within, by_runs = losses_table(results, is_raw=True), losses_by_runs_table(results, is_raw=True)
    parts = [within] if within else []
    parts += [_filled(_LOSSES_BY_RUNS), by_runs] if by_runs else []
    if parts:
        yield _NEXT.join(["## At what the raw loops are better", _filled(_RAW_LOSSES), *parts]) + "\n"


def _method(results: Results) -> str:
    has_two = any(case.processes == 2 and case.measurement not in ("kill", "stop") for case in results.cases)
    return _METHOD + (_TWO_PROCESSES if has_two else "") + _METHOD_OF_OTHERS


def _machine(results: Results) -> str:
    rows = [f"| {name} | {text} |" for name, text in {**results.machine, **_flush(results)}.items()]
    notes = []
    if results.server:
        told = ", ".join(f"`{name}={value}`" for name, value in results.server.items())
        notes.append(f"The server, as it told: {told}.")
    notes += [
        f"{title} took no part: it could not be installed ({reason})." for title, reason in results.skipped.items()
    ]
    settings = [f"| {title} | {text} |" for title, text in results.settings.items()]
    parts = ["## On what", "\n".join(["| | |", "|---|---|", *rows])]
    if settings:
        parts.append("\n".join(["| | set up with |", "|---|---|", *settings]))
    if notes:
        parts.append(_NEXT.join(_filled(note) for note in notes))
    return _NEXT.join(parts) + "\n"


def _runs(results: Results) -> Iterator[str]:
    parts = [_filled(results.note)] if results.note else []
    if results.cases:
        used = _used_runs(results)
        parts.append(_filled(_RUNS))
        if commits := _commits(results.runs[at - 1] for at in used):
            at_them = f"commit{'s' if len(commits) > 1 else ''} {' and '.join(commits)}"
            parts.append(_filled(f"Measured at {at_them}; newer commits are not in it."))
        parts.append("\n".join(_filled(f"{at}. {_run_text(results, at)}", "   ") for at in used))
    if results.failed:
        parts.append("Rounds of others that gave no figure:")
        parts.append("\n".join(_filled(f"- {' '.join(each.split())}", "  ") for each in results.failed))
    if parts:
        yield _NEXT.join(["## Runs", *parts]) + "\n"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}s" if count > 1 else f"one {what}"


def _commits(runs: Iterable[Run]) -> list[str]:
    """Each once."""
    return list(dict.fromkeys(f"`{run.commit}`" for run in runs if run.commit))


def _flush(results: Results) -> dict[str, str]:
    found = [run.flush_ms for run in results.runs if run.flush_ms is not None]
    if not found:
        return {}
    spread = f" [{min(found):.2f}..{max(found):.2f}], before each of {len(found)} runs" if len(found) > 1 else ""
    return {"a page reaches the disk in": f"{statistics.median(found):.2f} ms{spread}"}


def _used_runs(results: Results) -> list[int]:
    return sorted({results.run_of(case) for case in results.cases})


def _run_text(results: Results, number: int) -> str:
    """When, of what, and what the page has of it."""
    run, cases = results.runs[number - 1], [case for case in results.cases if results.run_of(case) == number]
    by_name: dict[str, list[str]] = {}
    for case in cases:
        by_name.setdefault(case.measurement, []).append(STORE_TITLES[case.store])
    stores: dict[str, list[str]] = {}
    for name in (name for name in MEASUREMENTS if name in by_name):
        stores.setdefault(" and ".join(dict.fromkeys(by_name[name])), []).append(name)
    what = "; ".join(f"{', '.join(names)}{f' on {where}' if where else ''}" for where, names in stores.items())
    when = ", ".join(each for each in (run.measured, f"commit {run.commit}" if run.commit else "") if each)
    told = [f"{when}: {what}" if when else what]
    told += [f"broken off in round {run.broken_off}"] if run.broken_off else []
    told += [f"loads {', '.join(f'{each:.1f}' for each in run.loads)}"] if run.loads else []
    told += [f"stolen {', '.join(f'{each:.1f}' for each in run.stolen)} %"] if run.stolen else []
    told += [f"on {run.cpu}"] if run.cpu and len({each.cpu for each in results.runs}) > 1 else []
    told += [f"by {run.python}"] if run.python and len({each.python for each in results.runs}) > 1 else []
    return "; ".join(told)


def _group(results: Results, group: str) -> str:
    title, paragraphs = GROUP_WORDS[group]
    words = [_filled(each.of(results)) for each in paragraphs if each.are_about(_cases_of(results, group))]
    return _NEXT.join([f"## {title}", *words, *_parts(results, group), *_missing(results, [group])]) + "\n"


def _cases_of(results: Results, group: str) -> list[Case]:
    return [case for case in results.cases if MEASUREMENTS[case.measurement].group == group]


def _limits(results: Results) -> str:
    """With the groups of which there is nothing, and so no section."""
    nothing = [group for group in GROUPS if not _cases_of(results, group)]
    return "\n".join([_LIMITS, *(f"{each}\n" for each in _missing(results, nothing))])


def _parts(results: Results, group: str) -> Iterator[str]:
    pictures = pictures_of(results)
    for measurement in (each for each in MEASUREMENTS.values() if each.group == group):
        for table in tables_of(results, measurement):
            yield f"**{table.title}** ({table.about})"
            yield table.text
        for name, (text, _) in pictures.items():
            if name.removeprefix("how-fast-").removesuffix(".svg").partition("-")[0] == measurement.name:
                yield f"![{text}]({name})"


def _missing(results: Results, groups: Collection[str]) -> Iterator[str]:
    """A quick run is of other numbers than those of the plan."""
    if results.quick:
        return
    lacking = {each.title: missing_of(results, each) for each in MEASUREMENTS.values() if each.group in groups}
    items = [_filled(f"- {title}: {words}.", "  ") for title, words in lacking.items() if words]
    if items:
        yield "Not measured, though the benchmarks have it:"
        yield "\n".join(items)


def _filled_or_list(text: str) -> str:
    return "\n".join(_filled(each, "  ") for each in text.splitlines()) if text.startswith("- ") else _filled(text)


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
