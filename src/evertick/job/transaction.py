"""How a job ends its own run inside a transaction: the user's own, or one that Evertick opens for it.

The guarded finish is written beside the job's rows and committed with them, so that both are there or neither. Whether
the commit happened is the store's to say: a run that may have ended itself is re-read, and never written as failed.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Generator
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from evertick.aio.blocking import at_once, is_on_event_loop
from evertick.aio.unawaited import AwaitedCall
from evertick.errors import Lost, Refused, TransactionTimeout, WouldBlock
from evertick.model import Outcome, Verdict

if TYPE_CHECKING:
    from evertick.job.context import JobRecord
    from evertick.store.base import JobTransaction, Store, Within

__all__ = ["Holder", "Transaction", "finish_within"]

# A block holds the store's write lock, and no node can beat meanwhile: two more beats must fit into the lease after it.
_BLOCKS_PER_LEASE = 3


class Holder(msgspec.Struct, eq=False, gc=False):
    """Which incarnation of a node holds a run, with its way to the store. One for all runs of a claim."""

    store: Store
    app: str
    node: str
    lease: int


def finish_within(record: JobRecord, connection: object, result: object) -> Awaitable[None]:
    """Write the finish at once on a plain connection; on an async one, when the answer is awaited."""
    holder = _holder(record)
    within = holder.store.within(connection)
    finishing = _finish(record, holder, within, _success(record, result))
    if within.is_async:
        return AwaitedCall(finishing, "ctx", "finish", sys._getframe(2))
    at_once(finishing)
    return _Done()


async def _finish(record: JobRecord, holder: Holder, within: Within, outcome: Outcome) -> None:
    was_written = record.own_end
    # Before it is written: who is cut off in between must be asked about, too.
    record.own_end = was_written or "written"
    answer = await within.finish(holder.app, holder.node, outcome)
    if answer == "already" and was_written:
        raise _finished_already(record)
    # "already" of a run that did not end itself: the engine has given it up (abandoned) and written so.
    if answer != "done":
        raise _lost(record)


class Transaction:
    """`with ctx.transaction() as conn:`, or `async with`: a connection to the store's database, inside a transaction.

    Leaving the block writes the finish of the run and commits; raising inside it rolls back, and nothing is finished.
    """

    def __init__(self, record: JobRecord) -> None:
        self._record = record
        self._holder = _holder(record)
        self._job: JobTransaction | None = None

    # Which connection it is, the URL of the ledger says; no type can.
    def __enter__(self) -> Any:
        _refuse_event_loop()
        return at_once(self._begin(is_plain=True))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        at_once(self._end(error))

    async def __aenter__(self) -> Any:
        return await self._begin(is_plain=False)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self._end(error)

    async def _begin(self, *, is_plain: bool) -> Any:
        record, holder = self._record, self._holder
        if self._job is not None:
            raise Refused("this transaction was entered before; call ctx.transaction() for another one")
        self._job = holder.store.transaction(seconds=holder.lease / 1e6 / _BLOCKS_PER_LEASE, is_plain=is_plain)
        connection = await self._job.begin(holder.app, holder.node, record.run.id, record.run.fence)
        if connection is None:
            raise _finished_already(record) if record.own_end else _lost(record)
        return connection

    async def _end(self, error: BaseException | None) -> None:
        assert self._job is not None, "left after it was entered"
        if error is None:
            await self._commit(self._job)
        elif isinstance(error, Exception):
            await self._job.rollback()
        else:
            # That the time was over is no answer to who wants the job to stop.
            with suppress(TransactionTimeout):
                await self._job.rollback()

    async def _commit(self, job: JobTransaction) -> None:
        record = self._record
        record.own_end = record.own_end or "written"
        if not await job.commit(self._holder.app, self._holder.node, _success(record, None)):
            raise _lost(record)
        record.own_end = "committed"


class _Done:
    """Awaited or not, it has happened."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


def _success(record: JobRecord, result: object) -> Outcome:
    return Outcome(
        id=record.run.id,
        fence=record.run.fence,
        kind="done",
        verdict=Verdict.SUCCEEDED,
        result=record.encode_result(result),
        attempts=record.run.attempts + 1,
        phases=record.phases,
        messages=record.messages,
    )


def _holder(record: JobRecord) -> Holder:
    if record.holder is None:
        raise Refused(
            f"run {record.run.id} of {record.run.task!r} has no way to the ledger from here, as in a child process; "
            "finish in a transaction from a task that runs in the node's own process"
        )
    return record.holder


def _lost(record: JobRecord) -> Lost:
    return Lost(
        f"run {record.run.id} of {record.run.task!r} is no longer held under fence {record.run.fence}: another node "
        "may run it by now. Nothing was finished; roll back what belongs to it"
    )


def _finished_already(record: JobRecord) -> Refused:
    return Refused(f"run {record.run.id} of {record.run.task!r} has finished already, in a transaction of its own")


def _refuse_event_loop() -> None:
    if is_on_event_loop():
        raise WouldBlock(
            "`with ctx.transaction()` would block the event loop of this thread; use `async with ctx.transaction()` "
            "here"
        )
