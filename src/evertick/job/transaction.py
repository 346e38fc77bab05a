"""A job ends its own run inside a transaction: the user's own, or one that Evertick opens.

The guarded finish is committed together with the job's rows. If the outcome of the commit is unknown, the engine reads
the run again and never writes it as failed.
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

# A block holds the write lock that heartbeats need: two heartbeats must fit into the lease after it.
_BLOCKS_PER_LEASE = 3


class Holder(msgspec.Struct, eq=False, gc=False):
    """The incarnation of a node that holds a run, and its store. All runs of a claim share one."""

    store: Store
    app: str
    node: str
    lease: int


def finish_within(record: JobRecord, connection: object, result: object) -> Awaitable[None]:
    """Write the finish: at once on a synchronous connection, when awaited on an async one."""
    holder = _holder(record)
    within = holder.store.within(connection)
    finishing = _finish(record, holder, within, _success(record, result))
    if within.is_async:
        return AwaitedCall(finishing, "ctx", "finish", sys._getframe(2))
    at_once(finishing)
    return _Done()


async def _finish(record: JobRecord, holder: Holder, within: Within, outcome: Outcome) -> None:
    earlier_end = record.job_finish
    # Set before the write: if it is interrupted, the engine must read the run again.
    record.job_finish = earlier_end or "written"
    answer = await within.finish(holder.app, holder.node, outcome)
    if answer == "already" and earlier_end:
        raise _finished_already(record)
    # "already" without an earlier finish of the job: the engine has abandoned the run and recorded that.
    if answer != "done":
        raise _lost(record)


class Transaction:
    """`with ctx.transaction() as conn:`, or `async with`: a connection to the ledger's database in a transaction.

    Leaving the block writes the finish of the run and commits. An exception rolls back, and the run is not finished.
    """

    def __init__(self, record: JobRecord) -> None:
        self._record = record
        self._holder = _holder(record)
        self._job: JobTransaction | None = None

    # Any, because the type of the connection depends on the URL of the ledger.
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
            raise Refused("this transaction was entered already", fix="call ctx.transaction() for another one")
        self._job = holder.store.transaction(seconds=holder.lease / 1e6 / _BLOCKS_PER_LEASE, is_plain=is_plain)
        connection = await self._job.begin(holder.app, holder.node, record.run.id, record.run.fence)
        if connection is None:
            raise _finished_already(record) if record.job_finish else _lost(record)
        return connection

    async def _end(self, error: BaseException | None) -> None:
        assert self._job is not None, "left after it was entered"
        if error is None:
            await self._commit(self._job)
        elif isinstance(error, Exception):
            await self._job.rollback()
        else:
            # The exception that stops the job must not be replaced by a timeout.
            with suppress(TransactionTimeout):
                await self._job.rollback()

    async def _commit(self, job: JobTransaction) -> None:
        record = self._record
        record.job_finish = record.job_finish or "written"
        if not await job.commit(self._holder.app, self._holder.node, _success(record, None)):
            raise _lost(record)
        record.job_finish = "committed"


class _Done:
    """An awaitable for a finish that is already written."""

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
            f"run {record.run.id} of {record.run.task!r} cannot access the ledger here, as in a child process",
            fix="finish in a transaction only in tasks that run in the node's process",
        )
    return record.holder


def _lost(record: JobRecord) -> Lost:
    return Lost(
        f"run {record.run.id} of {record.run.task!r} lost its claim (fence {record.run.fence}) and was not finished: "
        "another node may run it now",
        fix="roll back its changes",
    )


def _finished_already(record: JobRecord) -> Refused:
    return Refused(f"run {record.run.id} of {record.run.task!r} has already finished in its own transaction")


def _refuse_event_loop() -> None:
    if is_on_event_loop():
        raise WouldBlock(
            "`with ctx.transaction()` would block the event loop of this thread",
            fix="use `async with ctx.transaction()`",
        )
