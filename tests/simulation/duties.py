"""The duties of a simulation. Each records every act outside of the store.

One is a loop that checks its term before every act, the other a periodic function. No other machine runs between the
check and the act, so only a fault can make an act late.
"""

from __future__ import annotations

from collections.abc import Callable

from evertick.model.duty import DutyContext, DutyWork, Interval

__all__ = ["DUTIES", "duties_of"]

DUTIES = ("follow", "tick")


def duties_of(record: Callable[[DutyContext], None], step: float) -> list[DutyWork]:
    async def follow(ctx: DutyContext) -> None:
        while True:
            ctx.check()
            record(ctx)
            await ctx.sleep(step)

    async def tick(ctx: DutyContext) -> None:
        record(ctx)
        await ctx.sleep(step / 4)

    return [
        DutyWork(name="follow", call=follow, rhythm=None),
        DutyWork(name="tick", call=tick, rhythm=Interval(int(step * 2_000_000))),
    ]
