"""Users who add, edit, pause, resume, remove, trigger, enqueue, cancel and set overrides.

They use the same faulty network as the nodes: after "unavailable" they do not know whether their change was made. Each
action is recorded with its answer.
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
from simulation.journal import Action, Journal
from simulation.story import Act

__all__ = ["APP", "People"]

APP = "sim"


class People:
    """Carries out the acts of users, each as a new user."""

    def __init__(
        self, remote_store: Callable[[str], Store], clock: NodeClock, truth: TrueClock, journal: Journal
    ) -> None:
        self._remote_store = remote_store
        self._clock = clock
        self._truth = truth
        self._journal = journal
        self._count = 0

    async def do(self, act: Act, live_runs: list[str]) -> None:
        person = self._next_person()
        try:
            answer = await person.do(act, live_runs)
        except EvertickError as error:
            answer = f"{type(error).__name__}: {error}"
        self._journal.add(Action(self._truth.now_us(), person.name, act.verb, act.about, str(answer)))

    async def pause_all(self) -> None:
        await self._next_person().pause_all()

    async def remove_all(self) -> None:
        await self._next_person().remove_all()

    def _next_person(self) -> _Person:
        """Each user does one thing, so that the reads of different changes are not mixed up."""
        self._count += 1
        name = f"people.{self._count}"
        return _Person(name, self._remote_store(name), self._clock)


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
                raise AssertionError(f"unknown act {act.verb}")
        return "done"

    async def _move(self, key: str, detail: dict[str, Any]) -> object:
        """Move one of the next moments to a later time."""
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
        # A repeated call has the same ids, so that a lost answer causes no second run.
        return await self._retry(lambda: self._store.enqueue(APP, runs))

    async def pause_all(self) -> None:
        """Pause every schedule, and repeat calls until they succeed."""
        for schedule in await self._retry(lambda: self._store.schedules(APP, ScheduleFilter())):
            await self._retry(partial(self._editor.pause, schedule.key, note="the end"))

    async def remove_all(self) -> None:
        for schedule in await self._retry(lambda: self._store.schedules(APP, ScheduleFilter())):
            await self._retry(partial(self._editor.remove, schedule.key))

    async def _retry(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        while True:
            try:
                return await ask()
            except StoreUnavailable:
                await asyncio.sleep(0.5)
