"""People who add, edit, pause, resume, remove, trigger, enqueue, cancel and decide about single moments.

They go over the same bad ways as the nodes.

They hear "unavailable" without knowing whether their change was made. What they meant and what they heard is noted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from evertick.errors import EvertickError, StoreUnavailable
from evertick.ledger.editor import Addition
from evertick.ledger.override_editor import OverrideEditor
from evertick.model import Cause, Definition, NewRun
from evertick.store.base import ScheduleFilter, Store
from evertick.when import parse_when
from simulation.clock import NodeClock, TrueClock
from simulation.journal import Deed, Journal
from simulation.story import Act

__all__ = ["APP", "People"]

APP = "sim"


class People:
    """Carry out the acts of people."""

    def __init__(self, far_store: Callable[[str], Store], clock: NodeClock, truth: TrueClock, journal: Journal) -> None:
        self._far_store = far_store
        self._clock = clock
        self._truth = truth
        self._journal = journal
        self._count = 0

    async def do(self, act: Act, live_runs: list[str]) -> None:
        person = self._somebody()
        try:
            heard = await person.do(act, live_runs)
        except EvertickError as error:
            heard = f"{type(error).__name__}: {error}"
        self._journal.add(Deed(self._truth.now_us(), person.name, act.verb, act.about, str(heard)))

    async def pause_all(self) -> None:
        await self._somebody().pause_all()

    async def remove_all(self) -> None:
        await self._somebody().remove_all()

    def _somebody(self) -> _Person:
        """Everybody does one thing: what was read for one change is not mistaken for what was read for another."""
        self._count += 1
        name = f"people.{self._count}"
        return _Person(name, self._far_store(name), self._clock)


class _Person:
    def __init__(self, name: str, store: Store, clock: NodeClock) -> None:
        self.name = name
        self._store = store
        self._clock = clock
        self._editor = OverrideEditor(store, APP, clock, "UTC")

    async def do(self, act: Act, live_runs: list[str]) -> object:
        key, detail, editor = act.about, act.detail, self._editor
        match act.verb:
            case "add":
                definition = Definition(when="", **detail["fields"])
                return await editor.add([Addition(key=key, rule=parse_when(detail["when"]), definition=definition)])
            case "edit":
                rule = parse_when(detail["when"]) if "when" in detail else None
                await editor.edit(key, lambda before: msgspec.structs.replace(before, **detail["fields"]), rule=rule)
            case "pause":
                until = detail.get("until")
                ends = None if until is None else await self._store.now() + int(until * 1_000_000)
                await editor.pause(key, note="by people", until=ends)
            case "resume":
                return await editor.resume(key)
            case "remove":
                await editor.remove(key)
            case "trigger":
                return await editor.trigger(key)
            case "skip_next":
                return await editor.skip_next(key)
            case "move":
                return await self._move(key, detail)
            case "run_early":
                return await editor.run_early(key)
            case "undo":
                return await editor.undo(key)
            case "enqueue":
                return await self._enqueue(detail)
            case "cancel":
                if not live_runs:
                    return "nothing to cancel"
                return await self._store.cancel(APP, [live_runs[int(key) % len(live_runs)]], "people")
            case _:
                raise AssertionError(f"people do not {act.verb}")
        return "done"

    async def _move(self, key: str, detail: dict[str, Any]) -> object:
        """One of the next moments, to some time from now on."""
        found, now = await self._store.stored_schedules(APP, keys=[key]), await self._store.now()
        moment: int | None = now
        for stored in found:
            for _ in range(detail["ahead"]):
                moment = None if moment is None else parse_when(stored.definition.when).next_us(moment)
        if moment is None or not found:
            return "nothing to move"
        await self._editor.move(key, moment, to=now + int(detail["after"] * 1_000_000))
        return moment

    async def _enqueue(self, detail: dict[str, Any]) -> object:
        runs = [
            NewRun(
                id=self._clock.new_id(),
                task=detail["task"],
                cause=Cause.ENQUEUE,
                args=msgspec.json.encode(detail["args"]),
                priority=detail["priority"],
                expires=detail["expires"],
                delay=detail["delay"],
                unique_key=detail["unique_key"],
                unique_until=detail.get("unique_until", "end"),
                unique_for=detail.get("unique_for"),
            )
            for _ in range(detail["times"])
        ]
        # The same ids again: an answer that was lost must not make two of one.
        return await self._insist(lambda: self._store.enqueue(APP, runs))

    async def pause_all(self) -> None:
        """Whatever it takes."""
        for schedule in await self._insist(lambda: self._store.schedules(APP, ScheduleFilter())):
            await self._insist(partial(self._editor.pause, schedule.key, note="the end"))

    async def remove_all(self) -> None:
        for schedule in await self._insist(lambda: self._store.schedules(APP, ScheduleFilter())):
            await self._insist(partial(self._editor.remove, schedule.key))

    async def _insist(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        while True:
            try:
                return await ask()
            except StoreUnavailable:
                await asyncio.sleep(0.5)
