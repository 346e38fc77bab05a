"""One storm: the faults of a plan are done to a fleet; then calm, the end, and the evidence."""

from __future__ import annotations

import heapq
import os
import platform
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import psycopg

from evertick import Scheduler, State
from torment.catalogue import ENTRIES, NODES
from torment.checker import Evidence, GapRow, Process, RunRow, check
from torment.faults import Fault, Happened, plan_of
from torment.figures import Figures, Run, figures_of
from torment.site import ROLE, SCHEMA, Site, open_site, wait_until
from torment.witness import read_words, read_writes

__all__ = ["Storm", "storm_in"]

_SETTLE_SECONDS = 90
_LOOK_SECONDS = 0.5
_HISTORY_MOST = 100_000


class Storm:
    """Does to a site what a plan says."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.happened: list[Happened] = []
        # What is to be done at what time; numbered, so that nothing else is compared.
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def rage(self, plan: list[Fault], seconds: float) -> None:
        """All faults of the plan, and so many seconds in all; afterwards nothing is wrong any more."""
        began = time.monotonic()
        for fault in plan:
            self._at(began + fault.at, lambda fault=fault: self._begin(fault))  # type: ignore[misc]
        self._look_after(until=began + seconds)
        while self._agenda:
            at, _, act = heapq.heappop(self._agenda)
            time.sleep(max(at - time.monotonic(), 0))  # the rhythm of the storm, not a wait for something
            act()

    def _look_after(self, until: float) -> None:
        self.site.look_after()
        if time.monotonic() < until:
            self._at(min(time.monotonic() + _LOOK_SECONDS, until), lambda: self._look_after(until))

    def _at(self, at: float, act: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._agenda, (at, self._number, act))

    def _begin(self, fault: Fault) -> None:
        began = time.monotonic()
        end = self._start(fault)

        def ending() -> None:
            end()
            self.happened.append(Happened(fault.kind, fault.slot, began, time.monotonic()))

        self._at(began + fault.seconds, ending)

    def _start(self, fault: Fault) -> Callable[[], object]:
        """Begin it; the answer ends it."""
        slot, site = fault.slot, self.site
        match fault.kind:
            case "kill":
                site.at_work[slot].kill()
                return lambda: site.start_node(slot)
            case "freeze":
                site.at_work[slot].freeze()
                return site.at_work[slot].thaw
            case "cut":
                site.proxy.gates[slot].cut()
                return _nothing
            case "black hole":
                site.proxy.gates[slot].swallow()
                return site.proxy.gates[slot].heal
            case "delay":
                site.proxy.gates[slot].delay(fault.size)
                return site.proxy.gates[slot].heal
            case "lost answers":
                site.proxy.gates[slot].lose_answers(int(fault.size))
                return site.proxy.gates[slot].heal
            case "clock jump":
                self._set_clock(slot, fault.size * 3600)
                return lambda: self._set_clock(slot, 0)
            case "restart":
                site.server.stop_at_once()
                return site.server.start
            case "terminate":
                with site.admin() as admin:
                    admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [ROLE])
                return _nothing
            case "no connection left":
                return self._take_all_connections()
            case "lock":
                return self._lock_runs()

    def _set_clock(self, slot: int, off_seconds: float) -> None:
        (self.site.folder / f"clock-{slot}").write_text(str(off_seconds))
        process = self.site.at_work[slot]
        # Before it has started the signal would end it.
        if process.has_started:
            process.signal(signal.SIGUSR1)

    def _take_all_connections(self) -> Callable[[], None]:
        """All that the fleet could have; and one node loses those it has."""
        taken: list[psycopg.Connection] = []
        while True:
            try:
                taken.append(psycopg.connect(self.site.server.dsn.replace("postgres@", f"{ROLE}@", 1)))
            except psycopg.OperationalError:
                break
        self.site.proxy.gates[len(taken) % len(self.site.proxy.gates)].cut()

        def give_back() -> None:
            for connection in taken:
                connection.close()

        return give_back

    def _lock_runs(self) -> Callable[[], None]:
        admin = self.site.admin()
        admin.autocommit = False
        # A frozen node may be in the way, between the parts of a statement, until it is thawed: which is for us to do.
        # Whoever waits for this lock holds up all others as well as whoever has it.
        admin.execute("SET LOCAL lock_timeout = '2s'")
        with suppress(psycopg.errors.LockNotAvailable):
            admin.execute(f"LOCK TABLE {SCHEMA}.runs IN ACCESS EXCLUSIVE MODE")
        return admin.close

    # --- afterwards

    def settle(self) -> int:
        """Until all that was due by now has its outcome, as far as that will ever be. Answers the last second."""
        site = self.site
        site.wait_for_all()
        until = int(time.time())
        manager = Scheduler(site.url, concurrency=0)
        try:
            wait_until(lambda: _is_settled(manager, until), _SETTLE_SECONDS, None)
        finally:
            manager.sync.close()
        return until

    def evidence(self, until: int) -> Evidence:
        """After the end of all nodes."""
        manager = Scheduler(self.site.url, concurrency=0)
        try:
            return _evidence(manager, self.site, until)
        finally:
            manager.sync.close()


def storm_in(folder: Path, seed: int, seconds: float, every: float) -> Figures:
    """One whole storm, from the start of the server to the figures."""
    plan = plan_of(seed, seconds, nodes=NODES, every=every)
    with open_site(folder) as site:
        storm = Storm(site)
        storm.rage(plan, seconds)
        calm_at = time.monotonic()
        until = storm.settle()
        settled_at = time.monotonic()
        exit_codes = site.stop_all()
        stopped_at = time.monotonic()
        evidence = storm.evidence(until)
        # For whoever looks into the logs.
        (folder / "faults.json").write_bytes(msgspec.json.encode(storm.happened))
        run = Run(
            seed=seed,
            seconds=seconds,
            made_on=datetime.now(UTC).date().isoformat(),
            machine=f"{os.cpu_count()} cores of {platform.machine()}, Python {platform.python_version()}",
            load=os.getloadavg(),
            happened=storm.happened,
            lost_answers=sum(gate.answers_lost for gate in site.proxy.gates),
            unheard=site.unheard(),
            settle_seconds=settled_at - calm_at,
            stop_seconds=stopped_at - settled_at,
            exit_codes=exit_codes,
        )
    return figures_of(run, evidence, check(evidence))


def _nothing() -> None:
    """It was over as soon as it began."""


def _is_settled(manager: Scheduler, until: int) -> bool:
    live = [state for state in State if state is not State.DONE]
    last = datetime.fromtimestamp(until, UTC)
    unsettled = any(run.fire_at <= last for run in manager.sync.runs(states=live, limit=10_000))
    return not unsettled and all(
        schedule.next_fire_at is not None and schedule.next_fire_at > last for schedule in manager.sync.schedules()
    )


def _evidence(manager: Scheduler, site: Site, until: int) -> Evidence:
    schedules = {schedule.key: schedule for schedule in manager.sync.schedules()}
    runs, gaps = [], []
    for key in schedules:
        runs += [
            RunRow(
                key,
                int(run.fire_at.timestamp()),
                run.id,
                None if run.verdict is None else run.verdict.value,
                run.state.value,
                run.reason,
                run.fence,
                run.losses,
            )
            for run in manager.sync.runs(key, limit=_HISTORY_MOST)
        ]
        gaps += [
            GapRow(key, int(gap.first_at.timestamp()), int(gap.last_at.timestamp()), gap.count, gap.reason)
            for gap in manager.sync.gaps(key, limit=_HISTORY_MOST)
        ]
    return Evidence(
        entries=ENTRIES,
        created={key: schedule.created_at.timestamp() for key, schedule in schedules.items()},
        until=until,
        cursors={
            key: None if schedule.next_fire_at is None else int(schedule.next_fire_at.timestamp())
            for key, schedule in schedules.items()
        },
        runs=runs,
        gaps=gaps,
        words=list(read_words(site.folder)),
        writes=list(read_writes(site.folder)),
        processes=[
            Process(each.pid, each.killed_at, tuple(each.freezes), each.own_exit, each.began_at)
            for each in site.processes
        ],
        survivors=site.survivors(),
    )
