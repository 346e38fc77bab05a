"""The script of a seed: nodes, schedules, faults, and users' changes.

A story is data that is drawn before the simulation starts, so a bug cannot change it. The texts that seed the random
numbers stay as they are: another text is another story.
"""

from __future__ import annotations

import random
from typing import Any, Literal

import msgspec

from evertick.model import BLACKOUT_FATES, CATCH_UPS, OVERLAPS
from evertick.when import Calendar
from simulation.faults import FaultRates

__all__ = ["FREEZE", "REST", "Act", "Pace", "PlannedSchedule", "Story", "make_story"]

Verb = Literal[
    "kill", "freeze", "stop", "start", "cut_off", "outage", "blackout", "jump",
    "add", "edit", "pause", "resume", "remove", "trigger", "enqueue", "cancel",
    "skip_next", "move", "run_early", "undo", "queue_away",
]  # fmt: skip


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Length of a story and its intervals, in seconds."""

    length: float
    beat: float
    lease: float
    poll: float
    # Typical distance between fires and duration of a job.
    step: float


class PlannedSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule that a user will add: `fields` are those of its definition."""

    key: str
    when: str
    fields: dict[str, Any]


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """A fault or a user's act. `about` is the slot of a node, a key, or a number that selects a run."""

    at: float
    verb: Verb
    about: str = ""
    seconds: float = 0.0
    detail: dict[str, Any] = {}


