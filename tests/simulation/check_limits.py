"""Concurrency limits and rates are never exceeded, and no run stays blocked for ever.

The limits are defined here a second time. The limit key of a run is the one that its job recorded.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulation.evidence import SECOND, Evidence
from simulation.replay import Call, Ledger, Row

__all__ = ["check_limits"]

_AT_ONCE = {"capped": 2, "keyed": 1, "keyed_too": 2, "rare_and_alone": 1}
_PER_PERIOD = {"rated": (3, 10 * SECOND), "rated_by_key": (2, 6 * SECOND), "rare_and_alone": (2, 8 * SECOND)}


def check_limits(evidence: Evidence) -> Iterator[str]:
    checker = _Checker(evidence)
    for call in evidence.calls:
        yield from (f"{call.intent} #{call.number} by {call.who}: {found}" for found in checker.step(call))
    yield from checker.rates()


class _Checker:
    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._ledger = Ledger()
        starts = [job for job in evidence.jobs if job.what == "started" and job.cause]
        self._key_of = {job.run: job.cause for job in starts}
        self._starts = {(job.run, job.fence): job.at for job in starts}
        # Claims by task and key: their time, and the start of their job, if any.
        self._claims: dict[tuple[str, str], list[tuple[int, int | None]]] = {}

    def step(self, call: Call) -> Iterator[str]:
        # Most calls do not concern limits.
        before = dict(self._ledger.limits)
        rows = [change.row for change in call.changes if change.table in ("runs", "history")]
        old = {row["id"]: self._ledger.live.get(row["id"]) for row in rows}
        claimed: list[Row] = []
        for change in call.changes:
            was = self._ledger.live.get(change.row["id"]) if change.table == "runs" else None
            self._ledger.apply(change)
            if change.table == "runs" and change.row["state"] == "running" and _is_claimed(was, change.row):
                claimed.append(change.row)
        # One call claims all its runs at once: check the tasks with lower limits first.
        claimed.sort(key=lambda row: _AT_ONCE.get(row["task"], 0))
        for number, row in enumerate(claimed):
            yield from self._check_claim(call, row, {later["id"] for later in claimed[number + 1 :]})
        if any(_concerns_limits(old[row["id"]], row) for row in rows) or before != self._ledger.limits:
            yield from self._check_blocked_runs()
        if call.intent == "claim":
            yield from self._check_due_keys(call)
        if call.intent == "park_unknown":
            yield from self._check_maintenance(old, before)

    def _check_claim(self, call: Call, row: Row, later: set[str]) -> Iterator[str]:
        task, key = row["task"], self._key_of.get(row["id"])
        if key is None:
            return  # a task without a limit, or its job never started
        if task in _PER_PERIOD:
            start = self._starts.get((row["id"], row["fence"]))
            self._claims.setdefault((task, key), []).append((call.at, start))
        if task in _AT_ONCE:
            at_once = sum(
                each["state"] == "running" and each["task"] in _AT_ONCE and self._key_of.get(each["id"]) == key
                for each in self._ledger.live.values()
                if each["id"] not in later
            )
            if at_once > _AT_ONCE[task]:
                yield f"{at_once} runs of {key} at once, the limit of {task} is {_AT_ONCE[task]}"

    def rates(self) -> Iterator[str]:
        """Claims exactly, by the store's time; starts with the longest delay between claim and start as tolerance."""
        for (task, key), claims in self._claims.items():
            most, period = _PER_PERIOD[task]
            yield from _too_many(f"{task}, {key}: claims", sorted(at for at, _ in claims), most, period)
            started = [(at, start) for at, start in claims if start is not None]
            delay = max((start - at for at, start in started), default=0)
            yield from _too_many(f"{task}, {key}: starts", sorted(start for _, start in started), most, period - delay)

    # --- blocked runs

    def _check_blocked_runs(self) -> Iterator[str]:
        """A run blocked by a limit waits for a running run, an unblocked run, or a time."""
        held: dict[tuple[str, str], Row] = {}
        freed_later: set[str] = set(self._ledger.limits)
        unblocked: set[tuple[str, str]] = set()
        for row in self._ledger.live.values():
            key = row["limit_key"]
            if key is None:
                continue
            if row["state"] in ("running", "dispatched"):
                freed_later.add(key)
            elif row["state"] == "waiting":
                unblocked.add((key, row["task"]))
            else:
                held[key, row["task"]] = row
        for (key, task), row in held.items():
            if key not in freed_later and (key, task) not in unblocked:
                yield f"run {row['id']} of {task} is blocked by {key}, and nothing will ever unblock it"

    def _check_due_keys(self, call: Call) -> Iterator[str]:
        for key, row in self._ledger.limits.items():
            if row["free_at"] <= call.at and self._is_caller_alive(call):
                yield f"the time of {key} has come, and a claim ignored it"

    def _is_caller_alive(self, call: Call) -> bool:
        """A claim of a dead node does nothing."""
        return any(
            row["died_at"] is None and self._ledger.machine_of[node] == call.who
            for node, row in self._ledger.nodes.items()
        )

    def _check_maintenance(self, old: dict[str, Row | None], timed: dict[str, Row]) -> Iterator[str]:
        """Maintenance may free a place by parking, but finds no run that should have been unblocked."""
        parked = {
            row["limit_key"]
            for run, row in old.items()
            if row is not None and (self._ledger.live.get(run) or row)["state"] == "parked"
        }
        for run, row in old.items():
            new = self._ledger.live.get(run)
            if row is None or new is None or row["state"] != "blocked" or new["state"] != "waiting":
                continue
            if row["limit_key"] not in parked and row["limit_key"] not in timed:
                yield f"run {run} should have been unblocked from {row['limit_key']} before maintenance did it"


def _is_claimed(old: Row | None, new: Row) -> bool:
    # A claim that is lost has no fence for a moment.
    return new["fence"] is not None and (old is None or old["state"] != "running" or old["fence"] != new["fence"])


def _concerns_limits(old: Row | None, new: Row) -> bool:
    return new["limit_key"] is not None or (old is not None and old["limit_key"] is not None)


def _too_many(what: str, moments: list[int], most: int, period: int) -> Iterator[str]:
    for first, last in zip(moments, moments[most:], strict=False):
        if last - first < period:
            yield f"{what}: {most + 1} within {last - first} us, from {first} to {last}"
            return
