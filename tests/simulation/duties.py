"""The duties of a simulation. Each tells the witness of every act, outside of the store.

A loop that looks before every act, and a periodic function: what code in earnest should look like. Between its look
and its word no other machine comes to its turn, so an act is never late by less than a fault.
"""

from __future__ import annotations

from collections.abc import Callable

from evertick.model.duty import DutyContext, DutyWork, Interval

__all__ = ["DUTIES", "duties_of"]

DUTIES = ("follow", "tick")


def duties_of(hear: Callable[[DutyContext], None], step: float) -> list[DutyWork]:
    async def follow(ctx: DutyContext) -> None:
        while True:
            ctx.check()
            hear(ctx)
            await ctx.sleep(step)

    async def tick(ctx: DutyContext) -> None:
        hear(ctx)
        await ctx.sleep(step / 4)

    return [
        DutyWork(name="follow", call=follow, rhythm=None),
        DutyWork(name="tick", call=tick, rhythm=Interval(int(step * 2_000_000))),
    ]
