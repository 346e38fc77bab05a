"""What is measured: all measurements by group, and the cases of each, in the order in which a round takes them.

Cases that are compared stand side by side, so that a slow minute of the machine falls on all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from benchmarks.contender.contenders import BROKER, CONTENDERS, STORES, Contender
from benchmarks.figure import Case, Measurement
from benchmarks.knee import is_near
from benchmarks.measure import (
    dispatch,
    enqueue,
    fires,
    footprint,
    held_open,
    herd,
    history,
    idle,
    latency,
    limits,
    next_fires,
    recovery,
    schedules,
    throughput,
    vacuum,
)
from benchmarks.size import FULL, Size

__all__ = ["GROUPS", "LIMITED_PROCESSES", "MEASUREMENTS", "PLAN", "PROCESSES", "Choice", "cases", "there_is"]

MEASUREMENTS = {
    each.name: each
    for each in (
        # How many runs is a figure of it: a slow one gets fewer.
        Measurement(
            "throughput", "throughput", "Runs that wait in a full queue", throughput.FIGURES, throughput.measure
        ),
        Measurement("enqueue", "throughput", "Enqueued by several at once", enqueue.FIGURES, enqueue.measure, "runs"),
        Measurement(
            "latency", "latency", "From enqueue to start, sent by another process", latency.FIGURES, latency.measure
        ),
        Measurement(
            "latency_alone",
            "latency",
            "From enqueue to start, sent by the worker itself",
            latency.FIGURES,
            latency.measure_alone,
        ),
        Measurement(
            "minute",
            "schedules",
            "Schedules once a minute, spread over the seconds",
            schedules.FIGURES,
            schedules.measure_minute,
            "schedules",
            is_needed=schedules.is_needed,
        ),
        Measurement("herd", "schedules", "Schedules at one instant", herd.FIGURES, herd.measure, "schedules"),
        Measurement(
            "knee",
            "schedules",
            "More and more fires a second",
            schedules.FIGURES,
            schedules.measure_knee,
            "fires a second",
            is_needed=is_near,
            has_preview=True,
        ),
        Measurement("idle", "idle", "Nothing is due", idle.FIGURES, idle.measure, "schedules", is_once=True),
        Measurement("cost", "cost", "What a fire costs in full batches", herd.COST_FIGURES, herd.measure_cost, "fires"),
        Measurement("fires", "cost", "Fires through the store alone", fires.FIGURES, fires.measure, is_once=True),
        Measurement(
            "kill", "recovery", "Work of a node that was killed", recovery.FIGURES, recovery.measure_kill, "runs"
        ),
        Measurement(
            "stop", "recovery", "Work of a node that was stopped", recovery.FIGURES, recovery.measure_stop, "runs"
        ),
        Measurement(
            "history",
            "growth",
            "Beside a long history",
            history.FIGURES,
            history.measure,
            "finished runs",
            is_once=True,
        ),
        Measurement(
            "held_open",
            "growth",
            "A transaction that is held open",
            held_open.FIGURES,
            held_open.measure,
            "schedules",
        ),
        Measurement("next_fires", "time", "Moments of cron expressions", next_fires.FIGURES, next_fires.measure),
        Measurement("footprint", "footprint", "Import", footprint.FIGURES, footprint.measure),
        Measurement("limits", "limits", "Limits under load", limits.FIGURES, limits.measure, "runs"),
        Measurement(
            "dispatch", "dispatch", "Runs dispatched to Redis", dispatch.FIGURES, dispatch.measure, "runs", is_once=True
        ),
        Measurement(
            "dispatch_due",
            "dispatch",
            "Due schedules dispatched to Redis, with the recording of their fires",
            dispatch.FIGURES,
            dispatch.measure_due,
            "schedules",
            is_once=True,
        ),
        Measurement("vacuum", "vacuum", "Vacuum options of the tables", vacuum.FIGURES, vacuum.measure),
    )
}
GROUPS = tuple(dict.fromkeys(each.group for each in MEASUREMENTS.values()))
# Workers on one store, unless others are asked for.
PROCESSES = (1, 2)
# Of the nodes that meet at a limit.
LIMITED_PROCESSES = 3
# Whose nodes can be as many as are asked for. The others have as many as they are about: one that sends to itself, two
# of which one ends, the steps of one store, or no node at all.
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
class Choice:
    """What was asked for; groups, or single measurements by their names."""

    groups: Collection[str]
    stores: tuple[str, ...]
    processes: tuple[int, ...]
    has_peers: bool
    # Of contenders; all if there is none.
    names: tuple[str, ...]
    has_million: bool
    size: Size
    # As few cases as reach every line.
    is_quick: bool = False

    @property
    def contenders(self) -> list[Contender]:
        """Those that have anything to do."""
        names = {case.contender for case in cases(self)}
        return [each for each in CONTENDERS if each.name in names]


def cases(choice: Choice) -> list[Case]:
    return [
        case
        for each in MEASUREMENTS.values()
        if each.group in choice.groups or each.name in choice.groups
        for case in _cases_of(each.name, choice)
    ]


def there_is(choice: Choice) -> str:
    """Where nothing fits: of those that were asked for, what is measured of each, on which store, by how many.

    On the stores that were asked for, if there is anything with other processes: nobody wants to hear of the other one.
    """
    near = dataclasses.replace(choice, processes=PROCESSES)
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


def _cases_of(name: str, choice: Choice) -> Iterator[Case]:
    for store in _stores(name, choice):
        # Who asks for a million in numbers and by name means the same million.
        for number in dict.fromkeys(_numbers(name, store, choice)):
            for processes in _processes(name, choice):
                for variant in _variants(name, choice):
                    for contender in _able(name, store, choice):
                        case = Case(name, store, contender.name, processes, number, variant)
                        if _can(contender, case):
                            yield case


def _stores(name: str, choice: Choice) -> tuple[str, ...]:
    if name in ("next_fires", "footprint"):
        return ("",)
    if name in ("fires", "vacuum"):
        return tuple(each for each in choice.stores if each == "postgres")
    # Who asks for one store alone does not want a broker.
    has_broker = name == "minute" and set(choice.stores) == set(STORES)
    return (*choice.stores, BROKER) if has_broker else choice.stores


def _numbers(name: str, store: str, choice: Choice) -> tuple[int, ...]:
    size = choice.size
    million = (schedules.MILLION,) if choice.has_million and store != BROKER else ()
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
        "held_open": size.held_open_schedules,
        "next_fires": (size.next_fires,),
        "footprint": (size.imports,),
        "limits": (size.limited_runs,),
        "dispatch": (size.dispatched_runs,),
        "dispatch_due": (size.dispatched_runs,),
    }
    return by_name.get(name, (0,))


def _processes(name: str, choice: Choice) -> tuple[int, ...]:
    if name in _BY_PROCESSES:
        return choice.processes
    return (LIMITED_PROCESSES,) if name == "limits" else (2,) if name in ("kill", "stop") else (1,)


def _variants(name: str, choice: Choice) -> tuple[str, ...]:
    if name == "limits":
        return tuple(limits.LIMITS)[-2 if choice.is_quick else 0 :]
    if name == "minute":
        return ("", schedules.EVENLY)
    if name == "footprint":
        return ("", *footprint.WITH_STORE)
    return vacuum.VARIANTS if name == "vacuum" else ("",)


def _able(name: str, store: str, choice: Choice) -> Iterator[Contender]:
    for contender in CONTENDERS:
        is_wanted = contender.name in choice.names if choice.names else choice.has_peers or not contender.is_peer
        is_double = choice.is_quick and contender.name == "evertick_default"
        if is_wanted and not is_double and name in contender.measurements and (not store or store in contender.stores):
            yield contender


def _can(contender: Contender, case: Case) -> bool:
    if case.measurement == "limits":
        return True
    if case.processes > contender.most_processes:
        return False
    if case.measurement == "footprint":
        return not case.variant or contender.has_ledger
    if case.measurement != "minute":
        return True
    # Most others know no moments but those of a crontab.
    # What rules of their own cost one node tells.
    is_as_others = not case.variant or (not contender.is_peer and case.processes == 1)
    return is_as_others and case.number <= contender.most_schedules and case.processes <= contender.most_planners


# All there is: what a run with other schedulers and a million measures.
PLAN = cases(
    Choice(
        groups=GROUPS,
        stores=STORES,
        processes=PROCESSES,
        has_peers=True,
        names=(),
        has_million=True,
        size=FULL,
    )
)
