"""Explains a run, and the live runs of a task. Reads, and changes nothing."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

import msgspec

from evertick.explain.dispatched_run import dispatched_words, owner_words, unsent_messages
from evertick.explain.words import (
    REPAIR,
    driver_wanted,
    heard_of,
    lease_of,
    living_of,
    node_names,
    node_wanted,
    reason_words,
    silent_for,
    time_words,
    why_no_node,
)
from evertick.ledger.clock_repair import is_put_off
from evertick.ledger.parsed_rules import rule_in_force
from evertick.model import LIVE_STATES, Message, Node, Phase, Reason, Run, State, Verdict
from evertick.model.every_node import is_own_queue, node_of_queue
from evertick.store.base import RunFilter, Store
from evertick.text.error_line import error_summary
from evertick.when import When, from_us

__all__ = [
    "WhyRun",
    "WhyTask",
    "ended_words",
    "explain_run",
    "explain_task",
    "live_words",
    "phase_words",
    "silent_nodes",
]

_COUNTED_MOST = 10_000
_NAMED_MOST = 3
# At most this many runs that wait for each other are listed.
_BLOCKERS_MOST = 20
_BEATS_IN_LEASE = 5
_DEFAULT_QUEUE = "default"


class WhyRun(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    task: str
    schedule_key: str | None
    # Its current step, or how it ended.
    now: str
    # The runs that it waits for, nearest first.
    behind: list[str]
    # The nodes that can run it.
    nodes: str
    # The phases of all attempts, oldest first.
    phases: list[str] = []


class WhyTask(msgspec.Struct, frozen=True, kw_only=True):
    task: str
    # Live runs by state, up to a limit.
    live: dict[str, int]
    # The current step of the longest due run in each state.
    now: list[str]
    last: str
    nodes: str


async def explain_run(store: Store, run: Run) -> WhyRun:
    now, nodes = from_us(await store.now()), await store.nodes(run.app)
    rule = None if run.schedule_key is None else await rule_in_force(store, run.app, run.schedule_key)
    phases = await _phases(store, run)
    if not run.is_live:
        ended = f"it ended at {time_words(run.finished_at, rule)}: {ended_words(run, rule)}"
        return WhyRun(
            id=run.id, task=run.task, schedule_key=run.schedule_key, now=ended, behind=[], nodes="", phases=phases
        )
    behind = [live_words(each, nodes, now, rule) for each in await _blockers(store, run)]
    return WhyRun(
        id=run.id,
        task=run.task,
        schedule_key=run.schedule_key,
        now=live_words(run, nodes, now, rule, (await unsent_messages(store, run.app, [run])).get(run.id)),
        behind=behind,
        nodes=_able_words(nodes, run.task, now),
        phases=phases,
    )


async def _phases(store: Store, run: Run) -> list[str]:
    """The phases of all attempts. A run that waits for its retry still has those of its last attempt."""
    earlier = await store.attempts(run.app, run.id) if run.attempts or run.losses or run.phases else []
    words = [f"attempt {each.number}, {phase_words(phase)}" for each in earlier for phase in each.phases]
    is_duplicate = bool(earlier) and run.state in (State.WAITING, State.BLOCKED, State.PARKED)
    return words + ([] if is_duplicate else [phase_words(phase) for phase in run.phases])


def phase_words(phase: Phase) -> str:
    """The phase without its start time."""
    duration = "not ended" if phase.seconds is None else f"{phase.seconds:.3f} s"
    metadata = ", ".join(f"{name} {_value_text(value)}" for name, value in phase.metadata.items())
    failed = ", failed" if phase.is_failed else ""
    return f"{phase.name}: {duration}{failed}{f' ({metadata})' if metadata else ''}"


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
    last = [f"run {run.id} ended at {time_words(run.finished_at, None)}: {ended_words(run, None)}" for run in ended]
    return WhyTask(
        task=task,
        live={state.value: counts[state] for state in LIVE_STATES if counts[state]},
        now=[live_words(run, nodes, now, None, messages.get(run.id)) for run in named],
        last=last[0] if last else "none of its runs has ended yet",
        nodes=_able_words(nodes, task, now),
    )


def _by_due(run: Run) -> tuple[datetime, str]:
    return run.due_at, run.id


async def _blockers(store: Store, run: Run) -> list[Run]:
    """The runs that it waits for; under a concurrency limit, the first few running ones of its task."""
    if run.state is not State.BLOCKED:
        return []
    if run.reason == Reason.RATE:
        return []
    if run.reason == Reason.CONCURRENCY:
        running = (State.RUNNING, State.DISPATCHED)
        wanted = RunFilter(task=run.task, states=running, is_oldest_first=True, limit=_NAMED_MOST)
        return await store.runs(run.app, wanted)
    before: list[Run] = []
    while run.state is State.BLOCKED and run.blocked_on is not None and len(before) < _BLOCKERS_MOST:
        found = await store.runs(run.app, RunFilter(ids=(run.blocked_on,)))
        if not found or not found[0].is_live:
            break
        run = found[0]
        before.append(run)
    return before


def _able_words(nodes: list[Node], task: str, now: datetime) -> str:
    """The nodes that can run a task, silent ones last. A killed node counts as alive until its lease expires."""
    living = living_of(nodes)
    known = node_names(living)
    found = sorted((silent_for(node, now), known[node.id]) for node in living if task in node.tasks)
    if not found:
        return "; ".join(why_no_node(task, nodes))
    names = [f"{name} ({silent})" if silent else name for silent, name in found]
    more = len(names) - _NAMED_MOST
    listed = f"{', '.join(names[:_NAMED_MOST])}{f' and {more} more' if more > 0 else ''}"
    are_all_silent = bool(found[0][0])
    return f"{listed} can run it, when its heartbeats return" if are_all_silent else f"{listed} can run it"


# --- one run


def live_words(run: Run, nodes: list[Node], now: datetime, rule: When | None, message: Message | None = None) -> str:
    """The current step of a live run. `nodes`: also dead ones. `message`: the unsent message of the run, if any."""
    return _step(run, nodes, now, rule, message) + _previous_failure(run)


def _previous_failure(run: Run) -> str:
    """The error of the previous attempt. The text of a parked run already has it."""
    if not run.attempts or not run.error or run.state is State.PARKED:
        return ""
    return f"; attempt {run.attempts} failed: {error_summary(run.error)}"


def _in_phase(run: Run) -> str:
    """The innermost phase that has not ended, as the ledger knows it."""
    names = [phase.name for phase in run.phases if phase.seconds is None]
    return f", in phase {names[-1]!r}" if names else ""


def _step(run: Run, nodes: list[Node], now: datetime, rule: When | None, message: Message | None) -> str:
    living = living_of(nodes)
    if run.dispatched is not None:
        return dispatched_words(
            run, run.dispatched, message, living, lambda moment: time_words(moment, rule)
        ) + _losses(run)
    match run.state:
        case State.RUNNING:
            since = "" if run.started_at is None else f" since {time_words(run.started_at, rule)}"
            progress = "" if run.progress is None else f", at {run.progress:.0%} {run.progress_text or ''}".rstrip()
            cancel = ", cancel requested" if run.is_cancel_requested else ""
            where, phase = _where(run, living, now, rule), _in_phase(run)
            about = f"{since}{where}{progress}{phase}{cancel}{_losses(run)}"
            return f"run {run.id} (attempt {run.attempts + 1}) runs{about}"
        case State.WAITING if run.reason == Reason.NEWER_FORMAT:
            return f"run {run.id} waits for a node of a newer release: its format is too new for the live nodes"
        case State.WAITING if is_put_off(run, now):
            return f"run {run.id} waits until {time_words(run.due_at, rule)} because the clock was wrong; {REPAIR}"
        case State.WAITING if run.due_at > now:
            return f"run {run.id} waits for its {'retry' if run.attempts else 'time'} at {time_words(run.due_at, rule)}"
        case State.WAITING if is_own_queue(run.queue):
            name = node_names(living).get(node_of_queue(run.queue))
            target = f"a free slot of node {name}" if name else "its node, which has ended: it will be lost"
            return f"run {run.id} waits for {target} since {time_words(run.due_at, rule)}"
        case State.WAITING:
            since, leased = f"since {time_words(run.due_at, rule)}", heard_of(living, now)
            if not leased:
                return f"run {run.id} waits {since}: {_no_node_alive(run, nodes, now)}"
            return f"run {run.id} waits for {_slot_wanted(run, leased)} {since}{_queue_wanted(run, leased)}"
        case State.BLOCKED if run.reason == Reason.CONCURRENCY:
            return f"run {run.id} is blocked: the concurrency limit of {run.blocked_on!r} is reached"
        case State.BLOCKED if run.reason == Reason.RATE:
            return f"run {run.id} is blocked: the rate limit of {run.blocked_on!r} is reached"
        case State.BLOCKED:
            return f"run {run.id} waits for the end of run {run.blocked_on}"
        case State.PARKED if run.reason == Reason.UNKNOWN_TASK:
            why, fix = why_no_node(run.task, nodes)
            return f"run {run.id} is parked: {why}; {fix}"
        case State.PARKED if run.reason == Reason.UNREADABLE:
            return f"run {run.id} is parked: {run.error}; cancel it, and enqueue it again"
        case State.PARKED:
            problem = f"its arguments do not fit task {run.task!r} ({run.error or ''})"
            return f"run {run.id} is parked: {problem}; cancel it, or correct the task"
        case _:
            return f"run {run.id} is {run.state.value}"


def _where(run: Run, living: list[Node], now: datetime, rule: When | None) -> str:
    """The node of a running run, and what happens next if the node is silent or dead."""
    if run.node is None:
        return ""
    for node in living:
        if node.id == run.node:
            others = [each for each in living if each is not node and not silent_for(each, now)]
            name, silent = node_names(living)[node.id], silent_for(node, now)
            if not silent:
                return f" on {name}"
            when = _when_declared_dead(node, others, now, rule)
            return f" on {name}, which is {silent} (if it does not return, the run is {_fate(run)}, {when})"
    return f" on a dead node: it will be {_fate(run)}"


def _fate(run: Run) -> str:
    """The next state of a run whose node died."""
    return "lost, as it is for that node only" if is_own_queue(run.queue) else "reassigned, or lost if on_lost='fail'"


def _when_declared_dead(node: Node, others: list[Node], now: datetime, rule: When | None) -> str:
    """Other nodes declare deaths with each of their heartbeats, but not in the first lease after their start."""
    lease = lease_of(node)
    beat = lease / _BEATS_IN_LEASE
    if not others:
        seconds, first = (lease + beat).total_seconds(), lease.total_seconds()
        return f"about {seconds:.0f} s after a node is started: it declares no death in its first {first:g} s"
    declares_from = min(each.started_at + lease_of(each) for each in others)
    declared = max(node.lease_until, declares_from) + beat
    left = (declared - now).total_seconds()
    if left < 1:
        return "at the next heartbeat of another node"
    return f"in about {left:.0f} s, at {time_words(declared, rule).partition(' ')[2]}"


def _slot_wanted(run: Run, living: list[Node]) -> str:
    """The missing part: a free slot, or a node with the task, the driver or the queue that no live node has."""
    able = [node for node in living if run.task in node.tasks]
    if any(run.queue in node.queues for node in able):
        return "a free slot"
    if able:
        return f"a node that knows task {run.task!r} to work on queue {run.queue!r}"
    driver = driver_wanted(run.task, living)
    wanted = f"knows task {run.task!r}" if driver is None else f"has the driver {driver!r} of task {run.task!r} enabled"
    is_served = any(run.queue in node.queues for node in living)
    return f"a node that {wanted}" + ("" if is_served else f" and works on queue {run.queue!r}")


def _queue_wanted(run: Run, living: list[Node]) -> str:
    """The fix if only the queue is missing: a node that knows the task can serve it."""
    able = [node for node in living if run.task in node.tasks]
    if not able or any(run.queue in node.queues for node in able):
        return ""
    name, queues = node_names(living)[able[0].id], ", ".join(map(repr, able[0].queues))
    fix = f"add {run.queue!r} to its node.queues, and restart it"
    return f"; node {name} knows the task, and works on {queues} only: {fix}"


def _no_node_alive(run: Run, nodes: list[Node], now: datetime) -> str:
    queue, living = "" if run.queue == _DEFAULT_QUEUE else f" and on queue {run.queue!r}", living_of(nodes)
    silent = silent_nodes(living, living, now)
    return f"no node is alive{silent}; it needs one {node_wanted(run.task, nodes)}{queue}"


def ended_words(run: Run, rule: When | None) -> str:
    verdict = "" if run.verdict is None else run.verdict.value
    words = verdict if run.verdict is Verdict.SUCCEEDED else f"ended as {verdict}"
    if run.reason is not None:
        words += f": {reason_words(run.reason)}"
    if run.reason == Reason.LATE and run.started_at is not None:
        words += f" (started {time_words(run.started_at, rule)})"
    if run.verdict is Verdict.FAILED and run.error:
        words += f" ({error_summary(run.error)})"
    if run.attempts > 1:
        words += f", after {run.attempts} attempts"
    return words + _losses(run)


def _losses(run: Run) -> str:
    """The losses of earlier claims, because the run may have run twice."""
    # The last loss of a lost run is its verdict.
    losses = run.losses - (run.verdict is Verdict.LOST)
    if losses <= 0:
        return ""
    words = f"; {owner_words(run)} was lost {'once' if losses == 1 else f'{losses} times'}"
    return words if run.verdict is Verdict.CANCELLED else f"{words} before, and it was run again"


def silent_nodes(silent: list[Node], living: list[Node], now: datetime) -> str:
    """The node with the latest heartbeat, and the number of others."""
    if not silent:
        return ""
    last = max(silent, key=lambda node: node.beat_at)
    more = f", and {len(silent) - 1} more for longer" if len(silent) > 1 else ""
    return f" ({node_names(living)[last.id]} is {silent_for(last, now)}{more})"
