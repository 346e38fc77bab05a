"""A world with one store and many nodes, in which a story takes place.

The nodes are real engines; only time, the way to the store and their jobs are made up. A node that is killed never runs
another line, one that is frozen goes on later as if nothing had been, one that is stopped drains. After the story
everything is healed, people pause every schedule, and what is still under way gets its time to end.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import sqlite3
from collections.abc import Callable

from evertick.engine.engine import Engine, EngineSettings
from evertick.engine.node import LocalNode
from evertick.engine.progress import log_capture
from evertick.errors import StoreUnavailable
from evertick.job.context import Context
from evertick.ledger.editor import Editor
from evertick.model import Message
from evertick.model.duty import DutyContext
from evertick.model.hooks import Hooks
from evertick.store.base import Store
from evertick.store.sqlite import SqliteStore
from evertick.store.sqlite.session import InlineSession
from simulation.clock import NodeClock, TrueClock
from simulation.dispatched import DISPATCHED_WORKS
from simulation.duties import duties_of
from simulation.faults import FarStore, Weather
from simulation.jobs import TIGHT_WORKS, WORKS, Employer
from simulation.journal import Deed, Dispatching, DutyAct, Errand, Job, Journal
from simulation.loop import Machine, VirtualLoop
from simulation.people import APP, People
from simulation.queue import OutsideQueue
from simulation.senders import CHANNEL, Deliveries, Word
from simulation.story import FREEZE, REST, Act, Story

__all__ = ["NodeMachine", "World"]

_STOP_SECONDS = 5.0


async def _no_threads(function: Callable[[], object]) -> object:
    raise AssertionError("a simulation has no threads")


class NodeMachine(Employer):
    """A process with an engine in it."""

    def __init__(self, world: World, slot: int, number: int, concurrency: int) -> None:
        super().__init__(f"n{slot}.{number}")
        self.slot = slot
        self.witness = self
        self._world = world
        pace, seed = world.story.pace, f"{world.story.seed} {self.label}"
        # Drawn for each apart: who was started before it, and how often, makes no difference to it.
        chance = random.Random(f"machine {seed}")
        self.clock = NodeClock(
            world.loop,
            seed,
            skew=chance.choice((0.0, 0.0, -2.5, 40.0, -3600.0)),
            drift=chance.choice((0.0, 0.0005, -0.0005)),
        )
        store = world.far_store(self.label)
        works = TIGHT_WORKS if number == 0 and slot in world.story.tight else WORKS
        works = works | DISPATCHED_WORKS if world.story.hands else works
        senders = {CHANNEL: Deliveries(self.hear_sender, self.die).sender()} if world.story.sends else {}
        self.node = LocalNode(
            name=f"n{slot}",
            app=APP,
            version="1",
            store=store,
            clock=self.clock,
            works={task: work for task, work in works.items() if task not in world.story.lacks[slot]},
            queues=("default",),
            concurrency=concurrency,
            lease=int(pace.lease * 1_000_000),
            hooks=Hooks(_no_threads),
            declares={},
            senders=senders | (world.queue.senders() if world.story.hands else {}),
            sources=[world.queue] if world.story.hands else (),
        )
        self.sends = world.story.sends
        editor = Editor(store, APP, self.clock, "UTC")
        settings = EngineSettings(poll=pace.poll, beat=pace.beat, heartbeat_in_thread=False)
        duties = duties_of(self.hear_duty, pace.step) if world.story.has_duties else []
        self._engine = Engine(self.node, editor, settings, duties)
        self._stop_asked = asyncio.Event()
        self._stop_seconds = 0.0
        self.is_gone = False

    async def live(self) -> None:
        while not self._stop_asked.is_set():
            try:
                await self._engine.start()
                break
            except StoreUnavailable:
                await asyncio.sleep(1)
        else:
            self.is_gone = True
            return
        self._world.note(self.label, "up", self.node.id)
        await self._stop_asked.wait()
        await self._engine.stop(self._stop_seconds)
        self.is_gone = True
        self._world.note(self.label, "gone", self.node.id)

    def request_stop(self, seconds: float) -> None:
        self._stop_seconds = seconds
        self._stop_asked.set()

    @property
    def is_over(self) -> bool:
        return self.is_dead or self.is_gone

    def die(self) -> None:
        self._world.let_die(self)

    def hear(self, what: str, context: Context, cause: str = "") -> None:
        if not self._world.is_over:
            at, run = self._world.clock.now_us(), context.run_id
            job = Job(at, what, run, context.fence, self.label, context.attempt, context.task, cause)
            self._world.journal.add(job)

    def hear_duty(self, context: DutyContext) -> None:
        if not self._world.is_over:
            at = self._world.clock.now_us()
            self._world.journal.add(DutyAct(at, context.name, context.term, context.node, self.label))

    def hear_sender(self, what: Word, message: Message) -> None:
        if not self._world.is_over:
            at, node = self._world.clock.now_us(), message.node or ""
            self._world.journal.add(Dispatching(at, what, message.id, node, self.label, message.attempts))


class World:
    """Everything there is in one simulation."""

    def __init__(self, story: Story, prepare: Callable[[sqlite3.Connection], object] | None = None) -> None:
        self.story = story
        # What a planted bug does to the tables before anything happens.
        self._prepare = prepare
        self.loop = VirtualLoop(f"loop {story.seed}")
        self.clock = TrueClock(self.loop, f"store {story.seed}")
        self.journal = Journal()
        self.weather = Weather(story.climate, f"weather {story.seed}")
        self.store = SqliteStore("sqlite://", clock=self.clock, is_inline=True)
        self.queue = OutsideQueue(self.loop, f"queue {story.seed}", self._hear_errand, self.clock.now_us)
        self.machines: list[NodeMachine] = []
        self.is_over = False
        # Set when what is live after healing has all come to its end.
        self.is_settled = False
        self._is_ending = False
        self._calls = [0]
        self._deeds: list[asyncio.Task[None]] = []

    def far_store(self, who: str) -> Store:
        return FarStore(self.store, who, self.weather, self.clock, self.journal, self._calls).as_store()

    def note(self, who: str, what: str, about: str = "") -> None:
        if not self.is_over:
            self.journal.add(Deed(self.clock.now_us(), who, what, about))

    def _hear_errand(self, errand: Errand) -> None:
        if not self.is_over:
            self.journal.add(errand)

    async def run(self) -> None:
        """The story, its healing, and the end."""
        await self.store.open(migrate="auto")
        if self._prepare is not None:
            self._prepare(self.database)
        for calendar in (REST, FREEZE):
            await self.store.put_calendar(APP, calendar.name, calendar.version, calendar.to_json().encode())
        self.journal.watch(self.database)
        self._people_machine = Machine("people")
        people_clock = NodeClock(self.loop, f"{self.story.seed} people", skew=7.0, drift=0.0)
        self._people = People(self.far_store, people_clock, self.clock, self.journal)
        self._start_all()
        for act in self.story.acts:
            await self._sleep_until(act.at)
            self._do(act)
        await self._sleep_until(self.story.pace.length)
        await self._heal()
        await self._settle()
        await self._stop_all()

    async def _sleep_until(self, at: float) -> None:
        if at > self.loop.time():
            await asyncio.sleep(at - self.loop.time())

    # --- acts

    def _do(self, act: Act) -> None:
        self.note("story", act.verb, act.about)
        match act.verb:
            case "kill" | "freeze" | "stop" | "start" | "jump" | "cut_off":
                self._do_to_node(act, int(act.about))
            case "outage":
                self._break(None, act.seconds)
            case "blackout":
                self._black_out(act.seconds)
            case "queue_away":
                self.queue.go_away()
                self.loop.call_later(act.seconds, self.queue.come_back)
            case _:
                runs = self.live_runs()
                self._deeds.append(self.loop.start(self._people_machine, self._people.do(act, runs)))

    def _do_to_node(self, act: Act, slot: int) -> None:
        machine = self._current(slot)
        if act.verb == "start":
            if machine is None:
                self._start(slot)
            return
        if machine is None:
            return
        match act.verb:
            case "kill":
                self._kill(machine)
            case "freeze":
                self._freeze(machine, act.seconds)
            case "stop":
                self._stop(machine, act.seconds)
            case "jump":
                machine.clock.jump(act.seconds)
            case _:
                self._break(f"n{slot}", act.seconds)

    def _current(self, slot: int) -> NodeMachine | None:
        return next((each for each in self.machines if each.slot == slot and not each.is_over), None)

    def _start(self, slot: int) -> None:
        number = sum(each.slot == slot for each in self.machines)
        machine = NodeMachine(self, slot, number, self.story.nodes[slot])
        self.machines.append(machine)
        self.loop.start(machine, machine.live())

    def _kill(self, machine: NodeMachine) -> None:
        self.note(machine.label, "killed", machine.node.id)
        self.loop.kill(machine)

    def let_die(self, machine: NodeMachine) -> None:
        """A job has taken its node down; somebody starts it again."""
        self._kill(machine)
        # Not on the machine that has just died.
        self.loop.call_later(1.0, self._start_all, context=contextvars.Context())

    def _black_out(self, seconds: float) -> None:
        """Everybody dies at once, and everybody comes back at once."""
        for machine in self.machines:
            if not machine.is_over:
                self._kill(machine)
        self.loop.call_later(seconds, self._start_all)

    def _start_all(self) -> None:
        if self._is_ending:
            return
        for slot in range(len(self.story.nodes)):
            if self._current(slot) is None:
                self._start(slot)

    def _stop(self, machine: NodeMachine, seconds: float) -> None:
        self.note(machine.label, "stopping", str(seconds))
        machine.request_stop(seconds)

    def _freeze(self, machine: NodeMachine, seconds: float) -> None:
        if machine.is_frozen:
            return
        self.note(machine.label, "frozen", machine.node.id)
        self.loop.freeze(machine)
        self.loop.call_later(seconds, self._thaw, machine)

    def _thaw(self, machine: NodeMachine) -> None:
        if machine.is_frozen and not machine.is_over:
            self.note(machine.label, "thawed", machine.node.id)
            self.loop.thaw(machine)

    def _break(self, who: str | None, seconds: float) -> None:
        self.weather.break_for(who)
        self.note(who or "store", "broken")
        self.loop.call_later(seconds, self._mend, who)

    def _mend(self, who: str | None) -> None:
        if self.weather.is_broken(who or ""):
            self.weather.mend_for(who)
            self.note(who or "store", "mended")

    # --- the end

    async def _heal(self) -> None:
        self.note("story", "healed")
        self.weather.heal()
        self.queue.heal()
        for machine in self.machines:
            self._thaw(machine)
        self._start_all()
        pace = self.story.pace
        await asyncio.sleep(pace.lease + 3 * pace.beat + 3 * pace.poll)
        if any(machine.is_over for machine in self.machines):
            # One was still stopping when all were started.
            self._start_all()
            await asyncio.sleep(pace.lease + 3 * pace.beat + 3 * pace.poll)

    async def _settle(self) -> None:
        await asyncio.gather(*self._deeds)
        await self.loop.start(self._people_machine, self._people.pause_all())
        self.note("story", "all paused")
        await self._wait_for_runs()
        self.note("story", "settled" if self.is_settled else "not settled")
        if self.is_settled:
            # Closes the account of every schedule: whatever was still to come of it gets its row now. Of what has not
            # settled nothing is taken away: it is to be seen.
            await self.loop.start(self._people_machine, self._people.remove_all())

    async def _wait_for_runs(self) -> None:
        """Until nothing is live any more, or nothing has changed for longer than any job takes."""
        pace = self.story.pace
        # The longest job of a story talks for 2 * 25 * 1.2 steps.
        patience = 2 * pace.lease + 70 * pace.step + 30
        live, moved_at = self._unsettled(), self.loop.time()
        while live and self.loop.time() - moved_at < patience:
            await asyncio.sleep(pace.lease / 5)
            before, live = live, self._unsettled()
            moved_at = moved_at if before == live else self.loop.time()
        self.is_settled = not live

    async def _stop_all(self) -> None:
        self._is_ending = True
        for machine in self.machines:
            if not machine.is_over:
                self._stop(machine, _STOP_SECONDS)
        for _ in range(120):
            if all(machine.is_over for machine in self.machines):
                return
            await asyncio.sleep(0.5)

    @property
    def database(self) -> sqlite3.Connection:
        """The store's own connection, for those who look at the tables."""
        line = self.store.session()
        assert isinstance(line, InlineSession), "the store is open and inline"
        return line.shared.db

    def live_runs(self) -> list[str]:
        return [row[0] for row in self.database.execute("SELECT id FROM evertick_runs ORDER BY id")]

    def _unsettled(self) -> list[str]:
        """Live runs and messages, with their tries so far: a long queue on few slots moves, though none comes to its
        end for a long time. There are only so many tries, so this cannot go on for ever."""
        runs = "SELECT id || ' ' || attempts || ' ' || losses FROM evertick_runs ORDER BY id"
        messages = "SELECT id || ' ' || attempts FROM evertick_outbox WHERE forget_at IS NULL ORDER BY id"
        return [row[0] for query in (runs, messages) for row in self.database.execute(query)]

    def close(self) -> None:
        self.is_over = True
        # Those that were killed have not signed off from it.
        log_capture.remove_all()
        self.database.close()
        self.loop.end()
