"""Why a run does what it does, and what holds up the runs of a task, in words. Reads, and changes nothing."""

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
# How far a line of runs that wait for each other is followed.
_LINE_MOST = 20
_BEATS_IN_LEASE = 5
_DEFAULT_QUEUE = "default"


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


class WhyTask(msgspec.Struct, frozen=True, kw_only=True):
    task: str
    # Live runs by state, as far as they were counted.
    live: dict[str, int]
    # Of each state what the one that is longest due does or waits for.
    now: list[str]
    last: str
    nodes: str


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
        return "; ".join(why_no_node(task, nodes))
    names = [f"{name} ({silent})" if silent else name for silent, name in found]
    more = len(names) - _NAMED_MOST
    listed = f"{', '.join(names[:_NAMED_MOST])}{f' and {more} more' if more > 0 else ''}"
    is_one_heard = not found[0][0]
    return f"{listed} can run it" if is_one_heard else f"{listed} can run it, if heard again"


# --- one run in words


def live_words(run: Run, nodes: list[Node], now: datetime, rule: When | None, message: Message | None = None) -> str:
    """`nodes`: also the dead. `message`: the one that is still to dispatch the run, if there is one."""
    return _doing(run, nodes, now, rule, message) + _failed_before(run)


def _failed_before(run: Run) -> str:
    """What came of the attempt before: why there is another. What is parked tells its error itself."""
    if not run.attempts or not run.error or run.state is State.PARKED:
        return ""
    return f"; attempt {run.attempts} failed: {error_summary(run.error)}"


def _in_phase(run: Run) -> str:
    """The innermost of those that have not ended, as far as the ledger has heard."""
    names = [phase.name for phase in run.phases if phase.seconds is None]
    return f", in phase {names[-1]!r}" if names else ""


def _doing(run: Run, nodes: list[Node], now: datetime, rule: When | None, message: Message | None) -> str:
    living = living_of(nodes)
    if run.dispatched is not None:
        return dispatched_words(
            run, run.dispatched, message, living, lambda moment: time_words(moment, rule)
        ) + _losses(run)
    match run.state:
        case State.RUNNING:
            since = "" if run.started_at is None else f" since {time_words(run.started_at, rule)}"
            progress = "" if run.progress is None else f", at {run.progress:.0%} {run.progress_text or ''}".rstrip()
            asked = ", asked to cancel" if run.is_cancel_requested else ""
            where, phase = _where(run, living, now, rule), _in_phase(run)
            return f"run {run.id} (attempt {run.attempts + 1}) runs{since}{where}{progress}{phase}{asked}{_losses(run)}"
        case State.WAITING if run.reason == Reason.NEWER_FORMAT:
            return f"run {run.id} waits for a node of a newer release, as the one that has recorded it"
        case State.WAITING if is_put_off(run, now):
            return f"run {run.id} waits for {time_words(run.due_at, rule)}, as the clock was wrong; {REPAIR}"
        case State.WAITING if run.due_at > now:
            return f"run {run.id} waits for its {'retry' if run.attempts else 'time'} at {time_words(run.due_at, rule)}"
        case State.WAITING if is_own_queue(run.queue):
            name = node_names(living).get(node_of_queue(run.queue))
            whose = f"a free slot of node {name}" if name else "its node, which is gone: it is about to be lost"
            return f"run {run.id} waits for {whose} since {time_words(run.due_at, rule)}"
        case State.WAITING:
            since, heard = f"since {time_words(run.due_at, rule)}", heard_of(living, now)
            if not heard:
                return f"run {run.id} waits {since}: {_no_node_alive(run, nodes, now)}"
            return f"run {run.id} waits for {_slot_wanted(run, heard)} {since}{_queue_wanted(run, heard)}"
        case State.BLOCKED if run.reason == Reason.CONCURRENCY:
            return f"run {run.id} waits for its turn: as many runs of {run.blocked_on!r} are at work as may be at once"
        case State.BLOCKED if run.reason == Reason.RATE:
            return (
                f"run {run.id} waits for its turn: as many runs of {run.blocked_on!r} have started as its rate allows"
            )
        case State.BLOCKED:
            return f"run {run.id} waits for the end of run {run.blocked_on}"
        case State.PARKED if run.reason == Reason.UNKNOWN_TASK:
            why, fix = why_no_node(run.task, nodes)
            return f"run {run.id} is parked: {why}; {fix}"
        case State.PARKED if run.reason == Reason.UNREADABLE:
            return f"run {run.id} is parked: {run.error}; cancel it, and enqueue it anew"
        case State.PARKED:
            misfit = f"its arguments do not fit task {run.task!r} ({run.error or ''})"
            return f"run {run.id} is parked: {misfit}; cancel it, or mend the task"
        case _:
            return f"run {run.id} is {run.state.value}"


