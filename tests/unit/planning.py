"""Helpers for tests of plans: moments of one day, and inputs with defaults."""

from __future__ import annotations

from typing import Any

from evertick.model import Definition, Pause
from evertick.plan.inputs import Fire, Plan, PlanInputs
from evertick.plan.plan import plan
from evertick.when import Every, When
from evertick.when.moment import HOUR, MINUTE, SECOND

# 2026-01-01 00:00 UTC
DAY_START = 1_767_225_600_000_000


def at(hour: int, minute: int = 0, second: float = 0) -> int:
    """A moment of the day."""
    return DAY_START + hour * HOUR + minute * MINUTE + int(second * SECOND)


def bound(rule: When) -> When:
    return rule.bind(key="job", created=DAY_START)


def inputs(rule: When | None = None, fire_at: int | None = at(12), **fields: Any) -> PlanInputs:
    """An hourly schedule with its cursor at noon by default; policies go into its definition.

    `closed` is the calendar of its blackout.
    """
    own = {name: fields.pop(name) for name in ("at", "fires", "live", "pause", "closed") if name in fields}
    bound_rule = bound(rule or Every("1h"))
    definition = Definition(task="job", when=bound_rule.text, **fields)
    return PlanInputs(
        key="job",
        definition=definition,
        rule=bound_rule,
        fire_at=fire_at,
        at=own.get("at", fire_at),
        fires=own.get("fires", 0),
        live=own.get("live", 0),
        pause=own.get("pause"),
        blackout=own.get("closed"),
    )


def plan_at(known: PlanInputs, now: int, uniform: float = 0.0) -> Plan:
    return plan(known, now, lambda: uniform)


def paused(until: int | None = None, *, since: int = at(11), is_undeclared: bool = False) -> Pause:
    return Pause(at=since, until=until, is_undeclared=is_undeclared)


def fire_moments(fires: tuple[Fire, ...]) -> list[int]:
    return [fire.fire_at for fire in fires]


def gap_rows(rows: Any) -> list[tuple[int, int, int, str, str]]:
    """(first, last, count, verdict, reason) of each gap."""
    return [(gap.first_at, gap.last_at, gap.count, gap.verdict.value, str(gap.reason)) for gap in rows]
