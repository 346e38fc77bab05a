"""The plan: all measurements by group, and the cases of each in the order in which a round takes them.

Compared cases are neighbours, so that a slow minute of the machine affects all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from benchmarks.contender.contenders import BROKER, CONTENDERS, STORES, Contender
from benchmarks.measure import (
    dispatch,
    fires,
    footprint,
    herd,
    history,
    idle,
    knee,
    latency,
    limits,
    next_fires,
    open_transaction,
    recovery,
    schedules,
    throughput,
    vacuum,
)
from benchmarks.measurement import Case, Measurement
from benchmarks.size import FULL, Size

__all__ = ["GROUPS", "LIMITED_PROCESSES", "MEASUREMENTS", "PLAN", "PROCESSES", "Selection", "available", "cases"]

MEASUREMENTS = {
    each.name: each
    for each in (
        # The number of runs is a metric, because slow contenders get fewer.
        Measurement("throughput", "throughput", "Full queue", throughput.METRICS, throughput.measure),
        Measurement(
            "enqueue",
            "throughput",
            "Several processes enqueue",
            throughput.ENQUEUE_METRICS,
            throughput.measure_enqueue,
            "runs",
        ),
        Measurement("latency", "latency", "Enqueue to start", latency.METRICS, latency.measure),
        Measurement(
            "latency_alone",
            "latency",
            "Enqueue to start within the worker",
            latency.METRICS,
            latency.measure_alone,
        ),
        Measurement(
            "minute",
            "schedules",
            "Schedules once a minute",
            schedules.METRICS,
            schedules.measure,
            "schedules",
            is_needed=schedules.is_needed,
        ),
        Measurement("herd", "schedules", "Schedules due at one instant", herd.METRICS, herd.measure, "schedules"),
        Measurement(
            "knee",
            "schedules",
            "Rising rate of fires",
            schedules.METRICS,
            knee.measure,
            "fires a second",
            is_needed=knee.is_near,
            has_preview=True,
        ),
        Measurement("idle", "idle", "Idle nodes", idle.METRICS, idle.measure, "schedules", is_once=True),
        Measurement("cost", "cost", "Fires in full batches", herd.COST_METRICS, herd.measure_cost, "fires"),
        Measurement("fires", "cost", "Fires through the store alone", fires.METRICS, fires.measure, is_once=True),
        Measurement("kill", "recovery", "Node killed", recovery.METRICS, recovery.measure_kill, "runs"),
        Measurement("stop", "recovery", "Node stopped", recovery.METRICS, recovery.measure_stop, "runs"),
        Measurement(
            "history", "growth", "Long history", history.METRICS, history.measure, "finished runs", is_once=True
        ),
        Measurement(
            "open_transaction",
            "growth",
            "Open transaction",
            open_transaction.METRICS,
            open_transaction.measure,
            "schedules",
        ),
        Measurement("next_fires", "time", "Moments of cron expressions", next_fires.METRICS, next_fires.measure),
        Measurement("footprint", "footprint", "Import", footprint.METRICS, footprint.measure),
        Measurement("limits", "limits", "Limits under load", limits.METRICS, limits.measure, "runs"),
        Measurement(
            "dispatch", "dispatch", "Runs dispatched to Redis", dispatch.METRICS, dispatch.measure, "runs", is_once=True
        ),
        Measurement(
            "dispatch_due",
            "dispatch",
            "Due schedules dispatched to Redis",
            dispatch.METRICS,
            dispatch.measure_due,
            "schedules",
            is_once=True,
        ),
        Measurement("vacuum", "vacuum", "Vacuum options of the tables", vacuum.METRICS, vacuum.measure),
    )
}
GROUPS = tuple(dict.fromkeys(each.group for each in MEASUREMENTS.values()))
# The default numbers of workers on one store.
PROCESSES = (1, 2)
# Nodes that compete for a limit.
LIMITED_PROCESSES = 3
# Measurements whose number of nodes can be chosen. The others have a fixed number.
_BY_PROCESSES = (
    "throughput",
    "enqueue",
    "latency",
    "minute",
    "herd",
    "knee",
    "idle",
    "cost",
    "history",
    "dispatch",
    "dispatch_due",
)


@dataclass(frozen=True)
class Selection:
    """The request of a run. `groups` may also name single measurements."""

    groups: Collection[str]
    stores: tuple[str, ...]
    processes: tuple[int, ...]
    has_peers: bool
    # Names of contenders; empty for all.
    names: tuple[str, ...]
    has_million: bool
    size: Size
    # Only as many cases as are needed to execute every line.
    is_quick: bool = False

    @property
    def contenders(self) -> list[Contender]:
        """Contenders that have a case."""
        names = {case.contender for case in cases(self)}
        return [each for each in CONTENDERS if each.name in names]


def cases(selection: Selection) -> list[Case]:
    return [
        case
        for each in MEASUREMENTS.values()
        if each.group in selection.groups or each.name in selection.groups
        for case in _cases_of(each.name, selection)
    ]


def available(selection: Selection) -> str:
    """For a selection without cases: the measurements, stores and processes of its contenders.

    Other stores are named only if the selected ones have no cases with any number of processes.
    """
    near = dataclasses.replace(selection, processes=PROCESSES)
    wide = dataclasses.replace(near, stores=STORES)
    found = cases(near) or cases(wide) or cases(dataclasses.replace(wide, groups=GROUPS))
    words = []
    for contender in dict.fromkeys(case.contender for case in found):
        by_name: dict[str, list[Case]] = {}
        for case in found:
            if case.contender == contender:
                by_name.setdefault(case.measurement, []).append(case)
        alike: dict[str, list[str]] = {}
        for name, each in by_name.items():
            alike.setdefault(_where(each), []).append(name)
        words.append(f"{contender}: {', and '.join(', '.join(names) + where for where, names in alike.items())}")
    return "; ".join(words)


def _where(found: Collection[Case]) -> str:
    stores = dict.fromkeys(case.store for case in found if case.store)
    processes = sorted({case.processes for case in found})
    by = f" with {' or '.join(map(str, processes))} process{'es' if processes[-1] > 1 else ''}"
    return f" on {' or '.join(stores)}{by}" if stores else ""


def _cases_of(name: str, selection: Selection) -> Iterator[Case]:
    for store in _stores(name, selection):
        # `--million` and `--schedules 1000000` name the same cases.
        for number in dict.fromkeys(_numbers(name, store, selection)):
            for processes in _processes(name, selection):
                for variant in _variants(name, selection):
                    for contender in _contenders(name, store, selection):
                        case = Case(name, store, contender.name, processes, number, variant)
                        if _is_supported(contender, case):
                            yield case


def _stores(name: str, selection: Selection) -> tuple[str, ...]:
    if name in ("next_fires", "footprint"):
        return ("",)
    if name in ("fires", "vacuum"):
        return tuple(each for each in selection.stores if each == "postgres")
    # A selection of one store excludes the broker.
    has_broker = name == "minute" and set(selection.stores) == set(STORES)
    return (*selection.stores, BROKER) if has_broker else selection.stores


def _numbers(name: str, store: str, selection: Selection) -> tuple[int, ...]:
    size = selection.size
    million = (schedules.MILLION,) if selection.has_million and store != BROKER else ()
    by_name: dict[str, tuple[int, ...]] = {
        "throughput": (size.runs,),
        "enqueue": (size.runs,),
        "minute": (*size.schedules, *million),
        "herd": (*size.herd, *million),
        "knee": size.knee,
        "idle": (*size.idle_schedules[:1], *million) if million else size.idle_schedules,
        "cost": (size.cost_schedules,),
        "kill": (size.held_runs,),
        "stop": (size.held_runs,),
        "history": (size.large_history,),
        "open_transaction": size.open_transaction_schedules,
        "next_fires": (size.next_fires,),
        "footprint": (size.imports,),
        "limits": (size.limited_runs,),
        "dispatch": (size.dispatched_runs,),
        "dispatch_due": (size.dispatched_runs,),
    }
    return by_name.get(name, (0,))


def _processes(name: str, selection: Selection) -> tuple[int, ...]:
    if name in _BY_PROCESSES:
        return selection.processes
    return (LIMITED_PROCESSES,) if name == "limits" else (2,) if name in ("kill", "stop") else (1,)


def _variants(name: str, selection: Selection) -> tuple[str, ...]:
    if name == "limits":
        return tuple(limits.LIMITS)[-2 if selection.is_quick else 0 :]
    if name == "minute":
        return ("", schedules.EVENLY)
    if name == "footprint":
        return ("", *footprint.WITH_STORE)
    return vacuum.VARIANTS if name == "vacuum" else ("",)


def _contenders(name: str, store: str, selection: Selection) -> Iterator[Contender]:
    for contender in CONTENDERS:
        is_wanted = (
            contender.name in selection.names if selection.names else selection.has_peers or not contender.is_peer
        )
        is_double = selection.is_quick and contender.name == "evertick_default"
        if is_wanted and not is_double and name in contender.measurements and (not store or store in contender.stores):
            yield contender


def _is_supported(contender: Contender, case: Case) -> bool:
    if case.measurement == "limits":
        return True
    if case.processes > contender.most_processes:
        return False
    if case.measurement == "footprint":
        return not case.variant or contender.has_ledger
    if case.measurement != "minute":
        return True
    # Most peers support only cron schedules, and one node is enough to measure a rule for each schedule.
    is_variant_supported = not case.variant or (not contender.is_peer and case.processes == 1)
    return (
        is_variant_supported and case.number <= contender.most_schedules and case.processes <= contender.most_planners
    )


# All cases: a run with `--peers --million`.
PLAN = cases(
    Selection(
        groups=GROUPS,
        stores=STORES,
        processes=PROCESSES,
        has_peers=True,
        names=(),
        has_million=True,
        size=FULL,
    )
)
