"""Why a run does what it does, and what holds up the runs of a task, in words. Reads, and changes nothing."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

import msgspec

from evertick.explain.dispatched_run import unsent_messages
from evertick.explain.no_node import living_of, nobody_runs
from evertick.explain.node_names import node_names
from evertick.explain.schedule import ended_words, live_words, silent_for, time_words
from evertick.ledger.parsed_rules import rule_in_force
from evertick.model import LIVE_STATES, Node, Phase, Reason, Run, State
from evertick.store.base import RunFilter, Store
from evertick.when import from_us

__all__ = ["Facts", "WhyRun", "WhyTask", "explain_run", "explain_task", "phase_words"]

# Names and what is to be said of them.
Facts = list[tuple[str, str | list[str]]]

_COUNTED_MOST = 10_000
_NAMED_MOST = 3
# How far a line of runs that wait for each other is followed.
_LINE_MOST = 20


class WhyRun(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    task: str
    schedule_key: str | None
    # What it does or waits for, or how it ended.
    now: str
    # What stands before it, nearest first.
    behind: list[str]
    # Who could run it.
    nodes: str
    # Of its earlier attempts and of this one, oldest first.
    phases: list[str] = []

    def facts(self) -> Facts:
        of = f" of {self.schedule_key}" if self.schedule_key else ""
        return [
            ("Run", f"{self.id}, task {self.task}{of}"),
            ("Now", self.now),
            ("Behind", self.behind),
            ("Phases", self.phases),
            ("Nodes", self.nodes),
        ]


class WhyTask(msgspec.Struct, frozen=True, kw_only=True):
    task: str
    # Live runs by state, as far as they were counted.
    live: dict[str, int]
    # Of each state what the one that is longest due does or waits for.
    now: list[str]
    last: str
    nodes: str

    def facts(self) -> Facts:
        counts = ", ".join(f"{count} {state}" for state, count in self.live.items())
        return [
            ("Task", self.task),
            ("Live", counts or "none of its runs"),
            ("Now", self.now),
            ("Last", self.last),
            ("Nodes", self.nodes),
        ]


async def explain_run(store: Store, run: Run) -> WhyRun:
    now, nodes = from_us(await store.now()), await store.nodes(run.app)
    rule = None if run.schedule_key is None else await rule_in_force(store, run.app, run.schedule_key)
    phases = await _phases(store, run)
    if not run.is_live:
        ended = f"it has ended {time_words(run.finished_at, rule)}: {ended_words(run, rule)}"
        return WhyRun(
            id=run.id, task=run.task, schedule_key=run.schedule_key, now=ended, behind=[], nodes="", phases=phases
        )
    behind = [live_words(each, nodes, now, rule) for each in await _line_before(store, run)]
    return WhyRun(
        id=run.id,
        task=run.task,
        schedule_key=run.schedule_key,
        now=live_words(run, nodes, now, rule, (await unsent_messages(store, run.app, [run])).get(run.id)),
        behind=behind,
        nodes=_knowing(nodes, run.task, now),
        phases=phases,
    )


async def _phases(store: Store, run: Run) -> list[str]:
    """While it waits for its retry its phases are those of the attempt before."""
    earlier = await store.attempts(run.app, run.id) if run.attempts or run.losses or run.phases else []
    words = [f"attempt {each.number}, {phase_words(phase)}" for each in earlier for phase in each.phases]
    is_repeated = bool(earlier) and run.state in (State.WAITING, State.BLOCKED, State.PARKED)
    return words + ([] if is_repeated else [phase_words(phase) for phase in run.phases])


def phase_words(phase: Phase) -> str:
    """Without when it began."""
    took = "not ended" if phase.seconds is None else f"{phase.seconds:.3f} s"
    known = ", ".join(f"{name} {_value_text(value)}" for name, value in phase.metadata.items())
    failed = ", failed" if phase.is_failed else ""
    return f"{phase.name}: {took}{failed}{f' ({known})' if known else ''}"


def _value_text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


async def explain_task(store: Store, app: str, task: str) -> WhyTask:
    now, nodes = from_us(await store.now()), await store.nodes(app)
    live = await store.runs(app, RunFilter(task=task, states=LIVE_STATES, limit=_COUNTED_MOST))
    counts = Counter(run.state for run in live)
    oldest = {
        state: min((run for run in live if run.state is state), key=_by_due, default=None) for state in LIVE_STATES
    }
    named = [run for run in oldest.values() if run is not None]
    messages = await unsent_messages(store, app, named)
    ended = await store.runs(app, RunFilter(task=task, states=(State.DONE,), limit=1))
    last = [f"run {run.id}, ended {time_words(run.finished_at, None)}: {ended_words(run, None)}" for run in ended]
    return WhyTask(
        task=task,
        live={state.value: counts[state] for state in LIVE_STATES if counts[state]},
        now=[live_words(run, nodes, now, None, messages.get(run.id)) for run in named],
        last=last[0] if last else "none of its runs has ended yet",
        nodes=_knowing(nodes, task, now),
    )


def _by_due(run: Run) -> tuple[datetime, str]:
    return run.due_at, run.id


async def _line_before(store: Store, run: Run) -> list[Run]:
    """The runs whose end it waits for; under a limit the first few that are at work of its task."""
    if run.state is not State.BLOCKED:
        return []
    if run.reason == Reason.RATE:
        return []
    if run.reason == Reason.CONCURRENCY:
        at_work = (State.RUNNING, State.DISPATCHED)
        wanted = RunFilter(task=run.task, states=at_work, is_oldest_first=True, limit=_NAMED_MOST)
        return await store.runs(run.app, wanted)
    before: list[Run] = []
    while run.state is State.BLOCKED and run.blocked_on is not None and len(before) < _LINE_MOST:
        found = await store.runs(run.app, RunFilter(ids=(run.blocked_on,)))
        if not found or not found[0].is_live:
            break
        run = found[0]
        before.append(run)
    return before


def _knowing(nodes: list[Node], task: str, now: datetime) -> str:
    """Those that were just heard first. A node that was killed counts as alive until its lease ends."""
    living = living_of(nodes)
    known = node_names(living)
    found = sorted((silent_for(node, now), known[node.id]) for node in living if task in node.tasks)
    if not found:
        return "; ".join(nobody_runs(task, nodes))
    names = [f"{name} ({silent})" if silent else name for silent, name in found]
    more = len(names) - _NAMED_MOST
    listed = f"{', '.join(names[:_NAMED_MOST])}{f' and {more} more' if more > 0 else ''}"
    is_one_heard = not found[0][0]
    return f"{listed} can run it" if is_one_heard else f"{listed} can run it, if heard again"