def _where(run: Run, living: list[Node], now: datetime, rule: When | None) -> str:
    """On which node, and what is to be expected if that has fallen silent."""
    if run.node is None:
        return ""
    for node in living:
        if node.id == run.node:
            others = [each for each in living if each is not node and not silent_for(each, now)]
            name, silent = node_names(living)[node.id], silent_for(node, now)
            if not silent:
                return f" on {name}"
            when = _when_judged(node, others, now, rule)
            return f" on {name}, which is {silent} (unless it comes back, the run is {_fate(run)}, {when})"
    return f" on a node that is dead: it is about to be {_fate(run)}"


def _fate(run: Run) -> str:
    """What becomes of a run whose node is gone."""
    return "lost, as it is for that node alone" if is_own_queue(run.queue) else "taken over, or lost if on_lost='fail'"


def _when_judged(node: Node, others: list[Node], now: datetime, rule: When | None) -> str:
    """Others look for the dead with each of their own beats, but not before they have run for one lease."""
    lease = lease_of(node)
    beat = lease / _BEATS_IN_LEASE
    if not others:
        seconds, first = (lease + beat).total_seconds(), lease.total_seconds()
        return f"about {seconds:.0f} s after a node is started, which judges nobody in its first {first:g} s"
    judges_from = min(each.started_at + lease_of(each) for each in others)
    judged = max(node.lease_until, judges_from) + beat
    left = (judged - now).total_seconds()
    if left < 1:
        return "as soon as another node looks"
    return f"in about {left:.0f} s, at {time_words(judged, rule).partition(' ')[2]}"


def _slot_wanted(run: Run, living: list[Node]) -> str:
    """Each half is named only if no node has it."""
    knowing = [node for node in living if run.task in node.tasks]
    if any(run.queue in node.queues for node in knowing):
        return "a free slot"
    if knowing:
        return f"a node that knows task {run.task!r} to work on queue {run.queue!r}"
    driver = driver_wanted(run.task, living)
    able = f"knows task {run.task!r}" if driver is None else f"has the driver {driver!r} of task {run.task!r} enabled"
    is_served = any(run.queue in node.queues for node in living)
    return f"a node that {able}" + ("" if is_served else f" and works on queue {run.queue!r}")


def _queue_wanted(run: Run, living: list[Node]) -> str:
    """What to do where the queue alone is missing: the node that knows the task may be taught it."""
    knowing = [node for node in living if run.task in node.tasks]
    if not knowing or any(run.queue in node.queues for node in knowing):
        return ""
    name, queues = node_names(living)[knowing[0].id], ", ".join(map(repr, knowing[0].queues))
    return f"; node {name} knows it and works on {queues} alone: add {run.queue!r} to its node.queues, and restart it"


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
    """Nothing in a verdict tells that an earlier claim was lost; people should know it ran twice."""
    # Of a lost one the last was its end, and is told as such.
    again = run.losses - (run.verdict is Verdict.LOST)
    if again <= 0:
        return ""
    words = f"; {owner_words(run)} was lost {'once' if again == 1 else f'{again} times'}"
    return words if run.verdict is Verdict.CANCELLED else f"{words} before, and it was run again"


def silent_nodes(silent: list[Node], living: list[Node], now: datetime) -> str:
    """The last that was heard, and how many others."""
    if not silent:
        return ""
    last = max(silent, key=lambda node: node.beat_at)
    more = f", and {len(silent) - 1} more for longer" if len(silent) > 1 else ""
    return f" ({node_names(living)[last.id]} is {silent_for(last, now)}{more})"