class Story(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    pace: Pace
    # Slots per node, and the tasks that it does not know.
    nodes: tuple[int, ...]
    unknown_tasks: tuple[tuple[str, ...], ...]
    # Nodes that start with tighter limits; their replacements have the usual ones.
    tight: tuple[int, ...]
    fault_rates: FaultRates
    planned: tuple[PlannedSchedule, ...]
    acts: tuple[Act, ...]
    # Whether nodes have duties of their own, beside those of Evertick.
    has_duties: bool
    # Whether every job sends a message through the outbox.
    sends_messages: bool
    # Whether there is an outside queue that runs are dispatched to.
    dispatches_runs: bool

    def lines(self) -> list[str]:
        """The story as text."""
        lines = [
            f"seed {self.seed}: {len(self.nodes)} nodes with {self.nodes} slots, {self.pace.length:.0f} s, beat "
            f"{self.pace.beat:g} s, lease {self.pace.lease:g} s, poll {self.pace.poll:g} s",
            f"  {self.fault_rates}",
            *(
                f"  node {node} does not know {', '.join(unknown)}"
                for node, unknown in enumerate(self.unknown_tasks)
                if unknown
            ),
            *(f"  node {node} begins with tight limits" for node in self.tight),
            *(["  every node declares duties"] if self.has_duties else []),
            *(["  every job sends a message"] if self.sends_messages else []),
            *(["  some runs are dispatched to an outside queue"] if self.dispatches_runs else []),
        ]
        lines += [f"  schedule {plan.key}: {plan.when}; {plan.fields}" for plan in self.planned]
        lines += [
            f"  {act.at:9.3f} {act.verb} {act.about} {f'{act.seconds:.1f} s ' * bool(act.seconds)}{act.detail or ''}"
            for act in self.acts
        ]
        return lines


# The calendar of some schedules. Stories begin at 9:00.
REST = Calendar("rest", exclude=["09:00:20-09:00:35", "09:01:10-09:01:50", "09:03-09:05"])

# The blackout of some schedules.
FREEZE = Calendar("freeze", exclude=["09:00:15-09:00:30", "09:00:50-09:01:20", "09:02-09:04", "09:06-09:06:30"])

_PACES = (
    Pace(length=60, beat=3, lease=15, poll=1, step=1),
    Pace(length=150, beat=3, lease=15, poll=5, step=3),
    Pace(length=420, beat=10, lease=45, poll=15, step=10),
)
_FAULT_RATES = (
    FaultRates(),
    FaultRates(delay_seconds=0.2),
    FaultRates(delay_seconds=0.05, lost_share=0.03, unanswered_share=0.03),
    FaultRates(delay_seconds=0.02, unanswered_share=0.15),
    FaultRates(delay_seconds=0.1, slow_share=0.1, lost_share=0.1, unanswered_share=0.1),
)
_TASKS = (
    "quick", "quick", "slow", "slow", "slow", "failing", "flaky", "skipping", "overtime", "deaf", "precious",
    "precious", "asking", "talking",
)  # fmt: skip


_LIMITED_TASKS = ("capped", "keyed", "keyed_too", "rated", "rated_by_key", "rare_and_alone")
_LIMITED_SHARE = 0.35
_TIGHT_SHARE = 0.3
_OVERRIDE_SHARE = 0.4
_OUTBOX_SHARE = 0.25
_DUTIES_SHARE = 0.4
_EVERY_NODE_SHARE = 0.25
_DISPATCH_SHARE = 0.3
_DISPATCHED_TASKS = (
    "built", "built", "built", "built_failing", "built_flaky", "built_skipping", "built_once", "built_once",
    "built_capped", "built_capped", "acked", "forgotten",
)  # fmt: skip
_ENQUEUED = {"priority": 0, "expires": None, "delay": 0, "unique_key": None, "times": 1}
_TROUBLES = ("kill", "freeze", "stop", "cut_off", "outage", "blackout", "jump")


def make_story(seed: int) -> Story:
    """The story of a seed."""
    return _StoryMaker(seed).story()


class _StoryMaker:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._draw = random.Random(f"story {seed}")
        # Drawn separately, so that a new kind of act does not change the rest of a story.
        self._limit_draw = random.Random(f"limits {seed}")
        self._override_draw = random.Random(f"decisions {seed}")
        self._deployment_draw = random.Random(f"terms {seed}")
        self._every_node_draw = random.Random(f"every node {seed}")
        self._dispatch_draw = random.Random(f"handing {seed}")
        pace = self._draw.choices(_PACES, (5, 3, 1))[0]
        self._pace = msgspec.structs.replace(pace, length=pace.length * self._draw.uniform(0.7, 1.3))

    def story(self) -> Story:
        draw = self._draw
        nodes = tuple(draw.choice((1, 2, 3, 4, 8)) for _ in range(draw.choice((2, 2, 3, 3, 4, 5))))
        planned = tuple(self._planned(f"s{number}") for number in range(draw.randint(3, 9)))
        acts = [*self._faults(len(nodes)), *self._user_acts(planned)]
        unknown_tasks, fault_rates = self._unknown_tasks(len(nodes)), draw.choice(_FAULT_RATES)
        if draw.random() < 0.2:
            acts += self._falsely_dead(len(nodes))
        tight: tuple[int, ...] = ()
        if self._limit_draw.random() < _LIMITED_SHARE:
            limited = self._limited_schedules()
            planned += limited
            acts += self._limit_acts(limited)
            if self._deployment_draw.random() < _TIGHT_SHARE:
                tight = tuple(
                    self._deployment_draw.sample(range(len(nodes)), k=self._deployment_draw.randint(1, len(nodes)))
                )
                acts += self._deployment(tight)
        if self._override_draw.random() < _OVERRIDE_SHARE:
            decided = self._override_schedules()
            planned += decided
            acts += self._override_acts(decided)
        if self._every_node_draw.random() < _EVERY_NODE_SHARE:
            everywhere = self._every_node_schedules()
            planned += everywhere
            acts += self._every_node_acts(everywhere)
        dispatches_runs = self._dispatch_draw.random() < _DISPATCH_SHARE
        if dispatches_runs:
            dispatched = self._dispatched_schedules()
            planned += dispatched
            acts += self._dispatch_acts(dispatched)
        return Story(
            seed=self._seed,
            pace=self._pace,
            nodes=nodes,
            unknown_tasks=unknown_tasks,
            tight=tight,
            fault_rates=fault_rates,
            planned=planned,
            acts=tuple(sorted(acts, key=lambda act: act.at)),
            has_duties=random.Random(f"duties {self._seed}").random() < _DUTIES_SHARE,
            sends_messages=random.Random(f"outbox {self._seed}").random() < _OUTBOX_SHARE,
            dispatches_runs=dispatches_runs,
        )

    def _unknown_tasks(self, nodes: int) -> tuple[tuple[str, ...], ...]:
        """In some stories one node is older and does not know all tasks; the first node always does."""
        draw = self._draw
        older = draw.randrange(nodes) if draw.random() < 0.3 else 0
        missing = tuple(sorted(set(draw.choices(_TASKS, k=4))))
        return tuple(missing if node == older and node > 0 else () for node in range(nodes))

    # --- schedules

    def _planned(self, key: str) -> PlannedSchedule:
        return PlannedSchedule(key=key, when=self._when(), fields=self._fields())

    def _when(self) -> str:
        draw, step = self._draw, self._pace.step
        seconds = draw.choice((2, 3, 5, 7, 10, 15, 20)) * step
        kind = draw.choices(("cron", "every", "start", "end", "once"), (3, 3, 2, 2, 1))[0]
        match kind:
            case "cron":
                text = f"cron */{draw.choice((2, 3, 5, 10, 15, 20, 30))} * * * * *" if step < 10 else "cron 0 * * * * *"
            case "every":
                text = f"every {seconds:g}s"
            case "start":
                text = f"every {seconds:g}s; since=start"
            case "end":
                text = f"every {seconds:g}s; after=end"
            case _:
                text = f"once +{draw.randint(1, int(self._pace.length))}s"
        if kind != "once" and draw.random() < 0.15:
            text += f"; max_fires={draw.randint(1, 6)}"
        if kind != "end" and draw.random() < 0.3:
            text += f"; jitter={draw.choice((1, 2, 5)) * step:g}s"
            text += "; jitter_mode=fresh" if draw.random() < 0.5 else ""
        if draw.random() < 0.1:
            text += f"; calendar={REST.name}"
        return text

    def _fields(self) -> dict[str, Any]:
        draw, step = self._draw, self._pace.step
        fields: dict[str, Any] = {
            "task": draw.choice(_TASKS),
            "args": {"seconds": round(draw.choice((0.1, 1, 2, 4, 6, 12, 25)) * step * draw.uniform(0.5, 1.2), 2)},
            "catch_up": draw.choice(CATCH_UPS),
            "overlap": draw.choice(OVERLAPS),
            "priority": draw.choice((0, 0, 0, 5, 9)),
        }
        if fields["catch_up"] == "all":
            fields["catch_up_limit"] = draw.choice((1, 3, 10, 100))
            fields["pace"] = draw.choice((200_000, 1_000_000, 3_000_000))
        if draw.random() < 0.15:
            fields["grace"] = int(draw.choice((1, 5, 20)) * step * 1_000_000)
        if draw.random() < 0.15:
            fields["expires"] = int(draw.choice((1, 3, 10, 30)) * step * 1_000_000)
        return fields

    # --- limits and unique keys

    def _limited_schedules(self) -> tuple[PlannedSchedule, ...]:
        draw, step = self._limit_draw, self._pace.step
        planned = []
        for number in range(draw.choice((0, 1, 2))):
            fields = {**self._limited_task(), "catch_up": draw.choice(CATCH_UPS), "overlap": draw.choice(OVERLAPS)}
            if draw.random() < 0.5:
                fields |= {"unique": draw.choice(("u1", "u3")), **self._unique_term()}
            planned.append(
                PlannedSchedule(key=f"l{number}", when=f"every {draw.choice((1, 2, 4)) * step:g}s", fields=fields)
            )
        return tuple(planned)

    def _limit_acts(self, planned: tuple[PlannedSchedule, ...]) -> list[Act]:
        """Bursts of limited runs, some cancelled, and repeated enqueues of one unique key."""
        draw, pace = self._limit_draw, self._pace
        acts = [Act(at=draw.uniform(0, 2), verb="add", about=plan.key, detail=_detail(plan)) for plan in planned]
        for number in range(draw.choice((1, 2, 3))):
            at, detail = draw.uniform(1, pace.length * 0.6), {**_ENQUEUED, **self._limited_task()}
            detail |= {"times": draw.choice((2, 4, 7)), "priority": draw.choice((0, 0, 5))}
            if draw.random() < 0.4:
                detail["expires"] = int(draw.choice((1, 4)) * pace.step * 1_000_000)
            acts.append(Act(at=at, verb="enqueue", about=f"limited{number}", detail=detail))
            if draw.random() < 0.5:
                acts.append(Act(at=at + draw.uniform(0.5, 5), verb="cancel", about=str(draw.randrange(1_000))))
        if draw.random() < 0.5:
            key, term, begun = draw.choice(("u1", "u3")), self._unique_term(), draw.uniform(1, pace.length * 0.5)
            for number in range(4):
                detail = {**_ENQUEUED, **self._limited_task(), "unique_key": key, **term}
                at = begun + draw.uniform(0, 5) * pace.step
                acts.append(Act(at=at, verb="enqueue", about=f"unique{number}", detail=detail))
        return acts

    def _limited_task(self) -> dict[str, Any]:
        draw, step = self._limit_draw, self._pace.step
        task = draw.choice(_LIMITED_TASKS)
        args: dict[str, Any] = {"seconds": round(draw.choice((1, 4, 8)) * step * draw.uniform(0.5, 1.2), 2)}
        if task in ("keyed", "keyed_too", "rated_by_key"):
            args["key"] = draw.choice(("a", "b"))
        return {"task": task, "args": args}

    def _deployment(self, tight: tuple[int, ...]) -> list[Act]:
        """The nodes with tight limits stop one after the other, and restart with wider ones."""
        draw, pace = self._deployment_draw, self._pace
        acts = []
        for slot in tight:
            at = draw.uniform(0.2, 0.8) * pace.length
            detail = {**_ENQUEUED, "task": draw.choice(("capped", "rated", "rated_by_key")), "args": {"seconds": 1.0}}
            burst = {**detail, "times": draw.choice((2, 4))}
            acts.append(Act(at=at - draw.uniform(0.5, 4), verb="enqueue", about=f"before{slot}", detail=burst))
            acts.append(Act(at=at, verb="stop", about=str(slot), seconds=draw.choice((0, 1, 5))))
            acts.append(Act(at=at + draw.choice((6, 10, pace.lease)), verb="start", about=str(slot)))
        return acts

    def _unique_term(self) -> dict[str, Any]:
        draw, step = self._limit_draw, self._pace.step
        period = int(draw.choice((3, 10)) * step * 1_000_000)
        return draw.choice(({}, {"unique_until": "start"}, {"unique_for": period}))

    # --- every-node schedules

    def _every_node_schedules(self) -> tuple[PlannedSchedule, ...]:
        draw, step = self._every_node_draw, self._pace.step
        return tuple(
            PlannedSchedule(
                key=f"a{number}", when=f"every {draw.choice((2, 3, 5)) * step:g}s", fields=self._every_node_fields()
            )
            for number in range(draw.choice((1, 2)))
        )

    def _every_node_fields(self) -> dict[str, Any]:
        draw, step = self._every_node_draw, self._pace.step
        return {
            "task": draw.choice(("quick", "slow", "slow", "failing", "flaky", "precious")),
            "args": {"seconds": round(draw.choice((0.5, 2, 6)) * step * draw.uniform(0.5, 1.2), 2)},
            "catch_up": draw.choice(("latest", "skip")),
            "overlap": draw.choice(("skip", "skip", "allow")),
            "mode": "every-node",
        }

    def _every_node_acts(self, planned: tuple[PlannedSchedule, ...]) -> list[Act]:
        draw, pace = self._every_node_draw, self._pace
        acts = [Act(at=draw.uniform(0, 2), verb="add", about=plan.key, detail=_detail(plan)) for plan in planned]
        for _ in range(draw.choice((0, 3, 6))):
            at, key = draw.uniform(2, pace.length), draw.choice(planned).key
            verbs: tuple[Verb, ...] = ("trigger", "edit", "pause", "resume", "remove")
            verb = draw.choices(verbs, (4, 2, 2, 3, 0.5))[0]
            detail = {"fields": self._every_node_fields()} if verb == "edit" else {}
            acts.append(Act(at=at, verb=verb, about=key, detail=detail))
        return acts

    # --- runs dispatched to an outside queue

    def _dispatched_schedules(self) -> tuple[PlannedSchedule, ...]:
        draw, step = self._dispatch_draw, self._pace.step
        planned = []
        for number in range(draw.choice((1, 2, 3))):
            fields = {**self._dispatched_task(), "catch_up": draw.choice(CATCH_UPS), "overlap": draw.choice(OVERLAPS)}
            when = f"every {draw.choice((2, 3, 5)) * step:g}s{draw.choice(('', '', '; after=end'))}"
            if draw.random() < 0.25:
                fields |= {"mode": "every-node", "catch_up": "latest", "overlap": "skip"}
                when = f"every {draw.choice((2, 3, 5)) * step:g}s"
            planned.append(PlannedSchedule(key=f"h{number}", when=when, fields=fields))
        return tuple(planned)

    def _dispatch_acts(self, planned: tuple[PlannedSchedule, ...]) -> list[Act]:
        """Bursts of runs, some cancelled, and outages of the queue."""
        draw, pace = self._dispatch_draw, self._pace
        acts = [Act(at=draw.uniform(0, 2), verb="add", about=plan.key, detail=_detail(plan)) for plan in planned]
        for number in range(draw.choice((1, 2, 4))):
            at, detail = draw.uniform(1, pace.length * 0.7), {**_ENQUEUED, **self._dispatched_task()}
            detail |= {"times": draw.choice((1, 3, 8)), "unique_key": None}
            acts.append(Act(at=at, verb="enqueue", about=f"dispatched{number}", detail=detail))
            if draw.random() < 0.7:
                acts.append(Act(at=at + draw.uniform(0.2, 5), verb="cancel", about=str(draw.randrange(1_000))))
        for _ in range(draw.choice((0, 1, 2))):
            at, seconds = draw.uniform(1, pace.length * 0.8), draw.choice((2, 8, 20))
            acts.append(Act(at=at, verb="queue_away", seconds=seconds))
            detail = {**_ENQUEUED, **self._dispatched_task(), "times": 3, "priority": 9}
            acts.append(Act(at=at + 0.1, verb="enqueue", about="meanwhile", detail=detail))
            acts += [Act(at=at + 1.5, verb="cancel", about=str(draw.randrange(1_000))) for _ in range(3)]
        return acts

    def _dispatched_task(self) -> dict[str, Any]:
        draw, step = self._dispatch_draw, self._pace.step
        args = {
            "seconds": round(draw.choice((0.2, 2, 5)) * step * draw.uniform(0.5, 1.2), 2),
            "ack": draw.choice((3, 6)) * step,
            "progress": draw.choice((2, 3)) * step,
        }
        return {"task": draw.choice(_DISPATCHED_TASKS), "args": args}

    # --- faults

    def _faults(self, nodes: int) -> list[Act]:
        draw, pace = self._draw, self._pace
        acts = []
        for _ in range(draw.choice((0, 1, 2, 3, 4, 6))):
            at, slot = draw.uniform(3, pace.length * 0.85), str(draw.randrange(nodes))
            match draw.choices(_TROUBLES, (4, 3, 2, 2, 2, 2, 1))[0]:
                case "kill":
                    acts.append(Act(at=at, verb="kill", about=slot))
                    acts.append(Act(at=at + draw.choice((0.5, 5, pace.lease * 1.5)), verb="start", about=slot))
                case "freeze":
                    seconds = draw.choice((1, pace.lease * 0.7, pace.lease * 1.2, pace.lease * 2))
                    acts.append(Act(at=at, verb="freeze", about=slot, seconds=seconds))
                case "stop":
                    acts.append(Act(at=at, verb="stop", about=slot, seconds=draw.choice((0, 1, 5))))
                    acts.append(Act(at=at + draw.choice((10, pace.lease * 1.5)), verb="start", about=slot))
                case "cut_off":
                    seconds = draw.choice((2, pace.lease * 0.8, pace.lease * 1.5))
                    acts.append(Act(at=at, verb="cut_off", about=slot, seconds=seconds))
                case "outage":
                    seconds = draw.choice((1, 5, pace.lease * 0.8, pace.lease * 1.3, pace.lease * 2))
                    acts.append(Act(at=at, verb="outage", seconds=seconds))
                case "blackout":
                    acts.append(Act(at=at, verb="blackout", seconds=draw.choice((3, pace.lease, 70, 30 * pace.step))))
                case _:
                    acts.append(Act(at=at, verb="jump", about=slot, seconds=draw.choice((-3600, -30, 30, 86400))))
        return acts

    def _falsely_dead(self, nodes: int) -> list[Act]:
        """A node is declared dead during a long job, and does not know it."""
        draw, pace = self._draw, self._pace
        at, slot = draw.uniform(3, pace.length * 0.4), str(draw.randrange(nodes))
        long = {"task": draw.choice(("talking", "slow", "flaky")), "args": {"seconds": round(pace.lease * 1.6, 1)}}
        verb: Verb = draw.choice(("freeze", "cut_off"))
        return [
            Act(at=at, verb="enqueue", about="long", detail={**_ENQUEUED, **long, "times": 2 * nodes, "priority": 9}),
            Act(at=at + pace.poll + 2, verb=verb, about=slot, seconds=pace.lease * draw.uniform(1.2, 1.6)),
        ]

    # --- overrides and blackouts

    def _override_schedules(self) -> tuple[PlannedSchedule, ...]:
        draw, step = self._override_draw, self._pace.step
        planned = []
        for number in range(draw.choice((1, 2, 3))):
            fields = {
                "task": draw.choice(("quick", "slow", "slow", "flaky")),
                "args": {"seconds": round(draw.choice((1, 4, 8)) * step * draw.uniform(0.5, 1.2), 2)},
                "overlap": draw.choice(OVERLAPS),
                **self._override_fields(),
            }
            if draw.random() < 0.6:
                fields["blackout"] = FREEZE.name
            planned.append(PlannedSchedule(key=f"d{number}", when=self._override_when(), fields=fields))
        return tuple(planned)

    def _override_when(self) -> str:
        draw, seconds = self._override_draw, self._override_draw.choice((2, 3, 5, 7)) * self._pace.step
        text = draw.choice(
            (f"every {seconds:g}s", f"every {seconds:g}s; since=start", f"every {seconds:g}s; after=end")
        )
        if "after" not in text and draw.random() < 0.3:
            text += f"; jitter={seconds:g}s; jitter_mode={draw.choice(('stable', 'fresh'))}"
        return text

    def _override_fields(self) -> dict[str, Any]:
        draw, step = self._override_draw, self._pace.step
        return {
            "catch_up": draw.choice(CATCH_UPS),
            "catch_up_limit": draw.choice((2, 100)),
            "blackout_fate": draw.choice(BLACKOUT_FATES),
            "grace": draw.choice((None, None, int(5 * step * 1_000_000))),
        }

    def _override_acts(self, planned: tuple[PlannedSchedule, ...]) -> list[Act]:
        draw, pace = self._override_draw, self._pace
        acts = [Act(at=draw.uniform(0, 2), verb="add", about=plan.key, detail=_detail(plan)) for plan in planned]
        for _ in range(draw.choice((6, 12, 20))):
            at, key = draw.uniform(2, pace.length), draw.choice(planned).key
            verbs: tuple[Verb, ...] = ("skip_next", "move", "run_early", "undo", "edit", "pause", "resume", "remove")
            verb = draw.choices(verbs, (5, 6, 4, 3, 2, 1, 2, 0.3))[0]
            acts.append(Act(at=at, verb=verb, about=key, detail=self._override_detail(verb)))
        return acts

    def _override_detail(self, verb: Verb) -> dict[str, Any]:
        draw, step = self._override_draw, self._pace.step
        match verb:
            case "move":
                return {"ahead": draw.choice((1, 1, 2, 5)), "after": round(draw.uniform(0.1, 30) * step, 3)}
            case "edit":
                detail: dict[str, Any] = {"fields": self._override_fields()}
                return detail | ({"when": self._override_when()} if draw.random() < 0.4 else {})
            case "pause":
                return {"until": 5 * step} if draw.random() < 0.5 else {}
            case _:
                return {}

    # --- acts of users

    def _user_acts(self, planned: tuple[PlannedSchedule, ...]) -> list[Act]:
        draw, pace = self._draw, self._pace
        acts = [Act(at=draw.uniform(0, 2), verb="add", about=plan.key, detail=_detail(plan)) for plan in planned]
        for number in range(draw.choice((2, 5, 10, 15))):
            at, key = draw.uniform(2, pace.length), draw.choice(planned).key
            verb: Verb = draw.choices(
                ("edit", "pause", "resume", "remove", "trigger", "enqueue", "cancel"), (3, 3, 3, 1, 3, 4, 3)
            )[0]
            acts.append(self._user_act(at, verb, key, number))
            if verb == "remove" and draw.random() < 0.7:
                again = PlannedSchedule(key=key, when=self._when(), fields=self._fields())
                acts.append(Act(at=at + draw.uniform(0.1, 20), verb="add", about=key, detail=_detail(again)))
        return acts

    def _user_act(self, at: float, verb: Verb, key: str, number: int) -> Act:
        draw, step = self._draw, self._pace.step
        match verb:
            case "edit":
                detail: dict[str, Any] = {"fields": self._edit()}
                if draw.random() < 0.5:
                    detail["when"] = self._when()
                return Act(at=at, verb=verb, about=key, detail=detail)
            case "pause":
                until = draw.choice((None, None, 3 * step, 20 * step))
                return Act(at=at, verb=verb, about=key, detail={} if until is None else {"until": until})
            case "enqueue":
                return Act(at=at, verb=verb, about=f"e{number}", detail=self._enqueued())
            case "cancel":
                return Act(at=at, verb=verb, about=str(draw.randrange(1_000)))
            case _:
                return Act(at=at, verb=verb, about=key)

    def _edit(self) -> dict[str, Any]:
        fields = self._fields()
        names = self._draw.sample(sorted(fields), k=self._draw.randint(1, len(fields)))
        return {name: fields[name] for name in names}

    def _enqueued(self) -> dict[str, Any]:
        draw, fields = self._draw, self._fields()
        return {
            "task": "deadly" if draw.random() < 0.12 else fields["task"],
            "args": fields["args"],
            "priority": fields["priority"],
            "expires": fields.get("expires"),
            "delay": draw.choice((0, 0, 0, 2_000_000, 10_000_000)),
            "unique_key": draw.choice((None, None, "u1", "u2")),
            "times": draw.choice((1, 1, 1, 2, 5)),
        }


def _detail(plan: PlannedSchedule) -> dict[str, Any]:
    return {"when": plan.when, "fields": plan.fields}
